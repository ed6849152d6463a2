//! A stack with guard pages at both ends, and behind it a temporary heap with a guard of its own.

use crate::depth::Reserve;
use crate::mapping::{PAGE_BYTES, round_up};
use crate::{Mapping, MappingError};
use rustix::io::Errno;
use rustix::mm::MprotectFlags;
use std::ptr::NonNull;

/// Bytes below and above a stack that must not be accessed. Code with larger frames has to touch each page of them, as
/// code from rustc does.
pub(super) const GUARD_BYTES: usize = 64 << 10;
/// The smallest stack.
const STACK_BYTES_MIN: u64 = 256 << 10;

/// A stack, which grows downwards, and the memory of a temporary heap:
///
/// ```text
/// guard | stack | guard | temporary heap | guard
/// ```
#[derive(Debug)]
pub(super) struct Stack {
    /// Start of the lower guard.
    low: usize,
    /// End of the stack and start of the next guard.
    top: usize,
    /// The temporary heap's memory and its length.
    heap: (NonNull<u8>, usize),
    /// The owner of the memory, which frees it. No access is made through it.
    _memory: Mapping,
}

// SAFETY: the memory is this stack's alone, in whichever thread it is, and a shared reference only returns its
// addresses.
unsafe impl Send for Stack {}
// SAFETY: as above.
unsafe impl Sync for Stack {}

impl Stack {
    pub fn new(bytes: u64, heap_bytes: u64) -> Result<Self, MappingError> {
        let bytes = round_up(bytes.max(STACK_BYTES_MIN), PAGE_BYTES);
        let heap_bytes = round_up(heap_bytes.max(1), PAGE_BYTES);
        let guard = GUARD_BYTES as u64;
        let whole = bytes.saturating_add(heap_bytes).saturating_add(3 * guard);
        let memory = Mapping::reserved(None, whole)?;
        for offset in [0, guard + bytes, whole - guard] {
            let start = memory.pointer(offset, guard, 1).cast();
            // SAFETY: pages of a fresh mapping that are not in use yet, and that only this stack knows.
            unsafe { rustix::mm::mprotect(start, GUARD_BYTES, MprotectFlags::empty()) }
                .map_err(MappingError::to("guard", guard))?;
        }
        let low = memory.start.addr().get();
        // The whole length was mapped, so it is a count of addresses.
        let top = memory.pointer(guard + bytes, guard, 16).addr();
        let error = MappingError::to("reserve", heap_bytes);
        let heap =
            NonNull::new(memory.pointer(2 * guard + bytes, heap_bytes, 16)).ok_or(error(Errno::NOMEM))?;
        let heap = (heap, usize::try_from(heap_bytes).map_err(|_| error(Errno::NOMEM))?);
        Ok(Self { low, top, heap, _memory: memory })
    }

    /// The pages that may be accessed: those of the stack, and those of the temporary heap. Each entry is a start and a
    /// length.
    pub fn pages(&self) -> [(usize, usize); 2] {
        let stack = self.low + GUARD_BYTES;
        let (heap, heap_bytes) = self.heap;
        [(stack, self.top - stack), (heap.addr().get(), heap_bytes)]
    }

    /// The memory of the temporary heap and its length. The stack does not use it.
    pub fn heap(&self) -> (NonNull<u8>, usize) {
        self.heap
    }

    /// The address from which the stack grows down.
    pub fn top(&self) -> usize {
        self.top
    }

    /// Start of the lower guard.
    pub fn guard(&self) -> usize {
        self.low
    }

    /// Whether an address lies on the stack, or in its lower guard. A stack pointer that has grown too far lies in the
    /// guard.
    pub fn holds(&self, address: usize) -> bool {
        (self.low..self.top).contains(&address)
    }

    /// The part of the stack that code which checks its depth leaves unused.
    pub fn reserve(&self) -> Reserve {
        Reserve::of_stack(self.low + GUARD_BYTES, self.top - self.low - GUARD_BYTES, GUARD_BYTES)
    }
}
