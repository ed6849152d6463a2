//! Memory that other processes, threads and NICs write while this one reads it. Apart from the calls of an RDMA
//! library, this is the only unsafe code.
//!
//! - [`SealedFile`]: a file whose memory processes share.
//! - [`Loan`]: a file that was lent to a peer, until the peer has returned it.
//! - [`Mapping`]: mapped memory. It allows only atomic accesses and bounds-checked copies.
//! - [`PrivateView`]: copies of what peers wrote, at the address where the peers have it.
//! - [`AddressRange`] and [`SealedBytes`]: addresses that are kept for files, and files that no process can write any
//!   more.
//! - [`FaultLabel`] and [`explain_faults`]: the message for a program that writes to memory that it must not write.
//! - [`ArenaMemory`]: the memory of a client's buffers. It lends bytes while no operation is under way on them.
//! - [`Waker`] and [`Doorbell`], [`Mapping::sleep`] and [`Mapping::wake_sleeper`], [`Alarm`] and [`Watched`]: sleep and
//!   wake-up between ends that share memory. [`Idle`]: when a thread that polls yields and sleeps. [`pin`]: the
//!   processor that it runs on.
//! - [`sandbox`]: code on a stack of its own, whose faults become errors. [`is_stack_used_up`]: whether code is as deep
//!   as its stack allows.
//! - [`userfault`]: memory whose missing pages another thread or process fills.
//! - [`forks`]: whether this process is a forked copy of the process that made a value.
//! - The traits [`Memory`], [`Lend`] and [`Bytes`]: the interface of memory for other crates.
//!
//! This crate must not know what lies in the memory. Of the workspace's crates it uses only `errors`.

mod access;
mod address_range;
mod alarm;
mod arena;
mod bytes;
mod copies;
mod crowd;
mod depth;
mod faults;
mod forks;
mod futex;
mod idle;
mod keys;
mod loan;
mod mapping;
mod memory;
mod private_view;
mod processor;
mod residency;
pub mod sandbox;
mod sealed_bytes;
mod sealed_file;
mod signals;
pub mod userfault;
mod waker;

pub use access::prefetch;
pub use address_range::{AddressRange, Claim};
pub use alarm::{Alarm, Ringer, Watched, ends};
pub use arena::{ArenaMemory, LentBytes, LentBytesMut};
pub use bytes::Bytes;
pub use crowd::Crowd;
pub use depth::is_stack_used_up;
pub use faults::{FaultLabel, FaultsUnexplained, explain_faults};
pub use forks::forks;
pub use idle::Idle;
pub use loan::Loan;
pub use mapping::{Mapping, MappingError};
pub use memory::{Lend, Memory};
pub use private_view::PrivateView;
pub use processor::pin;
pub use sealed_bytes::SealedBytes;
pub use sealed_file::{SealError, SealedFile};
pub use waker::{Doorbell, Waker, WakerError, WatchedEvent};
