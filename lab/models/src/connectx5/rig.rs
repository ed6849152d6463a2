//! The machines of the paper's cluster in virtual time: a memory node with one NIC and a real node on each core, and
//! real clients around it. The rig charges their work with the inputs' costs. The output is the performance that they
//! achieve.

use super::ends::{ModelClient, machine_at, soft_nic};
use super::inputs::Inputs;
use super::metered::{Meter, MeteredNic, Tally};
use super::pipe::Pipe;
use crate::time::{MICROSECOND, Nanos};
use portcullis_client::{Client, ClientConfig};
use portcullis_nic::{EndpointSize, VerbsError};
use portcullis_node::{Node, NodeConfig};
use portcullis_protocol::{Incarnation, Moment};
use portcullis_sim::{Alarm, Dice, EventQueue, SharedNic, SimEndpoint};
use portcullis_softnic::core::{Packet, PacketBody, Response, WireRequest};
use std::cell::RefCell;
use std::fmt::Debug;
use std::rc::Rc;

/// The seed of everything random in the model.
pub(super) const SEED: u64 = 2023;

/// The only tenant of a model's run.
const TENANT: &str = "model";

/// A program on a client's machine.
pub(super) trait Program: Debug {
    /// Called when something has arrived, or at the requested time. Returns the time of the next call if nothing
    /// arrives.
    fn turn(&mut self, now: Nanos) -> Option<Nanos>;
}

/// The work of a client whose library the rig polls.
pub(super) trait Driver: Debug {
    /// Called after the poll. Returns the time of the next call if nothing arrives.
    fn act(&mut self, client: &mut ModelClient, now: Nanos) -> Option<Nanos>;
}

/// A client and its driver.
#[derive(Debug)]
struct Driven {
    client: ModelClient,
    driver: Rc<RefCell<dyn Driver>>,
}

impl Program for Driven {
    fn turn(&mut self, now: Nanos) -> Option<Nanos> {
        self.client.poll(moment(now));
        self.driver.borrow_mut().act(&mut self.client, now)
    }
}

/// The work that the memory node has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Work {
    pub tally: Tally,
    pub control_messages: u64,
    pub grants: u64,
    pub violations: u64,
    /// Requests that the clients' NICs have sent to the node's: accesses and messages.
    pub requests: u64,
    /// The time for which cores were busy, in ns, summed over all cores.
    pub busy: Nanos,
}

impl Work {
    pub fn since(&self, before: &Self) -> Self {
        Self {
            tally: self.tally.since(&before.tally),
            control_messages: self.control_messages - before.control_messages,
            grants: self.grants - before.grants,
            violations: self.violations - before.violations,
            requests: self.requests - before.requests,
            busy: self.busy - before.busy,
        }
    }
}

/// A manager's core. It runs a node of its own, because the paper partitions the memory among the managers.
#[derive(Debug)]
struct Core {
    nic: MeteredNic,
    node: Node<MeteredNic>,
    busy_until: Nanos,
    busy: Nanos,
    turn: Alarm,
    clients: u64,
    /// Heartbeats so far.
    beats: u64,
}

#[derive(Debug)]
struct Host {
    machine: usize,
    nic: SharedNic,
    program: Box<dyn Program>,
    turn: Alarm,
    dice: Dice,
    /// Time at which the client's last packet arrives. Packets keep their order.
    last_arrival: Nanos,
}

#[derive(Debug)]
enum Event {
    /// A packet arrives.
    Packet(Box<Packet>),
    CoreTurn(usize),
    /// The NIC takes the requests that a turn of this core has posted.
    CoreNic(usize),
    HostTurn(usize),
}

/// The cluster.
#[derive(Debug)]
pub(super) struct Rig {
    inputs: Inputs,
    pub now: Nanos,
    events: EventQueue<Event>,
    cores: Vec<Core>,
    hosts: Vec<Host>,
    /// The NIC's unit for requests to the cores. `outbound` is the unit for requests from them.
    inbound: Pipe,
    outbound: Pipe,
    machines: Vec<Pipe>,
    bind_unit: Pipe,
    /// Time at which each of the parallel registrations is finished.
    registrars: Vec<Nanos>,
    /// If set: how often the node sends each client's queue pair a heartbeat.
    heartbeat: Option<Nanos>,
    /// Requests of the clients' NICs so far.
    requests: u64,
}

fn moment(now: Nanos) -> Moment {
    Moment(now / 1000)
}

impl Rig {
    /// Creates a memory node whose cores run nodes with this configuration. No client is attached.
    ///
    /// # Panics
    /// A node rejects the configuration, which is a bug of the model.
    pub fn new(inputs: &Inputs, config: &NodeConfig, heartbeat: Option<Nanos>) -> Self {
        let count = usize::try_from(inputs.cores).unwrap_or(1);
        let cores = (0..count)
            .map(|core| {
                let mut nic = MeteredNic { nic: soft_nic(core), hook: Meter::new(*inputs) };
                let incarnation = Incarnation(core as u64);
                let node = Node::new(&mut nic, config.clone(), incarnation, [7; 32])
                    .expect("the model's configuration is sound");
                Core { nic, node, busy_until: 0, busy: 0, turn: Alarm::default(), clients: 0, beats: 0 }
            })
            .collect();
        let pipe = || Pipe::new(inputs.nic_operations);
        Self {
            now: 0,
            events: EventQueue::default(),
            cores,
            hosts: Vec::new(),
            inbound: pipe(),
            outbound: pipe(),
            machines: (0..inputs.machines).map(|_| pipe()).collect(),
            bind_unit: Pipe::new(inputs.binds_of_a_nic),
            registrars: vec![0; usize::try_from(inputs.registrations).unwrap_or(1).max(1)],
            heartbeat,
            requests: 0,
            inputs: *inputs,
        }
    }

    pub fn cores(&self) -> usize {
        self.cores.len()
    }

    /// Attaches a client that the rig polls, on a machine, to a core's node. Attaching takes no time.
    ///
    /// # Panics
    /// The simulated NICs are too small, which is a bug of the model.
    pub fn attach(
        &mut self,
        machine: usize,
        core: usize,
        (queue_pairs, config): (u32, ClientConfig),
        driver: Rc<RefCell<dyn Driver>>,
    ) {
        let size = EndpointSize {
            chunk_queue_pairs: 0,
            data_queue_pairs: queue_pairs,
            send_depth: 16,
            control_depth: 8,
            message_bytes: 192,
            arena_bytes: 32 << 10,
        };
        self.attach_program(machine, core, size, |endpoint| {
            let client = Client::new(endpoint, config).expect("the arena is large enough");
            Box::new(Driven { client, driver })
        });
    }

    /// Attaches any program on a machine to a core's node. Attaching takes no time.
    ///
    /// # Panics
    /// As [`Rig::attach`].
    pub fn attach_program(
        &mut self,
        machine: usize,
        core: usize,
        size: EndpointSize,
        start: impl FnOnce(SimEndpoint) -> Box<dyn Program>,
    ) {
        let number = self.hosts.len();
        let nic = SharedNic::new(soft_nic(self.cores.len() + number));
        let endpoint = self.join(core, nic.clone(), size).expect("a simulated NIC has room");
        self.hosts.push(Host {
            machine,
            nic,
            program: start(endpoint),
            turn: Alarm::default(),
            dice: Dice::new(SEED, 100_000 + number as u64),
            last_arrival: 0,
        });
    }

    fn join(
        &mut self,
        core: usize,
        shared: SharedNic,
        size: EndpointSize,
    ) -> Result<SimEndpoint, VerbsError> {
        let now = moment(self.now);
        let it = &mut self.cores[core];
        it.clients += 1;
        let full = |_| VerbsError::Exhausted { what: "clients", limit: 0 };
        let admission = it.node.admit(&mut it.nic, TENANT, now).map_err(full)?;
        SimEndpoint::join(&mut it.node, &mut it.nic, admission, 0, (shared, size), now)
    }

    /// Lets the idle nodes fill their pools of windows, and calls every client for the first time.
    pub fn start(&mut self) {
        for core in &mut self.cores {
            while core.node.turn(&mut core.nic, moment(self.now)) {}
        }
        self.call_all(MICROSECOND);
    }

    /// Calls every client at a random moment in the next `spread` ns.
    pub fn call_all(&mut self, spread: Nanos) {
        for host in 0..self.hosts.len() {
            let at = self.now + 1 + self.hosts[host].dice.of(0..spread + 1);
            self.wake_host(host, at);
        }
    }

    /// Returns the work that the memory node has done so far.
    pub fn work(&self) -> Work {
        let mut work = Work { requests: self.requests, ..Work::default() };
        for core in &self.cores {
            let counters = core.node.counters();
            work.tally.add(&core.nic.hook.tally);
            work.control_messages += counters.control_messages;
            work.grants += counters.grants;
            work.violations += counters.violations;
            work.busy += core.busy;
        }
        work
    }

    /// Runs until `done` returns true, until no event is left, or until `latest`. Returns whether `done` has returned
    /// true.
    pub fn run(&mut self, latest: Nanos, mut done: impl FnMut() -> bool) -> bool {
        while !done() {
            let Some((at, event)) = self.events.next() else { return false };
            self.now = at;
            if at > latest {
                // The event happens when the run continues.
                self.events.put(at, event);
                self.now = latest;
                return done();
            }
            self.step(event);
        }
        true
    }

    fn step(&mut self, event: Event) {
        match event {
            Event::Packet(packet) => self.deliver(&packet),
            Event::CoreTurn(core) => self.core_turn(core),
            Event::CoreNic(core) => self.core_nic_turn(core),
            Event::HostTurn(host) => {
                if self.hosts[host].turn.ring(self.now) {
                    self.host_turn(host);
                }
            }
        }
    }

    fn wake_host(&mut self, host: usize, at: Nanos) {
        let at = at.max(self.now);
        if self.hosts[host].turn.set(at) {
            self.events.put(at, Event::HostTurn(host));
        }
    }

    fn wake_core(&mut self, core: usize, at: Nanos) {
        let at = at.max(self.cores[core].busy_until).max(self.now);
        if self.cores[core].turn.set(at) {
            self.events.put(at, Event::CoreTurn(core));
        }
    }

    fn deliver(&mut self, packet: &Packet) {
        let Some(to) = machine_at(packet.to.port) else { return };
        if to < self.cores.len() {
            let core = &mut self.cores[to].nic.nic;
            core.core().receive(packet, moment(self.now));
            self.send_from_core(to);
            if let PacketBody::Request { request: WireRequest::Send { .. }, .. } = packet.body {
                self.wake_core(to, self.now);
            }
        } else {
            let host = to - self.cores.len();
            self.hosts[host].nic.borrow_mut().core().receive(packet, moment(self.now));
            self.host_turn(host);
        }
    }

    fn host_turn(&mut self, host: usize) {
        let now = self.now;
        let it = &mut self.hosts[host];
        it.nic.borrow_mut().turn_at(moment(now));
        let next = it.program.turn(now);
        it.nic.borrow_mut().turn_at(moment(now));
        let mut out = Vec::new();
        it.nic.borrow_mut().core().take_outgoing(&mut out);
        let machine = it.machine;
        for packet in out {
            let is_answer = matches!(packet.body, PacketBody::Response(_));
            self.requests += u64::from(!is_answer);
            let left = if is_answer { now } else { self.machines[machine].pass(now + self.inputs.client_ns) };
            let it = &mut self.hosts[host];
            let spread = it.dice.of(0..self.inputs.spread_ns + 1);
            let there = (left + self.inputs.network_ns / 2 + spread).max(it.last_arrival + 1);
            it.last_arrival = there;
            let served = if is_answer { there } else { self.inbound.pass(there) };
            self.events.put(served, Event::Packet(Box::new(packet)));
        }
        if let Some(next) = next {
            self.wake_host(host, next);
        }
    }

    fn send_from_core(&mut self, core: usize) {
        let mut out = Vec::new();
        self.cores[core].nic.nic.core().take_outgoing(&mut out);
        for packet in out {
            let left = match packet.body {
                // The NIC answers a valid access at once; its firmware takes longer to refuse one.
                PacketBody::Response(Response::Refused(_)) => {
                    (self.now + self.inputs.report_ns).saturating_sub(self.inputs.network_ns)
                }
                PacketBody::Response(_) => self.now,
                PacketBody::Request { .. } => self.outbound.pass(self.now),
            };
            self.events.put(left + self.inputs.network_ns / 2, Event::Packet(Box::new(packet)));
        }
    }

    /// Lets the NIC take the requests that a turn has posted.
    fn core_nic_turn(&mut self, core: usize) {
        self.cores[core].nic.nic.turn_at(moment(self.now));
        self.send_from_core(core);
    }

    fn core_turn(&mut self, core: usize) {
        if !self.cores[core].turn.ring(self.now) {
            return;
        }
        if self.cores[core].busy_until > self.now {
            return self.wake_core(core, self.now);
        }
        self.core_nic_turn(core);
        let it = &mut self.cores[core];
        it.nic.hook.now = self.now;
        let (rpcs, tally) = (it.node.counters().control_messages, it.nic.hook.tally);
        let worked = it.node.turn(&mut it.nic, moment(self.now));
        let rpcs = it.node.counters().control_messages - rpcs;
        let done = it.nic.hook.tally.since(&tally);
        if !worked {
            let wake = it.node.next_wake().map(|moment| moment.0.saturating_mul(1000));
            let wake = wake.map(|wake| wake.max(self.now + MICROSECOND));
            let end = it.nic.hook.next_end().map(|end| end.max(self.now + 1));
            if let Some(at) = [wake, end].into_iter().flatten().min() {
                self.wake_core(core, at);
            }
            return;
        }
        let ended = self.now + self.beat(core) + self.charge(rpcs, &done);
        let it = &mut self.cores[core];
        it.nic.hook.settle(ended, &mut self.bind_unit);
        it.busy += ended - self.now;
        it.busy_until = ended;
        self.events.put(ended, Event::CoreNic(core));
        self.wake_core(core, ended);
    }

    /// Charges the heartbeats that are due: each is posted, passes the NIC, and its completion is polled. Returns
    /// the core's time.
    fn beat(&mut self, core: usize) -> Nanos {
        let Some(every) = self.heartbeat else { return 0 };
        let it = &mut self.cores[core];
        let due = self.now / every * it.clients;
        let missed = due.saturating_sub(it.beats);
        it.beats = due;
        for _ in 0..missed {
            self.outbound.pass(self.now);
        }
        missed * self.inputs.round_ns
    }

    /// Returns the time that a turn takes on its core.
    fn charge(&mut self, rpcs: u64, done: &Tally) -> Nanos {
        let inputs = &self.inputs;
        let copying = done.copied * 1000 / inputs.copy_bytes.max(1);
        let own = inputs.round_ns + rpcs * inputs.rpc_ns + done.posting_ns + copying;
        let flags = done.flags * inputs.flags_ns + done.recoveries * inputs.recover_ns;
        let regions = done.registered * inputs.register_ns + done.deregistered * inputs.deregister_ns;
        if regions == 0 {
            return own + flags;
        }
        let Some(registrar) = self.registrars.iter_mut().min() else { return own + flags + regions };
        *registrar = (*registrar).max(self.now + own) + regions;
        *registrar - self.now + flags
    }
}
