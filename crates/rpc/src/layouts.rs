//! The layout of values in a heap: the same as in C, so that C and C++ can read them.

use crate::{Boxed, Key, List, Map, Plain, Text, Vector};
use std::mem::offset_of;

/// Checks the size, in words of eight bytes, and the alignment of the values themselves.
macro_rules! is_words {
    ($($type:ty: $words:literal;)*) => {
        $(const _: () = assert!(size_of::<$type>() == 8 * $words && align_of::<$type>() == 8);)*
    };
}

is_words! {
    Boxed<u8>: 1;
    Text: 2;
    Vector<u8>: 3;
    List<u8>: 3;
    Map<u64, u8>: 3;
}

/// A node of a list in C.
#[repr(C)]
struct Node<T> {
    next: u64,
    value: T,
}

/// A slot of a map in C.
#[repr(C)]
struct Slot<K, V> {
    hash: u64,
    key: K,
    value: V,
}

const _: () = assert!(offset_of!(Node<u8>, next) == 0 && offset_of!(Slot<u64, u8>, hash) == 0);

#[test]
fn nodes_and_slots_lie_as_in_c() {
    assert_eq!(List::<u8>::VALUE, offset_of!(Node<u8>, value) as u64);
    assert_eq!(List::<u64>::VALUE, offset_of!(Node<u64>, value) as u64);
    assert_eq!(List::<u128>::VALUE, offset_of!(Node<u128>, value) as u64);
    assert_eq!(List::<Text>::VALUE, offset_of!(Node<Text>, value) as u64);
    lies_as_in_c::<u64, u8>();
    lies_as_in_c::<Text, u32>();
    lies_as_in_c::<u64, u128>();
}

fn lies_as_in_c<K: Key, V: Plain>() {
    let ours = [Map::<K, V>::KEY, Map::<K, V>::VALUE, Map::<K, V>::SLOT];
    let in_c = [offset_of!(Slot<K, V>, key), offset_of!(Slot<K, V>, value), size_of::<Slot<K, V>>()];
    assert_eq!(ours, in_c.map(|bytes| bytes as u64));
}
