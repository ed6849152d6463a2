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
    /// Names the region in local spans and in binds.
    pub lkey: Lkey,
    /// Names the region to peers, as far as its access flags allow.
    pub rkey: Rkey,
}

/// An allocated window and its key. A bind gives the key another low byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// The window.
    pub id: WindowId,
    /// Its key as allocated: it opens nothing before a bind.
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
    /// Just made, or reset: nothing can be posted.
    Reset,
    /// Receives can be posted.
    Init,
    /// Requests of the peer are served.
    ReadyToReceive,
    /// Requests can be sent as well.
    ReadyToSend,
    /// Everything posted is flushed.
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

/// Where a queue pair can be reached by its peer: number, port address and first packet number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct QpAddress {
    /// The queue pair's number on its NIC.
    pub number: u32,
    /// The port's address (a GID); zero where all ends are on one NIC.
    pub port: [u8; 16],
    /// The port's number in its InfiniBand subnet (a LID); zero on Ethernet.
    pub lid: u16,
    /// What the first packet sequence number of this queue pair's requests is made from: in its present connection, or,
    /// in RESET and INIT, in the next one.
    ///
    /// The peer is told it once, when the two ends are connected for the first time. After that each end counts for
    /// both:
    /// - A NIC adds one to its own queue pair's number with every [`QpChange::Reset`] that it carries out, whatever the
    ///   state before, and at no other time.
    /// - The side that rebuilds a queue pair adds one to the peer's number ([`QpAddress::after_reset`]), since the
    ///   peer's end is reset too.
    ///
    /// So both agree while each end is reset once a rebuild. If that fails at one end, the queue pair cannot be rebuilt
    /// again. Counting wraps at 2³². A wire whose numbers are shorter, such as InfiniBand's of 24 bits, makes them from
    /// the low bits, in the same way at both ends: `rq_psn` from the peer's in the step to RTR, `sq_psn` from the queue
    /// pair's own in the step to RTS. Where packets of an old connection may still arrive, neighbours should lie far
    /// apart.
    pub first_packet: u32,
}

impl QpAddress {
    /// Where the queue pair is after one more [`QpChange::Reset`].
    #[must_use]
    pub fn after_reset(self) -> Self {
        Self { first_packet: self.first_packet.wrapping_add(1), ..self }
    }
}

/// What a queue pair is made with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpAttributes {
    /// Where completions of its send queue go.
    pub send_cq: CqId,
    /// Where completions of its receive queue go.
    pub receive_cq: CqId,
    /// Requests that its send queue holds: a power of two.
    pub send_depth: u32,
    /// Receives that its receive queue holds: a power of two, or zero.
    pub receive_depth: u32,
}

/// A queue pair's send queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendQueue {
    /// Where its completions go.
    pub cq: CqId,
    /// Requests that it holds: a power of two.
    pub depth: u32,
}

/// A step of `ibv_modify_qp`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QpChange {
    /// Any state to RESET: what was posted is discarded without a completion. The queue pair's own
    /// [`QpAddress::first_packet`] is one greater from here on.
    Reset,
    /// RESET to INIT, with what peers may do through this queue pair.
    Init {
        /// Of [`Access::REMOTE`].
        access: Access,
    },
    /// INIT to RTR, with the peer.
    ReadyToReceive {
        /// Where the peer is.
        peer: QpAddress,
    },
    /// RTR to RTS.
    ReadyToSend {
        /// How often a SEND is tried again while the peer has no receive posted; 7 means for ever.
        rnr_retries: u8,
    },
    /// In RTR or RTS: other rights for peers.
    Access {
        /// Of [`Access::REMOTE`].
        access: Access,
    },
    /// Any state but RESET to ERR.
    Error,
}
