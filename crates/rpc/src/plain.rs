//! Values that can lie in a heap.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A value that can lie in a heap: any bytes of its length are a valid value, and it has no padding. So a peer can
/// write a wrong value, but no invalid one, and no other bytes of this process leak into a heap beside a value.
///
/// Every type that derives these five traits is `Plain`:
///
/// ```
/// use portcullis_rpc::{Boxed, Plain, Text};
/// use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};
///
/// #[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout)]
/// #[repr(C)]
/// struct Leaf {
///     name: Text,
///     weight: f64,
///     left: Boxed<Leaf>,
///     right: Boxed<Leaf>,
/// }
///
/// fn can_lie_in_a_heap<T: Plain>() {}
/// can_lie_in_a_heap::<Leaf>();
/// ```
pub trait Plain: FromBytes + IntoBytes + Immutable + KnownLayout + Copy + 'static {}

impl<T: FromBytes + IntoBytes + Immutable + KnownLayout + Copy + 'static> Plain for T {}

/// Number of bytes of a value. Types without bytes do not compile: no length would limit the number of their values.
pub(crate) fn length_of<T>() -> u64 {
    const { assert!(size_of::<T>() > 0, "a value without bytes") };
    size_of::<T>() as u64
}

/// Alignment of a value. Types that need more than the alignment of a heap's smallest piece do not compile.
pub(crate) fn align_of<T>() -> u64 {
    const { assert!(std::mem::align_of::<T>() <= 64, "more than a line of alignment") };
    std::mem::align_of::<T>() as u64
}

/// Alignment of the room for values: at least a word, so that short values are copied word by word.
pub(crate) fn room_align_of<T>() -> u64 {
    align_of::<T>().max(8)
}
