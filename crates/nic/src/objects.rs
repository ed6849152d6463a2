//! The objects of verbs, by id.

use portcullis_protocol::Rkey;
use std::fmt;

use crate::{Access, Lkey};

/// A protection domain.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct PdId(pub u32);

/// A memory region.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct RegionId(pub u32);

/// A memory window.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct WindowId(pub u32);

/// A queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct QpId(pub u32);

/// A completion queue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct CqId(pub u32);

/// A registered region and its keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// The region.
    pub id: RegionId,
    /// The key that names the region in local spans and in binds.
    pub lkey: Lkey,
    /// The key that names the region to peers, as far as its access flags allow.
    pub rkey: Rkey,
}

/// An allocated window and its key. A bind gives the key another low byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// The window.
    pub id: WindowId,
    /// The window's key as allocated: it opens nothing before a bind.
    pub rkey: Rkey,
}

/// The two kinds of window.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WindowKind {
    /// Type 1: works on every queue pair of its protection domain. It can be bound again in place; length zero unbinds
    /// it.
    One,
    /// Type 2B: works on the queue pair that bound it. It must be free before a bind; an invalidate frees it.
    Two,
}

/// The states of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum QpState {
    /// Just created, or reset: nothing can be posted.
    Reset,
    /// Receives can be posted.
    Init,
    /// Requests of the peer are served.
    ReadyToReceive,
    /// Requests can be sent as well.
    ReadyToSend,
    /// Every posted request is flushed.
    Error,
}

impl fmt::Display for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::ReadyToReceive => "RTR",
            Self::ReadyToSend => "RTS",
            Self::Error => "ERR",
        })
    }
}

/// The address at which a peer reaches a queue pair: number, port address and first packet number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct QpAddress {
    /// The queue pair's number on its NIC.
    pub number: u32,
    /// The port's address (a GID); zero if all ends are on one NIC.
    pub port: [u8; 16],
    /// The port's number in its InfiniBand subnet (a LID); zero on Ethernet.
    pub lid: u16,
    /// The base of the first packet sequence number of this queue pair's requests: in its present connection, or, in
    /// RESET and INIT, in the next one.
    ///
    /// The peer receives this number once, when the two ends are connected for the first time. After that each end
    /// counts for both:
    /// - A NIC adds one to its own queue pair's number with every [`QpChange::Reset`] that it carries out, whatever the
    ///   state before, and at no other time.
    /// - The side that rebuilds a queue pair adds one to the peer's number ([`QpAddress::after_reset`]), since the
    ///   peer's end is reset too.
    ///
    /// So both ends agree as long as each end is reset once per rebuild. If that fails at one end, the queue pair
    /// cannot be rebuilt again. Counting wraps at 2³². A wire with shorter numbers, such as InfiniBand's of 24 bits,
    /// makes them from the low bits, in the same way at both ends: `rq_psn` from the peer's number in the step to RTR,
    /// `sq_psn` from the queue pair's own number in the step to RTS. If packets of an old connection may still arrive,
    /// consecutive numbers should be mapped far apart.
    pub first_packet: u32,
}

impl QpAddress {
    /// The address of the queue pair after one more [`QpChange::Reset`].
    #[must_use]
    pub fn after_reset(self) -> Self {
        Self { first_packet: self.first_packet.wrapping_add(1), ..self }
    }
}

/// The attributes with which a queue pair is created.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpAttributes {
    /// The completion queue of its send queue.
    pub send_cq: CqId,
    /// The completion queue of its receive queue.
    pub receive_cq: CqId,
    /// Requests that its send queue holds: a power of two.
    pub send_depth: u32,
    /// Receives that its receive queue holds: a power of two, or zero.
    pub receive_depth: u32,
}

/// A queue pair's send queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendQueue {
    /// The completion queue of the send queue.
    pub cq: CqId,
    /// Requests that the queue holds: a power of two.
    pub depth: u32,
}

/// A step of `ibv_modify_qp`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QpChange {
    /// Any state to RESET: posted requests are discarded without a completion. The queue pair's own
    /// [`QpAddress::first_packet`] is one greater from here on.
    Reset,
    /// RESET to INIT, with the accesses that peers may make through this queue pair.
    Init {
        /// Flags of [`Access::REMOTE`].
        access: Access,
    },
    /// INIT to RTR, with the address of the peer.
    ReadyToReceive {
        /// The address of the peer.
        peer: QpAddress,
    },
    /// RTR to RTS.
    ReadyToSend {
        /// Number of times that a SEND is tried again while the peer has no receive posted; 7 means for ever.
        rnr_retries: u8,
    },
    /// Changes the rights of peers, in RTR or RTS.
    Access {
        /// Flags of [`Access::REMOTE`].
        access: Access,
    },
    /// Any state but RESET to ERR.
    Error,
}
