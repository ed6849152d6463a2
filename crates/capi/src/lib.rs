//! Portcullis for C and C++: `libportcullis`, with the header `include/portcullis.h` and the C++ header
//! `include/portcullis.hpp` over it.
//!
//! This crate translates arguments and results, and does nothing else. The crate [`portcullis_foreign`] makes sure that
//! threads, forks and wrong handles do no harm. The header, which is generated from this crate's sources, states what a
//! program may rely on.
//!
//! - [`border`]: the conversion of arguments, errors and panics, which every function uses.
//! - [`handles`]: the numbers by which C programs refer to sessions, tables, queues, nodes and what belongs to them.
//! - The other modules contain the functions, by subject.
//!
//! The header's rules are the safety contract of all functions: each pointer is null or points to a value of its type,
//! and each length is the length of the memory behind the pointer beside it.
#![allow(clippy::missing_safety_doc)]

pub mod access;
pub mod border;
pub mod buffers;
pub mod claims;
pub mod errors;
pub mod handles;
mod layouts;
pub mod names;
pub mod node;
pub mod permissions;
pub mod queue;
pub mod session;
pub mod submission;
pub mod table;
