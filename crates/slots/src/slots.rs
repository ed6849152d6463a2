//! Values by key, in places that are reused.

use crate::{Numbers, Reuse, Table};
use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

/// A number that names a value of one table.
///
/// A `u32` names whatever is in a place now. A `u64` has the place's generation in its high half. After its value was
/// removed, such a key names nothing until the place has had 2^32 other values.
pub trait Key: Copy {
    /// Returns the key of a place in its present generation.
    fn new(number: u32, generation: u32) -> Self;
    /// Returns the number of the place.
    fn number(self) -> u32;
    /// Returns the generation that the place must have. `None`: any.
    fn generation(self) -> Option<u32>;
}

impl Key for u32 {
    #[inline]
    fn new(number: u32, _: u32) -> Self {
        number
    }

    #[inline]
    fn number(self) -> u32 {
        self
    }

    #[inline]
    fn generation(self) -> Option<u32> {
        None
    }
}

impl Key for u64 {
    #[inline]
    fn new(number: u32, generation: u32) -> Self {
        Self::from(generation) << 32 | Self::from(number)
    }

    #[inline]
    fn number(self) -> u32 {
        u32::try_from(self & 0xFFFF_FFFF).expect("32 bits")
    }

    #[inline]
    fn generation(self) -> Option<u32> {
        Some(u32::try_from(self >> 32).expect("32 bits"))
    }
}

/// Implements [`Key`], without generations, for a type that wraps a `u32`.
#[macro_export]
macro_rules! number_key {
    ($key:ident) => {
        impl $crate::Key for $key {
            fn new(number: u32, _: u32) -> Self {
                Self(number)
            }

            fn number(self) -> u32 {
                self.0
            }

            fn generation(self) -> Option<u32> {
                None
            }
        }
    };
}

#[derive(Clone, Debug)]
struct Slot<T> {
    /// Number of values removed from this place, modulo 2^32.
    generation: u32,
    /// `None`: the place is free, or its value is lent.
    value: Option<T>,
}

/// Values by key. A removed value's place is used again. An insert costs the same however many values there are.
#[derive(Clone, Debug)]
pub struct Slots<K, T> {
    slots: Table<Slot<T>>,
    numbers: Numbers,
    keys: PhantomData<fn(K) -> K>,
}

impl<K: Key, T> Slots<K, T> {
    /// Creates a table of at most `limit` values at a time.
    #[must_use]
    pub fn new(reuse: Reuse, limit: u32) -> Self {
        Self { slots: Table::default(), numbers: Numbers::new(reuse, limit), keys: PhantomData }
    }

    /// Returns the key that the next value gets. `None`: the table is full.
    #[must_use]
    pub fn next_key(&self) -> Option<K> {
        let number = self.numbers.next()?;
        Some(K::new(number, self.slots.get(number as usize).map_or(0, |slot| slot.generation)))
    }

    /// Keeps a value and returns its key.
    ///
    /// # Errors
    /// The table is full. The value is returned.
    #[inline]
    pub fn try_insert(&mut self, value: T) -> Result<K, T> {
        let Some(number) = self.numbers.take() else { return Err(value) };
        if let Some(slot) = self.slots.get_mut(number as usize) {
            slot.value = Some(value);
            return Ok(K::new(number, slot.generation));
        }
        self.slots.push(Slot { generation: 0, value: Some(value) });
        Ok(K::new(number, 0))
    }

    /// Keeps a value and returns its key.
    ///
    /// # Panics
    /// The table is full. If that can happen, use [`try_insert`](Self::try_insert).
    pub fn insert(&mut self, value: T) -> K {
        self.try_insert(value).ok().expect("the table has room for one more")
    }

    /// Takes a value out. `None`: there is no value under this key.
    #[inline]
    pub fn remove(&mut self, key: K) -> Option<T> {
        let slot = self.slot_mut(key)?;
        let value = slot.value.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.numbers.give_back(key.number());
        Some(value)
    }

    /// Takes a value out and keeps its place for it, until [`give_back`](Self::give_back) puts the value back. Until
    /// then the key names nothing. `None`: there is no value under this key.
    #[inline]
    pub fn lend(&mut self, key: K) -> Option<T> {
        self.slot_mut(key)?.value.take()
    }

    /// Puts back a value that was lent under this key.
    ///
    /// # Panics
    /// No value was lent under this key.
    #[inline]
    pub fn give_back(&mut self, key: K, value: T) {
        let slot = self.slot_mut(key).expect("a lent value's place is kept");
        let other = slot.value.replace(value);
        assert!(other.is_none(), "a value comes back to its own place");
    }

    /// Keeps a value under a key that another table has given, until [`lend`](Self::lend) takes the value out. A table
    /// keeps only such values, or only values of its own.
    ///
    /// # Panics
    /// The table has a value under this key.
    pub fn adopt(&mut self, key: K, value: T) {
        while self.slots.len() <= key.number() as usize {
            self.slots.push(Slot { generation: 0, value: None });
        }
        let slot = &mut self.slots[key.number() as usize];
        slot.generation = key.generation().unwrap_or(slot.generation);
        assert!(slot.value.replace(value).is_none(), "a key names one value");
    }

    #[inline]
    fn slot_mut(&mut self, key: K) -> Option<&mut Slot<T>> {
        let slot = self.slots.get_mut(key.number() as usize)?;
        key.generation().is_none_or(|generation| generation == slot.generation).then_some(slot)
    }

    /// The value under a key, if there is one.
    #[must_use]
    #[inline]
    pub fn get(&self, key: K) -> Option<&T> {
        let slot = self.slots.get(key.number() as usize)?;
        if key.generation().is_some_and(|generation| generation != slot.generation) {
            return None;
        }
        slot.value.as_ref()
    }

    /// The value under a key, mutable, if there is one.
    #[must_use]
    #[inline]
    pub fn get_mut(&mut self, key: K) -> Option<&mut T> {
        self.slot_mut(key)?.value.as_mut()
    }

    /// Number of values, including those lent.
    #[must_use]
    pub fn len(&self) -> usize {
        self.numbers.given()
    }

    /// Whether there are no values.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Upper bound, exclusive, of the numbers of all keys.
    #[must_use]
    pub fn reach(&self) -> u32 {
        self.numbers.reach()
    }

    /// Iterates over all values with their keys, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (K, &T)> {
        let numbered = (0..self.numbers.reach()).zip(self.slots.iter());
        numbered.filter_map(|(number, slot)| Some((K::new(number, slot.generation), slot.value.as_ref()?)))
    }

    /// Iterates over all values, mutable, with their keys, in the order of their numbers.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (K, &mut T)> {
        let numbered = (0..self.numbers.reach()).zip(self.slots.iter_mut());
        numbered.filter_map(|(number, slot)| Some((K::new(number, slot.generation), slot.value.as_mut()?)))
    }

    /// Takes all values out, in the order of their numbers. The table is then as new: numbers and generations begin
    /// again.
    pub fn take_all(&mut self) -> impl Iterator<Item = T> + use<K, T> {
        self.numbers.forget();
        self.slots.take_all().filter_map(|slot| slot.value)
    }
}

impl<K: Key, T> Index<K> for Slots<K, T> {
    type Output = T;

    #[inline]
    fn index(&self, key: K) -> &T {
        self.get(key).expect("the key names a value")
    }
}

impl<K: Key, T> IndexMut<K> for Slots<K, T> {
    #[inline]
    fn index_mut(&mut self, key: K) -> &mut T {
        self.get_mut(key).expect("the key names a value")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    #[derive(Clone, Copy, Debug)]
    enum SlotAction {
        Insert,
        /// Index of the key, modulo their number, among the keys of all values ever inserted.
        Remove(usize),
        Lend(usize),
    }

    fn actions() -> impl Strategy<Value = Vec<SlotAction>> {
        let action = prop_oneof![
            3 => Just(SlotAction::Insert),
            2 => any::<usize>().prop_map(SlotAction::Remove),
            1 => any::<usize>().prop_map(SlotAction::Lend),
        ];
        prop::collection::vec(action, 0..200)
    }

    fn policies() -> impl Strategy<Value = Reuse> {
        prop_oneof![Just(Reuse::LatestFirst), (1u32..20).prop_map(|resting| Reuse::OldestFirst { resting }),]
    }

    /// Returns the number that the rules of `reuse` name. `freed` lists the freed numbers, the oldest first.
    fn expected_number(reuse: Reuse, limit: u32, fresh: u32, freed: &[u32]) -> Option<u32> {
        match reuse {
            Reuse::LatestFirst => freed.last().copied().or((fresh < limit).then_some(fresh)),
            Reuse::OldestFirst { resting } if freed.len() < resting as usize && fresh < limit => Some(fresh),
            Reuse::OldestFirst { .. } => freed.first().copied(),
        }
    }

    proptest! {
        #[test]
        fn slots_hold_what_a_map_holds_and_numbers_come_again_in_the_order_promised(
            actions in actions(), reuse in policies(), limit in 0u32..40,
        ) {
            let mut slots = Slots::<u64, usize>::new(reuse, limit);
            let (mut model, mut ever) = (BTreeMap::new(), Vec::new());
            let (mut fresh, mut freed) = (0, Vec::new());
            for (value, action) in actions.into_iter().enumerate() {
                match action {
                    SlotAction::Insert => {
                        let number = expected_number(reuse, limit, fresh, &freed);
                        prop_assert_eq!(slots.next_key().map(Key::number), number);
                        let next = slots.next_key();
                        let Ok(key) = slots.try_insert(value) else {
                            prop_assert_eq!(number, None);
                            continue;
                        };
                        prop_assert_eq!((Some(key), Some(key.number())), (next, number));
                        fresh = fresh.max(key.number() + 1);
                        freed.retain(|&number| number != key.number());
                        prop_assert!(!ever.contains(&key), "a key comes once");
                        ever.push(key);
                        model.insert(key, value);
                    }
                    SlotAction::Remove(at) if !ever.is_empty() => {
                        let key = ever[at % ever.len()];
                        let removed = model.remove(&key);
                        prop_assert_eq!(slots.remove(key), removed);
                        freed.extend(removed.map(|_| key.number()));
                    }
                    SlotAction::Lend(at) if !ever.is_empty() => {
                        let key = ever[at % ever.len()];
                        let lent = slots.lend(key);
                        prop_assert_eq!(lent, model.get(&key).copied());
                        if let Some(value) = lent {
                            prop_assert_eq!((slots.get(key), slots.len()), (None, model.len()));
                            prop_assert_eq!(slots.remove(key), None);
                            slots.give_back(key, value);
                        }
                    }
                    SlotAction::Remove(_) | SlotAction::Lend(_) => {}
                }
                prop_assert_eq!((slots.len(), slots.reach()), (model.len(), fresh));
                for key in &ever {
                    prop_assert_eq!(slots.get(*key), model.get(key));
                    prop_assert_eq!(slots.get_mut(*key).copied(), model.get(key).copied());
                }
            }
            let found: BTreeMap<u64, usize> = slots.iter().map(|(key, &value)| (key, value)).collect();
            prop_assert_eq!(&found, &model);
            prop_assert_eq!(slots.iter_mut().map(|(key, value)| (key, *value)).collect::<BTreeMap<_, _>>(), found);
            let all: BTreeSet<usize> = slots.take_all().collect();
            prop_assert_eq!(all, model.into_values().collect::<BTreeSet<_>>());
            prop_assert_eq!((slots.len(), slots.reach()), (0, 0));
        }
    }

    #[test]
    fn a_key_without_generation_names_whatever_stands_in_its_place() {
        let mut slots = Slots::<u32, char>::new(Reuse::LatestFirst, 2);
        let first = slots.insert('a');
        assert_eq!((slots.remove(first), slots.get(first)), (Some('a'), None));
        assert_eq!((slots.insert('b'), slots[first]), (first, 'b'));
        slots[first] = 'c';
        assert_eq!((slots.insert('d'), slots.try_insert('e')), (1, Err('e')));
        assert_eq!(slots.iter().collect::<Vec<_>>(), [(0, &'c'), (1, &'d')]);
    }

    #[test]
    #[should_panic(expected = "a value comes back to its own place")]
    fn nothing_is_given_back_over_another_value() {
        let mut slots = Slots::<u32, char>::new(Reuse::LatestFirst, 2);
        let key = slots.insert('a');
        slots.give_back(key, 'b');
    }
}
