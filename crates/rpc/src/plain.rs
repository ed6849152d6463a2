//! Values that can lie in a heap.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A value that can lie in a heap: any bytes of its length are such a value, and it has no padding. So whatever a peer writes
/// is a value, if perhaps a wrong one, and nothing of this process leaks into a heap beside a value.
///
/// Everything that derives these five traits is one:
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

/// The bytes of a value. Those without any do not compile: nobody could say how many of them there may be.
pub(crate) fn length_of<T>() -> u64 {
    const { assert!(size_of::<T>() > 0, "a value without bytes") };
    size_of::<T>() as u64
}

/// The alignment of a value. Those that need more than a heap's smallest piece has do not compile.
pub(crate) fn align_of<T>() -> u64 {
    const { assert!(std::mem::align_of::<T>() <= 64, "more than a line of alignment") };
    std::mem::align_of::<T>() as u64
}

/// The alignment of room for values: at least a word, so that short ones are copied word by word.
pub(crate) fn room_align_of<T>() -> u64 {
    align_of::<T>().max(8)
}
