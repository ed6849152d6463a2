//! The chunks of one session, and small objects in them (OneSidedMW).

use crate::held::Dropped;
use crate::{Chunk, Clock, NotAllAllocated, NotAllFreed, Session};
use portcullis_client::{Error, NotFreed, Occupancy, Permission as Bare, SmallObject, SmallObjects};
use portcullis_nic::VerbsEndpoint;
use portcullis_protocol::ChunkTerms;
use std::sync::Arc;

/// How a session's chunks are used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkOptions {
    /// Chunks without small objects that the session keeps for the next ones. The others go back to the node at once.
    pub free_max: usize,
}

impl Default for ChunkOptions {
    fn default() -> Self {
        Self { free_max: 4 }
    }
}

/// Chunks of the node's memory for one session, which the node's NIC allocates and frees alone, and small objects in them.
///
/// It borrows no session, so that the session can be used while objects live: each call that may need the node takes the
/// session, and it must always be the one that [`Session::chunks`] was called on. Otherwise the call ends with
/// [`Error::ForeignChunk`].
///
/// What `offload::ChunkPool` is on the node, all chunks that there are, is not this: this has the ones that one session
/// holds.
///
/// # Small objects
/// [`allocate_object`](Self::allocate_object) costs no message and no access, except where all chunks of a size class are
/// full: then it allocates a chunk. A chunk has objects of one class. A chunk without objects serves any class, and goes
/// back to the node if there are more of them than [`ChunkOptions::free_max`].
///
/// The bytes of an object are whatever this session has last written there, and zeros where it has written nothing.
#[derive(Debug)]
#[must_use = "its chunks stay allocated until the session ends, or they are given back"]
pub struct ChunkAllocator {
    terms: ChunkTerms,
    objects: SmallObjects<Bare>,
    /// The session's list of dropped permissions, which no other session has: it tells whose allocator this is.
    owner: Dropped,
}

impl<E: VerbsEndpoint, C: Clock> Session<E, C> {
    /// An allocator of chunks and of small objects in them. The first of a session has the node make the session's workers,
    /// which is the node's CPU's only part in it. Several of one session share them, and the session's quota, and nothing
    /// else.
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
    /// What the node has said about the session's chunks: how long a chunk is, and how many the session may hold.
    #[must_use]
    pub fn terms(&self) -> ChunkTerms {
        self.terms
    }

    fn check_owner<E: VerbsEndpoint, C: Clock>(&self, session: &Session<E, C>) -> Result<(), Error> {
        if Arc::ptr_eq(&self.owner, &session.dropped()) { Ok(()) } else { Err(Error::ForeignChunk) }
    }

    /// Allocates a chunk, full of zeros. No small object is ever in it.
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
    /// [`Error::SmallObjectTooLong`], no bytes were asked for, or as [`Session::allocate_chunk`] where another chunk is
    /// needed.
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

    /// Allocates objects of the same length, and the chunks that they need at once.
    ///
    /// # Errors
    /// As [`ChunkAllocator::allocate_object`]. No object was allocated then; chunks that were are kept for others.
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

    /// Frees an object. Its chunk goes back to the node if it has no other and enough are kept.
    ///
    /// Operations still under way on the object race with that: take their outcomes first.
    ///
    /// # Errors
    /// [`NotFreed`]: the object is another allocator's and comes back, or its chunk could not be freed.
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

    /// Gives all chunks without objects back to the node, also those that would be kept. Returns how many.
    ///
    /// # Errors
    /// As [`Session::free_chunks`]. Chunks that are left are kept for further objects.
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

    /// What the chunks with small objects, and those kept for them, are used for. Chunks of
    /// [`allocate`](Self::allocate) are not among them.
    #[must_use]
    pub fn occupancy(&self) -> Occupancy {
        self.objects.occupancy()
    }
}
