//! The execution of each verb, written once for requests from this NIC and from the network.
//!
//! A request has two halves. The requester's half checks its own memory ([`Core::requester_end`]) and completes the
//! request. The responder's half ([`Core::execute`]) checks queue pair, domain, key, range and rights, and reads or
//! changes memory. Between them the bytes go through an [`Exchange`]: from memory to memory if both ends are on this
//! NIC, otherwise in packets. This module does not know which exchange is used.
//!
//! A new verb that reaches the peer is a variant of [`Verb`] and an executor here. A verb that concerns only the
//! requester's end has its executor in [`window`], and a request of a chain in [`chain`].

mod chain;
mod message;
mod window;

use super::keys::{Claim, Target};
use super::objects::Core;
use portcullis_memory::Bytes;
use portcullis_nic::{
    Access, Event, LocalSpan, Operation, PdId, QpId, QpState, RefusedAccess, RemoteSpan, Rkey, Status,
};

const MESSAGE_BYTES_MAX: u32 = 1 << 20;
const WORD_BYTES: u32 = 8;

/// The responder's part of a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Verb {
    Read { remote: RemoteSpan, length: u32 },
    Write { remote: RemoteSpan, length: u32 },
    CompareAndSwap { remote: RemoteSpan, compare: u64, swap: u64 },
    FetchAndAdd { remote: RemoteSpan, add: u64 },
    Send { length: u32, invalidate: Option<Rkey> },
}

impl Verb {
    /// Returns the responder's part of an operation, and its bytes at the requester. `None`: the operation concerns
    /// only the requester's end.
    #[inline]
    pub fn of(operation: Operation) -> Option<(Self, LocalSpan)> {
        Some(match operation {
            Operation::Read { local, remote } => (Self::Read { remote, length: local.length }, local),
            Operation::Write { local, remote } => (Self::Write { remote, length: local.length }, local),
            Operation::CompareAndSwap { local, remote, compare, swap } => {
                (Self::CompareAndSwap { remote, compare, swap }, local)
            }
            Operation::FetchAndAdd { local, remote, add } => (Self::FetchAndAdd { remote, add }, local),
            Operation::Send { local } => (Self::Send { length: local.length, invalidate: None }, local),
            Operation::SendWithInvalidate { local, rkey } => {
                (Self::Send { length: local.length, invalidate: Some(rkey) }, local)
            }
            Operation::BindWindow(_) | Operation::LocalInvalidate { .. } | Operation::Chain(_) => {
                return None;
            }
        })
    }

    /// Whether the answer carries bytes to the requester.
    pub fn returns_bytes(self) -> bool {
        matches!(self, Self::Read { .. } | Self::CompareAndSwap { .. } | Self::FetchAndAdd { .. })
    }

    /// Returns the responder's memory that the verb names, the number of bytes, and the right that the access needs. A
    /// message names no memory.
    #[inline]
    fn claim(self) -> Option<(RemoteSpan, u32, Access)> {
        match self {
            Self::Read { remote, length } => Some((remote, length, Access::REMOTE_READ)),
            Self::Write { remote, length } => Some((remote, length, Access::REMOTE_WRITE)),
            Self::CompareAndSwap { remote, .. } | Self::FetchAndAdd { remote, .. } => {
                Some((remote, WORD_BYTES, Access::REMOTE_ATOMIC))
            }
            Self::Send { .. } => None,
        }
    }
}

/// The progress of a request at a responder that does not refuse it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Done,
    /// A part of the request is done; the rest is for the next visit.
    Partly,
    /// No receive is posted, or its completion has no room.
    NotReady,
}

/// The way in which the bytes of a request move from one of its ends to the other.
pub(super) trait Exchange<M> {
    /// Moves `length` bytes from the responder to the requester, or as many of them as the exchange allows now.
    fn fetch(&mut self, core: &Core<M>, from: Target, length: u32) -> Progress;

    /// Moves `length` bytes from the requester to the responder, or as many of them as the exchange allows now.
    fn store(&mut self, core: &Core<M>, into: Target, length: u32) -> Progress;

    /// Moves a whole message from the requester to the responder.
    fn put(&mut self, core: &Core<M>, into: Target, length: u32);

    /// Moves the value that a word of the responder had before an atomic to the requester.
    fn fetch_word(&mut self, core: &Core<M>, value: u64);
}

/// The properties of its queue pair that the responder's half of a request needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Responder {
    pub id: QpId,
    pub pd: PdId,
    pub access: Access,
}

impl<M: Bytes> Core<M> {
    /// Returns the place of a request's bytes at the requester, if its key allows this use.
    #[inline(always)]
    pub(super) fn requester_end(&self, pd: PdId, verb: Verb, local: LocalSpan) -> Result<Target, Status> {
        let fits = match verb {
            Verb::Read { .. } | Verb::Write { .. } => true,
            Verb::CompareAndSwap { .. } | Verb::FetchAndAdd { .. } => local.length == WORD_BYTES,
            Verb::Send { length, .. } => length <= MESSAGE_BYTES_MAX,
        };
        if !fits {
            return Err(Status::LocalLengthError);
        }
        self.keys.local(pd, local, verb.returns_bytes()).ok_or(Status::LocalProtectionError)
    }

    /// Executes the responder's half of a request. An error is the status with which the responder refuses the request:
    /// the caller then takes both ends to ERR ([`Core::break_responder`]).
    #[inline]
    pub(super) fn execute(
        &mut self,
        responder: &Responder,
        verb: Verb,
        exchange: &mut impl Exchange<M>,
    ) -> Result<Progress, Status> {
        if let Verb::Send { length, invalidate } = verb {
            return self.deliver(responder, length, invalidate, exchange);
        }
        let (remote, length, access) = verb.claim().expect("only a message names no memory");
        if length == 0 {
            // The key of a request of no bytes is not checked (InfiniBand specification, C9-88).
            return Ok(Progress::Done);
        }
        // The key is checked again for every part of a long transfer: the end of a permission cuts the transfer off.
        let there = self.admit(responder, remote, length, access)?;
        Ok(match verb {
            Verb::Read { .. } => exchange.fetch(self, there, length),
            Verb::Write { .. } => exchange.store(self, there, length),
            Verb::CompareAndSwap { compare, swap, .. } => {
                let before = self.word(remote, there)?.compare_exchange(there.offset, compare, swap);
                exchange.fetch_word(self, before);
                Progress::Done
            }
            Verb::FetchAndAdd { add, .. } => {
                let before = self.word(remote, there)?.fetch_add(there.offset, add);
                exchange.fetch_word(self, before);
                Progress::Done
            }
            Verb::Send { .. } => unreachable!("a message was delivered above"),
        })
    }

    /// Returns the target of an access in the responder's memory, if the queue pair and the key allow the access.
    #[inline]
    fn admit(
        &self,
        responder: &Responder,
        remote: RemoteSpan,
        length: u32,
        access: Access,
    ) -> Result<Target, Status> {
        if !responder.access.contains(access) {
            return Err(Status::RemoteAccessError);
        }
        let (pd, queue_pair, length) = (responder.pd, responder.id, length.into());
        let RemoteSpan { rkey, address } = remote;
        let there = self.keys.authorize(&Claim { pd, queue_pair, rkey, address, length, access });
        there.ok_or(Status::RemoteAccessError)
    }

    /// Returns the memory of the word that an atomic changes. The key has been checked already.
    fn word(&self, remote: RemoteSpan, there: Target) -> Result<&M, Status> {
        let word = u64::from(WORD_BYTES);
        if !remote.address.0.is_multiple_of(word) || !there.offset.is_multiple_of(word) {
            return Err(Status::RemoteInvalidRequestError);
        }
        Ok(&self.memories[there.memory])
    }

    /// Takes the queue pair of a responder that has just refused a request to ERR, and reports the reason to its owner.
    #[cold]
    pub(super) fn break_responder(&mut self, responder: &Responder, verb: Verb) {
        let refused = verb.claim().map(|(RemoteSpan { address, rkey }, length, needs)| {
            let length = length.into();
            let queue_pair = (responder.id, responder.access);
            let fault = self.keys.fault(responder.pd, queue_pair, rkey, (address, length), needs);
            RefusedAccess { address, length, needs, rkey, fault }
        });
        // A queue pair that is its own peer is lent at this time, and in ERR already.
        if let Some(pair) = self.qps.get_mut(responder.id.0) {
            pair.state = QpState::Error;
            self.ring(responder.id);
        }
        self.raise(Event::AccessError(responder.id, refused));
    }
}
