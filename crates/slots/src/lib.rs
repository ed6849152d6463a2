//! Tables of numbered places that are used again: for queue pairs, windows, permissions, calls.
//!
//! - [`Slots`] keeps values under typed keys ([`Key`]). It gives the number of a removed value again. If the removed
//!   value's key carries a generation, that key then names nothing.
//! - [`Numbers`] chooses the next number. It is for tables that store something about their free places.
//! - [`Table`] is the storage below both: entries by number, which stay at their addresses when the table grows.
//!
//! This crate does not depend on the kind of the values, and uses no other crate of the workspace. The order in which
//! numbers are given again is a promise ([`Reuse`]): it decides how soon a stale number means something else.
#![forbid(unsafe_code)]

mod numbers;
mod slots;
mod table;

pub use numbers::{Numbers, Reuse};
pub use slots::{Key, Slots};
pub use table::Table;
