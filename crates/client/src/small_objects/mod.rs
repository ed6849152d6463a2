//! Small objects in chunks that the client holds (OneSidedMW, «each CN organizes them into size classes»).
//!
//! A chunk holds objects of one size class. The client alone creates and frees objects: it sends no message for an
//! object, and the node's memory holds no record of it. Another chunk is needed only if a class has no free place, and
//! only a chunk without objects can be given back.
//!
//! This is a state machine over chunks of any type. It neither requests nor frees chunks: its caller hands them in
//! ([`SmallObjects::add`]) and takes them out ([`SmallObjects::take_surplus`]).

mod classes;
mod object;
mod places;

pub use object::{NotFreed, SmallObject};

use crate::Error;
use classes::SizeClasses;
use places::Places;
use portcullis_protocol::Refusal;
use portcullis_slots::{Reuse, Slots};
use std::collections::BTreeSet;

/// The name of a small object in its allocator. No other object of that allocator ever has the same name, so the name
/// of a freed object names nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SmallObjectId {
    chunk: u64,
    place: u32,
    birth: u32,
}

/// Location of a small object.
#[derive(Debug)]
pub struct Located<'a, C> {
    /// The chunk.
    pub chunk: &'a C,
    /// Offset of the object's bytes in the chunk.
    pub offset: u64,
    /// Bytes of the object's place, which are at least as many as were requested.
    pub place_bytes: u64,
}

/// A chunk with objects.
#[derive(Debug)]
struct InUse<C> {
    chunk: C,
    class: usize,
    places: Places,
}

/// The chunks of one class.
#[derive(Clone, Debug, Default)]
struct Class {
    /// Chunks with a free place. New objects go to the first of them, so that the last ones become empty.
    with_room: BTreeSet<u64>,
    chunks: u64,
    objects: u64,
}

/// Use of an allocator's chunks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Occupancy {
    /// Bytes of all chunks that the allocator holds.
    pub bytes_held: u64,
    /// Bytes of the places of all objects.
    pub bytes_live: u64,
    /// Number of chunks that the allocator holds.
    pub chunks: u64,
    /// Number of chunks without objects.
    pub free_chunks: u64,
    /// Number of objects.
    pub objects: u64,
    /// Use of the chunks of each size class that has any, by ascending size.
    pub classes: Vec<ClassOccupancy>,
}

/// Use of the chunks of one size class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClassOccupancy {
    /// Bytes of an object's place.
    pub place_bytes: u64,
    /// Number of chunks with objects of this class.
    pub chunks: u64,
    /// Number of places in these chunks.
    pub places: u64,
    /// Number of objects of this class.
    pub objects: u64,
}

/// Allocator of small objects in chunks. See the module's documentation.
#[derive(Debug)]
pub struct SmallObjects<C> {
    sizes: SizeClasses,
    classes: Vec<Class>,
    in_use: Slots<u64, InUse<C>>,
    /// Chunks without objects. The chunk that became empty last is used first.
    free: Vec<C>,
    free_max: usize,
}

impl<C> SmallObjects<C> {
    /// Makes an allocator for chunks of `chunk_bytes`, a multiple of 8. Up to `free_max` chunks without objects are
    /// kept for later objects.
    #[must_use]
    pub fn new(chunk_bytes: u64, free_max: usize) -> Self {
        let sizes = SizeClasses::of_chunk(chunk_bytes);
        let classes = vec![Class::default(); sizes.count()];
        Self { sizes, classes, in_use: Slots::new(Reuse::LatestFirst, u32::MAX), free: Vec::new(), free_max }
    }

    /// Finds a place for an object. No other object has any of its bytes until it is freed. `None`: another chunk is
    /// needed first.
    ///
    /// # Errors
    /// [`Error::SmallObjectTooLong`], or [`Refusal::Nothing`] for an object without bytes.
    pub fn place(&mut self, bytes: u64) -> Result<Option<SmallObjectId>, Error> {
        let class = self.class_of(bytes)?;
        let chunk = match self.classes[class].with_room.first() {
            Some(&chunk) => chunk,
            None => {
                let Some(chunk) = self.free.pop() else { return Ok(None) };
                self.begin_to_use(chunk, class)
            }
        };
        let in_use = self.in_use.get_mut(chunk).expect("chunks with room are in use");
        let (place, birth) = in_use.places.take().expect("the chunk has room");
        if in_use.places.is_full() {
            self.classes[class].with_room.remove(&chunk);
        }
        self.classes[class].objects += 1;
        Ok(Some(SmallObjectId { chunk, place, birth }))
    }

    fn class_of(&self, bytes: u64) -> Result<usize, Error> {
        if bytes == 0 {
            return Err(Error::Refused(Refusal::Nothing));
        }
        let limit = self.sizes.chunk_bytes();
        self.sizes.class_of(bytes).ok_or(Error::SmallObjectTooLong { bytes, limit })
    }

    fn begin_to_use(&mut self, chunk: C, class: usize) -> u64 {
        let places = Places::new(self.sizes.objects(class));
        let key = self.in_use.insert(InUse { chunk, class, places });
        let class = &mut self.classes[class];
        class.with_room.insert(key);
        class.chunks += 1;
        key
    }

    /// Adds a chunk, which the next class that needs a chunk will use.
    pub fn add(&mut self, chunk: C) {
        self.free.push(chunk);
    }

    /// Frees an object.
    ///
    /// # Errors
    /// [`Error::NoSuchSmallObject`]: it was freed before. Nothing has changed.
    pub fn free(&mut self, object: SmallObjectId) -> Result<(), Error> {
        let SmallObjectId { chunk, place, birth } = object;
        let in_use = self.in_use.get_mut(chunk).filter(|it| it.places.has(place, birth));
        let in_use = in_use.ok_or(Error::NoSuchSmallObject)?;
        in_use.places.give_back(place);
        let (class, is_empty) = (in_use.class, in_use.places.is_empty());
        let of_class = &mut self.classes[class];
        of_class.objects -= 1;
        if is_empty {
            of_class.with_room.remove(&chunk);
            of_class.chunks -= 1;
            let InUse { chunk, .. } = self.in_use.remove(chunk).expect("it was there just now");
            self.free.push(chunk);
        } else {
            of_class.with_room.insert(chunk);
        }
        Ok(())
    }

    /// Returns the location of an object. `None`: the object was freed.
    #[must_use]
    #[inline]
    pub fn locate(&self, object: SmallObjectId) -> Option<Located<'_, C>> {
        let in_use = self.in_use.get(object.chunk)?;
        let is_there = in_use.places.has(object.place, object.birth);
        is_there.then(|| {
            let place_bytes = self.sizes.object_bytes(in_use.class);
            Located { chunk: &in_use.chunk, offset: u64::from(object.place) * place_bytes, place_bytes }
        })
    }

    /// Takes out a chunk without objects, if there are more of them than the allocator keeps.
    pub fn take_surplus(&mut self) -> Option<C> {
        (self.free.len() > self.free_max).then(|| self.free.remove(0))
    }

    /// Takes out any chunk without objects.
    pub fn take_free(&mut self) -> Option<C> {
        self.free.pop()
    }

    /// Takes out all chunks. All objects are freed.
    pub fn take_all(&mut self) -> Vec<C> {
        let keys: Vec<u64> = self.in_use.iter().map(|(key, _)| key).collect();
        let in_use = keys.into_iter().filter_map(|key| self.in_use.remove(key)).map(|it| it.chunk);
        let all = in_use.chain(self.free.drain(..)).collect();
        self.classes.fill(Class::default());
        all
    }

    /// Returns how many objects of `bytes` bytes a chunk has room for.
    ///
    /// # Errors
    /// As [`SmallObjects::place`].
    pub fn objects_of_a_chunk(&self, bytes: u64) -> Result<u32, Error> {
        Ok(self.sizes.objects(self.class_of(bytes)?))
    }

    /// Returns the bytes of a chunk, which is also the longest object.
    #[must_use]
    pub fn chunk_bytes(&self) -> u64 {
        self.sizes.chunk_bytes()
    }

    /// Returns the use of the chunks.
    #[must_use]
    pub fn occupancy(&self) -> Occupancy {
        let of_class = |(class, it): (usize, &Class)| ClassOccupancy {
            place_bytes: self.sizes.object_bytes(class),
            chunks: it.chunks,
            places: it.chunks * u64::from(self.sizes.objects(class)),
            objects: it.objects,
        };
        let used = self.classes.iter().enumerate().filter(|(_, it)| it.chunks > 0);
        let classes: Vec<ClassOccupancy> = used.map(of_class).collect();
        let free_chunks = self.free.len() as u64;
        let chunks = free_chunks + self.in_use.len() as u64;
        Occupancy {
            bytes_held: chunks * self.sizes.chunk_bytes(),
            bytes_live: classes.iter().map(|it| it.objects * it.place_bytes).sum(),
            chunks,
            free_chunks,
            objects: classes.iter().map(|it| it.objects).sum(),
            classes,
        }
    }
}
