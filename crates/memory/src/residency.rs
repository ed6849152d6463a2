//! Memory whose pages come and go in slices, and stay there meanwhile.
//!
//! The kernel locks the process's address space while it fills or unmaps, and another thread that needs that lock waits:
//! the engine's too, when its heap grows. So neither is done to much memory at once.

use crate::mapping::{HUGE_PAGE_BYTES, PAGE_BYTES, Source};
use crate::{Mapping, MappingError};
use rustix::io::Errno;
use rustix::mm::{Advice, MlockFlags};
use rustix::pipe::{PipeFlags, SpliceFlags};
use std::ptr::NonNull;
use std::sync::Once;
use std::sync::atomic::Ordering;

/// Bytes that are filled at once.
const FILLED_AT_ONCE: usize = 256 << 10;
/// Bytes that are unmapped at once.
const UNMAPPED_AT_ONCE: usize = 2 << 20;

impl Mapping {
    /// Has all of its pages there, and keeps them where they are: this process does not fault on them any more, as long
    /// as nobody can punch holes into the file. Where the limit on locked memory is too low, the kernel may swap them out.
    ///
    /// # Errors
    /// The machine has not enough.
    pub fn make_resident(&self) -> Result<(), MappingError> {
        let (start, bytes) = (self.start.as_ptr().cast(), self.owner.length);
        // First, so that each page is locked as it comes, and not all of them are gone through twice.
        // SAFETY: the span is this mapping, which is live; a lock changes no bytes, and ends with the mapping.
        if let Err(error) = unsafe { rustix::mm::mlock_with(start, bytes, MlockFlags::ONFAULT) } {
            static TOLD: Once = Once::new();
            TOLD.call_once(|| {
                tracing::warn!(%error, "clients' ports are not locked, and may be swapped out: raise the limit on \
                                        locked memory (ulimit -l), or go without swap");
            });
        }
        match self.fill() {
            // Before Linux 5.14 there is no such advice.
            Err(Errno::INVAL) => self.touch_all(),
            Err(error) => return Err(MappingError::to("fill", self.length)(error)),
            Ok(()) => {}
        }
        if let Err(error) = self.hold_together() {
            static TOLD: Once = Once::new();
            TOLD.call_once(|| {
                tracing::warn!(%error, "clients can have their ports' pages moved, and hold the node up meanwhile: \
                                        raise /proc/sys/fs/pipe-user-pages-soft");
            });
        }
        Ok(())
    }

    /// Has all pages there.
    fn fill(&self) -> rustix::io::Result<()> {
        let bytes = self.owner.length;
        for from in (0..bytes).step_by(FILLED_AT_ONCE) {
            let length = FILLED_AT_ONCE.min(bytes - from);
            // SAFETY: from is below the mapping's length.
            let start = unsafe { self.start.as_ptr().add(from) };
            // SAFETY: the span lies in this mapping, which is live; the advice changes no bytes.
            unsafe { rustix::mm::madvise(start.cast(), length, Advice::LinuxPopulateWrite) }?;
        }
        Ok(())
    }

    /// Keeps peers from having the file's pages moved to huge ones (MADV_COLLAPSE): while the kernel does that in a
    /// thread of theirs, of the lowest priority if they like, whoever touches such a page waits. The kernel leaves a
    /// huge page's range alone if somebody holds one page of it, and a pipe can.
    fn hold_together(&self) -> rustix::io::Result<()> {
        let Source::Pages { file: Some(file), hold } = &self.owner.source else { return Ok(()) };
        if self.length < HUGE_PAGE_BYTES {
            return Ok(());
        }
        let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let ranges = self.length / HUGE_PAGE_BYTES;
        let bytes = usize::try_from(ranges * PAGE_BYTES).unwrap_or(usize::MAX);
        rustix::pipe::fcntl_setpipe_size(&writer, bytes)?;
        for range in 0..ranges {
            let mut at = range * HUGE_PAGE_BYTES;
            // By reference: what the pipe gets is the file's page itself.
            rustix::pipe::splice(file.descriptor(), Some(&mut at), &writer, None, 1, SpliceFlags::NONBLOCK)?;
        }
        let _ = hold.set(reader);
        Ok(())
    }

    fn touch_all(&self) {
        for page in (0..self.length).step_by(4096) {
            self.word(page).fetch_add(0, Ordering::Relaxed);
        }
    }
}

/// Unmaps memory, from its end, so that what is left stays one piece.
///
/// # Safety
/// `mmap` returned `start` for `length` bytes, and nobody uses them any more.
pub(crate) unsafe fn unmap(start: NonNull<u8>, length: usize) {
    let mut left = length;
    while left > 0 {
        let from = (left - 1) / UNMAPPED_AT_ONCE * UNMAPPED_AT_ONCE;
        // SAFETY: from is below the length of the mapping, says the caller.
        let start = unsafe { start.as_ptr().add(from) };
        // SAFETY: the span is the rest of what mmap returned and was asked for, and nobody uses it, says the caller.
        let _ = unsafe { rustix::mm::munmap(start.cast(), left - from) };
        left = from;
    }
}
