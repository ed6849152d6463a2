//! One-shot remote memory access (1RMA): reads and writes of at most [`OPERATION_MAX`] bytes and atomics, each
//! independent, encrypted and authenticated. There is no connection that could break, and a node's state does not grow
//! with the number of clients that hold keys.
//!
//! The two ends of an operation are state machines: [`Initiator`] is a client's end and [`Responder`] a node's.
//! [`Executor`] builds transfers of any size from a client's operations. They take datagrams and times as input, and
//! output datagrams and completions. They do no I/O, read no clock and draw no random number. They do not decide which
//! client has which permission: the owner of the [`RegionTable`] does. [`PathMtu`] discovers repeatedly how long
//! datagrams may be. Only [`UdpSocket`] does I/O: it carries datagrams in batches.
#![forbid(unsafe_code)]

mod arrivals;
mod atomic;
mod cipher;
mod congestion;
mod deadlines;
mod endpoint;
mod executor;
mod initiator;
mod keys;
mod lane_sockets;
mod node_socket;
mod outbox;
mod packet;
mod path_mtu;
mod probe;
mod regions;
mod responder;
mod status;
mod udp;

pub use atomic::Atomic;
pub use cipher::{IS_ENCRYPTED, TAG_BYTES};
pub use congestion::{Congestion, CongestionParameters};
pub use endpoint::{ControlLink, NodeEnd, UdpEndpoint};
pub use executor::{
    Executor, ExecutorCounters, ExecutorLimits, NotBegun, Pace, REPEAT_TIMEOUTS_MAX, Signal, Transfer,
    TransferEnd, TransferId,
};
pub use initiator::{
    Action, Command, Completion, Destination, Initiator, InitiatorLimits, NotIssued, ReadData, ServiceClass,
    SlotId, Terms,
};
pub use keys::{
    DerivationKey, DerivedKey, HolderTerms, HostAddress, OperationKey, OperationType, RegionKey, RegionTerms,
};
pub use node_socket::NodeSocket;
pub use packet::HEADER_BYTES;
pub use path_mtu::{Direction, PathMtu};
pub use probe::{Path, PathError, find_path};
pub use regions::{Allowed, NoRoom, Region, RegionId, RegionTable};
pub use responder::{RefusalCause, Refused, Responder, ResponderCounters, ResponderLimits};
pub use status::Status;
pub use udp::{NotSent, UdpSocket};

/// Maximum number of bytes that one operation moves (1RMA §4.1).
pub const OPERATION_MAX: u32 = 4096;
