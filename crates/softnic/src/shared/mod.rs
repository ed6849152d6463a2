//! Memory that other processes write while this one reads it: the only unsafe code of the NIC.
//!
//! [`Mapping`], and through it only atomic accesses to bytes and words, bounds-checked; and [`ArenaMemory`], the memory
//! that a client's buffers lie in, which lends bytes for as long as no operation is under way on them. Neither may know
//! what lies in the memory.

mod arena;
mod mapping;

pub use arena::{ArenaMemory, LentBytes, LentBytesMut};
pub use mapping::{Mapping, MappingError};
