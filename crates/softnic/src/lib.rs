//! A software RNIC.
//!
//! [`core`] is the NIC as a pure state machine. [`SoftNic`] is the NIC with its memory and ports; its owner turns it,
//! on one thread. The NIC copies all bytes: a client maps its own queues and buffers, never the node's memory.
#![forbid(unsafe_code)]

mod completions;
pub mod core;
mod nic;
mod port;

pub use nic::{NicMemory, PortId, PortResources, SoftNic};
pub use port::{CompletionRing, PortEndpoint, PortLayout, PortQueuePairs};
