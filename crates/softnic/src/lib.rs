//! A software RNIC.
//!
//! [`core`] is the NIC as a pure state machine, [`SoftNic`] the NIC with its memory and ports. Whoever owns a [`SoftNic`]
//! turns it, on one thread. The NIC copies: a client never maps a node's memory, only its own queues and buffers.
#![forbid(unsafe_code)]

mod completions;
pub mod core;
mod nic;
mod port;

pub use nic::{NicMemory, PortId, SoftNic};
pub use port::{PortEndpoint, PortLayout, PortLife, PortQueuePairs};
