//! One-shot scopes. Each is a file of its own, which its sender seals once and for all. Then any number of methods read
//! it in place, in any number of calls.
//!
//! ```text
//! client                                server
//! File { bytes } ─────────────────────► makes the file, of a fixed length
//!          ◄───── File { number, … } + descriptor
//! maps it, fills it, unmaps it, seals it
//! Sealed { number } ──────────────────► asks the kernel for seals, length and pages, maps it
//!          ◄───── Held
//! calls with the number ──────────────► looks the number up
//! Release { number } ─────────────────► unmaps it
//! ```
//!
//! The server makes the file, although the client could. It accepts no descriptor from a client, since closing such a
//! descriptor could delay the server. So the server knows what kind of file it is, and the file has its length from the
//! start.
//!
//! Only the kernel is trusted. It seals a file against writes only if no process has a writable mapping of it, and no
//! operation that may write holds a page of it; from then on it refuses both. That can take 0.2 s, so only the sender
//! waits for it. The server does its checks on a thread of the client's user, before any call. A call costs a lookup in
//! a table.

mod scopes;
mod table;
#[cfg(test)]
mod tests;

pub use scopes::{OneShotError, OneShotScope, Sealed};
pub(super) use table::{OPEN_MAX, OneShotLimits, OneShotTable, OpenFile};

use crate::heap::HeapPlace;
use crate::plain::Plain;
use crate::{Boxed, PointerError, View};
use portcullis_memory::{AddressRange, MappingError};
use std::num::NonZeroUsize;

/// Arguments that were sealed for good: no process changes them, now or later, and they are read where the sender has
/// written them. Sound against any sender.
#[derive(Debug)]
pub struct OneShot<'a, T> {
    view: View<'a>,
    root: Boxed<T>,
    word: u64,
}

impl<'a, T: Plain> OneShot<'a, T> {
    pub(super) fn new(view: View<'a>, root: u64, word: u64) -> Self {
        Self { view, root: Boxed::at(root), word }
    }

    /// The value that the call's pointer leads to.
    ///
    /// # Errors
    /// The pointer leads out of the scope that was passed.
    pub fn get(&self) -> Result<&'a T, PointerError> {
        self.root.get(&self.view)
    }

    /// The scope that was passed, as the view through which its pointers are followed.
    #[must_use]
    pub fn view(&self) -> &View<'a> {
        &self.view
    }

    /// The word that was passed beside the pointer.
    #[must_use]
    pub fn word(&self) -> u64 {
        self.word
    }
}

/// The addresses of a connection's one-shot scopes: those behind its heap, the same at both ends.
#[derive(Debug)]
pub(super) struct Reserve {
    start: u64,
    pub range: AddressRange,
}

impl Reserve {
    /// Reserves the addresses behind a heap.
    pub fn behind(heap: HeapPlace, bytes: u64) -> Result<Self, MappingError> {
        let start = heap.end();
        let address = usize::try_from(start).ok().and_then(NonZeroUsize::new).unwrap_or(NonZeroUsize::MAX);
        Ok(Self { start, range: AddressRange::at(address, bytes)? })
    }

    /// Reserves other addresses in their place, for a process that already uses the agreed ones as the other end.
    pub fn in_place_of(heap: HeapPlace, bytes: u64) -> Result<Self, MappingError> {
        Ok(Self { start: heap.end(), range: AddressRange::anywhere(bytes)? })
    }

    /// The agreed address at an offset.
    pub fn address(&self, offset: u64) -> u64 {
        self.start + offset
    }

    /// The offset of an agreed address.
    pub fn offset(&self, address: u64) -> Option<u64> {
        address.checked_sub(self.start)
    }
}
