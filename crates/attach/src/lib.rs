//! How a client comes in to a node: whose it is, what it is offered, and a connection whose end is the end of the client.
//!
//! The [`Acceptor`] is the thread that takes clients in. It keeps time and limits, whichever way they come; what is said on
//! a connection is a [`Handshake`]:
//!
//! | module | who comes | who says whose they are |
//! | --- | --- | --- |
//! | [`unix`] | processes of this machine, over a Unix socket that passes descriptors | the kernel |
//! | `tls`, with the feature of that name | other machines, over TCP with mutual TLS | certificates |
//!
//! Nothing here knows nodes, permissions or NICs. Of the vocabulary of verbs it uses plain values: how large an end is and
//! where its queue pairs are.
#![forbid(unsafe_code)]

mod acceptor;
mod handshake;
#[cfg(feature = "tls")]
pub mod tls;
pub mod unix;

pub use acceptor::{Acceptor, Limits};
pub use handshake::{Accepted, Errand, Handshake, HasRoom, Holder, Outgoing, Reason};
