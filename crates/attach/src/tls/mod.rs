//! How a client of another machine attaches to a node: a control connection over TCP with mutual TLS, over which the
//! two tell each other where their queue pairs can be reached.
//!
//! ```text
//! client                                     node
//!    │  hello: the version                     │
//!    ├────────────────────────────────────────►│
//!    │  terms: how many queue pairs, how deep  │   or why not
//!    │◄────────────────────────────────────────┤
//!    │  ends: the client's queue pairs         │
//!    ├────────────────────────────────────────►│
//!    │  welcome: its number, the node's ends   │   or why not
//!    │◄────────────────────────────────────────┤
//!    │               silence                   │
//! ```
//!
//! Each message is two bytes of length, little endian, and at most 4096 bytes in postcard's encoding. After the
//! welcome nothing is said: the connection is there so that each end notices when the other is gone. A byte all the
//! same is a breach, and ends the attach.
//!
//! Who a client is comes from its certificate ([`ClientIdentity`]), which names its tenant, never from what it
//! says; and the client knows the node by its certificate, for the host that it dialled ([`NodeIdentity`]). Both
//! are of one private authority, and [`certificates`] makes them. TLS is version 1.3. Sessions are not taken up
//! again, since a session would outlive a certificate that has expired. A certificate is looked at when its owner
//! attaches: one that expires later does not end what was attached before.
//!
//! What is read and written on the data path does not pass here, and TLS does not protect it: see THREATS.md.

mod acceptance;
mod address;
pub mod certificates;
mod channel;
mod client;
mod connection;
#[doc(hidden)]
pub mod conversation;
mod frames;
mod handshake;
mod identity;
mod listener;
mod messages;
mod policy;
mod subject;
mod tcp;
mod terms;
mod trust;

pub use acceptance::{TcpHolder, TlsHandshake};
pub use client::{AttachError, Attached, ClientSecurity, attach};
pub use connection::Connection;
pub use handshake::Breach;
pub use identity::{ClientIdentity, IdentityError, NodeIdentity};
pub use listener::{ListenError, Listener, NodeSecurity};
pub use policy::{AdmissionPolicy, Admitted, Origin, Peer};
pub use subject::{BadTenantName, TENANT_LETTERS_MAX, check_tenant_name};
pub use terms::{Ends, QUEUE_PAIR_MAX, Terms, UnfitEnds};
