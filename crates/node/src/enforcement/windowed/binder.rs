//! The batches of one tenant's binds, and the ways in which they reach the NIC.
//!
//! Binds that were posted together are confirmed together. There are two ways. If one queue pair may bind all that a
//! mechanism binds, the binder uses a queue pair of the node's own ([`OwnQueue`]): no client uses it, so no client can
//! break it. Otherwise each window is bound on the node's end of the queue pair that may use it ([`Phases`],
//! [`Lanes`]).

use super::lanes::{LaneRequest, Lanes};
use super::own_queue::OwnQueue;
use super::phases::Phases;
use super::windows::WindowIndex;
use crate::books::{OwedReply, PermissionSlot, Residue};
use portcullis_nic::{ChainVerb, Completion, Nic, Operation, QpId};
use portcullis_protocol::Credential;
use std::collections::VecDeque;

/// Binds and unbinds that were posted together. A `Unit` is a set of windows that the mechanism binds and unbinds as
/// one.
#[derive(Debug)]
pub(in crate::enforcement) struct Batch<Unit> {
    /// Permissions that start with the batch, and their credentials.
    pub starts: Vec<(PermissionSlot, Credential)>,
    /// Residues and units that become free when the batch is confirmed.
    pub releases: Vec<Release<Unit>>,
    pub owed: Vec<OwedReply>,
    /// All units that the batch binds or unbinds.
    pub touched: Vec<Unit>,
    /// Number of requests so far.
    pub requests: usize,
}

impl<Unit> Default for Batch<Unit> {
    fn default() -> Self {
        Self { starts: Vec::new(), releases: Vec::new(), owed: Vec::new(), touched: Vec::new(), requests: 0 }
    }
}

impl<Unit> Batch<Unit> {
    /// Empties the batch, and keeps its memory.
    fn clear(&mut self) {
        self.starts.clear();
        self.releases.clear();
        self.owed.clear();
        self.touched.clear();
        self.requests = 0;
    }
}

/// A residue that becomes free once it is known not to be exposed any more.
#[derive(Clone, Copy, Debug)]
pub(in crate::enforcement) struct Release<Unit> {
    pub residue: Residue,
    /// The unit that exposed it, if that was unbound.
    pub unbound: Option<Unit>,
}

/// The way in which requests reach the NIC.
#[derive(Debug)]
enum Way<Unit> {
    Own(OwnQueue),
    Lanes(Phases<Unit>),
}

/// A tenant's batches under way.
#[derive(Debug)]
pub(in crate::enforcement) struct Binder<Unit> {
    way: Way<Unit>,
    batches: VecDeque<Batch<Unit>>,
    /// Number of batches, from the oldest on, that are confirmed.
    confirmed: usize,
    /// Windows that have to be deallocated because they cannot be invalidated.
    closing: Vec<LaneRequest<Unit>>,
    /// Confirmed batches, now empty, kept to reuse their memory.
    spare: Vec<Batch<Unit>>,
}

impl<Unit: Copy + PartialEq> Binder<Unit> {
    /// Creates a binder that uses a queue pair of the node's own.
    pub fn on_own_queue(queue: OwnQueue) -> Self {
        Self::of(Way::Own(queue))
    }

    /// Creates a binder that uses the queue pairs of clients.
    pub fn on_lanes() -> Self {
        Self::of(Way::Lanes(Phases::default()))
    }

    fn of(way: Way<Unit>) -> Self {
        let (batches, closing, spare) = (VecDeque::new(), Vec::new(), Vec::new());
        Self { way, batches, confirmed: 0, closing, spare }
    }

    /// Returns the node's own queue pair, if the binder uses one.
    pub fn own_queue_pair(&self) -> Option<QpId> {
        match &self.way {
            Way::Own(queue) => Some(queue.qp),
            Way::Lanes(_) => None,
        }
    }

    /// Returns an empty batch.
    pub fn open_batch(&mut self) -> Batch<Unit> {
        self.spare.pop().unwrap_or_default()
    }

    /// Adds a bind or unbind that any queue pair may execute.
    pub fn put(&mut self, batch: &mut Batch<Unit>, operation: Operation) {
        batch.requests += 1;
        let Way::Own(queue) = &mut self.way else { unreachable!("lanes bind for themselves alone") };
        queue.put(operation);
    }

    /// Adds a bind or an invalidation of a window of a unit, for the queue pair `lane`.
    pub fn put_for(
        &mut self,
        batch: &mut Batch<Unit>,
        (unit, window): (Unit, WindowIndex),
        lane: QpId,
        operation: Operation,
    ) {
        let verb = match operation {
            Operation::BindWindow(binding) => ChainVerb::BindWindow { binding, queue_pair: lane },
            Operation::LocalInvalidate { rkey } => ChainVerb::LocalInvalidate { rkey, queue_pair: lane },
            other => unreachable!("{other:?} is no bind and no invalidation"),
        };
        match &mut self.way {
            Way::Own(queue) => queue.put(Operation::Chain(verb)),
            Way::Lanes(phases) => phases.put(LaneRequest { lane, unit, window, operation }),
        }
        batch.requests += 1;
    }

    /// Closes a batch that has requests. Its requests must be the last ones added.
    pub fn close_batch(&mut self, batch: Batch<Unit>) {
        match &mut self.way {
            Way::Own(queue) => queue.close_batch(),
            Way::Lanes(phases) => phases.close_batch(),
        }
        self.batches.push_back(batch);
    }

    /// Takes a batch back, to reuse its memory.
    pub fn return_batch(&mut self, mut batch: Batch<Unit>) {
        batch.clear();
        self.spare.push(batch);
    }

    /// Posts the requests that can be posted now. Returns whether the NIC takes requests at all.
    pub fn post(&mut self, nic: &mut impl Nic, lanes: Option<&mut Lanes<Unit>>) -> bool {
        match &mut self.way {
            Way::Own(queue) => queue.post(nic),
            Way::Lanes(phases) => {
                let lanes = lanes.expect("a client that binds on lanes has some");
                self.confirmed += phases.post(nic, lanes, &mut self.closing);
                true
            }
        }
    }

    /// Handles the completion of a request on the node's own queue pair.
    pub fn complete(&mut self, completion: &Completion) {
        if let Way::Own(queue) = &mut self.way {
            self.confirmed += usize::from(queue.complete(completion));
        }
    }

    /// Handles the end of a request of a batch on a client's queue pair.
    pub fn complete_on_lane(&mut self) {
        if let Way::Lanes(phases) = &mut self.way {
            phases.complete();
        }
    }

    /// Takes the windows that have to be deallocated before a batch counts as confirmed.
    pub fn take_closing(&mut self) -> Vec<LaneRequest<Unit>> {
        std::mem::take(&mut self.closing)
    }

    /// Takes out the oldest batch, if it is confirmed.
    pub fn take_confirmed(&mut self) -> Option<Batch<Unit>> {
        self.confirmed = self.confirmed.checked_sub(1)?;
        self.batches.pop_front()
    }

    /// Takes out all batches after a failure. None of them is under way any more.
    pub fn fail(&mut self, nic: &mut impl Nic) -> VecDeque<Batch<Unit>> {
        match &mut self.way {
            Way::Own(queue) => queue.begin_anew(nic),
            Way::Lanes(phases) => phases.clear(),
        }
        std::mem::take(&mut self.batches)
    }

    /// Iterates over the batches under way.
    pub fn batches(&self) -> impl Iterator<Item = &Batch<Unit>> {
        self.batches.iter()
    }

    /// Ends the binder. Returns the batches that were under way.
    pub fn end(self, nic: &mut impl Nic) -> VecDeque<Batch<Unit>> {
        if let Way::Own(queue) = self.way {
            let _ = nic.destroy_qp(queue.qp);
        }
        self.batches
    }
}
