//! Chunks that a client holds for its small objects, over a trace: a model of an allocator with size classes, and no
//! more than that. Nothing here takes time.

use super::index;
use portcullis_sim::Dice;
use std::collections::BTreeMap;

/// The least bytes of a size class.
const LEAST_CLASS: u64 = 16;

/// An allocator of a client.
#[derive(Clone, Debug)]
struct Allocator {
    chunk_bytes: u64,
    /// Size classes for each doubling.
    classes: u64,
    /// Objects in each chunk that is held, and their size.
    chunks: BTreeMap<u64, (u64, u64)>,
    /// Chunks with room, by the size of their objects.
    open: BTreeMap<u64, Vec<u64>>,
    made: u64,
}

impl Allocator {
    fn new(chunk_bytes: u64, classes: u64) -> Self {
        Self { chunk_bytes, classes: classes.max(1), chunks: BTreeMap::new(), open: BTreeMap::new(), made: 0 }
    }

    /// Returns the smallest class that an object fits.
    fn class(&self, bytes: u64) -> u64 {
        let bytes = bytes.max(LEAST_CLASS);
        let below = 1 << bytes.ilog2();
        let step = (below / self.classes).max(1);
        bytes.next_multiple_of(step).min(self.chunk_bytes)
    }

    /// Puts an object into a chunk. Returns the chunk.
    fn insert(&mut self, bytes: u64) -> u64 {
        let class = self.class(bytes);
        let fits = self.chunk_bytes / class;
        let open = self.open.entry(class).or_default();
        let chunk = open.last().copied().unwrap_or_else(|| {
            self.made += 1;
            open.push(self.made);
            self.chunks.insert(self.made, (0, class));
            self.made
        });
        let held = self.chunks.get_mut(&chunk).expect("an open chunk is held");
        held.0 += 1;
        if held.0 == fits {
            open.pop();
        }
        chunk
    }

    /// Takes an object out of its chunk. A chunk without objects is given back.
    fn delete(&mut self, chunk: u64) {
        let held = self.chunks.get_mut(&chunk).expect("an object's chunk is held");
        held.0 -= 1;
        let (left, class) = *held;
        let open = self.open.entry(class).or_default();
        if left == 0 {
            self.chunks.remove(&chunk);
            open.retain(|&other| other != chunk);
        } else if left + 1 == self.chunk_bytes / class {
            // The chunk was full. Other chunks with room are used before it, so that it may become empty.
            open.insert(0, chunk);
        }
    }

    fn held(&self) -> u64 {
        self.chunks.len() as u64
    }
}

/// A client that inserts objects, and then deletes a part of them at random.
#[derive(Clone, Copy, Debug)]
pub(super) struct InsertsAndDeletes {
    pub chunk_bytes: u64,
    pub classes: u64,
    pub object_bytes: u64,
    pub inserts: u64,
    pub deleted_percent: u64,
    pub seed: u64,
}

/// Chunks that were held.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Held {
    /// The most chunks held at a time. Static memory must have this many from the beginning.
    pub peak: u64,
    pub end: u64,
    /// Objects in a full chunk.
    pub fits: u64,
}

impl Held {
    /// Returns the percentage of static memory that is saved at the end.
    pub fn saved_percent(self) -> f64 {
        100.0 * (1.0 - self.end as f64 / self.peak.max(1) as f64)
    }
}

impl InsertsAndDeletes {
    pub fn run(&self) -> Held {
        let mut allocator = Allocator::new(self.chunk_bytes, self.classes);
        let mut objects: Vec<u64> = (0..self.inserts).map(|_| allocator.insert(self.object_bytes)).collect();
        let peak = allocator.held();
        let mut dice = Dice::new(self.seed, 0);
        for _ in 0..index(self.inserts * self.deleted_percent / 100) {
            let object = objects.swap_remove(dice.index(objects.len()));
            allocator.delete(object);
        }
        let fits = self.chunk_bytes / allocator.class(self.object_bytes);
        Held { peak, end: allocator.held(), fits }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: InsertsAndDeletes = InsertsAndDeletes {
        chunk_bytes: 8 << 10,
        classes: 4,
        object_bytes: 1_000,
        inserts: 20_000,
        deleted_percent: 90,
        seed: 1,
    };

    #[test]
    fn an_object_lies_in_the_smallest_class_that_it_fits() {
        let allocator = Allocator::new(8 << 10, 4);
        let classes = [(1, 16), (64, 64), (65, 80), (1_000, 1_024), (1_025, 1_280), (8_192, 8_192)];
        for (bytes, class) in classes {
            assert_eq!(allocator.class(bytes), class, "{bytes}");
        }
    }

    #[test]
    fn a_chunk_is_given_back_with_its_last_object_and_room_is_used_again() {
        let mut allocator = Allocator::new(1_024, 4);
        let chunks: Vec<u64> = (0..4).map(|_| allocator.insert(512)).collect();
        assert_eq!((&chunks[..], allocator.held()), (&[1, 1, 2, 2][..], 2));
        allocator.delete(1);
        assert_eq!(allocator.held(), 2);
        assert_eq!(allocator.insert(512), 1, "there is room");
        allocator.delete(2);
        allocator.delete(2);
        assert_eq!(allocator.held(), 1);
    }

    #[test]
    fn what_is_left_is_what_chance_leaves() {
        // A chunk of eight is empty with a probability of 0.9^8.
        let held = TRACE.run();
        assert_eq!((held.fits, held.peak), (8, 2_500));
        let expected = 100.0 * 0.9f64.powi(8);
        assert!((held.saved_percent() - expected).abs() < 3.0, "{} of {expected}", held.saved_percent());
    }

    #[test]
    fn without_deletions_nothing_is_saved_and_without_objects_everything() {
        let saved = |deleted_percent| InsertsAndDeletes { deleted_percent, ..TRACE }.run().saved_percent();
        assert!(saved(0).abs() < 1e-9 && (saved(100) - 100.0).abs() < 1e-9);
    }
}
