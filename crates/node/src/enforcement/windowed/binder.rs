//! The queue pair that binds one tenant's windows, and the batches that are posted on it.
//!
//! No client uses this queue pair, so no client can break it. Binds that were posted together are confirmed together.

use crate::books::{OwedReply, PermissionSlot, Residue};
use portcullis_nic::{
    Access, ChainRole, CqId, Nic, Operation, PdId, QpAttributes, QpChange, QpId, VerbsError, WorkRequest,
};
use portcullis_protocol::Credential;
use std::collections::VecDeque;

/// Requests that the queue pair holds.
const DEPTH: u32 = 1024;

/// One request in this many of a batch is signalled: half of what the queue holds. A batch may be larger than the
/// queue, which forgets requests only when one is signalled.
const SIGNAL_EVERY: usize = DEPTH as usize / 2;

/// Binds and unbinds that were posted together. `Unit` is what the mechanism binds and unbinds as one.
#[derive(Debug)]
pub(in crate::enforcement) struct Batch<Unit> {
    /// The id of the last request, whose completion confirms the batch. Not zero, and not used again.
    pub number: u64,
    /// Permissions that start with the batch, and their credentials.
    pub starts: Vec<(PermissionSlot, Credential)>,
    /// What becomes free when the batch is confirmed.
    pub releases: Vec<Release<Unit>>,
    pub owed: Vec<OwedReply>,
    /// All that the batch binds or unbinds.
    pub touched: Vec<Unit>,
    /// Requests so far.
    requests: usize,
}

impl<Unit> Default for Batch<Unit> {
    fn default() -> Self {
        Self {
            number: 0,
            starts: Vec::new(),
            releases: Vec::new(),
            owed: Vec::new(),
            touched: Vec::new(),
            requests: 0,
        }
    }
}

impl<Unit> Batch<Unit> {
    /// Empties the batch, and keeps its room.
    fn clear(&mut self) {
        self.starts.clear();
        self.releases.clear();
        self.owed.clear();
        self.touched.clear();
        self.requests = 0;
    }
}

/// What becomes free once it is known to be exposed no more.
#[derive(Clone, Copy, Debug)]
pub(in crate::enforcement) struct Release<Unit> {
    pub residue: Residue,
    /// What exposed it, if that was unbound.
    pub unbound: Option<Unit>,
}

/// The queue pair, its batches under way, and requests of them that the queue had no room for yet.
#[derive(Debug)]
pub(in crate::enforcement) struct Binder<Unit> {
    pub qp: QpId,
    /// The queue pair broke, and the NIC would not connect it again.
    is_down: bool,
    pub batches: VecDeque<Batch<Unit>>,
    /// Confirmed batches, empty, for use of their room.
    spare: Vec<Batch<Unit>>,
    /// Number of batches so far.
    count: u64,
    pub unposted: VecDeque<WorkRequest>,
}

impl<Unit> Binder<Unit> {
    /// A queue pair in RTS that is connected to itself: it sends nothing to peers. `for_others`: it binds windows for other
    /// queue pairs.
    pub fn new(nic: &mut impl Nic, pd: PdId, cq: CqId, for_others: bool) -> Result<Self, VerbsError> {
        let attributes = QpAttributes { send_cq: cq, receive_cq: cq, send_depth: DEPTH, receive_depth: 0 };
        let qp = if for_others {
            let role = ChainRole { privileged: true, ..ChainRole::default() };
            nic.create_chain_qp(pd, attributes, role)?
        } else {
            nic.create_qp(pd, attributes)?
        };
        connect(nic, qp).inspect_err(|_| {
            let _ = nic.destroy_qp(qp);
        })?;
        Ok(Self {
            qp,
            is_down: false,
            batches: VecDeque::new(),
            spare: Vec::new(),
            count: 0,
            unposted: VecDeque::new(),
        })
    }

    /// An empty batch.
    pub fn open_batch(&mut self) -> Batch<Unit> {
        self.spare.pop().unwrap_or_default()
    }

    /// Adds a request to a batch.
    pub fn put(&mut self, batch: &mut Batch<Unit>, operation: Operation) {
        batch.requests += 1;
        let signalled = batch.requests.is_multiple_of(SIGNAL_EVERY);
        self.unposted.push_back(WorkRequest { id: 0, signalled, operation });
    }

    /// Closes a batch, whose requests are the last unposted ones.
    pub fn close_batch(&mut self, mut batch: Batch<Unit>) {
        self.count += 1;
        batch.number = self.count;
        let last = self.unposted.back_mut().expect("a batch has requests");
        (last.signalled, last.id) = (true, batch.number);
        self.batches.push_back(batch);
    }

    /// Takes a batch back, for use of its room.
    pub fn return_batch(&mut self, mut batch: Batch<Unit>) {
        batch.clear();
        self.spare.push(batch);
    }

    /// Posts what the queue has room for. Returns whether the queue takes requests at all.
    pub fn post(&mut self, nic: &mut impl Nic) -> bool {
        if self.is_down && !self.unposted.is_empty() {
            // What the NIC refused at the break may work by now, so that this batch need not fail.
            self.mend(nic);
        }
        while !self.unposted.is_empty() {
            let (front, _) = self.unposted.as_slices();
            match nic.post_send(self.qp, front) {
                Ok(0) => return true,
                Ok(posted) => drop(self.unposted.drain(..posted)),
                Err(_) => return false,
            }
        }
        true
    }

    /// Connects the queue pair again after it broke. If that fails, the next batch tries again.
    pub fn mend(&mut self, nic: &mut impl Nic) {
        self.is_down = connect(nic, self.qp).is_err();
    }

    /// Whether something is still to be bound or unbound, or is on its way.
    pub fn is_at_work(&self) -> bool {
        !self.batches.is_empty() || !self.unposted.is_empty()
    }
}

fn connect(nic: &mut impl Nic, qp: QpId) -> Result<(), VerbsError> {
    let peer = nic.qp_address(qp)?;
    nic.modify_qp(qp, QpChange::Reset)?;
    nic.modify_qp(qp, QpChange::Init { access: Access::empty() })?;
    nic.modify_qp(qp, QpChange::ReadyToReceive { peer })?;
    nic.modify_qp(qp, QpChange::ReadyToSend { rnr_retries: 0 })
}
