//! A client's end of the NIC: queues, completion queues and arena in one file that node and client share.
//!
//! The node makes the file and treats all of it as hostile. The client maps it whole. The only other memory of the node
//! that a client maps is the page that shows whether the engine sleeps, and that page is read-only.

mod completions;
mod endpoint;
mod layout;

pub use endpoint::PortEndpoint;
pub(crate) use endpoint::{ASKING_LABELS, CONTROL_LABEL};
pub(crate) use layout::SLEEPING;
pub use layout::{CompletionRing, PortLayout};

use portcullis_nic::{QpAddress, QpId};

/// The node's ends of a port's queue pairs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortQueuePairs {
    /// The peer of the client's control queue pair.
    pub control: QpId,
    /// The peers of the client's data queue pairs, by their number.
    pub data: Vec<QpId>,
    /// The addresses of the client's data queue pairs.
    pub peers: Vec<QpAddress>,
    /// The node's ends for accesses to chunks, which stay when the port is destroyed, and the addresses of the client's
    /// ends.
    pub chunks: Vec<(QpId, QpAddress)>,
    /// The client's queue pairs on which it requests chunks, not connected yet.
    pub asking: Vec<QpId>,
}
