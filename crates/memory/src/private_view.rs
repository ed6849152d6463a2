//! Private memory at an agreed address: copies of bytes that peers wrote, which do not change any more.

use crate::mapping::{PAGE_BYTES, round_up};
use crate::{Bytes, Mapping, MappingError, Memory};
use rustix::io::Errno;
use std::num::NonZeroUsize;

/// Memory of this process alone that stands in place of a shared mapping: bytes are copied out of the shared mapping,
/// each to the same offset, and read here. No peer can change them while they are read.
///
/// At the agreed address, native pointers among the bytes have the same meaning as for their writer.
#[derive(Debug)]
pub struct PrivateView {
    memory: Mapping,
}

impl PrivateView {
    /// Zeroed memory at an agreed address. It never replaces another mapping, and takes memory only for the pages that
    /// bytes are copied to.
    ///
    /// # Errors
    /// Something is mapped there already, if only in part; the address is not on a page boundary; or the machine refuses.
    pub fn at(address: NonZeroUsize, length: u64) -> Result<Self, MappingError> {
        Ok(Self { memory: Mapping::private_at(Some(address), round_up(length, PAGE_BYTES))? })
    }

    /// Zeroed memory at an address that the kernel chooses.
    ///
    /// # Errors
    /// The machine refuses.
    pub fn anywhere(length: u64) -> Result<Self, MappingError> {
        Ok(Self { memory: Mapping::private_at(None, round_up(length, PAGE_BYTES))? })
    }

    /// Copies bytes of a mapping to the same offset here, and returns them. Later changes of the mapping do not affect
    /// them.
    ///
    /// # Panics
    /// The bytes are not entirely in both memories.
    pub fn take(&mut self, from: &Mapping, offset: u64, length: u64) -> &[u8] {
        from.copy(offset, &self.memory, offset, length);
        self.bytes(offset, length)
    }

    /// Returns bytes that were taken before.
    ///
    /// # Panics
    /// The bytes are not entirely in this view.
    #[must_use]
    pub fn bytes(&self, offset: u64, length: u64) -> &[u8] {
        let start = self.memory.pointer(offset, length, 1);
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        // SAFETY: pointer() has checked that the bytes lie in the mapping, which lives as long as self. The mapping is this
        // view's own, no clone of it leaves the view, and the view writes to it only through an exclusive reference.
        unsafe { std::slice::from_raw_parts(start, length) }
    }

    /// Returns the memory of whole pages to the machine. The bytes read as zeros from here on.
    ///
    /// # Panics
    /// The bytes are not entirely in this view.
    pub fn give_back(&mut self, offset: u64, length: u64) {
        self.memory.give_back(offset, length);
    }

    /// Length of the view in bytes.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.memory.length()
    }
}

impl Mapping {
    /// Zeroed memory of this process alone, at an agreed address or at the kernel's choice, which takes memory only for
    /// the pages that are used.
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
