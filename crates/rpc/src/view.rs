//! Bytes of a heap that no process changes while they are read.

use crate::plain::{Plain, align_of, length_of};
use crate::pointer::check_depth;
use crate::source::bytes_of;
use crate::{PointerError, Source};
use std::cell::Cell;
use zerocopy::FromBytes;

/// Bytes of a heap that no process changes: a copy, or sealed bytes. Only in a view are values read in place.
///
/// The process that wrote the bytes may have written anything. So each pointer is checked before it is followed, and
/// the steps through the bytes are counted: a list that leads to itself ends with an error. No step is taken if the
/// stack of the reading thread or sandbox is used up: recursive code that reads a tree that is too deep gets
/// [`PointerError::TooDeep`].
#[derive(Debug)]
pub struct View<'a> {
    base: u64,
    bytes: &'a [u8],
    steps_max: u64,
    steps: Cell<u64>,
}

impl<'a> View<'a> {
    /// A view of the bytes that lie at `base` in the heap. At most `steps_max` steps may be taken through them.
    #[must_use]
    pub fn new(base: u64, bytes: &'a [u8], steps_max: u64) -> Self {
        Self { base, bytes, steps_max, steps: Cell::new(0) }
    }

    /// All bytes of the view.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The address of the first byte.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.base
    }

    /// The number of steps that were taken.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps.get()
    }

    /// Bytes at an address.
    ///
    /// # Errors
    /// The bytes do not all belong to this view, or the stack is used up.
    pub fn bytes_at(&self, address: u64, length: u64) -> Result<&'a [u8], PointerError> {
        check_depth()?;
        let outside = PointerError::Outside { address, length };
        let start = address.checked_sub(self.base).and_then(|it| usize::try_from(it).ok()).ok_or(outside)?;
        let length = usize::try_from(length).map_err(|_| outside)?;
        let end = start.checked_add(length).ok_or(outside)?;
        self.bytes.get(start..end).ok_or(outside)
    }

    /// The value at an address, in place.
    ///
    /// # Errors
    /// The value does not all belong to this view, is not aligned, too many steps were taken, or the stack is used up.
    pub fn get<T: Plain>(&self, address: u64) -> Result<&'a T, PointerError> {
        self.step()?;
        let bytes = self.bytes_at(address, length_of::<T>())?;
        T::ref_from_bytes(bytes).map_err(|_| PointerError::Misaligned { address, align: align_of::<T>() })
    }

    /// The values from an address on, in place.
    ///
    /// # Errors
    /// The values do not all belong to this view, are not aligned, too many steps were taken, or the stack is used up.
    pub fn get_slice<T: Plain>(&self, address: u64, count: u64) -> Result<&'a [T], PointerError> {
        self.step()?;
        if count == 0 {
            return Ok(&[]);
        }
        let bytes = self.bytes_at(address, bytes_of::<T>(address, count)?)?;
        <[T]>::ref_from_bytes(bytes).map_err(|_| PointerError::Misaligned { address, align: align_of::<T>() })
    }
}

impl Source for View<'_> {
    fn copy(&self, address: u64, into: &mut [u8]) -> Result<(), PointerError> {
        // Code that follows pointers by value needs a limit too.
        self.step()?;
        into.copy_from_slice(self.bytes_at(address, into.len() as u64)?);
        Ok(())
    }

    fn check(&self, address: u64, length: u64) -> Result<(), PointerError> {
        self.bytes_at(address, length).map(|_| ())
    }

    fn step(&self) -> Result<(), PointerError> {
        let steps = self.steps.get() + 1;
        if steps > self.steps_max {
            return Err(PointerError::NoEnd(self.steps_max));
        }
        self.steps.set(steps);
        Ok(())
    }
}
