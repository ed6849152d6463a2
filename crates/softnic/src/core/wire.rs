//! The messages between NICs: requests and their answers, with one packet for each message.
//!
//! A NIC without a port serves only queue pairs whose ends are both its own, and sends no packets. With a port, every
//! request crosses the network: [`Core::take_outgoing`] returns the packets to be carried, and [`Core::receive`]
//! handles them at the other end. Packets may be carried in any way, but those of one queue pair must keep their order.
//! Lost packets are not sent again: a requester that receives no answer gives up after the network's patience
//! (`RETRY_EXC_ERR`).

use super::objects::Core;
use portcullis_memory::Bytes;
use portcullis_nic::{QpAddress, QpId, RemoteSpan, Rkey, Status};
use portcullis_protocol::{Lifetime, Moment};
use std::collections::VecDeque;

/// A NIC's place on a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkPort {
    /// The NIC's address (a GID). Not zero.
    pub address: [u8; 16],
    /// The packet number at which the first connections of the NIC's queue pairs begin. Each further connection of a
    /// queue pair begins one higher. A different number after a restart keeps out packets that were meant for the NIC
    /// before the restart.
    pub first_packet: u32,
    /// The longest time that an answer may take before a request counts as failed.
    pub patience: Lifetime,
}

/// A message on its way from one NIC to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The queue pair that sends the packet.
    pub from: QpAddress,
    /// The queue pair that the packet is for.
    pub to: QpAddress,
    /// The request's number in its connection, from zero. An answer carries the number of its request.
    pub number: u32,
    /// The content of the packet.
    pub body: PacketBody,
}

/// The content of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PacketBody {
    /// A request, to the responder. `id` is the work request's number: it is for traces, and the responder ignores it.
    Request {
        /// The work request's number.
        id: u64,
        /// The request.
        request: WireRequest,
    },
    /// An answer, to the requester.
    Response(Response),
}

/// A requester's request to a responder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WireRequest {
    /// Reads bytes of the responder.
    Read {
        /// The address of the bytes, and the key that the request shows.
        remote: RemoteSpan,
        /// The number of bytes.
        length: u32,
    },
    /// Writes bytes to the responder.
    Write {
        /// The destination address of the bytes, and the key that the request shows.
        remote: RemoteSpan,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Does a compare and swap of a word.
    CompareAndSwap {
        /// The address of the word, and the key that the request shows.
        remote: RemoteSpan,
        /// The value that the word must have.
        compare: u64,
        /// The value to store.
        swap: u64,
    },
    /// Does a fetch and add on a word.
    FetchAndAdd {
        /// The address of the word, and the key that the request shows.
        remote: RemoteSpan,
        /// The number to add.
        add: u64,
    },
    /// Sends a message to the next receive.
    Send {
        /// The message.
        bytes: Vec<u8>,
        /// The peer's type-2 window that the message invalidates.
        invalidate: Option<Rkey>,
    },
}

/// A responder's answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    /// The request was carried out.
    Done,
    /// The requested bytes.
    Bytes(Vec<u8>),
    /// A word's value before an atomic.
    Value(u64),
    /// No receive is posted: the requester is to try again (RNR NAK).
    NotReady,
    /// The request is refused. The responder's queue pair is in error.
    Refused(Status),
}

/// A NIC's side of its network.
#[derive(Clone, Debug)]
pub(super) struct Network {
    pub port: NetworkPort,
    pub outgoing: Vec<Packet>,
    /// Queue pairs that wait for an answer, by the end of their patience: each request that is sent adds an entry.
    pub waits: VecDeque<(Moment, QpId)>,
    /// Queue pairs whose peer was not ready, by the time of their next try.
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

    /// The next moment at which [`Core::turn`] has something to do even if nothing is posted and nothing arrives.
    /// `None`: there is no such moment.
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
