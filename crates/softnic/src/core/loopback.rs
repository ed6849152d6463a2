//! Requests with both ends on this NIC: they are executed at once, from memory to memory.

use super::keys::Target;
use super::layout::decode_transfer;
use super::objects::Core;
use super::queue_pair::{Current, QueuePair};
use super::schedule::{REQUEST_WORK, Visit};
use super::verbs::{Exchange, Progress, Responder};
use portcullis_memory::Bytes;
use portcullis_nic::{ChainVerb, Operation, QpId, QpState, Status};
use portcullis_planted::planted;
use portcullis_protocol::Moment;

/// Number of requests whose lines are fetched ahead: each line comes from another processor's cache, and fetches
/// overlap.
const PREFETCH: u64 = 6;
/// Number of requests ahead whose messages are fetched: less, since the request that names a message is fetched first.
const MESSAGES_AHEAD: u64 = 3;
/// Bytes of a message that are fetched ahead, in steps of a processor's cache line.
const MESSAGE_BYTES_FETCHED: u64 = 128;

/// The result of one step of a request.
pub(super) enum StepResult {
    Done,
    /// The request is executed. Its completion is held until no access that it has ended still moves bytes.
    Held,
    /// Copy units move bytes of the request, or of accesses that a request before it has ended.
    Moving,
    /// The request continues at the next visit.
    Again,
    /// The request is one of a chain that waits for a count: its queue pair is rung when the count is reached.
    Waiting,
    /// The request failed at the requester: the peer does not learn of it.
    Local(Status),
    /// The responder refused the request: both ends are in error now.
    Refused(Status),
}

/// Copies between the requester's memory and the responder's. It copies only as much of a READ or WRITE as a visit
/// allows.
struct Copying<'a> {
    here: Target,
    /// Bytes of the request that are done.
    done: &'a mut u32,
    /// Bytes that the visit may still move.
    work: &'a mut u32,
}

impl Copying<'_> {
    /// Calls `copy` for as many bytes as the visit allows, with the first byte and the number of bytes.
    #[inline]
    fn part(&mut self, length: u32, copy: impl FnOnce(u64, u64)) -> Progress {
        let part = (length - *self.done).min(*self.work);
        copy(u64::from(*self.done), u64::from(part));
        *self.done += part;
        *self.work -= part;
        if *self.done == length { Progress::Done } else { Progress::Partly }
    }
}

impl<M: Bytes> Exchange<M> for Copying<'_> {
    #[inline]
    fn fetch(&mut self, core: &Core<M>, from: Target, length: u32) -> Progress {
        let (here, memory) = (self.here, &core.memories[self.here.memory]);
        let there = &core.memories[from.memory];
        self.part(length, |done, part| there.copy(from.offset + done, memory, here.offset + done, part))
    }

    #[inline]
    fn store(&mut self, core: &Core<M>, into: Target, length: u32) -> Progress {
        let (here, memory) = (self.here, &core.memories[self.here.memory]);
        let there = &core.memories[into.memory];
        self.part(length, |done, part| memory.copy(here.offset + done, there, into.offset + done, part))
    }

    fn put(&mut self, core: &Core<M>, into: Target, length: u32) {
        let memory = &core.memories[self.here.memory];
        memory.copy(self.here.offset, &core.memories[into.memory], into.offset, length.into());
    }

    fn fetch_word(&mut self, core: &Core<M>, value: u64) {
        core.memories[self.here.memory].write(self.here.offset, &value.to_le_bytes());
    }
}

impl<M: Bytes> Core<M> {
    /// Executes the posted requests, as far as the budget allows.
    pub(super) fn serve(&mut self, id: QpId, pair: &mut QueuePair<M>, work: &mut u32, now: Moment) -> Visit {
        let mut blocked = Visit::Blocked;
        // The requests that the NIC's own thread has posted are in its cache.
        let is_posted_elsewhere = pair.polled.is_some();
        // Only queue pairs with a receive queue carry messages.
        let carries_messages = is_posted_elsewhere && pair.receive.is_some();
        if is_posted_elsewhere {
            (1..PREFETCH).for_each(|ahead| pair.send.prefetch(ahead));
        }
        if carries_messages {
            (0..MESSAGES_AHEAD).for_each(|ahead| self.fetch_message(pair, ahead));
        }
        for _ in 0..self.schedule.requests_max {
            if is_posted_elsewhere {
                pair.send.prefetch(PREFETCH);
            }
            if carries_messages {
                self.fetch_message(pair, MESSAGES_AHEAD);
            }
            let mut current = match pair.current.take() {
                Some(current) => current,
                None => match pair.send.peek() {
                    Some(words) => Current::read(words),
                    None => return Visit::Done,
                },
            };
            // If there is no room for its completion, a request is not executed.
            if !self.has_completion_room(pair.send_cq) {
                pair.current = Some(current);
                return blocked;
            }
            let before = *work;
            match self.step(id, pair, &mut current, work, now) {
                StepResult::Done => {
                    *work = work.saturating_sub(REQUEST_WORK);
                    pair.send.advance();
                    self.succeed(pair, &current, pair.send.taken());
                }
                StepResult::Held => {
                    *work = work.saturating_sub(REQUEST_WORK);
                    pair.send.advance();
                }
                StepResult::Moving => {
                    pair.current = Some(current);
                    return Visit::Moving;
                }
                StepResult::Again => {
                    let moved = *work < before;
                    pair.current = Some(current);
                    return if moved { Visit::Again } else { blocked };
                }
                StepResult::Waiting => {
                    pair.current = Some(current);
                    return if blocked == Visit::Again { Visit::Done } else { Visit::Idle };
                }
                StepResult::Local(status) => return self.fail_step(id, pair, current, status, false),
                StepResult::Refused(status) => return self.fail_step(id, pair, current, status, true),
            }
            blocked = Visit::Again;
            if *work == 0 {
                return Visit::Again;
            }
        }
        Visit::Again
    }

    /// Ends a request that failed, at the responder too if it refused the request.
    #[cold]
    fn fail_step(
        &mut self,
        id: QpId,
        pair: &mut QueuePair<M>,
        current: Current,
        status: Status,
        is_refused: bool,
    ) -> Visit {
        // A request fails after the completions before it, and when none of its bytes moves any more.
        let moves = pair.moving > 0 && !planted!(RefusedWhilePiecesMove);
        if !pair.held.is_empty() || moves {
            pair.current = Some(current);
            return Visit::Moving;
        }
        self.settle_peer(pair);
        pair.send.advance();
        self.fail(id, pair, &current, status, pair.send.taken());
        if is_refused
            && let (Some(responder), Some((verb, _))) = (self.responder(id, pair), current.transfer())
        {
            self.break_responder(&responder, verb);
        }
        Visit::Again
    }

    /// Fetches the message of a SEND that will be executed soon, `ahead` places on, from its sender's cache. This is
    /// only a hint: the request is read again, once, when its turn comes.
    #[inline]
    fn fetch_message(&self, pair: &QueuePair<M>, ahead: u64) {
        let Some(words) = pair.send.glimpse(ahead) else { return };
        if let Some(Operation::Send { local }) = decode_transfer(&words)
            && let Some(target) = self.keys.local(pair.pd, local, false)
        {
            let length = u64::from(local.length).min(MESSAGE_BYTES_FETCHED);
            self.memories[target.memory].prefetch(target.offset, length);
        }
    }

    fn step(
        &mut self,
        id: QpId,
        pair: &mut QueuePair<M>,
        current: &mut Current,
        work: &mut u32,
        now: Moment,
    ) -> StepResult {
        if self.has_threads
            && let Some(result) = self.step_with_threads(id, pair, current, work)
        {
            return result;
        }
        let Some((verb, local)) = current.transfer() else {
            return self.step_here(id, pair, current);
        };
        let here = match self.requester_end(pair.pd, verb, local) {
            Ok(here) => here,
            Err(status) => return StepResult::Local(status),
        };
        let Some(responder) = self.responder(id, pair) else {
            return StepResult::Local(Status::RetryExceededError);
        };
        let mut copying = Copying { here, done: &mut current.done, work };
        match self.execute(&responder, verb, &mut copying) {
            Ok(Progress::Done) => StepResult::Done,
            Ok(Progress::NotReady) if current.is_given_up(pair.rnr_retries, now) => {
                StepResult::Local(Status::RnrRetryExceededError)
            }
            Ok(Progress::Partly | Progress::NotReady) => StepResult::Again,
            Err(status) => StepResult::Refused(status),
        }
    }

    /// Executes a request that concerns only the requester's end. It is not inlined, so that reads and writes keep their
    /// registers.
    #[inline(never)]
    fn step_here(&mut self, id: QpId, pair: &mut QueuePair<M>, current: &Current) -> StepResult {
        let operation = current.operation();
        if let Some(Operation::Chain(verb)) = operation {
            return match self.execute_chain_verb(id, pair, verb) {
                Ok(Progress::NotReady) => StepResult::Waiting,
                Ok(_) if self.hold(id, pair, current, matches!(verb, ChainVerb::LocalInvalidate { .. })) => {
                    StepResult::Held
                }
                Ok(_) => StepResult::Done,
                Err(status) => StepResult::Local(status),
            };
        }
        match self.execute_here(id, pair.pd, operation) {
            Ok(ended_access) if self.hold(id, pair, current, ended_access) => StepResult::Held,
            Ok(_) => StepResult::Done,
            Err(status) => StepResult::Local(status),
        }
    }

    /// Returns the responder of a request, if its peer serves.
    pub(super) fn responder(&self, own: QpId, pair: &QueuePair<M>) -> Option<Responder> {
        let id = pair.peer?;
        let peer = if id == own { pair } else { self.qps.get(id.0)? };
        let serves = matches!(peer.state, QpState::ReadyToReceive | QpState::ReadyToSend);
        serves.then_some(Responder { id, pd: peer.pd, access: peer.access })
    }
}
