//! Native pointers, and the errors that following one can have.

use crate::plain::{Plain, align_of, length_of};
use crate::{HeapFull, Room, Source, View};
use portcullis_errors::{Coded, ErrorCode};
use portcullis_memory::is_stack_used_up;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The address of a `T` in a heap: the same number in every process of the cluster (RPCool §4.1). In C and C++ it is a `T *`.
///
/// A peer may have written the address, so it is followed only through a type that knows which bytes exist: a [`View`]
/// returns references, a [`Source`] returns copies.
#[derive(FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(transparent)]
pub struct Boxed<T> {
    address: u64,
    of: PhantomData<fn() -> T>,
}

impl<T> Boxed<T> {
    /// The pointer to nothing.
    pub const NULL: Self = Self::at(0);

    /// The pointer to an address.
    #[must_use]
    pub const fn at(address: u64) -> Self {
        Self { address, of: PhantomData }
    }

    /// The address as a number.
    #[must_use]
    pub const fn address(self) -> u64 {
        self.address
    }

    /// Whether the pointer points to nothing.
    #[must_use]
    pub const fn is_null(self) -> bool {
        self.address == 0
    }
}

impl<T: Plain> Boxed<T> {
    /// Puts a value into a heap or a scope.
    ///
    /// # Errors
    /// There is no room.
    pub fn new<R: Room>(room: &R, value: T) -> Result<Self, HeapFull> {
        let address = room.reserve(length_of::<T>(), align_of::<T>())?;
        room.put(address, value.as_bytes());
        Ok(Self::at(address))
    }

    /// The value, in place.
    ///
    /// # Errors
    /// The pointer leads out of the view, or is not aligned.
    pub fn get<'a>(self, view: &View<'a>) -> Result<&'a T, PointerError> {
        view.get(self.address)
    }

    /// A copy of the value.
    ///
    /// # Errors
    /// The pointer leads out of the source.
    pub fn read<S: Source>(self, source: &S) -> Result<T, PointerError> {
        source.value(self.address)
    }
}

impl<T> Clone for Boxed<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Boxed<T> {}

impl<T> PartialEq for Boxed<T> {
    fn eq(&self, other: &Self) -> bool {
        self.address == other.address
    }
}

impl<T> Eq for Boxed<T> {}

impl<T> Hash for Boxed<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.address.hash(state);
    }
}

impl<T> fmt::Debug for Boxed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.address)
    }
}

/// A pointer that was not followed, or malformed bytes. The process that wrote them is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PointerError {
    /// The pointer leads to bytes that were not passed.
    #[error("a pointer to {length} bytes at {address:#x} leads out of what was passed")]
    Outside {
        /// The address that the pointer leads to.
        address: u64,
        /// The number of bytes that the target has.
        length: u64,
    },
    /// No value of the pointer's type can begin at its address.
    #[error("a pointer to {address:#x} is not aligned to {align} bytes")]
    Misaligned {
        /// The address that the pointer leads to.
        address: u64,
        /// The alignment that the pointer's type needs.
        align: u64,
    },
    /// More pointers were followed than the call may follow.
    #[error("more than {0} steps were taken through what was passed: it may have no end")]
    NoEnd(u64),
    /// The stack of the thread or of its sandbox was used up when the pointer was followed: the passed value leads too
    /// deep.
    #[error("what was passed leads so deep that the stack is used up")]
    TooDeep,
    /// Two values lie in the same bytes.
    #[error("two values at {0:#x} lie in the same bytes")]
    Overlap(u64),
    /// More keys of a table have nearly the same hash than chance explains: a process has chosen the keys, or has
    /// written over the table.
    #[error("the table at {0:#x} has more keys in one bucket than a random hash explains")]
    Crowded(u64),
    /// The bytes of a text are not UTF-8.
    #[error("the text at {0:#x} is not UTF-8")]
    NotText(u64),
}

impl Coded for PointerError {
    fn code(&self) -> ErrorCode {
        if *self == Self::TooDeep { ErrorCode::SandboxStack } else { ErrorCode::WildPointer }
    }
}

/// Checks whether the stack has room to follow a pointer. The process that wrote a value determines how deep recursive
/// code gets that reads it.
#[inline]
pub(crate) fn check_depth() -> Result<(), PointerError> {
    if is_stack_used_up() { Err(PointerError::TooDeep) } else { Ok(()) }
}
