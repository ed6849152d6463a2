//! Turns the entries of completion queues into completions of the owner's requests.

use crate::nic::IbNic;
use crate::queue_pair::{Effect, QueuePair, Trip};
use crate::sys::{Cq, WorkCompletion};
use crate::ticket::Ticket;
use portcullis_nic::{Completion, CompletionKind, CqId, QpId, QpState, Rkey, Status, VerbsError, WindowKind};
use std::collections::VecDeque;

pub(crate) struct CompletionQueue {
    pub cq: Cq,
    pub depth: u32,
    /// Entries reserved for the requests and receives that may be posted to the queue pairs that complete here: never
    /// more than the queue has, so that it cannot overflow.
    pub kept: u32,
    /// Number of queues that complete here.
    pub users: u32,
    /// Completions taken from the device that the owner has not polled yet.
    pub waiting: VecDeque<Completion>,
}

impl IbNic {
    /// Polls a completion queue for at most one batch. Returns whether there may be more.
    pub(crate) fn take_in(&mut self, cq: CqId) -> Result<bool, VerbsError> {
        let mut said = Cq::room();
        let queue = self.cqs.get(cq.0)?;
        let count = queue.cq.poll(&mut said, WorkCompletion::BATCH);
        let count = count.map_err(|error| VerbsError::Machine(error.to_string()))?;
        for entry in said.iter().take(count) {
            self.enter_completion(cq, entry);
        }
        Ok(count == WorkCompletion::BATCH)
    }

    /// Polls all entries that a completion queue has now.
    pub(crate) fn take_in_all(&mut self, cq: CqId) {
        while self.take_in(cq).is_ok_and(|more| more) {}
    }

    fn enter_completion(&mut self, cq: CqId, entry: &WorkCompletion) {
        let ticket = Ticket::of_number(entry.id);
        let Ok(pair) = self.queue_pairs.get_mut(ticket.slot) else { return };
        if pair.epoch != ticket.epoch {
            return;
        }
        // A status of InfiniBand that this vocabulary lacks counts as a failure of the device.
        let status = u8::try_from(entry.status).ok().and_then(Status::from_number);
        let status = status.unwrap_or(Status::RemoteOperationError);
        let completion =
            if ticket.receive { self.received(ticket, entry, status) } else { self.sent(ticket, status) };
        if let (Some(completion), Ok(queue)) = (completion, self.cqs.get_mut(cq.0)) {
            queue.waiting.push_back(completion);
        }
    }

    fn received(&mut self, ticket: Ticket, entry: &WorkCompletion, status: Status) -> Option<Completion> {
        let queue_pair = QpId(ticket.slot);
        if status != Status::Success {
            self.tripped(queue_pair);
        }
        if let Some(rkey) = entry.invalidated {
            self.freed(rkey);
        }
        let pair = self.queue_pairs.get_mut(ticket.slot).ok()?;
        if pair.tripwire {
            if status == Status::Success {
                // An unexpected message has consumed the tripwire.
                Self::set_tripwire(pair, ticket.slot);
                // If the queue pair broke before that, a device may never report it.
                if pair.qp.state().is_ok_and(|state| state == QpState::Error) {
                    self.tripped(queue_pair);
                }
            }
            return None;
        }
        let mut request = None;
        pair.receive.complete(ticket.position, |id, named| request = named.then_some(id));
        let kind = CompletionKind::Receive { length: entry.bytes, invalidated: entry.invalidated.map(Rkey) };
        Some(Completion { request: request?, queue_pair, status, kind })
    }

    fn sent(&mut self, ticket: Ticket, status: Status) -> Option<Completion> {
        let queue_pair = QpId(ticket.slot);
        let pair = self.queue_pairs.get_mut(ticket.slot).ok()?;
        if status.breaks() {
            pair.broken_by_owner = true;
            pair.state = QpState::Error;
        }
        let mut named = None;
        let mut done = std::mem::take(&mut self.done);
        pair.send.complete(ticket.position, |posted, is_named| {
            done.push((posted.effect, !is_named || status == Status::Success));
            if is_named {
                named = Some(posted.id);
            }
        });
        for (effect, succeeded) in done.drain(..) {
            self.apply(queue_pair, effect, succeeded);
        }
        self.done = done;
        Some(Completion { request: named?, queue_pair, status, kind: CompletionKind::Send })
    }

    /// Records the effect of a request, or its failure.
    fn apply(&mut self, on: QpId, effect: Effect, succeeded: bool) {
        match (effect, succeeded) {
            (Effect::None, _) | (Effect::Invalidate { .. }, false) => {}
            (Effect::Invalidate { rkey }, true) => self.freed(rkey),
            (Effect::Bind { .. }, false) => self.books.undo(effect),
            (Effect::Bind { window, over, .. }, true) => {
                let Ok(entry) = self.books.windows.get_mut(window.0) else { return };
                let before = std::mem::replace(&mut entry.over, over);
                let two = entry.kind == WindowKind::Two;
                if two {
                    entry.on = Some(on);
                }
                for (region, up) in [(before, false), (over, true)] {
                    if let Some(region) = region.and_then(|region| self.books.regions.get_mut(region.0).ok())
                    {
                        region.windows =
                            if up { region.windows + 1 } else { region.windows.saturating_sub(1) };
                    }
                }
                if let (true, Ok(pair)) = (two, self.queue_pairs.get_mut(on.0)) {
                    pair.windows += 1;
                }
            }
        }
    }

    /// Records that a type-2 window is free.
    fn freed(&mut self, rkey: u32) {
        let found =
            self.books.windows.iter().find(|(_, window)| window.on.is_some() && window.mw.rkey() == rkey);
        if let Some(id) = found.map(|(id, _)| id) {
            self.let_go(id);
        }
    }

    /// Records that a window lies over no region any more.
    pub(crate) fn let_go(&mut self, window: u32) {
        let Ok(window) = self.books.windows.get_mut(window) else { return };
        let (over, on) = (window.over.take(), window.on.take());
        if let Some(region) = over.and_then(|region| self.books.regions.get_mut(region.0).ok()) {
            region.windows = region.windows.saturating_sub(1);
        }
        if let Some(pair) = on.and_then(|on| self.queue_pairs.get_mut(on.0).ok()) {
            pair.windows = pair.windows.saturating_sub(1);
        }
    }

    /// Records that a queue pair broke, for a reason not known yet.
    pub(crate) fn tripped(&mut self, qp: QpId) {
        let Ok(pair) = self.queue_pairs.get_mut(qp.0) else { return };
        pair.state = QpState::Error;
        if pair.trip == Trip::No {
            pair.trip = Trip::Seen;
            self.trips.push_back(qp);
        }
    }

    /// Fails a request that the library would not post, as if the device had refused it. This breaks the request's
    /// queue pair.
    pub(crate) fn refuse_request(&mut self, qp: QpId, request: u64, status: Status) {
        let Ok(pair) = self.queue_pairs.get_mut(qp.0) else { return };
        pair.broken_by_owner = true;
        pair.state = QpState::Error;
        let _ = pair.qp.enter_error();
        let send_cq = pair.send_cq;
        self.take_in_all(send_cq);
        if let Ok(queue) = self.cqs.get_mut(send_cq.0) {
            let kind = CompletionKind::Send;
            queue.waiting.push_back(Completion { request, queue_pair: qp, status, kind });
        }
    }

    /// Posts the NIC's own receive to a queue pair that has none.
    pub(crate) fn set_tripwire(pair: &mut QueuePair, slot: u32) {
        let ticket = Ticket { slot, epoch: pair.epoch, position: 0, receive: true };
        if let Err(error) = crate::sys::Posting::receive(&mut pair.qp, ticket.number(), None) {
            tracing::warn!(%error, "the failure of a queue pair will not be reported at once");
        }
    }
}
