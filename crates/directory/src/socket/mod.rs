//! A directory that is served to the processes of one machine over a Unix socket, beside a node for example.
//!
//! | | |
//! | --- | --- |
//! | [`Server`] | serves an [`Embedded`](crate::Embedded) one |
//! | [`Remote`] | what its clients have: another [`Directory`](crate::Directory) |
//! | [`Trust`] | for whom a client may speak |
//!
//! A connection says one thing at a time and gets one answer. What it has in the directory belongs to it: its leases end when it
//! ends, however its process has ended. A watch is a connection of its own.

mod client;
mod conversation;
mod messages;
mod server;
mod watching;

pub use client::Remote;
pub use server::{Server, Trust};
