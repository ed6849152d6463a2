//! Attaching a client to a node: the identification of its tenant, the terms that it is offered, and a connection that
//! ends when the client ends.
//!
//! The [`Acceptor`] is the thread that accepts clients. It enforces deadlines and limits for all of them. The messages
//! on a connection are a [`Handshake`]:
//!
//! | module | which clients | what names their tenant |
//! | --- | --- | --- |
//! | [`unix`] | processes of this machine, over a Unix socket that passes descriptors | the kernel |
//! | `tls`, with the feature of that name | clients on other machines, over TCP with mutual TLS | certificates |
//!
//! This crate knows no nodes, permissions or NICs. It uses plain values of the verbs vocabulary: the size of an
//! endpoint, and the addresses of its queue pairs.
#![forbid(unsafe_code)]

mod acceptor;
mod handshake;
pub mod identity_file;
#[cfg(feature = "tls")]
pub mod tls;
pub mod unix;

pub use acceptor::{Acceptor, AcceptorList, Limits};
pub use handshake::{Accepted, Dismissal, Errand, Handshake, HasRoom, Holder, Outgoing, Reason, RefusedPeer};
