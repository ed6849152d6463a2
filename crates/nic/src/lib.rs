//! The verbs vocabulary: the interface of Portcullis to a NIC, as traits and plain values, in the field's own words.
//!
//! [`Nic`] is the view of the NIC's owner, the memory node: protection domains, memory regions, windows, queue pairs
//! and completion queues, by id. A NIC with chains has a [`ChainNic`] besides. [`VerbsEndpoint`] is a client's view: a
//! control queue pair, completions and an arena for its buffers, which the client gets ready for use. The
//! client's accesses travel on the parts that its end has: [`DataQueuePairs`], or [`OneShotOperations`]. This crate does
//! not know how a NIC works, and no crate above it names a particular NIC.
#![forbid(unsafe_code)]

mod access;
mod capabilities;
mod chain;
mod chain_nic;
mod client_ends;
mod completion;
mod device;
mod endpoint;
mod endpoint_parts;
mod endpoint_queue;
mod endpoint_size;
mod error;
mod objects;
mod refused_access;
mod request;

pub use access::Access;
pub use capabilities::{AtomicScope, Capabilities, Guarantee, GuaranteeSet, Misuse};
pub use chain::{ChainFeatures, ChainRole, ChainVerb, entry};
pub use chain_nic::ChainNic;
pub use client_ends::{ClientQueues, connect_qp};
pub use completion::{Completion, CompletionKind, Status};
pub use device::{Event, Nic};
pub use endpoint::{Endpoint, Pollable, VerbsEndpoint};
pub use endpoint_parts::{AskingQueuePairs, DataQueuePairs, OneShotOperations};
pub use endpoint_queue::EndpointQueue;
pub use endpoint_size::{
    ARENA_BYTES_MAX, ASKING_DEPTH, CHUNK_QUEUE_PAIRS_MAX, DATA_QUEUE_PAIRS_MAX, DEPTH_MAX, EndpointSize,
    MESSAGE_BYTES_MAX, MESSAGE_BYTES_MIN,
};
pub use error::VerbsError;
pub use objects::{
    CqId, PdId, QpAddress, QpAttributes, QpChange, QpId, QpState, Region, RegionId, SendQueue, Window,
    WindowId, WindowKind,
};
pub use portcullis_memory::{Lend, Memory, prefetch};
pub use portcullis_protocol::{HolderKey, RegionName, RemoteAddress, Rights, Rkey};
pub use refused_access::{AccessFault, RefusedAccess};
pub use request::{
    Lkey, LocalSpan, OneShotRequest, OneShotVerb, Operation, ReceiveRequest, RemoteSpan, WindowBinding,
    WorkRequest,
};
