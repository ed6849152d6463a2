//! The client: its parts, the calls of the control path, and the poll that drives them.

use crate::buffer::Blocks;
use crate::calls::{Awaited, Calls};
use crate::carrier::Link;
use crate::chunk_workers::{ChunkWorkers, Worker};
use crate::control::{Arrived, Control, Purpose};
use crate::limit::Limit;
use crate::operations::{Operations, WORD_BYTES};
use crate::permission::Mark;
use crate::requests::WorkerRequest;
use crate::routes::Routes;
use crate::{
    Answer, Buffer, Call, ClientConfig, ControlRequest, Counters, Error, NotBegun, Operation, Outcome,
    Permission,
};
use portcullis_nic::{Completion, EndpointQueue, Memory, Pollable, VerbsEndpoint};
use portcullis_planted::planted;
use portcullis_protocol::{ChunkTerms, Lifetime, Moment, Refusal, ReplyBody, Rights, Sharing};
use std::collections::VecDeque;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// The most completions that one poll of the endpoint returns.
const COMPLETIONS_MOST: usize = 256;

/// The most polls of the endpoint in one [`Client::take_in`], which bounds the time of the call.
const ROUNDS_MOST: usize = 16;

/// A client of one node, on one endpoint. See the crate's documentation.
pub struct Client<E: VerbsEndpoint> {
    pub(crate) endpoint: E,
    pub(crate) operations: Operations<E::Memory>,
    pub(crate) routes: Routes,
    pub(crate) chunks: ChunkWorkers,
    pub(crate) control: Control,
    pub(crate) calls: Calls,
    /// Calls of extensions that the node must confirm.
    pub(crate) confirmations: VecDeque<u64>,
    /// Calls of a batch that is being collected.
    pub(crate) staged_calls: Vec<u64>,
    /// Requests to workers of a batch that is being collected, each with its call.
    pub(crate) staged_for_workers: Vec<(u64, WorkerRequest)>,
    /// Number of operations and calls in a batch that waits to be resumed.
    pub(crate) set_aside: Option<usize>,
    /// The error that ended the session, if it is over.
    pub(crate) over: Option<Error>,
    /// For how long operations and calls may be under way.
    pub(crate) limit: Limit,
    pub(crate) mark: Mark,
    pub(crate) blocks: Arc<Blocks<E::Memory>>,
    completions: Vec<Completion>,
    /// Completions whose meaning depends on the time, and those after them, in order.
    unjudged: Vec<Completion>,
}

impl<E: VerbsEndpoint> Client<E> {
    /// Makes a client on an endpoint that has not been used yet.
    ///
    /// # Errors
    /// [`Error::ArenaFull`]: the arena is too short for the control messages and the operations' words.
    pub fn new(mut endpoint: E, config: ClientConfig) -> Result<Self, Error> {
        let control = Control::new(&endpoint);
        let added = control.arena_bytes();
        let words = added.next_multiple_of(u64::from(WORD_BYTES));
        let asking = words + u64::from(config.operations_max) * u64::from(WORD_BYTES);
        let rest = asking + ChunkWorkers::arena_bytes(&endpoint);
        if rest > endpoint.arena().length() {
            let (needed, arena) = (rest - added, endpoint.arena().length().saturating_sub(added));
            return Err(Error::ArenaFull { asked: needed, needed, arena });
        }
        let (memory, key) = (endpoint.arena().clone(), endpoint.arena_key());
        let mut client = Self {
            operations: Operations::new(memory.clone(), key, words, config.operations_max),
            routes: Routes::new(&mut endpoint, config),
            chunks: ChunkWorkers::new(&endpoint, asking),
            control,
            calls: Calls::new(),
            confirmations: VecDeque::new(),
            staged_calls: Vec::new(),
            staged_for_workers: Vec::new(),
            set_aside: None,
            over: None,
            limit: Limit::NONE,
            mark: Mark::default(),
            blocks: Arc::new(Blocks::new(memory, key, rest, added)),
            completions: Vec::with_capacity(COMPLETIONS_MOST),
            unjudged: Vec::new(),
            endpoint,
        };
        client.control.post_receives(&mut client.endpoint);
        Ok(client)
    }

    /// Returns the arena: the memory of all buffers, and of the client's own messages and words.
    #[must_use]
    pub fn arena(&self) -> &E::Memory {
        self.endpoint.arena()
    }

    /// Returns a buffer of `length` bytes in the arena. It holds whatever its bytes held before.
    ///
    /// # Errors
    /// [`Error::ArenaFull`].
    pub fn buffer(&self, length: u32) -> Result<Buffer<E::Memory>, Error> {
        self.blocks.buffer(length)
    }

    /// Takes the result of a call. `None`: the call is under way, or its result was taken.
    pub fn take_call(&mut self, call: Call) -> Option<Result<Answer, Error>> {
        self.calls.take(call)
    }

    /// Takes the outcome of an operation. `None`: the operation is under way, or its outcome was taken.
    #[inline]
    pub fn take(&mut self, operation: Operation) -> Option<Outcome<E::Memory>> {
        self.operations.take(operation)
    }

    /// Takes the buffer and the value of an operation that was carried out and that [`Client::drain_ended`] has
    /// returned: the quick way to most outcomes. `None`: [`Client::take`] has the outcome, if there is one.
    #[inline]
    pub fn take_success(&mut self, operation: Operation) -> Option<(Option<Buffer<E::Memory>>, u64)> {
        self.operations.take_success(operation)
    }

    /// Appends the outcomes of all operations that have ended and were not taken, in the order of their ends.
    #[inline]
    pub fn drain(&mut self, into: &mut Vec<(Operation, Outcome<E::Memory>)>) {
        self.operations.drain(into);
    }

    /// Appends the operations that have ended and were not taken, in the order of their ends. Each is returned once:
    /// its outcome waits for [`Client::take`], and [`Client::drain`] does not return it.
    #[inline]
    pub fn drain_ended(&mut self, into: &mut Vec<Operation>) {
        self.operations.drain_ended(into);
    }

    /// Polls the NIC and acts on its completions: ends operations and calls, switches queue pairs, sends what waited
    /// for room. Returns how many operations and calls ended. Never blocks.
    ///
    /// Events are judged by `now`, so it must not have been read before something else that takes time, such as a
    /// sleep. A caller that cannot read a clock each time calls [`Client::take_in`] first.
    pub fn poll(&mut self, now: Moment) -> usize {
        self.take_in();
        self.judge(now)
    }

    /// Polls the NIC and handles the completions that do not depend on the time: ends the operations that were carried
    /// out. Returns whether [`Client::judge`] has something to do, with a time that is read after this call. Never
    /// blocks.
    pub fn take_in(&mut self) -> bool {
        if self.over.is_some() {
            return false;
        }
        let mut completions = std::mem::take(&mut self.completions);
        for _ in 0..ROUNDS_MOST {
            completions.clear();
            let came = self.endpoint.poll(COMPLETIONS_MOST, &mut completions);
            for completion in &completions {
                // All that follow a completion that waits for [`Client::judge`] wait as well.
                let is_first = self.unjudged.is_empty();
                let (routes, mut link) = self.routes();
                if !routes.succeeded(&mut link, completion, is_first) {
                    self.unjudged.push(*completion);
                }
            }
            // The endpoint may have returned early, so that the client acts on a completion before it gets more.
            if came < COMPLETIONS_MOST || !self.unjudged.is_empty() {
                break;
            }
        }
        self.completions = completions;
        !self.unjudged.is_empty() || self.is_unsettled()
    }

    /// Handles the completions that depend on the time: refusals, extensions, answers of the node, and rebuilds. Posts
    /// what waited for room, except for operations whose permission has expired meanwhile. Returns how many operations
    /// and calls have ended since the last call, including those that [`Client::take_in`] ended.
    ///
    /// `now` must have been read after [`Client::take_in`] has returned.
    pub fn judge(&mut self, now: Moment) -> usize {
        let mut unjudged = std::mem::take(&mut self.unjudged);
        for completion in unjudged.drain(..) {
            match EndpointQueue::of(completion.queue_pair) {
                EndpointQueue::Control => self.control_completed(now, &completion),
                EndpointQueue::Asking(place) => {
                    self.chunks.completed(&self.endpoint, &mut self.calls, Worker::at(place), &completion);
                }
                EndpointQueue::OneShot | EndpointQueue::Data(_) => {
                    // A restarted node answers at the same address, and knows no key from before the restart.
                    if Routes::refused_without_queue_pair(&completion) && !self.endpoint.node_alive() {
                        self.node_gone();
                    }
                    let (routes, mut link) = self.routes();
                    routes.completed(&mut link, now, &completion);
                }
            }
        }
        self.unjudged = unjudged;
        self.settle(now);
        self.tick(now);
        self.operations.count_ended() + self.calls.count_ended()
    }

    /// Returns whether there is pending work that may be possible by now.
    fn is_unsettled(&self) -> bool {
        self.routes.next_rebuild().is_some()
            || self.routes.is_backed_up::<E>()
            || self.operations.has_extended()
            || self.control.is_behind()
            || !self.confirmations.is_empty()
            || self.calls.has_unwanted()
    }

    /// The routes to the node, and the state that they share.
    #[inline]
    pub(crate) fn routes(&mut self) -> (&mut Routes, Link<'_, E>) {
        let Self { endpoint, operations, control, routes, .. } = self;
        (routes, Link { endpoint, operations, control })
    }

    /// Returns whether the node carries out operations in the order in which they are posted. Over UDP it does not: one
    /// operation may be lost and a later one carried out.
    #[inline]
    pub fn keeps_order(&self) -> bool {
        self.routes.keep_order()
    }

    /// Makes the next operation wait until all operations before it have ended. On queue pairs this changes nothing:
    /// they keep the order in which operations are posted. Over UDP operations have no order without a fence (1RMA
    /// §4.4).
    pub fn fence(&mut self) {
        self.routes.fence();
    }

    /// Returns the node's answer to [`ControlRequest::JoinChunks`]. `None`: the client has not requested it, or the
    /// node has refused or not answered yet.
    #[must_use]
    pub fn chunk_terms(&self) -> Option<ChunkTerms> {
        self.chunks.terms()
    }

    /// Does the pending work that has become possible.
    fn settle(&mut self, now: Moment) {
        while let Some(extended) = self.operations.next_extended() {
            self.lifetime_swapped(now, extended);
        }
        if self.over.is_some() {
            return;
        }
        self.control.post_receives(&mut self.endpoint);
        self.control.send_held(&mut self.endpoint);
        self.ask_for_rebuilds(now);
        self.ask_for_confirmations();
        self.give_back_unwanted(now);
        let (routes, mut link) = self.routes();
        routes.pump(&mut link, now);
    }

    fn control_completed(&mut self, now: Moment, completion: &Completion) {
        if self.over.is_some() {
            return;
        }
        match self.control.completed(&self.endpoint, completion) {
            Ok(None) => {}
            Ok(Some(Arrived { purpose: Purpose::Call(id), body, .. })) => self.call_answered(now, id, body),
            Ok(Some(Arrived { purpose: Purpose::Recover(index), body, .. })) => {
                self.rebuild_answered(now, index, body);
            }
            Ok(Some(Arrived { purpose: Purpose::Piece(piece), body, data })) => {
                let (routes, mut link) = self.routes();
                routes.messages.piece_answered(&mut link, now, piece, body, data);
            }
            Err(error) => self.end(error),
        }
        self.control.post_receives(&mut self.endpoint);
    }

    fn call_answered(&mut self, now: Moment, id: u64, body: ReplyBody) {
        let Some(awaited) = self.calls.awaited(id) else { return };
        let result = match (awaited, body) {
            // The client cannot use the permission that the node granted.
            (_, ReplyBody::Granted(granted)) if !self.routes.can_carry(&granted.credential) => {
                Err(Error::SessionLost)
            }
            (Awaited::Grant { requested_at, rights, sharing, .. }, ReplyBody::Granted(granted)) => {
                Ok(Answer::Granted(Permission::new(granted, requested_at, (rights, sharing), &self.mark)))
            }
            // A chunk has no deadline, so the time of the request does not matter.
            (Awaited::Chunk, ReplyBody::Granted(granted)) => {
                let rights = Rights::READ | Rights::WRITE | Rights::ATOMIC;
                Ok(Answer::Granted(Permission::new(
                    granted,
                    Moment(0),
                    (rights, Sharing::Exclusive),
                    &self.mark,
                )))
            }
            (Awaited::Chunk, ReplyBody::Refused(Refusal::OutOfMemory { .. } | Refusal::NodeFull { .. })) => {
                Err(Error::NoFreeChunk)
            }
            (Awaited::Chunks, ReplyBody::Chunks(terms)) => self.chunks.joined(terms).map(|()| {
                self.chunks.resume(&mut self.endpoint, &mut self.calls, terms.held);
                Answer::Chunks(terms)
            }),
            (Awaited::Done, ReplyBody::Done) => Ok(Answer::Done),
            (Awaited::Entry | Awaited::NextEntry, ReplyBody::Entry(entry)) => Ok(Answer::Entry(entry)),
            (Awaited::NextEntry, ReplyBody::EndOfList) => Ok(Answer::EndOfList),
            (Awaited::Extension(extending), ReplyBody::Extended(lifetime)) => {
                extending.lease.set_lifetime(lifetime);
                Ok(Answer::Extended(lifetime))
            }
            (Awaited::Extension(extending), ReplyBody::Refused(Refusal::NotLive)) => {
                let expired = now >= extending.lease.deadline();
                Err(if expired { Error::Expired } else { Error::Revoked })
            }
            (_, ReplyBody::Refused(refusal)) => Err(refusal.into()),
            // The answer does not fit the request, so what the node did is unknown.
            _ => Err(Error::SessionLost),
        };
        self.calls.finish(id, result);
    }

    /// Notes that the node is gone: everything under way ends with [`Error::NodeGone`], and nothing can be begun any
    /// more.
    pub fn node_gone(&mut self) {
        self.end(Error::NodeGone);
    }

    /// Ends the session and everything in it. If it has ended before, the first error stays.
    pub(crate) fn end(&mut self, error: Error) {
        let error = *self.over.get_or_insert(error);
        self.routes.clear::<E>();
        self.chunks.clear();
        // The contents of a batch that waits to be resumed end with the rest.
        self.staged_calls.clear();
        self.staged_for_workers.clear();
        self.set_aside = None;
        self.confirmations.clear();
        self.operations.finish_all(error);
        self.calls.finish_all(error);
        // The calls to which these extensions belong have just ended.
        while self.operations.next_extended().is_some() {}
    }

    /// Returns the error that ended the session. `None`: the session stands.
    #[must_use]
    pub fn over(&self) -> Option<Error> {
        self.over
    }

    /// Returns how many calls of the control path there is room for now.
    #[must_use]
    pub fn room_for_calls(&self) -> usize {
        self.control.room()
    }

    /// Returns how many calls of the control path can be under way at once.
    #[must_use]
    pub fn calls_max(&self) -> usize {
        self.control.room_at_most()
    }

    /// Returns how many operations and calls have ended. A waiting caller learns from it whether the client makes
    /// progress.
    #[must_use]
    pub fn ended(&self) -> u64 {
        (self.operations.ended() + self.calls.ended()) as u64
    }

    /// Returns the number of operations and calls that have begun and not ended.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.operations.under_way() + self.calls.waiting()
    }

    /// Returns the moment at which [`Client::poll`] has something to do even if no completion arrives. `None`: there is
    /// no such moment.
    #[must_use]
    pub fn next_wake(&self) -> Option<Moment> {
        // Without room for the message, a rebuild has to wait for a completion.
        let rebuild = self.routes.next_rebuild().filter(|_| self.control.has_room(true));
        let step = self.limit.step_ends().filter(|_| self.pending() > 0);
        rebuild.into_iter().chain(step).min()
    }

    /// Sets for how long operations and calls that begin from now on may be under way; a request that may wait at the
    /// node has that time besides. Then they end with [`Error::TimedOut`]. `None`, the default: there is no limit.
    ///
    /// The limit is kept to within an eighth of it if the caller polls the client, or calls [`Client::tick`], at
    /// [`Client::next_wake`].
    pub fn limit_to(&mut self, within: Option<Lifetime>) {
        self.limit.set(within);
    }

    /// Returns the limit that [`Client::limit_to`] set.
    #[must_use]
    pub fn limit(&self) -> Option<Lifetime> {
        self.limit.within()
    }

    /// Gives up what has been under way for too long, as [`Client::judge`] also does. A waiting caller calls it between
    /// two calls of [`Client::take_in`], so that no operation is given up whose completion has arrived.
    pub fn tick(&mut self, now: Moment) {
        if self.limit.advance(now)
            && !planted!(LimitNotKept)
            && let Some(within) = self.limit.within()
            && self.over.is_none()
        {
            self.operations.begin_step(self.limit.steps(), within);
            self.calls.begin_step(self.limit.steps(), within);
        }
    }

    /// Returns whether something was given up that has not ended at the node: the node stands still, or cannot be
    /// reached.
    #[must_use]
    pub fn has_given_up(&self) -> bool {
        self.operations.given_up() + self.calls.given_up() > 0
    }

    /// Discards the result of a call. If the call brings a permission, the client gives it back.
    pub fn forget(&mut self, call: Call) {
        self.calls.forget(call);
    }

    /// Ends a permission that the caller does not need, as soon as there is room for the message.
    pub fn give_back(&mut self, permission: Permission) {
        self.calls.add_unwanted(ControlRequest::give_back(permission, false));
    }

    /// Sends requests to end the permissions that wait to be given back.
    fn give_back_unwanted(&mut self, now: Moment) {
        while self.control.has_room(false)
            && let Some(request) = self.calls.take_unwanted()
        {
            match self.call(now, request) {
                Ok(call) => self.calls.forget(call),
                Err(NotBegun { ask, error: Error::QueueFull { .. } }) => {
                    return self.calls.add_unwanted(*ask);
                }
                // The permission has ended, or ends with the session.
                Err(_) => {}
            }
        }
    }

    /// Returns how often queue pairs broke and what it cost, including the queue pairs for chunks.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.routes.counters()
    }

    /// Returns the endpoint, to wait on it.
    pub fn endpoint(&mut self) -> &mut E {
        &mut self.endpoint
    }
}

impl<E: VerbsEndpoint + Pollable> Client<E> {
    /// Returns the descriptor that an event loop waits for, after [`Pollable::arm`].
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.endpoint.descriptor()
    }
}

impl<E: VerbsEndpoint> fmt::Debug for Client<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("pending", &self.pending())
            .field("over", &self.over)
            .field("counters", &self.counters())
            .finish_non_exhaustive()
    }
}
