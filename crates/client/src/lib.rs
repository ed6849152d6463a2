//! The client's side of Portcullis: permissions, one-sided operations under them, batches, extensions, and the switch
//! to a spare queue pair when one breaks.
//!
//! The client is a state machine: it does no I/O of its own, reads no clock, starts no thread and never blocks.
//! [`Client::take_in`] polls the NIC's completions, and [`Client::judge`] acts on those that depend on the time;
//! [`Client::poll`] does both. `now` is an argument everywhere, in microseconds of any monotonic clock of the client.
//! It is never compared with the node's clock. The client keeps no time: it judges an event by a time that was read
//! after the event. Blocking calls belong to the crate `portcullis`.
//!
//! The data path takes no lock, allocates nothing and hashes nothing: an operation is a slot, and its work request's id
//! is the slot and the slot's generation.
#![forbid(unsafe_code)]

mod access;
mod ask;
mod batch;
mod buffer;
mod calls;
mod carrier;
mod chunk_workers;
mod client;
mod config;
mod control;
mod data_path;
mod error;
mod extension;
mod limit;
mod messages;
mod one_shots;
mod operations;
mod permission;
mod queue_pairs;
mod recovery;
mod requests;
mod routes;
mod small_objects;

pub use ask::{Access, Ask, Begun, ControlRequest, NotBegun, Unchecked, Until};
pub use batch::{Batch, NotAdded};
pub use buffer::{BUFFERS_BYTES_MAX, Buffer, Withheld};
pub use calls::{Answer, Call};
pub use client::Client;
pub use config::{BACKLOG_MAX, CALLS_MAX, ClientConfig, OPERATIONS_MAX, WAITING_CALLS_MAX};
pub use error::{Effect, Error};
pub use operations::{Operation, Outcome};
pub use permission::{Lease, Permission, PermissionView};
pub use portcullis_protocol::{Acquire, Allocate};
pub use queue_pairs::Counters;
pub use small_objects::{
    ClassOccupancy, Located, NotFreed, Occupancy, SmallObject, SmallObjectId, SmallObjects,
};
