//! The chunks of one session, and small objects in them (OneSidedMW).

use crate::held::Dropped;
use crate::{Chunk, Clock, NotAllAllocated, NotAllFreed, Session};
use portcullis_client::{Error, NotFreed, Occupancy, Permission as Bare, SmallObject, SmallObjects};
use portcullis_nic::VerbsEndpoint;
use portcullis_protocol::ChunkTerms;
use std::sync::Arc;

/// Options for the use of a session's chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkOptions {
    /// Number of chunks without small objects that the session keeps for later objects. It gives further ones back to
    /// the node at once.
    pub free_max: usize,
}

impl Default for ChunkOptions {
    fn default() -> Self {
        Self { free_max: 4 }
    }
}

/// Chunks of the node's memory for one session, which the node's NIC allocates and frees alone, and small objects in them.
///
/// The allocator borrows no session, so that the session can be used while objects live. Each call that may need the
/// node takes the session as an argument. It must always be the session on which [`Session::chunks`] was called;
/// otherwise the call ends with [`Error::ForeignChunk`].
///
/// This is not the node's `offload::ChunkPool`, which has all chunks of the node: the allocator has the chunks that one
/// session holds.
///
/// # Small objects
/// [`allocate_object`](Self::allocate_object) costs no message and no access, unless all chunks of a size class are
/// full: then it allocates a chunk. A chunk has objects of one class. A chunk without objects serves any class, and is
/// given back to the node if there are more of them than [`ChunkOptions::free_max`].
///
/// An object holds whatever this session has last written to its bytes, and zeros if it has written nothing.
#[derive(Debug)]
#[must_use = "its chunks stay allocated until the session ends, or they are given back"]
pub struct ChunkAllocator {
    terms: ChunkTerms,
    objects: SmallObjects<Bare>,
    /// The session's list of dropped permissions, which no other session has: it identifies the allocator's session.
    owner: Dropped,
}

impl<E: VerbsEndpoint, C: Clock> Session<E, C> {
    /// Makes an allocator of chunks and of small objects in them. The first allocator of a session requests the
    /// session's workers, and this is the only part that the node's CPU has. Several allocators of one session share
    /// only these workers and the session's quota.
    ///
    /// # Errors
    /// As [`Session::join_chunks`].
    pub fn chunks(&mut self, options: ChunkOptions) -> Result<ChunkAllocator, Error> {
        let terms = match self.client().chunk_terms() {
            Some(terms) => terms,
            None => self.join_chunks()?,
        };
        let objects = SmallObjects::new(terms.chunk_bytes, options.free_max);
        Ok(ChunkAllocator { terms, objects, owner: self.dropped() })
    }
}

impl ChunkAllocator {
    /// Returns the node's terms for the session's chunks, such as the length of a chunk and the number of chunks that
    /// the session may hold.
    #[must_use]
    pub fn terms(&self) -> ChunkTerms {
        self.terms
    }

    fn check_owner<E: VerbsEndpoint, C: Clock>(&self, session: &Session<E, C>) -> Result<(), Error> {
        if Arc::ptr_eq(&self.owner, &session.dropped()) { Ok(()) } else { Err(Error::ForeignChunk) }
    }

    /// Allocates a zeroed chunk. The allocator never places small objects in it.
    ///
    /// # Errors
    /// As [`Session::allocate_chunk`].
    pub fn allocate<E: VerbsEndpoint, C: Clock>(
        &mut self,
        session: &mut Session<E, C>,
    ) -> Result<Chunk, Error> {
        session.allocate_chunk()
    }

    /// Frees a chunk.
    ///
    /// # Errors
    /// As [`Session::free_chunk`].
    pub fn free<E: VerbsEndpoint, C: Clock>(
        &mut self,
        session: &mut Session<E, C>,
        chunk: Chunk,
    ) -> Result<(), Error> {
        session.free_chunk(chunk)
    }

    /// Allocates several chunks at once.
    ///
    /// # Errors
    /// As [`Session::allocate_chunks`].
    pub fn allocate_many<E: VerbsEndpoint, C: Clock>(
        &mut self,
        session: &mut Session<E, C>,
        count: usize,
    ) -> Result<Vec<Chunk>, NotAllAllocated> {
        session.allocate_chunks(count)
    }

    /// Frees several chunks at once.
    ///
    /// # Errors
    /// As [`Session::free_chunks`].
    pub fn free_many<E: VerbsEndpoint, C: Clock>(
        &mut self,
        session: &mut Session<E, C>,
        chunks: impl IntoIterator<Item = Chunk>,
    ) -> Result<(), NotAllFreed> {
        session.free_chunks(chunks)
    }

    /// Allocates an object of at most a chunk's bytes.
    ///
    /// # Errors
    /// [`Error::SmallObjectTooLong`], the caller requested no bytes, or as [`Session::allocate_chunk`] if another chunk
    /// is needed.
    pub fn allocate_object<E: VerbsEndpoint, C: Clock>(
        &mut self,
        session: &mut Session<E, C>,
        bytes: u64,
    ) -> Result<SmallObject, Error> {
        self.check_owner(session)?;
        loop {
            if let Some(object) = self.objects.allocate(bytes)? {
                return Ok(object);
            }
            self.objects.add(session.allocate_chunk()?.into_bare());
        }
    }

    /// Allocates objects of the same length, and allocates the chunks that they need together.
    ///
    /// # Errors
    /// As [`ChunkAllocator::allocate_object`]. No object was allocated then; chunks that were allocated are kept for
    /// other objects.
    pub fn allocate_objects<E: VerbsEndpoint, C: Clock>(
        &mut self,
        session: &mut Session<E, C>,
        count: usize,
        bytes: u64,
    ) -> Result<Vec<SmallObject>, Error> {
        self.check_owner(session)?;
        let of_a_chunk = self.objects.objects_of_a_chunk(bytes)? as usize;
        let mut objects = Vec::with_capacity(count);
        while objects.len() < count {
            if let Some(object) = self.objects.allocate(bytes)? {
                objects.push(object);
                continue;
            }
            let missing = (count - objects.len()).div_ceil(of_a_chunk);
            let (chunks, done) = match session.allocate_chunks(missing) {
                Ok(chunks) => (chunks, Ok(())),
                Err(NotAllAllocated { chunks, error }) => (chunks, Err(error)),
            };
            chunks.into_iter().for_each(|chunk| self.objects.add(chunk.into_bare()));
            if let Err(error) = done {
                for object in objects {
                    self.objects.free_object(object).expect("it was allocated here just now");
                }
                return Err(error);
            }
        }
        Ok(objects)
    }

    /// Frees an object. Gives its chunk back to the node if the chunk has no other object and enough chunks are kept.
    ///
    /// Operations still under way on the object race with its end: take their outcomes first.
    ///
    /// # Errors
    /// [`NotFreed`]: the object belongs to another allocator and is returned to the caller, or its chunk could not be
    /// freed.
    pub fn free_object<E: VerbsEndpoint, C: Clock>(
        &mut self,
        session: &mut Session<E, C>,
        object: SmallObject,
    ) -> Result<(), NotFreed> {
        if let Err(error) = self.check_owner(session) {
            return Err(NotFreed::still_held(object, error));
        }
        self.objects.free_object(object)?;
        while let Some(surplus) = self.objects.take_surplus() {
            let freed = session.free_chunk(Chunk::new(surplus));
            freed.map_err(|error| NotFreed { object: None, error })?;
        }
        Ok(())
    }

    /// Gives all chunks without objects back to the node, including those that the allocator would keep. Returns their
    /// number.
    ///
    /// # Errors
    /// As [`Session::free_chunks`]. The allocator keeps chunks that were not given back.
    pub fn give_back_free<E: VerbsEndpoint, C: Clock>(
        &mut self,
        session: &mut Session<E, C>,
    ) -> Result<usize, Error> {
        self.check_owner(session)?;
        let free: Vec<Chunk> = std::iter::from_fn(|| self.objects.take_free()).map(Chunk::new).collect();
        let count = free.len();
        match session.free_chunks(free) {
            Ok(()) => Ok(count),
            Err(NotAllFreed { left, error }) => {
                left.into_iter().for_each(|chunk| self.objects.add(chunk.into_bare()));
                Err(error)
            }
        }
    }

    /// Returns the use of the chunks with small objects, and of the chunks that are kept for them. Chunks of
    /// [`allocate`](Self::allocate) are not counted.
    #[must_use]
    pub fn occupancy(&self) -> Occupancy {
        self.objects.occupancy()
    }
}
