//! The world of a race: one node, a few clients, queues of packets between them, and one clock that moves on command.

use super::actor::{Actor, Common};
use super::moves::{DATA_QUEUE_PAIRS, Move, QUEUE_PAIRS};
use super::scenarios::{Act, Cast, LINGER, Role, Scenario};
use super::watch::{Flaw, Watch, describe};
use super::wires::{asks_for_rebuild, is_timeless};
use crate::clock::{MICROSECOND, Nanos};
use crate::dice::Dice;
use crate::endpoint::{SharedNic, join};
use crate::network::port_address;
use crate::nic::{Disturbance, NodeNic};
use crate::oracle::{LONGEST_WAIT, Oracle, Promise};
use crate::turns::nic_time;
use portcullis_client::{Client, ClientConfig};
use portcullis_nic::EndpointSize;
use portcullis_node::{AuditEvent, Node, NodeConfig, Reductions, ViolationLimits};
use portcullis_protocol::{Incarnation, Lifetime, Moment};
use portcullis_softnic::SoftNic;
use portcullis_softnic::core::{NetworkPort, Packet};
use std::collections::VecDeque;

/// The time that all clocks show when a race begins.
const BEGINNING: Nanos = 1_000 * MICROSECOND;

/// A test's change to packets, which the checkers must notice.
pub(super) type Tamper = fn(&mut Packet, &World);

type Queues = Vec<[VecDeque<Packet>; QUEUE_PAIRS]>;

/// The whole state of a race.
#[derive(Debug)]
pub(super) struct World {
    pub now: Nanos,
    pub nic: NodeNic,
    pub node: Node<NodeNic>,
    pub actors: Vec<Actor>,
    pub oracle: Oracle,
    pub watch: Watch,
    pub lines: Option<Vec<String>>,
    common: Common,
    pub to_node: Queues,
    pub to_client: Queues,
    /// Acknowledgements of control messages, which arrive when the race is over.
    pub put_off: VecDeque<Packet>,
    /// For each client, the number of the next control message that is not a repetition.
    pub next_reply: Vec<u32>,
    /// Whether the race is running.
    pub racing: bool,
    nic_apart: bool,
    instants: VecDeque<u64>,
    /// Whether something has arrived at the node since its last turn.
    pub news: bool,
    turned_at: Option<Nanos>,
    /// Whether orders that lead to the same state are all tried.
    every_order: bool,
    pub tamper: Option<Tamper>,
}

fn config(scenario: Scenario) -> NodeConfig {
    NodeConfig {
        reductions: if scenario.reductions { Reductions::default() } else { Reductions::none() },
        pool_bytes: 64 << 10,
        headers: 16,
        longest_lifetime: Lifetime::micros(300),
        longest_wait: LONGEST_WAIT,
        violations: ViolationLimits { free_max: 1 << 20, bar_after: 1 << 20, ..ViolationLimits::default() },
        spare_queue_pairs: 1,
        windows_ready: 2,
        windows_max: 64,
        linger_max: LINGER,
        postponed_max: 8,
        clients_max: 8,
        audit: true,
        ..NodeConfig::default()
    }
}

fn port(machine: usize) -> NetworkPort {
    // No packet is lost, so no NIC may give up waiting.
    NetworkPort { address: port_address(machine), first_packet: 0, patience: Lifetime::seconds(3600) }
}

/// Setting up the world.
impl World {
    /// Creates the world at the beginning of a race.
    ///
    /// # Panics
    /// The node does not start or admits no client, which no race is about.
    pub fn new(scenario: Scenario, every_order: bool, tamper: Option<Tamper>) -> Self {
        let Cast { roles, instants, nic_apart } = scenario.cast();
        let mut nic: SoftNic<_> = SoftNic::default();
        nic.core().join(port(0));
        let mut nic = NodeNic { nic, hook: Disturbance::new(Dice::new(0, 0)) };
        nic.hook.completions_max = 64;
        let config = config(scenario);
        let (linger, longest) = (config.linger_max, config.longest_lifetime);
        let node = Node::new(&mut nic, config, Incarnation(1), [7; 32]).expect("a node of the world starts");
        let mut oracle = Oracle::default();
        let pool = nic.hook.pool.as_ref().map_or(0, |(pool, _)| portcullis_nic::Memory::length(pool));
        oracle.node_started(0, pool, linger, longest);
        let queues = || roles.iter().map(|_| Default::default()).collect();
        let mut world = Self {
            now: BEGINNING,
            nic,
            node,
            actors: Vec::new(),
            oracle,
            watch: Watch::new(scenario.reductions),
            lines: None,
            common: Common::default(),
            to_node: queues(),
            to_client: queues(),
            put_off: VecDeque::new(),
            next_reply: vec![0; roles.len()],
            racing: false,
            nic_apart,
            instants: instants.iter().copied().collect(),
            news: true,
            turned_at: None,
            every_order,
            tamper,
        };
        for role in &roles {
            world.enter(role);
        }
        for (number, role) in roles.iter().enumerate() {
            world.actors[number].script.extend(&role.prologue);
            world.act_at_once();
            world.settle();
            if number == 0 {
                let first = &world.actors[0];
                let object = first.held.as_ref().map(portcullis_client::Permission::object);
                world.common = Common { object, lease: first.lease.clone() };
            }
        }
        for (actor, role) in world.actors.iter_mut().zip(&roles) {
            let ready = actor.pending() == 0 && actor.held.is_some() != role.prologue.is_empty();
            assert!(ready, "the prologue of {scenario:?} fails: {:?}", actor.told);
            actor.script.extend(&role.script);
            actor.told.clear();
        }
        world.racing = true;
        world.act_at_once();
        world
    }

    fn enter(&mut self, role: &Role) {
        let size = EndpointSize {
            chunk_queue_pairs: 0,
            data_queue_pairs: u32::try_from(DATA_QUEUE_PAIRS).unwrap_or(1),
            send_depth: 8,
            control_depth: 8,
            message_bytes: 128,
            arena_bytes: 4 << 10,
        };
        let (number, now) = (self.actors.len(), self.moment());
        let mut nic: SoftNic<_> = SoftNic::default();
        nic.core().join(port(1 + number));
        let nic = SharedNic::new(nic);
        let let_in = "the node admits a client of the world";
        let admission = self.node.admit(&mut self.nic, &role.tenant.to_string(), now).expect(let_in);
        let process = u32::try_from(number).unwrap_or(0);
        let (node_side, own) = ((&mut self.node, &mut self.nic), nic.clone());
        let (endpoint, ends, id) = join(node_side, admission, process, (own, size), now).expect(let_in);
        let (control, data) = endpoint.addresses().expect(let_in);
        let session = self.oracle.session_began(0, role.tenant, false, now);
        let limits = ClientConfig { use_spares: true, operations_max: 8, backlog_max: 8 };
        let mut library = Client::new(endpoint, limits).expect(let_in);
        library.poll(now);
        let mut actor = Actor::new(nic, library, session);
        actor.id = Some(id);
        actor.ends = ends;
        for (place, address) in actor.queue_pairs.iter_mut().zip([control].iter().chain(&data)) {
            *place = address.number;
        }
        self.actors.push(actor);
    }
}

/// The moves.
impl World {
    /// Returns the time that all clocks show.
    pub fn moment(&self) -> Moment {
        Moment(self.now / 1000)
    }

    /// Returns all moves that are possible now. Among moves that commute, the one after which the checkers demand
    /// more is first.
    pub fn moves(&self) -> Vec<Move> {
        let mut moves = Vec::new();
        if self.news || self.is_due() {
            moves.push(Move::NodeTurn);
        }
        if self.nic.nic.waits_for_time() {
            moves.push(Move::NodeNic);
        }
        for queue_pair in (0..QUEUE_PAIRS).rev() {
            for (client, queues) in self.to_node.iter().enumerate() {
                let head = queues[queue_pair].front();
                if head.is_some_and(|head| !(self.racing && asks_for_rebuild(head))) {
                    moves.push(Move::ToNode { client, queue_pair });
                }
            }
        }
        for (client, actor) in self.actors.iter().enumerate() {
            for (queue_pair, queue) in self.to_client[client].iter().enumerate() {
                let Some(head) = queue.front() else { continue };
                let timeless = is_timeless(head);
                let last = Move::ToClient { client, queue_pair, timeless };
                if timeless && actor.is_nearly_done() && !self.every_order {
                    // All other moves commute with it: no other order need be tried.
                    return vec![last];
                }
                moves.push(last);
            }
            if actor.next_act().is_some() {
                moves.push(Move::Act { client });
            }
            if actor.library.is_none() && actor.id.is_some() {
                moves.push(Move::LetGo { client });
            }
        }
        if !self.instants.is_empty() {
            moves.push(Move::Clock);
        }
        moves
    }

    /// Whether something is due at the node and the node has not had a turn since.
    fn is_due(&self) -> bool {
        // A turn just before is tried as well. It must do nothing.
        let soon = Moment(self.moment().0 + 1);
        self.turned_at != Some(self.now) && self.node.next_wake().is_some_and(|at| at <= soon)
    }

    /// Performs a move.
    pub fn perform(&mut self, chosen: Move) {
        self.say(|| describe(chosen));
        match chosen {
            Move::ToNode { client, queue_pair } => {
                if let Some(packet) = self.to_node[client][queue_pair].pop_front() {
                    self.reach_node(client, &packet);
                }
            }
            Move::ToClient { client, queue_pair, .. } => {
                if let Some(packet) = self.to_client[client][queue_pair].pop_front() {
                    self.reach_client(client, &packet);
                }
            }
            Move::Act { client } => self.act(client),
            Move::NodeTurn => self.turn_node(),
            Move::NodeNic => self.turn_nic(),
            Move::LetGo { client } => self.let_go(client),
            Move::Clock => {
                if let Some(at) = self.instants.pop_front() {
                    self.now = BEGINNING + at * MICROSECOND;
                }
            }
        }
    }

    /// Performs all possible moves, in one order, until only time can pass.
    pub fn settle(&mut self) {
        loop {
            while let Some(packet) = self.put_off.pop_front() {
                self.reach_its_end(&packet);
            }
            let chosen = self.moves().into_iter().find(|&it| it != Move::Clock);
            let Some(chosen) = chosen else { return };
            self.perform(chosen);
        }
    }

    pub fn say(&mut self, line: impl FnOnce() -> String) {
        if self.lines.is_some() {
            let line = format!("{:>5} µs  {}", (self.now - BEGINNING) / MICROSECOND, line());
            self.lines.iter_mut().for_each(|lines| lines.push(line.clone()));
        }
    }

    pub fn note(&mut self, flaw: Option<Flaw>) {
        if let Some((promise, what)) = flaw {
            self.oracle.fail(promise, self.now, what);
        }
    }
}

/// The clients' actions.
impl World {
    /// Lets all clients take the actions whose moment does not matter.
    pub fn act_at_once(&mut self) {
        let whenever = self.every_order && self.racing;
        let hurries = |act: Act| !act.hesitates() && !whenever;
        for client in 0..self.actors.len() {
            while self.actors[client].next_act().is_some_and(hurries) {
                self.act(client);
            }
        }
    }

    fn act(&mut self, client: usize) {
        let clocks = (self.now, self.moment());
        let next = self.actors[client].next_act();
        self.say(|| format!("         {next:?}"));
        self.actors[client].act(&mut self.oracle, clocks, &self.common);
        if self.actors[client].library.is_none() {
            self.to_client[client].iter_mut().for_each(VecDeque::clear);
        }
        self.turn_client_nic(client);
    }

    /// Gives the node turns until it finds nothing more to do. Another turn would find nothing either.
    fn turn_node(&mut self) {
        let now = self.moment();
        self.turned_at = Some(self.now);
        self.news = false;
        loop {
            let worked = self.node.turn(&mut self.nic, now);
            let touches = self.take_touches();
            self.oracle.node_turned(0, now);
            self.read_audit(now);
            self.oracle.node_touched(0, &touches, self.now, now);
            self.say(|| format!("         touches {touches:x?}"));
            if !worked {
                break;
            }
        }
        if self.node.poll_evicted().is_some() {
            self.oracle.fail(Promise::Service, self.now, "the node disconnects an honest client".to_owned());
        }
        if !self.nic_apart {
            self.turn_nic();
        }
    }

    fn turn_nic(&mut self) {
        let mut out = Vec::new();
        let worked = self.nic.nic.turn_at(nic_time(self.now));
        self.nic.nic.core().take_outgoing(&mut out);
        self.news |= worked;
        self.send_out(out);
    }

    pub fn take_touches(&self) -> Vec<crate::memory::Touch> {
        self.nic.hook.pool.as_ref().map(|(_, touches)| touches.take()).unwrap_or_default()
    }

    fn read_audit(&mut self, now: Moment) {
        while let Some(record) = self.node.poll_audit() {
            let of = self.actors.iter().find(|actor| actor.id.is_some() && actor.id == record.client);
            match (record.event, of) {
                (AuditEvent::Violation, Some(actor)) => self.oracle.violation_audited(actor.session),
                (AuditEvent::Bar, _) => {
                    let tenant = record.tenant.as_ref().and_then(|name| name.parse().ok());
                    let until = record.until.unwrap_or(now);
                    self.oracle.tenant_barred(0, tenant.unwrap_or(0), (record.at, until), self.now);
                }
                _ => {}
            }
            self.say(|| format!("         notes {:?} {:?}", record.event, record.permission));
        }
    }

    /// Makes the node detach a client.
    pub fn let_go(&mut self, client: usize) {
        let now = self.moment();
        let Some(id) = self.actors[client].id else { return };
        self.node.detach(&mut self.nic, id, now);
        // The audit records are read before the client's id is forgotten.
        self.read_audit(now);
        self.actors[client].id = None;
        let touches = self.take_touches();
        self.oracle.session_ended(self.actors[client].session, now);
        self.oracle.node_touched(0, &touches, self.now, now);
        self.news = true;
    }
}
