//! A stack with guard pages at both ends, and a temporary heap behind it with one of its own.

use crate::depth::Reserve;
use crate::mapping::{PAGE_BYTES, round_up};
use crate::{Mapping, MappingError};
use rustix::io::Errno;
use rustix::mm::MprotectFlags;
use std::ptr::NonNull;

/// Bytes that no access may be made to, below a stack and above it. Code whose frames are larger than that looks at each page of
/// them: what rustc writes does.
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
    /// Where the lower guard begins.
    low: usize,
    /// Where the stack ends and the next guard begins.
    top: usize,
    /// The temporary heap's memory, and its length.
    heap: (NonNull<u8>, usize),
    /// It is never accessed through this: it is what the memory is freed by.
    _memory: Mapping,
}

// SAFETY: the memory is this stack's alone, wherever it is, and nothing is done through a shared reference but to say where it is.
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
            // SAFETY: pages of a fresh mapping that nothing is in yet, and that only this stack knows.
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

    /// The pages that may be accessed: those of the stack, and those of the temporary heap. Start and length of each.
    pub fn pages(&self) -> [(usize, usize); 2] {
        let stack = self.low + GUARD_BYTES;
        let (heap, heap_bytes) = self.heap;
        [(stack, self.top - stack), (heap.addr().get(), heap_bytes)]
    }

    /// The memory of the temporary heap, and its length. The stack does not use it.
    pub fn heap(&self) -> (NonNull<u8>, usize) {
        self.heap
    }

    /// Where it begins to grow down from.
    pub fn top(&self) -> usize {
        self.top
    }

    /// Where its lower guard begins.
    pub fn guard(&self) -> usize {
        self.low
    }

    /// Whether an address lies on it, or in its lower guard: there a stack pointer is that has grown too far.
    pub fn holds(&self, address: usize) -> bool {
        (self.low..self.top).contains(&address)
    }

    /// The part that code which looks where it is does not use.
    pub fn reserve(&self) -> Reserve {
        Reserve::of_stack(self.low + GUARD_BYTES, self.top - self.low - GUARD_BYTES, GUARD_BYTES)
    }
}
