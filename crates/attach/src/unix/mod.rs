//! How another process of this machine attaches: over a Unix socket, on which it gets memory to share with the node.
//!
//! The conversation has two steps. The client says hello, and the node offers a port (its file, the engine's page, an
//! event) or says why not. The client maps the file and says so; then the node seals the file, so that no page of it can
//! be taken away any more, fills and locks its own mapping, and welcomes the client. After that the socket carries
//! nothing: it is there so that each end notices when the other is gone. Who a client is comes from the kernel
//! (`SO_PEERCRED`), never from what it says.
//!
//! What is offered is the [`AdmissionPolicy`]'s business: here it is descriptors and numbers.

mod client;
mod handshake;
mod listener;
mod messages;
mod peer;
mod policy;

pub use client::{AttachError, Attached, Offer, attach};
pub use handshake::{Breach, UnixHandshake, User};
pub use listener::{Listener, SocketAccess};
#[doc(hidden)]
pub use messages::{AttachReply, AttachRequest};
pub use peer::Peer;
pub use policy::{AdmissionPolicy, Admitted, DESCRIPTORS_EACH, Place};
