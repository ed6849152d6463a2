//! A queue pair with what its owner has to remember about it.

use crate::ledger::Ledger;
use crate::sys::Qp;
use portcullis_nic::{CqId, PdId, QpState, RegionId, WindowId};

/// A posted request.
#[derive(Debug)]
pub(crate) struct Posted {
    /// The owner's number for it.
    pub id: u64,
    pub effect: Effect,
}

/// What a request changes in the books when it is done.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Effect {
    None,
    /// A window lies over a region now, or over none.
    Bind {
        window: WindowId,
        key_before: u32,
        over: Option<RegionId>,
    },
    /// A type-2 window with this key is free.
    Invalidate {
        rkey: u32,
    },
}

/// Whether a peer has broken it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Trip {
    No,
    /// It was seen, and is told once it is sure that no request of the owner's own broke it.
    Seen,
    Told,
}

/// A queue pair.
pub(crate) struct QueuePair {
    pub qp: Qp,
    pub pd: PdId,
    pub send_cq: CqId,
    pub receive_cq: CqId,
    /// As its owner made it, or found it.
    pub state: QpState,
    /// Tells its requests from those before its last reset.
    pub epoch: u16,
    /// The number that its first packet has from the next connection on.
    pub first_packet: u32,
    pub send: Ledger<Posted>,
    pub receive: Ledger<u64>,
    /// It has no receives of its owner, and one of the NIC's own: the only thing on such a queue pair that tells at
    /// once, on every device, that it broke.
    pub tripwire: bool,
    pub trip: Trip,
    /// Its owner broke it: by a step, or by a request that failed.
    pub broken_by_owner: bool,
    /// Entries of its completion queues that are kept for it: of requests, and of receives.
    pub entries: (u32, u32),
    /// Type-2 windows that are bound to it.
    pub windows: u32,
}

impl QueuePair {
    /// Whether nothing but asking would tell that a peer broke it.
    pub fn is_mute(&self) -> bool {
        let serves = matches!(self.state, QpState::ReadyToReceive | QpState::ReadyToSend);
        serves && self.trip == Trip::No && !self.tripwire && self.receive.is_empty()
    }
}
