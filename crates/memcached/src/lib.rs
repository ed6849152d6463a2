//! A gateway that speaks memcached's protocol and keeps the items in a node's memory.
//!
//! Unmodified clients of memcached access a table of `portcullis-structures` through it. The gateway is a client of the
//! node: all memory that it uses is within the quota of its tenant, and several gateways can serve one table.
//!
//! - [`protocol`] turns bytes into commands and answers into bytes. It does no I/O.
//! - `cache` implements the commands over a store of keys and values.
//! - `age` keeps the order of keys by their last use. The oldest are evicted when there is no more room.
//! - `server` has the threads: each has a session of its own, and carries out the commands of all its connections at
//!   once.
#![forbid(unsafe_code)]

mod age;
mod cache;
mod classes;
mod counters;
mod error;
pub mod protocol;
mod server;

pub use error::GatewayError;
pub use server::{Connector, Gateway, GatewayOptions, Listen};
