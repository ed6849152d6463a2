//! Memory of this process alone, at an agreed address: copies of what peers wrote, which do not change any more.

use crate::mapping::{PAGE_BYTES, round_up};
use crate::{Bytes, Mapping, MappingError, Memory};
use rustix::io::Errno;
use std::num::NonZeroUsize;

/// Memory of this process alone that stands in place of a shared mapping: bytes are copied out of the shared one, each to the
/// same offset, and looked at here. Nobody changes them while they are looked at.
///
/// At the agreed address, native pointers among the bytes mean what they mean to their writer.
#[derive(Debug)]
pub struct PrivateView {
    memory: Mapping,
}

impl PrivateView {
    /// Zeros at an agreed address. It never replaces another mapping, and takes memory only where bytes are copied to.
    ///
    /// # Errors
    /// Something is mapped there already, if only in part; the address is not on a page boundary; or the machine refuses.
    pub fn at(address: NonZeroUsize, length: u64) -> Result<Self, MappingError> {
        Ok(Self { memory: Mapping::private_at(Some(address), round_up(length, PAGE_BYTES))? })
    }

    /// Zeros at an address that the kernel chooses.
    ///
    /// # Errors
    /// The machine refuses.
    pub fn anywhere(length: u64) -> Result<Self, MappingError> {
        Ok(Self { memory: Mapping::private_at(None, round_up(length, PAGE_BYTES))? })
    }

    /// Copies bytes of a mapping to the same offset here, and returns them. Whatever happens to the mapping now, they stay as
    /// they are.
    ///
    /// # Panics
    /// The bytes do not all lie in both.
    pub fn take(&mut self, from: &Mapping, offset: u64, length: u64) -> &[u8] {
        from.copy(offset, &self.memory, offset, length);
        self.bytes(offset, length)
    }

    /// Bytes that were taken before.
    ///
    /// # Panics
    /// They do not all lie in this.
    #[must_use]
    pub fn bytes(&self, offset: u64, length: u64) -> &[u8] {
        let start = self.memory.pointer(offset, length, 1);
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        // SAFETY: pointer() has checked that the bytes lie in the mapping, which lives as long as self. The mapping is this
        // view's own, no clone of it leaves the view, and the view writes to it only through an exclusive reference.
        unsafe { std::slice::from_raw_parts(start, length) }
    }

    /// Gives the memory of whole pages back to the machine.
    ///
    /// # Panics
    /// The bytes do not all lie in this.
    pub fn give_back(&mut self, offset: u64, length: u64) {
        self.memory.give_back(offset, length);
    }

    /// Its length in bytes.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.memory.length()
    }
}

impl Mapping {
    /// Zeros of this process alone, at an agreed address or anywhere, which take memory only where they are used.
    fn private_at(address: Option<NonZeroUsize>, length: u64) -> Result<Self, MappingError> {
        let mapping = Self::reserved(address, length)?;
        if address.is_some_and(|address| mapping.start.addr() != address) {
            return Err(MappingError::to("map", length)(Errno::EXIST));
        }
        Ok(mapping)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(test: usize) -> NonZeroUsize {
        NonZeroUsize::new((17 << 40) + (test << 30)).unwrap()
    }

    #[test]
    fn what_was_taken_stays_as_it_was_and_lies_where_it_lay() {
        let shared = Mapping::shareable("test", 4 * PAGE_BYTES).unwrap();
        shared.write(PAGE_BYTES + 3, b"some text");
        let mut view = PrivateView::at(place(0), 4 * PAGE_BYTES).unwrap();
        let taken = view.take(&shared, PAGE_BYTES + 3, 9);
        let expected = place(0).get() + usize::try_from(PAGE_BYTES).unwrap() + 3;
        assert_eq!(taken.as_ptr().addr(), expected);
        shared.write(PAGE_BYTES, &[0xee; 64]);
        assert_eq!(view.bytes(PAGE_BYTES + 3, 9), b"some text");
        view.give_back(PAGE_BYTES, PAGE_BYTES);
        assert_eq!(view.bytes(PAGE_BYTES + 3, 9), [0; 9]);
    }

    #[test]
    fn it_replaces_nothing() {
        let first = PrivateView::at(place(1), 2 * PAGE_BYTES).unwrap();
        let second = place(1).checked_add(usize::try_from(PAGE_BYTES).unwrap()).unwrap();
        assert!(PrivateView::at(second, PAGE_BYTES).is_err());
        drop(first);
        assert!(PrivateView::at(second, PAGE_BYTES).is_ok());
    }

    #[test]
    #[should_panic(expected = "outside a mapping")]
    fn bytes_behind_its_end_are_not_looked_at() {
        let view = PrivateView::anywhere(PAGE_BYTES).unwrap();
        let _ = view.bytes(PAGE_BYTES - 1, 2);
    }
}
