//! Rebuilding queue pairs that broke, in the background: a step each turn, a few at a time (Patronus §5.5).

use crate::audit::AuditEvent;
use crate::node::Node;
use crate::tenant::connect_binder;
use portcullis_nic::{Access, Event, Nic, QpAddress, QpChange, QpId, VerbsError};
use portcullis_protocol::{Mechanism, Moment, Refusal, ReplyBody};
use std::collections::VecDeque;

/// Retries of a SEND to a client that has no receive posted.
const RNR_RETRIES: u8 = 6;

/// Refused accesses that one turn charges. Requests wait until there are no more.
pub(crate) const EVENTS_PER_TURN: u32 = 16;

/// A queue pair on its way from ERR to RTS.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recovery {
    client: u64,
    sequence: u32,
    qp: QpId,
    /// The client's number for it.
    number: u32,
    steps: u8,
}

impl Recovery {
    pub fn new(client: u64, sequence: u32, (qp, number): (QpId, u32)) -> Self {
        Self { client, sequence, qp, number, steps: 0 }
    }
}

/// Those under way, and those that wait.
#[derive(Debug, Default)]
pub(crate) struct Recoveries {
    waiting: VecDeque<Recovery>,
    running: Vec<Recovery>,
}

impl Recoveries {
    pub fn ask(&mut self, recovery: Recovery) {
        self.waiting.push_back(recovery);
    }

    pub fn has(&self, qp: QpId) -> bool {
        self.waiting.iter().chain(&self.running).any(|recovery| recovery.qp == qp)
    }

    pub fn forget(&mut self, client: u64) {
        self.waiting.retain(|recovery| recovery.client != client);
        self.running.retain(|recovery| recovery.client != client);
    }
}

impl<N: Nic> Node<N> {
    /// Takes each queue pair that is being rebuilt a step on.
    pub(crate) fn recover(&mut self, nic: &mut N, now: Moment) -> bool {
        let most = self.config.recoveries_max as usize;
        while self.recoveries.running.len() < most
            && let Some(next) = self.recoveries.waiting.pop_front()
        {
            self.recoveries.running.push(next);
        }
        if self.recoveries.running.is_empty() {
            return false;
        }
        for mut recovery in std::mem::take(&mut self.recoveries.running) {
            match self.step(nic, &mut recovery) {
                Ok(false) => self.recoveries.running.push(recovery),
                Ok(true) => {
                    self.counters.recoveries += 1;
                    self.audit_client(now, AuditEvent::Recovery, recovery.client, None);
                    self.reply(recovery.client, recovery.sequence, ReplyBody::Done, Vec::new());
                }
                Err(_) => self.refuse(recovery.client, recovery.sequence, Refusal::NicFailed),
            }
        }
        true
    }

    /// One step of `ibv_modify_qp`. Returns whether it was the last.
    fn step(&mut self, nic: &mut N, recovery: &mut Recovery) -> Result<bool, VerbsError> {
        let change = match recovery.steps {
            0 => QpChange::Reset,
            // With no rights yet: what the client holds may change before the last step.
            1 => QpChange::Init { access: Access::empty() },
            2 => QpChange::ReadyToReceive { peer: self.next_peer(recovery)? },
            _ => QpChange::ReadyToSend { rnr_retries: RNR_RETRIES },
        };
        nic.modify_qp(recovery.qp, change)?;
        recovery.steps += 1;
        if recovery.steps < 4 {
            return Ok(false);
        }
        nic.modify_qp(recovery.qp, QpChange::Access { access: self.client_access(recovery.client) })?;
        Ok(true)
    }

    /// Where the client's end of a queue pair is from now on.
    fn next_peer(&mut self, recovery: &Recovery) -> Result<QpAddress, VerbsError> {
        let client = self.clients.get_mut(recovery.client);
        let peer = client.and_then(|client| client.ends.peers.get_mut(recovery.number as usize));
        let peer = peer.ok_or(VerbsError::NoSuch { what: "peer" })?;
        *peer = peer.after_reset();
        Ok(*peer)
    }

    /// What a client's data queue pairs let it do.
    pub(crate) fn client_access(&self, client: u64) -> Access {
        match self.config.mechanism {
            Mechanism::MemoryWindow | Mechanism::MemoryRegion | Mechanism::None => Access::REMOTE,
            Mechanism::NodeCopy => Access::empty(),
            Mechanism::QueuePair => {
                let held = self.clients.get(client).map_or([0; 3], |client| client.rights_held);
                let mut access = Access::empty();
                access.set(Access::REMOTE_READ, held[0] > 0);
                access.set(Access::REMOTE_WRITE, held[1] > 0);
                // The lifetime word is extended by an atomic, whatever the permission's rights are.
                access.set(Access::REMOTE_ATOMIC, held.iter().any(|&holders| holders > 0));
                access
            }
        }
    }

    /// What the NIC tells unasked: refused accesses. All that there are.
    pub(crate) fn take_events(&mut self, nic: &mut N, now: Moment) {
        while self.take_some_events(nic, now) == EVENTS_PER_TURN {}
    }

    /// As many of them as one turn has time for. Returns how many there were.
    pub(crate) fn take_some_events(&mut self, nic: &mut N, now: Moment) -> u32 {
        for taken in 0..EVENTS_PER_TURN {
            let Some(event) = nic.poll_event() else { return taken };
            match event {
                Event::AccessError(qp, refused) => self.note_violation(qp, refused, now),
                Event::Fatal(qp) => {
                    if let Some(&tenant) = self.binders.get(&qp) {
                        self.fail_batches(nic, tenant, now);
                    }
                }
            }
        }
        EVENTS_PER_TURN
    }

    /// Takes the queue pair for binds up again after it broke. Where that fails too, the next batch tries again.
    pub(crate) fn mend_binder(&mut self, nic: &mut N, tenant: u32) {
        if let Some(tenant) = self.tenant_mut(tenant) {
            tenant.binder_is_down = connect_binder(nic, tenant.binder).is_err();
        }
    }
}
