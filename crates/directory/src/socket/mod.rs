//! A directory that is served to the processes of one machine over a Unix socket, beside a node for example.
//!
//! | | |
//! | --- | --- |
//! | [`Server`] | serves an [`Embedded`](crate::Embedded) directory |
//! | [`Remote`] | its client, which is a [`Directory`](crate::Directory) too |
//! | [`Trust`] | the tenants that a client may act for |
//!
//! A client sends one request at a time on a connection and receives one answer. The leases opened over a connection
//! belong to it: they end when the connection ends, however the client's process has ended. A watch has a connection of
//! its own.

mod client;
mod conversation;
mod messages;
mod parts;
mod server;
mod watching;

pub use client::Remote;
pub use server::{Server, Trust};
