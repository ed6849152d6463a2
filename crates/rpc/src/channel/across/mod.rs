//! Calls between machines (RPCool §4.7, §5.6): a connection whose two ends share no memory, through a memory node that the server's
//! process runs.
//!
//! A channel at a node is a tenant of it, and the clients are tenants that the channel admits. All that goes between them is names,
//! objects and permissions of the node, which knows nothing of calls:
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
//! - **A page has one writer.** The heap of a connection has two halves, one behind the other: arguments, which the client allocates
//!   and writes, and results, which the server does. So pages need not move on faults: they go with the call that names their scope,
//!   in one transfer, to the same addresses at the other side. The client holds the only permission to write to the one half of the
//!   mailbox, and one to read the other.
//! - **Nothing rests on what a NIC does to a line on its way.** A line has a checksum, and is there when that is right
//!   (`sealed`), so it takes one operation and no order of bytes.
//! - **What is read is read once, by value, as from a client of the same machine.** A line is copied into a ring of the server's own
//!   before it is looked at. A scope is copied to a place that no NIC reaches before a method looks at it. So a write that comes late
//!   changes nothing that is in use, permission or not.
//! - **A client is there for as long as it holds a permission** over the mailbox's first page, which a thread of it keeps acquiring.
//!   The server tries to have this page for itself: when the node lets it, the client is gone, and its mailbox goes. Neither end's
//!   death needs a message.
//! - **A deadline is one of the server's clock**, as far as the client knows it: never too late, since a caller that waits no more may
//!   use its scope for something else, and too early by what the quickest answer took.
//!
//! One-shot scopes are for clients of the same machine. A scope is copied when it comes in any case, and there is no second process
//! that could have the pages.

mod client;
mod door;
mod incoming;
mod mailbox;
mod open;
mod outgoing;
mod permissions;
mod place;
mod presence;
mod sealed;
mod server;
mod server_clock;

#[cfg(test)]
mod tests;

pub use door::{AtNode, NodeError};
pub(super) use door::{Door, NodeDoor};
pub(super) use place::is_at_node;
pub use place::{ChannelAddress, NoChannelAddress};
