//! Tables of numbered places that are used again: for queue pairs, windows, permissions, calls.
//!
//! - [`Slots`] keeps values under typed keys ([`Key`]). The number of a removed value is given again. A key that
//!   carries a generation then names nothing.
//! - [`Numbers`] chooses the next number. It is for tables that keep more about a free place than that it is free.
//! - [`Table`] is the storage below both: entries by number, which stay where they are when the table grows.
//!
//! This crate knows nothing of what it keeps, and uses no other crate of the house. The order in which numbers are
//! given again is a promise ([`Reuse`]): it decides how soon a stale number means something else.
#![forbid(unsafe_code)]

mod numbers;
mod slots;
mod table;

pub use numbers::{Numbers, Reuse};
pub use slots::{Key, Slots};
pub use table::Table;
