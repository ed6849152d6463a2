//! How a client attaches to a node: whose client it is, what it is offered, and a connection that ends when the client
//! does.
//!
//! The [`Acceptor`] is the thread that takes clients in. It keeps time and limits for all of them. What is said on a
//! connection is a [`Handshake`]:
//!
//! | module | which clients | what names their tenant |
//! | --- | --- | --- |
//! | [`unix`] | processes of this machine, over a Unix socket that passes descriptors | the kernel |
//! | `tls`, with the feature of that name | clients on other machines, over TCP with mutual TLS | certificates |
//!
//! This crate knows no nodes, permissions or NICs. Of the vocabulary of verbs it uses plain values: how large an end
//! is, and where its queue pairs are.
#![forbid(unsafe_code)]

mod acceptor;
mod handshake;
pub mod identity_file;
#[cfg(feature = "tls")]
pub mod tls;
pub mod unix;

pub use acceptor::{Acceptor, AcceptorPlace, Limits};
pub use handshake::{Accepted, Dismissal, Errand, Handshake, HasRoom, Holder, Outgoing, Reason, RefusedPeer};
