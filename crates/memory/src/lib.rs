//! Memory that other processes, threads and NICs write while this one reads it: the only unsafe code outside the calls
//! of an RDMA library.
//!
//! - [`SealedFile`]: a file that memory is shared through.
//! - [`Loan`]: a file that a peer was given, until it is the machine's again.
//! - [`Mapping`]: mapped memory. It allows only atomic accesses and bounds-checked copies.
//! - [`PrivateView`]: copies of what peers wrote, at the address where the peers have it.
//! - [`AddressRange`] and [`SealedBytes`]: addresses that are kept for files, and files that nobody can write any more.
//! - [`FaultLabel`] and [`explain_faults`]: what a program is told that writes where it may not.
//! - [`ArenaMemory`]: the memory of a client's buffers. It lends bytes while no operation is under way on them.
//! - [`Waker`] and [`Doorbell`], [`Mapping::sleep`] and [`Mapping::wake_sleeper`], [`Alarm`] and [`Watched`]: sleep and
//!   wake-up between ends that share memory. [`Idle`]: when a thread that polls yields and
//!   sleeps. [`pin`]: where it runs.
//! - [`sandbox`]: code on a stack of its own, whose faults become errors. [`is_stack_used_up`]: whether code is as deep as its stack
//!   allows.
//! - [`userfault`]: memory whose missing pages another thread or process fills.
//! - [`forks`]: whether this process is a copy of the one that made something.
//! - The traits [`Memory`], [`Lend`] and [`Bytes`]: what other crates need of any memory.
//!
//! It may not know what lies in the memory. Of the house it uses only `errors`.

mod access;
mod address_range;
mod alarm;
mod arena;
mod bytes;
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

pub use access::{LINE_BYTES, prefetch};
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
