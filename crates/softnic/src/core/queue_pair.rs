//! A queue pair's own state.

use super::layout::{decode_header, decode_operation, decode_transfer};
use super::quiescence::Mark;
use super::requester::Connection;
use super::rings::{ReceiveTaker, SendTaker};
use super::schedule::Polling;
use super::verbs::Verb;
use portcullis_memory::Bytes;
use portcullis_nic::{
    Access, ChainRole, ChainVerb, LocalSpan, Operation, PdId, QpChange, QpId, QpState, VerbsError,
};
use portcullis_protocol::{Lifetime, Moment};
use std::collections::VecDeque;

/// The request that a queue pair is working on, read once from its queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Current {
    /// A private copy of the request: no other process can change it.
    words: [u64; 8],
    /// Bytes of a long transfer that are done.
    pub done: u32,
    /// The first moment at which the peer had no receive for the request.
    pub not_ready_since: Option<Moment>,
}

/// The time that a peer without a receive is given for each retry (`min_rnr_timer`).
pub(super) const RNR_TIMER: Lifetime = Lifetime::micros(640);
/// The value of `rnr_retries` that means for ever.
const RNR_FOR_EVER: u8 = 7;

impl Current {
    /// Makes the current request from `words`.
    #[inline]
    pub fn read(words: [u64; 8]) -> Self {
        Self { words, done: 0, not_ready_since: None }
    }

    /// The poster's number for the request.
    #[inline]
    pub fn id(&self) -> u64 {
        decode_header(&self.words).0
    }

    /// Whether a success of the request produces a completion.
    #[inline]
    pub fn signalled(&self) -> bool {
        decode_header(&self.words).1
    }

    /// Returns the responder's part of the request, and the bytes at the requester. `None`: the request concerns only
    /// the requester's end, or means nothing.
    #[inline]
    pub fn transfer(&self) -> Option<(Verb, LocalSpan)> {
        decode_transfer(&self.words).and_then(Verb::of)
    }

    /// Whether an engine carries out the request: a READ, a WRITE or an atomic of fewer bytes than `long_transfer`, the length
    /// from which copy units move a transfer.
    pub fn is_for_engines(&self, long_transfer: u32) -> bool {
        let transfer = self.transfer().filter(|(verb, _)| !matches!(verb, Verb::Send { .. }));
        transfer.is_some_and(|(_, local)| local.length < long_transfer)
    }

    /// Returns the operation. `None`: the words mean nothing.
    #[inline]
    pub fn operation(&self) -> Option<Operation> {
        decode_operation(&self.words)
    }

    /// Whether the request is executed while a request before it is held: one that may end accesses, and allows none
    /// that a client knows of before its own completion. A chain does not wait for completions, so its bindings hand
    /// memory out at once: only its invalidations are executed.
    pub fn ends_access(&self, role: ChainRole) -> bool {
        match self.operation() {
            Some(Operation::LocalInvalidate { .. } | Operation::Chain(ChainVerb::LocalInvalidate { .. })) => {
                true
            }
            Some(Operation::BindWindow(_)) => role == ChainRole::default(),
            _ => false,
        }
    }

    /// Records that the peer is not ready to receive. Returns whether that has lasted longer than the retries.
    pub fn is_given_up(&mut self, retries: u8, now: Moment) -> bool {
        let since = *self.not_ready_since.get_or_insert(now);
        let patience = Lifetime(RNR_TIMER.0 * u64::from(retries));
        retries != RNR_FOR_EVER && now.since(since) > patience
    }
}

/// A request that was executed, and whose completion is held until no access that it has ended still moves bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub request: Current,
    /// Number of requests of the queue that had ended with it.
    pub retired: u64,
    pub until: Mark,
}

#[derive(Clone, Debug)]
pub(crate) struct QueuePair<M> {
    pub pd: PdId,
    pub state: QpState,
    /// The accesses that the peer may make.
    pub access: Access,
    /// The peer, if it is on this NIC.
    pub peer: Option<QpId>,
    /// The connection to a peer on the network.
    pub connection: Option<Box<Connection>>,
    /// Number of connections before the present one.
    pub connections: u32,
    pub rnr_retries: u8,
    pub send_cq: u32,
    pub receive_cq: u32,
    pub send: SendTaker<M>,
    pub receive: Option<ReceiveTaker<M>>,
    pub current: Option<Current>,
    /// Number of pieces of the current request that copy units have not moved yet.
    pub moving: u32,
    /// Requests that have ended accesses, in order. Later requests of this queue pair complete after them.
    pub held: VecDeque<Held>,
    /// The features of the queue pair beyond verbs.
    pub role: ChainRole,
    /// The number that completions carry.
    pub label: QpId,
    /// Whether the queue pair is among the ready ones, or naps.
    pub scheduled: bool,
    /// The queue pair's place in the schedule, if it is visited without being rung.
    pub polled: Option<Polling>,
    /// Number of visits in a row in which the queue pair could do nothing.
    pub blocked: u32,
    /// Whether this is a copy that an engine has of a peer: it has rights and a state, and posts nothing.
    pub stands_in: bool,
}

impl<M: Bytes> QueuePair<M> {
    /// Carries out the step, if the present state allows it. `networked`: the peer is reached through the network.
    pub fn modify(&mut self, change: QpChange, networked: bool) -> Result<(), VerbsError> {
        let from = self.state;
        let wrong = Err(VerbsError::State { from });
        match (change, from) {
            (QpChange::Reset, _) => {
                self.state = QpState::Reset;
                self.peer = None;
                self.connections = self.connections.wrapping_add(1);
                self.forget();
            }
            (QpChange::Init { access }, QpState::Reset) => {
                self.access = remote_only(access)?;
                self.state = QpState::Init;
            }
            (QpChange::ReadyToReceive { peer }, QpState::Init) => {
                if networked {
                    self.connection = Some(Box::new(Connection::new(peer)));
                } else {
                    self.peer = Some(QpId(peer.number));
                }
                self.state = QpState::ReadyToReceive;
            }
            (QpChange::ReadyToSend { rnr_retries }, QpState::ReadyToReceive) => {
                if rnr_retries > 7 {
                    return Err(VerbsError::Invalid("rnr_retries is 0 to 7, and 7 is for ever"));
                }
                self.rnr_retries = rnr_retries;
                self.state = QpState::ReadyToSend;
            }
            (QpChange::Access { access }, QpState::ReadyToReceive | QpState::ReadyToSend) => {
                self.access = remote_only(access)?;
            }
            (QpChange::Error, from) if from != QpState::Reset => self.state = QpState::Error,
            _ => return wrong,
        }
        Ok(())
    }

    /// Returns the copy of this end of a queue pair that an engine needs to serve the other end.
    pub fn stand_in(&self) -> Self {
        Self { stands_in: true, current: None, held: VecDeque::new(), connection: None, ..self.clone() }
    }

    /// Comes home from an engine: the queue pair is among those that are visited without being rung.
    pub fn come_home(&mut self) {
        (self.scheduled, self.blocked) = (false, 0);
        self.polled = Some(Polling::Watched);
    }

    /// Discards the posted requests and receives, without completions.
    fn forget(&mut self) {
        self.current = None;
        self.held.clear();
        self.connection = None;
        self.send.discard();
        if let Some(receive) = &mut self.receive {
            receive.discard();
        }
    }

    /// Removes and returns the oldest request on its way to a peer on another NIC.
    pub fn pop_outstanding(&mut self) -> Option<Current> {
        Some(self.connection.as_mut()?.outstanding.pop_front()?.current)
    }

    /// Number of requests on their way to a peer on another NIC.
    pub fn outstanding(&self) -> u64 {
        self.connection.as_ref().map_or(0, |connection| connection.outstanding.len() as u64)
    }
}

fn remote_only(access: Access) -> Result<Access, VerbsError> {
    if Access::REMOTE.contains(access) {
        Ok(access)
    } else {
        Err(VerbsError::Invalid("a queue pair's access flags are remote ones only"))
    }
}
