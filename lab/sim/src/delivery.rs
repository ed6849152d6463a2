//! The delivery of packets, and its reports to the checkers and the trace.

use crate::cluster::{Cluster, EndOf, Event};
use crate::endpoint::RAW;
use crate::network::{machine_at, name};
use crate::oracle::{Arrival, SessionId, WorkerOf};
use crate::turns::nic_time;
use portcullis_softnic::core::{Packet, PacketBody, Response, WireRequest};

impl Cluster {
    /// Sends packets into the network.
    pub fn send_out(&mut self, from: usize, packets: &mut Vec<Packet>) {
        for packet in packets.drain(..) {
            let Some(to) = machine_at(packet.to.port) else { continue };
            if from < self.nodes.len() {
                self.note_reply(from, to, &packet);
            }
            // Clients of a NIC with chains send their requests on its own machine, so nothing is lost on that path.
            let is_sure =
                self.worker_at(from, packet.from.number).or_else(|| self.worker_at(to, packet.to.number));
            match self.network.carry(self.now, (from, to), &packet, is_sure.is_some()) {
                Some(arrival) => self.events.put(arrival, Event::Packet(Box::new(packet))),
                None => self.trace.note(self.now, &[1, from as u64, to as u64], || {
                    format!("lost: {} to {}: {}", name(from), name(to), summary(&packet))
                }),
            }
        }
    }

    /// Reports a message that leaves a node for the first time to the checkers. Such a message is a promise of the
    /// node.
    fn note_reply(&mut self, node: usize, to: usize, packet: &Packet) {
        let PacketBody::Request { request: WireRequest::Send { bytes, .. }, .. } = &packet.body else {
            return;
        };
        let session = match self.by_queue_pair.get(&(to, packet.to.number)) {
            Some(&EndOf::Session((session, _))) => session,
            Some(&EndOf::Worker(session, worker)) => {
                return self.note_worker_reply(session, worker, packet, bytes);
            }
            None => return,
        };
        let record = &mut self.sessions[session];
        if packet.number < record.next_reply {
            return;
        }
        record.next_reply = packet.number + 1;
        let moment = self.nodes[node].clock.read(self.now);
        self.oracle.replied(session, bytes, self.now, moment);
    }

    /// Reports a worker's reply that leaves a node for the first time to the checkers.
    fn note_worker_reply(&mut self, session: SessionId, worker: WorkerOf, packet: &Packet, bytes: &[u8]) {
        let next = &mut self.sessions[session].next_worker_reply[worker as usize];
        // After a rebuild the reply comes from another queue pair, or from another connection of it, which counts
        // anew.
        let connection = (packet.from.number, packet.from.first_packet);
        if *next != (connection, packet.number) && (next.0 == connection || packet.number > 0) {
            return;
        }
        *next = (connection, packet.number + 1);
        self.oracle.worker_replied(session, worker, bytes, self.now);
    }

    /// Returns the session and the worker of a queue pair, if a client sends requests to a worker on it.
    fn worker_at(&self, machine: usize, number: u32) -> Option<(SessionId, WorkerOf)> {
        match self.by_queue_pair.get(&(machine, number)) {
            Some(&EndOf::Worker(session, worker)) => Some((session, worker)),
            _ => None,
        }
    }

    pub fn deliver(&mut self, packet: &Packet) {
        let Some(to) = machine_at(packet.to.port) else { return };
        let code = [2, to as u64, packet.from.number.into(), packet.to.number.into(), packet.number.into()];
        self.trace.note(self.now, &code, || format!("{} gets {}", name(to), summary(packet)));
        if to < self.nodes.len() {
            self.deliver_to_node(to, packet);
        } else {
            self.deliver_to_client(to - self.nodes.len(), packet);
        }
    }

    fn deliver_to_node(&mut self, node: usize, packet: &Packet) {
        let nic_now = nic_time(self.now);
        let Some(running) = &mut self.nodes[node].running else { return };
        let mut out = Vec::new();
        running.nic.nic.core().receive(packet, nic_now);
        running.nic.nic.core().take_outgoing(&mut out);
        let mut touches = running.take_touches();
        touches.extend(running.take_chunk_touches());
        if let PacketBody::Request { id, request } = &packet.body {
            let answer = answer_to(packet, &out);
            let from = machine_at(packet.from.port).unwrap_or(usize::MAX);
            let end = self.by_queue_pair.get(&(from, packet.from.number)).copied();
            if let (Some(EndOf::Worker(session, worker)), Some(Response::Done)) = (end, answer) {
                self.oracle.asked_worker(session, worker, request, self.now);
            }
            if let Some(EndOf::Session((session, queue_pair))) = end {
                let node_now = self.nodes[node].clock.read(self.now);
                let (id, now, touches) = (*id, self.now, &touches[..]);
                self.oracle.arrived(&Arrival {
                    session,
                    queue_pair,
                    id,
                    request,
                    answer,
                    touches,
                    now,
                    node_now,
                });
                self.trace.note(self.now, &[3, session as u64, answer_code(answer)], || {
                    format!("  and answers session {session}: {answer:x?}")
                });
            }
        }
        self.send_out(node, &mut out);
        self.wake_node_nic(node);
        let soon = self.now + 100 + self.nodes[node].dice.of(0..1_000);
        self.wake_node(node, soon);
    }

    fn deliver_to_client(&mut self, client: usize, packet: &Packet) {
        let nic_now = nic_time(self.now);
        self.clients[client].nic.borrow_mut().core().receive(packet, nic_now);
        self.client_nic_turn_now(client);
        let soon = self.now + 100 + self.clients[client].dice.of(0..500);
        self.wake_client(client, soon);
    }
}

/// Returns the NIC's answer to a request, among the packets that it sends next.
pub(crate) fn answer_to<'a>(request: &Packet, sent: &'a [Packet]) -> Option<&'a Response> {
    sent.iter().find_map(|sent| match &sent.body {
        PacketBody::Response(answer) if sent.number == request.number && sent.to == request.from => {
            Some(answer)
        }
        _ => None,
    })
}

fn answer_code(answer: Option<&Response>) -> u64 {
    match answer {
        None => 0,
        Some(Response::Done) => 1,
        Some(Response::Bytes(bytes)) => {
            2 ^ bytes.iter().fold(0u64, |sum, &byte| sum.wrapping_mul(31).wrapping_add(byte.into()))
        }
        Some(Response::Value(value)) => 3 ^ value.rotate_left(3),
        Some(Response::NotReady) => 4,
        Some(Response::Refused(status)) => 5 + *status as u64,
    }
}

/// Returns a packet as a short text.
pub(crate) fn summary(packet: &Packet) -> String {
    let number = packet.number;
    let what = match &packet.body {
        PacketBody::Response(answer) => format!("answer {answer:x?}"),
        PacketBody::Request { id, request } => match request {
            WireRequest::Send { bytes, .. } => message(bytes),
            other if *id == RAW => format!("raw {other:x?}"),
            other => format!("{id:#x} {other:x?}"),
        },
    };
    format!("#{number} {} -> {}: {what}", packet.from.number, packet.to.number)
}

pub(crate) fn message(bytes: &[u8]) -> String {
    use portcullis_protocol::{Reply, Request, messages_in};
    let Some(messages) = messages_in(bytes) else { return format!("{} bytes", bytes.len()) };
    let texts = messages.map(|whole| match (Request::decode(whole), Reply::decode(whole)) {
        (Ok(request), _) => format!("{request:?}"),
        (_, Ok(reply)) => format!("{reply:?}"),
        _ => "nonsense".to_owned(),
    });
    texts.collect::<Vec<_>>().join(" + ")
}
