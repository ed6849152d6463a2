//! Number of connections, by holder.

use std::collections::HashMap;
use std::hash::Hash;

/// Number of connections that holders may have. However many one holder has, as many stay free for others.
#[derive(Debug)]
pub(super) struct ConnectionQuota<K> {
    most: usize,
    taken: usize,
    by_holder: HashMap<K, usize>,
}

impl<K: Clone + Eq + Hash> ConnectionQuota<K> {
    pub fn new(most: usize) -> Self {
        Self { most, taken: 0, by_holder: HashMap::new() }
    }

    /// Whether one more connection of this holder has room. However many it has, as many stay free for others.
    pub fn has_room_for(&self, holder: &K) -> bool {
        self.by_holder.get(holder).copied().unwrap_or(0) < self.most - self.taken
    }

    /// Counts one more connection.
    pub fn take(&mut self, holder: &K) {
        assert!(self.taken < self.most, "a place is taken only if one is free");
        self.taken += 1;
        *self.by_holder.entry(holder.clone()).or_default() += 1;
    }

    /// Counts one connection less.
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
        let mut quota = ConnectionQuota::new(8);
        let mut taken = 0;
        while quota.has_room_for(&"red") {
            quota.take(&"red");
            taken += 1;
        }
        assert_eq!(taken, 4);
        assert!(quota.has_room_for(&"blue"));
        quota.take(&"blue");
        quota.give_back(&"red");
        assert!(quota.has_room_for(&"red") && quota.has_room_for(&"blue"));
        (0..3).for_each(|_| quota.give_back(&"red"));
        quota.give_back(&"blue");
        assert_eq!((quota.taken, quota.by_holder.len()), (0, 0));
        assert!(!ConnectionQuota::new(0).has_room_for(&"red"));
    }
}
