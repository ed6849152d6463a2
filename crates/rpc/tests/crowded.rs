//! Tables whose keys an attacker has chosen, so that all of them belong to one slot.

use portcullis_rpc::heap::{HEAP_ADDRESSES, PAGE_BYTES};
use portcullis_rpc::{GrowError, Heap, HeapPlace, Key, Map, Owner, PointerError, Source};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A key whose hash its maker chooses.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(transparent)]
struct Chosen(u64);

impl Key for Chosen {
    type Sought = u64;

    fn hash(_: &u64) -> u64 {
        7
    }

    fn is<S: Source>(self, sought: &u64, _: &S) -> Result<bool, PointerError> {
        Ok(self.0 == *sought)
    }
}

fn heap(number: u64) -> Heap {
    let place = HeapPlace::new(HEAP_ADDRESSES.start + (60 << 32) + (number << 30), 4096 * PAGE_BYTES);
    Heap::create(place.expect("a heap's place"), Owner(1)).expect("memory")
}

#[test]
fn keys_that_somebody_has_chosen_are_an_error_and_no_long_search() {
    let heap = heap(0);
    let mut map = Map::<Chosen, u64>::EMPTY;
    let inserted =
        (0..).find_map(|key| map.insert(&heap, key, || Ok(Chosen(key)), key).err().map(|it| (key, it)));
    let Some((count, GrowError::Elsewhere(PointerError::Crowded(_)))) = inserted else {
        panic!("{inserted:?}")
    };
    assert!((100..10_000).contains(&count), "{count} of them");
    assert_eq!(map.len(), count, "nothing is lost");
    for key in 0..count {
        assert_eq!(map.read(&heap, &key), Ok(Some(key)));
    }
    assert!(matches!(map.read(&heap, &count), Err(PointerError::Crowded(_))));
}

#[test]
fn a_table_that_somebody_has_overwritten_grows_into_no_long_search() {
    let heap = heap(1);
    let mut map = Map::<u64, u64>::EMPTY;
    for key in 0..6000 {
        map.insert(&heap, key, || Ok(key), key).expect("room");
    }
    let [slots, capacity, _]: [u64; 3] = zerocopy::transmute!(map);
    for slot in 0..capacity {
        let same = portcullis_rpc::Boxed::<u64>::at(slots + slot * Map::<u64, u64>::slot().0);
        heap.set(same, 7).expect("it is there");
    }
    // The table claims to be nearly full, so that the next key makes it grow.
    let mut map: Map<u64, u64> = zerocopy::transmute!([slots, capacity, capacity]);
    let free = heap.free_bytes();
    let grown = map.insert(&heap, 1_u64, || Ok(1), 1);
    assert!(matches!(grown, Err(GrowError::Elsewhere(PointerError::Crowded(_)))), "{grown:?}");
    assert_eq!(heap.free_bytes(), free, "nothing is lost");
}
