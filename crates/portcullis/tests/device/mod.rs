//! The NIC that tests run on: the software NIC, or with `PORTCULLIS_NIC=ibverbs` the RDMA device of this machine.

#[cfg(feature = "rdma")]
mod rdma;

#[cfg(feature = "rdma")]
pub use rdma::{is_wanted, port};

/// A crate built without the feature has no RDMA device.
#[cfg(not(feature = "rdma"))]
mod without {
    use portcullis::host::HostConfig;

    pub fn is_wanted() -> bool {
        false
    }

    pub fn port(config: HostConfig) -> HostConfig {
        config
    }
}

#[cfg(not(feature = "rdma"))]
pub use without::{is_wanted, port};
