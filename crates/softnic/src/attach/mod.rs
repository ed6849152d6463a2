//! How another process gets a port: over a Unix socket.
//!
//! The client says hello, the node answers with a port (its file, the engine's page, an event) or says why not. After
//! that the socket carries nothing: it is there so that each end notices when the other is gone. Who a client is
//! comes from the kernel (`SO_PEERCRED`), never from what it says.

mod client;
mod listener;
mod messages;
mod server;

pub use client::{AttachError, Attached, attach};
pub use listener::{Listener, SocketAccess};
pub use server::{Admission, Admitted, Peer, Server, ServerLimits};

use portcullis_nic::EndpointSize;

/// The arena that a hello asks for, if the bytes are one: what the server does with what it hears, for fuzzing.
#[doc(hidden)]
#[must_use]
pub fn parse_hello(bytes: &[u8]) -> Option<u64> {
    messages::Hello::parse(bytes)
}

/// The port or the refusal that a welcome tells of, if the bytes are one: as above, for clients.
#[doc(hidden)]
#[must_use]
pub fn parse_welcome(bytes: &[u8]) -> Option<Result<EndpointSize, String>> {
    messages::Welcome::parse(bytes).map(|answer| match answer {
        messages::Answer::Port { size, .. } => Ok(size),
        messages::Answer::Refused(reason) => Err(reason),
    })
}
