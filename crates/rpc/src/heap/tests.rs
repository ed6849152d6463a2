use super::*;
use crate::{Linked, List, Map, PointerError, Text, Vector, View};
use proptest::prelude::*;
use std::collections::HashMap;
use zerocopy::IntoBytes;

/// Returns a place that only one test uses.
pub(crate) fn place(test: u64, length: u64) -> HeapPlace {
    HeapPlace::new(HEAP_ADDRESSES.start + (test << 32), length).unwrap()
}

fn heap(test: u64) -> Heap {
    Heap::create(place(test, 1 << 20), Owner(1)).unwrap()
}

fn again(heap: &Heap, owner: u16) -> Heap {
    Heap::open(heap.file().try_clone_to_owned().unwrap(), heap.place(), Owner(owner)).unwrap()
}

#[test]
fn values_have_the_same_address_for_all_who_have_the_heap() {
    let one = heap(0);
    let other = again(&one, 2);
    let value = Boxed::new(&one, 7_u64).unwrap();
    assert_eq!(value.read(&other), Ok(7));
    other.set(value, 8).unwrap();
    assert_eq!(value.read(&one), Ok(8));
    other.free(value.address()).unwrap();
    assert_eq!(one.free(value.address()), Err(NotAllocated(value.address())));
}

#[test]
fn what_a_process_had_that_died_at_any_step_is_taken_back() {
    let one = heap(40);
    let all = one.free_bytes();
    for step in 0..24 {
        let (steps, other) = (Steps::default(), again(&one, 2));
        let other = other.dying(steps.clone());
        steps.die_after(step);
        let kept = other.scope(3 * PAGE_BYTES);
        let freed = other.scope(2 * PAGE_BYTES);
        drop((freed, other.scope(PAGE_BYTES)));
        steps.die_after(0);
        drop(kept);
        // Operations of a dead process have no effect.
        assert!(other.scope(1).is_err() && steps.are_over());
        one.reclaim(Owner(2));
        assert_eq!(one.free_bytes(), all, "after {step} steps");
    }
}

#[test]
fn a_file_that_is_no_heap_for_the_place_is_refused() {
    let one = heap(1);
    let file = || one.file().try_clone_to_owned().unwrap();
    let elsewhere = place(2, 1 << 20);
    assert!(matches!(Heap::open(file(), elsewhere, Owner(2)), Err(HeapError::NotAHeap { .. })));
    assert!(Heap::open(file(), place(1, 1 << 21), Owner(2)).is_err());
    one.memory().write(0, &[0; 8]);
    assert!(matches!(Heap::open(file(), one.place(), Owner(2)), Err(HeapError::NotAHeap { .. })));
}

#[test]
fn all_that_was_allocated_can_be_freed_and_allocated_again() {
    let heap = heap(3);
    let free = heap.free_bytes();
    for _ in 0..3 {
        let mut pieces = Vec::new();
        for bytes in (1..6000).step_by(97) {
            pieces.push((heap.reserve(bytes, 8).unwrap(), bytes));
        }
        let mut sorted = pieces.clone();
        sorted.sort_unstable();
        assert!(sorted.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0), "{sorted:x?}");
        pieces.iter().for_each(|&(address, _)| heap.free(address).unwrap());
        pieces.iter().for_each(|&(address, _)| assert!(heap.free(address).is_err()));
        // One page of each class stays for the next piece.
        assert!(free - heap.free_bytes() <= 6 * PAGE_BYTES);
    }
    let whole = heap.free_bytes();
    let run = heap.take_pages(whole / 2).unwrap();
    assert!(heap.take_pages(whole).is_err());
    heap.free(run.0).unwrap();
    assert_eq!(heap.free_bytes(), whole);
}

#[test]
fn a_scope_has_the_pages_of_the_one_before_if_that_has_ended() {
    let one = heap(30);
    let other = again(&one, 2);
    let first = one.scope(3 * PAGE_BYTES).unwrap();
    let address = first.address();
    let second = one.scope(2 * PAGE_BYTES).unwrap();
    assert_eq!(second.address(), address + 3 * PAGE_BYTES);
    // Any process may free a scope.
    let passed_on = second.pass_on();
    other.free(passed_on.address).unwrap();
    let third = one.scope(4 * PAGE_BYTES).unwrap();
    assert_eq!(third.address(), passed_on.address);
    drop((first, third));
    // A new scope does not lie where another one is.
    let fourth = one.scope(PAGE_BYTES).unwrap();
    let fifth = one.scope(PAGE_BYTES).unwrap();
    assert_ne!(fourth.address(), fifth.address());
}

#[test]
fn a_map_of_pieces_that_lies_leads_to_no_other_page() {
    let heap = heap(1104);
    let first = heap.reserve(2000, 8).unwrap();
    let (page, _) = heap.page(first).unwrap();
    let words = heap.0.runs.words();
    for map in [u64::MAX >> 1, u64::MAX >> 7, 1, 0, !2] {
        words.store_map(page, map);
        let second = heap.reserve(2000, 8).unwrap();
        assert!(heap.page(second).is_some_and(|(_, offset)| offset == 0 || offset == 2048), "{second:#x}");
    }
}

#[test]
fn containers_that_lie_of_their_length_grow_into_nobody_elses_bytes() {
    let heap = heap(1105);
    let scope = heap.scope(64 << 10).unwrap();
    let address = scope.reserve(8000, 8).unwrap();
    for [length, capacity] in [[1000, 1], [1000, 0], [u64::MAX, 1], [1, u64::MAX], [u64::MAX, u64::MAX]] {
        let mut vector: Vector<u64> = zerocopy::transmute!([address, length, capacity]);
        if vector.push(&scope, 5).is_ok() {
            let values = vector.read(&scope).unwrap();
            assert_eq!((values.len() as u64, values.last()), (length + 1, Some(&5)));
        }
    }
    for length in [u64::MAX, u64::MAX - 1, 1 << 62] {
        let mut map: Map<u64, u64> = zerocopy::transmute!([0_u64, 0, length]);
        for key in 0..20_u64 {
            map.insert(&heap, key, || Ok(key), key).unwrap();
        }
        assert_eq!((map.len(), map.read(&heap, &7)), (20, Ok(Some(7))));
    }
}

#[test]
fn what_is_no_beginning_of_a_piece_is_not_freed() {
    let heap = heap(4);
    let piece = heap.reserve(500, 8).unwrap();
    let scope = heap.scope(3 * PAGE_BYTES).unwrap();
    let wrong = [0, piece + 8, piece + 512, scope.address() + PAGE_BYTES, heap.place().start(), u64::MAX];
    for address in wrong {
        assert_eq!(heap.free(address), Err(NotAllocated(address)), "{address:#x}");
    }
    assert_eq!(heap.free(piece), Ok(()));
}

#[test]
fn what_a_dead_process_had_is_used_again() {
    let one = heap(5);
    let free = one.free_bytes();
    let dead = again(&one, 2);
    let small: Vec<Boxed<u64>> = (0..200).map(|value| Boxed::new(&dead, value).unwrap()).collect();
    let _ = dead.scope(5 * PAGE_BYTES).unwrap().pass_on();
    let _large = dead.reserve(20 * PAGE_BYTES, 8).unwrap();
    drop(dead);
    one.reclaim(Owner(2));
    // Other processes may use its small values too.
    for (at, value) in small.into_iter().enumerate() {
        assert_eq!(value.read(&one), Ok(at as u64));
        one.free(value.address()).unwrap();
    }
    assert!(free - one.free_bytes() <= PAGE_BYTES);
}

#[test]
fn pieces_that_others_have_freed_are_found_again() {
    let one = heap(30);
    let other = again(&one, 2);
    let take = || Boxed::new(&one, [1_u64; 8]).ok();
    let all: Vec<_> = std::iter::from_fn(take).collect();
    assert!(all.len() > 10_000 && one.free_bytes() == 0);
    // Every second value is freed, so that no page is empty.
    let freed: Vec<_> = all.iter().step_by(2).collect();
    freed.iter().for_each(|it| other.free(it.address()).unwrap());
    assert_eq!(std::iter::from_fn(take).count(), freed.len(), "each is taken again, and none twice");
}

#[test]
fn what_others_free_keeps_a_heap_from_growing() {
    let one = heap(31);
    let other = again(&one, 2);
    let take = || Boxed::new(&one, [1_u64; 8]).unwrap();
    let mut had: std::collections::VecDeque<_> = (0..1600).map(|_| take()).collect();
    let mut least = one.free_bytes();
    // In each round the oldest value is freed and a new one is made: ten times as many as the heap has room for.
    for round in 0..200_000 {
        other.free(had.pop_front().unwrap().address()).unwrap();
        had.push_back(take());
        if round == 10_000 {
            least = one.free_bytes();
        }
    }
    assert!(one.free_bytes() + 50 * PAGE_BYTES >= least, "{} where {least} were free", one.free_bytes());
}

#[test]
fn many_at_once_never_have_the_same_bytes() {
    let one = Heap::create(place(6, 4 << 20), Owner(1)).unwrap();
    let free = one.free_bytes();
    std::thread::scope(|scope| {
        for owner in 2..6_u16 {
            let heap = again(&one, owner);
            scope.spawn(move || {
                let mut held: Vec<(u64, u64)> = Vec::new();
                for turn in 0..4000_u64 {
                    let bytes = 16 + (turn * 7919 + u64::from(owner) * 104_729) % 9000;
                    if let Ok(address) = heap.reserve(bytes, 8) {
                        let mark = u64::from(owner) << 32 | turn;
                        heap.put(address, &mark.to_ne_bytes());
                        heap.put(address + bytes - 8, &mark.to_ne_bytes());
                        held.push((address, bytes));
                    }
                    if held.len() > 20 {
                        let (address, bytes) = held.swap_remove(usize::try_from(turn).unwrap() % held.len());
                        let first: u64 = heap.value(address).unwrap();
                        let last: u64 = heap.value(address + bytes - 8).unwrap();
                        assert!(first == last && first >> 32 == u64::from(owner), "{first:x} {last:x}");
                        heap.free(address).unwrap();
                    }
                }
                held.into_iter().for_each(|(address, _)| heap.free(address).unwrap());
            });
        }
    });
    assert!(free - one.free_bytes() <= 4 * 6 * PAGE_BYTES);
}

#[test]
fn scopes_are_pages_of_their_own_and_are_freed() {
    let heap = heap(7);
    let free = heap.free_bytes();
    let mut scope = heap.scope(PAGE_BYTES + 1).unwrap();
    assert_eq!((scope.length(), scope.address() % PAGE_BYTES), (2 * PAGE_BYTES, 0));
    let first = Boxed::new(&scope, 1_u8).unwrap();
    let second = Boxed::new(&scope, 2_u64).unwrap();
    assert_eq!((first.address(), second.address()), (scope.address(), scope.address() + 8));
    assert!(scope.reserve(2 * PAGE_BYTES, 1).is_err());
    assert_eq!(scope.used(), 16);
    scope.reset();
    assert_eq!(Boxed::new(&scope, 3_u64).unwrap().address(), scope.address());
    drop(scope);
    assert_eq!(heap.free_bytes(), free);
    let passed = heap.scope(1).unwrap().pass_on();
    assert!(heap.free_bytes() < free);
    heap.free(passed.address).unwrap();
    assert_eq!(heap.free_bytes(), free);
}

/// The words of a scope as a receiver copies them.
fn copied(scope: &Scope) -> Vec<u64> {
    let mut words = vec![0_u64; usize::try_from(scope.length() / 8).unwrap()];
    scope.copy(scope.address(), words.as_mut_bytes()).unwrap();
    words
}

#[test]
fn containers_are_what_was_put_into_them() {
    let heap = heap(8);
    let scope = heap.scope(64 * PAGE_BYTES).unwrap();
    let (mut vector, mut list, mut map) = (Vector::EMPTY, List::EMPTY, Map::<Text, u64>::EMPTY);
    let mut model = HashMap::new();
    for value in 0..300_u64 {
        vector.push(&scope, value as f64).unwrap();
        list.push_back(&scope, value).unwrap();
        let name = format!("name {}", value % 200);
        map.insert(&scope, name.as_str(), || Text::new(&scope, &name), value).unwrap();
        model.insert(name, value);
    }
    let words = copied(&scope);
    drop(heap);
    let view = View::new(scope.address(), words.as_bytes(), 1 << 20);
    let all: Vec<f64> = (0..300).map(f64::from).collect();
    assert_eq!((vector.get(&view).unwrap(), vector.read(&scope).unwrap()), (&all[..], all.clone()));
    let listed: Result<Vec<u64>, PointerError> = list.iter(&view).map(|value| value.copied()).collect();
    assert_eq!(listed.unwrap(), (0..300).collect::<Vec<u64>>());
    assert_eq!((map.len(), map.get(&view, "nobody").unwrap()), (200, None));
    for (name, value) in &model {
        assert_eq!(map.get(&view, name).unwrap(), Some(value));
        assert_eq!(map.read(&scope, name).unwrap(), Some(*value));
    }
    let mut entries = HashMap::new();
    for entry in map.entries(&view) {
        let (name, value) = entry.unwrap();
        entries.insert(name.get(&view).unwrap().to_owned(), value);
    }
    assert_eq!(entries, model);
}

#[derive(Clone, Copy, zerocopy::FromBytes, zerocopy::Immutable, IntoBytes, zerocopy::KnownLayout, Linked)]
#[repr(C)]
struct Part {
    name: Text,
    parts: Vector<Boxed<Part>>,
    tags: List<Text>,
    counts: Map<Text, u64>,
    whole: Boxed<Part>,
}

/// Builds a part with other parts inside, `depth` levels deep. All of them lead to the whole.
fn part(room: &impl Room, depth: u64, whole: Boxed<Part>) -> Boxed<Part> {
    let text = |text: &str| Text::new(room, text).unwrap();
    let (mut tags, mut counts) = (List::EMPTY, Map::EMPTY);
    for at in 0..depth {
        let tag = text(&format!("tag {at}"));
        tags.push_back(room, tag).unwrap();
        counts.insert(room, format!("tag {at}").as_str(), || Ok(tag), at).unwrap();
    }
    let nothing = Part { name: text(""), parts: Vector::EMPTY, tags, counts, whole };
    let place = Boxed::new(room, nothing).unwrap();
    let whole = if whole.is_null() { place } else { whole };
    let parts: Vec<Boxed<Part>> = (0..depth).map(|below| part(room, below, whole)).collect();
    let parts = Vector::new(room, &parts).unwrap();
    let it = Part { name: text(&format!("{depth} deep")), parts, whole, ..nothing };
    room.put(place.address(), it.as_bytes());
    place
}

/// Describes a part as text.
fn told(source: &impl Source, at: Boxed<Part>, root: Boxed<Part>) -> String {
    let it = at.read(source).unwrap();
    assert_eq!(it.whole, root, "one value for all that lead to it");
    let tags: Vec<String> = it.tags.read(source).map(|tag| tag.unwrap().read(source).unwrap()).collect();
    let counts: Vec<u64> = tags.iter().map(|tag| it.counts.read(source, tag).unwrap().unwrap()).collect();
    let parts = it.parts.read(source).unwrap().into_iter();
    let parts: Vec<String> = parts.map(|part| told(source, part, root)).collect();
    format!("{} {tags:?} {counts:?} ({})", it.name.read(source).unwrap(), parts.join(", "))
}

#[test]
fn a_linked_value_is_copied_with_everything_that_it_leads_to() {
    let (one, other) = (heap(1100), heap(1101));
    let root = part(&one, 4, Boxed::NULL);
    let scope = other.scope(64 * PAGE_BYTES).unwrap();
    let copy = crate::copy_from(&one, root, &scope).unwrap();
    let expected = told(&one, root, root);
    drop(one);
    assert_eq!(told(&scope, copy, copy), expected);
    // Without room the copy fails.
    let small = other.scope(1).unwrap();
    assert!(matches!(crate::copy_from(&scope, copy, &small), Err(crate::GrowError::Full(_))));
    // A pointer that leads elsewhere makes it fail too.
    let wild = Boxed::<Part>::at(scope.address() + 8 * scope.length());
    assert!(matches!(crate::copy_from(&scope, wild, &other), Err(crate::GrowError::Elsewhere(_))));
}

#[test]
fn a_chain_of_any_length_is_copied_without_a_stack_that_grows() {
    #[derive(
        Clone, Copy, zerocopy::FromBytes, zerocopy::Immutable, IntoBytes, zerocopy::KnownLayout, Linked,
    )]
    #[repr(C)]
    struct Link(u64, Boxed<Link>);
    let one = Heap::create(place(1102, 64 << 20), Owner(1)).unwrap();
    let other = Heap::create(place(1103, 64 << 20), Owner(1)).unwrap();
    let mut chain = Boxed::NULL;
    for number in 0..300_000 {
        chain = Boxed::new(&one, Link(number, chain)).unwrap();
    }
    let mut at = crate::copy_from(&one, chain, &other).unwrap();
    let mut length = 0;
    while !at.is_null() {
        let Link(_, next) = at.read(&other).unwrap();
        (at, length) = (next, length + 1);
    }
    assert_eq!(length, 300_000);
}

#[test]
fn a_list_or_a_table_without_an_end_ends_with_an_error() {
    let heap = heap(9);
    let scope = heap.scope(PAGE_BYTES).unwrap();
    let mut list = List::EMPTY;
    for value in 0..3_u64 {
        list.push_back(&scope, value).unwrap();
    }
    // The last node leads to the first.
    let nodes: [u64; 3] = zerocopy::transmute!(list);
    scope.put(nodes[1], &nodes[0].to_ne_bytes());
    let words = copied(&scope);
    let view = View::new(scope.address(), words.as_bytes(), 1000);
    assert_eq!(list.iter(&view).last().unwrap(), Err(PointerError::NoEnd(1000)));
    assert!(list.iter(&view).count() == 1, "it stays so");
    // One table claims more slots than there are bytes, and another one is full.
    for capacity in [u64::MAX, 1 << 40, 16] {
        let map: Map<u64, u64> = zerocopy::transmute!([scope.address(), capacity, 0]);
        let view = View::new(scope.address(), words.as_bytes(), 1 << 30);
        let found = map.read(&view, &5);
        assert!(matches!(found, Err(PointerError::Outside { .. }) | Ok(None)), "{found:?}");
        assert!(map.entries(&view).count() < 1000);
    }
}

proptest! {
    /// Reads containers of any bytes in memory of any bytes: the result is an error or a value, after no more steps
    /// than are allowed.
    #[test]
    fn containers_of_any_bytes_do_no_harm(
        words in prop::collection::vec(any::<u64>(), 32),
        container: [u64; 3],
        near in prop::collection::vec((0usize..32, 0u64..300), 0..20),
        inside: bool,
    ) {
        let base = HEAP_ADDRESSES.start;
        let mut words = words;
        // Some words lead to addresses nearby.
        near.iter().for_each(|&(at, offset)| words[at] = base + offset);
        let [first, second, third] = container;
        let container = if inside { [base + first % 300, base + second % 300, third % 40] } else { container };
        let view = View::new(base, words.as_bytes(), 500);
        let vector: Vector<u32> = zerocopy::transmute!([container[0], container[2], container[1]]);
        let _ = (vector.get(&view), vector.read(&view));
        let list: List<u64> = zerocopy::transmute!(container);
        prop_assert!(list.iter(&view).count() <= 501);
        prop_assert!(list.read(&view).count() <= 501);
        let map: Map<Text, u16> = zerocopy::transmute!([container[0], container[2], container[1]]);
        let _ = (map.get(&view, "text"), map.read(&view, "text"));
        let _ = map.entries(&view).count();
        let text: Text = zerocopy::transmute!([container[0], container[2]]);
        let _ = (text.get(&view), text.read(&view));
        let _ = Boxed::<[u64; 4]>::at(container[0]).get(&view);
        let target = Heap::create(place(1200, 1 << 20), Owner(1)).unwrap();
        let _ = crate::copy_from(&view, Boxed::<Part>::at(container[0]), &target);
        prop_assert!(view.steps() <= 500);
    }

    /// Uses a heap of whose bytes a hostile process may have written every one.
    #[test]
    fn a_heap_of_any_bytes_does_no_harm(seed: u64, acts in prop::collection::vec((0u64..9000, any::<u64>()), 1..40)) {
        let heap = Heap::create(place(10 + seed % 1000, 32 * PAGE_BYTES), Owner(1)).unwrap();
        let mut word = seed | 1;
        for at in (layout::ENTRIES..heap.0.data).step_by(8) {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Most of the words encode a state.
            let value = if word >> 60 < 12 { word & 0xffff_ff07 } else { word };
            heap.memory().store(at, value);
        }
        for (bytes, other) in acts {
            if let Ok(address) = heap.reserve(bytes, 8) {
                prop_assert!(heap.check(address, bytes).is_ok());
                heap.put(address, &vec![1; usize::try_from(bytes).unwrap()]);
            }
            let _ = heap.free(heap.place().start() + other % heap.place().length);
            let _ = heap.scope(bytes);
            heap.reclaim(Owner(u16::try_from(other % 4).unwrap()));
        }
    }
}
