//! The turns of nodes, clients and their NICs, and the times of the next turns.

use crate::application::Turn;
use crate::clock::{MICROSECOND, Nanos};
use crate::cluster::Cluster;
use crate::cluster::Event;
use crate::hosts::{Stay, Work};
use crate::network::name;
use crate::nic::NicFaults;
use crate::scene::Scene;
use portcullis_node::AuditEvent;
use portcullis_protocol::Moment;

#[cfg(test)]
mod tests;

/// The shortest time between two turns of a node.
const NODE_TURN: Nanos = 300;
/// The time until the next turn of a node that wants a turn at once although its last turn did nothing.
const NODE_IDLE_TURN: Nanos = 20 * MICROSECOND;

impl Cluster {
    /// Makes sure that a node has a turn at `at` or earlier.
    pub fn wake_node(&mut self, node: usize, at: Nanos) {
        let host = &mut self.nodes[node];
        let at = at.max(host.paused_until).max(self.now + 1);
        if host.running.is_some() && host.turn.set(at) {
            self.events.put(at, Event::NodeTurn(node));
        }
    }

    pub fn wake_node_nic(&mut self, node: usize) {
        let host = &mut self.nodes[node];
        let at = self.now + 1 + host.dice.of(0..1_500);
        if host.nic_turn.set(at) {
            self.events.put(at, Event::NodeNic(node));
        }
    }

    /// Makes sure that a client has a turn at `at` or earlier.
    pub fn wake_client(&mut self, client: usize, at: Nanos) {
        let host = &mut self.clients[client];
        let at = at.max(host.paused_until).max(self.now + 1);
        if host.stay.is_some() && host.turn.set(at) {
            self.events.put(at, Event::ClientTurn(client));
        }
    }

    pub fn node_nic_turn(&mut self, node: usize) {
        if !self.nodes[node].nic_turn.ring(self.now) {
            return;
        }
        let nic_now = nic_time(self.now);
        let Some(running) = &mut self.nodes[node].running else { return };
        let worked = running.nic.nic.turn_at(nic_now);
        let mut out = Vec::new();
        running.nic.nic.core().take_outgoing(&mut out);
        let wake = running.nic.nic.core().next_wake();
        let busy = running.nic.nic.waits_for_time();
        self.send_out(node, &mut out);
        if worked {
            let soon = self.now + 100 + self.nodes[node].dice.of(0..1_000);
            self.wake_node(node, soon);
        }
        let again =
            if busy { Some(self.now + 2 * MICROSECOND) } else { wake.map(|it| nic_wake(it, self.now)) };
        if let Some(at) = again
            && self.nodes[node].nic_turn.set(at)
        {
            self.events.put(at, Event::NodeNic(node));
        }
    }

    pub fn node_turn(&mut self, node: usize) {
        if !self.nodes[node].turn.ring(self.now) {
            return;
        }
        if self.nodes[node].paused_until > self.now {
            return self.wake_node(node, self.now);
        }
        let host = &mut self.nodes[node];
        let node_now = host.clock.read(self.now);
        let Some(running) = &mut host.running else { return };
        if host.nic_sound_from <= self.now {
            running.nic.hook.faults = NicFaults::default();
        }
        let more = self.one_shot_turn(node, node_now);
        let Some(running) = &mut self.nodes[node].running else { return };
        let worked = running.node.turn(&mut running.nic, node_now);
        let touches = running.take_touches();
        let next = running.node.next_wake();
        self.trace.note(self.now, &[4, node as u64, worked.into(), touches.len() as u64], || {
            format!("{} has a turn at {} µs of its time: {touches:x?}", name(node), node_now.0)
        });
        self.oracle.node_turned(node, node_now);
        // First the audit log: memory lost in this turn may have a new holder and new bytes.
        self.read_audit(node, node_now);
        self.oracle.node_touched(node, &touches, self.now, node_now);
        self.show_out_evicted(node);
        self.tell_of_workers(node);
        self.carry_replies(node);
        self.wake_node_nic(node);
        if worked || more {
            self.wake_node(node, self.now + NODE_TURN);
        } else if let Some(next) = next {
            let at = self.nodes[node].clock.when(next, self.now).max(self.now + NODE_IDLE_TURN);
            self.wake_node(node, at);
        }
    }

    pub fn read_audit(&mut self, node: usize, node_now: Moment) {
        while let Some(record) =
            self.nodes[node].running.as_mut().and_then(|running| running.node.poll_audit())
        {
            let running = self.nodes[node].running.as_ref();
            let of = record.client.and_then(|id| running.and_then(|running| running.clients.get(&id)));
            match (record.event, of) {
                (AuditEvent::Violation, Some(&(session, _))) => self.oracle.violation_audited(session),
                (AuditEvent::Bar, Some(&(session, _))) => {
                    self.oracle.client_barred(session, node_now, self.now);
                }
                (AuditEvent::Bar, None) => {
                    let tenant = record.tenant.as_ref().and_then(|name| name.parse().ok());
                    if let (Some(tenant), Some(until)) = (tenant, record.until) {
                        self.oracle.tenant_barred(node, tenant, (record.at, until), self.now);
                    }
                }
                _ => {}
            }
            self.trace.remark(self.now, || format!("{} notes: {record:?}", name(node)));
        }
    }

    pub fn client_nic_turn(&mut self, client: usize) {
        if self.clients[client].nic_turn.ring(self.now) && self.client_nic_turn_now(client) {
            self.wake_client(client, self.now + 100);
        }
    }

    /// Runs a turn of a client's NIC. Returns whether the NIC had something to do.
    pub fn client_nic_turn_now(&mut self, client: usize) -> bool {
        let nic_now = nic_time(self.now);
        let mut out = Vec::new();
        let host = &mut self.clients[client];
        let mut nic = host.nic.borrow_mut();
        let worked = nic.turn_at(nic_now);
        nic.core().take_outgoing(&mut out);
        let wake = nic.core().next_wake();
        drop(nic);
        let at = wake.map(|it| nic_wake(it, self.now));
        if let Some(at) = at
            && host.nic_turn.set(at)
        {
            self.events.put(at, Event::ClientNic(client));
        }
        self.send_out(self.nodes.len() + client, &mut out);
        worked
    }

    pub fn client_turn(&mut self, client: usize) {
        let now = self.now;
        if !self.clients[client].turn.ring(now) {
            return;
        }
        if self.clients[client].paused_until > now {
            return self.wake_client(client, now);
        }
        let host = &mut self.clients[client];
        let moment = host.clock.read(now);
        let Some(mut stay) = host.stay.take() else { return };
        stay.sessions().for_each(|session| self.wind_socket(session));
        let (excused, attacked) = (self.is_udp_excused(client), self.is_attacked(client));
        let host = &mut self.clients[client];
        stay.switches.0.set(host.late_until > now);
        let may_begin = now >= host.next_action;
        if may_begin {
            host.next_action = now + host.dice.of(1..2 * self.plan.think_ns + 2);
        }
        let next = host.next_action;
        let mut scene = Scene {
            now,
            moment,
            session: stay.session,
            tenant: host.tenant,
            oracle: &mut self.oracle,
            gossip: &mut self.gossip[stay.node],
            trace: &mut self.trace,
            winding_down: self.winding_down,
            excused: host.excused_until > now || host.let_down || excused,
            clocks_off: host.clock_off || self.nodes[stay.node].clock_off || attacked,
        };
        let Some(library) = &mut stay.client else {
            let turned = if let Work::Application(application) = &mut stay.work {
                application.turn(&mut scene)
            } else {
                Turn::Ended
            };
            return self.application_turned(client, stay, turned);
        };
        let before = library.pending();
        library.poll(moment);
        match &mut stay.work {
            Work::Honest(worker) => worker.act(library, &mut scene, may_begin),
            Work::Hostile(hostile) => hostile.act(library, &mut scene, may_begin),
            Work::Application(_) => unreachable!("its sessions have the client library"),
        }
        let (pending, session) = (library.pending(), stay.session);
        self.trace.note(now, &[5, client as u64, before as u64, pending as u64], || {
            format!("client {client} has a turn at {} µs of its time: {pending} under way", moment.0)
        });
        let wake = library.next_wake();
        let lost = library.over().is_some();
        let hostile = matches!(stay.work, Work::Hostile(_));
        let done = self.winding_down && (hostile || stay.work.is_idle());
        let host = &mut self.clients[client];
        host.stay = Some(stay);
        let rest = host.late_until.max(next);
        let at = wake.map_or(rest, |wake| host.clock.when(wake, now).max(now + MICROSECOND).min(rest));
        self.client_nic_turn_now(client);
        let due = self.empty_socket(session);
        let at = due.map_or(at, |due| at.min(due.max(now + MICROSECOND)));
        if lost || done {
            self.leave(client, session, lost);
        } else {
            self.wake_client(client, at);
        }
    }
}

/// Programs with sessions.
impl Cluster {
    /// Plans the next turn of a program that has had one.
    fn application_turned(&mut self, client: usize, stay: Stay, turned: Turn) {
        let now = self.now;
        let session = stay.session;
        let waits = if let Turn::Waits(time) = turned { time } else { 0 };
        self.trace.note(now, &[9, client as u64, waits], || {
            format!("client {client}, a program, has a turn and waits for {waits} ns")
        });
        let sessions = stay.sessions();
        self.clients[client].stay = Some(stay);
        self.client_nic_turn_now(client);
        let due = sessions.filter_map(|session| self.empty_socket(session)).filter(|due| *due > now).min();
        match turned {
            // Work that was due before has waited for the program to look at the time, and goes on waiting for that.
            Turn::Waits(time) => {
                let wanted = now.saturating_add(time);
                self.wake_client(client, due.map_or(wanted, |due| due.min(wanted)));
            }
            Turn::Ended => self.leave(client, session, true),
        }
    }
}

/// Returns the time on the clock of a NIC, which is never disturbed.
pub(crate) fn nic_time(now: Nanos) -> Moment {
    Moment(now / 1000)
}

fn nic_wake(moment: Moment, now: Nanos) -> Nanos {
    (moment.0 * 1000).max(now + 1)
}
