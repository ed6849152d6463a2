//! The connections between the node and the clients: packets leave, wait, and arrive, and the checkers see them.

use super::world::World;
use crate::delivery::{answer_to, summary};
use crate::network::machine_at;
use crate::oracle::{Arrival, Promise};
use crate::turns::nic_time;
use portcullis_protocol::{QueuePairRequest, Reply, ReplyBody, Request, RequestBody, message_in};
use portcullis_softnic::core::{Packet, PacketBody, Response, WireRequest};

/// Whether a packet requests a rebuild, which waits for the race's end.
pub(super) fn asks_for_rebuild(packet: &Packet) -> bool {
    let PacketBody::Request { request: WireRequest::Send { bytes, .. }, .. } = &packet.body else {
        return false;
    };
    let request = message_in(bytes).and_then(|message| Request::decode(message).ok());
    request.is_some_and(|request| {
        matches!(request.body, RequestBody::QueuePair(QueuePairRequest::Recover { .. }))
    })
}

/// Whether the packet means the same to a client at any time. An extension's end counts only before a deadline, and so
/// does the reason for a refusal.
pub(super) fn is_timeless(packet: &Packet) -> bool {
    match &packet.body {
        PacketBody::Response(answer) => !matches!(answer, Response::Value(_) | Response::Refused(_)),
        PacketBody::Request { request: WireRequest::Send { bytes, .. }, .. } => {
            let reply = message_in(bytes).and_then(|message| Reply::decode(message).ok());
            reply.is_some_and(|reply| !matches!(reply.body, ReplyBody::Refused(_)))
        }
        PacketBody::Request { .. } => false,
    }
}

/// The network.
impl World {
    pub(super) fn send_out(&mut self, packets: Vec<Packet>) {
        for mut packet in packets {
            if let Some(tamper) = self.tamper.filter(|_| self.racing) {
                tamper(&mut packet, self);
            }
            let (Some(from), Some(to)) = (machine_at(packet.from.port), machine_at(packet.to.port)) else {
                continue;
            };
            let to_node = to == 0;
            let client = from.max(to) - 1;
            let its = if to_node { packet.from.number } else { packet.to.number };
            let Some(queue_pair) = self.actors[client].queue_pairs.iter().position(|&it| it == its) else {
                continue;
            };
            if !to_node {
                self.note_reply(client, &packet);
                if self.actors[client].library.is_none() {
                    continue;
                }
            }
            let of_message = queue_pair == 0 && matches!(packet.body, PacketBody::Response(_));
            let queues = if to_node { &mut self.to_node } else { &mut self.to_client };
            if of_message { &mut self.put_off } else { &mut queues[client][queue_pair] }.push_back(packet);
        }
    }

    /// Reports a message from the node to the checkers. Such a message is a promise.
    fn note_reply(&mut self, client: usize, packet: &Packet) {
        let PacketBody::Request { request: WireRequest::Send { bytes, .. }, .. } = &packet.body else {
            return;
        };
        if packet.number < self.next_reply[client] {
            return;
        }
        self.next_reply[client] = packet.number + 1;
        let (session, moment) = (self.actors[client].session, self.moment());
        self.oracle.replied(session, bytes, self.now, moment);
        if self.racing
            && let Some(reply) = message_in(bytes).and_then(|message| Reply::decode(message).ok())
        {
            self.watch.left(client, &reply);
        }
        self.say(|| format!("         leaves for client {client}: {}", summary(packet)));
    }

    pub(super) fn reach_its_end(&mut self, packet: &Packet) {
        let (from, to) = (machine_at(packet.from.port), machine_at(packet.to.port));
        match (from, to) {
            (Some(from), Some(0)) => self.reach_node(from - 1, packet),
            (_, Some(to)) if to > 0 => self.reach_client(to - 1, packet),
            _ => {}
        }
    }

    pub(super) fn reach_node(&mut self, client: usize, packet: &Packet) {
        let mut out = Vec::new();
        self.nic.nic.core().receive(packet, nic_time(self.now));
        self.nic.nic.core().take_outgoing(&mut out);
        let touches = self.take_touches();
        if let PacketBody::Request { id, request } = &packet.body {
            let answer = answer_to(packet, &out);
            self.say(|| format!("         arrives: {}: {answer:x?}", summary(packet)));
            let (session, id, now, node_now) = (self.actors[client].session, *id, self.now, self.moment());
            if self.actors[client].id.is_some() {
                let touches = &touches[..];
                // All keys of these small systems work on every queue pair of their tenant.
                let queue_pair = None;
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
                let actor = (client, &self.actors[client]);
                self.note(self.watch.accessed(actor, request, answer, node_now));
            } else if answer.is_some() {
                let what = format!("client {client} was let go of, and its packets are answered");
                self.oracle.fail(Promise::Access, now, what);
            }
            // The node's processor notices a one-sided operation only if the NIC has refused it.
            let refused = matches!(answer, Some(Response::Refused(_)));
            self.news |= refused || matches!(request, WireRequest::Send { .. });
        }
        self.send_out(out);
    }

    pub(super) fn reach_client(&mut self, client: usize, packet: &Packet) {
        self.say(|| format!("         gets: {}", summary(packet)));
        self.actors[client].nic.borrow_mut().core().receive(packet, nic_time(self.now));
        self.turn_client_nic(client);
        self.look_at_news(client);
    }

    fn look_at_news(&mut self, client: usize) {
        let clocks = (self.now, self.moment());
        let before = self.actors[client].told.len();
        self.actors[client].poll(&mut self.oracle, clocks);
        for at in before..self.actors[client].told.len() {
            let told = self.actors[client].told[at];
            self.say(|| format!("         client {client} is told {told:?}"));
        }
        self.turn_client_nic(client);
        self.act_at_once();
    }

    pub(super) fn turn_client_nic(&mut self, client: usize) {
        let mut out = Vec::new();
        let mut nic = self.actors[client].nic.borrow_mut();
        nic.turn_at(nic_time(self.now));
        nic.core().take_outgoing(&mut out);
        drop(nic);
        self.send_out(out);
    }
}
