//! The cluster: machines, network, checkers, and the loop that moves virtual time.

use crate::clock::{Clock, MICROSECOND, MILLISECOND, Nanos};
use crate::dice::Dice;
use crate::endpoint::RAW;
use crate::events::{Event, Events};
use crate::faults::{self, Fault};
use crate::hosts::{Alarm, ClientHost, NodeHost, Work};
use crate::memory::SimMemory;
use crate::network::{Network, machine_at};
use crate::nic::NicFaults;
use crate::oracle::{Arrival, Oracle, Promise, SessionId};
use crate::plan::{FaultKind, NodePlan, Plan};
use crate::scene::{Gossip, Scene};
use crate::trace::Trace;
use portcullis_node::AuditEvent;
use portcullis_protocol::{ClientId, Moment};
use portcullis_softnic::core::{Packet, PacketBody, WireRequest};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

/// How long after the work everything that was begun may take to end.
const WIND_DOWN: Nanos = 400 * MILLISECOND;
/// How long clients of a tenant that has broken rules are waited for.
const PATIENCE_WITH_OFFENDERS: Nanos = 200 * MILLISECOND;
/// How long a node is given to tidy up after the last client has left.
const QUIET: Nanos = 2 * MILLISECOND;
/// How often the checkers look round.
const LOOK_EVERY: Nanos = MILLISECOND;
/// The shortest time between two turns of a node.
const NODE_TURN: Nanos = 300;
/// The time between two turns of a node that wants one at once and got nothing done in the last.
const NODE_IDLE_TURN: Nanos = 20 * MICROSECOND;

/// Who a session is, for the machines.
#[derive(Clone, Debug)]
pub(crate) struct SessionRecord {
    pub client: usize,
    pub node: usize,
    /// The node's number for it, while it is attached.
    pub id: Option<ClientId>,
    /// The number of the next control message that the node sends it for the first time.
    pub next_reply: u32,
}

/// A cluster in virtual time.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub plan: Plan,
    pub node_plan: NodePlan,
    pub now: Nanos,
    pub events: Events,
    pub network: Network,
    pub nodes: Vec<NodeHost>,
    pub clients: Vec<ClientHost>,
    pub oracle: Oracle,
    pub trace: Trace,
    pub gossip: Vec<Gossip>,
    pub sessions: Vec<SessionRecord>,
    /// Whose a queue pair is, by machine and number.
    pub by_queue_pair: HashMap<(usize, u32), SessionId>,
    pub faults: Vec<(Nanos, Fault)>,
    pub fault_counts: BTreeMap<FaultKind, u64>,
    /// A clock has been disturbed.
    pub clocks_off: bool,
    pub winding_down: bool,
    /// When a node last let go of a client.
    pub last_farewell: Nanos,
    /// The most permissions that the nodes held at a look.
    pub permissions_peak: u64,
}

impl Cluster {
    pub fn new(plan: Plan) -> Self {
        let node_plan = NodePlan::draw(&plan);
        let drawn = faults::draw(&plan);
        let mut dice = Dice::new(plan.seed, 50);
        let drift = |dice: &mut Dice| {
            let bound = u64::from(node_plan.drift.unsigned_abs());
            i32::try_from(dice.of(0..bound + 1)).unwrap_or(0) - node_plan.drift / 2
        };
        let nodes = (0..plan.nodes)
            .map(|node| NodeHost {
                clock: Clock::new(dice.of(0..1 << 40), drift(&mut dice)),
                dice: Dice::new(plan.seed, 1_000 + node as u64),
                life: None,
                paused_until: 0,
                nic_sound_from: 0,
                turn: Alarm::default(),
                nic_turn: Alarm::default(),
                lives: 0,
            })
            .collect();
        let clients = (0..plan.clients)
            .map(|client| ClientHost {
                tenant: tenant_of(&plan, client),
                hostile: client >= plan.clients - plan.hostile,
                clock: Clock::new(dice.of(0..1 << 40), drift(&mut dice)),
                dice: Dice::new(plan.seed, 2_000 + client as u64),
                nic: Rc::new(RefCell::default()),
                stay: None,
                paused_until: 0,
                late_until: 0,
                excused_until: 0,
                next_action: 0,
                gone: false,
                turn: Alarm::default(),
                nic_turn: Alarm::default(),
                stays: 0,
            })
            .collect();
        let network = Network::new(node_plan.latency, node_plan.jitter, Dice::new(plan.seed, 51));
        let mut cluster = Self {
            trace: Trace::new(plan.readable),
            gossip: (0..plan.nodes).map(|_| Gossip::new(plan.tenants + plan.hostile)).collect(),
            now: 0,
            events: Events::default(),
            network,
            nodes,
            clients,
            oracle: Oracle::default(),
            sessions: Vec::new(),
            by_queue_pair: HashMap::new(),
            faults: drawn,
            fault_counts: BTreeMap::new(),
            clocks_off: false,
            winding_down: false,
            last_farewell: 0,
            permissions_peak: 0,
            node_plan,
            plan,
        };
        cluster.begin();
        cluster
    }

    fn begin(&mut self) {
        for node in 0..self.nodes.len() {
            self.start_node(node);
        }
        for client in 0..self.clients.len() {
            self.join_network(client);
            let at = self.clients[client].dice.of(0..100 * MICROSECOND);
            self.events.put(at, Event::Attach(client));
        }
        for index in 0..self.faults.len() {
            self.events.put(self.faults[index].0, Event::Fault(index));
        }
        self.events.put(LOOK_EVERY, Event::Look);
    }

    /// Runs until everything that was begun has ended, or a promise is found broken.
    pub fn run(&mut self) {
        while let Some((at, event)) = self.events.next() {
            self.now = at;
            if !self.winding_down && at >= self.plan.duration_ns {
                self.wind_down();
            }
            self.step(event);
            if self.oracle.has_failed() || (self.winding_down && self.is_over()) {
                break;
            }
        }
    }

    fn is_over(&self) -> bool {
        let gone = self.clients.iter().all(|client| client.stay.is_none());
        let let_go = self.sessions.iter().all(|session| session.id.is_none());
        gone && let_go && self.now >= self.last_farewell.max(self.plan.duration_ns) + QUIET
            || self.now > self.plan.duration_ns + WIND_DOWN
    }

    fn step(&mut self, event: Event) {
        match event {
            Event::Packet(place) => {
                if let Some(packet) = self.events.take_packet(place) {
                    self.deliver(&packet);
                }
            }
            Event::NodeTurn(node) => self.node_turn(node),
            Event::NodeNic(node) => self.node_nic_turn(node),
            Event::ClientTurn(client) => self.client_turn(client),
            Event::ClientNic(client) => self.client_nic_turn(client),
            Event::Fault(index) => self.apply_fault(index),
            Event::Farewell(session) => self.let_go(session),
            Event::Attach(client) => self.attach(client),
            Event::NodeStart(node) => self.start_node(node),
            Event::ShownOut(session) => self.tell_shown_out(session),
            Event::Look => self.look(),
        }
    }

    fn wind_down(&mut self) {
        self.winding_down = true;
        self.network.heal();
        for node in &mut self.nodes {
            node.paused_until = 0;
            if let Some(life) = &mut node.life {
                life.nic.faults = NicFaults::default();
            }
        }
        for client in 0..self.clients.len() {
            self.clients[client].paused_until = 0;
            self.clients[client].late_until = 0;
            self.wake_client(client, self.now + 1);
        }
        for node in 0..self.nodes.len() {
            self.wake_node(node, self.now + 1);
        }
    }

    fn look(&mut self) {
        if self.winding_down && self.now > self.plan.duration_ns + PATIENCE_WITH_OFFENDERS {
            self.show_out_offenders();
        }
        let lives = self.nodes.iter().filter_map(|host| host.life.as_ref());
        let held: u64 = lives.map(|life| life.node.counters().permissions).sum();
        self.permissions_peak = self.permissions_peak.max(held);
        let pools = self.pools();
        self.oracle.look(self.now, &pools, false);
        self.events.put(self.now + LOOK_EVERY, Event::Look);
    }

    /// A tenant that has broken rules may be kept waiting for longer than anybody looks.
    fn show_out_offenders(&mut self) {
        for client in 0..self.clients.len() {
            let session = self.clients[client].stay.as_ref().map(|stay| stay.session);
            if let Some(session) = session.filter(|&session| self.oracle.has_offended(session)) {
                self.leave(client, session, false);
            }
        }
    }

    fn pools(&mut self) -> Vec<Option<(SimMemory, Moment)>> {
        let now = self.now;
        let pool = |host: &mut NodeHost| {
            let moment = host.clock.read(now);
            let pool = host.life.as_ref()?.nic.pool.as_ref()?;
            Some((pool.0.unnoted(), moment))
        };
        self.nodes.iter_mut().map(pool).collect()
    }

    /// The last look, when everybody has left.
    pub fn conclude(&mut self) {
        if self.oracle.has_failed() {
            return;
        }
        let pools = self.pools();
        self.oracle.look(self.now, &pools, true);
        self.oracle.at_rest(self.now);
        for client in 0..self.clients.len() {
            if let Some(stay) = &self.clients[client].stay {
                let what = format!(
                    "client {client}, session {}, has not ended its work: {} under way, {}, {:?}",
                    stay.session,
                    stay.client.pending(),
                    stay.work.summary(),
                    stay.client.counters()
                );
                self.oracle.fail(Promise::Progress, self.now, what);
            }
        }
        for node in 0..self.nodes.len() {
            self.check_rest(node);
        }
    }

    fn check_rest(&mut self, node: usize) {
        let Some(life) = &mut self.nodes[node].life else { return };
        let left = life.node.counters();
        let held = [left.permissions, left.objects, left.bytes_used, left.headers_used, left.windows];
        let there = [left.clients, left.tenants, left.postponed];
        let objects = life.nic.nic.core().objects();
        let bare = objects.domains == 0 && objects.keys == 0 && objects.queue_pairs == 0;
        if held != [0; 5] || there != [0; 3] || !bare || objects.completion_queues != 2 {
            let what = format!("node {node} keeps {left:?}, its NIC {objects:?}");
            self.oracle.fail(Promise::Rest, self.now, what);
        }
    }
}

/// Every other hostile client is a tenant of its own; the others sit among honest siblings.
fn tenant_of(plan: &Plan, client: usize) -> usize {
    let honest = plan.clients - plan.hostile;
    if client >= honest && (client - honest).is_multiple_of(2) {
        plan.tenants + client - honest
    } else {
        client % plan.tenants
    }
}

/// What the network brings.
impl Cluster {
    /// Puts packets on their way.
    pub fn send_out(&mut self, from: usize, packets: &mut Vec<Packet>) {
        for packet in packets.drain(..) {
            let Some(to) = machine_at(packet.to.port) else { continue };
            if from < self.nodes.len() {
                self.note_reply(from, to, &packet);
            }
            match self.network.carry(self.now, from, to, &packet) {
                Some(arrival) => self.events.put_packet(arrival, packet),
                None => self.trace.note(self.now, &[1, from as u64, to as u64], || {
                    format!("lost: {} to {}: {}", name(from), name(to), summary(&packet))
                }),
            }
        }
    }

    /// A message leaves a node for the first time: a promise of the node's.
    fn note_reply(&mut self, node: usize, to: usize, packet: &Packet) {
        let PacketBody::Request { request: WireRequest::Send { bytes, .. }, .. } = &packet.body else {
            return;
        };
        let Some(&session) = self.by_queue_pair.get(&(to, packet.to.number)) else { return };
        let record = &mut self.sessions[session];
        if packet.number < record.next_reply {
            return;
        }
        record.next_reply = packet.number + 1;
        let moment = self.nodes[node].clock.read(self.now);
        self.oracle.replied(session, bytes, self.now, moment);
    }

    fn deliver(&mut self, packet: &Packet) {
        let Some(to) = machine_at(packet.to.port) else { return };
        let code = [2, to as u64, packet.from.number.into(), packet.to.number.into(), packet.number.into()];
        self.trace.note(self.now, &code, || format!("{} gets {}", name_of(to), summary(packet)));
        if to < self.nodes.len() {
            self.deliver_to_node(to, packet);
        } else {
            self.deliver_to_client(to - self.nodes.len(), packet);
        }
    }

    fn deliver_to_node(&mut self, node: usize, packet: &Packet) {
        let nic_now = nic_time(self.now);
        let Some(life) = &mut self.nodes[node].life else { return };
        let mut out = Vec::new();
        life.nic.nic.core().receive(packet, nic_now);
        life.nic.nic.core().take_outgoing(&mut out);
        let touches = life.take_touches();
        if let PacketBody::Request { id, request } = &packet.body {
            let answer = out.iter().find_map(|sent| match &sent.body {
                PacketBody::Answer(answer) if sent.number == packet.number && sent.to == packet.from => {
                    Some(answer)
                }
                _ => None,
            });
            let from = machine_at(packet.from.port).unwrap_or(usize::MAX);
            if let Some(&session) = self.by_queue_pair.get(&(from, packet.from.number)) {
                let node_now = self.nodes[node].clock.read(self.now);
                let (id, now, touches) = (*id, self.now, &touches[..]);
                self.oracle.arrived(&Arrival { session, id, request, answer, touches, now, node_now });
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

/// Turns.
impl Cluster {
    /// A node has a turn at `at`, if not sooner.
    pub fn wake_node(&mut self, node: usize, at: Nanos) {
        let host = &mut self.nodes[node];
        let at = at.max(host.paused_until).max(self.now + 1);
        if host.life.is_some() && host.turn.set(at) {
            self.events.put(at, Event::NodeTurn(node));
        }
    }

    fn wake_node_nic(&mut self, node: usize) {
        let host = &mut self.nodes[node];
        let at = self.now + 1 + host.dice.of(0..1_500);
        if host.nic_turn.set(at) {
            self.events.put(at, Event::NodeNic(node));
        }
    }

    /// A client has a turn at `at`, if not sooner.
    pub fn wake_client(&mut self, client: usize, at: Nanos) {
        let host = &mut self.clients[client];
        let at = at.max(host.paused_until).max(self.now + 1);
        if host.stay.is_some() && host.turn.set(at) {
            self.events.put(at, Event::ClientTurn(client));
        }
    }

    fn node_nic_turn(&mut self, node: usize) {
        if !self.nodes[node].nic_turn.ring(self.now) {
            return;
        }
        let nic_now = nic_time(self.now);
        let Some(life) = &mut self.nodes[node].life else { return };
        let worked = life.nic.nic.turn_at(nic_now);
        let mut out = Vec::new();
        life.nic.nic.core().take_outgoing(&mut out);
        let wake = life.nic.nic.core().next_wake();
        let busy = life.nic.nic.waits_for_time();
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

    fn node_turn(&mut self, node: usize) {
        if !self.nodes[node].turn.ring(self.now) {
            return;
        }
        if self.nodes[node].paused_until > self.now {
            return self.wake_node(node, self.now);
        }
        let host = &mut self.nodes[node];
        let node_now = host.clock.read(self.now);
        let Some(life) = &mut host.life else { return };
        if host.nic_sound_from <= self.now {
            life.nic.faults = NicFaults::default();
        }
        let worked = life.node.turn(&mut life.nic, node_now);
        let touches = life.take_touches();
        let next = life.node.next_wake();
        self.trace.note(self.now, &[4, node as u64, worked.into(), touches.len() as u64], || {
            format!("{} has a turn at {} µs of its time: {touches:x?}", name_of(node), node_now.0)
        });
        self.oracle.node_turned(node, node_now);
        self.oracle.node_touched(node, &touches, self.now, node_now);
        self.read_audit(node, node_now);
        self.show_out_evicted(node);
        self.wake_node_nic(node);
        if worked {
            self.wake_node(node, self.now + NODE_TURN);
        } else if let Some(next) = next {
            let at = self.nodes[node].clock.when(next, self.now).max(self.now + NODE_IDLE_TURN);
            self.wake_node(node, at);
        }
    }

    pub fn read_audit(&mut self, node: usize, node_now: Moment) {
        while let Some(record) = self.nodes[node].life.as_mut().and_then(|life| life.node.poll_audit()) {
            let life = self.nodes[node].life.as_ref();
            let of = record.client.and_then(|id| life.and_then(|life| life.clients.get(&id)));
            match (record.event, of) {
                (AuditEvent::Violation, Some(&(session, _))) => self.oracle.violation_audited(session),
                (AuditEvent::Bar, _) => {
                    let tenant = record.tenant.as_ref().and_then(|name| name.parse().ok());
                    if let Some(tenant) = tenant {
                        self.oracle.tenant_barred(node, tenant, node_now);
                    }
                }
                _ => {}
            }
            self.trace.remark(self.now, || format!("{} notes: {record:?}", name_of(node)));
        }
    }

    fn client_nic_turn(&mut self, client: usize) {
        if self.clients[client].nic_turn.ring(self.now) {
            self.client_nic_turn_now(client);
            self.wake_client(client, self.now + 100);
        }
    }

    fn client_nic_turn_now(&mut self, client: usize) {
        let nic_now = nic_time(self.now);
        let mut out = Vec::new();
        let host = &mut self.clients[client];
        let mut nic = host.nic.borrow_mut();
        nic.turn_at(nic_now);
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
    }

    fn client_turn(&mut self, client: usize) {
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
            excused: host.excused_until > now,
            clocks_off: self.clocks_off,
        };
        let before = stay.client.pending();
        stay.client.poll(moment);
        match &mut stay.work {
            Work::Honest(worker) => worker.act(&mut stay.client, &mut scene, may_begin),
            Work::Hostile(hostile) => hostile.act(&mut stay.client, &mut scene, may_begin),
        }
        let (pending, session) = (stay.client.pending(), stay.session);
        self.trace.note(now, &[5, client as u64, before as u64, pending as u64], || {
            format!("client {client} has a turn at {} µs of its time: {pending} under way", moment.0)
        });
        let wake = stay.client.next_wake();
        let lost = stay.client.over().is_some();
        let hostile = matches!(stay.work, Work::Hostile(_));
        let done = self.winding_down && (hostile || stay.work.is_idle());
        let host = &mut self.clients[client];
        host.stay = Some(stay);
        let rest = host.late_until.max(next);
        let at = wake.map_or(rest, |wake| host.clock.when(wake, now).max(now + MICROSECOND).min(rest));
        self.client_nic_turn_now(client);
        if lost || done {
            self.leave(client, session, lost);
        } else {
            self.wake_client(client, at);
        }
    }
}

/// A NIC's clock is nobody's business: it runs with the time.
pub(crate) fn nic_time(now: Nanos) -> Moment {
    Moment(now / 1000)
}

fn nic_wake(moment: Moment, now: Nanos) -> Nanos {
    (moment.0 * 1000).max(now + 1)
}

fn name(machine: usize) -> String {
    format!("machine {machine}")
}

fn name_of(machine: usize) -> String {
    name(machine)
}

fn answer_code(answer: Option<&portcullis_softnic::core::Answer>) -> u64 {
    use portcullis_softnic::core::Answer;
    match answer {
        None => 0,
        Some(Answer::Done) => 1,
        Some(Answer::Bytes(bytes)) => {
            2 ^ bytes.iter().fold(0u64, |sum, &byte| sum.wrapping_mul(31).wrapping_add(byte.into()))
        }
        Some(Answer::Value(value)) => 3 ^ value.rotate_left(3),
        Some(Answer::NotReady) => 4,
        Some(Answer::Refused(status)) => 5 + *status as u64,
    }
}

/// A packet in a few words.
fn summary(packet: &Packet) -> String {
    let number = packet.number;
    let what = match &packet.body {
        PacketBody::Answer(answer) => format!("answer {answer:x?}"),
        PacketBody::Request { id, request } => match request {
            WireRequest::Send { bytes, .. } => message(bytes),
            other if *id == RAW => format!("raw {other:x?}"),
            other => format!("{id:#x} {other:x?}"),
        },
    };
    format!("#{number} {} -> {}: {what}", packet.from.number, packet.to.number)
}

fn message(bytes: &[u8]) -> String {
    use portcullis_protocol::{Reply, Request};
    let Some(head) = bytes.first_chunk() else { return format!("{} bytes", bytes.len()) };
    match (Request::decode(*head), Reply::decode(*head)) {
        (Ok(request), _) => format!("{request:?}"),
        (_, Ok(reply)) => format!("{reply:?}"),
        _ => "nonsense".to_owned(),
    }
}
