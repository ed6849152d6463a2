//! A node under attack, on either fabric: the honest clients beside the attacker, and the checks at the end.

use crate::honest::Honest;
use portcullis::host::Host;
use portcullis::{Allocate, Lifetime, Session, SessionOptions};
use rand::{SeedableRng, rngs::StdRng};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The tenant that the attacker acts for.
pub const RED: &str = "red";
/// A tenant whose clients all keep the rules.
pub const BLUE: &str = "blue";

/// Time that a test waits for an event before the test fails. No successful test waits that long.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// The lock by which only one attack runs at a time. The tests count descriptors and the device's objects, and two
/// cores must suffice for a node, an attacker and the honest clients.
static FLOOR: Mutex<()> = Mutex::new(());

/// Keeps other tests from running at the same time.
pub fn alone() -> MutexGuard<'static, ()> {
    FLOOR.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A node and its honest clients.
pub struct Besieged {
    // This field is first: the clients end before their node does.
    pub honest: Vec<Honest>,
    pub host: Host,
    folder: tempfile::TempDir,
    _floor: MutexGuard<'static, ()>,
}

impl Besieged {
    /// Starts a node by `start`, with its files in a folder, and one honest client for each named tenant.
    pub fn new(start: impl FnOnce(&Path) -> Host, honest: &[&str]) -> Self {
        let floor = alone();
        let folder = tempfile::tempdir().expect("a folder");
        let host = start(folder.path());
        let options = || SessionOptions { arena_bytes: 1 << 20, ..SessionOptions::default() };
        let start = |(seed, tenant): (u64, &&str)| {
            Honest::start(host.connect(tenant, options()).expect("a session"), seed)
        };
        let honest = (1..).zip(honest).map(start).collect();
        let besieged = Self { honest, host, folder, _floor: floor };
        besieged.others_go_on(1);
        besieged
    }

    /// Returns the folder of the node's files.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Opens a session of a tenant.
    pub fn session(&self, tenant: &str) -> Session {
        self.host.connect(tenant, SessionOptions::default()).expect("a session")
    }

    /// Waits until each honest client has done `operations` more. Panics if one has failed or makes no progress.
    pub fn others_go_on(&self, operations: u64) {
        let before: Vec<u64> = self.honest.iter().map(Honest::operations).collect();
        for (honest, before) in self.honest.iter().zip(before) {
            wait_for("an honest client to go on", || {
                assert!(!honest.has_failed(), "an honest client met an error");
                honest.operations() >= before + operations
            });
        }
    }

    /// Checks, after the attacker has gone, that each honest client does `operations` more, that nothing is left behind,
    /// and that the node serves the next client.
    pub fn end(mut self, operations: u64) {
        self.others_go_on(operations);
        for honest in &mut self.honest {
            honest.stop();
        }
        self.honest.clear();
        self.assert_empty();
        self.assert_serves("green");
        self.assert_empty();
    }

    /// Checks that the node serves a new client.
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

/// Yields the processor until `done` returns true. Panics if that takes far too long.
pub fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < PATIENCE, "waited {PATIENCE:?} for {what}");
        std::thread::yield_now();
    }
}

/// Makes the generator of a test's random numbers. Prints the seed.
pub fn random() -> StdRng {
    let given = std::env::var("PORTCULLIS_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(rand::random::<u64>);
    println!("PORTCULLIS_SEED={seed}");
    StdRng::seed_from_u64(seed)
}
