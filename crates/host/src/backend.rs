//! A node on its fabric: the software NIC, or an RDMA device if the crate is built with support for those.

use crate::admin::{Order, OrderOutcome};
use crate::at_end::AtEnd;
use crate::fabric::{Fabric, NodeEngine};
use crate::outlet::Outlet;
use crate::{HostConfig, HostError, LocalAdmission, Run};
use portcullis_attach::AcceptorList;
use portcullis_memory::Mapping;
use portcullis_nic::Guarantee;
use portcullis_protocol::Mechanism;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct Started {
    pub node: Arc<dyn RunningNode>,
    pub local_admission: Arc<dyn LocalAdmission>,
    pub mechanism: Mechanism,
    /// Guarantees that the device does not keep.
    pub unenforced: Vec<Guarantee>,
    /// The most tenants at a time that the limit on locked memory allows.
    pub tenants_max: Option<u64>,
    /// Addresses at which clients on other machines connect.
    pub addresses: Vec<SocketAddr>,
}

/// A node on any fabric.
pub(crate) trait RunningNode: fmt::Debug + Send + Sync {
    /// Carries out an operator's order. `None`: the node has ended.
    fn carry_out(&self, order: Order) -> Option<OrderOutcome>;

    /// Stops the node's own turns (`true`), or resumes them. The NIC's turns go on in any case.
    fn hold_turns(&self, hold: bool);

    /// Makes a worker of the chunk pool fail: for tests.
    fn break_worker(&self);

    /// Keeps `at_end` for as long as the node's thread runs. If the thread has ended, `at_end` is dropped at once.
    fn keep(&self, at_end: AtEnd);

    /// The memory that the node lends. `None`: the node has ended.
    fn memory(&self) -> Option<Mapping>;

    /// Makes the node's thread panic.
    #[cfg(test)]
    fn panic(&self);

    /// Ends the node: first the acceptors, then the node's thread.
    ///
    /// # Errors
    /// The thread has panicked. Only the first call returns this error.
    fn stop(&self) -> std::thread::Result<()>;
}

/// A node on the fabric `F`.
#[derive(Debug)]
pub(crate) struct NodeOn<F: Fabric> {
    pub engine: NodeEngine<F>,
    pub acceptors: AcceptorList,
}

impl<F: Fabric> RunningNode for NodeOn<F> {
    fn carry_out(&self, order: Order) -> Option<OrderOutcome> {
        self.engine.carry_out(order).ok()
    }

    fn hold_turns(&self, hold: bool) {
        self.engine.hold_turns(hold);
    }

    fn break_worker(&self) {
        self.engine.break_worker();
    }

    fn keep(&self, at_end: AtEnd) {
        // A closure that the engine does not accept is dropped, and the value that it holds with it.
        let _ = self.engine.post(move |_, resident, _| resident.keep(at_end));
    }

    fn memory(&self) -> Option<Mapping> {
        self.engine.lent_memory().ok()
    }

    #[cfg(test)]
    fn panic(&self) {
        let panicked = self.engine.call(|_, _, _| panic!("a test has the node's thread panic"));
        assert_eq!(panicked, Err(crate::engine::EngineGone));
    }

    fn stop(&self) -> std::thread::Result<()> {
        self.acceptors.clear();
        self.engine.stop()
    }
}

/// Starts a node on the fabric that the configuration names.
pub(crate) fn start(config: &HostConfig, run: Run, records: Option<Outlet>) -> Result<Started, HostError> {
    #[cfg(feature = "rdma")]
    if let Some(device) = &config.rdma {
        return crate::rdma::start(config, device, run, records);
    }
    crate::software::start(config, run, records)
}
