//! Where an attack takes place: a node on the RDMA device, and honest clients of two tenants.

use crate::attacker::Attacker;
use crate::audit::Audit;
use crate::honest::Honest;
use portcullis::host::{Host, HostConfig, RdmaConfig, RdmaListen};
use portcullis::{
    Allocate, DeviceChoice, Guarantee, Lifetime, Mechanism, NodeConfig, NodeSecurity, Session,
    SessionOptions, ViolationLimits,
};
use rand::{SeedableRng, rngs::StdRng};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The tenant that the attacker acts for.
pub const RED: &str = "red";
/// A tenant that only keeps to the rules.
pub const BLUE: &str = "blue";

/// How long anything that must happen may take before the test counts as failed. Nothing waits that long.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// One attack at a time: the device's objects are counted, and two cores are to be enough for a node, an attacker and
/// the honest clients.
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

/// A node that forgives what is not the point of a test. Regions hold on every device.
pub fn lenient() -> NodeConfig {
    let violations = ViolationLimits { free_max: 1 << 20, ..ViolationLimits::default() };
    NodeConfig {
        mechanism: Mechanism::MemoryRegion,
        pool_bytes: 16 << 20,
        longest_lifetime: Lifetime::seconds(60),
        violations,
        ..NodeConfig::default()
    }
}

/// The same with windows, which Soft-RoCE does not hold to their range: that is tried by one test alone.
pub fn windows() -> NodeConfig {
    NodeConfig { mechanism: Mechanism::MemoryWindow, ..lenient() }
}

/// A node that clients of RED come to over the network, and its audit log.
pub fn node(node: NodeConfig, folder: &Path) -> Host {
    node_on(DeviceChoice::default(), node, folder)
}

/// The same on a device of several.
pub fn node_on(device: DeviceChoice, node: NodeConfig, folder: &Path) -> Host {
    let red = RdmaListen {
        address: "127.0.0.1:0".to_owned(),
        security: NodeSecurity::Plain,
        plain_anywhere: false,
        tenant: Some(RED.to_owned()),
    };
    let allow_unenforced = vec![Guarantee::WindowRange];
    let rdma = RdmaConfig { device, listen: vec![red], allow_unenforced, ..RdmaConfig::default() };
    let audit = Some(folder.join("audit"));
    let config = HostConfig { node, rdma: Some(rdma), audit, ..HostConfig::default() };
    Host::start(config).expect("a node starts")
}

impl Stage {
    /// A lenient node, beside an honest client of the attacked tenant and one of another.
    pub fn set() -> Self {
        Self::with(lenient(), &[RED, BLUE])
    }

    /// A node, and an honest client for each tenant named.
    pub fn with(config: NodeConfig, honest: &[&str]) -> Self {
        let floor = alone();
        let folder = tempfile::tempdir().expect("a folder");
        let host = node(config, folder.path());
        let options = || SessionOptions { arena_bytes: 1 << 20, ..SessionOptions::default() };
        let start = |(seed, tenant): (u64, &&str)| {
            Honest::start(host.connect(tenant, options()).expect("a session"), seed)
        };
        let honest = (1..).zip(honest).map(start).collect();
        let stage = Self { honest, host, folder, _floor: floor };
        stage.others_go_on(1);
        stage
    }

    /// Where RED's clients come to.
    pub fn address(&self) -> String {
        self.host.rdma_addresses()[0].to_string()
    }

    /// What the node has written down.
    pub fn audit(&self) -> Audit {
        Audit::read(&self.folder.path().join("audit"))
    }

    /// An attacker with queue pairs.
    pub fn attacker(&self) -> Attacker {
        Attacker::attach(&self.address())
    }

    pub fn session(&self, tenant: &str) -> Session {
        self.host.connect(tenant, SessionOptions::default()).expect("a session")
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

    /// Waits until the node has charged RED with so many violations since it started, and makes sure that it charged
    /// nobody else, and RED with no more.
    pub fn assert_charged(&self, violations: u64) {
        wait_for("violations to be counted", || self.host.counters().violations >= violations);
        wait_for("violations to be written down", || self.audit().violations(RED) >= violations);
        let audit = self.audit();
        assert_eq!(self.host.counters().violations, violations, "{audit}");
        assert_eq!((audit.violations(RED), audit.all_violations()), (violations, violations), "{audit}");
    }

    /// The attacker is gone: the others have gone on, nothing is left behind, and the node serves the next.
    pub fn clear(mut self) {
        self.others_go_on(5);
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
        let mut session = self.session(tenant);
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
