//! Tables of numbered places that are used again: for queue pairs, windows, permissions, calls.
//!
//! - [`Slots`] keeps values under keys of a type of their own ([`Key`]). The number of a removed value is given again; a
//!   key that carries a generation then names nothing.
//! - [`Numbers`] says which number comes next, for tables that keep more of a free place than that it is free.
//! - [`Table`] is what lies below: entries by number that stay where they are when the table grows.
//!
//! This crate knows nothing of what it keeps, and uses no other crate of the house. In which order numbers come again is
//! a promise ([`Reuse`]): it decides how soon a stale number means something else.
#![forbid(unsafe_code)]

mod numbers;
mod slots;
mod table;

pub use numbers::{Numbers, Reuse};
pub use slots::{Key, Slots};
pub use table::Table;
