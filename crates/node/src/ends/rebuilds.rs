//! Rebuilds broken queue pairs in the background: a step each turn, a few at a time (Patronus §5.5).

use super::{ClientEnds, Gate};
use crate::chunks::CHUNK_ACCESS;
use portcullis_nic::{Access, Nic, QpAddress, QpChange, QpId, VerbsError};
use portcullis_protocol::ClientId;
use std::collections::{BTreeMap, VecDeque};

/// Retries of a SEND to a client that has no receive posted.
const RNR_RETRIES: u8 = 6;

/// State of a rebuild, named after its next step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RebuildState {
    Reset,
    Init,
    ReadyToReceive,
    ReadyToSend,
    /// The enforcement's work on the queue pair before its client may use it.
    Restore,
}

/// A queue pair on its way from the state ERR to RTS.
#[derive(Clone, Copy, Debug)]
struct Rebuild {
    client: ClientId,
    sequence: u32,
    qp: QpId,
    /// The client's number for the queue pair.
    number: u32,
    state: RebuildState,
}

/// A rebuild that is over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rebuilt {
    pub client: ClientId,
    /// Number of the request for the rebuild.
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
        self.waiting.push_back(Rebuild { client, sequence, qp, number, state: RebuildState::Reset });
    }

    pub fn has(&self, qp: QpId) -> bool {
        self.waiting.iter().chain(&self.running).any(|rebuild| rebuild.qp == qp)
    }

    pub fn forget(&mut self, client: ClientId) {
        self.waiting.retain(|rebuild| rebuild.client != client);
        self.running.retain(|rebuild| rebuild.client != client);
    }

    /// Takes the next step of each rebuild under way. Returns the rebuilds that are over, and whether any was under
    /// way.
    pub fn step<N: Nic>(
        &mut self,
        nic: &mut N,
        clients: &mut BTreeMap<ClientId, ClientEnds>,
        gate: &mut (impl Gate<N> + ?Sized),
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
            let stepped = rebuild.step(nic, ends, gate);
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
    /// Takes the next step, if that is possible yet. Returns whether it was the last.
    fn step<N: Nic>(
        &mut self,
        nic: &mut N,
        ends: &mut ClientEnds,
        gate: &mut (impl Gate<N> + ?Sized),
    ) -> Result<bool, VerbsError> {
        let qp = self.qp;
        self.state = match self.state {
            RebuildState::Reset if gate.quiesce(qp) => {
                nic.modify_qp(qp, QpChange::Reset)?;
                RebuildState::Init
            }
            RebuildState::Reset => RebuildState::Reset,
            RebuildState::Init => {
                // No rights yet: the client's permissions may change before the last step.
                nic.modify_qp(qp, QpChange::Init { access: Access::empty() })?;
                RebuildState::ReadyToReceive
            }
            RebuildState::ReadyToReceive => {
                let peer = next_peer(ends.peer(self.number));
                nic.modify_qp(qp, QpChange::ReadyToReceive { peer })?;
                RebuildState::ReadyToSend
            }
            RebuildState::ReadyToSend => {
                nic.modify_qp(qp, QpChange::ReadyToSend { rnr_retries: RNR_RETRIES })?;
                gate.resume(qp);
                return self.let_in(nic, ends, gate);
            }
            RebuildState::Restore => return self.let_in(nic, ends, gate),
        };
        Ok(false)
    }

    /// Allows the client's accesses, if all that they need is there.
    fn let_in<N: Nic>(
        &mut self,
        nic: &mut N,
        ends: &ClientEnds,
        gate: &mut (impl Gate<N> + ?Sized),
    ) -> Result<bool, VerbsError> {
        self.state = RebuildState::Restore;
        if !gate.restore(nic, self.qp) {
            return Ok(false);
        }
        let of_chunks = self.number as usize >= ends.data.len();
        let access = if of_chunks { CHUNK_ACCESS } else { gate.access(self.client) };
        nic.modify_qp(self.qp, QpChange::Access { access })?;
        Ok(true)
    }
}

/// Returns the address of the client's end of a queue pair from now on.
fn next_peer(peer: &mut QpAddress) -> QpAddress {
    *peer = peer.after_reset();
    *peer
}
