//! Chunks of memory that a NIC hands out, binds and frees without the CPU: OneSidedMW.
//!
//! A client requests a chunk with a message of 8 bytes. The message triggers a chain ([`chain`], whose two parts list
//! them): requests in a queue of the node that patch each other and bind the chunk's windows to the client's queue
//! pairs. The node's CPU makes pools ([`ChunkPool`]) and workers ([`Workers`]), and takes no part in their execution.
//!
//! The free list is a list of records in a table ([`record`]). A ticket lock guards it: a FETCH_AND_ADD takes a ticket,
//! which becomes the threshold of a WAIT, and the completion of the last request under the lock is the release. So
//! requests are served in the order of their tickets, no chain spins, and no chain retries.
//!
//! A worker never waits for its client between its first and its last effect. So a client that dies leaves no chain
//! half executed.
//!
//! This crate uses a NIC only through [`portcullis_nic::Nic`] and its [`portcullis_nic::ChainNic`]. It starts no
//! thread and reads no clock.
#![forbid(unsafe_code)]

mod asker;
mod census;
pub mod chain;
mod message;
mod objects;
mod pool;
mod rebuild;
mod reclaim;
pub mod record;
mod reserve;
mod table;
mod worker;

pub use census::{Census, Damage};
pub use chain::REQUEST_BYTES;
pub use message::{ChunkWindow, Geometry, Handle, Reply, reply_bytes};
pub use pool::{ChunkPool, ChunkPoolConfig, Domains, PoolParts};
pub use rebuild::RebuildSteps;
pub use reclaim::{Progress, Reclaim};
pub use record::ClientNumber;
pub use reserve::{Change, Reserve};
pub use worker::{WorkerParts, Workers};
