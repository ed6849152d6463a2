//! The client: its parts, the calls of the control path, and the poll that drives them.

use crate::carrier::Posting;
use crate::chunk_workers::{ChunkWorkers, Worker};
use crate::control::{Arrived, Control, Purpose};
use crate::data_path::{DataPath, UncheckedAccess};
use crate::operations::WORD_BYTES;
use crate::permission::Mark;
use crate::requests::Requests;
use crate::routes::Routes;
use crate::{
    Access, Answer, Buffer, Call, ClientConfig, ControlRequest, Counters, Error, Lease, NotBegun, Operation,
    Outcome, Permission,
};
use portcullis_nic::{Completion, EndpointQueue, Memory, Pollable, VerbsEndpoint};
use portcullis_planted::planted;
use portcullis_protocol::{ChunkTerms, Lifetime, Moment, RemoteAddress};
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// The most completions that one poll of the endpoint returns.
const COMPLETIONS_MOST: usize = 256;

/// The most polls of the endpoint in one [`Client::take_in`], which bounds the time of the call.
const ROUNDS_MOST: usize = 16;

/// A client of one node, on one endpoint. See the crate's documentation.
pub struct Client<E: VerbsEndpoint> {
    pub(crate) data: DataPath<E>,
    pub(crate) requests: Requests,
    /// The error that ended the session, if it is over.
    pub(crate) over: Option<Error>,
    completions: Vec<Completion>,
    /// Completions whose meaning depends on the time, and those after them, in order.
    unjudged: Vec<Completion>,
}

impl<E: VerbsEndpoint> Client<E> {
    /// Makes a client on an endpoint that has not been used yet.
    ///
    /// # Errors
    /// [`Error::ArenaFull`]: the arena is too short for the control messages and the operations' words.
    pub fn new(endpoint: E, config: ClientConfig) -> Result<Self, Error> {
        let control = Control::new(&endpoint);
        let added = control.arena_bytes();
        let words = added.next_multiple_of(u64::from(WORD_BYTES));
        let asking = words + u64::from(config.operations_max) * u64::from(WORD_BYTES);
        let rest = asking + ChunkWorkers::arena_bytes(&endpoint);
        if rest > endpoint.arena().length() {
            let (needed, arena) = (rest - added, endpoint.arena().length().saturating_sub(added));
            return Err(Error::ArenaFull { asked: needed, needed, arena });
        }
        let (workers, mark) = (ChunkWorkers::new(&endpoint, asking), Mark::default());
        let mut client = Self {
            data: DataPath::new(endpoint, control, (words, rest), config, mark.clone()),
            requests: Requests::new(workers, mark),
            over: None,
            completions: Vec::with_capacity(COMPLETIONS_MOST),
            unjudged: Vec::new(),
        };
        let link = &mut client.data.link;
        link.control.post_receives(&mut link.endpoint);
        Ok(client)
    }

    /// Returns the arena: the memory of all buffers, and of the client's own messages and words.
    #[must_use]
    pub fn arena(&self) -> &E::Memory {
        self.data.link.endpoint.arena()
    }

    /// Returns a buffer of `length` bytes in the arena. It holds whatever its bytes held before.
    ///
    /// # Errors
    /// [`Error::ArenaFull`].
    pub fn buffer(&self, length: u32) -> Result<Buffer<E::Memory>, Error> {
        self.data.buffer(length)
    }

    /// Begins an access.
    ///
    /// # Errors
    /// [`NotBegun`] with the access: [`Error::Expired`], [`Error::OutsideRange`], [`Error::WrongRight`],
    /// [`Error::Misaligned`], [`Error::QueueFull`], [`Error::ForeignPermission`] or [`Error::ForeignBuffer`], or the
    /// error that ended the session.
    #[inline]
    pub fn access<P: AsRef<Permission>>(
        &mut self,
        now: Moment,
        access: Access<P, E::Memory>,
    ) -> Result<Operation, NotBegun<Access<P, E::Memory>>> {
        self.begin_access(Posting::AtOnce, now, access)
    }

    #[inline(always)]
    pub(crate) fn begin_access<P: AsRef<Permission>>(
        &mut self,
        posting: Posting,
        now: Moment,
        access: Access<P, E::Memory>,
    ) -> Result<Operation, NotBegun<Access<P, E::Memory>>> {
        match self.over {
            Some(error) => Err(NotBegun { ask: access, error }),
            None => self.data.begin(posting, now, access),
        }
    }

    /// Begins an access without checks by the client: for demonstrations and hostile tests. If the node's NIC refuses
    /// the access, it ends with [`Error::Violation`], costs this client a queue pair, and is charged to the client or
    /// its tenant.
    ///
    /// # Errors
    /// [`NotBegun`] with the access: [`Error::QueueFull`], [`Error::LocalFault`] if the endpoint carries no accesses
    /// with such a credential, or the error that ended the session.
    pub fn dangerous_access(
        &mut self,
        access: UncheckedAccess<E>,
    ) -> Result<Operation, NotBegun<Box<UncheckedAccess<E>>>> {
        match self.over {
            Some(error) => Err(NotBegun { ask: Box::new(access), error }),
            None => self.data.begin_unchecked(access),
        }
    }

    /// Begins a request. Its answer is that of the request's kind, see [`ControlRequest`].
    ///
    /// # Errors
    /// [`NotBegun`] with the request: [`Error::QueueFull`], an error of the request's kind, or the error that ended the
    /// session.
    pub fn call(
        &mut self,
        now: Moment,
        request: impl Into<ControlRequest>,
    ) -> Result<Call, NotBegun<Box<ControlRequest>>> {
        self.begin_call(Posting::AtOnce, now, request.into())
    }

    pub(crate) fn begin_call(
        &mut self,
        posting: Posting,
        now: Moment,
        request: ControlRequest,
    ) -> Result<Call, NotBegun<Box<ControlRequest>>> {
        let begun =
            self.check_stands().and_then(|()| self.requests.begin(&mut self.data, posting, now, &request));
        begun.map_err(|error| NotBegun { ask: Box::new(request), error })
    }

    /// Extends a lease by a message to the node: the naive way of Patronus §5.3, for comparison and for nodes that give
    /// no key to the lifetime word.
    ///
    /// # Errors
    /// As [`Client::call`] with [`ControlRequest::Extend`].
    pub fn extend_by_rpc(
        &mut self,
        now: Moment,
        lease: &Arc<Lease>,
        deadline: Moment,
    ) -> Result<Call, Error> {
        self.check_stands()?;
        self.requests.extend_by_message(&mut self.data, Posting::AtOnce, now, lease, deadline)
    }

    /// Requests that a worker free the chunk at an address, even if another client holds it: for hostile tests. The
    /// worker frees it only if this client holds it; otherwise the call ends with [`Error::ForeignChunk`].
    ///
    /// # Errors
    /// As [`Client::call`] with [`ControlRequest::FreeChunk`].
    pub fn dangerous_free_chunk(&mut self, address: RemoteAddress) -> Result<Call, Error> {
        self.check_stands()?;
        self.requests.dangerous_free_chunk(&mut self.data.link, address)
    }

    /// Takes the result of a call. `None`: the call is under way, or its result was taken.
    pub fn take_call(&mut self, call: Call) -> Option<Result<Answer, Error>> {
        self.requests.calls.take(call)
    }

    /// Takes the outcome of an operation. `None`: the operation is under way, or its outcome was taken.
    #[inline]
    pub fn take(&mut self, operation: Operation) -> Option<Outcome<E::Memory>> {
        self.data.link.operations.take(operation)
    }

    /// Takes the buffer and the value of an operation that was carried out and that [`Client::drain_ended`] has
    /// returned: the quick way to most outcomes. `None`: [`Client::take`] has the outcome, if there is one.
    #[inline]
    pub fn take_success(&mut self, operation: Operation) -> Option<(Option<Buffer<E::Memory>>, u64)> {
        self.data.link.operations.take_success(operation)
    }

    /// Appends the outcomes of all operations that have ended and were not taken, in the order of their ends.
    #[inline]
    pub fn drain(&mut self, into: &mut Vec<(Operation, Outcome<E::Memory>)>) {
        self.data.link.operations.drain(into);
    }

    /// Hands the operations that have ended and were not taken to `each`, in the order of their ends. Each is handed
    /// over once: its outcome waits for [`Client::take`], and [`Client::drain`] does not return it.
    #[inline]
    pub fn drain_ended(&mut self, each: impl FnMut(Operation)) {
        self.data.link.operations.drain_ended(each);
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
            let came = self.data.link.endpoint.poll(COMPLETIONS_MOST, &mut completions);
            for completion in &completions {
                // All that follow a completion that waits for [`Client::judge`] wait as well.
                let is_first = self.unjudged.is_empty();
                if !self.data.routes.succeeded(&mut self.data.link, completion, is_first) {
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
                    self.requests.worker_completed(&self.data.link, Worker::at(place), &completion);
                }
                EndpointQueue::OneShot | EndpointQueue::Data(_) => {
                    // A restarted node answers at the same address, and knows no key from before the restart.
                    if Routes::refused_without_queue_pair(&completion)
                        && !self.data.link.endpoint.node_alive()
                    {
                        self.node_gone();
                    }
                    self.data.routes.completed(&mut self.data.link, now, &completion);
                }
            }
        }
        self.unjudged = unjudged;
        self.settle(now);
        self.tick(now);
        self.data.link.operations.count_ended() + self.requests.calls.count_ended()
    }

    /// Returns whether there is pending work that may be possible by now.
    fn is_unsettled(&self) -> bool {
        self.data.is_backed_up() || self.data.link.operations.has_extended() || self.requests.has_waiting()
    }

    /// Returns whether the node carries out operations in the order in which they are posted. Over UDP it does not: one
    /// operation may be lost and a later one carried out.
    #[inline]
    pub fn keeps_order(&self) -> bool {
        self.data.routes.keep_order()
    }

    /// Makes the next operation wait until all operations before it have ended. On queue pairs this changes nothing:
    /// they keep the order in which operations are posted. Over UDP operations have no order without a fence (1RMA
    /// §4.4).
    pub fn fence(&mut self) {
        self.data.routes.fence();
    }

    /// Returns the node's answer to [`ControlRequest::JoinChunks`]. `None`: the client has not requested it, or the
    /// node has refused or not answered yet.
    #[must_use]
    pub fn chunk_terms(&self) -> Option<ChunkTerms> {
        self.requests.chunk_terms()
    }

    /// Does the pending work that has become possible.
    fn settle(&mut self, now: Moment) {
        let Self { data, requests, .. } = self;
        while let Some(extended) = data.link.operations.next_extended() {
            requests.lifetime_swapped(data, now, extended);
        }
        if self.over.is_some() {
            return;
        }
        data.link.control.post_receives(&mut data.link.endpoint);
        data.link.control.send_held(&mut data.link.endpoint);
        data.ask_for_rebuilds(now);
        requests.ask_for_confirmations(&mut data.link);
        requests.give_back_unwanted(data, now);
        data.routes.pump(&mut data.link, now);
    }

    /// Handles the replies that have arrived with a message.
    fn take_replies(&mut self, now: Moment, completion: &Completion) -> Result<(), Error> {
        let Self { data, requests, .. } = self;
        let arrived = data.link.control.completed(&data.link.endpoint, completion)?;
        let Some(mut incoming) = arrived else { return Ok(()) };
        while let Some(Arrived { purpose, body, data: bytes }) =
            data.link.control.next_reply(&data.link.endpoint, &mut incoming)?
        {
            match purpose {
                Purpose::Call(id) => requests.answered(data, now, id, body),
                Purpose::Recover(queue_pair) => data.rebuild_answered(now, queue_pair, body)?,
                Purpose::Piece(piece) => {
                    data.routes.messages.piece_answered(&mut data.link, now, piece, body, bytes);
                }
            }
        }
        Ok(())
    }

    fn control_completed(&mut self, now: Moment, completion: &Completion) {
        if self.over.is_some() {
            return;
        }
        if let Err(error) = self.take_replies(now, completion) {
            self.end(error);
        }
        let link = &mut self.data.link;
        link.control.post_receives(&mut link.endpoint);
    }

    /// Notes that the node is gone: everything under way ends with [`Error::NodeGone`], and nothing can be begun any
    /// more.
    pub fn node_gone(&mut self) {
        self.end(Error::NodeGone);
    }

    /// Ends the session and everything in it. If it has ended before, the first error stays.
    fn end(&mut self, error: Error) {
        let error = *self.over.get_or_insert(error);
        self.data.routes.clear::<E>();
        self.data.link.operations.finish_all(error);
        self.requests.end(error);
        // The calls to which these extensions belong have just ended.
        while self.data.link.operations.next_extended().is_some() {}
    }

    fn check_stands(&self) -> Result<(), Error> {
        self.over.map_or(Ok(()), Err)
    }

    /// Returns the error that ended the session. `None`: the session stands.
    #[must_use]
    pub fn over(&self) -> Option<Error> {
        self.over
    }

    /// Returns how many calls of the control path a batch has room for now.
    #[must_use]
    pub fn room_for_calls(&self) -> usize {
        self.data.link.control.room().min(self.requests.calls.room())
    }

    /// Returns whether no call can begin before the caller takes the result of another: the client keeps as many calls
    /// and results as it can.
    #[must_use]
    pub fn must_take_calls(&self) -> bool {
        self.requests.calls.must_be_taken()
    }

    /// Returns how many calls of the control path can be under way at once, if they begin in batches.
    #[must_use]
    pub fn calls_max(&self) -> usize {
        self.data.link.control.calls_max()
    }

    /// Returns how many calls of a batch travel in one message. The message has no room for others before the last of
    /// its calls is answered.
    #[must_use]
    pub fn calls_per_message(&self) -> usize {
        self.data.link.control.requests_per_message()
    }

    /// Returns how many operations and calls have ended. A waiting caller learns from it whether the client makes
    /// progress.
    #[must_use]
    pub fn ended(&self) -> u64 {
        (self.data.link.operations.ended() + self.requests.calls.ended()) as u64
    }

    /// Returns the number of operations and calls that have begun and not ended.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.data.link.operations.under_way() + self.requests.calls.waiting()
    }

    /// Returns the moment at which [`Client::poll`] has something to do even if no completion arrives. `None`: there is
    /// no such moment.
    #[must_use]
    pub fn next_wake(&self) -> Option<Moment> {
        // Without room for the message, a rebuild has to wait for a completion.
        let rebuild = self.data.routes.next_rebuild().filter(|_| self.data.link.control.has_room(true));
        let step = self.data.link.limit.step_ends().filter(|_| self.pending() > 0);
        rebuild.into_iter().chain(step).min()
    }

    /// Sets for how long operations and calls that begin from now on may be under way; a request that may wait at the
    /// node has that time besides. Then they end with [`Error::TimedOut`]. `None`, the default: there is no limit.
    ///
    /// The limit is kept to within an eighth of it if the caller polls the client, or calls [`Client::tick`], at
    /// [`Client::next_wake`].
    pub fn limit_to(&mut self, within: Option<Lifetime>) {
        self.data.link.limit.set(within);
    }

    /// Returns the limit that [`Client::limit_to`] set.
    #[must_use]
    pub fn limit(&self) -> Option<Lifetime> {
        self.data.link.limit.within()
    }

    /// Gives up what has been under way for too long, as [`Client::judge`] also does. A waiting caller calls it between
    /// two calls of [`Client::take_in`], so that no operation is given up whose completion has arrived.
    pub fn tick(&mut self, now: Moment) {
        let link = &mut self.data.link;
        if link.limit.advance(now)
            && !planted!(LimitNotKept)
            && let Some(within) = link.limit.within()
            && self.over.is_none()
        {
            link.operations.begin_step(link.limit.steps(), within);
            self.requests.calls.begin_step(link.limit.steps(), within);
        }
    }

    /// Returns whether something was given up that has not ended at the node: the node stands still, or cannot be
    /// reached.
    #[must_use]
    pub fn has_given_up(&self) -> bool {
        self.data.link.operations.given_up() + self.requests.calls.given_up() > 0
    }

    /// Discards the result of a call. If the call brings a permission, the client gives it back.
    pub fn forget(&mut self, call: Call) {
        self.requests.calls.forget(call);
    }

    /// Ends a permission that the caller does not need, as soon as there is room for the message.
    pub fn give_back(&mut self, permission: Permission) {
        self.requests.calls.add_unwanted(ControlRequest::give_back(permission, false));
    }

    /// Returns how often queue pairs broke and what it cost, including the queue pairs for chunks.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.data.routes.counters()
    }

    /// Returns the endpoint, to wait on it.
    pub fn endpoint(&mut self) -> &mut E {
        &mut self.data.link.endpoint
    }
}

impl<E: VerbsEndpoint + Pollable> Client<E> {
    /// Returns the descriptor that an event loop waits for, after [`Pollable::arm`].
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.data.link.endpoint.descriptor()
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
