//! A hash table.

use crate::packed::{one, plain};
use crate::plain::Plain;
use crate::{Copying, GrowError, HeapFull, Linked, PointerError, Pointers, Room, Source, View};
use std::borrow::Borrow;
use std::fmt;
use std::marker::PhantomData;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A key by which values are found.
pub trait Key: Plain {
    /// The form in which a key is searched for.
    type Sought: ?Sized;

    /// Hash of the key that is searched for. It is the same on every machine.
    fn hash(sought: &Self::Sought) -> u64;

    /// Whether this key is the one that is searched for.
    ///
    /// # Errors
    /// A pointer of the key leads out of the source.
    fn is<S: Source>(self, sought: &Self::Sought, source: &S) -> Result<bool, PointerError>;
}

impl Key for u64 {
    type Sought = u64;

    fn hash(sought: &u64) -> u64 {
        twox_hash::XxHash64::oneshot(0, &sought.to_ne_bytes())
    }

    fn is<S: Source>(self, sought: &u64, _: &S) -> Result<bool, PointerError> {
        Ok(self == *sought)
    }
}

/// A hash table with open addressing. In C: `struct { Slot *slots; uint64_t capacity, length; }`, where a slot is
/// `struct { uint64_t hash; K key; V value; }`. The hash of a free slot is zero. The capacity is zero or a power of
/// two. A key lies in the first free slot, counted from the slot of its hash.
#[derive(FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(transparent)]
pub struct Map<K, V> {
    /// The address of the slots, their number, and the number of slots in use.
    words: [u64; 3],
    of: PhantomData<fn() -> (K, V)>,
}

/// The maximal number of slots that a search looks into. Without an attacker, a few hundred suffice in the largest
/// tables. An attacker who chooses keys, or writes their hashes, could otherwise make each search go through all slots.
const PROBES_MAX: u64 = 1024;

/// Number of slots of a new table.
const FIRST_CAPACITY: u64 = 8;

impl<K, V> Map<K, V> {
    /// An empty table.
    pub const EMPTY: Self = Self { words: [0; 3], of: PhantomData };

    /// Number of keys, as the process that wrote the table recorded it.
    #[must_use]
    pub fn len(self) -> u64 {
        self.words[2]
    }

    /// Whether the table has no keys.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
}

/// Result of a search.
#[derive(Clone, Copy)]
enum Found {
    /// Address of the slot that has the key.
    Key(u64),
    /// Address of the free slot that would receive the key.
    Free(u64),
}

impl<K: Key, V: Plain> Map<K, V> {
    const ALIGN: u64 = larger(8, larger(align_of::<K>() as u64, align_of::<V>() as u64));
    pub(crate) const KEY: u64 = 8_u64.next_multiple_of(align_of::<K>() as u64);
    pub(crate) const VALUE: u64 =
        (Self::KEY + size_of::<K>() as u64).next_multiple_of(align_of::<V>() as u64);
    pub(crate) const SLOT: u64 = (Self::VALUE + size_of::<V>() as u64).next_multiple_of(Self::ALIGN);

    /// Hash of a key, but never zero: zero means that a slot is free.
    fn hash(sought: &K::Sought) -> u64 {
        K::hash(sought).max(1)
    }

    /// Searches for a key. It looks into no slot twice, whatever lengths the table contains.
    fn find<S: Source>(self, source: &S, sought: &K::Sought) -> Result<Option<Found>, PointerError> {
        let [slots, capacity, _] = self.words;
        if capacity == 0 {
            return Ok(None);
        }
        let hash = Self::hash(sought);
        let lie = PointerError::Outside { address: slots, length: u64::MAX };
        let bytes = capacity.checked_mul(Self::SLOT).ok_or(lie)?;
        source.check(slots, bytes)?;
        for probe in 0..capacity.min(PROBES_MAX) {
            source.step()?;
            let slot = slots + (hash.wrapping_add(probe) % capacity) * Self::SLOT;
            match source.value::<u64>(slot)? {
                0 => return Ok(Some(Found::Free(slot))),
                found if found == hash && source.value::<K>(slot + Self::KEY)?.is(sought, source)? => {
                    return Ok(Some(Found::Key(slot)));
                }
                _ => {}
            }
        }
        if capacity > PROBES_MAX { Err(PointerError::Crowded(slots)) } else { Ok(None) }
    }

    /// Puts a value under a key. `key` makes the key if the table does not have it yet. Other readers see the value
    /// only after the table itself has been stored anew.
    ///
    /// # Errors
    /// There is no room, or the table was not made in `room`.
    pub fn insert<R: Room, Q: Borrow<K::Sought>>(
        &mut self,
        room: &R,
        sought: Q,
        key: impl FnOnce() -> Result<K, HeapFull>,
        value: V,
    ) -> Result<(), GrowError> {
        let sought = sought.borrow();
        // A quarter of the slots stays free, so that a search for a missing key soon finds a free slot.
        if self.words[2].saturating_add(1).saturating_mul(4) > self.words[1].saturating_mul(3) {
            self.grow(room)?;
        }
        match self.find(room, sought)? {
            Some(Found::Key(slot)) => room.put(slot + Self::VALUE, value.as_bytes()),
            Some(Found::Free(slot)) => {
                let key = key()?;
                room.put(slot + Self::KEY, key.as_bytes());
                room.put(slot + Self::VALUE, value.as_bytes());
                room.put(slot, &Self::hash(sought).to_ne_bytes());
                self.words[2] = self.words[2].saturating_add(1);
            }
            None => {
                return Err(PointerError::Outside { address: self.words[0], length: self.words[1] }.into());
            }
        }
        Ok(())
    }

    /// Moves the entries to a table of twice the size.
    fn grow<R: Room>(&mut self, room: &R) -> Result<(), GrowError> {
        let [old, old_capacity, _] = self.words;
        let mut length = 0;
        let capacity = old_capacity.saturating_mul(2).max(FIRST_CAPACITY);
        let bytes = old_capacity.saturating_mul(Self::SLOT);
        if old_capacity > 0 {
            room.check(old, bytes)?;
        }
        let new = room.reserve(capacity.saturating_mul(Self::SLOT), Self::ALIGN)?;
        let zeros = vec![0; usize::try_from(capacity * Self::SLOT).unwrap_or(usize::MAX)];
        room.put(new, &zeros);
        let mut slot = vec![0; usize::try_from(Self::SLOT).unwrap_or(usize::MAX)];
        for from in 0..old_capacity {
            room.copy(old + from * Self::SLOT, &mut slot)?;
            let hash = slot.first_chunk().map_or(0, |hash| u64::from_ne_bytes(*hash));
            if hash == 0 {
                continue;
            }
            let slots = (0..capacity.min(PROBES_MAX)).map(|probe| hash.wrapping_add(probe) % capacity);
            let free = slots.map(|at| new + at * Self::SLOT).find_map(|at| match room.value::<u64>(at) {
                Ok(0) => Some(Ok(at)),
                Ok(_) => None,
                Err(error) => Some(Err(error)),
            });
            let Some(free) = free.transpose()? else {
                room.release(new, capacity * Self::SLOT);
                return Err(PointerError::Crowded(old).into());
            };
            room.put(free, &slot);
            length += 1;
        }
        if old_capacity > 0 {
            room.release(old, bytes);
        }
        self.words = [new, capacity, length];
        Ok(())
    }

    /// The value under a key, in place.
    ///
    /// # Errors
    /// The table leads out of the view.
    pub fn get<'a>(self, view: &View<'a>, sought: &K::Sought) -> Result<Option<&'a V>, PointerError> {
        let found = self.find(view, sought)?;
        let Some(Found::Key(slot)) = found else { return Ok(None) };
        view.get(slot + Self::VALUE).map(Some)
    }

    /// A copy of the value under a key.
    ///
    /// # Errors
    /// The table leads out of the source.
    pub fn read<S: Source>(self, source: &S, sought: &K::Sought) -> Result<Option<V>, PointerError> {
        let found = self.find(source, sought)?;
        let Some(Found::Key(slot)) = found else { return Ok(None) };
        source.value(slot + Self::VALUE).map(Some)
    }

    /// Copies of all keys and values, in no particular order.
    pub fn entries<S: Source>(self, source: &S) -> impl Iterator<Item = Result<(K, V), PointerError>> {
        let [slots, capacity, _] = self.words;
        let mut next = 0;
        std::iter::from_fn(move || {
            while next < capacity {
                let slot = slots.wrapping_add(next.wrapping_mul(Self::SLOT));
                let entry = || {
                    source.step()?;
                    let taken = source.value::<u64>(slot)? != 0;
                    source.check(slot, Self::SLOT)?;
                    let entry = (source.value(slot + Self::KEY)?, source.value(slot + Self::VALUE)?);
                    Ok(taken.then_some(entry))
                };
                next += 1;
                match entry() {
                    Ok(None) => {}
                    Ok(Some(entry)) => return Some(Ok(entry)),
                    Err(error) => {
                        next = capacity;
                        return Some(Err(error));
                    }
                }
            }
            None
        })
    }

    /// The length and alignment of one slot.
    #[must_use]
    pub const fn slot() -> (u64, u64) {
        (Self::SLOT, Self::ALIGN)
    }
}

const fn larger(one: u64, other: u64) -> u64 {
    if one > other { one } else { other }
}

/// Copies a table so that its entries keep their slots.
impl<K: Key + Linked, V: Linked> Linked for Map<K, V> {
    fn copy<S: Source, R: Room>(self, copying: &mut Copying<'_, S, R>) -> Result<Self, GrowError> {
        let [slots, capacity, length] = self.words;
        if capacity == 0 {
            return Ok(Self::EMPTY);
        }
        let lie = PointerError::Outside { address: slots, length: u64::MAX };
        let bytes = capacity.checked_mul(Self::SLOT).ok_or(lie)?;
        // The slots are checked before room is reserved for them, because the capacity may be a lie.
        copying.from().check(slots, bytes)?;
        let copy = copying.to().reserve(bytes, Self::ALIGN)?;
        for at in (0..bytes).step_by(usize::try_from(Self::SLOT).unwrap_or(usize::MAX)) {
            copying.from().step()?;
            let hash: u64 = copying.from().value(slots + at)?;
            copying.to().put(copy + at, &hash.to_ne_bytes());
            if hash != 0 {
                let key: K = copying.from().value(slots + at + Self::KEY)?;
                let value: V = copying.from().value(slots + at + Self::VALUE)?;
                let (key, value) = (key.copy(copying)?, value.copy(copying)?);
                copying.to().put(copy + at + Self::KEY, key.as_bytes());
                copying.to().put(copy + at + Self::VALUE, value.as_bytes());
            }
        }
        Ok(Self { words: [copy, capacity, length], of: PhantomData })
    }

    fn pointers(self, at: u64, found: &mut Pointers<'_, '_>) -> Result<(), PointerError> {
        let [slots, capacity, _] = self.words;
        if capacity == 0 {
            return Ok(());
        }
        if !slots.is_multiple_of(Self::ALIGN) {
            return Err(PointerError::Misaligned { address: slots, align: Self::ALIGN });
        }
        let lie = PointerError::Outside { address: slots, length: u64::MAX };
        let bytes = capacity.checked_mul(Self::SLOT).ok_or(lie)?;
        found.note(at)?;
        found.follow_to::<Self>(slots, capacity, bytes, |found, slots, capacity| {
            for slot in (0..capacity).map(|at| slots + at * Self::SLOT) {
                if plain::<u64>(found, slot)? != 0 {
                    one::<K>(found, slot + Self::KEY)?;
                    one::<V>(found, slot + Self::VALUE)?;
                }
            }
            Ok(())
        })
    }
}

impl<K, V> Clone for Map<K, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K, V> Copy for Map<K, V> {}

impl<K, V> fmt::Debug for Map<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [slots, capacity, length] = self.words;
        write!(f, "{length} of {capacity} at {slots:#x}")
    }
}
