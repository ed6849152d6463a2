//! The processes, the messages between them, and the loop that moves virtual time.

use super::client::ClientLife;
use super::directory::Directory;
use super::judge::Judge;
use super::methods::Scene;
use super::server::ServerLife;
use crate::clock::{MICROSECOND, MILLISECOND, Nanos};
use crate::dice::Dice;
use crate::event_queue::EventQueue;
use crate::plan::{FaultKind, Plan};
use crate::trace::Trace;
use portcullis_directory::{HeapRange, LeaseId, Name, Quota, Space};
use portcullis_memory::Mapping;
use portcullis_protocol::TenantName;
use portcullis_rpc::heap::HEAP_ADDRESSES;
use portcullis_rpc::{Heap, Owner};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// The random stream of the world. The streams of processes have higher numbers.
const WORLD: u64 = 200;
/// How long the processes have for their last calls, without faults.
const REST: Nanos = 14_000 * MILLISECOND;
/// How often heaps without a holder are taken back.
const RECLAIM_EVERY: Nanos = 300 * MILLISECOND;
/// The longest that a message between two processes takes, including the notice that a process is gone.
const MESSAGE_MAX: Nanos = 20 * MILLISECOND;
/// How long a process stands still at most.
const STANDSTILL_MAX: Nanos = 4_000 * MILLISECOND;
/// Factor between the plan's pauses and the pauses between two steps here. The plan's pauses are for accesses, and
/// these are for processes that may miss a lease.
const SLOWER: u64 = 1_000;
/// The shortest pause between two steps. `THINK_MAX` is the longest.
const THINK_MIN: Nanos = 100 * MICROSECOND;
const THINK_MAX: Nanos = 60_000 * MILLISECOND;

/// The random terms of a run.
#[derive(Debug)]
pub(super) struct Terms {
    pub time_to_live: Nanos,
    pub heap_bytes: u64,
    pub think: Nanos,
    /// Whether the last server breaks the rules.
    pub is_last_server_lying: bool,
}

/// A process of the run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Process {
    Server(usize),
    Client(usize),
}

/// Offer of a connection to a client.
#[derive(Debug)]
pub(super) struct Offer {
    pub socket: u64,
    pub heap: Heap,
    pub range: HeapRange,
    pub ring: Mapping,
    pub server_lease: LeaseId,
    /// The heap of all clients, its addresses, and the client's owner number in it.
    pub shared: Option<(Heap, HeapRange, Owner)>,
}

/// A message from one process to another.
#[derive(Debug)]
pub(super) enum Message {
    /// A client requests a connection.
    Knock {
        client: usize,
        life: u64,
    },
    Offer(Box<Offer>),
    Refused,
    /// The client has mapped the connection's memory.
    Mapped {
        socket: u64,
    },
    /// The server serves the connection.
    Welcome {
        socket: u64,
    },
    /// The other end is closed, by its process or because its process has ended.
    Closed {
        socket: u64,
    },
}

#[derive(Debug)]
enum Event {
    Step(Process, u64),
    Message(Process, u64, Message),
    Start(Process),
    Reclaim,
}

/// A connection, as the machine knows it.
#[derive(Debug)]
pub(super) struct Socket {
    /// The server and its life.
    pub server: (usize, u64),
    /// The client and its life.
    pub client: (usize, u64),
    /// Whether one end breaks the rules.
    pub is_hostile: bool,
    /// Number of calls that were begun.
    pub begun: u64,
    /// Number of calls that were replied to.
    pub replied: u64,
}

/// A process, whether it lives or not.
#[derive(Debug)]
pub(super) struct Slot<L> {
    pub tenant: TenantName,
    /// How often it was started.
    pub lives: u64,
    pub life: Option<Box<L>>,
    pub inbox: VecDeque<Message>,
    pub dice: Dice,
}

/// Next state of a process after a step.
#[derive(Clone, Copy, Debug)]
pub(super) enum Next {
    /// The process takes its next step at this time.
    At(Nanos),
    /// The process is dead, and is restarted at this time.
    Dead(Nanos),
}

/// The whole simulated system.
#[derive(Debug)]
pub(super) struct World {
    pub plan: Plan,
    pub terms: Terms,
    pub now: Nanos,
    events: EventQueue<Event>,
    pub dice: Dice,
    pub trace: Trace,
    pub judge: Judge,
    pub directory: Directory,
    pub scene: Arc<Scene>,
    pub servers: Vec<Slot<ServerLife>>,
    pub clients: Vec<Slot<ClientLife>>,
    pub sockets: BTreeMap<u64, Socket>,
    pub next_id: u64,
    pub faults: BTreeMap<FaultKind, u64>,
}

impl World {
    pub fn new(plan: Plan) -> Self {
        let mut dice = Dice::new(plan.seed, WORLD);
        // The space has few addresses, so that they are reused.
        let start = HEAP_ADDRESSES.start;
        let space =
            Space::new(start..start + (16 << 20), 64 << 10, 1 << 20).expect("there is room for heaps");
        let heap_bytes = 64 << (10 + dice.of(0..3));
        let is_scarce = dice.per_mille(400);
        // This is enough that a server, a client and the heap of all clients always have room.
        let heaps = if is_scarce { dice.of(2..8) } else { 1 << 20 };
        let all = if is_scarce { dice.of(4..5 + 3 * plan.clients as u64) } else { 1 << 20 };
        let quota = Quota {
            process_bytes: heap_bytes * heaps,
            tenant_bytes: heap_bytes * all,
            names: u64::MAX,
            leases: u64::MAX,
        };
        let terms = Terms {
            time_to_live: dice.of(1..4) * 1_000 * MILLISECOND,
            heap_bytes,
            think: plan.think_ns.saturating_mul(SLOWER).clamp(THINK_MIN, THINK_MAX),
            is_last_server_lying: plan.nodes > 1 && plan.hostile > 0 && dice.per_mille(600),
        };
        let tenant = |number: usize| TenantName::new(&format!("t{}", number % plan.tenants)).expect("a name");
        let stream = |number: u64| Dice::new(plan.seed, WORLD + 1 + number);
        let servers = (0..plan.nodes).map(|it| Slot::new(tenant(it), stream(it as u64))).collect();
        let honest = plan.clients - plan.hostile.min(plan.clients);
        let clients = (0..plan.clients).map(|it| {
            let tenant = if it < honest { tenant(it) } else { TenantName::new("mallory").expect("a name") };
            Slot::new(tenant, stream(1_000 + it as u64))
        });
        let clients = clients.collect();
        let directory = Directory::new(space, quota);
        let trace = Trace::new(plan.readable);
        Self {
            plan,
            terms,
            now: 0,
            events: EventQueue::default(),
            dice,
            trace,
            judge: Judge::default(),
            directory,
            scene: Arc::default(),
            servers,
            clients,
            sockets: BTreeMap::new(),
            next_id: 1,
            faults: BTreeMap::new(),
        }
    }

    /// Whether all faults are over, so that processes bring their work to an end.
    pub fn is_resting(&self) -> bool {
        self.now >= self.plan.duration_ns
    }

    /// Whether a client breaks the rules.
    pub fn is_hostile(&self, client: usize) -> bool {
        client >= self.plan.clients - self.plan.hostile.min(self.plan.clients)
    }

    /// Whether a server breaks the rules.
    pub fn is_lying(&self, server: usize) -> bool {
        self.terms.is_last_server_lying && server + 1 == self.plan.nodes
    }

    /// The name of a server's channel.
    pub fn name(&self, server: usize) -> Name {
        Name::new(&format!("{}/calls{server}", self.servers[server].tenant.as_str())).expect("a name")
    }

    pub fn note(&mut self, numbers: &[u64], text: impl FnOnce() -> String) {
        self.trace.note(self.now, numbers, text);
    }

    /// Whether a fault of this kind happens now. `per_mille` is its probability in thousandths.
    pub fn strikes(&mut self, kind: FaultKind, per_mille: u64, dice: &mut Dice) -> bool {
        let strikes = !self.is_resting() && self.plan.faults.contains(&kind) && dice.per_mille(per_mille);
        if strikes {
            *self.faults.entry(kind).or_default() += 1;
        }
        strikes
    }

    /// Draws how long a process stands still.
    pub fn standstill(dice: &mut Dice) -> Nanos {
        dice.magnitude(50 * MILLISECOND..STANDSTILL_MAX)
    }

    fn put(&mut self, at: Nanos, event: Event) {
        self.events.put(at.max(self.now), event);
    }

    /// Sends a message to a process. It is delivered only if the process is still in that life when it arrives.
    pub fn send(&mut self, to: Process, life: u64, message: Message, dice: &mut Dice) {
        let at = self.now + dice.magnitude(MICROSECOND..MESSAGE_MAX);
        self.put(at, Event::Message(to, life, message));
    }

    /// Closes a process's end of a connection, and notifies the other end.
    pub fn close(&mut self, socket: u64, by: Process, dice: &mut Dice) {
        let Some(Socket { server, client, .. }) = self.sockets.get(&socket) else { return };
        let (other, life) = match by {
            Process::Server(_) => (Process::Client(client.0), client.1),
            Process::Client(_) => (Process::Server(server.0), server.1),
        };
        self.send(other, life, Message::Closed { socket }, dice);
    }

    /// Runs until the time for the last calls is over, or a promise is broken.
    pub fn run(&mut self) {
        for server in 0..self.servers.len() {
            self.put(0, Event::Start(Process::Server(server)));
        }
        for client in 0..self.clients.len() {
            let at = self.dice.of(0..200 * MILLISECOND);
            self.put(at, Event::Start(Process::Client(client)));
        }
        self.put(RECLAIM_EVERY, Event::Reclaim);
        let end = self.plan.duration_ns.saturating_add(REST);
        while self.judge.failures.is_empty()
            && let Some((at, event)) = self.events.next_before(end)
        {
            (self.now, self.judge.now) = (at, at);
            self.handle(event);
        }
        if self.judge.failures.is_empty() {
            (self.now, self.judge.now) = (end, end);
            self.conclude();
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Step(process, life) if self.lives(process) == Some(life) => self.step(process),
            Event::Message(to, life, message) if self.lives(to) == Some(life) => match to {
                Process::Server(server) => self.servers[server].inbox.push_back(message),
                Process::Client(client) => self.clients[client].inbox.push_back(message),
            },
            Event::Start(process) => self.start(process),
            Event::Reclaim => {
                self.directory.reclaim(self.now, &mut self.judge);
                self.put(self.now + RECLAIM_EVERY, Event::Reclaim);
            }
            // The process of the event has ended.
            Event::Step(..) | Event::Message(..) => {}
        }
    }

    /// Returns the number of the life that a process is in, if it is alive.
    fn lives(&self, process: Process) -> Option<u64> {
        match process {
            Process::Server(server) => self.servers[server].living(),
            Process::Client(client) => self.clients[client].living(),
        }
    }

    fn start(&mut self, process: Process) {
        let life = match process {
            Process::Server(server) => {
                let scene = Arc::clone(&self.scene);
                self.servers[server].start(|| ServerLife::new(&scene))
            }
            Process::Client(client) => self.clients[client].start(ClientLife::default),
        };
        self.note(&[1, life], || format!("{process:?} starts, for the {life}th time"));
        self.put(self.now, Event::Step(process, life));
    }

    fn step(&mut self, process: Process) {
        let next = match process {
            Process::Server(server) => self.step_of_server(server),
            Process::Client(client) => self.step_of_client(client),
        };
        match next {
            Next::At(at) => {
                let life = self.lives(process).expect("it lives on");
                self.put(at.max(self.now + 1), Event::Step(process, life));
            }
            Next::Dead(again) => {
                self.note(&[2], || format!("{process:?} dies"));
                self.put(again, Event::Start(process));
            }
        }
    }

    /// Checks the final state. All faults have been over for long, so everything must have come to its end.
    fn conclude(&mut self) {
        for client in 0..self.clients.len() {
            self.conclude_client(client);
        }
        for server in 0..self.servers.len() {
            self.conclude_server(server);
        }
        // The leases of processes that have died are over as well.
        self.now += self.terms.time_to_live + STANDSTILL_MAX;
        self.judge.now = self.now;
        self.directory.conclude(self.now, &mut self.judge);
    }
}

impl<L> Slot<L> {
    fn new(tenant: TenantName, dice: Dice) -> Self {
        Self { tenant, lives: 0, life: None, inbox: VecDeque::new(), dice }
    }

    /// Returns the number of the life that the process is in, if it is alive.
    pub fn living(&self) -> Option<u64> {
        self.life.is_some().then_some(self.lives)
    }

    fn start(&mut self, life: impl FnOnce() -> L) -> u64 {
        self.lives += 1;
        self.inbox.clear();
        self.life = Some(Box::new(life()));
        self.lives
    }
}
