//! The plan of a run. It is drawn from the run's seed; shrinking and options change it.

use crate::clock::{MICROSECOND, MILLISECOND, Nanos};
use crate::dice::Dice;
use crate::oracle::{LONGEST_KEEP, LONGEST_WAIT};
use portcullis_node::{AuditEvents, ChunkLimits, NodeConfig, Quota, Reductions, ViolationLimits};
use portcullis_protocol::{Lifetime, Mechanism, PACKED_HEAD_BYTES};

/// The random stream from which the plan itself is drawn.
const PLAN: u64 = 1;
/// The random stream that decides whether objects are shared.
const SHARING: u64 = 4;
/// The random stream from which the pool of chunks is drawn.
const CHUNKS: u64 = 5;
/// The random stream that decides whether a node's NIC has what chains need, such as binds for other queue pairs.
const CHAINS: u64 = 7;
/// The random stream that decides whether control messages carry several requests.
const PACKING: u64 = 9;
/// The random stream that decides how many clients are over UDP, and whether an attacker is on their paths.
const UDP: u64 = 8;

/// Bytes of a control message that carries one request.
pub(crate) const MESSAGE_BYTES: u32 = 128;

/// Kinds of faults, with the names that reports use.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// A client's process ends, and the node learns of it later. Another client takes its place.
    ClientStop,
    /// A client stands still.
    ClientPause,
    /// A client's completions arrive late.
    LateCompletions,
    /// A client's clock jumps, or runs at another rate.
    ClientClock,
    /// A node ends and loses its memory. Another node takes its place.
    NodeStop,
    /// A node's processor stands still, but not its NIC.
    NodePause,
    /// A node's clock jumps, or runs at another rate.
    NodeClock,
    /// A direction of the network loses, holds or delays packets.
    Cut,
    /// A node's NIC fails: binds, windows, regions, rebuilds, polls.
    Nic,
    /// An attacker is on the path of a client over UDP. It loses, keeps, repeats, cuts, alters, reflects and makes up
    /// datagrams.
    Path,
    /// The path of a client over UDP carries no long datagrams for a while, in one direction or both. Only runs that
    /// request this kind have it.
    Mtu,
    /// A node's machine stands still, with its NIC, for longer than the limit of sessions ([`Plan::within`]). No seed draws it.
    NodeFreeze,
}

impl FaultKind {
    /// All kinds of faults.
    pub const ALL: [Self; 12] = [
        Self::ClientStop,
        Self::ClientPause,
        Self::LateCompletions,
        Self::ClientClock,
        Self::NodeStop,
        Self::NodePause,
        Self::NodeClock,
        Self::Cut,
        Self::Nic,
        Self::Path,
        Self::Mtu,
        Self::NodeFreeze,
    ];

    /// The name in reports and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::ClientStop => "client-stop",
            Self::ClientPause => "client-pause",
            Self::LateCompletions => "late-completions",
            Self::ClientClock => "client-clock",
            Self::NodeStop => "node-stop",
            Self::NodePause => "node-pause",
            Self::NodeClock => "node-clock",
            Self::Cut => "cut",
            Self::Nic => "nic",
            Self::Path => "path",
            Self::Mtu => "mtu",
            Self::NodeFreeze => "node-freeze",
        }
    }
}

impl std::str::FromStr for FaultKind {
    type Err = UnknownFaultKind;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().find(|kind| kind.name() == name);
        known.ok_or_else(|| UnknownFaultKind(name.to_owned()))
    }
}

/// The given name is no kind of fault.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "no fault is called {0:?}: use client-stop, client-pause, late-completions, client-clock, node-stop, \
         node-pause, node-clock, cut, nic, path, mtu or node-freeze"
)]
pub struct UnknownFaultKind(String);

/// The kind of a run's honest clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Programs {
    /// Workers, which post requests and never wait.
    #[default]
    Workers,
    /// Programs with sessions, whose calls wait, and keepers.
    Sessions,
    /// Programs that work on one hash table, and die in the middle of it.
    Tables,
    /// Programs that push to one queue and pop from it, and die in the middle of it.
    Queues,
    /// Programs that push to one queue and claim and acknowledge its entries, and die in the middle of it.
    Claims,
    /// Programs that store, look up, read and remove the blocks of one store, and die in the middle of it.
    Blocks,
    /// Programs that allocate chunks, which the nodes' NICs hand out, and die in the middle of it.
    Chunks,
    /// Processes that call each other through shared memory, and die in the middle of it. The nodes are their
    /// servers, and the run has no other part of a cluster. In reports, accesses are calls that were executed, grants
    /// are heaps, and permissions are calls under way on one connection.
    Calls,
}

impl Programs {
    /// All kinds of programs.
    pub const ALL: [Self; 8] = [
        Self::Workers,
        Self::Sessions,
        Self::Tables,
        Self::Queues,
        Self::Claims,
        Self::Blocks,
        Self::Chunks,
        Self::Calls,
    ];

    /// The name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Workers => "workers",
            Self::Sessions => "sessions",
            Self::Tables => "tables",
            Self::Queues => "queues",
            Self::Claims => "claims",
            Self::Blocks => "blocks",
            Self::Chunks => "chunks",
            Self::Calls => "calls",
        }
    }

    /// Whether the programs share a structure in the node's memory.
    pub(crate) fn share_a_structure(self) -> bool {
        matches!(self, Self::Tables | Self::Queues | Self::Claims | Self::Blocks)
    }
}

/// A run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The source of all random numbers.
    pub seed: u64,
    /// Number of nodes.
    pub nodes: usize,
    /// Number of clients, including hostile ones.
    pub clients: usize,
    /// Number of tenants that the clients belong to.
    pub tenants: usize,
    /// Clients that break rules: the last ones.
    pub hostile: usize,
    /// Virtual time in which clients begin work, in ns. What they have begun may end after it.
    pub duration_ns: Nanos,
    /// Kinds of faults that may happen.
    pub faults: Vec<FaultKind>,
    /// Rough number of permissions that each client holds at a time.
    pub held: usize,
    /// The pause between two actions of a client, in ns.
    pub think_ns: Nanos,
    /// Each client first takes all the permissions that it may hold, with leases that outlast the run. This tests size,
    /// not faults.
    pub fill: bool,
    /// The kind of the honest clients.
    pub programs: Programs,
    /// How many of a hundred clients are over UDP, in runs in which clients do not fill up. Each client draws whether
    /// it is over UDP. Honest clients of chunks are not.
    pub udp: u32,
    /// Whether honest clients give objects names and share them with other tenants.
    pub sharing: bool,
    /// How long operations of sessions may wait for their node. `None`, as seeds draw it: as long as it takes.
    pub within: Option<Lifetime>,
    /// The most bytes of a table's values. A value has none of them beyond its first eight, a third, two thirds or all.
    pub values_max: usize,
    /// Whether the run keeps a readable trace.
    pub readable: bool,
}

impl Plan {
    /// Draws the plan of a seed.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        let mut dice = Dice::new(seed, PLAN);
        // A few runs have many clients. Most bugs need only few.
        let clients = if dice.per_mille(30) { 8 + dice.index(24) } else { 2 + dice.index(6) };
        let hostile = if dice.per_mille(700) { 1 + dice.index(2) } else { 0 };
        let mut faults = Vec::new();
        if !dice.per_mille(150) {
            let never = [FaultKind::Path, FaultKind::Mtu, FaultKind::NodeFreeze];
            let others = FaultKind::ALL.into_iter().filter(|kind| !never.contains(kind));
            faults.extend(others.filter(|_| dice.per_mille(350)));
        }
        // The stream is separate, so that the rest of the plan is as it would be without it.
        let mut udp_dice = Dice::new(seed, UDP);
        let udp = match udp_dice.of(0..100) {
            0..75 => 0,
            75..85 => 100,
            _ => u32::try_from(udp_dice.of(10..90)).unwrap_or(50),
        };
        if udp > 0 && udp_dice.per_mille(500) {
            faults.push(FaultKind::Path);
        }
        Self {
            seed,
            nodes: 1 + usize::from(dice.per_mille(250)) + usize::from(dice.per_mille(100)),
            clients,
            tenants: 1 + dice.index(3),
            hostile: hostile.min(clients - 1),
            duration_ns: dice.of(4..16) * MILLISECOND,
            faults,
            held: 1 + dice.index(8),
            think_ns: dice.magnitude(2 * MICROSECOND..60 * MICROSECOND),
            fill: false,
            programs: Programs::Workers,
            udp,
            // The stream is separate, so that the rest of the plan is as it would be without it.
            sharing: Dice::new(seed, SHARING).per_mille(350),
            within: None,
            values_max: VALUES_MAX,
            readable: false,
        }
    }
}

/// The most bytes of a table's values, unless a run requests others. An extent has few blocks for the longer values,
/// so the blocks are soon used again. Beyond 32 KiB values lie in pieces.
const VALUES_MAX: usize = 30 << 10;

/// More violations than any run has.
const FORGIVING: u32 = 1 << 20;

/// The most clients that share a structure: enough for every race, and few enough for a search of their histories.
const CLIENTS_OF_A_STRUCTURE: usize = 4;
/// How much longer a run with a structure takes: one of its operations takes many accesses.
const DURATION_OF_STRUCTURES: u64 = 2;

/// Number of a table's longest values for which its node has room, at least: more than all of its keys have, as half
/// of them are long.
const KEYS_AND_MORE: u64 = 128;

/// How much longer a run with calls takes.
const DURATION_OF_CALLS: u64 = 1_000;

/// Longer than any jump of a clock.
const LATE_GRACE: Lifetime = Lifetime::seconds(60 * 60);

/// The configuration of nodes and network.
#[derive(Clone, Debug)]
pub(crate) struct NodePlan {
    pub config: NodeConfig,
    pub latency: Nanos,
    pub jitter: Nanos,
    /// How long a NIC waits for an answer.
    pub patience: Lifetime,
    /// The most that a clock may drift, in millionths.
    pub drift: i32,
    /// The depths of a client's data queue pairs and of its control queue pair.
    pub depths: (u32, u32),
    /// Bytes of a control message.
    pub message_bytes: u32,
}

impl NodePlan {
    /// Whether violations cost nothing.
    pub fn forgives(&self) -> bool {
        self.config.violations.free_max >= FORGIVING
    }

    pub fn draw(plan: &Plan) -> Self {
        let mut drawn = Self::draw_any(plan);
        if plan.fill {
            drawn.config = roomy(plan, drawn.config);
            drawn.depths = (16, 16);
        }
        if plan.programs.share_a_structure() {
            drawn.config = spacious(plan, drawn.config);
        }
        if plan.programs == Programs::Chunks {
            drawn.config = with_chunks(plan, drawn.config);
        }
        drawn
    }

    fn draw_any(plan: &Plan) -> Self {
        let mut dice = Dice::new(plan.seed, PLAN + 1);
        let mechanism = match dice.of(0..100) {
            0..60 => Mechanism::MemoryWindow,
            60..86 => Mechanism::WindowGroup,
            _ => Mechanism::MemoryRegion,
        };
        let all = dice.per_mille(600);
        let mut flag = || all || dice.per_mille(500);
        let reductions = Reductions { delayed_unbinding: flag(), contiguity: flag(), handover: flag() };
        let scarce = dice.per_mille(300);
        let room = (plan.clients * (plan.held + 2)) as u64;
        let pages = if scarce { dice.of(2..5) } else { 4 + room / 16 };
        let headers = if scarce || dice.per_mille(400) { dice.of(4..24) } else { 64 + 2 * room };
        let each = if mechanism == Mechanism::WindowGroup { 3 } else { 1 };
        let windows = each * if scarce { dice.of(4..40) } else { 256 + 4 * room };
        let narrow = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        let violations = if dice.per_mille(700) {
            ViolationLimits { free_max: FORGIVING, ..ViolationLimits::default() }
        } else if dice.per_mille(500) {
            ViolationLimits {
                free_max: 2,
                bar_after: 3,
                pause_min: Lifetime(50),
                ..ViolationLimits::default()
            }
        } else {
            ViolationLimits { free_again: Lifetime::millis(1), ..ViolationLimits::default() }
        };
        let mut config = NodeConfig {
            mechanism,
            reductions,
            pool_bytes: pages * (64 << 10),
            fill_memory: false,
            chunks: None,
            chunks_ready: None,
            chains: Dice::new(plan.seed, CHAINS).per_mille(500),
            headers: narrow(headers),
            longest_lifetime: Lifetime(dice.magnitude(2_000..20_000)),
            longest_wait: LONGEST_WAIT,
            longest_keep: LONGEST_KEEP,
            objects_max: 1 << 20,
            quota: Quota { permissions_max: if scarce { 12 } else { 1 << 30 }, ..Quota::default() },
            violations,
            recoveries_max: narrow(dice.of(1..4)),
            spare_queue_pairs: narrow(dice.of(0..3)),
            windows_ready: narrow(windows / 4),
            windows_max: narrow(windows),
            window_rest: Lifetime(dice.magnitude(1..2_000)),
            linger_max: Lifetime(dice.magnitude(1..1_000)),
            postponed_max: narrow(if scarce { 4 } else { 64 }),
            clients_max: narrow(plan.clients as u64 * 4 + 4),
            requests_per_turn: narrow(dice.magnitude(1..64)),
            steps_per_turn: narrow(dice.magnitude(2..512)),
            tenant_regions_max: 1 << 14,
            audit: true,
            audit_events: AuditEvents::all(),
            audit_records_max: 1 << 20,
        };
        // Bars end during a run, and a clock that jumps does not turn a late access into a stray.
        config.violations.bar_for = config.longest_lifetime;
        config.violations.late_grace = LATE_GRACE;
        Self {
            config,
            latency: dice.magnitude(500..4_000),
            jitter: dice.magnitude(1..20_000),
            patience: Lifetime(dice.of(400..2_000)),
            drift: i32::try_from(dice.of(0..1_000)).unwrap_or(0),
            depths: (1 << dice.of(1..6), 1 << dice.of(1..5)),
            message_bytes: draw_message_bytes(plan.seed),
        }
    }
}

/// Makes room for everything that the clients may hold at once, and allows leases that outlast the run.
fn roomy(plan: &Plan, config: NodeConfig) -> NodeConfig {
    let permissions = (plan.clients * (plan.held + 8)) as u64;
    let narrow = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    NodeConfig {
        mechanism: Mechanism::MemoryWindow,
        reductions: Reductions::default(),
        pool_bytes: (permissions * 160).next_multiple_of(64 << 10) + (4 << 20),
        headers: narrow(permissions),
        longest_lifetime: Lifetime(24 * 60 * 60 * 1_000_000),
        objects_max: narrow(permissions.max(1 << 20)).min(1 << 24),
        quota: Quota { permissions_max: 1 << 30, objects_max: 1 << 30, ..Quota::default() },
        windows_ready: 64,
        windows_max: narrow(permissions),
        postponed_max: 4096,
        clients_max: narrow(plan.clients as u64 + 4),
        requests_per_turn: 64,
        ..config
    }
}

/// Makes room for a structure, and allows the leases with which its users make it.
fn spacious(plan: &Plan, config: NodeConfig) -> NodeConfig {
    NodeConfig {
        pool_bytes: (plan.values_max as u64 * KEYS_AND_MORE).next_multiple_of(1 << 20).max(24 << 20),
        headers: 1 << 14,
        longest_lifetime: Lifetime::seconds(2),
        quota: Quota { permissions_max: 1 << 30, objects_max: 1 << 30, ..Quota::default() },
        windows_ready: 64,
        windows_max: 1 << 14,
        postponed_max: 64,
        ..config
    }
}

/// Returns the size of control messages: in some runs they carry several requests.
fn draw_message_bytes(seed: u64) -> u32 {
    let mut dice = Dice::new(seed, PACKING);
    let requests = if dice.per_mille(400) { dice.of(2..20) } else { 1 };
    let head = if requests > 1 { PACKED_HEAD_BYTES as u64 } else { 0 };
    u32::try_from(head + requests * u64::from(MESSAGE_BYTES)).expect("messages are short")
}

/// Returns a configuration with a pool of chunks that is often empty.
fn with_chunks(plan: &Plan, config: NodeConfig) -> NodeConfig {
    let mut dice = Dice::new(plan.seed, CHUNKS);
    let chunks = dice.magnitude(1..33);
    let limits =
        ChunkLimits { chunks, chunk_bytes: 8 * dice.magnitude(1..65), client_max: dice.of(1..chunks + 1) };
    let chunks_max = if dice.per_mille(300) { dice.of(1..2 * chunks + 1) } else { u64::MAX };
    NodeConfig {
        chunks: Some(limits),
        chunks_ready: dice.per_mille(350).then(|| dice.of(1..chunks + 1)),
        // If the NIC has no chains, the node's processor hands the chunks out.
        chains: !dice.per_mille(200),
        quota: Quota { chunks_max, ..config.quota },
        ..config
    }
}

impl Plan {
    /// Returns the same run with other honest clients. Clients that share a structure are one tenant of one node. The
    /// node does not stop, since their structure would be lost with it. Their clocks are sound, since what a
    /// structure frees depends on that.
    #[must_use]
    pub fn with(self, programs: Programs) -> Self {
        if programs == Programs::Calls {
            return self.with_calls();
        }
        if !programs.share_a_structure() {
            return Self { programs, ..self };
        }
        let unbearable = [FaultKind::NodeStop, FaultKind::NodeClock, FaultKind::ClientClock];
        let faults = self.faults.into_iter().filter(|kind| !unbearable.contains(kind)).collect();
        let clients = (self.clients - self.hostile).clamp(2, CLIENTS_OF_A_STRUCTURE);
        let duration_ns = self.duration_ns.saturating_mul(DURATION_OF_STRUCTURES);
        Self {
            programs,
            faults,
            clients,
            duration_ns,
            nodes: 1,
            tenants: 1,
            hostile: 0,
            sharing: false,
            ..self
        }
    }

    /// Returns the same run with processes that call each other. They have leases of seconds, so everything takes
    /// longer.
    fn with_calls(self) -> Self {
        let own = [FaultKind::ClientStop, FaultKind::ClientPause, FaultKind::NodeStop, FaultKind::NodePause];
        let faults = self.faults.into_iter().filter(|kind| own.contains(kind)).collect();
        let duration_ns = self.duration_ns.saturating_mul(DURATION_OF_CALLS);
        Self { programs: Programs::Calls, faults, duration_ns, udp: 0, sharing: false, ..self }
    }

    /// Returns the limit of sessions if it can be kept: if no fault makes clients stand still or misread the time.
    pub(crate) fn kept_limit(&self) -> Option<Lifetime> {
        let own = [
            FaultKind::ClientPause,
            FaultKind::LateCompletions,
            FaultKind::ClientClock,
            FaultKind::ClientStop,
        ];
        self.within.filter(|_| !self.faults.iter().any(|kind| own.contains(kind)))
    }

    /// Returns the command that runs exactly this plan again.
    #[must_use]
    pub fn command(&self) -> String {
        let faults: Vec<&str> = self.faults.iter().map(|kind| kind.name()).collect();
        let faults = if faults.is_empty() { "none".to_owned() } else { faults.join(",") };
        let fill = if self.fill { " --fill" } else { "" };
        let programs = match self.programs {
            Programs::Workers => String::new(),
            others => format!(" --programs {}", others.name()),
        };
        // Usually the seed implies it.
        let udp = match self.udp {
            udp if udp == Self::draw(self.seed).with(self.programs).udp => String::new(),
            udp => format!(" --udp {udp}"),
        };
        let own = self.think_ns == Self::draw(self.seed).think_ns;
        let think = if own { String::new() } else { format!(" --think {}", micros(self.think_ns)) };
        let within = self.within.map_or(String::new(), |within| format!(" --within {}us", within.0));
        let values = match self.values_max {
            VALUES_MAX => String::new(),
            others => format!(" --values-max {others}"),
        };
        format!(
            "portcullis-lab sim --seed {} --nodes {} --clients {} --hostile {} --tenants {} --held {} --microseconds {} --faults {faults}{fill}{programs}{udp}{think}{within}{values} --trace",
            self.seed,
            self.nodes,
            self.clients,
            self.hostile,
            self.tenants,
            self.held,
            micros(self.duration_ns),
        )
    }
}

/// Formats the exact time in µs, with a fraction. A run that is shorter by less than one µs may miss a failure.
fn micros(time: Nanos) -> String {
    let (whole, rest) = (time / MICROSECOND, time % MICROSECOND);
    if rest == 0 { whole.to_string() } else { format!("{whole}.{rest:03}") }
}
