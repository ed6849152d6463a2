//! The requester's half towards a peer on another NIC: requests go out, several at a time, and complete in order.

use super::execute::{RNR_FOR_EVER, RNR_TIMER};
use super::layout::decode_request;
use super::objects::Core;
use super::queue_pair::{Current, QueuePair};
use super::schedule::{REQUESTS_PER_VISIT_MAX, Visit};
use super::wire::{Answer, Packet, PacketBody, WireRequest};
use portcullis_memory::Bytes;
use portcullis_nic::{LocalSpan, Operation, QpAddress, QpId, QpState, Status};
use portcullis_protocol::{Lifetime, Moment};
use std::collections::VecDeque;

/// Requests of one queue pair that may be on their way at a time.
const OUTSTANDING_MAX: usize = 64;

/// A connection to a queue pair of another NIC.
#[derive(Debug)]
pub(crate) struct Connection {
    pub peer: QpAddress,
    /// Sent and not completed, oldest first.
    pub outstanding: VecDeque<Outstanding>,
    /// The number of the next request sent.
    next: u32,
    /// The number of the next request that this end executes.
    pub expected: u32,
}

/// A request on its way.
#[derive(Debug)]
pub(crate) struct Outstanding {
    pub current: Current,
    number: u32,
    sent: Moment,
    outcome: Option<Result<(), Status>>,
}

impl Connection {
    pub fn new(peer: QpAddress) -> Self {
        Self { peer, outstanding: VecDeque::new(), next: 0, expected: 0 }
    }

    /// Answers come in order: the only request that one can be for.
    fn first_unanswered(&mut self) -> Option<&mut Outstanding> {
        self.outstanding.iter_mut().find(|sent| sent.outcome.is_none())
    }
}

impl<M: Bytes> Core<M> {
    /// Completes what was answered, and sends what waits.
    pub(super) fn serve_remote(
        &mut self,
        id: QpId,
        pair: &mut QueuePair<M>,
        connection: &mut Connection,
        now: Moment,
    ) -> Visit {
        let mut worked = false;
        while let Some(Some(outcome)) = connection.outstanding.front().map(|front| front.outcome) {
            if !self.has_completion_room(pair.send_cq) {
                return if worked { Visit::Again } else { Visit::Blocked };
            }
            let Some(done) = connection.outstanding.pop_front() else { break };
            let retired = pair.send.taken() - connection.outstanding.len() as u64;
            worked = true;
            match outcome {
                Ok(()) if done.current.signalled => {
                    self.complete(pair, &done.current, Status::Success, retired);
                }
                Ok(()) => {}
                Err(status) => {
                    self.fail(id, pair, &done.current, status, retired);
                    return Visit::Again;
                }
            }
        }
        for _ in 0..REQUESTS_PER_VISIT_MAX {
            match self.send_next(id, pair, connection, now) {
                Some(Visit::Done) => worked = true,
                Some(other) => return other,
                None => return if worked { Visit::Done } else { Visit::Idle },
            }
        }
        Visit::Again
    }

    /// Sends or executes the next request: [`Visit::Done`]. `None`: there is none, or it has to wait for an answer.
    fn send_next(
        &mut self,
        id: QpId,
        pair: &mut QueuePair<M>,
        connection: &mut Connection,
        now: Moment,
    ) -> Option<Visit> {
        if connection.outstanding.len() >= OUTSTANDING_MAX {
            return None;
        }
        let (request, signalled, operation) = decode_request(&pair.send.peek()?);
        let current = Current { id: request, signalled, operation, done: 0, not_ready_since: None };
        let composed = match self.compose(pair, &current) {
            Some(composed) => composed,
            // Of this end alone: in its turn, like everything.
            None if !connection.outstanding.is_empty() => return None,
            None if !self.has_completion_room(pair.send_cq) => return Some(Visit::Blocked),
            None => self.execute_here(id, pair, &current),
        };
        match composed {
            Ok(None) => {
                pair.send.advance();
                if signalled {
                    self.complete(pair, &current, Status::Success, pair.send.taken());
                }
            }
            Ok(Some(request)) => {
                pair.send.advance();
                let number = connection.next;
                connection.next = number.wrapping_add(1);
                self.put_on_wire(id, pair, connection.peer, (number, &current), request, now);
                connection.outstanding.push_back(Outstanding { current, number, sent: now, outcome: None });
            }
            Err(_) if !connection.outstanding.is_empty() => return None,
            Err(_) if !self.has_completion_room(pair.send_cq) => return Some(Visit::Blocked),
            Err(status) => {
                pair.send.advance();
                self.fail(id, pair, &current, status, pair.send.taken());
                return Some(Visit::Again);
            }
        }
        Some(Visit::Done)
    }

    /// A request for the wire, with its bytes, or why it cannot go. `None`: it is not for the peer.
    fn compose(&self, pair: &QueuePair<M>, current: &Current) -> Option<Result<Option<WireRequest>, Status>> {
        let word = |local: LocalSpan| {
            if local.length != 8 {
                return Err(Status::LocalLengthError);
            }
            self.keys.local(pair.pd, local, true).map(|_| ()).ok_or(Status::LocalProtectionError)
        };
        let request = match current.operation? {
            Operation::BindWindow(_) | Operation::LocalInvalidate { .. } => return None,
            Operation::Read { local, remote } => match self.keys.local(pair.pd, local, true) {
                Some(_) => Ok(WireRequest::Read { remote, length: local.length }),
                None => Err(Status::LocalProtectionError),
            },
            Operation::Write { local, remote } => {
                self.gather(pair, local).map(|bytes| WireRequest::Write { remote, bytes })
            }
            Operation::CompareAndSwap { local, remote, compare, swap } => {
                word(local).map(|()| WireRequest::CompareAndSwap { remote, compare, swap })
            }
            Operation::FetchAndAdd { local, remote, add } => {
                word(local).map(|()| WireRequest::FetchAndAdd { remote, add })
            }
            Operation::Send { local } => {
                self.message(pair, local).map(|bytes| WireRequest::Send { bytes, invalidate: None })
            }
            Operation::SendWithInvalidate { local, rkey } => {
                self.message(pair, local).map(|bytes| WireRequest::Send { bytes, invalidate: Some(rkey) })
            }
        };
        Some(request.map(Some))
    }

    fn message(&self, pair: &QueuePair<M>, local: LocalSpan) -> Result<Vec<u8>, Status> {
        if local.length > super::execute::MESSAGE_BYTES_MAX {
            return Err(Status::LocalLengthError);
        }
        self.gather(pair, local)
    }

    fn gather(&self, pair: &QueuePair<M>, local: LocalSpan) -> Result<Vec<u8>, Status> {
        let target = self.keys.local(pair.pd, local, false).ok_or(Status::LocalProtectionError)?;
        let mut bytes = vec![0; local.length as usize];
        if let Some(memory) = self.memories.get(target.memory) {
            memory.read(target.offset, &mut bytes);
        }
        Ok(bytes)
    }

    /// What needs no peer: binds and invalidates. Words that mean nothing fail.
    fn execute_here(
        &mut self,
        id: QpId,
        pair: &QueuePair<M>,
        current: &Current,
    ) -> Result<Option<WireRequest>, Status> {
        match current.operation {
            Some(Operation::BindWindow(binding)) => self.keys.bind(pair.pd, id, &binding)?,
            Some(Operation::LocalInvalidate { rkey }) => {
                let ended = self.keys.invalidate(pair.pd, id, rkey);
                ended.map_err(|_| Status::LocalQpOperationError)?;
            }
            _ => return Err(Status::LocalQpOperationError),
        }
        Ok(None)
    }

    fn put_on_wire(
        &mut self,
        id: QpId,
        pair: &QueuePair<M>,
        to: QpAddress,
        (number, current): (u32, &Current),
        request: WireRequest,
        now: Moment,
    ) {
        let from = self.address_of(id, pair);
        let body = PacketBody::Request { id: current.id, request };
        if let Some(network) = &mut self.network {
            network.outgoing.push(Packet { from, to, number, body });
            network.waits.push_back((now.after(network.port.patience), id));
        }
    }

    /// An answer has come: the bytes it brings go where the request said, and the request completes in its turn.
    pub(super) fn take_answer(&mut self, packet: &Packet, answer: &Answer, now: Moment) {
        let qp = QpId(packet.to.number);
        let Some(mut pair) = self.qps.lend(qp.0) else { return };
        if pair.state == QpState::ReadyToSend
            && self.address_of(qp, &pair) == packet.to
            && let Some(connection) = &mut pair.connection
            && connection.peer == packet.from
            && let Some(front) = connection.first_unanswered()
            && front.number == packet.number
        {
            match answer {
                Answer::NotReady => self.wait_for_receive(qp, pair.rnr_retries, front, now),
                Answer::Refused(status) => front.outcome = Some(Err(*status)),
                Answer::Done => front.outcome = Some(Ok(())),
                Answer::Bytes(bytes) => front.outcome = Some(self.scatter(pair.pd, &front.current, bytes)),
                Answer::Value(value) => {
                    front.outcome = Some(self.scatter(pair.pd, &front.current, &value.to_le_bytes()));
                }
            }
        }
        self.qps.give_back(qp.0, pair);
        self.ring(qp);
    }

    fn scatter(&self, pd: portcullis_nic::PdId, current: &Current, bytes: &[u8]) -> Result<(), Status> {
        let local = match current.operation {
            Some(
                Operation::Read { local, .. }
                | Operation::CompareAndSwap { local, .. }
                | Operation::FetchAndAdd { local, .. },
            ) if local.length as usize == bytes.len() => local,
            _ => return Err(Status::RemoteOperationError),
        };
        let target = self.keys.local(pd, local, true).ok_or(Status::LocalProtectionError)?;
        if let Some(memory) = self.memories.get(target.memory) {
            memory.write(target.offset, bytes);
        }
        Ok(())
    }

    fn wait_for_receive(&mut self, qp: QpId, retries: u8, front: &mut Outstanding, now: Moment) {
        let since = *front.current.not_ready_since.get_or_insert(now);
        let patience = Lifetime(RNR_TIMER.0 * u64::from(retries));
        if retries != RNR_FOR_EVER && now.since(since) > patience {
            front.outcome = Some(Err(Status::RnrRetryExceededError));
        } else if let Some(network) = &mut self.network {
            // An answer has come: patience begins anew with the next try.
            front.sent = now.after(RNR_TIMER);
            network.resends.push_back((now.after(RNR_TIMER), qp));
        }
    }

    /// Gives up on answers that do not come, and tries again where the peer was not ready.
    pub(super) fn look_after_wire(&mut self, now: Moment) {
        let Some(network) = &mut self.network else { return };
        let patience = network.port.patience;
        let mut tired = Vec::new();
        while let Some(&(at, qp)) = network.waits.front().filter(|&&(at, _)| at <= now) {
            network.waits.pop_front();
            tired.push((at, qp));
        }
        let mut again = Vec::new();
        while let Some(&(_, qp)) = network.resends.front().filter(|&&(at, _)| at <= now) {
            network.resends.pop_front();
            again.push(qp);
        }
        for (_, qp) in tired {
            let Some(pair) = self.qps.get_mut(qp.0) else { continue };
            let front = pair.connection.as_mut().and_then(|it| it.first_unanswered());
            if let Some(front) = front.filter(|front| front.sent.after(patience) <= now) {
                front.outcome = Some(Err(Status::RetryExceededError));
                self.ring(qp);
            }
        }
        for qp in again {
            self.send_again(qp, now);
        }
    }

    /// The responder executes nothing behind a request that it was not ready for: all from there on go again.
    fn send_again(&mut self, qp: QpId, now: Moment) {
        let Some(mut pair) = self.qps.lend(qp.0) else { return };
        let mut connection = pair.connection.take();
        if pair.state == QpState::ReadyToSend
            && let Some(connection) = &mut connection
        {
            for waiting in connection.outstanding.iter_mut().filter(|it| it.outcome.is_none()) {
                match self.compose(&pair, &waiting.current) {
                    Some(Ok(Some(request))) => {
                        waiting.sent = now;
                        let what = (waiting.number, &waiting.current);
                        self.put_on_wire(qp, &pair, connection.peer, what, request, now);
                    }
                    Some(Err(status)) => waiting.outcome = Some(Err(status)),
                    Some(Ok(None)) | None => {}
                }
            }
        }
        pair.connection = connection;
        self.qps.give_back(qp.0, pair);
        self.ring(qp);
    }
}
