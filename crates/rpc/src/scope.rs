//! Scopes: pages that hold only what belongs to one call (RPCool §5.1).

use crate::heap::Heap;
use crate::pointer::check_depth;
use crate::{HeapFull, PointerError, Room, Source};
use std::cell::Cell;

/// Neighbouring pages of a heap, into which values are put one behind another. Dropping the scope frees the pages.
///
/// A call passes a scope: the receiver copies or seals its pages, and no other page of the heap.
#[derive(Debug)]
pub struct Scope {
    heap: Heap,
    filling: Filling,
    is_passed_on: bool,
}

/// A range of addresses that are reserved one behind another.
#[derive(Debug)]
pub(crate) struct Filling {
    pub address: u64,
    pub length: u64,
    used: Cell<u64>,
}

/// A scope as a call names it. The process that has the reference frees the scope ([`Heap::free`] with its address).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ScopeRef {
    /// The address of the scope's first byte.
    pub address: u64,
    /// The number of its bytes in use, from the first on.
    pub length: u64,
}

impl Filling {
    pub fn new(address: u64, length: u64) -> Self {
        Self { address, length, used: Cell::new(0) }
    }

    pub fn used(&self) -> u64 {
        self.used.get()
    }

    /// Offset of bytes from the first address. `None`: they are not all inside.
    pub fn offset(&self, address: u64, length: u64) -> Option<u64> {
        let offset = address.checked_sub(self.address)?;
        offset.checked_add(length).filter(|&end| end <= self.length).map(|_| offset)
    }

    pub fn check(&self, address: u64, length: u64) -> Result<u64, PointerError> {
        check_depth()?;
        self.offset(address, length).ok_or(PointerError::Outside { address, length })
    }

    pub fn reserve(&self, bytes: u64, align: u64) -> Result<u64, HeapFull> {
        let full = HeapFull { wanted: bytes, place: "scope", length: self.length };
        let start = self.used.get().checked_next_multiple_of(align).ok_or(full)?;
        let end = start.checked_add(bytes).filter(|&end| end <= self.length).ok_or(full)?;
        self.used.set(end);
        Ok(self.address + start)
    }

    pub fn release(&self, address: u64, bytes: u64) {
        // Only the room that was reserved last can be taken back. All other room waits until the scope is reset.
        if address.wrapping_add(bytes) == self.address + self.used.get()
            && let Some(offset) = self.offset(address, bytes)
        {
            self.used.set(offset);
        }
    }
}

impl Scope {
    pub(crate) fn new(heap: Heap, address: u64, length: u64) -> Self {
        Self { heap, filling: Filling::new(address, length), is_passed_on: false }
    }

    /// The address of the scope's first byte.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.filling.address
    }

    /// The scope's length in bytes.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.filling.length
    }

    /// Number of bytes in use.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.filling.used()
    }

    /// The reference that a call passes.
    #[must_use]
    pub fn reference(&self) -> ScopeRef {
        ScopeRef { address: self.address(), length: self.used() }
    }

    /// Empties the scope: all values in it become invalid.
    pub fn reset(&mut self) {
        self.filling.used.set(0);
    }

    /// Passes the scope on: the process that receives the reference frees its pages.
    #[must_use]
    pub fn pass_on(mut self) -> ScopeRef {
        self.is_passed_on = true;
        self.reference()
    }

    /// Whether this is a scope of that heap.
    pub(crate) fn is_of(&self, heap: &Heap) -> bool {
        self.heap.is(heap)
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        if !self.is_passed_on {
            // If a peer has overwritten the heap's allocator, the pages are lost until the heap ends.
            let _ = self.heap.free(self.filling.address);
        }
    }
}

impl Source for Scope {
    fn copy(&self, address: u64, into: &mut [u8]) -> Result<(), PointerError> {
        self.check(address, into.len() as u64)?;
        self.heap.copy(address, into)
    }

    fn check(&self, address: u64, length: u64) -> Result<(), PointerError> {
        self.filling.check(address, length).map(|_| ())
    }
}

impl Room for Scope {
    fn reserve(&self, bytes: u64, align: u64) -> Result<u64, HeapFull> {
        self.filling.reserve(bytes, align)
    }

    fn release(&self, address: u64, bytes: u64) {
        self.filling.release(address, bytes);
    }

    fn put(&self, address: u64, bytes: &[u8]) {
        let is_inside = self.filling.offset(address, bytes.len() as u64).is_some();
        assert!(is_inside, "{address:#x} lies outside a scope");
        self.heap.put(address, bytes);
    }
}
