//! A queue pair, with the state that its NIC has to remember about it.

use crate::in_flight_requests::InFlightRequests;
use crate::sys::Qp;
use portcullis_nic::{CqId, PdId, QpState, RegionId, WindowId};

#[derive(Debug)]
pub(crate) struct Posted {
    /// The owner's number for the request.
    pub id: u64,
    pub effect: Effect,
}

/// The change to the books when a request succeeds.
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
    /// The break was seen. It is reported to the owner once it is certain that none of the owner's requests caused it.
    Seen,
    Told,
}

pub(crate) struct QueuePair {
    pub qp: Qp,
    pub pd: PdId,
    pub send_cq: CqId,
    pub receive_cq: CqId,
    /// The state that the owner set or that was found on the device.
    pub state: QpState,
    /// Distinguishes the queue pair's requests from those before its last reset.
    pub epoch: u16,
    /// The number of the queue pair's first packet in the next connection.
    pub first_packet: u32,
    pub send: InFlightRequests<Posted>,
    pub receive: InFlightRequests<u64>,
    /// Whether the queue pair has one receive of the NIC's own and none of its owner's. On some devices nothing else
    /// reports at once that such a queue pair broke.
    pub tripwire: bool,
    pub trip: Trip,
    /// Whether the owner broke the queue pair, by a step or by a request that failed.
    pub broken_by_owner: bool,
    /// Entries of the completion queues reserved for the queue pair's requests, and for its receives.
    pub entries: (u32, u32),
    /// Number of type-2 windows bound to the queue pair.
    pub windows: u32,
}

impl QueuePair {
    /// Whether only a query of the queue pair's state would show that a peer broke it.
    pub fn is_mute(&self) -> bool {
        let serves = matches!(self.state, QpState::ReadyToReceive | QpState::ReadyToSend);
        serves && self.trip == Trip::No && !self.tripwire && self.receive.is_empty()
    }
}
