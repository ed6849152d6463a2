//! Where values are read from and put into by their addresses.

use crate::PointerError;
use crate::plain::{Plain, length_of};
use portcullis_errors::{Coded, ErrorCode};
use zerocopy::IntoBytes;

/// Bytes that are read by their addresses, by value: others may change them meanwhile, so nothing is looked at in place.
///
/// Those of this crate take no step where the stack is used up ([`PointerError::TooDeep`]).
pub trait Source {
    /// Copies bytes.
    ///
    /// # Errors
    /// They do not all belong to this.
    fn copy(&self, address: u64, into: &mut [u8]) -> Result<(), PointerError>;

    /// Whether all these bytes belong to this.
    ///
    /// # Errors
    /// They do not.
    fn check(&self, address: u64, length: u64) -> Result<(), PointerError>;

    /// Counts a step of somebody who follows pointers.
    ///
    /// # Errors
    /// There have been too many.
    fn step(&self) -> Result<(), PointerError> {
        Ok(())
    }

    /// A copy of a value.
    ///
    /// # Errors
    /// Its bytes do not all belong to this.
    fn value<T: Plain>(&self, address: u64) -> Result<T, PointerError> {
        let mut value = T::new_zeroed();
        self.copy(address, value.as_mut_bytes())?;
        Ok(value)
    }

    /// A copy of values that lie one behind another.
    ///
    /// # Errors
    /// Their bytes do not all belong to this.
    fn values<T: Plain>(&self, address: u64, count: u64) -> Result<Vec<T>, PointerError> {
        let length = bytes_of::<T>(address, count)?;
        // Before memory is taken for them: the count may be a lie.
        self.check(address, length)?;
        let mut values = vec![T::new_zeroed(); usize::try_from(count).unwrap_or(usize::MAX)];
        self.copy(address, values.as_mut_slice().as_mut_bytes())?;
        Ok(values)
    }
}

/// The bytes of so many values.
pub(crate) fn bytes_of<T>(address: u64, count: u64) -> Result<u64, PointerError> {
    count.checked_mul(length_of::<T>()).ok_or(PointerError::Outside { address, length: u64::MAX })
}

/// A place that values are put into: a heap or a scope.
pub trait Room: Source {
    /// Room for bytes.
    ///
    /// # Errors
    /// There is none.
    fn reserve(&self, bytes: u64, align: u64) -> Result<u64, HeapFull>;

    /// Gives room back, if it can be used again before the whole place is. `address` and `bytes` are those of
    /// [`reserve`](Self::reserve).
    fn release(&self, address: u64, bytes: u64);

    /// Writes bytes.
    ///
    /// # Panics
    /// They do not all belong to this.
    fn put(&self, address: u64, bytes: &[u8]);
}

/// A heap or a scope has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no room for {wanted} bytes in a {place} of {length} bytes")]
pub struct HeapFull {
    /// The bytes that were wanted.
    pub wanted: u64,
    /// What they were wanted in.
    pub place: &'static str,
    /// Its length in bytes.
    pub length: u64,
}

impl Coded for HeapFull {
    fn code(&self) -> ErrorCode {
        ErrorCode::HeapFull
    }
}

/// A vector, a list or a table did not take a value in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrowError {
    /// There is no room.
    #[error(transparent)]
    Full(#[from] HeapFull),
    /// It was not made there, or somebody has overwritten it.
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
