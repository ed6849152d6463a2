//! The node's side of the monitor: accesses to chunks, and allocation and release of chunks, several at a time.

use super::buffers::Buffers;
use crate::FarError;
use crate::pages::{ChunkId, RunId, SEGMENT_PAGES, Span};
use portcullis::{
    Access, Answer, ArenaMemory, BarePermission, Call, ControlRequest, Error, NotBegun, Operation, Outcome,
    Session,
};
use portcullis_memory::userfault::PAGE;
use std::collections::{HashMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// An operation that has ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ended {
    Loaded(RunId),
    Saved(RunId),
    Allocated(ChunkId),
    Freed,
}

/// Kind of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Load,
    Save,
}

/// An access to a piece of a run: some of its pages.
#[derive(Clone, Copy, Debug)]
struct PieceAccess {
    kind: Kind,
    run: RunId,
    chunk: ChunkId,
    /// Index of the piece in the run.
    piece: usize,
}

/// A session with its chunks.
pub(super) struct Node {
    session: Session,
    chunks: HashMap<ChunkId, BarePermission>,
    waiting: VecDeque<PieceAccess>,
    under_way: HashMap<Operation, PieceAccess>,
    /// Requests about chunks that have not begun, each with its meaning for the monitor.
    requests: VecDeque<(Ended, ControlRequest)>,
    calls: Vec<(Call, Ended)>,
    drained: Vec<(Operation, Outcome<ArenaMemory>)>,
    chunks_max: u64,
    allocated: u64,
}

impl Node {
    /// Requests that the node's NIC get workers for the session.
    pub(super) fn join(mut session: Session, needed: u64) -> Result<Self, FarError> {
        let terms = session.join_chunks().map_err(FarError::node("the node has no memory to hand out"))?;
        if terms.chunk_bytes < needed {
            return Err(FarError::SmallChunks { chunk_bytes: terms.chunk_bytes, needed });
        }
        // No time limit: a program waits for its memory as it waits for a disk, and giving up a page would mean ending
        // the program. A lost node is noticed all the same.
        session.client().limit_to(None);
        Ok(Self {
            session,
            chunks: HashMap::new(),
            waiting: VecDeque::new(),
            under_way: HashMap::new(),
            requests: VecDeque::new(),
            calls: Vec::new(),
            drained: Vec::new(),
            chunks_max: 0,
            allocated: 0,
        })
    }

    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    pub(super) fn load(&mut self, buffers: &mut Buffers, run: RunId, chunk: ChunkId) -> Result<(), FarError> {
        self.begin_all(buffers, run, chunk, Kind::Load)
    }

    pub(super) fn save(&mut self, buffers: &mut Buffers, run: RunId, chunk: ChunkId) -> Result<(), FarError> {
        self.begin_all(buffers, run, chunk, Kind::Save)
    }

    fn begin_all(
        &mut self,
        buffers: &mut Buffers,
        run: RunId,
        chunk: ChunkId,
        kind: Kind,
    ) -> Result<(), FarError> {
        let stored = buffers.get_mut(run);
        stored.accesses = stored.pieces.len();
        self.waiting.extend((0..stored.pieces.len()).map(|piece| PieceAccess { kind, run, chunk, piece }));
        self.begin_waiting(buffers)
    }

    pub(super) fn allocate_chunk(&mut self, id: ChunkId) -> Result<(), FarError> {
        self.requests.push_back((Ended::Allocated(id), ControlRequest::AllocateChunk));
        self.ask()
    }

    pub(super) fn free_chunk(&mut self, id: ChunkId) -> Result<(), FarError> {
        let chunk = self.chunks.remove(&id).expect("only a chunk that is there is freed");
        self.requests.push_back((Ended::Freed, ControlRequest::FreeChunk(chunk)));
        self.ask()
    }

    /// Takes the operations that have ended, and starts those that found no room.
    pub(super) fn poll(&mut self, buffers: &mut Buffers) -> Result<Vec<Ended>, FarError> {
        let mut ended = Vec::new();
        self.session.poll();
        let mut drained = std::mem::take(&mut self.drained);
        self.session.client().drain(&mut drained);
        for (operation, outcome) in drained.drain(..) {
            ended.extend(self.finish(buffers, operation, outcome)?);
        }
        self.drained = drained;
        let mut at = 0;
        while at < self.calls.len() {
            let (call, what) = self.calls[at];
            match self.session.client().take_call(call) {
                None => at += 1,
                Some(answer) => {
                    self.calls.swap_remove(at);
                    self.answered(what, answer)?;
                    ended.push(what);
                }
            }
        }
        if let Some(error) = self.session.client().over() {
            return Err(FarError::node("the program's memory is lost")(error));
        }
        self.begin_waiting(buffers)?;
        self.ask()?;
        Ok(ended)
    }

    /// Completes an access. Returns the run's operation that has ended with it, if this was the last access of its run.
    fn finish(
        &mut self,
        buffers: &mut Buffers,
        operation: Operation,
        outcome: Outcome<ArenaMemory>,
    ) -> Result<Option<Ended>, FarError> {
        let Some(PieceAccess { kind, run, piece, .. }) = self.under_way.remove(&operation) else {
            return Ok(None);
        };
        let what = match kind {
            Kind::Load => "cannot read the program's memory",
            Kind::Save => "cannot write the program's memory",
        };
        outcome.result.map_err(FarError::node(what))?;
        let stored = buffers.get_mut(run);
        stored.pieces[piece].buffer = outcome.buffer;
        stored.accesses -= 1;
        Ok((stored.accesses == 0).then_some(match kind {
            Kind::Load => Ended::Loaded(run),
            Kind::Save => Ended::Saved(run),
        }))
    }

    fn answered(&mut self, what: Ended, answer: Result<Answer, Error>) -> Result<(), FarError> {
        match (what, answer) {
            (Ended::Allocated(id), Ok(Answer::Granted(chunk))) => {
                self.chunks.insert(id, chunk);
                self.allocated += 1;
                self.chunks_max = self.chunks_max.max(self.chunks.len() as u64);
                Ok(())
            }
            (Ended::Allocated(_), Err(error)) => Err(FarError::node(NO_CHUNK)(error)),
            (_, Err(error)) => Err(FarError::node("cannot free memory of the node")(error)),
            (_, Ok(_)) => Ok(()),
        }
    }

    /// Starts accesses while there is room for them.
    fn begin_waiting(&mut self, buffers: &mut Buffers) -> Result<(), FarError> {
        while let Some(&access) = self.waiting.front() {
            let stored = buffers.get_mut(access.run);
            let Span { first, .. } = stored.span;
            let piece = &mut stored.pieces[access.piece];
            let chunk = &self.chunks[&access.chunk];
            let offset = (first % SEGMENT_PAGES + u64::from(piece.at)) * PAGE as u64;
            let buffer = piece.buffer.take().expect("one access at a time");
            let now = self.session.now();
            let client = self.session.client();
            let begun = match access.kind {
                Kind::Load => client.access(now, Access::read(chunk, offset, buffer)),
                Kind::Save => client.access(now, Access::write(chunk, offset, buffer)),
            };
            match begun {
                Ok(operation) => {
                    self.under_way.insert(operation, access);
                    self.waiting.pop_front();
                }
                Err(NotBegun { ask, error: Error::QueueFull { .. } }) => {
                    piece.buffer = ask.into_buffer();
                    break;
                }
                Err(refused) => {
                    return Err(FarError::node("cannot reach the program's memory")(refused.error));
                }
            }
        }
        Ok(())
    }

    /// Sends requests to the workers while there is room for requests.
    fn ask(&mut self) -> Result<(), FarError> {
        while let Some((meaning, request)) = self.requests.pop_front() {
            let now = self.session.now();
            match self.session.client().call(now, request) {
                Ok(call) => self.calls.push((call, meaning)),
                Err(NotBegun { ask, error: Error::QueueFull { .. } }) => {
                    self.requests.push_front((meaning, *ask));
                    break;
                }
                Err(refused) => return Err(FarError::node(NO_CHUNK)(refused.error)),
            }
        }
        Ok(())
    }

    /// Whether no operation is in progress or waits.
    pub(super) fn is_at_rest(&self) -> bool {
        self.waiting.is_empty()
            && self.under_way.is_empty()
            && self.requests.is_empty()
            && self.calls.is_empty()
    }

    /// Waits until an event, or for a short time.
    pub(super) fn wait(&mut self) -> Result<(), FarError> {
        let mut looks = 0;
        let waited = self.session.wait_until(|_| {
            looks += 1;
            (looks > 2).then_some(())
        });
        waited.map_err(FarError::node("the program's memory is lost"))
    }

    /// Makes the descriptor readable at the next event. Returns how long the caller may wait for that.
    pub(super) fn arm(&mut self) -> Duration {
        self.session.arm()
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.session.descriptor()
    }

    pub(super) fn chunks(&self) -> u64 {
        self.chunks.len() as u64
    }

    pub(super) fn chunks_max(&self) -> u64 {
        self.chunks_max
    }

    pub(super) fn chunks_allocated(&self) -> u64 {
        self.allocated
    }
}

const NO_CHUNK: &str = "the node has no memory for what the program has written: serve with more --chunks, or keep more \
                        local with --local";
