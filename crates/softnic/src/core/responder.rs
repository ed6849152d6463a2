//! The responder's half of a request from a peer on another NIC: it executes a packet's request when the packet
//! arrives, and answers.

use super::keys::Target;
use super::objects::Core;
use super::verbs::{Exchange, Progress, Responder, Verb};
use super::wire::{Packet, PacketBody, Response, WireRequest};
use portcullis_memory::Bytes;
use portcullis_nic::{QpId, QpState};
use portcullis_planted::planted;
use portcullis_protocol::Moment;

/// The exchange of bytes through packets: they come from the request's packet and go into the answer's, always whole.
struct Packets<'a> {
    brought: &'a [u8],
    answer: Response,
}

impl<M: Bytes> Exchange<M> for Packets<'_> {
    fn fetch(&mut self, core: &Core<M>, from: Target, length: u32) -> Progress {
        let mut bytes = vec![0; length as usize];
        core.memories[from.memory].read(from.offset, &mut bytes);
        self.answer = Response::Bytes(bytes);
        Progress::Done
    }

    fn store(&mut self, core: &Core<M>, into: Target, length: u32) -> Progress {
        self.put(core, into, length);
        Progress::Done
    }

    fn put(&mut self, core: &Core<M>, into: Target, length: u32) {
        core.memories[into.memory].write(into.offset, &self.brought[..length as usize]);
    }

    fn fetch_word(&mut self, _: &Core<M>, value: u64) {
        self.answer = Response::Value(value);
    }
}

impl WireRequest {
    /// Returns the operation of the request, and the bytes that it brings.
    fn verb(&self) -> (Verb, &[u8]) {
        let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        match *self {
            Self::Read { remote, length } => (Verb::Read { remote, length }, &[]),
            Self::Write { remote, ref bytes } => (Verb::Write { remote, length: length(bytes) }, bytes),
            Self::CompareAndSwap { remote, compare, swap } => {
                (Verb::CompareAndSwap { remote, compare, swap }, &[])
            }
            Self::FetchAndAdd { remote, add } => (Verb::FetchAndAdd { remote, add }, &[]),
            Self::Send { ref bytes, invalidate } => (Verb::Send { length: length(bytes), invalidate }, bytes),
        }
    }
}

impl<M: Bytes> Core<M> {
    /// Handles a packet that the network has carried here. A packet is dropped if it belongs to no connection of this
    /// NIC or to an earlier one, or if it arrives after a packet that was lost.
    pub fn receive(&mut self, packet: &Packet, now: Moment) {
        match &packet.body {
            PacketBody::Response(answer) => self.take_answer(packet, answer, now),
            PacketBody::Request { request, .. } => {
                if let Some(responder) = self.expected_by(packet) {
                    self.respond(&responder, packet, request);
                }
            }
        }
    }

    /// Returns the queue pair that a request is for, if this request is the next that the queue pair expects.
    fn expected_by(&self, packet: &Packet) -> Option<Responder> {
        let id = QpId(packet.to.number);
        let pair = self.qp(id).ok()?;
        let serves = matches!(pair.state, QpState::ReadyToReceive | QpState::ReadyToSend)
            || (pair.state == QpState::Error && planted!(ServesInError));
        let connection = pair.connection.as_ref()?;
        let meant = connection.peer == packet.from && self.address_of(id, pair) == packet.to;
        (serves && meant && connection.expected == packet.number).then_some(Responder {
            id,
            pd: pair.pd,
            access: pair.access,
        })
    }

    fn respond(&mut self, responder: &Responder, packet: &Packet, request: &WireRequest) {
        let (verb, brought) = request.verb();
        let nothing = if let Verb::Read { .. } = verb { Response::Bytes(Vec::new()) } else { Response::Done };
        let mut packets = Packets { brought, answer: nothing };
        let answer = match self.execute(responder, verb, &mut packets) {
            Ok(Progress::Done) => packets.answer,
            Ok(Progress::NotReady) => Response::NotReady,
            Ok(Progress::Partly) => unreachable!("a packet is executed whole"),
            Err(status) => Response::Refused(status),
        };
        if answer != Response::NotReady
            && let Some(connection) =
                self.qps.get_mut(responder.id.0).and_then(|pair| pair.connection.as_mut())
        {
            connection.expected = connection.expected.wrapping_add(1);
        }
        if let Response::Refused(_) = answer {
            self.break_responder(responder, verb);
        }
        let body = PacketBody::Response(answer);
        self.emit(Packet { from: packet.to, to: packet.from, number: packet.number, body });
    }
}
