//! The cluster: machines, network, checkers, and the loop that moves virtual time.

use crate::alarm::Alarm;
use crate::application::{Commons, LAST_LOOKS, LEASES_OF_A_LOOK, WORDS_OF_LOOKS};
use crate::clock::{Clock, MICROSECOND, MILLISECOND, Nanos};
use crate::dice::Dice;
use crate::endpoint::SharedNic;
use crate::event_queue::EventQueue;
use crate::faults::{self, InjectedFault};
use crate::hosts::{ClientHost, NodeHost};
use crate::lives::REBUILT_AFTER;
use crate::memory::SimMemory;
use crate::network::Network;
use crate::nic::NicFaults;
use crate::oracle::{Allocations, LONGEST_KEEP, Oracle, Promise, QueuePairOf, SessionId, WorkerOf};
use crate::over_udp::{Datagram, Message, NodeEnd, Paths, SharedSocket, Terms, is_over_udp};
use crate::plan::{FaultKind, NodePlan, Plan};
use crate::scene::{Gossip, SimClient};
use crate::trace::Trace;
use portcullis_protocol::{ClientId, Mechanism, Moment};
use portcullis_softnic::core::Packet;
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;

/// The most time, after the work, in which everything that was begun must end.
const WIND_DOWN: Nanos = 400 * MILLISECOND;
/// How long a run waits for the clients of a tenant that has broken rules.
const PATIENCE_WITH_OFFENDERS: Nanos = 200 * MILLISECOND;
/// How long a node may take to tidy up after its last client has left.
const QUIET: Nanos = 2 * MILLISECOND;
/// How long objects of departed tenants may stay, on a node whose clock is slow.
const KEPT: Nanos = 2 * LONGEST_KEEP.0 * MICROSECOND;
/// How long a node may take to free a chunk of a client that is gone.
const FREED: Nanos = 2 * MILLISECOND;
/// How often the checkers look at everything.
const LOOK_EVERY: Nanos = MILLISECOND;

/// A session, as the machines know it.
#[derive(Clone, Debug)]
pub(crate) struct SessionRecord {
    pub client: usize,
    pub node: usize,
    /// The node's number for it while it is attached.
    pub id: Option<ClientId>,
    /// The number of the next control message that the node sends to the session for the first time.
    pub next_reply: u32,
    /// The numbers of the next replies of its two workers, each with the queue pair that sends them: its number and
    /// its first packet.
    pub next_worker_reply: [((u32, u32), u32); 2],
    /// The address and the socket of a client over UDP.
    pub socket: Option<(SocketAddr, SharedSocket)>,
}

/// The session that a queue pair belongs to, and which of the client's queue pairs it is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum EndOf {
    /// A queue pair for control messages or accesses.
    Session(QueuePairOf),
    /// A queue pair for requests to a worker on the node's NIC.
    Worker(SessionId, WorkerOf),
}

/// An event of a run.
#[derive(Debug)]
pub(crate) enum Event {
    /// A packet arrives.
    Packet(Box<Packet>),
    /// A datagram is at the switch or arrives.
    Datagram(Box<Datagram>),
    /// A control message of a client over UDP arrives.
    Message(Box<Message>),
    NodeTurn(usize),
    NodeNic(usize),
    ClientTurn(usize),
    ClientNic(usize),
    /// The fault at this index of the list happens.
    Fault(usize),
    /// A node learns that the client process of a session has ended.
    LetGo(usize),
    Attach(usize),
    NodeStart(usize),
    /// A client learns that its session was evicted, or that its node is gone.
    ShownOut(usize),
    /// The checkers check the cluster.
    Look,
}

#[derive(Debug)]
pub(crate) struct Cluster {
    pub plan: Plan,
    pub node_plan: NodePlan,
    pub now: Nanos,
    pub events: EventQueue<Event>,
    pub network: Network,
    /// The network paths of clients over UDP.
    pub paths: Paths,
    pub terms: Terms,
    pub nodes: Vec<NodeHost>,
    pub clients: Vec<ClientHost>,
    pub oracle: Oracle,
    pub trace: Trace,
    pub gossip: Vec<Gossip>,
    /// State that the programs share, in runs in which they share a structure.
    pub commons: Commons,
    pub sessions: Vec<SessionRecord>,
    /// Sessions, by machine and queue pair number.
    pub by_queue_pair: HashMap<(usize, u32), EndOf>,
    pub faults: Vec<(Nanos, InjectedFault)>,
    pub fault_counts: BTreeMap<FaultKind, u64>,
    pub winding_down: bool,
    /// Time at which a node last detached a client.
    pub last_let_go: Nanos,
    /// The most permissions that the nodes held at any check.
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
                running: None,
                paused_until: 0,
                nic_sound_from: 0,
                clock_off: false,
                turn: Alarm::default(),
                nic_turn: Alarm::default(),
            })
            .collect();
        let clients = (0..plan.clients)
            .map(|client| ClientHost {
                tenant: tenant_of(&plan, client),
                hostile: client >= plan.clients - plan.hostile,
                clock: Clock::new(dice.of(0..1 << 40), drift(&mut dice)),
                dice: Dice::new(plan.seed, 2_000 + client as u64),
                nic: SharedNic::default(),
                stay: None,
                paused_until: 0,
                late_until: 0,
                excused_until: 0,
                let_down: false,
                clock_off: false,
                next_action: 0,
                gone: false,
                turn: Alarm::default(),
                nic_turn: Alarm::default(),
                stays: 0,
            })
            .collect();
        let network = Network::new(node_plan.latency, node_plan.jitter, Dice::new(plan.seed, 51));
        let terms = Terms::draw(&plan, node_plan.latency);
        let mut cluster = Self {
            paths: Paths::new(&plan, &terms),
            terms,
            trace: Trace::new(plan.readable),
            gossip: (0..plan.nodes).map(|_| Gossip::new(plan.tenants + plan.hostile)).collect(),
            commons: Commons::default(),
            now: 0,
            events: EventQueue::default(),
            network,
            nodes,
            clients,
            oracle: Oracle::default(),
            sessions: Vec::new(),
            by_queue_pair: HashMap::new(),
            faults: drawn,
            fault_counts: BTreeMap::new(),
            winding_down: false,
            last_let_go: 0,
            permissions_peak: 0,
            node_plan,
            plan,
        };
        cluster.oracle.forgiving = cluster.node_plan.forgives();
        cluster.oracle.bar_after = cluster.node_plan.config.violations.bar_after;
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

    /// Runs until everything that was begun has ended, or until a promise is broken.
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
        let freed = self.node_plan.config.chunks.map_or(0, |limits| REBUILT_AFTER + FREED * limits.chunks);
        gone && let_go && self.now >= self.last_let_go.max(self.plan.duration_ns) + QUIET + KEPT + freed
            || self.now > self.plan.duration_ns + self.wind_down_takes()
    }

    /// Returns the most time, after the work, in which everything that was begun must end. The founder of a structure
    /// checks it in that time. So the time includes the leases that its sweeps wait for, which are long over UDP on
    /// slow links, and the words that the sweeps change, which take long if packets are lost.
    fn wind_down_takes(&self) -> Nanos {
        if !self.plan.programs.share_a_structure() || !self.has_clients_over_udp() {
            return WIND_DOWN;
        }
        let words = (self.terms.word_takes() * WORDS_OF_LOOKS).as_nanos();
        let leases = u64::from(LAST_LOOKS) * LEASES_OF_A_LOOK * self.terms.lease_min().0 * MICROSECOND;
        WIND_DOWN + leases + Nanos::try_from(words).expect("some seconds")
    }

    pub fn step(&mut self, event: Event) {
        match event {
            Event::Packet(packet) => self.deliver(&packet),
            Event::Datagram(datagram) => self.deliver_datagram(*datagram),
            Event::Message(message) => self.deliver_message(*message),
            Event::NodeTurn(node) => self.node_turn(node),
            Event::NodeNic(node) => self.node_nic_turn(node),
            Event::ClientTurn(client) => self.client_turn(client),
            Event::ClientNic(client) => self.client_nic_turn(client),
            Event::Fault(index) => self.apply_fault(index),
            Event::LetGo(session) => self.let_go(session),
            Event::Attach(client) => self.attach(client),
            Event::NodeStart(node) => self.start_node(node),
            Event::ShownOut(session) => self.tell_shown_out(session),
            Event::Look => self.look(),
        }
    }

    fn wind_down(&mut self) {
        self.winding_down = true;
        self.network.heal();
        self.paths.heal();
        for node in &mut self.nodes {
            node.paused_until = 0;
            if let Some(running) = &mut node.running {
                running.nic.hook.faults = NicFaults::default();
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
        let lives = self.nodes.iter().filter_map(|host| host.running.as_ref());
        let held: u64 = lives.map(|running| running.node.counters().permissions).sum();
        self.permissions_peak = self.permissions_peak.max(held);
        let pools = self.pools();
        self.oracle.look(self.now, &pools, false);
        self.events.put(self.now + LOOK_EVERY, Event::Look);
    }

    /// Makes the clients of tenants that have broken rules leave, since such a tenant may wait for longer than the
    /// run.
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
            let pool = host.running.as_ref()?.nic.hook.pool.as_ref()?;
            Some((pool.0.unnoted(), moment))
        };
        self.nodes.iter_mut().map(pool).collect()
    }

    /// Makes the last checks, after all clients have left.
    pub fn conclude(&mut self) {
        if self.oracle.has_failed() {
            return;
        }
        if let Some((promise, what)) = self.commons.first_wrong() {
            self.oracle.fail(promise, self.now, what);
        }
        let pools = self.pools();
        self.oracle.look(self.now, &pools, true);
        self.oracle.at_rest(self.now);
        for client in 0..self.clients.len() {
            if let Some(stay) = &self.clients[client].stay {
                let what = format!(
                    "client {client}, session {}, has not ended its work: {} under way, {}, {:?}",
                    stay.session,
                    stay.client.as_ref().map_or(0, SimClient::pending),
                    stay.work.summary(),
                    stay.client.as_ref().map(SimClient::counters)
                );
                self.oracle.fail(Promise::Progress, self.now, what);
            }
        }
        for node in 0..self.nodes.len() {
            self.check_rest(node);
        }
    }

    fn check_rest(&mut self, node: usize) {
        let Some(running) = &mut self.nodes[node].running else { return };
        let left = running.node.counters();
        let held = [
            left.permissions,
            left.objects,
            left.bytes_used,
            left.headers_used,
            left.windows,
            left.names,
            left.chunks_held,
        ];
        let there = [left.clients, left.tenants, left.postponed];
        let open = running.over_udp.as_ref().map_or(0, NodeEnd::open_regions);
        let objects = running.nic.nic.core().objects();
        let of_pool = running.of_pool;
        let bare = (objects.domains, objects.keys, objects.queue_pairs)
            == (of_pool.domains, of_pool.keys, of_pool.queue_pairs);
        let queues = completion_queues(running.node.config().mechanism) + of_pool.completion_queues;
        if let Some(Allocations { told, untold }) = self.oracle.chunk_allocations(node)
            && !(told..=told + untold).contains(&left.chunk_allocations)
        {
            let what = format!(
                "node {node} counts {} allocations of chunks, and clients received {told} and did not \
                receive up to {untold}",
                left.chunk_allocations
            );
            self.oracle.fail(Promise::Truth, self.now, what);
        }
        if open > 0 || held != [0; 7] || there != [0; 3] || !bare || objects.completion_queues != queues {
            let what = format!("node {node} keeps {left:?}, its NIC {objects:?}, {open} regions");
            self.oracle.fail(Promise::Rest, self.now, what);
        }
    }
}

impl Cluster {
    /// Whether any client is over UDP.
    pub fn has_clients_over_udp(&self) -> bool {
        (0..self.plan.clients).any(|client| is_over_udp(&self.plan, client))
    }
}

/// Returns the number of completion queues of a node without clients: one for messages, and one for window binds.
pub(crate) fn completion_queues(mechanism: Mechanism) -> usize {
    match mechanism {
        Mechanism::MemoryWindow | Mechanism::WindowGroup => 2,
        _ => 1,
    }
}

/// Returns the tenant of a client. Every second hostile client is a tenant of its own. The others have honest
/// siblings.
fn tenant_of(plan: &Plan, client: usize) -> usize {
    let honest = plan.clients - plan.hostile;
    let own = (client as u64 + plan.seed).is_multiple_of(2);
    if client >= honest && own { plan.tenants + client - honest } else { client % plan.tenants }
}
