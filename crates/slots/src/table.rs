//! A table that grows without moving its entries: adding an entry costs the same however many there are.

use std::ops::{Index, IndexMut};

/// Number of entries for which memory is allocated at once.
const CHUNK: usize = 1024;

/// Entries by number, from zero on. An entry keeps its number and its place in memory.
#[derive(Clone, Debug)]
pub struct Table<T> {
    // Found without an indirection. Most tables need no more.
    first: Vec<T>,
    further: Vec<Vec<T>>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { first: Vec::new(), further: Vec::new() }
    }
}

impl<T> Table<T> {
    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.first.len() + self.further.last().map_or(0, |last| (self.further.len() - 1) * CHUNK + last.len())
    }

    /// Whether there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.first.is_empty()
    }

    /// Puts an entry under a number. Numbers below it that have no entry get the default.
    pub fn put(&mut self, number: usize, entry: T)
    where
        T: Default,
    {
        while self.len() <= number {
            self.push(T::default());
        }
        self[number] = entry;
    }

    /// Adds an entry under the next number.
    pub fn push(&mut self, entry: T) {
        if self.first.len() < CHUNK {
            self.first.reserve_exact(CHUNK - self.first.len());
            return self.first.push(entry);
        }
        if self.further.last().is_none_or(|last| last.len() == CHUNK) {
            self.further.push(Vec::with_capacity(CHUNK));
        }
        self.further.last_mut().expect("it was made just now").push(entry);
    }

    /// The entry with this number, if there is one.
    #[must_use]
    #[inline]
    pub fn get(&self, number: usize) -> Option<&T> {
        match self.first.get(number) {
            None => self.get_further(number),
            entry => entry,
        }
    }

    #[inline]
    fn get_further(&self, number: usize) -> Option<&T> {
        self.further.get((number / CHUNK).checked_sub(1)?)?.get(number % CHUNK)
    }

    /// The entry with this number, mutable, if there is one.
    #[must_use]
    #[inline]
    pub fn get_mut(&mut self, number: usize) -> Option<&mut T> {
        match self.first.get_mut(number) {
            None => Self::get_further_mut(&mut self.further, number),
            entry => entry,
        }
    }

    #[inline]
    fn get_further_mut(further: &mut [Vec<T>], number: usize) -> Option<&mut T> {
        further.get_mut((number / CHUNK).checked_sub(1)?)?.get_mut(number % CHUNK)
    }

    /// Iterates over all entries, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.first.iter().chain(self.further.iter().flatten())
    }

    /// Iterates over all entries, mutable, in the order of their numbers.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.first.iter_mut().chain(self.further.iter_mut().flatten())
    }

    /// Takes all entries out.
    pub fn take_all(&mut self) -> impl Iterator<Item = T> + use<T> {
        let Self { first, further } = std::mem::take(self);
        first.into_iter().chain(further.into_iter().flatten())
    }
}

impl<T> Index<usize> for Table<T> {
    type Output = T;

    #[inline]
    fn index(&self, number: usize) -> &T {
        self.get(number).expect("the table has an entry with this number")
    }
}

impl<T> IndexMut<usize> for Table<T> {
    #[inline]
    fn index_mut(&mut self, number: usize) -> &mut T {
        self.get_mut(number).expect("the table has an entry with this number")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_stay_where_they_are_and_keep_their_numbers() {
        let mut table = Table::default();
        assert_eq!((table.len(), table.get(0)), (0, None));
        table.push(0);
        let first: *const usize = &raw const table[0];
        for number in 1..3 * CHUNK + 5 {
            assert_eq!(table.len(), number);
            table.push(number);
        }
        assert!(std::ptr::eq(first, &raw const table[0]), "growth moves nothing");
        assert!((0..3 * CHUNK + 5).all(|number| table[number] == number));
        assert!(table.iter().copied().eq(0..3 * CHUNK + 5));
        assert_eq!(table.get(3 * CHUNK + 5), None);
        table[CHUNK] = 7;
        assert_eq!((table.get_mut(CHUNK).copied(), table.take_all().count()), (Some(7), 3 * CHUNK + 5));
        assert_eq!(table.len(), 0);
    }
}
