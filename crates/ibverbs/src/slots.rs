//! Objects by id. The error for an unknown id names the kind of object.

use portcullis_nic::VerbsError;
use portcullis_slots::Reuse;

/// Objects of one kind, by id. The id that has been free for longest is given next, so that a stale id is noticed.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    what: &'static str,
    objects: portcullis_slots::Slots<u32, T>,
}

impl<T> Slots<T> {
    /// Makes an empty collection. `what` is the kind of object, for errors.
    pub fn new(what: &'static str) -> Self {
        let reuse = Reuse::OldestFirst { resting: 1 };
        Self { what, objects: portcullis_slots::Slots::new(reuse, u32::MAX) }
    }

    pub fn insert(&mut self, object: T) -> u32 {
        self.objects.insert(object)
    }

    /// The id that the next object gets.
    pub fn next_id(&self) -> u32 {
        self.objects.next_key().unwrap_or(u32::MAX)
    }

    pub fn remove(&mut self, id: u32) -> Result<T, VerbsError> {
        self.objects.remove(id).ok_or(VerbsError::NoSuch { what: self.what })
    }

    #[inline]
    pub fn get(&self, id: u32) -> Result<&T, VerbsError> {
        self.objects.get(id).ok_or(VerbsError::NoSuch { what: self.what })
    }

    #[inline]
    pub fn get_mut(&mut self, id: u32) -> Result<&mut T, VerbsError> {
        self.objects.get_mut(id).ok_or(VerbsError::NoSuch { what: self.what })
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.objects.iter()
    }

    /// An upper bound: all ids are below it.
    pub fn reach(&self) -> u32 {
        self.objects.reach()
    }

    /// Drops all objects.
    pub fn clear(&mut self) {
        self.objects.take_all().for_each(drop);
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
