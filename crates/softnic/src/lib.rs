//! A software RNIC.
//!
//! [`core`] is the NIC as a pure state machine; [`engine`] drives it on a thread; [`attach`] lets other processes in over
//! a Unix socket. The NIC copies: a client never maps a node's memory, only its own queues and buffers.
#![forbid(unsafe_code)]

pub mod attach;
mod completions;
pub mod core;
pub mod engine;
mod nic;
mod port;

pub use nic::{NicMemory, PortId, SoftNic};
pub use port::{Life, PortEndpoint, PortLayout, PortQueuePairs};
