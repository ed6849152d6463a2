//! Chunks that the node's NIC allocates and frees alone (OneSidedMW): the client sends short messages to workers on the
//! NIC.
//!
//! A worker answers in the order of the requests, so a reply needs no number. The client never requests more chunks
//! than it may hold: the worker would leave the request unanswered until a chunk is free.

use crate::calls::Calls;
use crate::{Answer, Error, Permission};
use portcullis_nic::{
    ASKING_DEPTH, AskingQueuePairs, Completion, CompletionKind, Lkey, LocalSpan, Memory, Operation as Verb,
    ReceiveRequest, Status, VerbsEndpoint, WorkRequest,
};
use portcullis_offload::record::Layout;
use portcullis_offload::{Geometry, Handle, REQUEST_BYTES, Reply, reply_bytes};
use portcullis_protocol::{CHUNK_QUEUE_PAIRS, ChunkTerms, HandedOutBy, Refusal, RemoteAddress};
use std::collections::VecDeque;

/// Bytes of the place of a request in the arena, and bytes of the place of a reply.
const REQUEST_PLACE: u64 = REQUEST_BYTES.next_multiple_of(8);
const REPLY_PLACE: u64 = reply_bytes::<CHUNK_QUEUE_PAIRS>().next_multiple_of(8);
const QUEUE_BYTES: u64 = ASKING_DEPTH as u64 * (REQUEST_PLACE + REPLY_PLACE);

/// A worker of the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Worker {
    Alloc,
    Free,
}

impl Worker {
    /// Returns the worker whose requests go to the queue pair of this place.
    pub(crate) fn at(place: usize) -> Self {
        if place == Self::Alloc as usize { Self::Alloc } else { Self::Free }
    }
}

/// A request to a worker.
#[derive(Clone, Copy, Debug)]
struct Asked {
    /// The call that waits for the answer. `None`: the client itself repeats a request whose answer it did not get.
    call: Option<u64>,
    /// The chunk to be freed.
    handle: Handle,
}

/// The queue pair for requests to one worker.
#[derive(Debug, Default)]
struct RequestQueue {
    /// Requests without an answer, in the order in which they were sent.
    asked: VecDeque<Asked>,
    /// Requests that the NIC still needs.
    sending: usize,
    /// Slot of the next request.
    next: u32,
    is_broken: bool,
}

/// The pool of chunks, and the client's terms in it.
#[derive(Clone, Copy, Debug)]
struct Share {
    geometry: Geometry,
    terms: ChunkTerms,
}

/// The client's ends of its two workers: one to allocate chunks, one to free them.
#[derive(Debug)]
pub(crate) struct ChunkWorkers {
    key: Lkey,
    /// Offset of the messages in the arena.
    at: u64,
    /// `None`: the client has no workers.
    share: Option<Share>,
    /// Chunks that the client holds or has requested.
    taken: u64,
    /// Chunks that the worker may or may not have freed before it broke.
    unsure: Vec<Handle>,
    /// Number of repeated requests to free a chunk that have no answer yet.
    asked_again: usize,
    queues: [RequestQueue; 2],
}

impl ChunkWorkers {
    /// Makes a client without workers whose messages lie from `at` on in the arena.
    pub(crate) fn new(endpoint: &impl VerbsEndpoint, at: u64) -> Self {
        Self {
            key: endpoint.arena_key(),
            at,
            share: None,
            taken: 0,
            unsure: Vec::new(),
            asked_again: 0,
            queues: Default::default(),
        }
    }

    /// Bytes of the arena that the messages take.
    pub(crate) fn arena_bytes(endpoint: &impl VerbsEndpoint) -> u64 {
        if endpoint.size().asking_queue_pairs() == 0 { 0 } else { 2 * QUEUE_BYTES }
    }

    /// Notes that the client has workers from now on.
    ///
    /// # Errors
    /// [`Error::SessionLost`]: no pool can have these terms.
    pub(crate) fn joined(&mut self, terms: ChunkTerms) -> Result<(), Error> {
        let ChunkTerms { base, chunks, chunk_bytes, .. } = terms;
        if chunk_bytes == 0 || chunks > Layout::<CHUNK_QUEUE_PAIRS>::CHUNKS_MAX {
            return Err(Error::SessionLost);
        }
        self.share = Some(Share { geometry: Geometry { base, chunk_bytes, chunks }, terms });
        Ok(())
    }

    /// The terms that the node has sent for the client's workers. `None`: the client has no workers.
    pub(crate) fn terms(&self) -> Option<ChunkTerms> {
        self.share.map(|share| share.terms)
    }

    /// Returns whether the node's CPU hands out chunks, so that there are no workers.
    pub(crate) fn are_by_cpu(&self) -> bool {
        self.share.is_some_and(|share| share.terms.by == HandedOutBy::Cpu)
    }

    /// Checks that the client may request workers.
    ///
    /// # Errors
    /// [`Refusal::Malformed`]: the client has workers, and none of them broke.
    pub(crate) fn check_join(&self) -> Result<(), Error> {
        let has_workers = self.share.is_some() && !self.queues.iter().any(|queue| queue.is_broken);
        if has_workers { Err(Error::Refused(Refusal::Malformed)) } else { Ok(()) }
    }

    /// Notes that the client has requested workers: it sends none to those that it has, until the new ones are there.
    pub(crate) fn joining(&mut self) {
        if self.share.is_some() {
            self.queues.iter_mut().for_each(|queue| queue.is_broken = true);
        }
    }

    /// Begins to use new workers; the client holds `held` chunks. It repeats the unanswered requests to free chunks,
    /// and requests no chunk before they are answered: the worker might hand out one of these chunks.
    pub(crate) fn resume<E: VerbsEndpoint>(&mut self, endpoint: &mut E, calls: &mut Calls, held: u64) {
        for worker in [Worker::Alloc, Worker::Free] {
            self.broke(calls, worker);
            let queue = &mut self.queues[worker as usize];
            (queue.sending, queue.is_broken) = (0, false);
            // There are none if the node's CPU hands out chunks.
            if let Some(mut queue_pairs) = endpoint.asking_queue_pairs() {
                queue_pairs.asking_rebuilt(worker as usize);
            }
        }
        self.taken = held;
        for handle in std::mem::take(&mut self.unsure) {
            let asked = self.ask(endpoint, Worker::Free, Asked { call: None, handle });
            assert!(asked.is_ok(), "an empty queue has room for as many as it had before");
            self.asked_again += 1;
        }
    }

    /// Checks that a worker's queue has room for one more request than `staged`, which wait to be sent.
    ///
    /// # Errors
    /// [`Error::QueueFull`].
    pub(crate) fn check_room(&self, worker: Worker, staged: usize) -> Result<(), Error> {
        let queue = &self.queues[worker as usize];
        let waits = worker == Worker::Alloc && self.asked_again > 0;
        if waits || queue.asked.len().max(queue.sending) + staged >= ASKING_DEPTH as usize {
            return Err(Error::QueueFull { limit: ASKING_DEPTH.into() });
        }
        Ok(())
    }

    /// Requests a chunk.
    ///
    /// # Errors
    /// [`Error::Quota`], [`Error::QueueFull`], or the client has no workers. Nothing was sent.
    pub(crate) fn allocate<E: VerbsEndpoint>(&mut self, endpoint: &mut E, call: u64) -> Result<(), Error> {
        let quota = self.share()?.terms.quota;
        if self.taken >= quota {
            return Err(Error::Quota { used: self.taken, limit: quota });
        }
        if self.asked_again > 0 {
            return Err(Error::QueueFull { limit: ASKING_DEPTH.into() });
        }
        self.ask(endpoint, Worker::Alloc, Asked { call: Some(call), handle: Handle(0) })?;
        self.taken += 1;
        Ok(())
    }

    /// Requests that the worker free the chunk at an address.
    ///
    /// # Errors
    /// [`Error::ForeignChunk`], [`Error::QueueFull`], or the client has no workers. Nothing was sent.
    pub(crate) fn free<E: VerbsEndpoint>(
        &mut self,
        endpoint: &mut E,
        address: RemoteAddress,
        call: u64,
    ) -> Result<(), Error> {
        let Share { geometry, .. } = self.share()?;
        let chunk = geometry.chunk_at(address).ok_or(Error::ForeignChunk)?;
        let handle = geometry.handle::<CHUNK_QUEUE_PAIRS>(chunk);
        self.ask(endpoint, Worker::Free, Asked { call: Some(call), handle })
    }

    fn share(&self) -> Result<Share, Error> {
        self.share.ok_or(Error::Refused(Refusal::NoChunks))
    }

    fn ask<E: VerbsEndpoint>(&mut self, endpoint: &mut E, worker: Worker, asked: Asked) -> Result<(), Error> {
        let place = worker as usize;
        let queue = &mut self.queues[place];
        if queue.is_broken {
            return Err(Error::Refused(Refusal::NicFailed));
        }
        let full = Error::QueueFull { limit: ASKING_DEPTH.into() };
        if queue.asked.len().max(queue.sending) >= ASKING_DEPTH as usize {
            return Err(full);
        }
        let slot = u64::from(queue.next);
        let first = self.at + place as u64 * QUEUE_BYTES;
        let request_at = first + slot * REQUEST_PLACE;
        let reply_at = first + u64::from(ASKING_DEPTH) * REQUEST_PLACE + slot * REPLY_PLACE;
        let span = |address, bytes: u64| {
            let length = u32::try_from(bytes).expect("messages are short");
            LocalSpan { address, length, lkey: self.key }
        };
        endpoint.arena().write(request_at, &asked.handle.to_request());
        let local = span(reply_at, reply_bytes::<CHUNK_QUEUE_PAIRS>());
        let Some(mut queue_pairs) = endpoint.asking_queue_pairs() else { return Err(full) };
        if queue_pairs.post_asking_receive(place, &[ReceiveRequest { id: slot, local }]) != 1 {
            return Err(full);
        }
        let operation = Verb::Send { local: span(request_at, REQUEST_BYTES) };
        let sent = queue_pairs.post_asking(place, &[WorkRequest { id: slot, signalled: true, operation }]);
        assert_eq!(sent, 1, "the queue has room for as many requests as for receives");
        queue.next = (queue.next + 1) % ASKING_DEPTH;
        queue.sending += 1;
        queue.asked.push_back(asked);
        Ok(())
    }

    /// Handles a completion of a queue pair for requests.
    pub(crate) fn completed<E: VerbsEndpoint>(
        &mut self,
        endpoint: &E,
        calls: &mut Calls,
        worker: Worker,
        completion: &Completion,
    ) {
        let queue = &mut self.queues[worker as usize];
        if completion.status != Status::Success {
            self.broke(calls, worker);
            return;
        }
        if completion.kind == CompletionKind::Send {
            queue.sending = queue.sending.saturating_sub(1);
            return;
        }
        let Some(asked) = queue.asked.pop_front() else { return };
        let first = self.at + worker as u64 * QUEUE_BYTES;
        let slot = completion.request % u64::from(ASKING_DEPTH);
        let mut bytes = vec![0; usize::try_from(REPLY_PLACE).unwrap_or(0)];
        endpoint
            .arena()
            .read(first + u64::from(ASKING_DEPTH) * REQUEST_PLACE + slot * REPLY_PLACE, &mut bytes);
        let result = match Reply::from_bytes(&bytes) {
            Some(reply) => self.judge(worker, &reply),
            None => Err(Error::SessionLost),
        };
        match asked.call {
            Some(call) => calls.finish(call, result),
            None => self.asked_again -= 1,
        }
    }

    /// Converts a worker's answer into the result of the call.
    fn judge(&mut self, worker: Worker, reply: &Reply<CHUNK_QUEUE_PAIRS>) -> Result<Answer, Error> {
        match (worker, reply.is_done) {
            (Worker::Alloc, true) => Ok(Answer::Granted(Permission::of_chunk(reply))),
            (Worker::Alloc, false) => {
                self.taken -= 1;
                Err(Error::NoFreeChunk)
            }
            (Worker::Free, true) => {
                self.taken = self.taken.saturating_sub(1);
                Ok(Answer::Done)
            }
            (Worker::Free, false) => Err(Error::ForeignChunk),
        }
    }

    /// Marks a worker as broken. It sends no more answers, and may or may not have carried out the pending requests.
    fn broke(&mut self, calls: &mut Calls, worker: Worker) {
        let queue = &mut self.queues[worker as usize];
        queue.is_broken = true;
        for Asked { call, handle } in queue.asked.drain(..) {
            match call {
                Some(call) => calls.finish(call, Err(Error::Refused(Refusal::NicFailed))),
                None => self.asked_again -= 1,
            }
            if worker == Worker::Free {
                self.unsure.push(handle);
            }
        }
    }

    /// Drops all requests: the calls have ended.
    pub(crate) fn clear(&mut self) {
        self.share = None;
        for queue in &mut self.queues {
            queue.asked.clear();
            queue.is_broken = true;
        }
    }
}
