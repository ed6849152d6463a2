//! The attach of another process on this machine: over a Unix socket, on which it receives memory that it shares with
//! the node.
//!
//! The conversation has two steps. The client sends its hello, and the node sends an offer of a port (its file, the
//! engine's page, an event, an alarm) or the reason for a refusal. The client maps the file and reports that. Then the
//! node seals the file, so that no page can be taken away any more, fills and locks its own mapping, and welcomes the
//! client. After that the socket carries no messages: it exists so that each end notices when the other has left. The
//! client's user comes from the kernel (`SO_PEERCRED`), never from the client's messages.
//!
//! The [`AdmissionPolicy`] decides the content of the offer. In this module an offer is descriptors and numbers.

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
pub use policy::{AdmissionPolicy, Admitted, DESCRIPTORS_EACH, PortOffer};
