//! Scopes: pages with nothing on them but what belongs to one call (RPCool §5.1).

use crate::heap::Heap;
use crate::{HeapFull, PointerError, Room, Source};
use std::cell::Cell;

/// Neighbouring pages of a heap, into which values are put one behind another. Dropping it frees the pages.
///
/// What a call passes is a scope: the receiver copies or seals its pages, and nothing else of the heap.
#[derive(Debug)]
pub struct Scope {
    heap: Heap,
    address: u64,
    length: u64,
    used: Cell<u64>,
    is_passed_on: bool,
}

/// A scope as a call names it: whoever has it frees it ([`Heap::free`] with its address).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ScopeRef {
    /// The address of its first byte.
    pub address: u64,
    /// Its bytes that are used, from the first on.
    pub length: u64,
}

impl Scope {
    pub(crate) fn new(heap: Heap, address: u64, length: u64) -> Self {
        Self { heap, address, length, used: Cell::new(0), is_passed_on: false }
    }

    /// The address of its first byte.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its length in bytes.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Bytes that are used.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used.get()
    }

    /// How a call names it.
    #[must_use]
    pub fn reference(&self) -> ScopeRef {
        ScopeRef { address: self.address, length: self.used.get() }
    }

    /// Empties it: whatever was put into it means nothing any more.
    pub fn reset(&mut self) {
        self.used.set(0);
    }

    /// Passes it on: its pages are freed by whoever gets the reference.
    #[must_use]
    pub fn pass_on(mut self) -> ScopeRef {
        self.is_passed_on = true;
        self.reference()
    }

    fn is_inside(&self, address: u64, length: u64) -> bool {
        let offset = address.checked_sub(self.address);
        offset.and_then(|offset| offset.checked_add(length)).is_some_and(|end| end <= self.length)
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        if !self.is_passed_on {
            // If a peer has overwritten the heap's allocator, the pages are lost until the heap ends.
            let _ = self.heap.free(self.address);
        }
    }
}

impl Source for Scope {
    fn copy(&self, address: u64, into: &mut [u8]) -> Result<(), PointerError> {
        self.check(address, into.len() as u64)?;
        self.heap.copy(address, into)
    }

    fn check(&self, address: u64, length: u64) -> Result<(), PointerError> {
        if self.is_inside(address, length) { Ok(()) } else { Err(PointerError::Outside { address, length }) }
    }
}

impl Room for Scope {
    fn reserve(&self, bytes: u64, align: u64) -> Result<u64, HeapFull> {
        let full = HeapFull { wanted: bytes, place: "scope", length: self.length };
        let start = self.used.get().checked_next_multiple_of(align).ok_or(full)?;
        let end = start.checked_add(bytes).filter(|&end| end <= self.length).ok_or(full)?;
        self.used.set(end);
        Ok(self.address + start)
    }

    fn release(&self, address: u64, bytes: u64) {
        // What came last can be taken back. Everything else waits until the scope is reset.
        if address.wrapping_add(bytes) == self.address + self.used.get() && self.is_inside(address, bytes) {
            self.used.set(address - self.address);
        }
    }

    fn put(&self, address: u64, bytes: &[u8]) {
        assert!(self.is_inside(address, bytes.len() as u64), "{address:#x} lies outside a scope");
        self.heap.put(address, bytes);
    }
}
