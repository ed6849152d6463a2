//! Chunks that the node's NIC allocates and frees alone (OneSidedMW).

use super::Session;
use crate::Clock;
use portcullis_client::{Answer, Call, Client, Error, NotRevoked, Permission as Bare};
use portcullis_errors::{Coded, ErrorCode};
use portcullis_nic::VerbsEndpoint;
use portcullis_protocol::ChunkTerms;
use std::collections::VecDeque;
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

    /// Returns the chunk as a bare permission, for [`Client::free_chunk`](crate::Client::free_chunk).
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
        let call = self.begin(|client, _| client.join_chunks())?;
        match self.wait_call(call)? {
            Answer::Chunks(terms) => Ok(terms),
            _ => Err(Error::SessionLost),
        }
    }

    /// Allocates a zeroed chunk. If the node's NIC hands the chunks out, the node's CPU has no part in it.
    ///
    /// # Errors
    /// [`Error::NoFreeChunk`], [`Error::Quota`], the session has no workers, or the node is gone.
    pub fn allocate_chunk(&mut self) -> Result<Chunk, Error> {
        let call = self.begin(|client, _| client.allocate_chunk())?;
        match self.wait_call(call)? {
            Answer::Granted(bare) => Ok(Chunk { bare }),
            _ => Err(Error::SessionLost),
        }
    }

    /// Frees a chunk. When this returns, the chunk's windows are unbound and its bytes are zero.
    ///
    /// # Errors
    /// The chunk belongs to another session, the NIC has failed, or the node is gone.
    pub fn free_chunk(&mut self, chunk: Chunk) -> Result<(), Error> {
        let mut held = Some(chunk.bare);
        let call = self.begin(|client, _| {
            let Some(bare) = held.take() else { return Err(Error::SessionLost) };
            client.free_chunk(bare).map_err(|NotRevoked { permission, error }| {
                held = Some(*permission);
                error
            })
        })?;
        self.wait_call(call).map(|_| ())
    }

    /// Allocates several chunks, with as many requests under way as a worker takes: sixteen. So this takes a sixteenth
    /// of the round trips of as many calls of [`Session::allocate_chunk`].
    ///
    /// # Errors
    /// [`NotAllAllocated`] with the chunks that were allocated, for a reason of [`Session::allocate_chunk`].
    pub fn allocate_chunks(&mut self, count: usize) -> Result<Vec<Chunk>, NotAllAllocated> {
        let mut chunks = Vec::new();
        let mut begun = 0;
        let done = self.keep_asking(
            |client| (begun < count).then(|| client.allocate_chunk().inspect(|_| begun += 1)),
            |answer| match answer {
                Answer::Granted(bare) => {
                    chunks.push(Chunk { bare });
                    Ok(())
                }
                _ => Err(Error::SessionLost),
            },
        );
        match done {
            Ok(()) => Ok(chunks),
            Err(error) => Err(NotAllAllocated { chunks, error }),
        }
    }

    /// Frees several chunks, with as many requests under way as a worker takes.
    ///
    /// # Errors
    /// [`NotAllFreed`], for a reason of [`Session::free_chunk`].
    pub fn free_chunks(&mut self, chunks: impl IntoIterator<Item = Chunk>) -> Result<(), NotAllFreed> {
        let mut left: VecDeque<Bare> = chunks.into_iter().map(Chunk::into_bare).collect();
        let done = self.keep_asking(
            |client| {
                let begun = client.free_chunk(left.pop_front()?);
                Some(begun.map_err(|NotRevoked { permission, error }| {
                    left.push_front(*permission);
                    error
                }))
            },
            |_| Ok(()),
        );
        done.map_err(|error| NotAllFreed { left: left.into_iter().map(Chunk::new).collect(), error })
    }

    /// Begins calls for as long as there is room and `begin` has more of them, and hands each answer to `take`. When
    /// this returns, no call is under way. After the first error it begins no other call.
    fn keep_asking(
        &mut self,
        mut begin: impl FnMut(&mut Client<E>) -> Option<Result<Call, Error>>,
        mut take: impl FnMut(Answer) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (mut under_way, mut done) = (VecDeque::new(), Ok(()));
        let waited = self.wait_until(|client| {
            // A worker answers in the order of the requests.
            while let Some(answer) = under_way.front().and_then(|&call| client.take_call(call)) {
                under_way.pop_front();
                done = done.and(answer.and_then(&mut take));
            }
            while done.is_ok() {
                match begin(client) {
                    None => break,
                    Some(Ok(call)) => under_way.push_back(call),
                    Some(Err(Error::QueueFull { .. })) => return None,
                    Some(Err(error)) => done = Err(error),
                }
            }
            under_way.is_empty().then_some(())
        });
        done.and(waited)
    }
}
