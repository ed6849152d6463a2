//! Channels: a server's methods, called by processes of the same machine through a heap of each connection.
//!
//! A request is one cache line in the connection's ring, and so is its reply. Arguments and results stay where they
//! are: the line names the scope of the heap that they are in. Each method chooses how the receiver reads the scope,
//! and its signature shows the choice:
//!
//! | form | where the method reads | against a sender that writes meanwhile | limit |
//! | --- | --- | --- | --- |
//! | [`Copied`] | a copy, at the same addresses | sound | [`ServerOptions::arguments_max`] |
//! | [`Sandboxed`] | the same, in a sandbox | sound | the same, and [`ServerOptions::sandbox`] |
//! | [`OneShot`] | the sender's pages, which the kernel lets no process write | sound | [`ServerOptions::one_shot_bytes`] |
//! | [`Trusted`] | the sender's pages | values are read one by one, each as it is at that moment | the heap |
//!
//! A sender can also have its own mistakes detected ([`ConnectionOptions::guarded`]). That does not bind a sender that
//! does not want it, so no method can require it, and it is no seal.
//!
//! Clients of other machines call the same methods over a memory node that the server's process runs
//! (`Channel::at_node`, with feature `across`): over it the same [`Connection`] carries scopes and lines.
//!
//! Besides the heaps of connections, a channel can have one heap that all its clients share ([`Channel::shared_heap`]).
//!
//! A channel has a path, and may also have a name in a directory ([`Channel::named`], [`find`]).
//!
//! Both ends distrust each other. The contents of a ring are read once, by value, and checked; a peer that writes
//! invalid bytes breaks only its own calls.

#[cfg(feature = "across")]
mod across;
mod admission;
mod carrier;
mod connection;
pub mod ends;
mod lending;
mod messages;
mod method;
mod named;
mod one_shot;
mod sandboxed;
mod server;
mod shards;
mod shared_heap;
#[cfg(test)]
mod tests;
mod typed;

#[cfg(feature = "across")]
pub use across::{AtNode, ChannelAddress, NoChannelAddress, NodeError};
pub use connection::{Connection, ConnectionError, ConnectionOptions};
pub use ends::{Answer, CallError, CallId, DEPTH};
pub use method::{Copied, Failure, Reply, Trusted};
pub use named::{FindError, Found, Naming, find};
pub use one_shot::{OneShot, OneShotError, OneShotScope, Sealed};
pub use sandboxed::Sandboxed;
pub use server::{Channel, ServeError, Server, ServerCounters, ServerOptions, serve};
pub use typed::{Answered, Isolation, MethodResult, Passed, Returned, Service, TypedCall};

pub use portcullis_attach::unix::SocketAccess;
pub use portcullis_memory::explain_faults;

use ends::RING_BYTES;
use portcullis_memory::{Mapping, MappingError, Memory};

/// Offset of the half word of a ring that records whether the client sleeps.
const CLIENT_SLEEPS: u64 = 0;

/// Creates the memory of a ring.
fn make_ring() -> Result<Mapping, MappingError> {
    let ring = Mapping::shareable("portcullis-calls", RING_BYTES)?;
    debug_assert!(ring.length() >= RING_BYTES);
    Ok(ring)
}

/// The machine's monotonic clock in nanoseconds: the same for all processes of the machine.
fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(now.tv_nsec).unwrap_or(0))
}
