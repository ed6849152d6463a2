//! Copies of linked values from one heap to another (RPCool §5.6, `copy_from`).

use crate::plain::{Plain, align_of, length_of};
use crate::source::bytes_of;
use crate::{Boxed, GrowError, Room, Source};
use std::any::TypeId;
use std::collections::HashMap;

/// A value whose pointers can be followed, so that it is copied with everything that it leads to.
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
    /// A copy whose pointers lead to where copies will be of what this one's lead to.
    ///
    /// # Errors
    /// A pointer leads out of the source, or there is no room.
    fn copy<S: Source, R: Room>(self, copying: &mut Copying<'_, S, R>) -> Result<Self, GrowError>;
}

/// Copies a value with everything that it leads to. What is led to by two pointers is one value in the copy too, and cycles stay
/// cycles. However deep it is linked, no stack grows.
///
/// # Errors
/// A pointer leads out of the source, there is no room, or the source counts steps and there were too many. What was copied until
/// then stays where it is: copy into a scope to be rid of it.
pub fn copy_from<T: Linked, S: Source, R: Room>(
    from: &S,
    root: Boxed<T>,
    to: &R,
) -> Result<Boxed<T>, GrowError> {
    let mut copying = Copying { from, to, places: HashMap::new(), left: Vec::new() };
    let copy = root.copy(&mut copying)?;
    while let Some(Left { from, to, count, go_on }) = copying.left.pop() {
        go_on(&mut copying, from, to, count)?;
    }
    Ok(copy)
}

/// A copy that is under way.
pub struct Copying<'a, S, R> {
    from: &'a S,
    to: &'a R,
    /// Where the copy of what begins at an address is, by its type.
    places: HashMap<(u64, u64, TypeId), u64>,
    /// What has a place and was not copied yet.
    left: Vec<Left<'a, S, R>>,
}

/// Values that have a place and were not copied yet.
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
    /// What is copied from.
    #[must_use]
    pub fn from(&self) -> &'a S {
        self.from
    }

    /// What is copied to.
    #[must_use]
    pub fn to(&self) -> &'a R {
        self.to
    }

    /// Where the copies of `count` values from an address on will be.
    ///
    /// # Errors
    /// They do not all belong to the source, or there is no room.
    pub fn place<T: Linked>(&mut self, address: u64, count: u64) -> Result<u64, GrowError> {
        let key = (address, count, TypeId::of::<T>());
        if let Some(&place) = self.places.get(&key) {
            return Ok(place);
        }
        self.from.step()?;
        let bytes = bytes_of::<T>(address, count)?;
        // Before room is taken for them: the count may be a lie.
        self.from.check(address, bytes)?;
        let place = self.to.reserve(bytes, align_of::<T>())?;
        self.places.insert(key, place);
        self.left.push(Left { from: address, to: place, count, go_on: values::<T, S, R> });
        Ok(place)
    }
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
}

macro_rules! without_pointers {
    ($($type:ty),*) => {
        $(impl Linked for $type {
            fn copy<S: Source, R: Room>(self, _: &mut Copying<'_, S, R>) -> Result<Self, GrowError> {
                Ok(self)
            }
        })*
    };
}

without_pointers!(u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize, f32, f64);

impl<T: Linked, const N: usize> Linked for [T; N] {
    fn copy<S: Source, R: Room>(mut self, copying: &mut Copying<'_, S, R>) -> Result<Self, GrowError> {
        for value in &mut self {
            *value = value.copy(copying)?;
        }
        Ok(self)
    }
}
