//! Linked values in one block, which can be copied as a whole.
//!
//! [`copy_from`](crate::copy_from) reserves room for each value and looks up where each copy lies. A process that keeps
//! a passed value, and passes it on many times, does that work once: the block has the bytes as they were received, and
//! the offsets of the pointers among them. Putting the block into a heap takes one copy, and an addition for each
//! pointer.

use crate::plain::{Plain, align_of, length_of};
use crate::source::bytes_of;
use crate::{Boxed, HeapFull, Linked, PointerError, Room, Source, View};
use foldhash::fast::RandomState;
use std::any::TypeId;
use std::collections::HashSet;
use std::fmt;

/// The largest alignment that a value may need.
const ALIGN: u64 = 64;
/// Spans of at least this many bytes are remembered, so that each of them is marked only once.
const LONG_SPAN: u64 = 4096;

/// A value with everything that it leads to, in memory of this process alone: a copy that can be put into any heap or scope.
///
/// ```
/// use portcullis_rpc::{Boxed, Heap, HeapPlace, Owner, Packed, Room, Source, Text, Vector, View, heap::HEAP_ADDRESSES};
///
/// let heap = |at: u64| Heap::create(HeapPlace::new(HEAP_ADDRESSES.start + (at << 30), 1 << 20)?, Owner(1));
/// let (here, there) = (heap(1)?, heap(2)?);
/// let scope = here.scope(4096)?;
/// let names = [Text::new(&scope, "Ada")?, Text::new(&scope, "Charles")?];
/// let root = Boxed::new(&scope, Vector::new(&scope, &names)?)?;
/// let mut bytes = vec![0; 4096];
/// scope.copy(scope.address(), &mut bytes)?;
///
/// let packed = Packed::new(&View::new(scope.address(), &bytes, 100), root)?;
/// for _ in 0..2 {
///     let names = packed.put(&there)?.read(&there)?.read(&there)?;
///     assert_eq!(names[1].read(&there)?, "Charles");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Packed<T> {
    /// Address that the first byte had in the source.
    base: u64,
    bytes: Box<[u8]>,
    /// Offsets of the pointers among the bytes.
    pointers: Box<[usize]>,
    root: Boxed<T>,
}

impl<T: Linked> Packed<T> {
    /// Packs all bytes of a view, including bytes that no pointer leads to.
    ///
    /// # Errors
    /// A pointer leads out of the view, too many steps were taken, or two different values share bytes
    /// ([`PointerError::Overlap`]): then a pointer of one value could be something else in the other.
    pub fn new(view: &View<'_>, root: Boxed<T>) -> Result<Self, PointerError> {
        let mut found = Pointers::new(view);
        found.follow::<T>(root.address(), 1)?;
        while let Some((address, count, visit)) = found.left.pop() {
            visit(&mut found, address, count)?;
        }
        if let Some(word) = found.values.common(&found.flat) {
            return Err(PointerError::Overlap(view.address().wrapping_add(8 * word)));
        }
        let (base, bytes) = (view.address(), view.bytes().into());
        Ok(Self { base, bytes, pointers: found.places.into(), root })
    }

    /// Number of bytes that the packed value takes: whole cache lines, so that several packed values take no more than
    /// the sum.
    #[must_use]
    pub fn room(&self) -> u64 {
        (self.skew() + self.bytes.len() as u64).next_multiple_of(ALIGN)
    }

    /// Offset of the first byte from the start of a cache line, in the source and in every copy.
    fn skew(&self) -> u64 {
        self.base % ALIGN
    }

    /// Puts the value into a heap or a scope.
    ///
    /// # Errors
    /// There is no room.
    pub fn put<R: Room>(&self, room: &R) -> Result<Boxed<T>, HeapFull> {
        let address = room.reserve(self.room(), ALIGN)? + self.skew();
        let distance = address.wrapping_sub(self.base);
        let mut bytes = self.bytes.clone();
        for &place in &self.pointers {
            if let Some(word) = bytes.get_mut(place..).and_then(<[u8]>::first_chunk_mut) {
                *word = u64::from_ne_bytes(*word).wrapping_add(distance).to_ne_bytes();
            }
        }
        room.put(address, &bytes);
        Ok(Boxed::at(self.root.address().wrapping_add(distance)))
    }
}

impl<T> fmt::Debug for Packed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes with {} pointers", self.bytes.len(), self.pointers.len())
    }
}

/// The pointers found among bytes. [`Linked::pointers`] reports the pointers of one value.
pub struct Pointers<'v, 'a> {
    view: &'v View<'a>,
    /// Offsets of the pointers, each once.
    places: Vec<usize>,
    /// Words that were marked: `values` for values that can have pointers, `flat` for the others.
    values: Words,
    flat: Words,
    /// Targets that have been followed already.
    seen: HashSet<(u64, u64, TypeId), RandomState>,
    left: Vec<(u64, u64, Visit)>,
    /// Number of words of the two maps that may still be written.
    marks_left: u64,
}

/// Function that reports the pointers of a number of values, which lie from an address on.
pub(crate) type Visit = fn(&mut Pointers<'_, '_>, u64, u64) -> Result<(), PointerError>;

impl<'v, 'a> Pointers<'v, 'a> {
    fn new(view: &'v View<'a>) -> Self {
        let length = view.bytes().len() as u64;
        let words = || Words(vec![0; usize::try_from(length.div_ceil(8 * 64) + 1).unwrap_or(0)]);
        let (seen, left) = (HashSet::default(), Vec::new());
        let places = Vec::with_capacity(64);
        Self { view, places, values: words(), flat: words(), seen, left, marks_left: 2 * length }
    }

    /// The bytes that are searched for pointers.
    #[must_use]
    pub fn view(&self) -> &'v View<'a> {
        self.view
    }

    /// Reports a pointer at address `at`, which leads to `count` values.
    ///
    /// # Errors
    /// The pointer leads out of the view, or into bytes of another value.
    pub fn name<T: Linked>(&mut self, at: u64, to: u64, count: u64) -> Result<(), PointerError> {
        self.note(at)?;
        self.follow::<T>(to, count)
    }

    /// Records that there is a pointer at an address.
    pub(crate) fn note(&mut self, at: u64) -> Result<(), PointerError> {
        let outside = PointerError::Outside { address: at, length: 8 };
        let place = at.checked_sub(self.view.address()).and_then(|place| usize::try_from(place).ok());
        self.places.push(place.ok_or(outside)?);
        Ok(())
    }

    fn follow<T: Linked>(&mut self, to: u64, count: u64) -> Result<(), PointerError> {
        let bytes = bytes_of::<T>(to, count)?;
        if T::IS_FLAT {
            return self.follow_flat(to, bytes);
        }
        if !to.is_multiple_of(align_of::<T>()) {
            return Err(PointerError::Misaligned { address: to, align: align_of::<T>() });
        }
        self.follow_to::<T>(to, count, bytes, values::<T>)
    }

    /// Follows a pointer to a target that `visit` can read. `W` distinguishes the target from others at the same
    /// address.
    pub(crate) fn follow_to<W: 'static>(
        &mut self,
        to: u64,
        count: u64,
        bytes: u64,
        visit: Visit,
    ) -> Result<(), PointerError> {
        if !self.seen.insert((to, count, TypeId::of::<W>())) {
            return Ok(());
        }
        let (first, end) = self.span(to, bytes)?;
        if self.values.mark(first, end) {
            return Err(PointerError::Overlap(to));
        }
        self.left.push((to, count, visit));
        Ok(())
    }

    fn follow_flat(&mut self, to: u64, bytes: u64) -> Result<(), PointerError> {
        if bytes >= LONG_SPAN && !self.seen.insert((to, bytes, TypeId::of::<u8>())) {
            return Ok(());
        }
        let (first, end) = self.span(to, bytes)?;
        self.flat.mark(first, end);
        Ok(())
    }

    /// The words that the bytes lie in: the first, and the one behind the last.
    fn span(&mut self, to: u64, bytes: u64) -> Result<(u64, u64), PointerError> {
        self.view.step()?;
        self.view.check(to, bytes)?;
        let first = (to - self.view.address()) / 8;
        let end = (to - self.view.address() + bytes).div_ceil(8);
        // Marking long spans that overlap again and again could take too long.
        let marks = (end - first) / 64 + 1;
        self.marks_left = self
            .marks_left
            .checked_sub(marks)
            .ok_or(PointerError::NoEnd(2 * self.view.bytes().len() as u64))?;
        Ok((first, end))
    }
}

impl fmt::Debug for Pointers<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pointers {{ found: {}, left: {} }}", self.places.len(), self.left.len())
    }
}

fn values<T: Linked>(found: &mut Pointers<'_, '_>, address: u64, count: u64) -> Result<(), PointerError> {
    for at in 0..count {
        let at = address + at * length_of::<T>();
        found.view.value::<T>(at)?.pointers(at, found)?;
    }
    Ok(())
}

/// Reports the pointers of the value at an address.
pub(crate) fn one<T: Linked>(found: &mut Pointers<'_, '_>, at: u64) -> Result<(), PointerError> {
    values::<T>(found, at, 1)
}

/// Reads a value without pointers at an address.
pub(crate) fn plain<T: Plain>(found: &Pointers<'_, '_>, at: u64) -> Result<T, PointerError> {
    found.view.value(at)
}

/// A map with one bit for each word of eight bytes.
struct Words(Vec<u64>);

impl Words {
    /// Marks words. Returns whether one of them was marked before.
    fn mark(&mut self, first: u64, end: u64) -> bool {
        let mut was_marked = 0;
        let mut at = first;
        while at < end {
            let upto = (at / 64 * 64 + 64).min(end);
            let bits = (u64::MAX >> (64 - (upto - at))) << (at % 64);
            if let Some(word) = usize::try_from(at / 64).ok().and_then(|place| self.0.get_mut(place)) {
                was_marked |= *word & bits;
                *word |= bits;
            }
            at = upto;
        }
        was_marked != 0
    }

    /// The first word that is marked in both maps.
    fn common(&self, other: &Self) -> Option<u64> {
        let both = self.0.iter().zip(&other.0).map(|(one, other)| one & other);
        let (place, bits) = both.enumerate().find(|(_, bits)| *bits != 0)?;
        Some(place as u64 * 64 + u64::from(bits.trailing_zeros()))
    }
}

#[cfg(test)]
mod tests;
