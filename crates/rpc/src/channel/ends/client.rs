//! A client's end: its calls by slot, and their outcomes.

use super::copies::Copies;
use super::guard::Guards;
use super::lines::{Reader, Writer, last_word};
use super::outcome::{Answer, CallError, Results, Returned, understand};
use super::words::{ReplyLine, RequestLine};
use super::{DEPTH, REPLIES, REQUESTS};
use crate::ScopeRef;
use crate::channel::Copied;
use crate::heap::Heap;
use crate::plain::Plain;
use portcullis_memory::{Mapping, Memory, PrivateView};
use portcullis_planted::planted;

/// A call that is under way.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CallId(pub(in crate::channel) u64);

impl CallId {
    /// The call's number, as in requests and replies.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }
}

/// A call that a client requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Call {
    /// The method's number.
    pub method: u32,
    /// The scope that the arguments are in. It must not be freed before the call has ended.
    pub scope: ScopeRef,
    /// The address of the arguments' root.
    pub root: u64,
    /// The word that is passed beside the root.
    pub word: u64,
    /// Time until which the caller waits, in nanoseconds. `None`: no deadline.
    pub deadline: Option<u64>,
}

/// A call that has begun and whose outcome has not been taken yet.
#[derive(Clone, Copy, Debug)]
struct Begun {
    call: u64,
    method: u32,
    deadline: Option<u64>,
    /// Offset of the request's line in the ring.
    place: u64,
    progress: Progress,
}

#[derive(Clone, Copy, Debug)]
enum Progress {
    UnderWay,
    /// The call has no answer yet, and no caller waits for it any more.
    Abandoned,
    Ended(ReplyLine),
}

/// A call's number has its slot in its lowest bits, so that it is found without a search.
const SLOT_BITS: u32 = DEPTH.trailing_zeros();

fn slot_of(call: u64) -> usize {
    usize::try_from(call & (u64::from(DEPTH) - 1)).unwrap_or(0)
}

/// A client's end of a connection.
#[derive(Debug)]
pub struct ClientEnd {
    heap: Heap,
    results: Results,
    copies: Copies,
    ring: Mapping,
    requests: Writer,
    replies: Reader,
    /// `None`: calls are not guarded.
    guards: Option<Guards>,
    /// Number of calls that were begun.
    begun: u64,
    /// Calls whose outcomes have not been taken yet, by slot.
    calls: [Option<Begun>; DEPTH as usize],
    free: Vec<u32>,
    is_gone: bool,
}

impl ClientEnd {
    /// Creates an end with a heap, a place for copies of the heap's results, and a ring of
    /// [`RING_BYTES`](super::RING_BYTES) bytes into which nothing has been written.
    #[must_use]
    pub fn new(heap: Heap, results: PrivateView, ring: Mapping) -> Self {
        Self {
            results: Results { heap: heap.clone(), returned: None },
            heap,
            copies: Copies::new(results),
            requests: Writer::new(ring.clone(), REQUESTS, DEPTH),
            replies: Reader::new(ring.clone(), REPLIES, DEPTH),
            ring,
            guards: None,
            begun: 0,
            calls: [None; DEPTH as usize],
            free: (0..DEPTH).rev().collect(),
            is_gone: false,
        }
    }

    /// Uses a separate heap for results. The server allocates them elsewhere, and a carrier copies them into this heap.
    /// Scopes that the client does not need any more are put into `returned`.
    #[must_use]
    pub fn with_results(self, heap: Heap, returned: Returned) -> Self {
        Self { results: Results { heap, returned: Some(returned) }, ..self }
    }

    /// Guards scopes: this process cannot write them while calls are under way with them
    /// ([`ConnectionOptions::guarded`](crate::channel::ConnectionOptions::guarded)).
    #[must_use]
    pub fn guarded(self) -> Self {
        Self { guards: Some(Guards::new(self.heap.clone())), ..self }
    }

    /// The connection's heap.
    #[must_use]
    pub fn heap(&self) -> &Heap {
        &self.heap
    }

    /// The connection's ring.
    #[must_use]
    pub fn ring(&self) -> &Mapping {
        &self.ring
    }

    /// Begins a call. Afterwards its request is in the ring, at the offset that [`line`](Self::line) returns.
    ///
    /// # Errors
    /// [`CallError::TooMany`], [`CallError::ServerGone`], or [`CallError::NotGuarded`].
    #[inline]
    pub fn begin(&mut self, call: Call) -> Result<CallId, CallError> {
        let Call { method, scope, root, word, deadline } = call;
        if self.is_gone {
            return Err(CallError::ServerGone);
        }
        if self.free.is_empty() {
            // Abandoned calls may have been answered, which frees their slots.
            self.take_replies();
        }
        let slot = self.free.pop().ok_or(CallError::TooMany)?;
        self.begun += 1;
        let call = self.begun << SLOT_BITS | u64::from(slot);
        if let Some(guards) = &mut self.guards {
            let name = format!("call {call} of method {method}");
            if let Err(error) = guards.begin(slot_of(call), scope, &name) {
                self.free.push(slot);
                return Err(CallError::NotGuarded(error.to_string()));
            }
        }
        // Zero stands for no deadline.
        let until = deadline.map_or(0, |deadline| deadline.max(1));
        let request = RequestLine { method, call, root, scope, deadline: until, word };
        let place = self.requests.write(method, request.words());
        let begun = Begun { call, method, deadline, place, progress: Progress::UnderWay };
        self.calls[slot_of(call)] = Some(begun);
        Ok(CallId(call))
    }

    /// Offset in the ring of the line with a call's request. `None`: the call is not under way.
    #[must_use]
    pub fn line(&self, call: CallId) -> Option<u64> {
        let begun = self.calls[slot_of(call.0)].as_ref().filter(|it| it.call == call.0)?;
        matches!(begun.progress, Progress::UnderWay).then_some(begun.place)
    }

    /// Time until which the caller of a call waits. `None`: no deadline.
    #[must_use]
    pub fn deadline(&self, call: CallId) -> Option<u64> {
        self.calls[slot_of(call.0)].as_ref().filter(|it| it.call == call.0)?.deadline
    }

    /// Requests the server not to begin a call. The call's answer shows whether the request arrived in time. Returns
    /// the offset in the ring of the word that was written. `None`: the call is not under way.
    pub fn cancel(&mut self, call: CallId) -> Option<u64> {
        let word = last_word(self.line(call)?);
        debug_assert!((REQUESTS..REPLIES).contains(&word));
        self.ring.store(word, call.0);
        Some(word)
    }

    /// Whether the ring has a reply that has not been taken yet.
    #[must_use]
    pub fn has_reply(&self) -> bool {
        self.replies.has_line()
    }

    /// Whether a call has ended, so that [`poll`](Self::poll) returns its outcome.
    pub fn has_ended(&mut self, call: CallId) -> bool {
        self.take_replies();
        self.line(call).is_none()
    }

    /// Returns the outcome of a call, once. `None`: the call has not ended yet. `now` is called if the call has a
    /// deadline.
    ///
    /// # Errors
    /// See [`CallError`].
    #[inline]
    pub fn poll(&mut self, call: CallId, now: impl FnOnce() -> u64) -> Option<Result<Answer, CallError>> {
        self.take_replies();
        let Some(Some(it)) = self.slot(call.0) else { return Some(Err(CallError::NoSuchCall)) };
        let (method, deadline) = (it.method, it.deadline);
        match it.progress {
            Progress::Ended(reply) => {
                self.let_go(call.0);
                return Some(understand(&self.results, method, &reply));
            }
            Progress::Abandoned => return Some(Err(CallError::NoSuchCall)),
            Progress::UnderWay
                if !planted!(LateNotTold) && deadline.is_some_and(|deadline| now() >= deadline) =>
            {
                it.progress = Progress::Abandoned;
                return Some(Err(CallError::Late));
            }
            Progress::UnderWay => {}
        }
        (self.is_gone && !planted!(GoneNotTold)).then_some(Err(CallError::ServerGone))
    }

    /// Ends the connection: the server has ended, or must be treated as if it had. The scopes of its calls are the
    /// client's again.
    pub fn give_up(&mut self) {
        self.take_replies();
        self.is_gone = true;
        self.guards.iter_mut().for_each(Guards::clear);
    }

    /// Whether the client has given up.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// Copies the scope of an answer's result, of at most `most` bytes. Returns the copy.
    ///
    /// # Errors
    /// The server named a scope that is not in the heap, or more bytes.
    pub fn look<T: Plain>(&mut self, answer: &Answer, most: u64) -> Result<Copied<'_, T>, CallError> {
        let view = self.copies.look(&self.results.heap, answer.scope, most)?;
        Ok(Copied::new(view, answer.root, answer.word))
    }

    /// The slot of a call that was begun and whose outcome has not been taken yet.
    fn slot(&mut self, call: u64) -> Option<&mut Option<Begun>> {
        let slot = &mut self.calls[slot_of(call)];
        slot.as_ref().is_some_and(|it| it.call == call).then_some(slot)
    }

    fn let_go(&mut self, call: u64) {
        if let Some(slot) = self.slot(call) {
            *slot = None;
            if !planted!(SlotNotFreed) {
                self.free.push(u32::try_from(slot_of(call)).unwrap_or(0));
            }
            self.guards.iter_mut().for_each(|guards| guards.end(slot_of(call)));
        }
    }

    /// Takes the replies that have been received.
    fn take_replies(&mut self) {
        // No honest server has more replies for this client. A server that writes without end must not keep the
        // client reading without end.
        for _ in 0..DEPTH {
            let Some((status, words, _)) = self.replies.read() else { return };
            let reply = ReplyLine::read(status, words);
            // A server may write anything: a reply that belongs to no call is ignored.
            let Some(Some(it)) = self.slot(reply.call) else { continue };
            match it.progress {
                Progress::UnderWay => it.progress = Progress::Ended(reply),
                Progress::Abandoned => {
                    self.let_go(reply.call);
                    let answer = Answer::of(&self.results, &reply);
                    if planted!(LateResultKept) {
                        std::mem::forget(answer);
                    }
                }
                Progress::Ended(_) => {}
            }
        }
    }
}
