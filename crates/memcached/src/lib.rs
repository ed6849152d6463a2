//! A gateway that speaks memcached's protocol and keeps the items in a node's memory.
//!
//! Unmodified clients of memcached reach a table of `portcullis-structures` through it. The gateway is a client of the
//! node: all that it stores is within the quota of its tenant, and several gateways can serve one table.
//!
//! - [`protocol`] turns bytes into commands and answers into bytes. It does no I/O.
//! - `cache` says what the commands mean, over a store of keys and values.
//! - `age` knows which keys were used longest ago. They go when there is no more room.
//! - `server` has the threads: each has a session of its own, and carries out at once what all its connections ask for.
#![forbid(unsafe_code)]

mod age;
mod cache;
mod classes;
mod counters;
mod error;
pub mod protocol;
mod server;

pub use error::GatewayError;
pub use server::{Connector, Gateway, Listen, Options};
