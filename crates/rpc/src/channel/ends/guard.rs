//! Guards: pages of scopes that this process may not write, because a call is under way with them.
//!
//! A guard finds an honest sender's mistakes. It binds no other process: a process that has the heap's file can map it
//! once more.

use super::DEPTH;
use crate::ScopeRef;
use crate::heap::{Heap, PAGE_BYTES};
use portcullis_memory::{FaultLabel, MappingError};
use std::ops::Range;

/// The guarded pages of a connection's calls, by the calls' slots.
#[derive(Debug)]
pub(super) struct Guards {
    heap: Heap,
    slots: [Option<Guard>; DEPTH as usize],
}

#[derive(Debug)]
struct Guard {
    /// Numbers of pages, counted from the heap's start.
    pages: Range<u64>,
    _label: FaultLabel,
}

impl Guards {
    pub fn new(heap: Heap) -> Self {
        Self { heap, slots: [const { None }; DEPTH as usize] }
    }

    /// Prevents this process from writing the pages of a scope until the slot's call has ended. A scope outside the
    /// heap is not guarded.
    pub fn begin(&mut self, slot: usize, scope: ScopeRef, call: &str) -> Result<(), MappingError> {
        let ScopeRef { address, length } = scope;
        let Some(offset) = self.heap.place().offset(address, length).filter(|_| length > 0) else {
            return Ok(());
        };
        let pages = offset / PAGE_BYTES..(offset + length).div_ceil(PAGE_BYTES);
        self.allow(&pages, false)?;
        let text = format!("{call} is under way with the scope at {address:#x} of {length} bytes");
        let (start, bytes) = span(&pages);
        let label = self.heap.memory().label(start, bytes, &text);
        self.slots[slot] = Some(Guard { pages, _label: label });
        Ok(())
    }

    /// Ends a slot's guard. Pages that another call uses too stay guarded.
    pub fn end(&mut self, slot: usize) {
        let Some(Guard { pages, .. }) = self.slots[slot].take() else { return };
        let mut from = pages.start;
        while from < pages.end {
            let covering = |page| self.slots.iter().flatten().find(|it| it.pages.contains(&page));
            if let Some(other) = covering(from) {
                from = other.pages.end;
                continue;
            }
            let next = self.slots.iter().flatten().map(|it| it.pages.start).filter(|&it| it > from).min();
            let until = next.unwrap_or(pages.end).min(pages.end);
            // If the machine has no memory for the change, the pages stay guarded: that is the worst effect that a
            // guard may have.
            let _ = self.allow(&(from..until), true);
            from = until;
        }
    }

    /// Ends all guards.
    pub fn clear(&mut self) {
        (0..self.slots.len()).for_each(|slot| self.end(slot));
    }

    fn allow(&self, pages: &Range<u64>, allowed: bool) -> Result<(), MappingError> {
        let (start, bytes) = span(pages);
        self.heap.memory().allow_writes(start, bytes, allowed)
    }
}

impl Drop for Guards {
    fn drop(&mut self) {
        // The heap may outlive its connection.
        self.clear();
    }
}

fn span(pages: &Range<u64>) -> (u64, u64) {
    (pages.start * PAGE_BYTES, (pages.end - pages.start) * PAGE_BYTES)
}
