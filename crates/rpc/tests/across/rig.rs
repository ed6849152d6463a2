//! A node whose process serves a channel, and clients that reach it through shared memory, over UDP, or over the RDMA device.

use portcullis::host::{Host, HostConfig, Listen, NetworkListen, RdmaConfig, UdpConfig};
use portcullis::{Guarantee, NodeConfig, NodeSecurity};
use portcullis_rpc::channel::{AtNode, Channel, Connection, ConnectionOptions, Server, serve};
use std::path::PathBuf;
use std::time::{Duration, Instant};

pub const RED: &str = "red";
pub const BLUE: &str = "blue";
pub const CHANNEL: &str = "library";

/// How long a test waits for a condition before it fails. No successful test waits that long.
pub const LONG: Duration = Duration::from_secs(30);

/// How a client reaches the node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fabric {
    Shm,
    Udp,
    Rdma,
}

/// The fabrics that this machine has: with `PORTCULLIS_NIC=ibverbs` the RDMA device alone.
pub fn fabrics() -> Vec<Fabric> {
    match std::env::var("PORTCULLIS_NIC").as_deref() {
        Ok("ibverbs") => vec![Fabric::Rdma],
        Ok(other) => panic!("PORTCULLIS_NIC={other} is no NIC: ibverbs is"),
        Err(_) => vec![Fabric::Shm, Fabric::Udp],
    }
}

pub struct Rig {
    pub fabric: Fabric,
    // The server uses the node's memory, and is dropped first.
    pub server: Server,
    pub host: Host,
    pub folder: tempfile::TempDir,
}

fn listen(tenant: &str) -> NetworkListen {
    NetworkListen {
        address: "127.0.0.1:0".to_owned(),
        security: NodeSecurity::Plain,
        plain_anywhere: false,
        tenant: Some(tenant.to_owned()),
    }
}

fn node() -> NodeConfig {
    NodeConfig { pool_bytes: 64 << 20, ..NodeConfig::default() }
}

pub fn at_node() -> AtNode {
    AtNode::channel(CHANNEL).admit(RED).admit(BLUE)
}

fn host(fabric: Fabric, folder: &std::path::Path, node: NodeConfig) -> Host {
    let mut config = HostConfig { node, ..HostConfig::default() };
    match fabric {
        Fabric::Shm => {
            let socket = |tenant: &str| Listen { path: folder.join(tenant), tenant: Some(tenant.to_owned()) };
            config.listen = [RED, BLUE].map(socket).to_vec();
        }
        Fabric::Udp => {
            config.udp = Some(UdpConfig { listen: vec![listen(RED), listen(BLUE)], ..UdpConfig::default() });
        }
        Fabric::Rdma => {
            // The device may be Soft-RoCE, whose windows do not check the range. These tests do not depend on that
            // check.
            let allow_unenforced = vec![Guarantee::WindowRange, Guarantee::Type2Range];
            let listen = vec![listen(RED), listen(BLUE)];
            config.rdma = Some(RdmaConfig { listen, allow_unenforced, ..RdmaConfig::default() });
        }
    }
    Host::start(config).expect("a node")
}

impl Rig {
    pub fn new(fabric: Fabric, methods: impl FnOnce(Channel) -> Channel) -> Self {
        Self::with(fabric, at_node(), methods)
    }

    /// Starts a node whose permissions live for `longest` at most.
    pub fn with_lifetime(
        fabric: Fabric,
        longest: Duration,
        methods: impl FnOnce(Channel) -> Channel,
    ) -> Self {
        Self::on(fabric, NodeConfig { longest_lifetime: longest.into(), ..node() }, at_node(), methods)
    }

    pub fn with(fabric: Fabric, at: AtNode, methods: impl FnOnce(Channel) -> Channel) -> Self {
        Self::on(fabric, node(), at, methods)
    }

    fn on(fabric: Fabric, node: NodeConfig, at: AtNode, methods: impl FnOnce(Channel) -> Channel) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let host = host(fabric, folder.path(), node);
        let channel = methods(serve(folder.path().join("local.sock")));
        let server = channel.at_node(&host, at).expect("a place").start().expect("a server");
        Self { fabric, server, host, folder }
    }

    /// The path at which a client of this machine connects without the node.
    pub fn local(&self) -> PathBuf {
        self.folder.path().join("local.sock")
    }

    /// The address at which a tenant's clients connect to the node.
    pub fn node(&self, tenant: &str) -> String {
        let place = [RED, BLUE].iter().position(|it| *it == tenant).expect("a tenant of this rig");
        match self.fabric {
            Fabric::Shm => format!("shm:{}", self.folder.path().join(tenant).display()),
            Fabric::Udp => format!("udp:{}", self.host.network_addresses()[place]),
            Fabric::Rdma => format!("rdma:{}", self.host.network_addresses()[place]),
        }
    }

    pub fn address(&self, tenant: &str) -> String {
        format!("{}#{CHANNEL}", self.node(tenant))
    }

    pub fn connect(&self, tenant: &str) -> Connection {
        self.connect_with(tenant, ConnectionOptions::default())
    }

    pub fn connect_with(&self, tenant: &str, options: ConnectionOptions) -> Connection {
        let options = ConnectionOptions { within: LONG, ..options };
        Connection::open_with(self.address(tenant), options).expect("a connection")
    }

    /// Waits until the server has `count` connections.
    pub fn wait_for_connections(&self, count: u64) {
        wait_for("connections to come or go", || self.server.counters().connections == count);
    }

    /// Waits until the channel has no mailboxes, and no tenant holds anything.
    pub fn assert_empty(&self) {
        self.wait_for_connections(0);
        wait_for("the node to be empty", || {
            let it = self.host.counters();
            (it.clients, it.permissions, it.objects) == (1, 0, 0)
        });
    }
}

/// Waits for a condition. Panics if that takes far too long.
pub fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < LONG, "waited {LONG:?} for {what}");
        std::thread::yield_now();
    }
}
