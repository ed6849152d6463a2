//! What travels between NICs: requests and their answers, one packet a message.
//!
//! A NIC without a port serves only queue pairs whose ends are both its own, and sends no packets. With a port, every
//! request crosses the network: [`Core::take_outgoing`] returns the packets to be carried, and [`Core::receive`] takes
//! them in at the other end. How packets are carried does not matter, but those of one queue pair must keep their
//! order. Lost packets are not sent again: a requester whose answer does not come gives up after the network's patience
//! (`RETRY_EXC_ERR`).

use super::objects::Core;
use portcullis_memory::Bytes;
use portcullis_nic::{QpAddress, QpId, RemoteSpan, Rkey, Status};
use portcullis_protocol::{Lifetime, Moment};
use std::collections::VecDeque;

/// A NIC's place on a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkPort {
    /// Its address (a GID). Not zero.
    pub address: [u8; 16],
    /// The packet number at which the first connections of its queue pairs begin. Each further connection of a queue
    /// pair begins one higher. A different number after a restart keeps out packets that were meant for the NIC before
    /// it.
    pub first_packet: u32,
    /// How long an answer may take before a request counts as failed.
    pub patience: Lifetime,
}

/// A message on its way from one NIC to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The queue pair that sends it.
    pub from: QpAddress,
    /// The queue pair that it is for.
    pub to: QpAddress,
    /// The request's place in its connection, from zero. An answer carries its request's.
    pub number: u32,
    /// What it says.
    pub body: PacketBody,
}

/// What a packet says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PacketBody {
    /// To the responder. `id` is the work request's number: it is for traces, and the responder ignores it.
    Request {
        /// The work request's number.
        id: u64,
        /// What is asked for.
        request: WireRequest,
    },
    /// To the requester.
    Response(Response),
}

/// What a requester asks of a responder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WireRequest {
    /// Bytes from there.
    Read {
        /// Where they are.
        remote: RemoteSpan,
        /// How many.
        length: u32,
    },
    /// Bytes to there.
    Write {
        /// Where they go.
        remote: RemoteSpan,
        /// What.
        bytes: Vec<u8>,
    },
    /// Compare and swap of a word.
    CompareAndSwap {
        /// Where it is.
        remote: RemoteSpan,
        /// What must be there.
        compare: u64,
        /// What goes there.
        swap: u64,
    },
    /// Fetch and add on a word.
    FetchAndAdd {
        /// Where it is.
        remote: RemoteSpan,
        /// What is added.
        add: u64,
    },
    /// A message to the next receive.
    Send {
        /// The message.
        bytes: Vec<u8>,
        /// The peer's type-2 window that it invalidates.
        invalidate: Option<Rkey>,
    },
}

/// What a responder says to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    /// Done.
    Done,
    /// The bytes that were asked for.
    Bytes(Vec<u8>),
    /// A word's value before an atomic.
    Value(u64),
    /// No receive is posted: try again (RNR NAK).
    NotReady,
    /// No. The responder's queue pair is in error.
    Refused(Status),
}

/// A NIC's side of its network.
#[derive(Clone, Debug)]
pub(super) struct Network {
    pub port: NetworkPort,
    pub outgoing: Vec<Packet>,
    /// Queue pairs that wait for an answer, by when their patience ends: each request that is sent adds an entry.
    pub waits: VecDeque<(Moment, QpId)>,
    /// Queue pairs whose peer was not ready, by when they try again.
    pub resends: VecDeque<(Moment, QpId)>,
}

impl<M: Bytes> Core<M> {
    /// Puts the NIC on a network: from now on its queue pairs reach their peers only through packets.
    ///
    /// # Panics
    /// The NIC has queue pairs already, or the address is zero.
    pub fn join(&mut self, port: NetworkPort) {
        assert!(self.qps.is_empty(), "a NIC joins its network before it has queue pairs");
        assert!(port.address != [0; 16], "a port's address is not zero");
        let (outgoing, waits, resends) = (Vec::new(), VecDeque::new(), VecDeque::new());
        self.network = Some(Network { port, outgoing, waits, resends });
    }

    /// Whether the NIC reaches its peers through packets.
    #[must_use]
    pub fn is_networked(&self) -> bool {
        self.network.is_some()
    }

    /// Moves the packets that are to be carried into `into`, oldest first.
    pub fn take_outgoing(&mut self, into: &mut Vec<Packet>) {
        if let Some(network) = &mut self.network {
            into.append(&mut network.outgoing);
        }
    }

    /// When [`Core::turn`] has something to do even if nothing is posted and nothing arrives. `None`: never.
    #[must_use]
    pub fn next_wake(&self) -> Option<Moment> {
        let network = self.network.as_ref()?;
        let first = |queue: &VecDeque<(Moment, QpId)>| queue.front().map(|&(at, _)| at);
        [first(&network.waits), first(&network.resends)].into_iter().flatten().min()
    }

    pub(super) fn emit(&mut self, packet: Packet) {
        if let Some(network) = &mut self.network {
            network.outgoing.push(packet);
        }
    }
}
