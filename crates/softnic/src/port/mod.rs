//! A client's end of the NIC: queues, completion queue and arena in one file that node and client share.
//!
//! The node makes the file and treats all of it as hostile; the client maps it whole. Nothing else of the node is
//! ever mapped by a client, but for the page that says whether the engine sleeps, and that one is read-only.

mod endpoint;
mod layout;

pub(crate) use endpoint::CONTROL_LABEL;
pub use endpoint::{PortEndpoint, PortLife};
pub use layout::PortLayout;
pub(crate) use layout::{POLLED, SLEEPING};

use portcullis_nic::{QpAddress, QpId};

/// The node's ends of a port's queue pairs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortQueuePairs {
    /// The peer of the client's control queue pair.
    pub control: QpId,
    /// The peers of its data queue pairs, by their number.
    pub data: Vec<QpId>,
    /// Where the client's ends of those are.
    pub peers: Vec<QpAddress>,
}
