//! Vectors of consecutive values.

use crate::plain::{Plain, length_of, room_align_of};
use crate::{Copying, GrowError, HeapFull, Linked, PointerError, Pointers, Room, Source, View};
use std::fmt;
use std::marker::PhantomData;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Consecutive values, to which more can be added. In C: `struct { T *values; uint64_t length, capacity; }`.
#[derive(FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(transparent)]
pub struct Vector<T> {
    /// The address of the values, their number, and the number of values that there is room for.
    words: [u64; 3],
    of: PhantomData<fn() -> T>,
}

/// Capacity of a vector when its first value is pushed.
const FIRST_CAPACITY: u64 = 4;

impl<T> Vector<T> {
    /// A vector without values.
    pub const EMPTY: Self = Self { words: [0; 3], of: PhantomData };

    fn address(self) -> u64 {
        self.words[0]
    }

    /// Number of values, as the process that wrote the vector recorded it.
    #[must_use]
    pub fn len(self) -> u64 {
        self.words[1]
    }

    /// Whether the vector has no values.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
}

impl<T: Plain> Vector<T> {
    /// Puts values into a heap or a scope.
    ///
    /// # Errors
    /// There is no room.
    pub fn new<R: Room>(room: &R, values: &[T]) -> Result<Self, HeapFull> {
        let mut vector = Self::EMPTY;
        if !values.is_empty() {
            vector.move_to(room, values.len() as u64, values.as_bytes())?;
            vector.words[1] = values.len() as u64;
        }
        Ok(vector)
    }

    fn move_to<R: Room>(&mut self, room: &R, capacity: u64, bytes: &[u8]) -> Result<(), HeapFull> {
        let address = room.reserve(capacity.saturating_mul(length_of::<T>()), room_align_of::<T>())?;
        room.put(address, bytes);
        self.words[0] = address;
        self.words[2] = capacity;
        Ok(())
    }

    /// Adds a value behind the others, which may move. Other readers see the value only after the vector itself has
    /// been stored anew.
    ///
    /// # Errors
    /// There is no room, or this vector was not made in `room`: then nothing has changed.
    pub fn push<R: Room>(&mut self, room: &R, value: T) -> Result<(), GrowError> {
        let [address, length, capacity] = self.words;
        if length >= capacity {
            // A peer may have written a capacity that is less than the length.
            let wanted = capacity.max(length).saturating_mul(2).max(FIRST_CAPACITY);
            let values = self.read(room)?;
            self.move_to(room, wanted, values.as_bytes())?;
            if capacity > 0 {
                room.release(address, capacity.saturating_mul(length_of::<T>()));
            }
        }
        let place = self.words[0].wrapping_add(length.wrapping_mul(length_of::<T>()));
        room.check(place, length_of::<T>())?;
        room.put(place, value.as_bytes());
        self.words[1] = length.wrapping_add(1);
        Ok(())
    }

    /// The values, in place.
    ///
    /// # Errors
    /// They lead out of the view.
    pub fn get<'a>(self, view: &View<'a>) -> Result<&'a [T], PointerError> {
        view.get_slice(self.address(), self.len())
    }

    /// A copy of the values.
    ///
    /// # Errors
    /// They lead out of the source.
    pub fn read<S: Source>(self, source: &S) -> Result<Vec<T>, PointerError> {
        source.step()?;
        if self.is_empty() {
            return Ok(Vec::new());
        }
        source.values(self.address(), self.len())
    }
}

impl<T: Linked> Linked for Vector<T> {
    fn copy<S: Source, R: Room>(self, copying: &mut Copying<'_, S, R>) -> Result<Self, GrowError> {
        if self.is_empty() {
            return Ok(Self::EMPTY);
        }
        let address = copying.place::<T>(self.address(), self.len())?;
        Ok(Self { words: [address, self.len(), self.len()], of: PhantomData })
    }

    fn pointers(self, at: u64, found: &mut Pointers<'_, '_>) -> Result<(), PointerError> {
        if self.is_empty() { Ok(()) } else { found.name::<T>(at, self.address(), self.len()) }
    }
}

impl<T> Clone for Vector<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Vector<T> {}

impl<T> PartialEq for Vector<T> {
    fn eq(&self, other: &Self) -> bool {
        self.words == other.words
    }
}

impl<T> Eq for Vector<T> {}

impl<T> fmt::Debug for Vector<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [address, length, _] = self.words;
        write!(f, "{length} at {address:#x}")
    }
}
