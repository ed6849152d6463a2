//! Where an attack takes place: a node, a tenant that attacks, and honest clients of that tenant and of another.

use crate::attacker::Attacker;
use crate::honest::Honest;
use portcullis::host::{Host, HostConfig, Listen, PortLimits};
use portcullis::{Allocate, Lifetime, NodeConfig, Quota, SessionOptions, ViolationLimits};
use rand::{SeedableRng, rngs::StdRng};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The tenant that the attacker acts for.
pub const RED: &str = "red";
/// A tenant that only keeps to the rules.
pub const BLUE: &str = "blue";

/// How long anything that must happen may take before the test counts as failed. Nothing waits that long.
const PATIENCE: Duration = Duration::from_secs(20);

/// One attack at a time: descriptors are counted, and two cores are to be enough for a node, an attacker and the
/// honest clients.
static FLOOR: Mutex<()> = Mutex::new(());

/// Keeps other tests from running beside this one.
pub fn alone() -> MutexGuard<'static, ()> {
    FLOOR.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A node and its honest clients.
pub struct Stage {
    // First: they end before their node does.
    honest: Vec<Honest>,
    pub host: Host,
    folder: tempfile::TempDir,
    _floor: MutexGuard<'static, ()>,
}

/// A node that forgives what is not the point of a test.
pub fn lenient() -> NodeConfig {
    let violations = ViolationLimits { free_max: 1 << 24, ..ViolationLimits::default() };
    let quota = Quota { bytes_max: 16 << 20, permissions_max: 4096, ..Quota::default() };
    let longest_lifetime = Lifetime::seconds(60);
    NodeConfig { pool_bytes: 64 << 20, longest_lifetime, violations, quota, ..NodeConfig::default() }
}

impl Stage {
    /// A lenient node, beside an honest client of the attacked tenant and one of another.
    pub fn set() -> Self {
        Self::with(lenient(), &[RED, BLUE])
    }

    /// A node, and an honest client for each tenant named.
    pub fn with(node: NodeConfig, honest: &[&str]) -> Self {
        Self::of(HostConfig { node, ..HostConfig::default() }, honest)
    }

    /// A lenient node with ports of its own, without honest clients.
    pub fn with_ports(port: PortLimits) -> Self {
        Self::of(HostConfig { node: lenient(), port, ..HostConfig::default() }, &[])
    }

    fn of(config: HostConfig, honest: &[&str]) -> Self {
        let floor = alone();
        let folder = tempfile::tempdir().expect("a folder");
        let listen = [RED, BLUE]
            .map(|tenant| Listen { path: folder.path().join(tenant), tenant: Some(tenant.to_owned()) })
            .to_vec();
        let audit = Some(folder.path().join("audit"));
        let admin = Some(folder.path().join("admin"));
        let config = HostConfig { listen, audit, admin, ..config };
        let host = Host::start(config).expect("a node starts");
        let honest = (1..)
            .zip(honest)
            .map(|(seed, tenant)| {
                let options = SessionOptions { arena_bytes: 1 << 20, ..SessionOptions::default() };
                Honest::start(host.connect(tenant, options).expect("a session"), seed)
            })
            .collect();
        let stage = Self { host, honest, folder, _floor: floor };
        stage.others_go_on(1);
        stage
    }

    /// The socket of a tenant's clients.
    pub fn socket(&self, tenant: &str) -> PathBuf {
        self.folder.path().join(tenant)
    }

    /// Where the audit log goes.
    pub fn audit(&self) -> PathBuf {
        self.folder.path().join("audit")
    }

    /// The operator's socket.
    pub fn admin_socket(&self) -> PathBuf {
        self.folder.path().join("admin")
    }

    /// An attacker with a port.
    pub fn attacker(&self) -> Attacker {
        Attacker::attach(&self.socket(RED))
    }

    /// Waits until each honest client has done `operations` more. Panics if one has failed or does not get on.
    pub fn others_go_on(&self, operations: u64) {
        let before: Vec<u64> = self.honest.iter().map(Honest::operations).collect();
        for (honest, before) in self.honest.iter().zip(before) {
            wait_for("an honest client to go on", || {
                assert!(!honest.has_failed(), "an honest client met an error");
                honest.operations() >= before + operations
            });
        }
    }

    /// Operations that the honest clients have done so far. Panics if one has failed.
    pub fn operations(&self) -> u64 {
        assert!(!self.honest.iter().any(Honest::has_failed), "an honest client met an error");
        self.honest.iter().map(Honest::operations).sum()
    }

    /// The attacker is gone: the others have gone on, nothing is left behind, and the node serves the next.
    pub fn clear(mut self) {
        self.others_go_on(20);
        for honest in &mut self.honest {
            honest.stop();
        }
        self.honest.clear();
        self.assert_empty();
        self.assert_serves("green");
        self.assert_empty();
    }

    /// The node serves a client that comes now.
    pub fn assert_serves(&self, tenant: &str) {
        let mut session = self.host.connect(tenant, SessionOptions::default()).expect("a session");
        let ask = Allocate::bytes(5000).lifetime(Lifetime::seconds(5));
        let object = session.allocate(ask).expect("memory");
        session.write(&object, 1234, b"still here").expect("a write");
        let mut got = [0; 10];
        session.read(&object, 1234, &mut got).expect("a read");
        assert_eq!(&got, b"still here");
        session.revoke(object).expect("it has not ended");
    }

    fn assert_empty(&self) {
        wait_for("the node to be empty", || {
            let it = self.host.counters();
            let held = [
                it.clients,
                it.tenants,
                it.permissions,
                it.objects,
                it.bytes_used,
                it.headers_used,
                it.windows,
                it.postponed,
            ];
            held == [0; 8]
        });
    }
}

/// Gives others the processor until something is so. Panics when it takes far too long.
pub fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < PATIENCE, "waited {PATIENCE:?} for {what}");
        std::thread::yield_now();
    }
}

/// Random numbers of a test, whose seed it prints.
pub fn random() -> StdRng {
    let given = std::env::var("PORTCULLIS_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(rand::random::<u64>);
    println!("PORTCULLIS_SEED={seed}");
    StdRng::seed_from_u64(seed)
}

/// Open descriptors of this process.
pub fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

/// Memory of this process that is in use, in bytes.
pub fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string(Path::new("/proc/self/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.expect("the kernel says how much memory is in use") * 1024
}
