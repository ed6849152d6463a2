//! Chunks that the node's NIC allocates and frees alone (OneSidedMW).

use super::Session;
use crate::Clock;
use portcullis_client::{Answer, Error, NotRevoked, Permission as Bare};
use portcullis_nic::VerbsEndpoint;
use portcullis_protocol::ChunkTerms;
use std::ops::Deref;

/// A chunk of the node's memory, which the session holds until it frees the chunk or ends.
///
/// Reads, writes and atomics take it like any permission. It has no deadline. Its keys work on this session's queue pairs
/// only, so no other session can use them, whoever learns them. Dropping it frees nothing: see
/// [`Session::free_chunk`].
#[derive(Debug)]
#[must_use = "a chunk that is dropped stays allocated until the session ends"]
pub struct Chunk {
    bare: Bare,
}

impl Chunk {
    /// The chunk as a bare permission, for [`Client::free_chunk`](crate::Client::free_chunk).
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

impl<E: VerbsEndpoint, C: Clock> Session<E, C> {
    /// Has the node make workers on its NIC for this session. Called once, before the first chunk is allocated. This is the
    /// node's CPU's only part in it.
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

    /// Allocates a chunk, full of zeros. The node's CPU has no part in it.
    ///
    /// # Errors
    /// [`Error::NoFreeChunk`], [`Error::Quota`], there are no workers, or the node is gone.
    pub fn allocate_chunk(&mut self) -> Result<Chunk, Error> {
        let call = self.begin(|client, _| client.allocate_chunk())?;
        match self.wait_call(call)? {
            Answer::Granted(bare) => Ok(Chunk { bare }),
            _ => Err(Error::SessionLost),
        }
    }

    /// Frees a chunk. When this returns, its windows are gone and its bytes are zero.
    ///
    /// # Errors
    /// The chunk is another session's, the NIC has failed, or the node is gone.
    pub fn free_chunk(&mut self, chunk: Chunk) -> Result<(), Error> {
        let mut held = Some(chunk.bare);
        let call = self.begin(|client, _| {
            let Some(bare) = held.take() else { return Err(Error::SessionLost) };
            client.free_chunk(bare).map_err(|NotRevoked { permission, error }| {
                held = Some(permission);
                error
            })
        })?;
        self.wait_call(call).map(|_| ())
    }
}
