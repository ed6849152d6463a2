//! Histories of a shared structure, and a decision whether one order of all operations explains them
//! (linearizability). A history contains the requests of the structure's users, their times and their results.
//!
//! - [`key`]: one key of a map. Decided by search.
//! - [`fifo`]: a queue in which each value is pushed once. Decided by looking for four patterns.
//! - [`claims`]: a queue whose values are claimed and acknowledged. Decided value by value.
//!
//! The simulator and the tests of the structures judge by this crate. The crate depends on none of them, and the code
//! that it judges must not use it.
#![forbid(unsafe_code)]

pub mod claims;
pub mod fifo;
pub mod key;

use serde::{Deserialize, Serialize};

/// One operation, with its times on one clock. An operation without an end may have happened at any time after its
/// start, or not at all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Operation<E> {
    /// The request and, if the operation has an end, its result.
    pub event: E,
    /// Time of the request.
    pub start: u64,
    /// Time at which the operation returned to its user.
    pub end: Option<u64>,
}
