//! A command in its slot.

use crate::arrivals::Arrivals;
use crate::initiator::{ServiceClass, SlotId, Terms};
use crate::keys::{OperationKey, OperationType};
use crate::packet::{AnswerSize, Header, Kind};
use crate::regions::RegionId;
use std::net::SocketAddr;
use std::time::Duration;

/// A command in its slot.
#[derive(Debug)]
pub(super) struct Slot {
    pub operation: OperationType,
    pub to: SocketAddr,
    pub client: u64,
    pub region: RegionId,
    pub key: OperationKey,
    pub address: u64,
    /// Bytes of the operation's data.
    pub length: u32,
    /// The data of a change.
    pub data: Vec<u8>,
    pub class: ServiceClass,
    pub issued: Duration,
    pub terms: Terms,
    pub sent: Option<Sent>,
}

/// A command whose request was sent.
#[derive(Debug)]
pub(super) struct Sent {
    pub number: u64,
    pub at: Duration,
    pub arrivals: Arrivals,
    /// The responder's salt for a change, once it is known.
    pub salt: u64,
    /// Number of requests for the outcome that the initiator has sent.
    pub asks: u32,
    /// The former word of an atomic, once it is known to have happened.
    pub before: Option<u64>,
}

impl Slot {
    /// Returns the header of a packet under this counter. `id` is the slot's own; `operation` and `salt` are their
    /// known values.
    pub fn header(&self, kind: Kind, id: SlotId, counter: u64, (operation, salt): (u64, u64)) -> Header {
        Header {
            kind,
            of: self.operation,
            length: self.length,
            client: self.client,
            region: self.region,
            operation,
            slot: id.0,
            counter,
            salt,
            address: self.address,
            offset: 0,
            answers: AnswerSize::of(0),
        }
    }

    /// Whether a header with a number of this slot's operation belongs to an answer to it.
    pub fn is_answer(&self, from: SocketAddr, header: &Header) -> bool {
        self.to == from
            && (self.operation, self.length, self.client, self.region, self.address)
                == (header.of, header.length, header.client, header.region, header.address)
    }
}
