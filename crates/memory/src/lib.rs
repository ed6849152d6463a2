//! Memory that other processes, threads and NICs write while this one reads it: the only unsafe code outside the calls
//! of an RDMA library.
//!
//! - [`SealedFile`]: a file that memory is shared through.
//! - [`Mapping`]: mapped memory. It allows only atomic accesses and bounds-checked copies.
//! - [`PrivateView`]: copies of what peers wrote, at the address where the peers have it.
//! - [`ArenaMemory`]: the memory of a client's buffers. It lends bytes while no operation is under way on them.
//! - [`Waker`] and [`Doorbell`], [`Mapping::sleep`] and [`Mapping::wake_sleeper`], [`Alarm`] and [`Watched`]: sleep and
//!   wake-up between ends that share memory. [`Idle`]: when a thread that polls yields and
//!   sleeps. [`pin`]: where it runs.
//! - [`userfault`]: memory whose missing pages another thread or process fills.
//! - The traits [`Memory`], [`Lend`] and [`Bytes`]: what other crates need of any memory.
//!
//! It may not know what lies in the memory. Of the house it uses only `errors`.

mod access;
mod alarm;
mod arena;
mod bytes;
mod futex;
mod idle;
mod mapping;
mod memory;
mod private_view;
mod processor;
mod residency;
mod sealed_file;
pub mod userfault;
mod waker;

pub use alarm::{Alarm, Ringer, Watched, ends};
pub use arena::{ArenaMemory, LentBytes, LentBytesMut};
pub use bytes::Bytes;
pub use idle::Idle;
pub use mapping::{Mapping, MappingError};
pub use memory::{Lend, Memory};
pub use private_view::PrivateView;
pub use processor::pin;
pub use sealed_file::SealedFile;
pub use waker::{Doorbell, Waker, WakerError, WatchedEvent};
