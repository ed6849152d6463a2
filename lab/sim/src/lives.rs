//! The lives of nodes and clients: nodes start and stop, clients attach, leave and are evicted, and faults happen.

use crate::application::{Application, Purpose, Structure};
use crate::clock::{MICROSECOND, MILLISECOND, Nanos};
use crate::cluster::Event;
use crate::cluster::{Cluster, EndOf, SessionRecord, completion_queues};
use crate::dice::Dice;
use crate::endpoint::{SharedNic, SimEndpoint, join};
use crate::faults::InjectedFault;
use crate::hostile::Hostile;
use crate::hosts::{RunningNode, Stay, Work};
use crate::network::{Cut, port_address};
use crate::nic::{Disturbance, NodeNic};
use crate::oracle::{SessionId, WorkerOf};
use crate::over_udp::{NodeEnd, is_over_udp};
use crate::plan::{MESSAGE_BYTES, Programs};
use crate::turns::nic_time;
use crate::worker::Worker;
use portcullis_client::{Client, ClientConfig};
use portcullis_nic::EndpointSize;
use portcullis_node::Node;
use portcullis_protocol::{CHUNK_QUEUE_PAIRS, ClientId, Incarnation, Lifetime, Mechanism};
use portcullis_softnic::SoftNic;
use portcullis_softnic::core::{NetworkPort, ObjectCounts};

/// Bytes of a client's buffers, and of its messages if each carries one request.
const ARENA_BYTES: u64 = 32 << 10;
/// Bytes of the buffers of a client that works on a structure, whose values are long.
const LARGE_ARENA_BYTES: u64 = 4 << 20;
/// The client that creates a run's structure and checks it at the end. It never stops.
const FOUNDER: usize = 0;
/// The first of the random streams from which workers draw their actions with names.
const SHARING: u64 = 5_000_000;
/// The random stream from which a node draws the keys of regions.
const REGION_KEYS: u64 = 4;
/// The longest time, after its NIC's faults, that a node may take to rebuild a pool of chunks, even if its clock is
/// wrong.
pub(crate) const REBUILT_AFTER: Nanos = 30 * MILLISECOND;
/// How long an evicted client takes to learn of its eviction.
const SHOWN_OUT_AFTER: Nanos = 50 * MICROSECOND;

/// Nodes.
impl Cluster {
    fn network_port(&self, machine: usize, first_packet: u64) -> NetworkPort {
        NetworkPort {
            address: port_address(machine),
            first_packet: u32::try_from(first_packet & 0xff_ffff).unwrap_or(0),
            patience: self.node_plan.patience,
        }
    }

    /// Gives a client's machine its NIC.
    pub fn join_network(&mut self, client: usize) {
        let first = self.clients[client].dice.any();
        let port = self.network_port(self.nodes.len() + client, first);
        let mut nic: SoftNic<_> = SoftNic::default();
        nic.core().join(port);
        self.clients[client].nic = SharedNic::new(nic);
    }

    pub fn start_node(&mut self, node: usize) {
        let first = self.nodes[node].dice.any();
        let port = self.network_port(node, first);
        let mut nic: SoftNic<_> = SoftNic::default();
        nic.core().join(port);
        let dice = Dice::new(self.nodes[node].dice.any(), 3);
        let mut nic = NodeNic { nic, hook: Disturbance::new(dice) };
        let config = self.node_plan.config.clone();
        let (chunks, mechanism) = (config.chunks, config.mechanism);
        let (linger, bytes) = (config.linger_max, config.pool_bytes);
        let incarnation = Incarnation(self.nodes[node].dice.any());
        let mut secret = [0; 32];
        secret[..8].copy_from_slice(&incarnation.0.to_le_bytes());
        let Ok(mut started) = Node::new(&mut nic, config, incarnation, secret) else {
            return self.oracle.fail(crate::Promise::Progress, self.now, "a node does not start".to_owned());
        };
        if let Some(number) = self.counts_from() {
            started.dangerous_count_from(number);
        }
        let whole = nic.hook.pool.as_ref().map_or(bytes, |(pool, _)| portcullis_nic::Memory::length(pool));
        self.oracle.node_started(node, whole, linger, self.node_plan.config.longest_lifetime);
        if let (Some(limits), Some((memory, _))) = (chunks, &nic.hook.chunks) {
            let first = 1 + self.node_plan.config.spare_queue_pairs;
            self.oracle.hands_out_chunks(node, limits, memory.unnoted(), first);
        }
        let over_udp = self.end_of_a_node(&mut started, &nic, incarnation);
        let of_pool = objects_of_pool(&mut nic, mechanism);
        let host = &mut self.nodes[node];
        host.running =
            Some(RunningNode { nic, node: started, clients: Default::default(), over_udp, of_pool });
        host.paused_until = 0;
        self.gossip[node] = self.gossip[node].after_restart();
        self.wake_node(node, self.now + 1);
    }

    /// Creates the end for operations without queue pairs, and its table of regions for the node.
    fn end_of_a_node(
        &mut self,
        node: &mut Node<NodeNic>,
        nic: &NodeNic,
        incarnation: Incarnation,
    ) -> Option<NodeEnd> {
        let (pool, _) = nic.hook.pool.as_ref().filter(|_| self.has_clients_over_udp())?;
        let dice = Dice::new(incarnation.0, REGION_KEYS);
        let (end, regions) =
            NodeEnd::new(pool, incarnation, (self.terms.responder, self.terms.regions_max), dice);
        node.lend_regions(regions);
        Some(end)
    }

    /// In every third run the counters cross 32 bits, so that code that compares only the low half is found.
    fn counts_from(&self) -> Option<u64> {
        let near = u64::from(u32::MAX) - self.plan.seed % 16;
        self.plan.seed.is_multiple_of(3).then_some(near)
    }

    fn stop_node(&mut self, node: usize, back: Nanos) {
        self.nodes[node].running = None;
        self.oracle.node_stopped(node);
        self.nodes[node].turn = Default::default();
        self.nodes[node].nic_turn = Default::default();
        self.network.forget(node);
        for session in 0..self.sessions.len() {
            if self.sessions[session].node == node && self.sessions[session].id.take().is_some() {
                self.oracle.node_forgot(session);
                self.let_down(self.sessions[session].client);
                // The connection to the node breaks, and the node's clients notice that.
                let later = self.now + self.nodes[node].dice.magnitude(MICROSECOND..MILLISECOND);
                self.events.put(later, Event::ShownOut(session));
            }
        }
        self.events.put(self.now + back, Event::NodeStart(node));
    }

    pub fn show_out_evicted(&mut self, node: usize) {
        while let Some(id) = self.nodes[node].running.as_mut().and_then(|running| running.node.poll_evicted())
        {
            let session =
                self.nodes[node].running.as_ref().and_then(|running| running.clients.get(&id)).map(|it| it.0);
            if let Some(session) = session {
                self.let_go(session);
                self.events.put(self.now + SHOWN_OUT_AFTER, Event::ShownOut(session));
            }
        }
    }

    /// Informs the checkers and the clients about workers that the node has ended.
    pub fn tell_of_workers(&mut self, node: usize) {
        let Some(running) = &mut self.nodes[node].running else { return };
        let changed = running.nic.hook.take_changed();
        let mut its: Vec<(ClientId, SessionId, bool)> = Vec::new();
        for (id, (session, ends)) in &running.clients {
            let Some(ends) = ends else { continue };
            let mut of_it = changed.iter().filter(|(qp, _)| ends.chunks.asking.contains(qp)).peekable();
            if of_it.peek().is_some() {
                its.push((*id, *session, of_it.all(|&(_, works)| works)));
            }
        }
        its.sort_unstable_by_key(|it| it.0);
        for (_, session, works) in its {
            if !works {
                self.oracle.workers_ended(session, self.now);
            }
            self.wake_client(self.sessions[session].client, self.now + 100);
        }
    }

    /// Makes the node detach a client.
    pub fn let_go(&mut self, session: SessionId) {
        let SessionRecord { node, .. } = self.sessions[session];
        let Some(id) = self.sessions[session].id.take() else { return };
        self.last_let_go = self.now;
        let node_now = self.nodes[node].clock.read(self.now);
        if let Some(running) = &mut self.nodes[node].running {
            running.node.detach(&mut running.nic, id, node_now);
        }
        // The audit records are read before the client's id is forgotten.
        self.read_audit(node, node_now);
        let Some(running) = &mut self.nodes[node].running else { return };
        if let Some((_, Some(ends))) = running.clients.remove(&id) {
            running.nic.hook.let_go(&ends.chunks.asking);
        }
        let touches = running.take_touches();
        self.oracle.session_ended(session, node_now);
        self.oracle.node_touched(node, &touches, self.now, node_now);
        self.trace
            .note(self.now, &[6, session as u64], || format!("node {node} lets go of session {session}"));
        self.wake_node(node, self.now + 1);
    }
}

/// Clients.
impl Cluster {
    pub fn attach(&mut self, client: usize) {
        if self.winding_down || self.clients[client].stay.is_some() || self.clients[client].gone {
            return;
        }
        let node = self.clients[client].dice.index(self.nodes.len());
        if self.enter(client, node).is_none_or(|entered| self.settle_in(client, node, entered).is_none()) {
            let later = self.now + self.clients[client].dice.magnitude(100 * MICROSECOND..2 * MILLISECOND);
            self.events.put(later, Event::Attach(client));
        }
    }

    /// Attaches a session for a client's process: an end and a number.
    fn enter(&mut self, client: usize, node: usize) -> Option<(SessionId, SimEndpoint)> {
        let tenant = self.clients[client].tenant;
        let node_now = self.nodes[node].clock.read(self.now);
        let running = self.nodes[node].running.as_mut()?;
        let admitted = running.node.admit(&mut running.nic, &tenant.to_string(), node_now);
        let admission = match admitted {
            Ok(admission) => admission,
            Err(refusal) => {
                self.oracle.turned_away(node, tenant, refusal, self.now);
                return None;
            }
        };
        if is_over_udp(&self.plan, client) {
            return self.enter_over_udp(client, node, admission, node_now);
        }
        let size = self.end_of_a_client(admission.chunks.is_some());
        let running = self.nodes[node].running.as_mut()?;
        let own = self.clients[client].nic.clone();
        let process = u32::try_from(client).unwrap_or(0);
        let node_side = (&mut running.node, &mut running.nic);
        let (endpoint, ends, id) = join(node_side, admission, process, (own, size), node_now).ok()?;
        let hostile = self.clients[client].hostile;
        let session = self.oracle.session_began(node, tenant, hostile, node_now);
        running.clients.insert(id, (session, Some(ends)));
        self.sessions.push(SessionRecord {
            client,
            node,
            id: Some(id),
            next_reply: 0,
            next_worker_reply: [((0, 0), 0); 2],
            socket: None,
        });
        let machine = self.nodes.len() + client;
        let (control, data) = endpoint.addresses().ok()?;
        let numbered = (0..).map(Some).zip(&data).chain([(None, &control)]);
        for (number, address) in numbered {
            self.by_queue_pair.insert((machine, address.number), EndOf::Session((session, number)));
        }
        for (worker, address) in WorkerOf::ALL.into_iter().zip(endpoint.asking().ok()?) {
            self.by_queue_pair.insert((machine, address.number), EndOf::Worker(session, worker));
        }
        Some((session, endpoint))
    }

    /// Returns the size of a client's end. `asks_nic`: the client requests chunks from the NIC.
    pub fn end_of_a_client(&self, asks_nic: bool) -> EndpointSize {
        let chunk_queue_pairs = if asks_nic { CHUNK_QUEUE_PAIRS } else { 0 };
        let (_, control_depth) = self.node_plan.depths;
        let message_bytes = self.node_plan.message_bytes;
        let buffers = if self.plan.programs.share_a_structure() { LARGE_ARENA_BYTES } else { ARENA_BYTES };
        EndpointSize {
            chunk_queue_pairs: u32::try_from(chunk_queue_pairs).unwrap_or(0),
            data_queue_pairs: 1 + self.node_plan.config.spare_queue_pairs,
            send_depth: self.node_plan.depths.0,
            control_depth,
            message_bytes,
            arena_bytes: buffers + 2 * u64::from(control_depth * (message_bytes - MESSAGE_BYTES)),
        }
    }

    /// Returns the purpose of a client that works on the run's structure.
    fn structure(&self, kind: Structure, client: usize) -> Purpose {
        let lease_min = if self.has_clients_over_udp() { self.terms.lease_min() } else { Lifetime(0) };
        Purpose::Structure {
            kind,
            commons: self.commons.clone(),
            is_founder: client == FOUNDER,
            lease_min,
            values_max: self.plan.values_max,
        }
    }

    fn settle_in(
        &mut self,
        client: usize,
        node: usize,
        (session, endpoint): (SessionId, SimEndpoint),
    ) -> Option<()> {
        let switches = endpoint.switches();
        let longest = self.node_plan.config.longest_lifetime;
        let held = self.plan.held;
        let host = &mut self.clients[client];
        let dice = Dice::new(self.plan.seed, 10_000 + client as u64 * 100 + host.stays);
        host.stays += 1;
        // A pool of chunks that could not be rebuilt is rebuilt a little later.
        let rebuilt = if self.plan.programs == Programs::Chunks { REBUILT_AFTER } else { 0 };
        host.let_down = self.nodes[node].nic_sound_from + rebuilt > self.now;
        if self.plan.programs != Programs::Workers && !host.hostile {
            let config = ClientConfig { operations_max: 64, backlog_max: 64, ..ClientConfig::default() };
            let (purpose, keeper) = match self.plan.programs {
                Programs::Tables => (self.structure(Structure::Table, client), None),
                Programs::Queues => (self.structure(Structure::Queue, client), None),
                Programs::Claims => (self.structure(Structure::Claims, client), None),
                Programs::Blocks => (self.structure(Structure::Blocks, client), None),
                Programs::Chunks => (Purpose::Chunks, None),
                Programs::Workers | Programs::Sessions | Programs::Calls => {
                    (Purpose::Permissions(longest), self.enter(client, node))
                }
            };
            let limits = (self.plan.within, self.plan.kept_limit());
            let ends = ((session, endpoint), keeper);
            let application = Application::start(dice, (config, limits), purpose, ends).ok()?;
            let work = Work::Application(application);
            self.clients[client].stay = Some(Stay { session, node, client: None, work, switches });
            self.wake_client(client, self.now + 1);
            return Some(());
        }
        let work = if host.hostile {
            Work::Hostile(Hostile::new(dice))
        } else {
            let stream = SHARING + client as u64 * 100 + host.stays;
            let names = self.plan.sharing.then(|| (Dice::new(self.plan.seed, stream), self.plan.tenants));
            Work::Honest(Worker::new(dice, held, longest, self.plan.fill, names))
        };
        let use_spares = host.dice.per_mille(850);
        let config = ClientConfig { use_spares, operations_max: 64, backlog_max: 64 };
        let mut library = Client::new(endpoint, config).ok()?;
        library.poll(host.clock.read(self.now));
        host.stay = Some(Stay { session, node, client: Some(library), work, switches });
        self.empty_socket(session);
        self.trace.note(self.now, &[7, client as u64, node as u64], || {
            format!("client {client} attaches to node {node} as session {session}")
        });
        self.wake_client(client, self.now + 1);
        Some(())
    }

    /// Makes a client leave, because its session is over or its work is done.
    pub fn leave(&mut self, client: usize, session: SessionId, lost: bool) {
        let stay = self.clients[client].stay.take();
        let keeper = stay.as_ref().and_then(|stay| stay.work.keeper());
        drop(stay);
        for session in keeper.into_iter().chain([session]) {
            self.oracle.client_ended(session);
            self.let_go(session);
        }
        if lost && !self.winding_down {
            let later = self.now + self.clients[client].dice.magnitude(10 * MICROSECOND..MILLISECOND);
            self.events.put(later, Event::Attach(client));
        }
    }

    /// Informs a client that its session was evicted, or that its node is gone.
    pub fn tell_shown_out(&mut self, session: SessionId) {
        let client = self.sessions[session].client;
        let Some(stay) = &mut self.clients[client].stay else { return };
        let its = match (&mut stay.client, &stay.work) {
            (Some(library), _) if stay.session == session => {
                library.node_gone();
                true
            }
            (_, Work::Application(application)) => application.node_gone(session),
            _ => false,
        };
        if its {
            self.let_down(client);
            self.wake_client(client, self.now + 1);
        }
    }

    /// How long the effects of a fault may last after the fault.
    fn after_shock(&self) -> Nanos {
        2 * self.node_plan.patience.0 * 1000 + 2 * MILLISECOND
    }

    fn let_down(&mut self, client: usize) {
        self.clients[client].let_down = true;
    }

    fn excuse(&mut self, client: usize, until: Nanos) {
        let host = &mut self.clients[client];
        host.excused_until = host.excused_until.max(until);
    }
}

/// Faults.
impl Cluster {
    pub fn apply_fault(&mut self, index: usize) {
        let (_, fault) = self.faults[index];
        if self.winding_down {
            return;
        }
        *self.fault_counts.entry(fault.kind()).or_default() += 1;
        self.trace.note(self.now, &[8, index as u64], || format!("fault: {fault:?}"));
        let now = self.now;
        match fault {
            InjectedFault::ClientStop { client, heard, back } => self.stop_client(client, heard, back),
            InjectedFault::ClientPause { client, time } => {
                self.clients[client].paused_until = now + time;
                // Packets of the pause are seen late.
                self.excuse(client, now + time + self.after_shock());
            }
            InjectedFault::LateCompletions { client, time } => {
                self.clients[client].late_until = now + time;
                self.excuse(client, now + time + self.after_shock());
            }
            InjectedFault::ClientClock { client, ahead, drift } => {
                self.clients[client].clock_off = true;
                self.clients[client].clock.jump(now, ahead);
                self.clients[client].clock.drift(now, drift);
            }
            InjectedFault::NodeStop { node, back } => {
                if self.nodes[node].running.is_some() {
                    self.stop_node(node, back);
                }
            }
            InjectedFault::NodePause { node, time } => {
                self.nodes[node].paused_until = now + time;
                let node_now = self.nodes[node].clock.read(now);
                self.oracle.node_stood_still(node, Lifetime(2 * time / 1000), node_now);
            }
            InjectedFault::NodeFreeze { node, time } => self.freeze_node(node, time),
            InjectedFault::NodeClock { node, ahead, drift } => {
                self.nodes[node].clock_off = true;
                let node_now = self.nodes[node].clock.read(now);
                self.oracle.node_stood_still(node, Lifetime(2 * ahead / 1000 + 2_000), node_now);
                self.nodes[node].clock.jump(now, ahead);
                self.nodes[node].clock.drift(now, drift);
                self.wake_node(node, now + 1);
            }
            InjectedFault::Cut { from, to, time, cut } => self.cut(from, to, time, cut),
            InjectedFault::Path { client, time, habits } => {
                self.paths.attack(self.nodes.len() + client, now + time, habits);
            }
            InjectedFault::Mtu { client, time, narrow } => {
                self.paths.narrow(self.nodes.len() + client, now + time, narrow);
            }
            InjectedFault::Nic { node, time, faults } => self.spoil_nic(node, time, faults),
        }
    }

    fn stop_client(&mut self, client: usize, heard: Nanos, back: Option<Nanos>) {
        if self.plan.programs.share_a_structure() && client == FOUNDER {
            return;
        }
        let Some(stay) = self.clients[client].stay.take() else { return };
        for session in stay.work.keeper().into_iter().chain([stay.session]) {
            self.oracle.client_ended(session);
            self.events.put(self.now + heard, Event::LetGo(session));
        }
        drop(stay);
        let mut out = Vec::new();
        self.clients[client].nic.borrow_mut().turn_at(nic_time(self.now));
        self.clients[client].nic.borrow_mut().core().take_outgoing(&mut out);
        match back {
            Some(back) => self.events.put(self.now + back, Event::Attach(client)),
            None => self.clients[client].gone = true,
        }
    }

    /// Stops a node's processor for a time, in which no packet enters or leaves its NIC.
    fn freeze_node(&mut self, node: usize, time: Nanos) {
        self.nodes[node].paused_until = self.now + time;
        let node_now = self.nodes[node].clock.read(self.now);
        self.oracle.node_stood_still(node, Lifetime(2 * time / 1000), node_now);
        for client in 0..self.clients.len() {
            let machine = self.nodes.len() + client;
            self.cut(machine, node, time, Cut::Held);
            self.cut(node, machine, time, Cut::Held);
        }
    }

    fn cut(&mut self, from: usize, to: usize, time: Nanos, cut: Cut) {
        self.network.disturb(from, to, self.now + time, cut);
        let nodes = self.nodes.len();
        let client = from.max(to) - nodes;
        // Answers may be late by as long again as a NIC waits.
        let patience = 2 * self.node_plan.patience.0 * 1000;
        let slow = if let Cut::Slow(extra) = cut { extra } else { 0 };
        self.excuse(client, self.now + time + slow + patience + MILLISECOND);
    }

    fn spoil_nic(&mut self, node: usize, time: Nanos, faults: crate::nic::NicFaults) {
        self.nodes[node].nic_sound_from = self.now + time;
        if let Some(running) = &mut self.nodes[node].running {
            running.nic.hook.faults = faults;
        }
        for client in 0..self.clients.len() {
            self.let_down(client);
        }
    }
}

/// Returns the objects for chunks that a node without clients has on its NIC.
fn objects_of_pool(nic: &mut NodeNic, mechanism: Mechanism) -> ObjectCounts {
    if nic.hook.chunks.is_none() {
        return ObjectCounts::default();
    }
    let all = nic.nic.core().objects();
    ObjectCounts { completion_queues: all.completion_queues - completion_queues(mechanism), ..all }
}
