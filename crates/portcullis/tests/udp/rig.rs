//! A node that accepts clients over UDP, without certificates: each tenant has a port of its own.

use crate::audit::Audit;
use crate::honest::Honest;
use portcullis::host::{Host, HostConfig, Listen, NetworkListen, ThreadCount, UdpConfig};
use portcullis::{NodeConfig, NodeSecurity, Session, SessionOptions, connect, connect_with};
use std::path::PathBuf;
use std::time::{Duration, Instant};

pub const RED: &str = "red";
pub const BLUE: &str = "blue";

/// Lanes of a node, unless a test needs another number: more threads than there are processors to spare.
const LANES: ThreadCount = ThreadCount::Fixed(2);

/// Time that a test waits for an event before the test fails. No successful test waits that long.
pub const LONG: Duration = Duration::from_secs(20);

pub struct Rig {
    pub host: Host,
    folder: tempfile::TempDir,
}

fn listen(tenant: &str) -> NetworkListen {
    NetworkListen {
        address: "127.0.0.1:0".to_owned(),
        security: NodeSecurity::Plain,
        plain_anywhere: false,
        tenant: Some(tenant.to_owned()),
    }
}

pub fn config() -> NodeConfig {
    NodeConfig { pool_bytes: 16 << 20, ..NodeConfig::default() }
}

impl Rig {
    pub fn new() -> Self {
        Self::with(config(), |_| {})
    }

    pub fn with(node: NodeConfig, change: impl FnOnce(&mut UdpConfig)) -> Self {
        let (listen, lanes) = (vec![listen(RED), listen(BLUE)], LANES);
        let mut udp = UdpConfig { listen, lanes, ..UdpConfig::default() };
        change(&mut udp);
        let folder = tempfile::tempdir().expect("a folder");
        let sockets = [RED, BLUE]
            .map(|tenant| Listen { path: folder.path().join(tenant), tenant: Some(tenant.to_owned()) });
        let audit = Some(folder.path().join("audit"));
        let config =
            HostConfig { node, udp: Some(udp), listen: sockets.to_vec(), audit, ..HostConfig::default() };
        Self { host: Host::start(config).expect("a node"), folder }
    }

    /// Returns the `HOST:PORT` for a tenant's clients.
    pub fn place(&self, tenant: &str) -> String {
        let place = [RED, BLUE].iter().position(|it| *it == tenant).expect("a tenant of this rig");
        self.host.network_addresses()[place].to_string()
    }

    /// Returns the address at which a tenant's clients connect.
    pub fn address(&self, tenant: &str) -> String {
        format!("udp:{}", self.place(tenant))
    }

    /// Returns the socket for a tenant's clients on this machine.
    fn socket(&self, tenant: &str) -> PathBuf {
        self.folder.path().join(tenant)
    }

    pub fn session(&self, tenant: &str) -> Session {
        connect(&self.address(tenant)).expect("a session")
    }

    /// Attaches a client of a tenant in shared memory.
    pub fn local_session(&self, tenant: &str) -> Session {
        connect(&format!("shm:{}", self.socket(tenant).display())).expect("a session")
    }

    pub fn session_with(&self, tenant: &str, options: SessionOptions) -> Session {
        connect_with(&self.address(tenant), options).expect("a session")
    }

    /// Starts a client of a tenant that keeps the rules and checks every byte that it reads.
    pub fn honest(&self, tenant: &str) -> Honest {
        Honest::start(self.session(tenant), 7)
    }

    pub fn audit(&self) -> Audit {
        Audit::read(&self.folder.path().join("audit"))
    }

    /// Waits until the node has charged RED with this many violations. Checks that no more violations are charged.
    pub fn assert_charged(&self, violations: u64) {
        wait_for("violations to be counted", || self.host.counters().violations >= violations);
        wait_for("violations to be written down", || self.audit().violations(RED) >= violations);
        let audit = self.audit();
        assert_eq!(self.host.counters().violations, violations, "{audit}");
        assert_eq!((audit.violations(RED), audit.all_violations()), (violations, violations), "{audit}");
    }

    /// Waits until nothing of any client is left on the node.
    pub fn assert_empty(&self) {
        let mut held = Vec::new();
        wait_for("the node to be empty", || {
            let it = self.host.counters();
            held = vec![
                it.clients,
                it.tenants,
                it.permissions,
                it.objects,
                it.bytes_used,
                it.headers_used,
                it.postponed,
            ];
            held.iter().all(|&it| it == 0)
        });
    }
}

/// Waits until an honest client has done some operations more. Panics if it has failed.
pub fn goes_on(honest: &Honest) {
    let before = honest.operations();
    wait_for("an honest client to go on", || {
        assert!(!honest.has_failed(), "an honest client met an error");
        honest.operations() >= before + 20
    });
}

/// Yields the processor until `done` returns true. Panics if that takes far too long.
pub fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < LONG, "waited {LONG:?} for {what}");
        std::thread::yield_now();
    }
}
