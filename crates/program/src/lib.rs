//! Code that the programs `portcullis` and `portcullis-lab` share: output, the files and addresses that options name,
//! signals, and the log.
//!
//! This crate has no command of its own and implements no part of a node or a client.
#![forbid(unsafe_code)]
// Output goes through `output`: the macros panic when the reader is gone.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod expiry;
pub mod files;
pub mod log;
pub mod network;
pub mod output;
pub mod protection;
pub mod samples;
pub mod signals;
pub mod sockets;
