//! A server's end: it takes requests, runs their methods, and replies.

use super::copies::Copies;
use super::lines::{Reader, Writer};
use super::methods::Methods;
use super::shard_heap::{ShardHeap, heap_of};
use super::words::{ReplyLine, RequestLine, Status};
use super::{Clock, DEPTH, REPLIES, REQUESTS};
use crate::channel::Reply;
use crate::channel::method::Method;
use crate::channel::one_shot::OneShotTable;
use crate::heap::Heap;
use crate::{ScopeRef, View};
use portcullis_memory::{Mapping, PrivateView};
use portcullis_planted::planted;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A server's end of a connection.
#[derive(Debug)]
pub struct ServerEnd {
    heap: Heap,
    /// The heap for results. `None`: results are in the same heap as arguments.
    results: Option<Heap>,
    copies: Copies,
    requests: Reader,
    replies: Writer,
    /// `None`: no method reads one-shot scopes.
    one_shot_table: Option<Arc<OneShotTable>>,
}

/// A request that was taken from the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// The request as the client wrote it.
    pub line: RequestLine,
    /// Whether the client had cancelled the call when the request was taken.
    pub is_cancelled: bool,
}

impl ServerEnd {
    /// Creates an end with a heap, a place for copies of the heap's arguments, and a ring of
    /// [`RING_BYTES`](super::RING_BYTES) bytes from which no request has been read.
    #[must_use]
    pub fn new(heap: Heap, arguments: PrivateView, ring: Mapping) -> Self {
        let requests = Reader::new(ring.clone(), REQUESTS, DEPTH);
        let replies = Writer::new(ring, REPLIES, DEPTH);
        Self { heap, results: None, copies: Copies::new(arguments), requests, replies, one_shot_table: None }
    }

    /// Uses another heap for results than for arguments.
    #[must_use]
    pub fn with_results(self, heap: Heap) -> Self {
        Self { results: Some(heap), ..self }
    }

    pub(in crate::channel) fn with_one_shot_table(self, one_shot_table: Option<Arc<OneShotTable>>) -> Self {
        Self { one_shot_table, ..self }
    }

    /// Whether the ring has a request that has not been taken yet.
    #[must_use]
    #[inline]
    pub fn has_request(&self) -> bool {
        self.requests.has_line()
    }

    /// Takes the next request.
    #[inline]
    pub fn take(&mut self) -> Option<Request> {
        let (method, words, cancelled) = self.requests.read()?;
        let line = RequestLine::read(method, words);
        let is_cancelled = cancelled == line.call && !planted!(CancelNotLookedAt);
        Some(Request { line, is_cancelled })
    }

    /// Runs the method of a request, if the method exists and the caller still waits. `shared` is the heap of all
    /// clients, if there is one. Returns the reply, which is not in the ring yet.
    pub fn answer(
        &mut self,
        methods: &Methods,
        request: &Request,
        shared: Option<&mut ShardHeap>,
        clock: Clock<'_>,
    ) -> ReplyLine {
        let Request { line: request, is_cancelled } = request;
        let deadline = (request.deadline != 0).then_some(request.deadline);
        let is_late = || {
            let is_over = deadline.is_some_and(|deadline| clock() >= deadline);
            is_over && !planted!(DeadlineNotLookedAt)
        };
        if is_late() {
            return short(request, Status::Late);
        }
        if *is_cancelled {
            let numbered = short(request, Status::Cancelled);
            return if planted!(CancelledNotNumbered) { ReplyLine { call: 0, ..numbered } } else { numbered };
        }
        let Some(method) = methods.get(request.method) else {
            return short(request, Status::NoSuchMethod);
        };
        let is_sealed =
            self.one_shot_table.as_ref().is_some_and(|one_shot_table| one_shot_table.has(request.scope));
        if is_sealed && !matches!(method, Method::OneShot(_)) {
            return short(request, Status::NoSealedWanted);
        }
        let (heap, copies) = heap_of((&self.heap, &mut self.copies), shared, request);
        // Results are in the connection's own heap, where no other client can read them.
        let results = self.results.as_ref().unwrap_or(&self.heap);
        let mut reply = Reply::new(results, deadline, clock);
        let called = catch_unwind(AssertUnwindSafe(|| match method {
            Method::Copied { most, code } => {
                let Some(view) = copy(heap, copies, request.scope, *most) else {
                    return Ok(Status::NoArguments);
                };
                // A caller that no longer waits may have used its scope again while it was copied.
                if !planted!(DeadlineLookedAtOnce) && is_late() {
                    return Ok(Status::Late);
                }
                code(view, request.root, request.word, &mut reply).map(|()| Status::Done)
            }
            Method::OneShot(code) => {
                let Some(one_shot_table) = &self.one_shot_table else { return Ok(Status::NotSealed) };
                let looked = one_shot_table
                    .look(request.scope, |view| code(view, request.root, request.word, &mut reply));
                looked.map_or_else(Ok, |outcome| outcome.map(|()| Status::Done))
            }
            Method::Trusted(code) => {
                let code = code(heap, request.root, request.scope, request.word, &mut reply);
                code.map(|()| Status::Done)
            }
        }));
        let status = match called {
            Ok(Ok(status)) => status,
            Ok(Err(failure)) => failure.tell(&mut reply),
            Err(_) => {
                if planted!(PanickedResultKept) {
                    std::mem::forget(reply.scope.take());
                }
                reply = Reply::new(results, deadline, clock);
                Status::Panicked
            }
        };
        let Reply { word, root, scope, .. } = reply;
        let scope = scope.map_or(ScopeRef::default(), crate::Scope::pass_on);
        ReplyLine { status: status as u32, call: request.call, root, scope, word }
    }

    /// Puts a reply into the ring. There is room for it, since the client has no more calls under
    /// way than the ring has lines. Returns the offset of its line.
    #[inline]
    pub fn reply(&mut self, reply: &ReplyLine) -> u64 {
        self.replies.write(reply.status, reply.words())
    }
}

fn short(request: &RequestLine, status: Status) -> ReplyLine {
    let scope = ScopeRef::default();
    ReplyLine { status: status as u32, call: request.call, root: 0, scope, word: 0 }
}

/// Copies a scope to the place where it has its own addresses. `None`: it is not in the heap, or too large.
fn copy<'a>(heap: &Heap, copies: &'a mut Copies, scope: ScopeRef, most: u64) -> Option<View<'a>> {
    if scope.length == 0 {
        return Some(View::new(scope.address, &[], 0));
    }
    // Code that reads every byte once takes no more steps than the scope has bytes.
    copies.look(heap, scope, most).ok()
}

#[cfg(test)]
mod tests {
    use super::super::{Call, CallError, ClientEnd, RING_BYTES};
    use super::*;
    use crate::channel::Copied;
    use crate::{Boxed, Owner};
    use portcullis_memory::Memory;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Makes a heap, and both ends over it.
    fn pair(number: u64) -> (Heap, ClientEnd, ServerEnd) {
        let place =
            crate::HeapPlace::new(crate::heap::HEAP_ADDRESSES.start + (number << 40), 1 << 20).unwrap();
        let view = || PrivateView::anywhere(place.length).unwrap();
        let ring = Mapping::private(RING_BYTES).unwrap();
        let heap = Heap::create(place, Owner(1)).unwrap();
        let server = ServerEnd::new(heap.clone(), view(), ring.clone());
        (heap.clone(), ClientEnd::new(heap, view(), ring), server)
    }

    #[test]
    fn a_caller_that_waits_no_more_may_use_its_scope_again_while_it_is_copied() {
        let (heap, mut client, mut server) = pair(8);
        let ran = Arc::new(AtomicU64::new(0));
        let noted = Arc::clone(&ran);
        let methods = Methods::default().copied(1, 4096, move |value: Copied<'_, u64>, _| {
            noted.store(*value.get()?, Ordering::Relaxed);
            Ok(())
        });
        let scope = heap.scope(4096).unwrap();
        let root = Boxed::new(&scope, 5_u64).unwrap();
        let call =
            Call { method: 1, scope: scope.reference(), root: root.address(), word: 0, deadline: Some(100) };
        let call = client.begin(call).unwrap();
        let request = server.take().unwrap();
        // The server stops right after it has read the clock, until the caller has used the scope for something else.
        let looks = AtomicU64::new(0);
        let clock = || match looks.fetch_add(1, Ordering::Relaxed) {
            0 => {
                heap.set(root, 6).unwrap();
                99
            }
            _ => 100,
        };
        let reply = server.answer(&methods, &request, None, &clock);
        assert_eq!((Status::read(reply.status), ran.load(Ordering::Relaxed)), (Some(Status::Late), 0));
        server.reply(&reply);
        assert_eq!(client.poll(call, || 100).unwrap().unwrap_err(), CallError::Late);
    }

    #[test]
    fn a_scope_that_is_none_of_the_heaps_is_not_copied() {
        let place = crate::HeapPlace::new(crate::heap::HEAP_ADDRESSES.start + (7 << 40), 1 << 20).unwrap();
        let heap = Heap::create(place, Owner(1)).unwrap();
        let mut view = Copies::new(PrivateView::at(place.address, place.length).unwrap());
        let start = place.start();
        let mut copied =
            |address, length| copy(&heap, &mut view, ScopeRef { address, length }, 4096).is_some();
        assert!(copied(start, 4096) && copied(start + (1 << 20) - 8, 8) && copied(0, 0));
        let wrong =
            [(start, 4097), (start - 1, 8), (start + (1 << 20) - 7, 8), (u64::MAX, 8), (start, u64::MAX)];
        assert!(wrong.into_iter().all(|(address, length)| !copied(address, length)));
        assert!(heap.memory().length() == 1 << 20);
    }
}
