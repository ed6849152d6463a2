//! How another process on this machine attaches: over a Unix socket, on which it gets memory that it shares with the
//! node.
//!
//! The conversation has two steps. The client says hello, and the node offers a port (its file, the engine's page, an
//! event, an alarm) or says why not. The client maps the file and says so. Then the node seals the file, so that no
//! page can be taken away any more, fills and locks its own mapping, and welcomes the client. After that the socket
//! carries nothing: it exists so that each end notices when the other has gone. The client's user comes from the kernel
//! (`SO_PEERCRED`), never from what the client says.
//!
//! The [`AdmissionPolicy`] decides what is offered. In this module an offer is descriptors and numbers.

mod client;
mod handshake;
mod listener;
mod message_socket;
mod messages;
mod peer;
mod policy;

pub use client::{AttachError, Attached, Offer, attach};
pub use handshake::{Breach, UnixHandshake, User};
pub use listener::{Listener, SocketAccess};
pub use message_socket::{MessageError, MessageSocket};
#[doc(hidden)]
pub use messages::{AttachReply, AttachRequest};
pub use peer::Peer;
pub use policy::{AdmissionPolicy, Admitted, DESCRIPTORS_EACH, Place};
