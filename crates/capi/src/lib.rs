//! Portcullis for C and C++: `libportcullis`, with the header `include/portcullis.h` and, over it, `include/portcullis.hpp`.
//!
//! This crate translates arguments and results, and nothing else. What keeps threads, forks and wrong handles from doing harm
//! is in [`portcullis_foreign`]; what a program may rely on is said in the header, which is made from this crate's sources.
//!
//! - [`border`]: what every function does on its way in and out: arguments, errors, panics.
//! - [`handles`]: the numbers that C has instead of values.
//! - The other modules are the functions, by subject.
//!
//! The header's rules are the safety contract of all functions: pointers are null or lead to what their types say, and
//! lengths are those of the memory behind the pointer beside them.
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
