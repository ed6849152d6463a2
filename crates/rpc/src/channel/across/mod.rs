//! Calls between machines (RPCool §4.7, §5.6): a connection whose two ends share no memory, through a memory node that the server's
//! process runs.
//!
//! A channel at a node is a tenant of the node, and the clients are tenants that the channel admits. They communicate
//! only through names, objects and permissions of the node, which knows nothing of calls:
//!
//! ```text
//! client (its tenant)                     server (the channel's tenant)
//! publishes a hello, shared with ───────► looks for hellos of those that it admits
//!   the channel                           makes an object: the connection's mailbox
//! acquires its parts     ◄─────────────── publishes it under the hello's name, shared with the client's tenant
//!
//! begin: writes the scope's pages into the mailbox, and behind them the request's line
//!                                         reads lines and scopes where they are, in its own memory
//!                                         writes the result's scope and the reply's line
//! reads the reply's line, then the scope
//! ```
//!
//! - **A page has one writer.** The heap of a connection has two halves, one behind the other: the client allocates and
//!   writes arguments in one, and the server allocates and writes results in the other. So pages need not move on
//!   faults: they are sent with the call that names their scope, in one transfer, to the same addresses at the other
//!   side. The client holds the only permission to write to one half of the mailbox, and one to read the other.
//! - **Nothing depends on the order in which a NIC writes the bytes of a line.** A line has a checksum, and is complete
//!   when the checksum is right (`sealed`), so it takes one operation and no order of bytes.
//! - **Everything is read once, by value, as from a client of the same machine.** A line is copied into a ring of the
//!   server's own before it is read. A scope is copied to a place that no NIC can access before a method reads it. So a
//!   late write changes nothing that is in use, with or without a permission.
//! - **A client is present for as long as it holds a permission** over the mailbox's first page. A thread of the client
//!   keeps acquiring it. The server tries to acquire this page for itself: if the node grants it, the client has ended,
//!   and its mailbox is freed. The death of either end needs no message.
//! - **A deadline is a time of the server's clock**, as far as the client knows that clock. It is never too late, since
//!   a caller that no longer waits may use its scope for something else. It is too early by the time that the quickest
//!   answer took.
//!
//! One-shot scopes are for clients of the same machine. A scope from another machine is copied in any case when it is
//! received, and no second process could have the pages.

mod channel_address;
mod client;
mod incoming;
mod mailbox;
mod node_admission;
mod open;
mod outgoing;
mod permissions;
mod presence;
mod sealed;
mod server;
mod server_clock;

#[cfg(test)]
mod tests;

pub(super) use channel_address::is_at_node;
pub use channel_address::{ChannelAddress, NoChannelAddress};
pub use node_admission::{AtNode, NodeError};
pub(super) use node_admission::{ChannelAtNode, NodeAdmission};
