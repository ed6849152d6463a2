//! The setting of an attack: a node, a tenant that attacks, and honest clients of that tenant and of another.

use crate::attacker::Attacker;
use crate::besieged::Besieged;
use crate::honest::Honest;
use portcullis::host::{Host, HostConfig, Listen, PortLimits};
use portcullis::{Lifetime, NodeConfig, Quota, ViolationLimits};
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};

pub use crate::besieged::{BLUE, RED, alone, random, wait_for};

/// A node on the software NIC and its honest clients.
pub struct Rig(Besieged);

/// A configuration that tolerates many violations, for tests that are not about their cost.
pub fn lenient() -> NodeConfig {
    let violations = ViolationLimits { free_max: 1 << 24, ..ViolationLimits::default() };
    let quota = Quota { bytes_max: 16 << 20, permissions_max: 4096, ..Quota::default() };
    let longest_lifetime = Lifetime::seconds(60);
    NodeConfig { pool_bytes: 64 << 20, longest_lifetime, violations, quota, ..NodeConfig::default() }
}

impl Rig {
    /// Starts a lenient node with one honest client of the attacked tenant and one of another tenant.
    pub fn new() -> Self {
        Self::with(lenient(), &[RED, BLUE])
    }

    /// Starts a node with one honest client for each named tenant.
    pub fn with(node: NodeConfig, honest: &[&str]) -> Self {
        Self::of(HostConfig { node, ..HostConfig::default() }, honest)
    }

    /// Starts a lenient node with these limits on ports, without honest clients.
    pub fn with_ports(port: PortLimits) -> Self {
        Self::of(HostConfig { node: lenient(), port, ..HostConfig::default() }, &[])
    }

    fn of(config: HostConfig, honest: &[&str]) -> Self {
        let start = |folder: &Path| {
            let listen = [RED, BLUE]
                .map(|tenant| Listen { path: folder.join(tenant), tenant: Some(tenant.to_owned()) })
                .to_vec();
            let (audit, admin) = (Some(folder.join("audit")), Some(folder.join("admin")));
            Host::start(HostConfig { listen, audit, admin, ..config }).expect("a node starts")
        };
        Self(Besieged::new(start, honest))
    }

    /// Returns the socket for a tenant's clients.
    pub fn socket(&self, tenant: &str) -> PathBuf {
        self.folder().join(tenant)
    }

    /// Returns the path of the audit log.
    pub fn audit(&self) -> PathBuf {
        self.folder().join("audit")
    }

    /// Returns the operator's socket.
    pub fn admin_socket(&self) -> PathBuf {
        self.folder().join("admin")
    }

    /// Attaches an attacker with a port.
    pub fn attacker(&self) -> Attacker {
        Attacker::attach(&self.socket(RED))
    }

    /// Returns the number of operations that the honest clients have done so far. Panics if one has failed.
    pub fn operations(&self) -> u64 {
        assert!(!self.honest.iter().any(Honest::has_failed), "an honest client met an error");
        self.honest.iter().map(Honest::operations).sum()
    }

    /// Ends the test by [`Besieged::end`].
    pub fn clear(self) {
        self.0.end(20);
    }
}

impl Deref for Rig {
    type Target = Besieged;

    fn deref(&self) -> &Besieged {
        &self.0
    }
}

impl DerefMut for Rig {
    fn deref_mut(&mut self) -> &mut Besieged {
        &mut self.0
    }
}

/// Number of open descriptors of this process.
pub fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

/// Resident memory of this process, in bytes.
pub fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string(Path::new("/proc/self/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.expect("the kernel says how much memory is in use") * 1024
}
