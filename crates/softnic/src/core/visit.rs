//! A visit to a queue pair: the work that it may do, and how requests complete.

use super::objects::{CompletionQueue, Core, CqKind};
use super::queue_pair::{Current, QueuePair};
use super::schedule::{BYTES_PER_VISIT_MAX, REQUEST_WORK, Visit};
use portcullis_memory::Bytes;
use portcullis_nic::{Completion, CompletionKind, Event, QpId, QpState, Status};
use portcullis_protocol::Moment;

impl<M: Bytes> Core<M> {
    /// Lets one queue pair work within its budget. Most visits find nothing to do, and requests wait for these visits
    /// to end.
    #[inline]
    pub(super) fn visit(&mut self, id: QpId, now: Moment) -> Visit {
        self.schedule.visits += 1;
        let Some(pair) = self.qps.get_mut(id.0) else {
            return Visit::Idle;
        };
        let idle = pair.current.is_none()
            && !pair.send.waiting()
            && pair.connection.is_none()
            && pair.held.is_empty();
        if idle && pair.state != QpState::Error { Visit::Idle } else { self.visit_busy(id, now) }
    }

    #[inline(never)]
    fn visit_busy(&mut self, id: QpId, now: Moment) -> Visit {
        // The queue pair is lent while it is served, so that its peer can be reached.
        let Some(mut pair) = self.qps.lend(id.0) else { return Visit::Idle };
        let allowed = self.allowance(&pair);
        if allowed == 0 {
            self.qps.give_back(id.0, pair);
            return Visit::Again;
        }
        if self.has_threads && self.waits_for_threads(&mut pair) {
            self.qps.give_back(id.0, pair);
            return Visit::Moving;
        }
        let mut work = allowed;
        let visit = match pair.state {
            QpState::ReadyToSend => match pair.connection.take() {
                None => self.serve(id, &mut pair, &mut work, now),
                Some(mut connection) => {
                    let visit = self.serve_remote(id, &mut pair, &mut connection, now);
                    pair.connection = Some(connection);
                    visit
                }
            },
            QpState::Error => self.flush(&mut pair, &mut work),
            _ => Visit::Idle,
        };
        let visit = if pair.held.is_empty() { visit } else { self.outcome_with_held(&pair, visit) };
        self.spend(&pair, allowed - work);
        self.qps.give_back(id.0, pair);
        visit
    }

    /// Returns the bytes that a queue pair may move in a visit. All queue pairs of a client share the bytes of a round.
    #[inline]
    fn allowance(&mut self, pair: &QueuePair<M>) -> u32 {
        let (round, quantum) = (self.schedule.rounds, self.schedule.quantum);
        match self.cqs.get_mut(pair.send_cq) {
            Some(client) if pair.polled.is_some() => {
                if client.round != round {
                    (client.round, client.work_left) = (round, quantum);
                }
                client.work_left
            }
            _ => BYTES_PER_VISIT_MAX,
        }
    }

    #[inline]
    fn spend(&mut self, pair: &QueuePair<M>, work: u32) {
        self.schedule.charge(work);
        if pair.polled.is_some()
            && let Some(client) = self.cqs.get_mut(pair.send_cq)
        {
            client.work_left = client.work_left.saturating_sub(work);
            client.visits = client.visits.wrapping_add(u32::from(work > 0));
            if self.engines.is_some() && work > 0 && !client.members.is_empty() {
                client.visits_at_home = client.visits_at_home.wrapping_add(1);
                if client.visits_at_home.is_multiple_of(client.busy_after) {
                    self.busy.push(pair.send_cq);
                }
            }
        }
    }

    #[inline]
    pub(super) fn has_completion_room(&mut self, cq: u32) -> bool {
        self.cqs.get_mut(cq).is_some_and(CompletionQueue::has_room)
    }

    /// Completes a request that has succeeded. `retired` is the number of requests of its queue that have ended.
    #[inline]
    pub(super) fn succeed(&mut self, pair: &QueuePair<M>, current: &Current, retired: u64) {
        if current.signalled() {
            self.complete(pair, current, Status::Success, retired);
        }
    }

    fn complete(&mut self, pair: &QueuePair<M>, current: &Current, status: Status, retired: u64) {
        let completion =
            Completion { request: current.id(), queue_pair: pair.label, status, kind: CompletionKind::Send };
        self.put_completion(pair.send_cq, &completion, retired);
    }

    pub(super) fn put_completion(&mut self, cq: u32, completion: &Completion, taken: u64) {
        let Some(queue) = self.cqs.get_mut(cq) else { return };
        match &mut queue.kind {
            CqKind::Entries(poster) => {
                poster.post(completion, taken);
                if !std::mem::replace(&mut queue.touched, true) {
                    self.touched.push(cq);
                }
            }
            CqKind::Counting(counter) if completion.status == Status::Success => {
                let reached = counter.add_one();
                reached.into_iter().for_each(|waiter| self.ring(waiter));
            }
            CqKind::Counting(_) => {}
        }
    }

    /// Completes a request that has failed. Its queue pair goes to ERR, and the requests posted behind it are flushed.
    pub(super) fn fail(
        &mut self,
        id: QpId,
        pair: &mut QueuePair<M>,
        current: &Current,
        status: Status,
        retired: u64,
    ) {
        if self.has_threads {
            self.leave_engines(pair);
        }
        pair.state = QpState::Error;
        self.complete(pair, current, status, retired);
        if self.counter_mut(pair.send_cq).is_some() {
            // No process reads the completion of a counting queue.
            self.raise(Event::Fatal(id));
        }
        if !std::mem::replace(&mut pair.scheduled, true) {
            self.schedule.push(id, pair.role);
        }
    }

    /// Completes all posted sends and receives as flushed, since the queue pair is in ERR.
    fn flush(&mut self, pair: &mut QueuePair<M>, work: &mut u32) -> Visit {
        // The owner uses the bytes of a flushed request again: none of them may be moved after its completion.
        if pair.moving > 0 || !pair.held.is_empty() {
            return Visit::Moving;
        }
        let mut flushed = false;
        for _ in 0..self.schedule.requests_max {
            if !self.has_completion_room(pair.send_cq) {
                return if flushed { Visit::Again } else { Visit::Idle };
            }
            // Requests on their way are flushed first.
            let (current, retired) = if let Some(sent) = pair.pop_outstanding() {
                (sent, pair.send.taken() - pair.outstanding())
            } else if let Some(current) = pair.current.take() {
                pair.send.advance();
                (current, pair.send.taken())
            } else if let Some(words) = pair.send.peek() {
                pair.send.advance();
                (Current::read(words), pair.send.taken())
            } else {
                return self.flush_receives(pair, flushed);
            };
            self.complete(pair, &current, Status::FlushError, retired);
            *work = work.saturating_sub(REQUEST_WORK);
            flushed = true;
        }
        Visit::Again
    }

    fn flush_receives(&mut self, pair: &mut QueuePair<M>, mut flushed: bool) -> Visit {
        for _ in 0..self.schedule.requests_max {
            let Some(next) = pair.receive.as_ref().and_then(super::rings::ReceiveTaker::peek) else {
                return if flushed { Visit::Done } else { Visit::Idle };
            };
            if !self.has_completion_room(pair.receive_cq) {
                return if flushed { Visit::Again } else { Visit::Idle };
            }
            if let Some(receive) = &mut pair.receive {
                receive.advance();
            }
            let completion = Completion {
                request: next.id,
                queue_pair: pair.label,
                status: Status::FlushError,
                kind: CompletionKind::Receive { length: 0, invalidated: None },
            };
            self.put_completion(pair.receive_cq, &completion, 0);
            flushed = true;
        }
        Visit::Again
    }
}
