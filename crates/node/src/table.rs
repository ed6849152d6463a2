//! A table that grows without moving what is in it: what a new entry costs does not grow with those that are there.

use std::ops::{Index, IndexMut};

/// Entries that are made room for at once.
const CHUNK: usize = 1024;

/// Entries by number, from zero on. Numbers stay.
#[derive(Debug)]
pub(crate) struct Table<T> {
    chunks: Vec<Vec<T>>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { chunks: Vec::new() }
    }
}

impl<T> Table<T> {
    /// Entries.
    pub fn len(&self) -> usize {
        self.chunks.last().map_or(0, |last| (self.chunks.len() - 1) * CHUNK + last.len())
    }

    /// One more entry, under the next number.
    pub fn push(&mut self, entry: T) {
        if self.chunks.last().is_none_or(|last| last.len() == CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        self.chunks.last_mut().expect("it was made just now").push(entry);
    }

    pub fn get(&self, number: usize) -> Option<&T> {
        self.chunks.get(number / CHUNK)?.get(number % CHUNK)
    }

    pub fn get_mut(&mut self, number: usize) -> Option<&mut T> {
        self.chunks.get_mut(number / CHUNK)?.get_mut(number % CHUNK)
    }

    /// Takes all entries out.
    pub fn take_all(&mut self) -> impl Iterator<Item = T> {
        std::mem::take(&mut self.chunks).into_iter().flatten()
    }
}

impl<T> Index<usize> for Table<T> {
    type Output = T;

    fn index(&self, number: usize) -> &T {
        &self.chunks[number / CHUNK][number % CHUNK]
    }
}

impl<T> IndexMut<usize> for Table<T> {
    fn index_mut(&mut self, number: usize) -> &mut T {
        &mut self.chunks[number / CHUNK][number % CHUNK]
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
        assert_eq!(table.get(3 * CHUNK + 5), None);
        table[CHUNK] = 7;
        assert_eq!((table.get_mut(CHUNK).copied(), table.take_all().count()), (Some(7), 3 * CHUNK + 5));
        assert_eq!(table.len(), 0);
    }
}
