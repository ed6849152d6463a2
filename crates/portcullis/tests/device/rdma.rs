//! Access of the tests to the RDMA device of this machine.

use portcullis::host::{HostConfig, NetworkListen, RdmaConfig};
use portcullis::{Guarantee, NodeSecurity};

/// Returns whether the tests run on the device, which `PORTCULLIS_NIC=ibverbs` selects.
pub fn is_wanted() -> bool {
    match std::env::var("PORTCULLIS_NIC").as_deref() {
        Ok("ibverbs") => true,
        Ok(other) => panic!("PORTCULLIS_NIC={other} is no NIC: ibverbs is"),
        Err(_) => false,
    }
}

/// Adds a port on this machine for the clients of one tenant.
pub fn port(config: HostConfig) -> HostConfig {
    let red = NetworkListen {
        address: "127.0.0.1:0".to_owned(),
        security: NodeSecurity::Plain,
        plain_anywhere: false,
        tenant: Some("red".to_owned()),
    };
    // The device may be Soft-RoCE, whose windows do not check the range. These tests do not need the range.
    let allow_unenforced = vec![Guarantee::WindowRange, Guarantee::Type2Range];
    let rdma = Some(RdmaConfig { listen: vec![red], allow_unenforced, ..RdmaConfig::default() });
    HostConfig { rdma, ..config }
}
