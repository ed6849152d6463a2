//! Memory that other processes write while this one reads it: the only unsafe code of the NIC.
//!
//! One type, [`Mapping`], and through it only atomic accesses to bytes and words, bounds-checked. It may not know
//! what lies in the memory.

mod mapping;

pub use mapping::{Mapping, MappingError};
