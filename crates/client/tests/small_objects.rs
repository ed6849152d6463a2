//! Small objects against a plain model: whatever is allocated and freed in whichever order, no two objects share a
//! byte, mistakes are errors, and chunks are given back.

use portcullis_client::{ClassOccupancy, Error, SmallObjectId, SmallObjects};
use portcullis_protocol::Refusal;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

const CHUNK_BYTES: u64 = 1024;
const FREE_MAX: usize = 2;

/// Step of a program.
#[derive(Clone, Debug)]
enum Step {
    Allocate(u64),
    /// Frees a live object.
    Free(prop::sample::Index),
    /// Frees an object that was freed before.
    FreeAgain(prop::sample::Index),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1..=CHUNK_BYTES).prop_map(Step::Allocate),
        6 => (1..=64u64).prop_map(Step::Allocate),
        8 => any::<prop::sample::Index>().prop_map(Step::Free),
        1 => any::<prop::sample::Index>().prop_map(Step::FreeAgain),
    ]
}

/// An allocator, and the state that its user knows.
struct Model {
    objects: SmallObjects<u64>,
    /// Live objects, with their chunks and their bytes in the chunks.
    live: BTreeMap<usize, (SmallObjectId, u64, Range<u64>)>,
    freed: Vec<SmallObjectId>,
    /// Chunks that the allocator holds.
    chunks: BTreeSet<u64>,
    handed_in: u64,
}

impl Model {
    fn new() -> Self {
        Self {
            objects: SmallObjects::new(CHUNK_BYTES, FREE_MAX),
            live: BTreeMap::new(),
            freed: Vec::new(),
            chunks: BTreeSet::new(),
            handed_in: 0,
        }
    }

    fn allocate(&mut self, number: usize, bytes: u64) {
        let id = match self.objects.place(bytes).expect("it fits into a chunk") {
            Some(id) => id,
            None => {
                assert_eq!(self.objects.occupancy().free_chunks, 0, "a free chunk serves each class");
                self.chunks.insert(self.handed_in);
                self.objects.add(self.handed_in);
                self.handed_in += 1;
                self.objects.place(bytes).expect("it fits").expect("a chunk has room for an object")
            }
        };
        let located = self.objects.locate(id).expect("it lives");
        assert!(located.place_bytes >= bytes && located.offset.is_multiple_of(8));
        let span = located.offset..located.offset + bytes;
        assert!(span.end <= CHUNK_BYTES && self.chunks.contains(located.chunk));
        let chunk = *located.chunk;
        for (other, at, taken) in self.live.values() {
            assert_ne!(*other, id, "a name is given once");
            let apart = *at != chunk || taken.end <= span.start || span.end <= taken.start;
            assert!(apart, "{span:?} overlaps {taken:?} of chunk {chunk}");
        }
        assert!(!self.freed.contains(&id), "a name is given once");
        self.live.insert(number, (id, chunk, span));
    }

    fn free_any(&mut self, which: prop::sample::Index) {
        let numbers: Vec<usize> = self.live.keys().copied().collect();
        if !numbers.is_empty() {
            self.free(*which.get(&numbers));
        }
    }

    fn free(&mut self, number: usize) {
        let (id, ..) = self.live.remove(&number).expect("it lives");
        self.objects.free(id).expect("it lives");
        self.freed.push(id);
        while let Some(chunk) = self.objects.take_surplus() {
            self.take_out(chunk);
        }
    }

    fn take_out(&mut self, chunk: u64) {
        assert!(self.chunks.remove(&chunk), "a chunk comes back once");
        assert!(self.live.values().all(|(_, at, _)| *at != chunk), "a chunk that comes back has no objects");
    }

    fn free_again(&mut self, which: prop::sample::Index) {
        if !self.freed.is_empty() {
            let before = self.objects.occupancy();
            assert_eq!(self.objects.free(*which.get(&self.freed)), Err(Error::NoSuchSmallObject));
            assert_eq!(self.objects.occupancy(), before, "nothing has changed");
        }
    }

    fn check(&self) {
        for (id, chunk, span) in self.live.values() {
            let located = self.objects.locate(*id).expect("it lives");
            assert_eq!((*located.chunk, located.offset), (*chunk, span.start), "objects stay where they are");
        }
        assert!(self.freed.iter().all(|id| self.objects.locate(*id).is_none()));
        let found = self.objects.occupancy();
        assert_eq!(found.objects, self.live.len() as u64);
        assert_eq!(found.chunks, self.chunks.len() as u64);
        assert_eq!(found.bytes_held, found.chunks * CHUNK_BYTES);
        let used: BTreeSet<u64> = self.live.values().map(|(_, chunk, _)| *chunk).collect();
        assert_eq!(found.free_chunks, found.chunks - used.len() as u64, "a chunk without objects is free");
        assert!(found.free_chunks <= FREE_MAX as u64 + 1);
        let of_class = |of: fn(&ClassOccupancy) -> u64| found.classes.iter().map(of).sum::<u64>();
        assert_eq!(of_class(|it| it.objects), found.objects);
        assert_eq!(of_class(|it| it.chunks), found.chunks - found.free_chunks);
        assert_eq!(of_class(|it| it.objects * it.place_bytes), found.bytes_live);
        assert!(found.classes.iter().all(|it| it.objects <= it.places && it.chunks > 0));
        let asked: u64 = self.live.values().map(|(_, _, span)| span.end - span.start).sum();
        assert!((asked..=found.bytes_held).contains(&found.bytes_live));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn objects_share_no_byte_and_chunks_without_objects_come_back(steps in prop::collection::vec(step(), 1..300)) {
        let mut model = Model::new();
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Allocate(bytes) => model.allocate(number, bytes),
                Step::Free(which) => model.free_any(which),
                Step::FreeAgain(which) => model.free_again(which),
            }
            model.check();
        }
        while let Some(&number) = model.live.keys().next() {
            model.free(number);
        }
        model.check();
        while let Some(chunk) = model.objects.take_free() {
            model.take_out(chunk);
        }
        prop_assert!(model.chunks.is_empty(), "all chunks come back");
    }
}

#[test]
fn what_cannot_be_an_object_is_the_callers_mistake() {
    let mut objects = SmallObjects::<u64>::new(CHUNK_BYTES, 0);
    let long = CHUNK_BYTES + 1;
    let told = objects.place(long);
    assert_eq!(told, Err(Error::SmallObjectTooLong { bytes: long, limit: CHUNK_BYTES }));
    assert_eq!(objects.place(0), Err(Error::Refused(Refusal::Nothing)));
}

#[test]
fn an_object_of_more_than_half_a_chunk_takes_a_chunk() {
    let mut objects = SmallObjects::new(CHUNK_BYTES, 0);
    for chunk in 0..3u64 {
        assert_eq!(objects.place(CHUNK_BYTES / 2 + 1), Ok(None));
        objects.add(chunk);
        let id = objects.place(CHUNK_BYTES / 2 + 1).expect("it fits").expect("a chunk is there");
        let located = objects.locate(id).expect("it lives");
        assert_eq!((*located.chunk, located.offset, located.place_bytes), (chunk, 0, CHUNK_BYTES));
    }
}

#[test]
fn new_objects_fill_the_first_chunks_so_that_the_last_ones_come_back() {
    let mut objects = SmallObjects::new(CHUNK_BYTES, 0);
    let mut ids = Vec::new();
    for chunk in 0..8u64 {
        objects.add(chunk);
        ids.extend((0..16).map(|_| objects.place(64).expect("it fits").expect("there is room")));
    }
    assert_eq!(objects.place(64), Ok(None), "all are full");
    // One place in each chunk is freed, and taken again while the last chunk is emptied.
    for chunk in ids.chunks(16) {
        objects.free(chunk[0]).expect("it lives");
    }
    let moved: Vec<_> = (0..7).map(|_| objects.place(64).expect("it fits").expect("there is room")).collect();
    assert!(moved.iter().all(|id| *objects.locate(*id).expect("it lives").chunk != 7));
    for id in &ids[7 * 16 + 1..] {
        objects.free(*id).expect("it lives");
    }
    assert_eq!(objects.take_surplus(), Some(7));
    assert_eq!(objects.take_surplus(), None);
}
