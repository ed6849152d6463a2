//! A linked list.

use crate::packed::{one, plain};
use crate::plain::{Plain, length_of};
use crate::{Copying, GrowError, Linked, PointerError, Pointers, Room, Source, View};
use std::fmt;
use std::marker::PhantomData;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A linked list. In C: `struct { Node *first, *last; uint64_t length; }`, where a node is
/// `struct { Node *next; T value; }`.
#[derive(FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(transparent)]
pub struct List<T> {
    /// The address of the first node, that of the last one, and the number of nodes.
    words: [u64; 3],
    of: PhantomData<fn() -> T>,
}

impl<T> List<T> {
    /// A list without values.
    pub const EMPTY: Self = Self { words: [0; 3], of: PhantomData };

    /// Number of values, as the process that wrote the list recorded it.
    #[must_use]
    pub fn len(self) -> u64 {
        self.words[2]
    }

    /// Whether the list has no values.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.words[0] == 0
    }
}

impl<T: Plain> List<T> {
    const ALIGN: u64 = if align_of::<T>() > 8 { align_of::<T>() as u64 } else { 8 };
    /// Offset of the value in a node.
    pub(crate) const VALUE: u64 = 8_u64.next_multiple_of(Self::ALIGN);
    const NODE: u64 = Self::VALUE + size_of::<T>() as u64;

    /// Adds a value at the end. Other readers see the value only after the list itself has been stored anew.
    ///
    /// # Errors
    /// There is no room, or the list was not made in `room`: then nothing has changed.
    pub fn push_back<R: Room>(&mut self, room: &R, value: T) -> Result<(), GrowError> {
        if !self.is_empty() {
            room.check(self.words[1], 8)?;
        }
        let node = room.reserve(Self::NODE, Self::ALIGN)?;
        room.put(node, &0_u64.to_ne_bytes());
        room.put(node + Self::VALUE, value.as_bytes());
        match self.words {
            [0, ..] => self.words = [node, node, 1],
            [_, last, length] => {
                room.put(last, &node.to_ne_bytes());
                self.words[1] = node;
                self.words[2] = length.wrapping_add(1);
            }
        }
        Ok(())
    }

    /// The values, in place.
    pub fn iter<'v, 'a>(self, view: &'v View<'a>) -> impl Iterator<Item = Result<&'a T, PointerError>> + 'v
    where
        'a: 'v,
    {
        self.walk(view, |view, address| view.get(address))
    }

    /// Copies of the values, one after another.
    pub fn read<S: Source>(self, source: &S) -> impl Iterator<Item = Result<T, PointerError>> {
        self.walk(source, |source, address| source.value(address))
    }

    /// Walks from node to node. After an error the iterator ends.
    fn walk<S: Source, V>(
        self,
        source: &S,
        value: impl Fn(&S, u64) -> Result<V, PointerError>,
    ) -> impl Iterator<Item = Result<V, PointerError>> {
        let mut node = self.words[0];
        std::iter::from_fn(move || {
            if node == 0 {
                return None;
            }
            let here = node;
            let step = || {
                source.step()?;
                let next: u64 = source.value(here)?;
                let at = here.checked_add(Self::VALUE);
                let at = at.ok_or(PointerError::Outside { address: here, length: length_of::<T>() })?;
                Ok((next, value(source, at)?))
            };
            let (next, value) = match step() {
                Ok((next, value)) => (next, Ok(value)),
                Err(error) => (0, Err(error)),
            };
            node = next;
            Some(value)
        })
    }
}

impl<T: Linked> Linked for List<T> {
    fn copy<S: Source, R: Room>(self, copying: &mut Copying<'_, S, R>) -> Result<Self, GrowError> {
        let mut copy = Self::EMPTY;
        for value in self.read(copying.from()) {
            let value = value?.copy(copying)?;
            copy.push_back(copying.to(), value)?;
        }
        Ok(copy)
    }

    fn pointers(self, at: u64, found: &mut Pointers<'_, '_>) -> Result<(), PointerError> {
        let [first, last, _] = self.words;
        for (at, node) in [(at, first), (at + 8, last)] {
            Self::name_node(found, at, node)?;
        }
        Ok(())
    }
}

impl<T: Linked> List<T> {
    fn name_node(found: &mut Pointers<'_, '_>, at: u64, node: u64) -> Result<(), PointerError> {
        if node == 0 {
            return Ok(());
        }
        if !node.is_multiple_of(Self::ALIGN) {
            return Err(PointerError::Misaligned { address: node, align: Self::ALIGN });
        }
        found.note(at)?;
        found.follow_to::<Self>(node, 1, Self::NODE, |found, node, _| {
            let next = plain(found, node)?;
            Self::name_node(found, node, next)?;
            one::<T>(found, node + Self::VALUE)
        })
    }
}

impl<T> Clone for List<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for List<T> {}

impl<T> fmt::Debug for List<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, _, length] = self.words;
        write!(f, "{length} from {first:#x}")
    }
}
