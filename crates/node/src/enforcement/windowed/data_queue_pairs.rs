//! Binds windows on the node's ends of clients' data queue pairs, for a NIC on which no queue pair binds for another.
//!
//! A client can break its own queue pairs at any time, and the NIC then flushes the requests that are posted on them.
//! That must not make requests for other clients fail. So a bind that was flushed is postponed until the queue pair is
//! rebuilt. A window whose invalidation was flushed is deallocated, which closes it as well. Nothing is posted on a
//! queue pair that is down.

use super::windows::WindowIndex;
use portcullis_nic::{Completion, CqId, Nic, Operation, QpId, SendQueue, Status, WorkRequest};
use portcullis_planted::planted;
use portcullis_protocol::TenantId;
use std::collections::HashMap;

/// Number of requests that one of these queue pairs holds.
const DEPTH: u32 = 16;

/// A bind or an invalidation, for the queue pair that may use the window.
#[derive(Clone, Copy, Debug)]
pub struct WindowRequest<Unit> {
    pub qp: QpId,
    /// The unit to which the window belongs.
    pub unit: Unit,
    pub window: WindowIndex,
    pub operation: Operation,
}

impl<Unit> WindowRequest<Unit> {
    fn is_bind(&self) -> bool {
        matches!(self.operation, Operation::BindWindow(_))
    }
}

/// The purpose for which a request was posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Purpose {
    /// A batch under way.
    Batch,
    /// A bind that was postponed, for a queue pair that has been rebuilt.
    Restoration,
    /// A batch that has failed.
    Nothing,
}

/// One of the queue pairs.
#[derive(Debug)]
struct DataQueuePair<Unit> {
    tenant: TenantId,
    /// Whether it is broken, or about to be rebuilt.
    is_down: bool,
    /// Number of requests that have not completed.
    under_way: usize,
    /// Number of those requests that were postponed before.
    restoring: usize,
    postponed: Vec<WindowRequest<Unit>>,
}

/// Outcome of a binder's attempt to post a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Posting {
    /// It is under way.
    Posted,
    /// The binder must try again after the next completion.
    Later,
    /// Nothing has to be done on the queue pair, which is down.
    Skipped,
    /// Nothing can be done on the queue pair, which is down. The window may still be bound: it has to be deallocated.
    Closes,
}

/// Meaning of a completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Completed<Unit> {
    /// A request of the tenant's batch under way is finished.
    Done(TenantId),
    /// A request of the tenant's batch is finished, and this window may still be bound: it has to be deallocated.
    Closes(TenantId, Unit, WindowIndex),
    /// The NIC refused a request of the tenant's batch.
    Failed(TenantId),
    /// The request belonged to no batch under way.
    Aside(TenantId),
}

/// The node's ends of all clients' data queue pairs, on which windows are bound.
#[derive(Debug)]
pub struct DataQueuePairs<Unit> {
    cq: CqId,
    /// Number of entries of the completion queue that no request needs.
    room: usize,
    /// Whether a request had to wait for such an entry.
    was_short: bool,
    queue_pairs: HashMap<QpId, DataQueuePair<Unit>>,
    posted: HashMap<u64, (WindowRequest<Unit>, Purpose)>,
    /// The id of the next request. No id is used again.
    next: u64,
}

impl<Unit: Copy + PartialEq> DataQueuePairs<Unit> {
    /// Creates a table without queue pairs. They complete on `cq`, which has room for `room` completions.
    pub fn new(cq: CqId, room: u32) -> Self {
        let (queue_pairs, posted) = (HashMap::new(), HashMap::new());
        Self { cq, room: room as usize, was_short: false, queue_pairs, posted, next: 1 }
    }

    /// Returns the send queue of each queue pair.
    pub fn sends(&self) -> SendQueue {
        SendQueue { cq: self.cq, depth: DEPTH }
    }

    /// Adds the queue pairs of a client, which work.
    pub fn insert(&mut self, tenant: TenantId, queue_pairs: &[QpId]) {
        for &qp in queue_pairs {
            let (under_way, restoring, postponed) = (0, 0, Vec::new());
            self.queue_pairs
                .insert(qp, DataQueuePair { tenant, is_down: false, under_way, restoring, postponed });
        }
    }

    /// Forgets a queue pair that is about to be destroyed.
    pub fn remove(&mut self, qp: QpId) {
        let Some(queue_pair) = self.queue_pairs.remove(&qp) else { return };
        if queue_pair.under_way > 0 {
            self.posted.retain(|_, (request, _)| request.qp != qp);
            self.room += queue_pair.under_way;
        }
    }

    /// Posts a request of a batch, or returns why not.
    pub fn post(&mut self, nic: &mut impl Nic, request: WindowRequest<Unit>) -> Posting {
        let queue_pair =
            self.queue_pairs.get_mut(&request.qp).expect("a queue pair stays while its client has groups");
        if !request.is_bind() && queue_pair.drop_postponed(request.window) {
            return Posting::Skipped;
        }
        if !queue_pair.is_down && self.put(nic, request, Purpose::Batch) {
            return Posting::Posted;
        }
        let queue_pair = self.queue_pairs.get_mut(&request.qp).expect("it was there");
        // Until all posted requests are flushed, it is unknown which windows are bound.
        if queue_pair.is_down && queue_pair.under_way == 0 {
            queue_pair.skip(request)
        } else {
            Posting::Later
        }
    }

    /// Posts a request, if there is room and the queue pair takes it. Returns whether it did.
    fn put(&mut self, nic: &mut impl Nic, request: WindowRequest<Unit>, purpose: Purpose) -> bool {
        if self.room == 0 {
            self.was_short = true;
            return false;
        }
        let queue_pair = self.queue_pairs.get_mut(&request.qp).expect("the caller has checked for room");
        let (id, operation) = (self.next, request.operation);
        match nic.post_send(request.qp, &[WorkRequest { id, signalled: true, operation }]) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(_) => {
                queue_pair.is_down = true;
                return false;
            }
        }
        queue_pair.under_way += 1;
        self.room -= 1;
        self.next += 1;
        self.posted.insert(id, (request, purpose));
        true
    }

    /// Handles a completion. `None`: its queue pair is not in the table any more.
    pub fn complete(&mut self, completion: &Completion) -> Option<Completed<Unit>> {
        let (request, purpose) = self.posted.remove(&completion.request)?;
        self.room += 1;
        let queue_pair = self.queue_pairs.get_mut(&request.qp).expect("its requests are forgotten with it");
        queue_pair.under_way -= 1;
        queue_pair.restoring -= usize::from(purpose == Purpose::Restoration);
        let tenant = queue_pair.tenant;
        queue_pair.is_down |= completion.status != Status::Success;
        let flushed = match (completion.status, purpose) {
            (_, Purpose::Nothing) => return Some(Completed::Aside(tenant)),
            (Status::Success, _) => Posting::Skipped,
            (Status::FlushError, _) | (_, Purpose::Restoration) => queue_pair.skip(request),
            (_, Purpose::Batch) => return Some(Completed::Failed(tenant)),
        };
        Some(match (flushed, purpose) {
            (Posting::Closes, _) => Completed::Closes(tenant, request.unit, request.window),
            (_, Purpose::Batch) => Completed::Done(tenant),
            _ => Completed::Aside(tenant),
        })
    }

    /// Whether requests had to wait because the completion queue might have overflowed, and can be posted again now.
    pub fn take_shortage(&mut self) -> bool {
        self.room > 0 && std::mem::take(&mut self.was_short)
    }

    /// Abandons the requests under way for a tenant, all of whose batches have failed.
    pub fn abandon(&mut self, tenant: TenantId) {
        for (request, purpose) in self.posted.values_mut().filter(|(_, purpose)| *purpose == Purpose::Batch) {
            if self.queue_pairs[&request.qp].tenant == tenant {
                *purpose = Purpose::Nothing;
            }
        }
    }

    /// Forgets the requests for a tenant's unit whose windows were deallocated. Nothing is bound to the unit any more,
    /// even if a queue pair is rebuilt.
    pub fn forget(&mut self, tenant: TenantId, unit: Unit) {
        for queue_pair in self.queue_pairs.values_mut().filter(|queue_pair| queue_pair.tenant == tenant) {
            queue_pair.postponed.retain(|request| request.unit != unit);
        }
        for (request, purpose) in self.posted.values_mut().filter(|(request, _)| request.unit == unit) {
            let queue_pair =
                self.queue_pairs.get_mut(&request.qp).expect("its requests are forgotten with it");
            if queue_pair.tenant == tenant && *purpose == Purpose::Restoration {
                queue_pair.restoring -= 1;
                *purpose = Purpose::Nothing;
            }
        }
    }

    /// Prepares the rebuild of a queue pair. Returns whether all requests that were posted on it have completed: RESET
    /// would discard them.
    pub fn quiesce(&mut self, qp: QpId) -> bool {
        self.queue_pairs.get_mut(&qp).is_none_or(|queue_pair| {
            queue_pair.is_down = true;
            queue_pair.under_way == 0
        })
    }

    /// Notes that a queue pair takes requests again.
    pub fn resume(&mut self, qp: QpId) {
        if let Some(queue_pair) = self.queue_pairs.get_mut(&qp) {
            queue_pair.is_down = false;
        }
    }

    /// Posts the binds that were postponed for a queue pair that takes requests again. Returns whether there is no more
    /// to wait for: all of them are done, or the queue pair has broken once more.
    pub fn restore(&mut self, nic: &mut impl Nic, qp: QpId) -> bool {
        let Some(queue_pair) = self.queue_pairs.get_mut(&qp) else { return true };
        let is_restored = queue_pair.restoring == 0 && queue_pair.postponed.is_empty();
        if queue_pair.is_down || is_restored || planted!(PostponedBindForgotten) {
            return true;
        }
        let mut postponed = std::mem::take(&mut queue_pair.postponed);
        let posted = postponed.iter().take_while(|&&bind| self.put(nic, bind, Purpose::Restoration)).count();
        let queue_pair = self.queue_pairs.get_mut(&qp).expect("it was there");
        queue_pair.restoring += posted;
        queue_pair.postponed = postponed.split_off(posted);
        false
    }
}

impl<Unit: Copy + PartialEq> DataQueuePair<Unit> {
    /// Handles a request that is not executed, because the queue pair is down.
    fn skip(&mut self, request: WindowRequest<Unit>) -> Posting {
        if request.is_bind() {
            self.postponed.push(request);
            return Posting::Skipped;
        }
        if self.drop_postponed(request.window) || planted!(FlushedInvalidationForgotten) {
            return Posting::Skipped;
        }
        Posting::Closes
    }

    /// Drops the postponed bind of a window. Returns whether there was one: then the window is not bound.
    fn drop_postponed(&mut self, window: WindowIndex) -> bool {
        let place = self.postponed.iter().position(|bind| bind.window == window);
        place.map(|place| self.postponed.swap_remove(place)).is_some()
    }
}
