//! How another process gets a port: over a Unix socket.
//!
//! The client says hello, the node answers with a port (its file, the engine's page, an event) or says why not. After
//! that the socket carries nothing: it is there so that each end notices when the other is gone. Who a client is
//! comes from the kernel (`SO_PEERCRED`), never from what it says.

mod client;
mod messages;
mod server;

pub use client::{AttachError, Attached, attach};
pub use server::{Admission, Admitted, Listener, Peer, Server, ServerLimits};
