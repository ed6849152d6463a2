//! The attach of a client on another machine: a control connection, TCP with mutual TLS, on which each side sends the
//! other the addresses of its queue pairs.
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
//! Each message is two bytes of length, little endian, and at most 4096 bytes in postcard's encoding. After the welcome
//! no byte is sent: the connection exists so that each end notices when the other has left. A byte after the welcome is
//! a breach, and ends the attach.
//!
//! A node whose clients have no queue pairs answers the hello with a welcome that contains its UDP port. After that the
//! control messages of both sides travel over the connection, each in a frame, in any order ([`Talk`]).
//!
//! A client's tenant comes from its certificate ([`ClientIdentity`]), never from its messages. The client recognises
//! the node by the node's certificate, for the host that it connected to ([`NodeIdentity`]). Both certificates are of
//! one private authority; [`certificates`] makes them. TLS is version 1.3. Sessions are not resumed, since one would
//! outlive an expired certificate. A certificate is checked at the attach: its expiry ends no existing
//! connection.
//!
//! The connection does not carry the data of reads and writes, and TLS does not protect that data: see THREATS.md.

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
mod talk;
mod tcp;
mod terms;
mod trust;

pub use acceptance::{TcpHolder, TlsHandshake};
pub use client::{
    AttachError, Attached, AttachedWithoutQueuePairs, ClientSecurity, attach, attach_without_queue_pairs,
};
pub use connection::Connection;
pub use handshake::Breach;
pub use identity::{ClientIdentity, IdentityError, NodeIdentity, Validity};
pub use listener::{ListenError, Listener, NodeSecurity};
pub use policy::{AdmissionPolicy, Admitted, Origin, Peer};
pub use subject::{BadTenantName, TENANT_LETTERS_MAX, check_tenant_name};
pub use talk::Talk;
pub use terms::{
    DATAGRAM_BYTES_MAX, DATAGRAM_BYTES_MIN, Ends, Offer, OneShotTerms, QUEUE_PAIR_MAX, Terms, UnfitEnds,
};
