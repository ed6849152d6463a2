//! A node that takes clients over UDP, without certificates: each tenant has a port of its own.

use portcullis::host::{Host, HostConfig, NetworkListen, UdpConfig};
use portcullis::{NodeConfig, NodeSecurity, Session, SessionOptions, connect, connect_with};

pub const RED: &str = "red";
pub const BLUE: &str = "blue";

pub struct Rig {
    pub host: Host,
}

fn listen(tenant: &str) -> NetworkListen {
    NetworkListen {
        address: "127.0.0.1:0".to_owned(),
        security: NodeSecurity::Plain,
        plain_anywhere: false,
        tenant: Some(tenant.to_owned()),
    }
}

impl Rig {
    pub fn new() -> Self {
        Self::with(NodeConfig { pool_bytes: 16 << 20, ..NodeConfig::default() }, |_| {})
    }

    pub fn with(node: NodeConfig, change: impl FnOnce(&mut UdpConfig)) -> Self {
        let mut udp = UdpConfig { listen: vec![listen(RED), listen(BLUE)], ..UdpConfig::default() };
        change(&mut udp);
        let config = HostConfig { node, udp: Some(udp), ..HostConfig::default() };
        Self { host: Host::start(config).expect("a node") }
    }

    /// Where a tenant's clients connect.
    pub fn address(&self, tenant: &str) -> String {
        let place = [RED, BLUE].iter().position(|it| *it == tenant).expect("a tenant of this rig");
        format!("udp:{}", self.host.network_addresses()[place])
    }

    pub fn session(&self, tenant: &str) -> Session {
        connect(&self.address(tenant)).expect("a session")
    }

    pub fn session_with(&self, tenant: &str, options: SessionOptions) -> Session {
        connect_with(&self.address(tenant), options).expect("a session")
    }
}
