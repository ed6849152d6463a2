//! Copies of linked values from one heap to another (RPCool §5.6, `copy_from`).

use crate::plain::{Plain, length_of, room_align_of};
use crate::source::bytes_of;
use crate::{Boxed, GrowError, PointerError, Pointers, Room, Source};
use foldhash::fast::RandomState;
use std::any::TypeId;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// A value whose pointers can be followed, so that it can be copied with everything that it leads to.
///
/// ```
/// use portcullis_rpc::{Boxed, Heap, HeapPlace, Linked, Owner, Text, copy_from, heap::HEAP_ADDRESSES};
/// use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};
///
/// #[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Linked)]
/// #[repr(C)]
/// struct Person {
///     name: Text,
///     friend: Boxed<Person>,
/// }
///
/// let heap = |at: u64| Heap::create(HeapPlace::new(HEAP_ADDRESSES.start + (at << 30), 1 << 20)?, Owner(1));
/// let (here, there) = (heap(1)?, heap(2)?);
/// let ada = Boxed::new(&here, Person { name: Text::new(&here, "Ada")?, friend: Boxed::NULL })?;
/// // Each is the other's friend.
/// let charles = Boxed::new(&here, Person { name: Text::new(&here, "Charles")?, friend: ada })?;
/// here.set(ada, Person { friend: charles, ..ada.read(&here)? })?;
///
/// let copy = copy_from(&here, ada, &there)?;
/// drop(here);
/// let friend = copy.read(&there)?.friend.read(&there)?;
/// assert_eq!((friend.name.read(&there)?.as_str(), friend.friend), ("Charles", copy));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Linked: Plain {
    /// Whether no value of this type has pointers, so that consecutive values are copied as bytes.
    const IS_FLAT: bool = false;

    /// Returns a copy of this value. Its pointers lead to the places where the copies of the original's targets will
    /// be.
    ///
    /// # Errors
    /// A pointer leads out of the source, or there is no room.
    fn copy<S: Source, R: Room>(self, copying: &mut Copying<'_, S, R>) -> Result<Self, GrowError>;

    /// Reports the pointers of this value, which lies at address `at`.
    ///
    /// # Errors
    /// A pointer leads out of the view.
    fn pointers(self, at: u64, found: &mut Pointers<'_, '_>) -> Result<(), PointerError>;
}

/// Copies a value with everything that it leads to. If two pointers lead to one value, they lead to one value in the
/// copy too, and cycles stay cycles. The stack does not grow, however deep the value is linked.
///
/// # Errors
/// A pointer leads out of the source, there is no room, or the source counts steps and there were too many. The values
/// copied until then remain: copy into a scope to be able to discard them.
pub fn copy_from<T: Linked, S: Source, R: Room>(
    from: &S,
    root: Boxed<T>,
    to: &R,
) -> Result<Boxed<T>, GrowError> {
    let places = HashMap::with_capacity_and_hasher(PLACES, RandomState::default());
    let mut copying = Copying { from, to, places, left: Vec::new() };
    let copy = root.copy(&mut copying)?;
    while let Some(Left { from, to, count, go_on }) = copying.left.pop() {
        go_on(&mut copying, from, to, count)?;
    }
    Ok(copy)
}

/// Number of places that the table has room for before it grows: most values that a call passes have fewer.
const PLACES: usize = 56;

/// State of a copy that is under way.
pub struct Copying<'a, S, R> {
    from: &'a S,
    to: &'a R,
    /// Addresses of the copies, by the address, number and type of the originals. The hash is seeded: a peer chooses
    /// the addresses.
    places: HashMap<(u64, u64, TypeId), u64, RandomState>,
    /// Values that have a place and have not been copied yet.
    left: Vec<Left<'a, S, R>>,
}

/// Values that have a place and have not been copied yet.
struct Left<'a, S, R> {
    from: u64,
    to: u64,
    count: u64,
    go_on: GoOn<'a, S, R>,
}

type GoOn<'a, S, R> = fn(&mut Copying<'a, S, R>, u64, u64, u64) -> Result<(), GrowError>;

impl<S, R> std::fmt::Debug for Copying<'_, S, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Copying {{ places: {}, left: {} }}", self.places.len(), self.left.len())
    }
}

impl<'a, S: Source, R: Room> Copying<'a, S, R> {
    /// The source of the copy.
    #[must_use]
    pub fn from(&self) -> &'a S {
        self.from
    }

    /// The heap or scope that receives the copy.
    #[must_use]
    pub fn to(&self) -> &'a R {
        self.to
    }

    /// Returns the address where the copies of `count` values from `address` on will be.
    ///
    /// # Errors
    /// The values do not all belong to the source, or there is no room.
    pub fn place<T: Linked>(&mut self, address: u64, count: u64) -> Result<u64, GrowError> {
        let vacant = match self.places.entry((address, count, TypeId::of::<T>())) {
            Entry::Occupied(place) => return Ok(*place.get()),
            Entry::Vacant(vacant) => vacant,
        };
        self.from.step()?;
        let bytes = bytes_of::<T>(address, count)?;
        // The values are checked before room is reserved for them, because the count may be a lie.
        self.from.check(address, bytes)?;
        let place = *vacant.insert(self.to.reserve(bytes, room_align_of::<T>())?);
        if T::IS_FLAT {
            flat(self.from, self.to, address, place, bytes)?;
        } else {
            self.left.push(Left { from: address, to: place, count, go_on: values::<T, S, R> });
        }
        Ok(place)
    }
}

/// Number of bytes that are copied at once if there are no pointers among them.
const FLAT_BYTES: usize = 512;

/// Copies values without pointers.
fn flat<S: Source, R: Room>(from: &S, to: &R, source: u64, place: u64, bytes: u64) -> Result<(), GrowError> {
    let mut piece = [0; FLAT_BYTES];
    for done in (0..bytes).step_by(FLAT_BYTES) {
        let length = usize::try_from(bytes - done).unwrap_or(usize::MAX).min(FLAT_BYTES);
        from.copy(source + done, &mut piece[..length])?;
        to.put(place + done, &piece[..length]);
    }
    Ok(())
}

fn values<T: Linked, S: Source, R: Room>(
    copying: &mut Copying<'_, S, R>,
    from: u64,
    to: u64,
    count: u64,
) -> Result<(), GrowError> {
    for at in 0..count {
        let value: T = copying.from.value(from + at * length_of::<T>())?;
        let value = value.copy(copying)?;
        copying.to.put(to + at * length_of::<T>(), value.as_bytes());
    }
    Ok(())
}

impl<T: Linked> Linked for Boxed<T> {
    fn copy<S: Source, R: Room>(self, copying: &mut Copying<'_, S, R>) -> Result<Self, GrowError> {
        if self.is_null() {
            return Ok(self);
        }
        copying.place::<T>(self.address(), 1).map(Self::at)
    }

    fn pointers(self, at: u64, found: &mut Pointers<'_, '_>) -> Result<(), PointerError> {
        if self.is_null() { Ok(()) } else { found.name::<T>(at, self.address(), 1) }
    }
}

macro_rules! without_pointers {
    ($($type:ty),*) => {
        $(impl Linked for $type {
            const IS_FLAT: bool = true;

            fn copy<S: Source, R: Room>(self, _: &mut Copying<'_, S, R>) -> Result<Self, GrowError> {
                Ok(self)
            }

            fn pointers(self, _: u64, _: &mut Pointers<'_, '_>) -> Result<(), PointerError> {
                Ok(())
            }
        })*
    };
}

without_pointers!(u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize, f32, f64);

impl<T: Linked, const N: usize> Linked for [T; N] {
    const IS_FLAT: bool = T::IS_FLAT;

    fn copy<S: Source, R: Room>(mut self, copying: &mut Copying<'_, S, R>) -> Result<Self, GrowError> {
        for value in &mut self {
            *value = value.copy(copying)?;
        }
        Ok(self)
    }

    fn pointers(self, at: u64, found: &mut Pointers<'_, '_>) -> Result<(), PointerError> {
        for (value, index) in self.into_iter().zip(0..) {
            value.pointers(at + index * length_of::<T>(), found)?;
        }
        Ok(())
    }
}
