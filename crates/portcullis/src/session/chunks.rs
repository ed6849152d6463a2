//! Chunks that the node's NIC allocates and frees alone (OneSidedMW).

use super::Session;
use crate::Clock;
use portcullis_client::{Answer, ControlRequest, Error, Permission as Bare};
use portcullis_errors::{Coded, ErrorCode};
use portcullis_nic::VerbsEndpoint;
use portcullis_protocol::ChunkTerms;
use std::ops::Deref;

/// A chunk of the node's memory, which the session holds until it frees the chunk or ends.
///
/// Reads, writes and atomics take a chunk like any permission. A chunk has no deadline. Its keys work on this session's
/// queue pairs only, so another session that learns them cannot use them. Dropping a chunk frees nothing: see
/// [`Session::free_chunk`].
#[derive(Debug)]
#[must_use = "a chunk that is dropped stays allocated until the session ends"]
pub struct Chunk {
    bare: Bare,
}

impl Chunk {
    pub(crate) fn new(bare: Bare) -> Self {
        Self { bare }
    }

    fn granted(answer: Answer) -> Self {
        match answer {
            Answer::Granted(bare) => Self { bare },
            other => unreachable!("a request for a chunk is not answered by {other:?}"),
        }
    }

    /// Returns the chunk as a bare permission, for [`ControlRequest::FreeChunk`].
    #[must_use]
    pub fn into_bare(self) -> Bare {
        self.bare
    }
}

impl Deref for Chunk {
    type Target = Bare;

    fn deref(&self) -> &Bare {
        &self.bare
    }
}

/// Fewer chunks were allocated than requested.
#[derive(Debug, thiserror::Error)]
#[error("{} chunks were allocated, and no more: {error}", chunks.len())]
pub struct NotAllAllocated {
    /// The chunks that were allocated.
    pub chunks: Vec<Chunk>,
    /// The reason why no more were allocated.
    #[source]
    pub error: Error,
}

impl Coded for NotAllAllocated {
    fn code(&self) -> ErrorCode {
        self.error.code()
    }
}

/// Some chunks may not have been freed.
#[derive(Debug, thiserror::Error)]
#[error("{} chunks are still held, and what was under way may be: {error}", left.len())]
pub struct NotAllFreed {
    /// The chunks that the session still holds: it sent no request to free them.
    pub left: Vec<Chunk>,
    /// The reason. A chunk that the session requested to free, without getting an answer, is not in `left`. It is freed
    /// when the session ends at the latest.
    #[source]
    pub error: Error,
}

impl Coded for NotAllFreed {
    fn code(&self) -> ErrorCode {
        self.error.code()
    }
}

impl<E: VerbsEndpoint, C: Clock> Session<E, C> {
    /// Requests workers for this session. The caller does this once, before it allocates the first chunk. If the node's
    /// NIC hands the chunks out ([`ChunkTerms::by`]), the node's CPU has no part in later allocations.
    ///
    /// # Errors
    /// The node has no chunks ([`Refusal::NoChunks`](crate::Refusal::NoChunks)), the tenant's quota is used up, or the node
    /// is gone.
    pub fn join_chunks(&mut self) -> Result<ChunkTerms, Error> {
        match self.call(ControlRequest::JoinChunks)? {
            Answer::Chunks(terms) => Ok(terms),
            other => unreachable!("a request for workers is not answered by {other:?}"),
        }
    }

    /// Allocates a zeroed chunk. If the node's NIC hands the chunks out, the node's CPU has no part in it.
    ///
    /// # Errors
    /// [`Error::NoFreeChunk`], [`Error::Quota`], the session has no workers, or the node is gone.
    pub fn allocate_chunk(&mut self) -> Result<Chunk, Error> {
        self.call(ControlRequest::AllocateChunk).map(Chunk::granted)
    }

    /// Frees a chunk. When this returns, the chunk's windows are unbound and its bytes are zero.
    ///
    /// # Errors
    /// The chunk belongs to another session, the NIC has failed, or the node is gone.
    pub fn free_chunk(&mut self, chunk: Chunk) -> Result<(), Error> {
        self.call(ControlRequest::FreeChunk(chunk.bare)).map(|_| ())
    }

    /// Allocates several chunks, with as many requests under way as a worker takes: sixteen. So this takes a sixteenth
    /// of the round trips of as many calls of [`Session::allocate_chunk`].
    ///
    /// # Errors
    /// [`NotAllAllocated`] with the chunks that were allocated, for a reason of [`Session::allocate_chunk`].
    pub fn allocate_chunks(&mut self, count: usize) -> Result<Vec<Chunk>, NotAllAllocated> {
        let mut requests = std::iter::repeat_with(|| ControlRequest::AllocateChunk).take(count);
        let mut chunks = Vec::new();
        let begun = self.call_all_workers(&mut requests, |answer| chunks.push(Chunk::granted(answer)));
        match begun.map_err(|(_, error)| error) {
            Ok(()) => Ok(chunks),
            Err(error) => Err(NotAllAllocated { chunks, error }),
        }
    }

    /// Frees several chunks, with as many requests under way as a worker takes.
    ///
    /// # Errors
    /// [`NotAllFreed`], for a reason of [`Session::free_chunk`].
    pub fn free_chunks(&mut self, chunks: impl IntoIterator<Item = Chunk>) -> Result<(), NotAllFreed> {
        let mut requests = chunks.into_iter().map(|chunk| ControlRequest::FreeChunk(chunk.bare));
        self.call_all_workers(&mut requests, |_| ()).map_err(|(next, error)| {
            let chunks = next.map(|next| *next).into_iter().chain(requests).map(|request| match request {
                ControlRequest::FreeChunk(bare) => Chunk { bare },
                other => unreachable!("{other:?} frees no chunk"),
            });
            NotAllFreed { left: chunks.collect(), error }
        })
    }
}
