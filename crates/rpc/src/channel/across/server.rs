//! A server's side of a mailbox: it copies requests into the ring of its end, and writes replies to the mailbox.

use super::mailbox::{
    ARGUMENTS_AT, CANCELS_AT, CLOCK_AT, HeapHalves, REPLIES_AT, REPLY_BYTES, REQUEST_BYTES, RESULTS_AT,
};
use super::sealed::{SealedRequest, Turn, seal_reply};
use crate::channel::carrier::ServerCarrier;
use crate::channel::ends::{DEPTH, REQUESTS, ReplyLine, Writer, last_word};
use crate::channel::now;
use crate::heap::{Heap, Owner};
use portcullis_memory::{Bytes, Mapping, Memory};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// A mailbox, as the server has it: in memory that its node lends, which only NICs and this process can access.
#[derive(Debug)]
pub(super) struct ServerMailbox {
    /// The part that the client writes.
    theirs: Mapping,
    /// The part that the client reads.
    ours: Mapping,
    /// The server's end reads requests here.
    ring: Mapping,
    requests: Writer,
    asked: Turn,
    answered: Turn,
    results: Heap,
    /// Token for the mailbox's memory, which stays the connection's for as long as a clone of the token exists.
    _lent: Arc<()>,
}

/// The server's parts of a new mailbox.
#[derive(Debug)]
pub(super) struct Founded {
    pub mailbox: ServerMailbox,
    pub arguments: Heap,
}

impl ServerMailbox {
    /// Makes a mailbox in `memory`, which is zeros. `ring` is that of the server's end. `None`: the memory is too
    /// short.
    pub fn found(
        memory: &Mapping,
        halves: HeapHalves,
        (owner, ring): (Owner, Mapping),
        lent: Arc<()>,
    ) -> Option<Founded> {
        let part = |(offset, length)| memory.part(offset, length);
        let (ours, theirs) = (part(halves.read_part())?, part(halves.written_part())?);
        let results = ours.part(RESULTS_AT, halves.results.length)?;
        let arguments = theirs.part(ARGUMENTS_AT, halves.arguments.length)?;
        let results = Heap::create_in(results, halves.results, owner);
        let arguments = Heap::create_in(arguments, halves.arguments, owner);
        let requests = Writer::new(ring.clone(), REQUESTS, DEPTH);
        let (asked, answered) = (Turn::FIRST, Turn::FIRST);
        let mailbox = Self { theirs, ours, ring, requests, asked, answered, results, _lent: lent };
        Some(Founded { mailbox, arguments })
    }

    /// Returns the next request, if it is complete.
    fn next(&self) -> Option<SealedRequest> {
        let words = self.theirs.load_words(self.asked.index() * REQUEST_BYTES);
        let request = SealedRequest::open(self.asked, &words)?;
        // Everything that the client has written before must be visible too.
        fence(Ordering::Acquire);
        Some(request)
    }
}

impl ServerCarrier for ServerMailbox {
    fn results(&self) -> &Heap {
        &self.results
    }

    fn has_request(&self) -> bool {
        self.next().is_some()
    }

    fn bring(&mut self) {
        let Some(SealedRequest { line, returned }) = self.next() else {
            self.ours.store(CLOCK_AT, now());
            return;
        };
        // The client may write any address: what is not allocated in its results is not freed.
        for address in returned.into_iter().filter(|&it| it != 0) {
            let _ = self.results.free(address);
        }
        let place = self.requests.write(line.method, line.words());
        if self.theirs.load(CANCELS_AT + 8 * self.asked.index()) == line.call {
            self.ring.store(last_word(place), line.call);
        }
        self.asked = self.asked.next();
    }

    fn take_away(&mut self, reply: &ReplyLine) {
        // The result must be visible to others before the reply's line.
        fence(Ordering::Release);
        let words = seal_reply(self.answered, *reply, now());
        self.ours.store_words(REPLIES_AT + REPLY_BYTES * self.answered.index(), words);
        fence(Ordering::Release);
        self.answered = self.answered.next();
    }
}
