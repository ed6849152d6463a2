use super::*;
use crate::heap::HEAP_ADDRESSES;
use crate::{Heap, HeapPlace, List, Map, Owner, Scope, Text, Vector};
use proptest::prelude::*;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A value with every kind of pointer.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout, Linked)]
#[repr(C)]
struct All {
    number: u64,
    name: Text,
    next: Boxed<All>,
    names: Vector<Text>,
    list: List<Text>,
    table: Map<Text, Boxed<u64>>,
    two: [Text; 2],
    flat: Vector<[u16; 2]>,
}

fn heap(at: u64) -> Heap {
    let place = HeapPlace::new(HEAP_ADDRESSES.start + (3 << 40) + (at << 30), 1 << 22).unwrap();
    Heap::create(place, Owner(1)).unwrap()
}

fn bytes(scope: &Scope) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(scope.used()).unwrap()];
    scope.copy(scope.address(), &mut bytes).unwrap();
    bytes
}

fn plant(scope: &Scope, next: Boxed<All>) -> All {
    let text = |text: &str| Text::new(scope, text).unwrap();
    let (mut list, mut table) = (List::EMPTY, Map::EMPTY);
    for name in ["one", "two", "three"] {
        list.push_back(scope, text(name)).unwrap();
        let number = Boxed::new(scope, name.len() as u64).unwrap();
        table.insert(scope, name, || Text::new(scope, name), number).unwrap();
    }
    All {
        // The number is also an address.
        number: scope.address(),
        name: text("a name"),
        next,
        names: Vector::new(scope, &[text("x"), Text::EMPTY, text("y")]).unwrap(),
        list,
        table,
        two: [text("first"), text("second")],
        flat: Vector::new(scope, &[[1, 2], [3, 4]]).unwrap(),
    }
}

fn check(all: &All, source: &Heap, number: u64) {
    assert_eq!((all.number, all.name.read(source).unwrap().as_str()), (number, "a name"));
    let texts = |texts: &[Text]| -> Vec<String> { texts.iter().map(|it| it.read(source).unwrap()).collect() };
    assert_eq!(texts(&all.names.read(source).unwrap()), ["x", "", "y"]);
    let list: Vec<Text> = all.list.read(source).map(Result::unwrap).collect();
    assert_eq!(texts(&list), ["one", "two", "three"]);
    assert_eq!(texts(&all.two), ["first", "second"]);
    assert_eq!(all.flat.read(source).unwrap(), [[1, 2], [3, 4]]);
    for name in ["one", "two", "three"] {
        let length = all.table.read(source, name).unwrap().unwrap().read(source).unwrap();
        assert_eq!(length, name.len() as u64);
    }
    assert_eq!(all.table.read(source, "four").unwrap(), None);
}

#[test]
fn what_was_packed_is_put_anywhere_with_its_cycles() {
    let (here, there) = (heap(0), heap(1));
    let scope = here.scope(1 << 16).unwrap();
    let one = Boxed::new(&scope, plant(&scope, Boxed::NULL)).unwrap();
    let other = Boxed::new(&scope, plant(&scope, one)).unwrap();
    here.set(one, All { next: other, ..one.read(&here).unwrap() }).unwrap();
    let bytes = bytes(&scope);
    let packed = Packed::new(&View::new(scope.address(), &bytes, 1000), one).unwrap();
    let number = scope.address();
    drop((scope, here));
    let into = there.scope(3 * packed.room()).unwrap();
    for _ in 0..3 {
        let root = packed.put(&into).unwrap();
        let first = root.read(&there).unwrap();
        let second = first.next.read(&there).unwrap();
        assert_eq!(second.next, root);
        check(&first, &there, number);
        check(&second, &there, number);
    }
    assert!(packed.put(&into).is_err());
}

#[test]
fn a_list_that_is_in_itself_is_packed_as_such() {
    let here = heap(2);
    let scope = here.scope(4096).unwrap();
    let mut list = List::EMPTY;
    list.push_back(&scope, 1_u64).unwrap();
    let root = Boxed::new(&scope, list).unwrap();
    // The first node, which is also the last, becomes its own successor.
    scope.put(scope.address(), &scope.address().to_ne_bytes());
    let bytes = bytes(&scope);
    let packed = Packed::new(&View::new(scope.address(), &bytes, 100), root).unwrap();
    let copy = packed.put(&here).unwrap().read(&here).unwrap();
    assert_eq!(copy.read(&here).take(5).map(Result::unwrap).collect::<Vec<_>>(), [1; 5]);
}

#[test]
fn values_that_lie_in_the_same_bytes_are_refused() {
    let here = heap(3);
    let scope = here.scope(4096).unwrap();
    let texts = Vector::new(&scope, &[Text::EMPTY; 4]).unwrap();
    let [address, ..]: [u64; 3] = zerocopy::transmute!(texts);
    let pack = |words: [u64; 6]| {
        let root = Boxed::<[Vector<Text>; 2]>::at(scope.reserve(48, 8).unwrap());
        here.set(Boxed::at(root.address()), words).unwrap();
        let bytes = bytes(&scope);
        Packed::new(&View::new(scope.address(), &bytes, 100), root).map(|_| ())
    };
    assert_eq!(pack([address, 4, 4, address, 4, 4]), Ok(()));
    let overlap = |at| Err(PointerError::Overlap(at));
    assert_eq!(pack([address, 4, 4, address, 3, 3]), overlap(address));
    assert_eq!(pack([address, 2, 2, address + 24, 2, 2]), overlap(address + 24));
    let misaligned = PointerError::Misaligned { address: address + 4, align: 8 };
    assert_eq!(pack([address + 4, 2, 2, 0, 0, 0]), Err(misaligned));
    // The bytes of a text contain a pointer.
    here.set(Boxed::at(address), [address + 16, 8_u64]).unwrap();
    assert_eq!(pack([address, 4, 4, 0, 0, 0]), overlap(address + 16));
}

#[test]
fn long_texts_that_overlap_again_and_again_come_to_an_end() {
    let here = heap(4);
    let scope = here.scope(1 << 20).unwrap();
    let start = scope.reserve(1 << 16, 8).unwrap();
    let lie = |at: u64| -> Text { zerocopy::transmute!([start, (1_u64 << 16) - at]) };
    let texts: Vec<Text> = (0..8000).map(lie).collect();
    let root = Boxed::new(&scope, Vector::new(&scope, &texts).unwrap()).unwrap();
    let bytes = bytes(&scope);
    let packed = Packed::new(&View::new(scope.address(), &bytes, u64::MAX), root);
    assert_eq!(packed.unwrap_err(), PointerError::NoEnd(2 * bytes.len() as u64));
}

proptest! {
    /// Tests any bytes that a peer passes, at any address that the peer claims.
    #[test]
    fn any_bytes_are_packed_or_refused(
        words in prop::collection::vec(prop_oneof![0_u64..64, any::<u64>(), 0x2000_0000_0000_u64..0x2000_0000_0100], 1..64),
        base in 0x2000_0000_0000_u64..0x2000_0000_0010,
        root in 0x2000_0000_0000_u64..0x2000_0000_0100,
    ) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let view = View::new(base, &bytes, 1000);
        if let Ok(packed) = Packed::new(&view, Boxed::<All>::at(root)) {
            let there = heap(5);
            let copy = packed.put(&there).unwrap();
            let mut again = vec![0; bytes.len()];
            let moved = copy.address() - root + base;
            there.copy(moved, &mut again).unwrap();
            let repacked = Packed::new(&View::new(moved, &again, 1000), copy).unwrap();
            prop_assert_eq!(repacked.pointers, packed.pointers);
        }
    }
}
