//! The batches of one tenant's binds, and the ways in which they reach the NIC.
//!
//! Binds that were posted together are confirmed together. There are two ways. Where one queue pair may bind whatever a
//! mechanism binds, that is a queue pair of the node's own ([`OwnQueue`]): no client uses it, so no client can break it.
//! Otherwise each window is bound on the node's end of the queue pair that may use it ([`Phases`], [`Lanes`]).

use super::lanes::{LaneRequest, Lanes};
use super::own_queue::OwnQueue;
use super::phases::Phases;
use super::windows::WindowIndex;
use crate::books::{OwedReply, PermissionSlot, Residue};
use portcullis_nic::{ChainVerb, Completion, Nic, Operation, QpId};
use portcullis_protocol::Credential;
use std::collections::VecDeque;

/// Binds and unbinds that were posted together. `Unit` is what the mechanism binds and unbinds as one.
#[derive(Debug)]
pub(in crate::enforcement) struct Batch<Unit> {
    /// Permissions that start with the batch, and their credentials.
    pub starts: Vec<(PermissionSlot, Credential)>,
    /// What becomes free when the batch is confirmed.
    pub releases: Vec<Release<Unit>>,
    pub owed: Vec<OwedReply>,
    /// All that the batch binds or unbinds.
    pub touched: Vec<Unit>,
    /// Requests so far.
    pub requests: usize,
}

impl<Unit> Default for Batch<Unit> {
    fn default() -> Self {
        Self { starts: Vec::new(), releases: Vec::new(), owed: Vec::new(), touched: Vec::new(), requests: 0 }
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

/// How requests reach the NIC.
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
    /// How many of them, from the oldest on, are confirmed.
    confirmed: usize,
    /// Windows that have to be deallocated because they cannot be invalidated.
    closing: Vec<LaneRequest<Unit>>,
    /// Confirmed batches, empty, for use of their room.
    spare: Vec<Batch<Unit>>,
}

impl<Unit: Copy + PartialEq> Binder<Unit> {
    /// Binds on a queue pair of the node's own.
    pub fn on_own_queue(queue: OwnQueue) -> Self {
        Self::of(Way::Own(queue))
    }

    /// Binds on the queue pairs of clients.
    pub fn on_lanes() -> Self {
        Self::of(Way::Lanes(Phases::default()))
    }

    fn of(way: Way<Unit>) -> Self {
        let (batches, closing, spare) = (VecDeque::new(), Vec::new(), Vec::new());
        Self { way, batches, confirmed: 0, closing, spare }
    }

    /// The queue pair of the node's own.
    pub fn own_queue_pair(&self) -> Option<QpId> {
        match &self.way {
            Way::Own(queue) => Some(queue.qp),
            Way::Lanes(_) => None,
        }
    }

    /// An empty batch.
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

    /// Closes a batch that has requests, which are the last ones.
    pub fn close_batch(&mut self, batch: Batch<Unit>) {
        match &mut self.way {
            Way::Own(queue) => queue.close_batch(),
            Way::Lanes(phases) => phases.close_batch(),
        }
        self.batches.push_back(batch);
    }

    /// Takes a batch back, for use of its room.
    pub fn return_batch(&mut self, mut batch: Batch<Unit>) {
        batch.clear();
        self.spare.push(batch);
    }

    /// Posts what can be posted now. Returns whether the NIC takes requests at all.
    pub fn post(&mut self, nic: &mut impl Nic, lanes: Option<&mut Lanes<Unit>>) -> bool {
        match &mut self.way {
            Way::Own(queue) => queue.post(nic),
            Way::Lanes(phases) => {
                let lanes = lanes.expect("who binds on lanes has some");
                self.confirmed += phases.post(nic, lanes, &mut self.closing);
                true
            }
        }
    }

    /// Takes in that a request on the node's own queue pair was executed.
    pub fn complete(&mut self, completion: &Completion) {
        if let Way::Own(queue) = &mut self.way {
            self.confirmed += usize::from(queue.complete(completion));
        }
    }

    /// Takes in that a request of a batch is done with, on a queue pair of a client's.
    pub fn complete_on_lane(&mut self) {
        if let Way::Lanes(phases) = &mut self.way {
            phases.complete();
        }
    }

    /// The windows that have to be deallocated before a batch is taken for confirmed.
    pub fn take_closing(&mut self) -> Vec<LaneRequest<Unit>> {
        std::mem::take(&mut self.closing)
    }

    /// The oldest batch, if it is confirmed.
    pub fn take_confirmed(&mut self) -> Option<Batch<Unit>> {
        self.confirmed = self.confirmed.checked_sub(1)?;
        self.batches.pop_front()
    }

    /// All batches, none of which is under way any more.
    pub fn fail(&mut self, nic: &mut impl Nic) -> VecDeque<Batch<Unit>> {
        match &mut self.way {
            Way::Own(queue) => queue.begin_anew(nic),
            Way::Lanes(phases) => phases.clear(),
        }
        std::mem::take(&mut self.batches)
    }

    /// The batches under way.
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
