//! The requester's half of a request to a peer on another NIC. Several requests are on their way at a time; they
//! complete in order.

use super::keys::Target;
use super::objects::Core;
use super::queue_pair::{Current, QueuePair, RNR_TIMER};
use super::schedule::Visit;
use super::verbs::Verb;
use super::wire::{Packet, PacketBody, Response, WireRequest};
use portcullis_memory::Bytes;
use portcullis_nic::{LocalSpan, PdId, QpAddress, QpId, QpState, Status};
use portcullis_protocol::Moment;
use std::collections::VecDeque;

/// The most requests of one queue pair that may be on their way at a time.
const OUTSTANDING_MAX: usize = 64;

/// A connection to a queue pair of another NIC.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    pub peer: QpAddress,
    /// Requests that were sent and have not completed, oldest first.
    pub outstanding: VecDeque<Outstanding>,
    /// The number of the next request sent.
    next: u32,
    /// The number of the next request that this end executes.
    pub expected: u32,
}

#[derive(Clone, Debug)]
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

    /// Returns the oldest request without an answer. Answers arrive in order, so only this request can be answered
    /// next.
    fn first_unanswered(&mut self) -> Option<&mut Outstanding> {
        self.outstanding.iter_mut().find(|sent| sent.outcome.is_none())
    }
}

impl<M: Bytes> Core<M> {
    /// Completes the answered requests, and sends the waiting ones.
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
                Ok(()) => self.succeed(pair, &done.current, retired),
                Err(status) => {
                    self.fail(id, pair, &done.current, status, retired);
                    return Visit::Again;
                }
            }
        }
        for _ in 0..self.schedule.requests_max {
            match self.send_next(id, pair, connection, now) {
                Some(Visit::Done) => worked = true,
                Some(other) => return other,
                None => return if worked { Visit::Done } else { Visit::Idle },
            }
        }
        Visit::Again
    }

    /// Sends or executes the next request ([`Visit::Done`]). `None`: there is no request, or it has to wait for an
    /// answer.
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
        let current = Current::read(pair.send.peek()?);
        let composed = match current.transfer() {
            Some((verb, local)) => self.compose(pair.pd, verb, local).map(Some),
            // This request needs no peer, but must not overtake the requests before it.
            None if !connection.outstanding.is_empty() => return None,
            None if !self.has_completion_room(pair.send_cq) => return Some(Visit::Blocked),
            None => self.execute_here(id, pair.pd, current.operation()).map(|ended_access| {
                if ended_access {
                    self.settle();
                }
                None
            }),
        };
        match composed {
            Ok(None) => {
                pair.send.advance();
                self.succeed(pair, &current, pair.send.taken());
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

    /// Returns a request for the wire, with its bytes, or the status that it fails with.
    fn compose(&self, pd: PdId, verb: Verb, local: LocalSpan) -> Result<WireRequest, Status> {
        let here = self.requester_end(pd, verb, local)?;
        Ok(match verb {
            Verb::Read { remote, length } => WireRequest::Read { remote, length },
            Verb::Write { remote, length } => WireRequest::Write { remote, bytes: self.gather(here, length) },
            Verb::CompareAndSwap { remote, compare, swap } => {
                WireRequest::CompareAndSwap { remote, compare, swap }
            }
            Verb::FetchAndAdd { remote, add } => WireRequest::FetchAndAdd { remote, add },
            Verb::Send { length, invalidate } => {
                WireRequest::Send { bytes: self.gather(here, length), invalidate }
            }
        })
    }

    fn gather(&self, from: Target, length: u32) -> Vec<u8> {
        let mut bytes = vec![0; length as usize];
        self.memories[from.memory].read(from.offset, &mut bytes);
        bytes
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
        let body = PacketBody::Request { id: current.id(), request };
        if let Some(network) = &mut self.network {
            network.outgoing.push(Packet { from, to, number, body });
            network.waits.push_back((now.after(network.port.patience), id));
        }
    }

    /// Handles an answer. Its bytes go to the place that the request names, and the request completes in its turn.
    pub(super) fn take_answer(&mut self, packet: &Packet, answer: &Response, now: Moment) {
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
                Response::NotReady => self.wait_for_receive(qp, pair.rnr_retries, front, now),
                Response::Refused(status) => front.outcome = Some(Err(*status)),
                Response::Done => front.outcome = Some(Ok(())),
                Response::Bytes(bytes) => front.outcome = Some(self.scatter(pair.pd, &front.current, bytes)),
                Response::Value(value) => {
                    front.outcome = Some(self.scatter(pair.pd, &front.current, &value.to_le_bytes()));
                }
            }
        }
        self.qps.give_back(qp.0, pair);
        self.ring(qp);
    }

    fn scatter(&self, pd: PdId, current: &Current, bytes: &[u8]) -> Result<(), Status> {
        let (verb, local) = current
            .transfer()
            .filter(|(verb, local)| verb.returns_bytes() && local.length as usize == bytes.len())
            .ok_or(Status::RemoteOperationError)?;
        let here = self.requester_end(pd, verb, local)?;
        self.memories[here.memory].write(here.offset, bytes);
        Ok(())
    }

    fn wait_for_receive(&mut self, qp: QpId, retries: u8, front: &mut Outstanding, now: Moment) {
        if front.current.is_given_up(retries, now) {
            front.outcome = Some(Err(Status::RnrRetryExceededError));
        } else if let Some(network) = &mut self.network {
            // The peer has answered, so the wait for an answer begins again with the next try.
            front.sent = now.after(RNR_TIMER);
            network.resends.push_back((now.after(RNR_TIMER), qp));
        }
    }

    /// Fails requests whose answers do not arrive in time, and sends requests again whose peer was not ready.
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

    /// Sends all unanswered requests again: the responder executes no request behind one that it was not ready for.
    fn send_again(&mut self, qp: QpId, now: Moment) {
        let Some(mut pair) = self.qps.lend(qp.0) else { return };
        let mut connection = pair.connection.take();
        if pair.state == QpState::ReadyToSend
            && let Some(connection) = &mut connection
        {
            for waiting in connection.outstanding.iter_mut().filter(|it| it.outcome.is_none()) {
                let Some((verb, local)) = waiting.current.transfer() else { continue };
                match self.compose(pair.pd, verb, local) {
                    Ok(request) => {
                        waiting.sent = now;
                        let what = (waiting.number, &waiting.current);
                        self.put_on_wire(qp, &pair, connection.peer, what, request, now);
                    }
                    Err(status) => waiting.outcome = Some(Err(status)),
                }
            }
        }
        pair.connection = connection;
        self.qps.give_back(qp.0, pair);
        self.ring(qp);
    }
}
