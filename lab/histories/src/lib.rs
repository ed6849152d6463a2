//! Histories: what the users of a shared structure asked for, when, and what they were told; and whether one order of
//! all operations explains it (linearizability).
//!
//! - [`key`]: one key of a map. Decided by search.
//! - [`fifo`]: a queue whose values are pushed once each. Decided by looking for four patterns.
//! - [`claims`]: a queue whose values are claimed and acknowledged. Decided value by value.
//!
//! The simulator and the tests of the structures judge by this crate. It knows none of them, and must not be used by what
//! it judges.
#![forbid(unsafe_code)]

pub mod claims;
pub mod fifo;
pub mod key;

use serde::{Deserialize, Serialize};

/// One operation, with its times on one clock. An operation without an end may have happened at any time after its start, or not
/// at all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Operation<E> {
    /// What was asked for and, where there is an end, what was told.
    pub event: E,
    /// When it was asked for.
    pub start: u64,
    /// When its user was told.
    pub end: Option<u64>,
}
