//! Reading and writing values by their addresses.

use crate::PointerError;
use crate::plain::{Plain, length_of};
use portcullis_errors::{Coded, ErrorCode};
use zerocopy::IntoBytes;

/// Bytes that are read by their addresses, by value: other processes may change them meanwhile, so no value is read in
/// place.
///
/// The sources of this crate return [`PointerError::TooDeep`] if the stack is used up.
pub trait Source {
    /// Copies bytes.
    ///
    /// # Errors
    /// The bytes do not all belong to this source.
    fn copy(&self, address: u64, into: &mut [u8]) -> Result<(), PointerError>;

    /// Checks that all these bytes belong to this source.
    ///
    /// # Errors
    /// They do not all belong to it.
    fn check(&self, address: u64, length: u64) -> Result<(), PointerError>;

    /// Counts a step of code that follows pointers.
    ///
    /// # Errors
    /// There have been too many steps.
    fn step(&self) -> Result<(), PointerError> {
        Ok(())
    }

    /// Returns a copy of the value at an address.
    ///
    /// # Errors
    /// Its bytes do not all belong to this source.
    fn value<T: Plain>(&self, address: u64) -> Result<T, PointerError> {
        let mut value = T::new_zeroed();
        self.copy(address, value.as_mut_bytes())?;
        Ok(value)
    }

    /// Returns copies of consecutive values.
    ///
    /// # Errors
    /// Their bytes do not all belong to this source.
    fn values<T: Plain>(&self, address: u64, count: u64) -> Result<Vec<T>, PointerError> {
        let length = bytes_of::<T>(address, count)?;
        // The bytes are checked before memory is allocated for them, because the count may be a lie.
        self.check(address, length)?;
        let mut values = vec![T::new_zeroed(); usize::try_from(count).unwrap_or(usize::MAX)];
        self.copy(address, values.as_mut_slice().as_mut_bytes())?;
        Ok(values)
    }
}

/// Number of bytes of `count` values.
pub(crate) fn bytes_of<T>(address: u64, count: u64) -> Result<u64, PointerError> {
    count.checked_mul(length_of::<T>()).ok_or(PointerError::Outside { address, length: u64::MAX })
}

/// A heap or a scope, into which values are put.
pub trait Room: Source {
    /// Reserves room for bytes. Returns its address.
    ///
    /// # Errors
    /// There is no room.
    fn reserve(&self, bytes: u64, align: u64) -> Result<u64, HeapFull>;

    /// Gives room back, if it can be used again before the whole heap or scope is freed or reset. `address` and `bytes`
    /// are those of [`reserve`](Self::reserve).
    fn release(&self, address: u64, bytes: u64);

    /// Writes bytes.
    ///
    /// # Panics
    /// The bytes do not all belong to this heap or scope.
    fn put(&self, address: u64, bytes: &[u8]);
}

/// A heap or a scope has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no room for {wanted} bytes in a {place} of {length} bytes")]
pub struct HeapFull {
    /// The number of bytes that were requested.
    pub wanted: u64,
    /// The kind of memory that has no room: a heap or a scope.
    pub place: &'static str,
    /// The length of the heap or scope in bytes.
    pub length: u64,
}

impl Coded for HeapFull {
    fn code(&self) -> ErrorCode {
        ErrorCode::HeapFull
    }
}

/// The error of a vector, a list or a table to which no value could be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrowError {
    /// There is no room.
    #[error(transparent)]
    Full(#[from] HeapFull),
    /// The container was not made in this heap or scope, or a process has overwritten it.
    #[error(transparent)]
    Elsewhere(#[from] PointerError),
}

impl Coded for GrowError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Full(error) => error.code(),
            Self::Elsewhere(error) => error.code(),
        }
    }
}
