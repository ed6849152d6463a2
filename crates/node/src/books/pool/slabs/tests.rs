//! Tests the slabs against a model that remembers every object.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const BASE: RemoteAddress = RemoteAddress(0x1000_0000);
const POOL: u64 = 256 * PAGE_BYTES;

/// The size of an object that takes the whole pool.
const WHOLE: u64 = POOL - Header::BYTES;

fn pool() -> Slabs<u64> {
    Slabs::new(BASE, POOL)
}

/// The end, id and size of each object, by the start of its hole.
type Model = BTreeMap<u64, (u64, ObjectId, u64)>;

fn size() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 1u64..300, 4 => 1u64..70_000, 2 => 1u64..2 << 20, 1 => 1u64..=POOL]
}

/// A size and an alignment. Most have no alignment.
fn wanted() -> impl Strategy<Value = (u64, u64)> {
    (size(), prop_oneof![3 => Just(0u32), 1 => 0u32..22]).prop_map(|(size, power)| (size, 1 << power))
}

fn check_new(
    slabs: &Slabs<u64>,
    model: &mut Model,
    object: ObjectId,
    (size, alignment): (u64, u64),
) -> Result<(), TestCaseError> {
    let (hole, address) = (slabs.header_hole(object).0, slabs.address(object).0);
    let end = address + slabs.capacity(object);
    prop_assert_eq!(address - hole, Header::BYTES);
    prop_assert_eq!(address % alignment.max(32), 0);
    prop_assert_eq!(slabs.size(object), size);
    prop_assert!(slabs.capacity(object) >= size);
    prop_assert_eq!(Slabs::<u64>::footprint(size, alignment), Ok(slabs.taken(object)));
    prop_assert_eq!(end - hole, slabs.taken(object));
    prop_assert!(BASE.0 <= hole && end <= BASE.0 + POOL, "inside the pool");
    let before = model.range(..end).next_back();
    prop_assert!(before.is_none_or(|(_, (before_end, ..))| *before_end <= hole), "overlaps {:?}", before);
    model.insert(hole, (end, object, size));
    Ok(())
}

fn check_find(slabs: &Slabs<u64>, model: &Model, address: u64) -> Result<(), TestCaseError> {
    let expected = address.checked_sub(Header::BYTES).and_then(|hole| model.get(&hole)).map(|entry| entry.1);
    prop_assert_eq!(slabs.find(RemoteAddress(address)), expected, "{:#x}", address);
    Ok(())
}

proptest! {
    #[test]
    fn live_objects_never_overlap_and_are_found_by_their_start_alone(
        steps in prop::collection::vec((0u8..5, wanted(), any::<prop::sample::Index>(), any::<u64>()), 0..300),
    ) {
        let mut slabs = pool();
        let mut model = Model::new();
        for (payload, (choice, (size, alignment), which, probe)) in (0..).zip(steps) {
            if choice < 3 {
                match slabs.allocate(size, alignment, payload) {
                    Ok(object) => {
                        check_new(&slabs, &mut model, object, (size, alignment))?;
                        prop_assert_eq!(*slabs.get(object), payload);
                    }
                    Err(refusal) => prop_assert_eq!(refusal, Refusal::OutOfMemory { size }),
                }
            } else if !model.is_empty() {
                let hole = *model.keys().nth(which.index(model.len())).expect("an index into it");
                let (_, object, _) = model.remove(&hole).expect("its own key");
                slabs.free(object);
                check_find(&slabs, &model, hole + Header::BYTES)?;
            }
            check_find(&slabs, &model, BASE.0 + probe % POOL)?;
            check_find(&slabs, &model, probe)?;
            for (hole, (end, ..)) in &model {
                for address in [*hole, hole + 8, hole + 32, hole + 33, hole + 40, end - 1] {
                    check_find(&slabs, &model, address)?;
                }
            }
            let used: u64 = model.iter().map(|(hole, (end, ..))| end - hole).sum();
            prop_assert_eq!((slabs.bytes_used(), slabs.bytes_free()), (used, POOL - used));
            prop_assert_eq!(slabs.objects() as usize, model.len());
        }
        for (_, object, _) in model.into_values() {
            slabs.free(object);
        }
        prop_assert!(slabs.allocate(WHOLE, 1, 0).is_ok(), "the whole pool is one piece again");
    }
}

#[test]
fn the_whole_pool_is_one_object_and_no_more() {
    let mut slabs = pool();
    for size in [WHOLE + 1, POOL, u64::MAX - 31, u64::MAX] {
        assert_eq!(slabs.allocate(size, 1, 0), Err(Refusal::OutOfMemory { size }));
    }
    let object = slabs.allocate(WHOLE, 1, 7).expect("it fits exactly");
    assert_eq!(slabs.allocate(1, 1, 0), Err(Refusal::OutOfMemory { size: 1 }));
    assert_eq!(slabs.bytes_free(), 0);
    assert_eq!(slabs.find(RemoteAddress(BASE.0 + 32 + PAGE_BYTES)), None, "inside a large object");
    assert_eq!(slabs.free(object), 7);
    assert_eq!(slabs.find(RemoteAddress(BASE.0 + 32)), None);
}

#[test]
fn addresses_outside_the_pool_are_no_object() {
    let mut slabs = pool();
    slabs.allocate(64, 1, 0).expect("room");
    for address in [0, 1, 31, BASE.0 - 1, BASE.0, BASE.0 + 31, BASE.0 + POOL, u64::MAX - 31, u64::MAX] {
        assert_eq!(slabs.find(RemoteAddress(address)), None, "{address:#x}");
    }
}

#[test]
fn zero_bytes_are_no_object() {
    assert_eq!(pool().allocate(0, 1, 0), Err(Refusal::Nothing));
}

#[test]
fn a_freed_object_rests_while_others_of_its_span_are_free() {
    let mut slabs = pool();
    let first = slabs.allocate(64, 1, 0).expect("room");
    let address = slabs.address(first);
    slabs.free(first);
    let spans_objects = PAGE_BYTES / 96;
    for turn in 1..spans_objects {
        let object = slabs.allocate(64, 1, 0).expect("room");
        assert_ne!(slabs.address(object), address, "used again after {turn} turns");
        slabs.free(object);
    }
}

#[test]
fn small_objects_fill_the_pool_but_for_what_spans_leave() {
    let mut slabs = pool();
    let mut count = 0;
    while slabs.allocate(64, 1, 0).is_ok() {
        count += 1;
    }
    assert_eq!(count, 256 * (PAGE_BYTES / 96));
}

#[test]
fn an_object_fits_a_pool_that_its_usual_span_does_not() {
    let mut slabs: Slabs<()> = Slabs::new(BASE, 17 * PAGE_BYTES);
    slabs.allocate(1 << 20, 1, ()).expect("17 pages hold 1 MiB and a header hole");
}

#[test]
fn pools_at_the_edges_of_the_address_space_work_or_are_empty() {
    assert!(Slabs::new(RemoteAddress(u64::MAX), u64::MAX).allocate(1, 1, ()).is_err());
    assert!(Slabs::new(RemoteAddress(u64::MAX - 3 * PAGE_BYTES), u64::MAX).allocate(1, 1, ()).is_ok());
    assert!(Slabs::new(BASE, PAGE_BYTES - 1).allocate(1, 1, ()).is_err());
    let mut odd = Slabs::new(RemoteAddress(BASE.0 + 5), 2 * PAGE_BYTES);
    let object = odd.allocate(1, 1, ()).expect("one page is left");
    assert_eq!(odd.address(object).0 % 32, 0);
    assert_eq!(odd.bytes_free(), PAGE_BYTES - 96);
}

#[test]
fn an_object_of_whole_pages_shares_them_with_no_unused_part_of_a_span() {
    for pages in [2, 4, 8] {
        let size = pages * PAGE_BYTES - 64;
        let mut slabs = pool();
        let mut objects = Vec::new();
        while let Ok(object) = slabs.allocate(size, 64, 0) {
            objects.push(object);
        }
        assert_eq!(objects.len() as u64, 256 / pages, "objects of {pages} pages fill a pool of 256");
    }
}

#[test]
fn objects_of_each_size_fill_most_of_a_small_pool() {
    for (size, alignment) in
        [(384, 1), (6_144, 1), (65_536, 8), (98_304, 1), (131_072, 1), (262_144, 64), (1 << 20, 1)]
    {
        let mut slabs: Slabs<u64> = Slabs::new(BASE, 1024 * PAGE_BYTES);
        let mut count = 0;
        while slabs.allocate(size, alignment, 0).is_ok() {
            count += 1;
        }
        let used = count * size * 100 / (1024 * PAGE_BYTES);
        assert!(used >= 80, "{count} objects of {size} bytes use {used} % of the pool");
    }
}
