//! Datagrams and control messages between clients over UDP and nodes, and the reports about them to the checkers and
//! the trace.

use super::end::OneShotEnd;
use super::node_end::Effect;
use super::{
    Datagram, Label, Message, SharedSocket, address_of_node, address_of_session, host_of, is_over_udp,
    machine_of,
};
use crate::clock::Nanos;
use crate::cluster::Event;
use crate::cluster::{Cluster, SessionRecord};
use crate::endpoint::SimEndpoint;
use crate::hosts::Stay;
use crate::memory::{Touch, Words, index};
use crate::network::name;
use crate::oracle::{Arrival, ONE_SHOT, Promise, SessionId, key_of};
use crate::plan::{FaultKind, MESSAGE_BYTES};
use portcullis_nic::{OneShotRequest, OneShotVerb, RemoteAddress, RemoteSpan};
use portcullis_node::Admission;
use portcullis_onerma::{OperationType, RefusalCause, Refused};
use portcullis_protocol::{Moment, RegionName, Rights, message_in};
use portcullis_softnic::core::{Response, WireRequest};
use std::net::SocketAddr;

impl Cluster {
    /// Whether time-outs of a client over UDP may end its operations although no party made a mistake.
    pub fn is_udp_excused(&self, client: usize) -> bool {
        // A path that becomes narrow ends nothing: operations go on in shorter datagrams.
        let disturbed = self.plan.faults.iter().any(|&kind| kind != FaultKind::Mtu)
            || self.paths.has_dropped()
            || self.terms.reuses_places();
        is_over_udp(&self.plan, client) && (disturbed || self.terms.faults != Default::default())
    }

    /// Whether permissions of a client may seem to end early. An attacker may be on its path, and may send such an
    /// answer. Or its node has started anew and answers so, before the client learns that its control connection has
    /// ended.
    pub fn is_attacked(&self, client: usize) -> bool {
        let faults = [FaultKind::Path, FaultKind::NodeStop];
        is_over_udp(&self.plan, client) && faults.iter().any(|kind| self.plan.faults.contains(kind))
    }

    /// Attaches an admitted client over UDP.
    pub fn enter_over_udp(
        &mut self,
        client: usize,
        node: usize,
        admission: Admission,
        node_now: Moment,
    ) -> Option<(SessionId, SimEndpoint)> {
        let machine = self.nodes.len() + client;
        let size = portcullis_nic::EndpointSize {
            data_queue_pairs: 0,
            chunk_queue_pairs: 0,
            send_depth: 1,
            message_bytes: MESSAGE_BYTES,
            ..self.end_of_a_client(false)
        };
        let running = self.nodes[node].running.as_mut()?;
        let (tenant, host) = (admission.tenant, host_of(machine).octets());
        let attached = running.node.attach_without_queue_pairs(tenant, host, size.control_depth, node_now);
        let Ok(id) = attached else {
            running.node.abandon(&mut running.nic, tenant, node_now);
            return None;
        };
        let (tenant, hostile) = (self.clients[client].tenant, self.clients[client].hostile);
        let session = self.oracle.session_began(node, tenant, hostile, node_now);
        self.oracle.goes_over_udp(session);
        running.clients.insert(id, (session, None));
        let end = running.over_udp.as_mut()?;
        end.clients.insert(id, session);
        let socket = SharedSocket::default();
        socket.borrow().now = self.clients[client].clock.read_finely(self.now);
        let address = address_of_session(machine, session);
        self.sessions.push(SessionRecord {
            client,
            node,
            id: Some(id),
            next_reply: 0,
            next_worker_reply: [((0, 0), 0); 2],
            socket: Some((address, socket.clone())),
        });
        let end = OneShotEnd::new(socket, size, &self.terms, (address_of_node(node), id.0));
        Some((session, SimEndpoint::over_udp(end)))
    }

    /// Sets the time of a client's socket to the time on its machine.
    pub fn wind_socket(&mut self, session: SessionId) {
        let SessionRecord { client, socket, .. } = &self.sessions[session];
        if let Some((_, socket)) = socket {
            let narrow = self.paths.narrow_at(self.nodes.len() + client, self.now);
            let mut socket = socket.borrow();
            socket.now = self.clients[*client].clock.read_finely(self.now);
            socket.longest = narrow.filter(|narrow| narrow.is_refused).map(|narrow| narrow.carries[0]);
        }
    }

    /// Sends what a client's end has to send. Returns the time at which the end wants to be called.
    pub fn empty_socket(&mut self, session: SessionId) -> Option<Nanos> {
        let (address, socket) = self.sessions[session].socket.clone()?;
        let mut socket = socket.borrow();
        for what in socket.overdue.drain(..) {
            let what = format!("session {session} has had no end of an operation: {what}");
            self.oracle.fail(Promise::Timeliness, self.now, what);
        }
        for (operation, request) in socket.begun.drain(..) {
            self.oracle.began_on_the_wire(session, operation, request);
        }
        for (to, bytes) in socket.leaving.drain(..) {
            self.oracle.sealed_by_client(session, &bytes, self.now);
            self.launch(Datagram { from: address, to, bytes, is_past_switch: false });
        }
        let said: Vec<Vec<u8>> = socket.said.drain(..).collect();
        for bytes in said {
            self.say(Message { session, is_to_node: true, bytes });
        }
        let clock = &self.clients[self.sessions[session].client].clock;
        Some(clock.when_finely(socket.due?, self.now))
    }

    /// Sends a datagram into the network.
    fn launch(&mut self, datagram: Datagram) {
        let (Some(from), Some(to)) = (machine_of(datagram.from), machine_of(datagram.to)) else { return };
        let Some(extra) = self.network.delay(self.now, (from, to), false) else {
            return self.trace.note(self.now, &[10, from as u64, to as u64], || {
                format!("lost: {} to {}: {}", name(from), name(to), summary(&datagram))
            });
        };
        for at in self.paths.leave(self.now, &datagram) {
            self.events.put(at + extra, Event::Datagram(Box::new(datagram.clone())));
        }
    }

    /// Sends a control message, which is never lost.
    fn say(&mut self, message: Message) {
        let (client, node) =
            (self.nodes.len() + self.sessions[message.session].client, self.sessions[message.session].node);
        let way = if message.is_to_node { (client, node) } else { (node, client) };
        let extra = self.network.delay(self.now, way, true).unwrap_or(0);
        let latency = self.node_plan.latency;
        let at = self.paths.arrival(self.now, self.now + extra, &message, latency);
        self.events.put(at, Event::Message(Box::new(message)));
    }

    /// Delivers a datagram to the switch, or to its destination.
    pub fn deliver_datagram(&mut self, datagram: Datagram) {
        if !datagram.is_past_switch {
            for (at, datagram) in self.paths.forward(self.now, datagram) {
                self.events.put(at, Event::Datagram(Box::new(datagram)));
            }
            return;
        }
        let Some(to) = machine_of(datagram.to) else { return };
        let code = [11, to as u64, datagram.bytes.len() as u64];
        self.trace.note(self.now, &code, || format!("{} gets {}", name(to), summary(&datagram)));
        let Datagram { from, to: address, bytes, .. } = datagram;
        if let Some(client) = to.checked_sub(self.nodes.len()) {
            return self.deliver_datagram_to_client(client, (from, address), bytes);
        }
        if let Some(end) = self.nodes[to].running.as_mut().and_then(|it| it.over_udp.as_mut()) {
            end.receive(from, bytes);
            let soon = self.now + 100 + self.nodes[to].dice.of(0..1_000);
            self.wake_node(to, soon);
        }
    }

    fn deliver_datagram_to_client(
        &mut self,
        client: usize,
        (from, to): (SocketAddr, SocketAddr),
        bytes: Vec<u8>,
    ) {
        let stay = self.clients.get(client).and_then(|it| it.stay.as_ref());
        let sockets =
            stay.into_iter().flat_map(Stay::sessions).filter_map(|it| self.sessions[it].socket.as_ref());
        let Some((_, socket)) = sockets.into_iter().find(|(address, _)| *address == to) else { return };
        socket.borrow().arrived.push_back((from, bytes));
        let soon = self.now + 100 + self.clients[client].dice.of(0..500);
        self.wake_client(client, soon);
    }

    /// Delivers a control message.
    pub fn deliver_message(&mut self, Message { session, is_to_node, bytes }: Message) {
        self.trace.note(self.now, &[12, session as u64, is_to_node.into()], || {
            format!("a message of session {session} arrives: {}", crate::delivery::message(&bytes))
        });
        let SessionRecord { client, node, id, .. } = self.sessions[session];
        if !is_to_node {
            if let Some((_, socket)) = &self.sessions[session].socket {
                socket.borrow().heard.push_back(bytes);
            }
            let soon = self.now + 100 + self.clients[client].dice.of(0..500);
            return self.wake_client(client, soon);
        }
        let (Some(id), Some(running)) = (id, &mut self.nodes[node].running) else { return };
        let Some(message) = message_in(&bytes) else { return };
        running.node.hear(id, message);
        let request = WireRequest::Send { bytes: bytes.clone(), invalidate: None };
        let arrival = Arrival {
            session,
            queue_pair: None,
            id: 0,
            request: &request,
            answer: Some(&Response::Done),
            touches: &[],
            now: self.now,
            node_now: self.nodes[node].clock.read(self.now),
        };
        self.oracle.arrived(&arrival);
        let soon = self.now + 100 + self.nodes[node].dice.of(0..1_000);
        self.wake_node(node, soon);
    }

    /// Sends the node's messages to clients over UDP.
    pub fn carry_replies(&mut self, node: usize) {
        let moment = self.nodes[node].clock.read(self.now);
        loop {
            let Some(running) = &mut self.nodes[node].running else { return };
            let Some((client, message)) = running.node.poll_reply() else { return };
            let Some(&(session, _)) = running.clients.get(&client) else { continue };
            self.oracle.replied(session, &message, self.now, moment);
            self.say(Message { session, is_to_node: false, bytes: message.to_vec() });
        }
    }
}

/// The node's end.
impl Cluster {
    /// Processes datagrams and answers them, as many of each as one turn allows. Returns whether there is more to do.
    pub fn one_shot_turn(&mut self, node: usize, node_now: Moment) -> bool {
        let (most_in, most_out) = self.terms.per_turn;
        let shown = self.nodes[node].clock.read_finely(self.now);
        if let Some(end) = self.nodes[node].running.as_ref().and_then(|it| it.over_udp.as_ref())
            && end.is_writing()
        {
            if let Some((datagram, effect)) = end.go_on_writing() {
                self.note_datagram(node, node_now, &datagram, &effect);
            }
            return true;
        }
        for _ in 0..most_in {
            let Some(end) = self.nodes[node].running.as_ref().and_then(|it| it.over_udp.as_ref()) else {
                return false;
            };
            let Some((datagram, effect)) = end.take_in(shown) else { break };
            self.note_datagram(node, node_now, &datagram, &effect);
        }
        let mut sent = 0;
        while sent < most_out && self.send_one(node, node_now) {
            sent += 1;
        }
        let shown = self.nodes[node].clock.read_finely(self.now);
        let Some(end) = self.nodes[node].running.as_mut().and_then(|it| it.over_udp.as_mut()) else {
            return false;
        };
        let (refused, more) = (end.refusals(), end.has_arrived() || sent == most_out);
        let due = end.look_at_time(shown);
        let clients = end.clients.clone();
        for refused in refused {
            let session = clients.get(&portcullis_protocol::ClientId(refused.client)).copied();
            self.refuse_operation(node, node_now, session, &refused);
        }
        if let Some(due) = due {
            let at = self.nodes[node].clock.when_finely(due, self.now).max(self.now + 1);
            self.wake_node(node, at);
        }
        more
    }

    /// Reports the effect of a datagram to the checkers.
    fn note_datagram(
        &mut self,
        node: usize,
        node_now: Moment,
        (from, bytes): &(SocketAddr, Vec<u8>),
        effect: &Effect,
    ) {
        let label = Label::read(bytes);
        let sender = self.oracle.sealer(bytes).filter(|&session| {
            let its = &self.sessions[session];
            its.node == node && machine_of(*from) == Some(self.nodes.len() + its.client)
        });
        self.oracle.heard_from((node, *from), bytes.len(), sender.is_some());
        if !effect.touches.is_empty() {
            match (sender, label) {
                (Some(session), Some(label)) => self.note_change(node, node_now, (session, &label), effect),
                _ => {
                    let what =
                        format!("a packet that no client has sealed had an effect: {:x?}", effect.touches);
                    self.oracle.fail(Promise::Proof, self.now, what);
                }
            }
        }
        for refused in &effect.refused {
            self.refuse_operation(node, node_now, sender, refused);
        }
    }

    /// Reports a change that was executed to the checkers.
    fn note_change(
        &mut self,
        node: usize,
        node_now: Moment,
        (session, label): (SessionId, &Label),
        effect: &Effect,
    ) {
        let Some(begun) = self.oracle.carried_out_on_the_wire(session, label.operation, self.now) else {
            return;
        };
        let remote = remote_of(label);
        let touches = &effect.touches[..];
        let (request, answer) = match (begun.verb, touches) {
            (OneShotVerb::Write { .. }, [Touch::Write { bytes, .. }]) => {
                (WireRequest::Write { remote, bytes: bytes.clone() }, Response::Done)
            }
            (
                OneShotVerb::CompareAndSwap { .. } | OneShotVerb::FetchAndAdd { .. },
                [Touch::Change { before, .. }],
            ) => (atomic_of(&begun, remote), Response::Value(*before)),
            (_, touches) => {
                let what = format!("{begun:x?} of session {session} touched {touches:x?}");
                return self.oracle.fail(Promise::Memory, self.now, what);
            }
        };
        self.arrived_without_queue_pair(node, node_now, (session, begun.id), &request, &answer, touches);
    }

    fn arrived_without_queue_pair(
        &mut self,
        node: usize,
        node_now: Moment,
        (session, id): (SessionId, u64),
        request: &WireRequest,
        answer: &Response,
        touches: &[Touch],
    ) {
        self.trace.note(self.now, &[13, session as u64, node as u64], || {
            format!("  and carries out for session {session}: {request:x?}, {answer:x?}")
        });
        let (now, queue_pair, answer) = (self.now, ONE_SHOT, Some(answer));
        self.oracle.arrived(&Arrival { session, queue_pair, id, request, answer, touches, now, node_now });
    }

    /// Sends one packet of the node's end. Returns whether there was one.
    fn send_one(&mut self, node: usize, node_now: Moment) -> bool {
        let Some(end) = self.nodes[node].running.as_ref().and_then(|it| it.over_udp.as_ref()) else {
            return false;
        };
        let Some((to, bytes, touches)) = end.transmit() else { return false };
        let label = Label::read(&bytes);
        if !touches.is_empty() {
            self.note_read(node, node_now, label, &touches);
        }
        self.oracle.sent_by_node((node, to), &bytes, self.now);
        self.launch(Datagram { from: address_of_node(node), to, bytes, is_past_switch: false });
        true
    }

    /// Reports a read that was served to the checkers.
    fn note_read(&mut self, node: usize, node_now: Moment, label: Option<Label>, touches: &[Touch]) {
        let Some(end) = self.nodes[node].running.as_ref().and_then(|it| it.over_udp.as_ref()) else { return };
        let label = label.filter(|label| label.kind == Label::READ_DATA);
        let known = label.and_then(|label| {
            let session = *end.clients.get(&portcullis_protocol::ClientId(label.client))?;
            Some((label, session, self.oracle.begun_on_the_wire(session, label.operation)?))
        });
        let (Some((label, session, begun)), Some((offset, length))) = (known, whole_of(touches)) else {
            let what = format!("the pool was touched for no operation of a client: {touches:x?}");
            return self.oracle.fail(Promise::Proof, self.now, what);
        };
        let mut bytes = vec![0; index(length)];
        end.pool().peek(offset, &mut bytes);
        let request = WireRequest::Read { remote: remote_of(&label), length: label.length };
        let (answer, touches) = (Response::Bytes(bytes), [Touch::Read { offset, length }]);
        self.arrived_without_queue_pair(node, node_now, (session, begun.id), &request, &answer, &touches);
    }

    /// Handles an operation that the node's end has refused. `sender`: the client that has sealed it.
    fn refuse_operation(
        &mut self,
        node: usize,
        node_now: Moment,
        sender: Option<SessionId>,
        refused: &Refused,
    ) {
        let charge = refused.to_charge();
        self.trace.note(self.now, &[14, node as u64, charge.is_some().into()], || {
            format!("  and refuses {refused:x?}, sealed by session {sender:?}")
        });
        match sender {
            None if charge.is_some() => {
                let what = format!("{refused:x?} is charged, and no client has sealed it");
                self.oracle.fail(Promise::Proof, self.now, what);
            }
            None => {}
            Some(session) => {
                let right = match refused.operation {
                    OperationType::Read => Rights::READ,
                    OperationType::Write => Rights::WRITE,
                    OperationType::Atomic | OperationType::Rekey => Rights::ATOMIC,
                };
                let region = RegionName::from(refused.region);
                let length = if right == Rights::ATOMIC { 8 } else { refused.length.into() };
                // A hostile client seals with keys of others, or with none.
                let is_mistaken = self.clients[self.sessions[session].client].hostile
                    && refused.cause == RefusalCause::Unproven;
                let is_charged = charge.is_some() && self.sessions[session].id.is_some();
                let wanted = (key_of(region), refused.address, length, right);
                if !is_mistaken {
                    self.oracle.refused_without_queue_pair(session, wanted, is_charged, (self.now, node_now));
                }
            }
        }
        if let (Some((client, region, access)), Some(running)) = (charge, &mut self.nodes[node].running) {
            running.node.handle_refused_operation(client, region, access, node_now);
            // The refusal may have ended permissions.
            self.read_audit(node, node_now);
        }
    }
}

/// Returns the place of an operation, with the key that stands for its region.
fn remote_of(label: &Label) -> RemoteSpan {
    RemoteSpan { address: RemoteAddress(label.address), rkey: key_of(label.region) }
}

fn atomic_of(begun: &OneShotRequest, remote: RemoteSpan) -> WireRequest {
    match begun.verb {
        OneShotVerb::FetchAndAdd { add } => WireRequest::FetchAndAdd { remote, add },
        OneShotVerb::CompareAndSwap { compare, swap } => {
            WireRequest::CompareAndSwap { remote, compare, swap }
        }
        OneShotVerb::Read | OneShotVerb::Write { .. } => unreachable!("it is an atomic"),
    }
}

/// Returns the bytes that consecutive reads have touched. `None`: not all were reads, or they were not consecutive.
fn whole_of(touches: &[Touch]) -> Option<(u64, u64)> {
    let mut whole: Option<(u64, u64)> = None;
    for touch in touches {
        let Touch::Read { offset, length } = touch else { return None };
        whole = match whole {
            None => Some((*offset, *length)),
            Some((start, so_far)) if start + so_far == *offset => Some((start, so_far + length)),
            Some(_) => return None,
        };
    }
    whole
}

/// Returns a datagram as a short text.
fn summary(datagram: &Datagram) -> String {
    let Datagram { from, to, bytes, .. } = datagram;
    match Label::read(bytes) {
        Some(label) => format!("{from} -> {to}: {} bytes, {label:x?}", bytes.len()),
        None => format!("{from} -> {to}: {} bytes", bytes.len()),
    }
}
