//! The setting of an attack: a node on the RDMA device, and honest clients of two tenants.

use crate::attacker::Attacker;
use crate::audit::Audit;
use crate::besieged::Besieged;
use portcullis::host::{Host, HostConfig, NetworkListen, RdmaConfig};
use portcullis::{DeviceChoice, Guarantee, Lifetime, Mechanism, NodeConfig, NodeSecurity, ViolationLimits};
use std::ops::Deref;
use std::path::Path;

pub use crate::besieged::{BLUE, PATIENCE, RED, alone, random, wait_for};

/// A node on the device and its honest clients.
pub struct Rig(Besieged);

/// A configuration that tolerates many violations. It uses memory regions, which every device enforces.
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

/// The lenient configuration with windows. Soft-RoCE does not check their range; only one test depends on that.
pub fn windows() -> NodeConfig {
    NodeConfig { mechanism: Mechanism::MemoryWindow, ..lenient() }
}

/// The lenient configuration with a window of type 2 for each queue pair.
pub fn window_groups() -> NodeConfig {
    NodeConfig { mechanism: Mechanism::WindowGroup, ..lenient() }
}

/// Starts a node for clients of RED over the network, with an audit log.
pub fn node(node: NodeConfig, folder: &Path) -> Host {
    node_on(DeviceChoice::default(), node, folder)
}

/// Starts a node for clients of RED over the network on a chosen device.
pub fn node_on(device: DeviceChoice, node: NodeConfig, folder: &Path) -> Host {
    let red = NetworkListen {
        address: "127.0.0.1:0".to_owned(),
        security: NodeSecurity::Plain,
        plain_anywhere: false,
        tenant: Some(RED.to_owned()),
    };
    let allow_unenforced = vec![Guarantee::WindowRange, Guarantee::Type2Range];
    let rdma = RdmaConfig { device, listen: vec![red], allow_unenforced, ..RdmaConfig::default() };
    let audit = Some(folder.join("audit"));
    let config = HostConfig { node, rdma: Some(rdma), audit, ..HostConfig::default() };
    Host::start(config).expect("a node starts")
}

impl Rig {
    /// Starts a lenient node with one honest client of the attacked tenant and one of another tenant.
    pub fn new() -> Self {
        Self::with(lenient(), &[RED, BLUE])
    }

    /// Starts a node with one honest client for each named tenant.
    pub fn with(config: NodeConfig, honest: &[&str]) -> Self {
        Self(Besieged::new(|folder| node(config, folder), honest))
    }

    /// Returns the address for RED's clients.
    pub fn address(&self) -> String {
        self.host.network_addresses()[0].to_string()
    }

    /// Reads the node's audit log.
    pub fn audit(&self) -> Audit {
        Audit::read(&self.folder().join("audit"))
    }

    /// Attaches an attacker with queue pairs.
    pub fn attacker(&self) -> Attacker {
        Attacker::attach(&self.address())
    }

    /// Waits until the node has charged RED with this many violations since its start. Checks that the node charged RED
    /// with no more, and no other tenant with any.
    pub fn assert_charged(&self, violations: u64) {
        wait_for("violations to be counted", || self.host.counters().violations >= violations);
        wait_for("violations to be written down", || self.audit().violations(RED) >= violations);
        let audit = self.audit();
        assert_eq!(self.host.counters().violations, violations, "{audit}");
        assert_eq!((audit.violations(RED), audit.all_violations()), (violations, violations), "{audit}");
    }

    /// Ends the test by [`Besieged::end`].
    pub fn clear(self) {
        self.0.end(5);
    }
}

impl Deref for Rig {
    type Target = Besieged;

    fn deref(&self) -> &Besieged {
        &self.0
    }
}
