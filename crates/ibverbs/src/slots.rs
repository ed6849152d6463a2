//! Objects by small numbers.

use portcullis_nic::VerbsError;
use std::collections::VecDeque;

/// Objects of one kind, by id. The id that has been free for longest is given next, so that a stale one is noticed.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    what: &'static str,
    items: Vec<Option<T>>,
    free: VecDeque<u32>,
}

impl<T> Slots<T> {
    /// `what` they are, for errors.
    pub fn new(what: &'static str) -> Self {
        Self { what, items: Vec::new(), free: VecDeque::new() }
    }

    pub fn insert(&mut self, item: T) -> u32 {
        let id = self.next_id();
        let index = id as usize;
        if index == self.items.len() {
            self.items.push(Some(item));
        } else {
            self.free.pop_front();
            self.items[index] = Some(item);
        }
        id
    }

    /// The id that the next object gets.
    pub fn next_id(&self) -> u32 {
        let beyond = u32::try_from(self.items.len()).unwrap_or(u32::MAX);
        self.free.front().copied().unwrap_or(beyond)
    }

    pub fn remove(&mut self, id: u32) -> Result<T, VerbsError> {
        let gone = self.items.get_mut(id as usize).and_then(Option::take);
        let gone = gone.ok_or(VerbsError::NoSuch { what: self.what })?;
        self.free.push_back(id);
        Ok(gone)
    }

    /// Lets all of them go.
    pub fn clear(&mut self) {
        self.items.clear();
        self.free.clear();
    }

    #[inline]
    pub fn get(&self, id: u32) -> Result<&T, VerbsError> {
        self.items.get(id as usize).and_then(Option::as_ref).ok_or(VerbsError::NoSuch { what: self.what })
    }

    #[inline]
    pub fn get_mut(&mut self, id: u32) -> Result<&mut T, VerbsError> {
        let item = self.items.get_mut(id as usize).and_then(Option::as_mut);
        item.ok_or(VerbsError::NoSuch { what: self.what })
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..).zip(&self.items).filter_map(|(id, item)| Some((id, item.as_ref()?)))
    }

    /// How far ids reach.
    pub fn reach(&self) -> u32 {
        u32::try_from(self.items.len()).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_names_one_object_until_it_is_gone() {
        let mut slots = Slots::new("things");
        let (first, second) = (slots.insert('a'), slots.insert('b'));
        assert_eq!(slots.remove(first), Ok('a'));
        assert_eq!(slots.get(first), Err(VerbsError::NoSuch { what: "things" }));
        assert_eq!(slots.remove(first), Err(VerbsError::NoSuch { what: "things" }));
        assert_eq!(slots.get(second), Ok(&'b'));
    }

    #[test]
    fn the_id_that_rested_longest_comes_back_first() {
        let mut slots = Slots::new("things");
        let ids = [slots.insert(0), slots.insert(1)];
        slots.remove(ids[1]).expect("there");
        slots.remove(ids[0]).expect("there");
        assert_eq!(slots.next_id(), ids[1]);
        assert_eq!([slots.insert(2), slots.insert(3)], [ids[1], ids[0]]);
    }
}
