//! The responder's half towards a peer on another NIC: what a packet asks is checked and executed when it arrives.

use super::execute::{Delivery, Responder};
use super::keys::Target;
use super::objects::Core;
use super::wire::{Answer, Packet, PacketBody, WireRequest};
use portcullis_memory::Bytes;
use portcullis_nic::{Access, QpId, QpState, RefusedAccess, RemoteSpan, Status};
use portcullis_protocol::Moment;
use portcullis_protocol::planted::{self, Fault};

impl<M: Bytes> Core<M> {
    /// Takes in a packet that the network has carried here. One that belongs to no connection of this NIC, to an
    /// earlier one, or that comes after one that was lost, is dropped.
    pub fn receive(&mut self, packet: &Packet, now: Moment) {
        match &packet.body {
            PacketBody::Answer(answer) => self.take_answer(packet, answer, now),
            PacketBody::Request { request, .. } => {
                if let Some(responder) = self.expected_by(packet) {
                    let answer = self.respond(&responder, request);
                    let refused = matches!(answer, Answer::Refused(_))
                        .then(|| self.refused_request(&responder, request))
                        .flatten();
                    self.conclude(responder.id, packet, answer, refused);
                }
            }
        }
    }

    /// The queue pair that a request is for, if it waits for exactly this one.
    fn expected_by(&self, packet: &Packet) -> Option<Responder> {
        let id = QpId(packet.to.number);
        let pair = self.qp(id).ok()?;
        let serves = matches!(pair.state, QpState::ReadyToReceive | QpState::ReadyToSend)
            || (pair.state == QpState::Error && planted::is(Fault::ServesInError));
        let connection = pair.connection.as_ref()?;
        let meant = connection.peer == packet.from && self.address_of(id, pair) == packet.to;
        (serves && meant && connection.expected == packet.number).then_some(Responder {
            id,
            pd: pair.pd,
            access: pair.access,
        })
    }

    fn conclude(&mut self, id: QpId, packet: &Packet, answer: Answer, known: Option<RefusedAccess>) {
        let Some(pair) = self.qps.get_mut(id.0) else { return };
        let refused = matches!(answer, Answer::Refused(_));
        if let Some(connection) = &mut pair.connection
            && answer != Answer::NotReady
        {
            connection.expected = connection.expected.wrapping_add(1);
        }
        if refused {
            pair.state = QpState::Error;
            self.raise(portcullis_nic::Event::AccessError(id, known));
            self.ring(id);
        }
        let body = PacketBody::Answer(answer);
        self.emit(Packet { from: packet.to, to: packet.from, number: packet.number, body });
    }

    /// What is known of a request that was refused just now. Of a message there is nothing to know.
    #[cold]
    fn refused_request(&self, responder: &Responder, request: &WireRequest) -> Option<RefusedAccess> {
        let (remote, length, needs) = match request {
            WireRequest::Read { remote, length } => (remote, u64::from(*length), Access::REMOTE_READ),
            WireRequest::Write { remote, bytes } => (remote, bytes.len() as u64, Access::REMOTE_WRITE),
            WireRequest::CompareAndSwap { remote, .. } | WireRequest::FetchAndAdd { remote, .. } => {
                (remote, 8, Access::REMOTE_ATOMIC)
            }
            WireRequest::Send { .. } => return None,
        };
        Some(self.refused_access(responder, *remote, length, needs))
    }

    fn respond(&mut self, responder: &Responder, request: &WireRequest) -> Answer {
        match request {
            WireRequest::Read { length: 0, .. } => Answer::Bytes(Vec::new()),
            WireRequest::Write { bytes, .. } if bytes.is_empty() => Answer::Done,
            WireRequest::Read { remote, length } => {
                match self.admitted(responder, *remote, u64::from(*length), Access::REMOTE_READ) {
                    Ok((memory, offset)) => {
                        let mut bytes = vec![0; *length as usize];
                        memory.read(offset, &mut bytes);
                        Answer::Bytes(bytes)
                    }
                    Err(status) => Answer::Refused(status),
                }
            }
            WireRequest::Write { remote, bytes } => {
                match self.admitted(responder, *remote, bytes.len() as u64, Access::REMOTE_WRITE) {
                    Ok((memory, offset)) => {
                        memory.write(offset, bytes);
                        Answer::Done
                    }
                    Err(status) => Answer::Refused(status),
                }
            }
            WireRequest::CompareAndSwap { remote, compare, swap } => {
                self.change(responder, *remote, |memory, at| memory.compare_exchange(at, *compare, *swap))
            }
            WireRequest::FetchAndAdd { remote, add } => {
                self.change(responder, *remote, |memory, at| memory.fetch_add(at, *add))
            }
            WireRequest::Send { bytes, invalidate } => {
                let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
                let put = |core: &Self, into: Target| {
                    if let Some(memory) = core.memories.get(into.memory) {
                        memory.write(into.offset, bytes);
                    }
                };
                match self.deliver(responder, length, *invalidate, put) {
                    Delivery::Done => Answer::Done,
                    Delivery::NotReady => Answer::NotReady,
                    Delivery::Refused(status) => Answer::Refused(status),
                }
            }
        }
    }

    fn admitted(
        &self,
        responder: &Responder,
        remote: RemoteSpan,
        length: u64,
        access: Access,
    ) -> Result<(&M, u64), Status> {
        let target = self.authorize(responder, remote, length, access).ok_or(Status::RemoteAccessError)?;
        let memory = self.memories.get(target.memory).ok_or(Status::RemoteOperationError)?;
        Ok((memory, target.offset))
    }

    fn change(
        &self,
        responder: &Responder,
        remote: RemoteSpan,
        operate: impl FnOnce(&M, u64) -> u64,
    ) -> Answer {
        match self.admitted(responder, remote, 8, Access::REMOTE_ATOMIC) {
            Ok((_, offset)) if !remote.address.0.is_multiple_of(8) || !offset.is_multiple_of(8) => {
                Answer::Refused(Status::RemoteInvalidRequestError)
            }
            Ok((memory, offset)) => Answer::Value(operate(memory, offset)),
            Err(status) => Answer::Refused(status),
        }
    }
}
