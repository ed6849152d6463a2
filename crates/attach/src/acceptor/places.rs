//! Number of connections, by holder.

use std::collections::HashMap;
use std::hash::Hash;

/// Places for connections. However many places one holder has, as many stay free for others.
#[derive(Debug)]
pub(super) struct Places<K> {
    most: usize,
    taken: usize,
    by_holder: HashMap<K, usize>,
}

impl<K: Clone + Eq + Hash> Places<K> {
    pub fn new(most: usize) -> Self {
        Self { most, taken: 0, by_holder: HashMap::new() }
    }

    /// Whether one more connection of this holder has room. However many it has, as many places stay free for others.
    pub fn has_room_for(&self, holder: &K) -> bool {
        self.by_holder.get(holder).copied().unwrap_or(0) < self.most - self.taken
    }

    /// Takes a place.
    pub fn take(&mut self, holder: &K) {
        assert!(self.taken < self.most, "a place is taken only if one is free");
        self.taken += 1;
        *self.by_holder.entry(holder.clone()).or_default() += 1;
    }

    /// Gives a place back.
    pub fn give_back(&mut self, holder: &K) {
        self.taken -= 1;
        let its = self.by_holder.get_mut(holder).expect("only a holder of a place gives one back");
        *its -= 1;
        if *its == 0 {
            self.by_holder.remove(holder);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_leaves_as_many_places_to_others_as_it_takes() {
        let mut places = Places::new(8);
        let mut taken = 0;
        while places.has_room_for(&"red") {
            places.take(&"red");
            taken += 1;
        }
        assert_eq!(taken, 4);
        assert!(places.has_room_for(&"blue"));
        places.take(&"blue");
        places.give_back(&"red");
        assert!(places.has_room_for(&"red") && places.has_room_for(&"blue"));
        (0..3).for_each(|_| places.give_back(&"red"));
        places.give_back(&"blue");
        assert_eq!((places.taken, places.by_holder.len()), (0, 0));
        assert!(!Places::new(0).has_room_for(&"red"));
    }
}
