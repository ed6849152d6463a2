//! Rebuilds broken queue pairs in the background: a step each turn, a few at a time (Patronus §5.5).

use super::ClientEnds;
use crate::chunks::CHUNK_ACCESS;
use portcullis_nic::{Access, Nic, QpAddress, QpChange, QpId, VerbsError};
use portcullis_protocol::ClientId;
use std::collections::{BTreeMap, VecDeque};

/// Retries of a SEND to a client that has no receive posted.
const RNR_RETRIES: u8 = 6;

/// A queue pair on its way from ERR to RTS.
#[derive(Clone, Copy, Debug)]
struct Rebuild {
    client: ClientId,
    sequence: u32,
    qp: QpId,
    /// The client's number for the queue pair.
    number: u32,
    steps: u8,
}

/// A rebuild that is over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rebuilt {
    pub client: ClientId,
    /// The request that asked for it.
    pub sequence: u32,
    /// Whether the queue pair works again.
    pub done: bool,
}

/// The rebuilds under way, and those that wait.
#[derive(Debug)]
pub(crate) struct Rebuilds {
    at_once: u32,
    waiting: VecDeque<Rebuild>,
    running: Vec<Rebuild>,
}

impl Rebuilds {
    pub fn new(at_once: u32) -> Self {
        Self { at_once, waiting: VecDeque::new(), running: Vec::new() }
    }

    pub fn ask(&mut self, client: ClientId, sequence: u32, qp: QpId, number: u32) {
        self.waiting.push_back(Rebuild { client, sequence, qp, number, steps: 0 });
    }

    pub fn has(&self, qp: QpId) -> bool {
        self.waiting.iter().chain(&self.running).any(|rebuild| rebuild.qp == qp)
    }

    pub fn forget(&mut self, client: ClientId) {
        self.waiting.retain(|rebuild| rebuild.client != client);
        self.running.retain(|rebuild| rebuild.client != client);
    }

    /// Takes the next step of each rebuild under way. Returns which are over, and whether there were any.
    pub fn step(
        &mut self,
        nic: &mut impl Nic,
        clients: &mut BTreeMap<ClientId, ClientEnds>,
        access: impl Fn(ClientId) -> Access,
    ) -> (Vec<Rebuilt>, bool) {
        while self.running.len() < self.at_once as usize
            && let Some(next) = self.waiting.pop_front()
        {
            self.running.push(next);
        }
        let any = !self.running.is_empty();
        let mut over = Vec::new();
        self.running.retain_mut(|rebuild| {
            let Rebuild { client, sequence, .. } = *rebuild;
            let ends = clients.get_mut(&client).expect("a client's rebuilds go with the client");
            let of_chunks = rebuild.number as usize >= ends.data.len();
            let access = if of_chunks { CHUNK_ACCESS } else { access(client) };
            let stepped = rebuild.step(nic, ends, access);
            let goes_on = matches!(stepped, Ok(false));
            if !goes_on {
                over.push(Rebuilt { client, sequence, done: stepped.is_ok() });
            }
            goes_on
        });
        (over, any)
    }
}

impl Rebuild {
    /// One step of `ibv_modify_qp`. Returns whether it was the last.
    fn step(
        &mut self,
        nic: &mut impl Nic,
        ends: &mut ClientEnds,
        access: Access,
    ) -> Result<bool, VerbsError> {
        let change = match self.steps {
            0 => QpChange::Reset,
            // No rights yet: what the client holds may change before the last step.
            1 => QpChange::Init { access: Access::empty() },
            2 => QpChange::ReadyToReceive { peer: next_peer(ends.peer(self.number)) },
            _ => QpChange::ReadyToSend { rnr_retries: RNR_RETRIES },
        };
        nic.modify_qp(self.qp, change)?;
        self.steps += 1;
        if self.steps < 4 {
            return Ok(false);
        }
        nic.modify_qp(self.qp, QpChange::Access { access })?;
        Ok(true)
    }
}

/// The address of the client's end of a queue pair from now on.
fn next_peer(peer: &mut QpAddress) -> QpAddress {
    *peer = peer.after_reset();
    *peer
}
