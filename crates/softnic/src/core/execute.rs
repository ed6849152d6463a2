//! Executing requests: the requester's half, which fetches and completes, and the responder's, which refuses.

use super::keys::Target;
use super::layout::decode_request;
use super::objects::Core;
use super::queue_pair::{Current, QueuePair};
use super::schedule::{BYTES_PER_VISIT_MAX, REQUEST_WORK, REQUESTS_PER_VISIT_MAX, Visit};
use portcullis_memory::Bytes;
use portcullis_nic::{
    Access, Completion, CompletionKind, Event, LocalSpan, Operation, QpId, QpState, RefusedAccess,
    RemoteSpan, Rkey, Status,
};
use portcullis_protocol::{Lifetime, Moment};

/// How long a peer without a receive is given for each retry (`min_rnr_timer`).
pub(super) const RNR_TIMER: Lifetime = Lifetime::micros(640);
/// `rnr_retries` that means for ever.
pub(super) const RNR_FOR_EVER: u8 = 7;
/// The longest message of a SEND, in bytes.
pub(super) const MESSAGE_BYTES_MAX: u32 = 1 << 20;

/// Requests whose lines are fetched ahead: each comes from another processor's cache, and several fetches overlap.
const PREFETCH: u64 = 6;

/// How far ahead messages are fetched: behind the requests that name them.
const MESSAGES_AHEAD: u64 = 3;
/// How far ahead receives are fetched: two of them share a line.
const RECEIVES_AHEAD: u64 = 4;

/// How far a request got.
enum Step {
    /// It is done.
    Done,
    /// It goes on at the next visit.
    Again,
    /// It failed at the requester: the peer knows nothing of it.
    Local(Status),
    /// The responder refused it: both ends are in error now.
    Refused(Status),
}

/// What the responder's side of a request needs to know of its queue pair.
pub(super) struct Responder {
    pub id: QpId,
    pub pd: portcullis_nic::PdId,
    pub access: Access,
}

/// What became of a message at the responder.
pub(super) enum Delivery {
    Done,
    /// No receive is posted, or there is no room to say that one is done.
    NotReady,
    /// Both ends are in error now.
    Refused(Status),
}

impl<M: Bytes> Core<M> {
    /// Lets one queue pair do what its budget allows.
    pub(super) fn visit(&mut self, id: QpId, now: Moment) -> Visit {
        self.schedule.visits += 1;
        let Some(pair) = self.qps.get_mut(id.0) else {
            return Visit::Idle;
        };
        let idle = pair.current.is_none() && !pair.send.waiting() && pair.connection.is_none();
        if idle && pair.state != QpState::Error {
            return Visit::Idle;
        }
        // Out of the table while it is served, so that its peer can be reached beside it.
        let Some(mut pair) = self.qps.lend(id.0) else { return Visit::Idle };
        let allowed = self.allowance(&pair);
        if allowed == 0 {
            self.qps.give_back(id.0, pair);
            return Visit::Again;
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
        self.spend(&pair, allowed - work);
        self.qps.give_back(id.0, pair);
        visit
    }

    /// What a queue pair may get done in a visit, in bytes. All of a client's share what the client may in a round.
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
        }
    }

    fn serve(&mut self, id: QpId, pair: &mut QueuePair<M>, work: &mut u32, now: Moment) -> Visit {
        let mut blocked = Visit::Blocked;
        for ahead in 1..PREFETCH {
            pair.send.prefetch(ahead);
        }
        for _ in 0..REQUESTS_PER_VISIT_MAX {
            pair.send.prefetch(PREFETCH);
            if pair.receive.is_some() {
                // Only queue pairs with a receive queue carry messages.
                self.fetch_message(pair);
            }
            let mut current = match pair.current.take() {
                Some(current) => current,
                None => match pair.send.peek() {
                    Some(words) => {
                        let (request, signalled, operation) = decode_request(&words);
                        Current { id: request, signalled, operation, done: 0, not_ready_since: None }
                    }
                    None => return Visit::Done,
                },
            };
            // Room for the completion first: what is executed can be reported.
            if !self.has_completion_room(pair.send_cq) {
                pair.current = Some(current);
                return blocked;
            }
            let before = *work;
            match self.step(id, pair, &mut current, work, now) {
                Step::Done => {
                    *work = work.saturating_sub(REQUEST_WORK);
                    pair.send.advance();
                    if current.signalled {
                        self.complete(pair, &current, Status::Success, pair.send.taken());
                    }
                }
                Step::Again => {
                    let moved = *work < before;
                    pair.current = Some(current);
                    return if moved { Visit::Again } else { blocked };
                }
                Step::Local(status) => {
                    pair.send.advance();
                    self.fail(id, pair, &current, status, pair.send.taken());
                    return Visit::Again;
                }
                Step::Refused(status) => {
                    pair.send.advance();
                    self.fail(id, pair, &current, status, pair.send.taken());
                    self.break_peer(pair, &current);
                    return Visit::Again;
                }
            }
            blocked = Visit::Again;
            if *work == 0 {
                return Visit::Again;
            }
        }
        Visit::Again
    }

    /// Fetches the message of a SEND that will be executed soon from its sender's cache. Nothing is decided here: the
    /// request is read again, once, when its turn comes.
    #[inline]
    fn fetch_message(&self, pair: &QueuePair<M>) {
        let Some(words) = pair.send.glimpse(MESSAGES_AHEAD) else { return };
        if let (_, _, Some(Operation::Send { local })) = decode_request(&words)
            && let Some(target) = self.keys.local(pair.pd, LocalSpan { length: 1, ..local }, false)
            && let Some(memory) = self.memories.get(target.memory)
        {
            memory.prefetch(target.offset);
        }
    }

    #[inline]
    pub(super) fn has_completion_room(&mut self, cq: u32) -> bool {
        self.cqs.get_mut(cq).is_some_and(|queue| queue.poster.has_room(1))
    }

    /// Completes a request. `retired` of its queue are over with it.
    pub(super) fn complete(&mut self, pair: &QueuePair<M>, current: &Current, status: Status, retired: u64) {
        let completion =
            Completion { request: current.id, queue_pair: pair.label, status, kind: CompletionKind::Send };
        self.put_completion(pair.send_cq, &completion, retired);
    }

    fn put_completion(&mut self, cq: u32, completion: &Completion, taken: u64) {
        if let Some(queue) = self.cqs.get_mut(cq) {
            queue.poster.post(completion, taken);
            if !std::mem::replace(&mut queue.touched, true) {
                self.touched.push(cq);
            }
        }
    }

    pub(super) fn fail(
        &mut self,
        id: QpId,
        pair: &mut QueuePair<M>,
        current: &Current,
        status: Status,
        retired: u64,
    ) {
        pair.state = QpState::Error;
        self.complete(pair, current, status, retired);
        if !std::mem::replace(&mut pair.scheduled, true) {
            self.schedule.push(id);
        }
    }

    fn break_peer(&mut self, pair: &QueuePair<M>, current: &Current) {
        let Some(peer) = pair.peer else { return };
        let refused = self.responder(pair).and_then(|responder| self.refused(&responder, current.operation?));
        if let Some(there) = self.qps.get_mut(peer.0) {
            there.state = QpState::Error;
            self.raise(Event::AccessError(peer, refused));
            self.ring(peer);
        }
    }

    /// In ERR: what is posted is completed as flushed, send queue and receive queue alike.
    fn flush(&mut self, pair: &mut QueuePair<M>, work: &mut u32) -> Visit {
        let mut flushed = false;
        for _ in 0..REQUESTS_PER_VISIT_MAX {
            if !self.has_completion_room(pair.send_cq) {
                return if flushed { Visit::Again } else { Visit::Idle };
            }
            // What is on its way comes before what was never sent.
            let (current, retired) = if let Some(sent) = pair.pop_outstanding() {
                (sent, pair.send.taken() - pair.outstanding())
            } else if let Some(current) = pair.current.take() {
                pair.send.advance();
                (current, pair.send.taken())
            } else if let Some(words) = pair.send.peek() {
                pair.send.advance();
                (Current::unread(words[6]), pair.send.taken())
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
        for _ in 0..REQUESTS_PER_VISIT_MAX {
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

    fn step(
        &mut self,
        id: QpId,
        pair: &QueuePair<M>,
        current: &mut Current,
        bytes: &mut u32,
        now: Moment,
    ) -> Step {
        match current.operation {
            Some(Operation::Read { local, remote }) => {
                self.transfer(pair, current, bytes, (local, remote), Direction::Read)
            }
            Some(Operation::Write { local, remote }) => {
                self.transfer(pair, current, bytes, (local, remote), Direction::Write)
            }
            Some(Operation::CompareAndSwap { local, remote, compare, swap }) => {
                self.atomic(pair, local, remote, |memory, at| memory.compare_exchange(at, compare, swap))
            }
            Some(Operation::FetchAndAdd { local, remote, add }) => {
                self.atomic(pair, local, remote, |memory, at| memory.fetch_add(at, add))
            }
            Some(Operation::Send { local }) => self.send(pair, current, local, None, now),
            Some(Operation::SendWithInvalidate { local, rkey }) => {
                self.send(pair, current, local, Some(rkey), now)
            }
            Some(Operation::BindWindow(binding)) => {
                self.keys.bind(pair.pd, id, &binding).map_or_else(Step::Local, |()| Step::Done)
            }
            Some(Operation::LocalInvalidate { rkey }) => self
                .keys
                .invalidate(pair.pd, id, rkey)
                .map_or(Step::Local(Status::LocalQpOperationError), |()| Step::Done),
            None => Step::Local(Status::LocalQpOperationError),
        }
    }

    /// The responder of a request, if its peer still serves.
    fn responder(&self, pair: &QueuePair<M>) -> Option<Responder> {
        let id = pair.peer?;
        let peer = self.qps.get(id.0)?;
        let serves = matches!(peer.state, QpState::ReadyToReceive | QpState::ReadyToSend);
        serves.then_some(Responder { id, pd: peer.pd, access: peer.access })
    }

    /// Where a peer's access goes, if its queue pair and its key let it.
    #[inline]
    pub(super) fn authorize(
        &self,
        responder: &Responder,
        remote: RemoteSpan,
        length: u64,
        access: Access,
    ) -> Option<Target> {
        if !responder.access.contains(access) {
            return None;
        }
        self.keys.authorize(responder.pd, responder.id, remote.rkey, remote.address, length, access)
    }

    /// What is known of an access that was refused just now. Of a message there is nothing to know.
    #[cold]
    fn refused(&self, responder: &Responder, operation: Operation) -> Option<RefusedAccess> {
        let (remote, length, needs) = match operation {
            Operation::Read { local, remote } => (remote, local.length, Access::REMOTE_READ),
            Operation::Write { local, remote } => (remote, local.length, Access::REMOTE_WRITE),
            Operation::CompareAndSwap { remote, .. } | Operation::FetchAndAdd { remote, .. } => {
                (remote, 8, Access::REMOTE_ATOMIC)
            }
            _ => return None,
        };
        Some(self.refused_access(responder, remote, length.into(), needs))
    }

    pub(super) fn refused_access(
        &self,
        responder: &Responder,
        RemoteSpan { address, rkey }: RemoteSpan,
        length: u64,
        needs: Access,
    ) -> RefusedAccess {
        let queue_pair = (responder.id, responder.access);
        let fault = self.keys.fault(responder.pd, queue_pair, rkey, (address, length), needs);
        RefusedAccess { address, length, needs, rkey, fault }
    }

    fn transfer(
        &self,
        pair: &QueuePair<M>,
        current: &mut Current,
        bytes: &mut u32,
        (local, remote): (LocalSpan, RemoteSpan),
        direction: Direction,
    ) -> Step {
        let here = self.keys.local(pair.pd, local, direction == Direction::Read);
        let Some(here) = here else { return Step::Local(Status::LocalProtectionError) };
        let Some(responder) = self.responder(pair) else { return Step::Local(Status::RetryExceededError) };
        if local.length == 0 {
            // No key is looked at for a request of no bytes (InfiniBand specification, C9-88).
            return Step::Done;
        }
        // The whole range each time, at every part of a long transfer: a permission that ended cuts it off.
        let length = u64::from(local.length);
        let access = direction.access();
        let there = self.authorize(&responder, remote, length, access);
        let Some(there) = there else { return Step::Refused(Status::RemoteAccessError) };
        let part = (local.length - current.done).min(*bytes);
        self.copy(here, there, current.done, part, direction);
        current.done += part;
        *bytes -= part;
        if current.done == local.length { Step::Done } else { Step::Again }
    }

    #[inline]
    fn copy(&self, here: Target, there: Target, done: u32, part: u32, direction: Direction) {
        let (Some(local), Some(remote)) = (self.memories.get(here.memory), self.memories.get(there.memory))
        else {
            return;
        };
        let (here, there) = (here.offset + u64::from(done), there.offset + u64::from(done));
        match direction {
            Direction::Read => remote.copy(there, local, here, u64::from(part)),
            Direction::Write => local.copy(here, remote, there, u64::from(part)),
        }
    }

    fn atomic(
        &self,
        pair: &QueuePair<M>,
        local: LocalSpan,
        remote: RemoteSpan,
        operate: impl FnOnce(&M, u64) -> u64,
    ) -> Step {
        if local.length != 8 {
            return Step::Local(Status::LocalLengthError);
        }
        let Some(here) = self.keys.local(pair.pd, local, true) else {
            return Step::Local(Status::LocalProtectionError);
        };
        let Some(responder) = self.responder(pair) else { return Step::Local(Status::RetryExceededError) };
        let there = self.authorize(&responder, remote, 8, Access::REMOTE_ATOMIC);
        let Some(there) = there else { return Step::Refused(Status::RemoteAccessError) };
        if !remote.address.0.is_multiple_of(8) || !there.offset.is_multiple_of(8) {
            return Step::Refused(Status::RemoteInvalidRequestError);
        }
        if let (Some(local), Some(remote)) = (self.memories.get(here.memory), self.memories.get(there.memory))
        {
            let before = operate(remote, there.offset);
            local.write(here.offset, &before.to_le_bytes());
        }
        Step::Done
    }

    fn send(
        &mut self,
        pair: &QueuePair<M>,
        current: &mut Current,
        local: LocalSpan,
        invalidate: Option<Rkey>,
        now: Moment,
    ) -> Step {
        if local.length > MESSAGE_BYTES_MAX {
            return Step::Local(Status::LocalLengthError);
        }
        let Some(here) = self.keys.local(pair.pd, local, false) else {
            return Step::Local(Status::LocalProtectionError);
        };
        let Some(responder) = self.responder(pair) else { return Step::Local(Status::RetryExceededError) };
        let put = |core: &Self, into| core.copy(here, into, 0, local.length, Direction::Write);
        match self.deliver(&responder, local.length, invalidate, put) {
            Delivery::Done => Step::Done,
            Delivery::NotReady => not_ready(pair, current, now),
            Delivery::Refused(status) => Step::Refused(status),
        }
    }

    /// A message has arrived: it goes where the next receive says. `put` puts it there.
    pub(super) fn deliver(
        &mut self,
        responder: &Responder,
        length: u32,
        invalidate: Option<Rkey>,
        put: impl FnOnce(&Self, Target),
    ) -> Delivery {
        let Some(peer) = self.qps.get(responder.id.0) else {
            return Delivery::Refused(Status::RemoteOperationError);
        };
        let (cq, label) = (peer.receive_cq, peer.label);
        let next = peer.receive.as_ref().and_then(|receive| {
            receive.prefetch(RECEIVES_AHEAD);
            receive.peek()
        });
        let room = self.has_completion_room(cq);
        let Some(next) = next.filter(|_| room) else { return Delivery::NotReady };
        let into = self.keys.local(responder.pd, LocalSpan { length, ..next.local }, true);
        let (receive_status, outcome) = if length > next.local.length {
            (Status::LocalLengthError, Delivery::Refused(Status::RemoteInvalidRequestError))
        } else if let Some(into) = into {
            // Only a message that arrives invalidates.
            if let Some(rkey) = invalidate
                && self.keys.invalidate(responder.pd, responder.id, rkey).is_err()
            {
                return Delivery::Refused(Status::RemoteAccessError);
            }
            put(self, into);
            (Status::Success, Delivery::Done)
        } else {
            (Status::LocalProtectionError, Delivery::Refused(Status::RemoteOperationError))
        };
        if let Some(receive) = self.qps.get_mut(responder.id.0).and_then(|peer| peer.receive.as_mut()) {
            receive.advance();
        }
        let completion = Completion {
            request: next.id,
            queue_pair: label,
            status: receive_status,
            kind: CompletionKind::Receive {
                length,
                invalidated: invalidate.filter(|_| receive_status == Status::Success),
            },
        };
        self.put_completion(cq, &completion, 0);
        outcome
    }
}

/// The peer has no receive, or no room to say that one is done: try again, for as long as the retries last.
fn not_ready<M>(pair: &QueuePair<M>, current: &mut Current, now: Moment) -> Step {
    let since = *current.not_ready_since.get_or_insert(now);
    let patience = Lifetime(RNR_TIMER.0 * u64::from(pair.rnr_retries));
    if pair.rnr_retries != RNR_FOR_EVER && now.since(since) > patience {
        Step::Local(Status::RnrRetryExceededError)
    } else {
        Step::Again
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Read,
    Write,
}

impl Direction {
    fn access(self) -> Access {
        match self {
            Self::Read => Access::REMOTE_READ,
            Self::Write => Access::REMOTE_WRITE,
        }
    }
}
