//! What a node runs on: the software NIC, or an RDMA device where the crate is built for them.

use super::admin::Way;
use super::outlet::Outlet;
use super::software::SoftwareHost;
use super::{HostConfig, HostError, LocalDoor, Run};
use portcullis_nic::Guarantee;
use portcullis_protocol::Mechanism;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

/// A node on a NIC, with the ways to it. What only a device has is nothing by default.
pub(super) trait Backend: fmt::Debug + Send + Sync {
    fn mechanism(&self) -> Mechanism;

    /// What its permissions rest on and the device does not keep.
    fn unenforced(&self) -> &[Guarantee] {
        &[]
    }

    /// The most tenants at a time that the limit on locked memory lets in.
    fn tenants_max(&self) -> Option<u64> {
        None
    }

    /// Where clients of other machines come to.
    fn addresses(&self) -> &[SocketAddr] {
        &[]
    }

    /// The way in for clients of this process.
    fn local_door(&self) -> Arc<dyn LocalDoor>;

    /// The operator's way to the node.
    fn way(&self) -> Arc<Way>;

    fn stop(&self);
}

/// Starts a node on what the configuration says.
pub(super) fn start(
    config: &HostConfig,
    run: Run,
    records: Option<Outlet>,
) -> Result<Box<dyn Backend>, HostError> {
    #[cfg(feature = "rdma")]
    if let Some(device) = &config.rdma {
        return Ok(Box::new(super::rdma::RdmaHost::start(config, device, run, records)?));
    }
    Ok(Box::new(SoftwareHost::start(config, run, records)?))
}
