//! The checkers' view of the chunks that a node's NIC hands out: from the clients' requests to their workers, from
//! the workers' replies, and from the bytes.

use super::{Arrival, ONE_SHOT, Oracle, Promise, Session, SessionId};
use crate::clock::{MILLISECOND, Nanos};
use crate::memory::{SimMemory, Touch, Words, index};
use portcullis_nic::Rkey;
use portcullis_node::ChunkLimits;
use portcullis_offload::record::Layout;
use portcullis_offload::{ChunkWindow, Geometry, Handle, Reply};
use portcullis_protocol::{CHUNK_QUEUE_PAIRS, ChunkTerms, HandedOutBy};
use portcullis_softnic::core::{Response, WireRequest};
use std::collections::{HashMap, VecDeque};

/// The longest that a worker may take. It waits for its own client and for the lock, which is soon free.
const WORKER_PATIENCE: Nanos = 60 * MILLISECOND;
/// How long the acknowledgement of a reply may be in transit. Before it has arrived, a rebuild may undo the
/// allocation.
const ON_ITS_WAY: Nanos = 5 * MILLISECOND;

/// The worker to which a client sends a request: the one that allocates, or the one that frees.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) enum WorkerOf {
    Alloc,
    Free,
}

impl WorkerOf {
    /// Both workers, in the order of the queue pairs on which a client sends requests.
    pub const ALL: [Self; 2] = [Self::Alloc, Self::Free];
}

/// A request that has reached a worker and has no answer.
#[derive(Clone, Copy, Debug)]
struct Asked {
    at: Nanos,
    /// The chunk to be freed, if the handle names one.
    chunk: Option<usize>,
    /// Whether the client held the chunk then, and had not requested its freeing before.
    was_held: bool,
}

/// A use of a chunk that was reported to a client.
#[derive(Clone, Copy, Debug)]
struct Use {
    session: SessionId,
    windows: [ChunkWindow; CHUNK_QUEUE_PAIRS],
    told: Nanos,
    /// Whether the chunk may be free already: its freeing was requested, its client is gone, or a rebuild may have
    /// undone the allocation.
    may_be_over: bool,
}

#[derive(Clone, Debug, Default)]
struct Chunk {
    held: Option<Use>,
    /// The last holder, if no client holds the chunk.
    last: Option<SessionId>,
    /// The number of its latest use.
    number: Option<u64>,
    bytes: Vec<u8>,
}

/// The counts that a node must have at rest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Allocations {
    /// Allocations that were reported to clients.
    pub told: u64,
    /// Allocations that may have been executed besides: requests that had no answer when their client or its workers
    /// ended.
    pub untold: u64,
}

/// Model of the chunks of one life of a node.
#[derive(Debug)]
pub(super) struct ChunkModel {
    limits: ChunkLimits,
    /// The chunks themselves.
    memory: SimMemory,
    /// The clients' number for their first queue pair for chunks.
    first_queue_pair: u32,
    /// The places of the chunks, once they were reported to a client.
    geometry: Option<Geometry>,
    chunks: Vec<Chunk>,
    asked: HashMap<(SessionId, WorkerOf), VecDeque<Asked>>,
    allocations: Allocations,
}

type Wrong = (Promise, String);

impl ChunkModel {
    pub fn new(limits: ChunkLimits, memory: SimMemory, first_queue_pair: u32) -> Self {
        let chunk = Chunk { bytes: vec![0; index(limits.chunk_bytes)], ..Chunk::default() };
        let chunks = vec![chunk; index(limits.chunks)];
        let allocations = Allocations { told: 0, untold: 0 };
        Self { limits, memory, first_queue_pair, geometry: None, chunks, asked: HashMap::new(), allocations }
    }

    /// Records that a client was informed of the terms of its requests. It has new workers, which know nothing of
    /// earlier requests.
    pub fn joined(&mut self, session: SessionId, terms: &ChunkTerms) -> Option<Wrong> {
        self.forget_asked(session);
        let ChunkTerms { base, chunks, chunk_bytes, quota, .. } = *terms;
        let geometry = Geometry { base, chunk_bytes, chunks };
        let known = self.geometry.get_or_insert(geometry);
        let ChunkLimits { client_max, .. } = self.limits;
        let is_so = (chunks, chunk_bytes) == (self.limits.chunks, self.limits.chunk_bytes)
            && *known == geometry
            && quota <= client_max
            && terms.by == HandedOutBy::Nic;
        (!is_so).then(|| (Promise::Truth, format!("session {session} received {terms:?}")))
    }

    /// Forgets a client's requests to its workers, which are gone. Each request may or may not have been executed.
    fn forget_asked(&mut self, session: SessionId) {
        for worker in WorkerOf::ALL {
            let unanswered = self.asked.remove(&(session, worker)).map_or(0, |asked| asked.len() as u64);
            if worker == WorkerOf::Alloc {
                self.allocations.untold += unanswered;
            }
        }
    }

    /// Records that a client's workers are gone. A reply that left just before may not count.
    pub fn workers_end(&mut self, session: SessionId, now: Nanos) {
        self.forget_asked(session);
        for held in self.chunks.iter_mut().filter_map(|chunk| chunk.held.as_mut()) {
            held.may_be_over |= held.session == session && held.told + ON_ITS_WAY > now;
        }
    }

    /// Records that a client is gone. The node frees what it held, some time.
    pub fn session_ended(&mut self, session: SessionId) {
        self.forget_asked(session);
        for held in self.chunks.iter_mut().filter_map(|chunk| chunk.held.as_mut()) {
            held.may_be_over |= held.session == session;
        }
    }

    /// Records that a request has reached a worker.
    pub fn came(&mut self, session: SessionId, worker: WorkerOf, bytes: &[u8], now: Nanos) {
        let mut asked = Asked { at: now, chunk: None, was_held: false };
        if worker == WorkerOf::Free
            && let Some(&[low, high]) = bytes.first_chunk()
        {
            let line = u16::from_le_bytes([low, high]);
            asked.chunk = (0..self.limits.chunks).find(|&chunk| handle_of(chunk) == Handle(line)).map(index);
        }
        if let Some(held) = asked.chunk.and_then(|chunk| self.chunks[chunk].held.as_mut())
            && held.session == session
        {
            asked.was_held = !std::mem::replace(&mut held.may_be_over, true);
        }
        self.asked.entry((session, worker)).or_default().push_back(asked);
    }

    /// Checks a worker's reply that leaves.
    pub fn replied(
        &mut self,
        session: SessionId,
        worker: WorkerOf,
        reply: &Reply<CHUNK_QUEUE_PAIRS>,
        now: Nanos,
    ) -> Option<Wrong> {
        let asked = self.asked.get_mut(&(session, worker)).and_then(VecDeque::pop_front);
        let Some(asked) = asked else {
            let what = format!(
                "session {session} got {reply:?} of its worker {worker:?}, and had requested nothing"
            );
            return Some((Promise::Truth, what));
        };
        match (worker, reply.is_done) {
            (WorkerOf::Alloc, true) => self.allocated(session, reply, now),
            (WorkerOf::Alloc, false) => None,
            (WorkerOf::Free, is_done) => self.freed(session, asked, is_done),
        }
    }

    /// Returns the chunk whose windows a reply reports.
    fn chunk_of(&self, reply: &Reply<CHUNK_QUEUE_PAIRS>) -> Option<usize> {
        let [first, ..] = reply.windows;
        let at = first.address.0.checked_sub(self.geometry?.base.0)?;
        let is_whole = |window: &ChunkWindow| {
            window.address == first.address && window.length == self.limits.chunk_bytes
        };
        let is_one = at.is_multiple_of(self.limits.chunk_bytes) && reply.windows.iter().all(is_whole);
        let chunk = at / self.limits.chunk_bytes;
        (is_one && chunk < self.limits.chunks).then(|| index(chunk))
    }

    fn allocated(
        &mut self,
        session: SessionId,
        reply: &Reply<CHUNK_QUEUE_PAIRS>,
        now: Nanos,
    ) -> Option<Wrong> {
        let Some(number) = self.chunk_of(reply) else {
            return Some((
                Promise::Truth,
                format!("session {session} was given {reply:x?}, which is no chunk"),
            ));
        };
        self.allocations.told += 1;
        let there = self.bytes_of(number);
        let chunk = &mut self.chunks[number];
        let held = Use { session, windows: reply.windows, told: now, may_be_over: false };
        let before = chunk.held.replace(held);
        let earlier = chunk.number.replace(reply.number_of_use);
        chunk.bytes.fill(0);
        if let Some(before) = before.filter(|before| !before.may_be_over) {
            let what =
                format!("session {session} was given chunk {number}, which session {} holds", before.session);
            return Some((Promise::Exclusion, what));
        }
        if earlier.is_some_and(|earlier| earlier >= reply.number_of_use) {
            let what = format!(
                "session {session} was given chunk {number} in its use {}, and use {} came before",
                reply.number_of_use,
                earlier.unwrap_or(0)
            );
            return Some((Promise::Reference, what));
        }
        let at = there.iter().position(|&byte| byte != 0)?;
        let what = format!(
            "session {session} was given chunk {number} with a byte of an earlier holder at {at:#x}: {:x?}",
            &there[at..there.len().min(at + 16)]
        );
        Some((Promise::Scrub, what))
    }

    fn freed(&mut self, session: SessionId, asked: Asked, is_done: bool) -> Option<Wrong> {
        let number = asked.chunk.filter(|_| asked.was_held);
        match (number, is_done) {
            (Some(number), true) => {
                let chunk = &mut self.chunks[number];
                // Another client may have it already: a reply leaves after the chunk is on the free list.
                if chunk.held.is_some_and(|held| held.session == session && held.may_be_over) {
                    chunk.held = None;
                    chunk.last = Some(session);
                }
                None
            }
            (Some(number), false) => {
                let what = format!(
                    "session {session} received the answer that chunk {number}, which it held, is \
                        not its own"
                );
                Some((Promise::Service, what))
            }
            // The client may have requested this twice, or again after a rebuild.
            (None, true) if asked.chunk.is_some_and(|chunk| self.may_hold(session, chunk)) => {
                if let Some(chunk) = asked.chunk {
                    (self.chunks[chunk].held, self.chunks[chunk].last) = (None, Some(session));
                }
                None
            }
            (None, true) => {
                let what = format!("session {session} freed chunk {:?}, which it did not hold", asked.chunk);
                Some((Promise::Exclusion, what))
            }
            (None, false) => None,
        }
    }

    fn may_hold(&self, session: SessionId, chunk: usize) -> bool {
        self.chunks[chunk].held.is_some_and(|held| held.session == session)
    }

    fn bytes_of(&self, chunk: usize) -> Vec<u8> {
        let mut bytes = vec![0; index(self.limits.chunk_bytes)];
        self.memory.peek(chunk as u64 * self.limits.chunk_bytes, &mut bytes);
        bytes
    }

    /// Returns the first worker that has not answered a request in time.
    fn overdue(&self, now: Nanos) -> Option<(SessionId, WorkerOf)> {
        let late = |asked: &&Asked| asked.at + WORKER_PATIENCE < now;
        let its = self.asked.iter().filter(|(_, asked)| asked.front().filter(late).is_some());
        its.map(|(its, _)| *its).min()
    }

    /// Finds a chunk whose bytes are not those that its holder has left there, or that is free and not zero.
    fn first_difference(&self) -> Option<Wrong> {
        self.chunks.iter().enumerate().find_map(|(number, chunk)| {
            let there = self.bytes_of(number);
            match chunk.held {
                Some(held) if held.may_be_over => None,
                Some(_) => (there != chunk.bytes)
                    .then(|| (Promise::Memory, format!("chunk {number} has other bytes than its holder's"))),
                None => there
                    .iter()
                    .any(|&byte| byte != 0)
                    .then(|| (Promise::Scrub, format!("chunk {number} is free, and not zero"))),
            }
        })
    }
}

/// Checks at rest.
impl ChunkModel {
    /// Describes a chunk that a client still holds, or that is not zero.
    fn first_left(&self) -> Option<String> {
        let is_held = |chunk: &Chunk| chunk.held.is_some_and(|held| !held.may_be_over);
        let held = self.chunks.iter().position(is_held).map(|chunk| format!("chunk {chunk} is held"));
        let is_zero = |&chunk: &usize| self.bytes_of(chunk).iter().all(|&byte| byte == 0);
        let not_zero = || (0..self.chunks.len()).find(|chunk| !is_zero(chunk));
        held.or_else(|| not_zero().map(|chunk| format!("chunk {chunk} is free, and not zero")))
    }
}

/// An access by a key of a chunk.
struct Access {
    /// The queue pair on which the access arrived, by its place among the client's queue pairs for chunks.
    place: usize,
    key: Rkey,
    from: u64,
    length: u64,
}

impl ChunkModel {
    /// Returns the chunk in which an access lies, and the offset of the access in it.
    fn place_of(&self, access: &Access) -> Option<(usize, usize)> {
        let at = access.from.checked_sub(self.geometry?.base.0)?;
        let (chunk, offset) = (at / self.limits.chunk_bytes, at % self.limits.chunk_bytes);
        let is_inside = offset.checked_add(access.length)? <= self.limits.chunk_bytes;
        (is_inside && chunk < self.limits.chunks).then(|| (index(chunk), index(offset)))
    }

    /// Checks whether the client's present use of a chunk allows an access.
    fn judge(&self, session: SessionId, access: &Access) -> Result<(usize, usize), Wrong> {
        let stray = |promise, why: &str| Err((promise, why.to_owned()));
        let Some((number, offset)) = self.place_of(access) else {
            return stray(Promise::Access, "it lies in no chunk");
        };
        let Some(held) = &self.chunks[number].held else {
            return stray(Promise::Access, "no session holds the chunk");
        };
        if held.session != session {
            return Err((Promise::Reuse, format!("session {} has the chunk", held.session)));
        }
        if held.windows.get(access.place).is_none_or(|window| window.rkey != access.key) {
            return stray(Promise::Access, "the key is of another queue pair, or of an earlier use");
        }
        Ok((number, offset))
    }

    /// Executes an access in the model. Returns the memory access and the answer that it must have had.
    fn apply(&mut self, number: usize, offset: usize, request: &WireRequest) -> Option<(Touch, Response)> {
        let start = number as u64 * self.limits.chunk_bytes + offset as u64;
        let bytes = &mut self.chunks[number].bytes;
        let word = |bytes: &[u8]| bytes.get(offset..)?.first_chunk().map(|word| u64::from_le_bytes(*word));
        Some(match request {
            WireRequest::Read { length, .. } => {
                let read = bytes[offset..offset + *length as usize].to_vec();
                (Touch::Read { offset: start, length: u64::from(*length) }, Response::Bytes(read))
            }
            WireRequest::Write { bytes: new, .. } => {
                bytes[offset..offset + new.len()].copy_from_slice(new);
                (Touch::Write { offset: start, bytes: new.clone() }, Response::Done)
            }
            WireRequest::CompareAndSwap { .. } | WireRequest::FetchAndAdd { .. } => {
                let before = word(bytes)?;
                let after = match request {
                    WireRequest::CompareAndSwap { compare, swap, .. } if *compare == before => *swap,
                    WireRequest::FetchAndAdd { add, .. } => before.wrapping_add(*add),
                    _ => before,
                };
                bytes[offset..offset + 8].copy_from_slice(&after.to_le_bytes());
                (Touch::Change { offset: start, before, after }, Response::Value(before))
            }
            WireRequest::Send { .. } => return None,
        })
    }

    /// Returns whether a refused access on a client's queue pair for chunks is a guess. `None`: it was late.
    fn is_guess(&self, session: SessionId, access: &Access) -> Option<bool> {
        let chunk = self.place_of(access).map(|(number, _)| &self.chunks[number]);
        match chunk.map(|chunk| (chunk.held.map(|held| held.session), chunk.last)) {
            Some((Some(holder), _)) if holder == session => Some(false),
            Some((None, Some(last))) if last == session => None,
            _ => Some(true),
        }
    }
}

impl Oracle {
    /// Records that a node's NIC hands out chunks, which lie in this memory. `first_queue_pair`: the clients' number
    /// for their first queue pair for chunks.
    pub fn hands_out_chunks(
        &mut self,
        node: usize,
        limits: ChunkLimits,
        memory: SimMemory,
        first_queue_pair: u32,
    ) {
        if let Some(model) = &mut self.nodes[node] {
            model.chunks = Some(ChunkModel::new(limits, memory, first_queue_pair));
        }
    }

    fn chunks_for(&mut self, session: SessionId) -> Option<&mut ChunkModel> {
        self.nodes[self.sessions[session].node].as_mut()?.chunks.as_mut()
    }

    /// Records that a client was informed that it has workers.
    pub(super) fn joined_chunks(&mut self, session: SessionId, terms: &ChunkTerms, now: Nanos) {
        let wrong = self.chunks_for(session).and_then(|chunks| chunks.joined(session, terms));
        if let Some((promise, what)) = wrong {
            self.fail(promise, now, what);
        }
    }

    /// Records a packet for a worker that has reached its node.
    pub fn asked_worker(&mut self, session: SessionId, worker: WorkerOf, request: &WireRequest, now: Nanos) {
        if let (WireRequest::Send { bytes, .. }, Some(chunks)) = (request, self.chunks_for(session)) {
            chunks.came(session, worker, bytes, now);
        }
    }

    /// Checks a worker's reply that leaves its node.
    pub fn worker_replied(&mut self, session: SessionId, worker: WorkerOf, bytes: &[u8], now: Nanos) {
        let Some(reply) = Reply::from_bytes(bytes) else {
            return self.fail(Promise::Truth, now, format!("a worker sent session {session} nonsense"));
        };
        let Some(chunks) = self.chunks_for(session) else { return };
        let wrong = chunks.replied(session, worker, &reply, now);
        self.tally.grants += u64::from(worker == WorkerOf::Alloc && reply.is_done);
        if let Some((promise, what)) = wrong {
            self.fail(promise, now, what);
        }
    }

    /// Records that the node has ended a client's workers.
    pub fn workers_ended(&mut self, session: SessionId, now: Nanos) {
        if let Some(chunks) = self.chunks_for(session) {
            chunks.workers_end(session, now);
        }
    }

    /// Returns the counts that the node must have.
    pub fn chunk_allocations(&self, node: usize) -> Option<Allocations> {
        Some(self.nodes[node].as_ref()?.chunks.as_ref()?.allocations)
    }

    /// Checks a request on a client's queue pair for chunks. Returns whether it is one.
    pub(super) fn arrived_for_chunk(&mut self, arrival: &Arrival<'_>) -> bool {
        let session = arrival.session;
        let Some(number) = arrival.queue_pair.filter(|_| arrival.queue_pair != ONE_SHOT) else {
            return false;
        };
        let Some(chunks) = self.chunks_for(session) else { return false };
        let Some(place) = number.checked_sub(chunks.first_queue_pair) else { return false };
        let (remote, length) = match arrival.request {
            WireRequest::Read { remote, length } => (remote, u64::from(*length)),
            WireRequest::Write { remote, bytes } => (remote, bytes.len() as u64),
            WireRequest::CompareAndSwap { remote, .. } | WireRequest::FetchAndAdd { remote, .. } => {
                (remote, 8)
            }
            WireRequest::Send { .. } => return false,
        };
        let (key, from) = (remote.rkey, remote.address.0);
        let access = Access { place: place as usize, key, from, length };
        match arrival.answer {
            None => self.untouched(arrival),
            Some(Response::Refused(_)) => self.chunk_refused(arrival, &access),
            Some(_) if length == 0 => self.untouched(arrival),
            Some(answer) => self.chunk_accessed(arrival, &access, answer),
        }
        true
    }

    fn chunk_refused(&mut self, arrival: &Arrival<'_>, access: &Access) {
        self.untouched(arrival);
        let session = arrival.session;
        self.tally.violations_tried += 1;
        self.tally.violations_refused += 1;
        let Some(chunks) = self.chunks_for(session) else { return };
        let guess = chunks.is_guess(session, access);
        let judged = chunks.judge(session, access);
        let may_be_over = judged
            .as_ref()
            .map_or(true, |&(number, _)| chunks.chunks[number].held.is_none_or(|held| held.may_be_over));
        let it = &mut self.sessions[session];
        it.refusals += 1;
        it.guesses += u64::from(guess == Some(true));
        it.strays += u64::from(guess == Some(false));
        if let (Ok((number, _)), false) = (judged, may_be_over) {
            let Session { node, tenant, .. } = self.sessions[session];
            let what = format!(
                "session {session} of tenant {tenant} was refused chunk {number} of node {node}, which it holds"
            );
            self.fail(Promise::Service, arrival.now, what);
        }
    }

    fn chunk_accessed(&mut self, arrival: &Arrival<'_>, access: &Access, answer: &Response) {
        let (session, now) = (arrival.session, arrival.now);
        self.tally.accesses += 1;
        let Some(chunks) = self.chunks_for(session) else { return };
        let (number, offset) = match chunks.judge(session, access) {
            Ok(place) => place,
            Err((promise, why)) => {
                self.tally.violations_tried += 1;
                let Access { place, key, from, length } = access;
                let what = format!(
                    "session {session} reached {from:#x}+{length} by {key:x?} on its queue pair {place} for chunks: {why}"
                );
                return self.fail(promise, now, what);
            }
        };
        let Some((touch, expected)) = chunks.apply(number, offset, arrival.request) else { return };
        if *answer != expected || *arrival.touches != [touch.clone()] {
            let what = format!(
                "session {session}'s access to chunk {number} should have been {touch:x?} with {expected:x?}, and was \
                 {:x?} with {answer:x?}",
                arrival.touches
            );
            self.fail(Promise::Memory, now, what);
        }
    }

    /// Checks that the chunks of all nodes are free, and zero. All clients are gone.
    pub(super) fn chunks_at_rest(&mut self, now: Nanos) {
        let left = |chunks: &ChunkModel| chunks.first_left();
        let mut of_nodes = self.nodes.iter().map(|model| model.as_ref()?.chunks.as_ref().and_then(left));
        if let Some((node, what)) = (0usize..).zip(&mut of_nodes).find_map(|(node, left)| Some((node, left?)))
        {
            self.fail(Promise::Rest, now, format!("at rest {what}, of node {node}"));
        }
    }

    /// Checks conditions that only show with time.
    pub(super) fn look_at_chunks(&mut self, now: Nanos) {
        for node in 0..self.nodes.len() {
            let Some(chunks) = self.nodes[node].as_ref().and_then(|model| model.chunks.as_ref()) else {
                continue;
            };
            let (overdue, differs) = (chunks.overdue(now), chunks.first_difference());
            if let Some((session, worker)) = overdue {
                let what = format!("session {session} has no answer of its worker {worker:?} at node {node}");
                self.fail(Promise::Progress, now, what);
            }
            if let Some((promise, what)) = differs {
                self.fail(promise, now, format!("{what}, of node {node}"));
            }
        }
    }
}

fn handle_of(chunk: u64) -> Handle {
    const LINE_BYTES: u64 = portcullis_offload::record::LINE_BYTES;
    let line = Layout::<CHUNK_QUEUE_PAIRS>::record_of(chunk) / LINE_BYTES;
    Handle(u16::try_from(line).unwrap_or(0))
}
