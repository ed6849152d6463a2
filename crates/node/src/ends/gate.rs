//! The decision which accesses the node's ends of data queue pairs allow their clients.

use portcullis_nic::{Access, Nic, QpId, SendQueue};
use portcullis_protocol::{ClientId, TenantId};

/// The part of the enforcement in the data queue pairs of clients: what they allow, and what their rebuilds wait for.
pub(crate) trait Gate<N: Nic> {
    /// Returns the access that a client's data queue pairs may allow now.
    fn access(&self, client: ClientId) -> Access;

    /// Returns the send queues that the node's ends of data queue pairs must have. `None`: nothing is posted on them.
    fn data_sends(&self) -> Option<SendQueue> {
        None
    }

    /// Enters a client of a tenant, with these ends of its data queue pairs.
    fn enter_client(&mut self, _tenant: TenantId, _data: &[QpId]) {}

    /// Handles the departure of a client. The node's ends of its data queue pairs are destroyed as soon as nothing on
    /// the NIC needs them.
    fn forget_client(&mut self, nic: &mut N, _client: ClientId, data: Vec<QpId>) {
        destroy_all(nic, &data);
    }

    /// Prepares the rebuild of a data queue pair. Returns whether the NIC has finished all requests that were posted on
    /// it.
    fn quiesce(&mut self, _qp: QpId) -> bool {
        true
    }

    /// Notes that a data queue pair is in the state RTS again. It allows no accesses yet.
    fn resume(&mut self, _qp: QpId) {}

    /// Restores, after [`resume`](Self::resume), what the client's permissions need on the queue pair. Returns whether
    /// all of it is there.
    fn restore(&mut self, _nic: &mut N, _qp: QpId) -> bool {
        true
    }
}

/// Destroys queue pairs that nothing needs any more.
pub(crate) fn destroy_all(nic: &mut impl Nic, queue_pairs: &[QpId]) {
    for &qp in queue_pairs {
        // A device that fails to destroy a queue pair has failed.
        let _ = nic.destroy_qp(qp);
    }
}
