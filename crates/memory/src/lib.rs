//! Memory that other processes, other threads and NICs write while this one reads it: the only unsafe code outside the
//! calls of an RDMA library.
//!
//! [`SealedFile`], which memory is shared through. [`Mapping`], and through it only atomic accesses to bytes and words,
//! bounds-checked. [`ArenaMemory`], the memory that a client's buffers lie in, which lends bytes for as long as no operation
//! is under way on them. [`Waker`] and [`Doorbell`], [`Mapping::sleep`] and [`Mapping::wake_sleeper`]: sleep and wake-up
//! between ends that share memory. The traits [`Memory`], [`Lend`] and [`Bytes`] say what others ask of any memory.
//!
//! Nothing here may know what lies in the memory, and nothing of the house is used.

mod access;
mod arena;
mod bytes;
mod futex;
mod mapping;
mod memory;
mod residency;
mod sealed_file;
mod waker;

pub use arena::{ArenaMemory, LentBytes, LentBytesMut};
pub use bytes::Bytes;
pub use mapping::{Mapping, MappingError};
pub use memory::{Lend, Memory};
pub use sealed_file::SealedFile;
pub use waker::{Doorbell, Waker, WakerError};
