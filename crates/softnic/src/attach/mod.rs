//! How another process gets a port: over a Unix socket.
//!
//! The conversation has two steps. The client says hello, and the node offers a port (its file, the engine's page, an
//! event) or says why not. The client maps the file and says so; then the node seals the file, so that no page of it can
//! be taken away any more, fills and locks its own mapping, and welcomes the client. After that the socket carries
//! nothing: it is there so that each end notices when the other is gone. Who a client is comes from the kernel
//! (`SO_PEERCRED`), never from what it says.

mod client;
mod desk;
mod listener;
mod messages;
mod peer;
mod server;
mod user_thread;

pub use client::{AttachError, Attached, attach};
pub use listener::{Listener, SocketAccess};
#[doc(hidden)]
pub use messages::{AttachReply, AttachRequest};
pub use peer::Peer;
pub use server::{Admission, Admitted, Server, ServerLimits};
