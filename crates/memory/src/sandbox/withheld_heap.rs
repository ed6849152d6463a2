//! A process's heap that is withheld from trapped code (RPCool §5.2: «private memory»), and allocations of trapped code.

use super::faults::{self, Allocating};
use crate::keys::segments;
use crate::residency::unmap;
use dlmalloc::{Allocator, Dlmalloc};
use rustix::mm::{MapFlags, ProtFlags};
use std::alloc::{GlobalAlloc, Layout};
use std::fmt;
use std::ptr::{NonNull, copy_nonoverlapping, null_mut};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// An allocator whose memory trapped code cannot reach, if the machine has protection keys. Trapped code allocates from
/// its sandbox's temporary heap, and those allocations are dropped when the run ends.
///
/// ```no_run
/// use portcullis_memory::sandbox::WithheldHeap;
///
/// #[global_allocator]
/// static HEAP: WithheldHeap = WithheldHeap::new();
/// ```
///
/// Its memory is withheld from the process's first sandbox on. It serves Rust's allocations: the C library's `malloc`
/// has a heap of its own, within reach. A child that is forked while another thread allocates must not allocate before
/// it calls `exec`.
pub struct WithheldHeap {
    blocks: Mutex<Dlmalloc<Segments>>,
}

impl WithheldHeap {
    /// A heap that has no memory yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { blocks: Mutex::new(Dlmalloc::new_with_allocator(Segments)) }
    }

    fn blocks(&self) -> MutexGuard<'_, Dlmalloc<Segments>> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for WithheldHeap {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for WithheldHeap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WithheldHeap")
    }
}

// SAFETY: blocks come from dlmalloc, behind a lock, or from the temporary heap of the sandbox that the thread is in:
// each fits its layout and overlaps no other.
unsafe impl GlobalAlloc for WithheldHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match faults::allocating() {
            // SAFETY: dlmalloc takes any size and alignment.
            Allocating::OnTheHeap => unsafe { self.blocks().malloc(layout.size(), layout.align()) },
            Allocating::InATrap(arena) => arena.allocate(layout).map_or_else(
                || {
                    faults::end_for_want_of_room();
                    null_mut()
                },
                NonNull::as_ptr,
            ),
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if faults::is_temporary(block.addr()) {
            return;
        }
        // If trapped code cannot reach the block, it ends here, and not while it holds the lock.
        faults::touch_in_trap(block);
        // SAFETY: the caller guarantees that the block came from here, and it is not in a temporary heap.
        unsafe { self.blocks().free(block, layout.size(), layout.align()) };
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !faults::is_temporary(block.addr()) && matches!(faults::allocating(), Allocating::OnTheHeap) {
            // SAFETY: as for dealloc.
            return unsafe { self.blocks().realloc(block, layout.size(), layout.align(), size) };
        }
        let Ok(wanted) = Layout::from_size_align(size, layout.align()) else { return null_mut() };
        // SAFETY: the caller guarantees that the size is not zero.
        let larger = unsafe { self.alloc(wanted) };
        if !larger.is_null() {
            // SAFETY: both blocks have this many bytes, and the second one is new.
            unsafe { copy_nonoverlapping(block, larger, size.min(layout.size())) };
            // SAFETY: the caller guarantees that the block came from here.
            unsafe { self.dealloc(block, layout) };
        }
        larger
    }
}

/// Source of dlmalloc's memory: pages of this process alone, which are withheld.
struct Segments;

// SAFETY: alloc returns fresh pages, which are unmapped only when dlmalloc gives them back.
unsafe impl Allocator for Segments {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh anonymous mapping overlaps nothing.
        let start = unsafe { rustix::mm::mmap_anonymous(null_mut(), size, access, MapFlags::PRIVATE) };
        let Ok(start) = start.map(|start| start.cast::<u8>()) else { return (null_mut(), 0, 0) };
        // SAFETY: the pages were mapped above, and free() reports them to `segments`.
        if unsafe { segments::add(start.addr(), size) }.is_err() {
            self.free(start, size);
            return (null_mut(), 0, 0);
        }
        (start, size, 0)
    }

    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        null_mut()
    }

    fn free_part(&self, start: *mut u8, length: usize, kept: usize) -> bool {
        // SAFETY: dlmalloc returns memory that it got from here and does not use.
        let rest = unsafe { start.add(kept) };
        self.free(rest, length - kept)
    }

    fn free(&self, start: *mut u8, length: usize) -> bool {
        let Some(start) = NonNull::new(start) else { return false };
        segments::remove(start.addr().get(), length);
        // SAFETY: dlmalloc returns memory that it got from here and does not use.
        unsafe { unmap(start, length) };
        true
    }

    fn can_release_part(&self, _: u32) -> bool {
        true
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        4096
    }
}
