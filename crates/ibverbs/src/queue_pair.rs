//! A queue pair, with what its NIC has to remember about it.

use crate::ledger::Ledger;
use crate::sys::Qp;
use portcullis_nic::{CqId, PdId, QpState, RegionId, WindowId};

#[derive(Debug)]
pub(crate) struct Posted {
    /// The owner's number for it.
    pub id: u64,
    pub effect: Effect,
}

/// What a request changes in the books when it succeeds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Effect {
    None,
    /// A window is bound over a region, or over none.
    Bind {
        window: WindowId,
        key_before: u32,
        over: Option<RegionId>,
    },
    /// The type-2 window with this key becomes free.
    Invalidate {
        rkey: u32,
    },
}

/// Whether a peer has broken the queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Trip {
    No,
    /// Seen. The owner is told once it is certain that none of its own requests broke it.
    Seen,
    Told,
}

pub(crate) struct QueuePair {
    pub qp: Qp,
    pub pd: PdId,
    pub send_cq: CqId,
    pub receive_cq: CqId,
    /// As its owner set it, or as it was found.
    pub state: QpState,
    /// Distinguishes its requests from those before its last reset.
    pub epoch: u16,
    /// The number of its first packet in the next connection.
    pub first_packet: u32,
    pub send: Ledger<Posted>,
    pub receive: Ledger<u64>,
    /// It has one receive of the NIC's own and none of its owner's. Nothing else tells at once, on every device, that
    /// such a queue pair broke.
    pub tripwire: bool,
    pub trip: Trip,
    /// Its owner broke it, by a step or by a request that failed.
    pub broken_by_owner: bool,
    /// How many entries of its completion queues are kept for its requests, and for its receives.
    pub entries: (u32, u32),
    /// How many type-2 windows are bound to it.
    pub windows: u32,
}

impl QueuePair {
    /// Whether only asking would tell that a peer broke it.
    pub fn is_mute(&self) -> bool {
        let serves = matches!(self.state, QpState::ReadyToReceive | QpState::ReadyToSend);
        serves && self.trip == Trip::No && !self.tripwire && self.receive.is_empty()
    }
}
