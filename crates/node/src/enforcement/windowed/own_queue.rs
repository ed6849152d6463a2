//! A queue pair of the node's own, on which binds are posted. It is connected to itself and sends nothing to peers. No
//! client uses it, so no client can break it.

use portcullis_nic::{
    Access, ChainNic, ChainRole, Completion, CqId, Nic, Operation, PdId, QpAttributes, QpChange, QpId,
    VerbsError, WorkRequest,
};
use std::collections::VecDeque;

/// Number of requests that the queue pair holds.
const DEPTH: u32 = 1024;

/// One request in this many of a batch is signalled: half of the number that the queue holds. A batch may be larger
/// than the queue, which forgets requests only when a signalled one completes.
const SIGNAL_EVERY: usize = DEPTH as usize / 2;

/// The queue pair, and the requests for which it had no room yet.
#[derive(Debug)]
pub struct OwnQueue {
    pub qp: QpId,
    /// Whether the queue pair broke, and the NIC would not connect it again.
    is_down: bool,
    unposted: VecDeque<WorkRequest>,
    /// Number of requests since the last signalled one.
    unsignalled: usize,
    /// Number of batches so far.
    count: u64,
    /// The numbers of the batches under way: the ids of their last requests. No number is zero, and none is used again.
    under_way: VecDeque<u64>,
}

impl OwnQueue {
    /// Creates a queue pair in the state RTS. `for_others`: whether it binds windows for other queue pairs.
    pub fn new(nic: &mut impl Nic, pd: PdId, cq: CqId, for_others: bool) -> Result<Self, VerbsError> {
        let attributes = QpAttributes { send_cq: cq, receive_cq: cq, send_depth: DEPTH, receive_depth: 0 };
        let qp = if for_others {
            let role = ChainRole { privileged: true, ..ChainRole::default() };
            nic.require_chains()?.create_chain_qp(pd, attributes, role)?
        } else {
            nic.create_qp(pd, attributes)?
        };
        connect(nic, qp).inspect_err(|_| {
            let _ = nic.destroy_qp(qp);
        })?;
        let (unposted, under_way) = (VecDeque::new(), VecDeque::new());
        Ok(Self { qp, is_down: false, unposted, unsignalled: 0, count: 0, under_way })
    }

    /// Adds a request to the open batch.
    pub fn put(&mut self, operation: Operation) {
        self.unsignalled += 1;
        let signalled = self.unsignalled == SIGNAL_EVERY;
        if signalled {
            self.unsignalled = 0;
        }
        self.unposted.push_back(WorkRequest { id: 0, signalled, operation });
    }

    /// Closes the batch. Its requests are the last unposted ones.
    pub fn close_batch(&mut self) {
        self.count += 1;
        self.unsignalled = 0;
        let last = self.unposted.back_mut().expect("a batch has requests");
        (last.signalled, last.id) = (true, self.count);
        self.under_way.push_back(self.count);
    }

    /// Posts the requests for which the queue has room. Returns whether the queue takes requests at all.
    pub fn post(&mut self, nic: &mut impl Nic) -> bool {
        if self.is_down && !self.unposted.is_empty() {
            // The NIC refused this at the break, and may allow it by now. Then this batch need not fail.
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

    /// Handles the completion of a request. Returns whether that confirms the oldest batch.
    pub fn complete(&mut self, completion: &Completion) -> bool {
        // Other completions are within a batch, or of a failed batch: they only show that the queue has room again.
        self.under_way.pop_front_if(|number| *number == completion.request).is_some()
    }

    /// Forgets all batches, and connects the queue pair again after it broke. If that fails, the next batch tries
    /// again.
    pub fn begin_anew(&mut self, nic: &mut impl Nic) {
        self.unposted.clear();
        self.under_way.clear();
        self.unsignalled = 0;
        self.mend(nic);
    }

    fn mend(&mut self, nic: &mut impl Nic) {
        self.is_down = connect(nic, self.qp).is_err();
    }
}

fn connect(nic: &mut impl Nic, qp: QpId) -> Result<(), VerbsError> {
    let peer = nic.qp_address(qp)?;
    nic.modify_qp(qp, QpChange::Reset)?;
    nic.modify_qp(qp, QpChange::Init { access: Access::empty() })?;
    nic.modify_qp(qp, QpChange::ReadyToReceive { peer })?;
    nic.modify_qp(qp, QpChange::ReadyToSend { rnr_retries: 0 })
}
