//! What the programs `portcullis` and `portcullis-lab` have in common: how they write, which files and addresses their
//! options name, how they are stopped, and what they log.
//!
//! It has no command of its own, and does nothing that a node or a client does.
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
