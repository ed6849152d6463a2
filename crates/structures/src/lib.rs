//! Data structures in a node's memory, which clients use one-sided (Patronus §6.1).
//!
//! - [`Pipeline`] keeps many operations of one session in flight, on one thread.
//! - [`queue`] is a queue for many producers and consumers. Any client may die at any step.
//! - [`table`] is an extendible hash table (RACE). Any client may die at any step.
//!
//! The structures do not depend on NICs and nodes. They do everything through a [`portcullis::Session`], so they work
//! with each fabric and each protection mechanism, and in the simulator.
#![forbid(unsafe_code)]

mod held;
mod pipeline;
pub mod queue;
mod record;
pub mod table;

pub use pipeline::{Awaited, Pipeline, Turns, Work, Yield, join};
