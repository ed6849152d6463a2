//! Filling and unmapping memory in slices, and keeping its pages in place.
//!
//! The kernel locks the address space while it fills or unmaps memory. Other threads wait for the lock, such as the
//! engine when its heap grows. So neither is done to much memory at once.

use crate::mapping::{HUGE_PAGE_BYTES, PAGE_BYTES, Source};
use crate::{Mapping, MappingError};
use rustix::io::Errno;
use rustix::mm::{Advice, MlockFlags};
use rustix::pipe::{PipeFlags, SpliceFlags};
use std::ptr::NonNull;
use std::sync::Once;
use std::sync::atomic::Ordering;

const FILLED_AT_ONCE: usize = 256 << 10;
const UNMAPPED_AT_ONCE: usize = 2 << 20;

impl Mapping {
    /// Fills all pages and keeps them in place: this process does not fault on them any more, as long as holes cannot
    /// be punched into the file. If the limit on locked memory is too low, the kernel may still swap them out.
    ///
    /// # Errors
    /// The machine does not have enough.
    pub fn make_resident(&self) -> Result<(), MappingError> {
        let (start, bytes) = (self.start.as_ptr().cast(), self.owner.length);
        // The lock comes first, so that each page is locked as it is filled and the pages are not walked twice.
        // SAFETY: the span is this mapping, which is live; a lock changes no bytes, and ends with the mapping.
        if let Err(error) = unsafe { rustix::mm::mlock_with(start, bytes, MlockFlags::ONFAULT) } {
            static TOLD: Once = Once::new();
            TOLD.call_once(|| {
                tracing::warn!(%error, "memory that other processes share is not locked, and may be swapped out: raise the limit on \
                                        locked memory (ulimit -l), or go without swap");
            });
        }
        match self.fill() {
            // Kernels before Linux 5.14 do not have this advice.
            Err(Errno::INVAL) => self.touch_all(),
            Err(error) => return Err(MappingError::to("fill", self.length)(error)),
            Ok(()) => {}
        }
        if let Err(error) = self.hold_together() {
            static TOLD: Once = Once::new();
            TOLD.call_once(|| {
                tracing::warn!(%error, "other processes can have the pages that they share moved, and make this one wait meanwhile: \
                                        raise /proc/sys/fs/pipe-user-pages-soft");
            });
        }
        Ok(())
    }

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

    /// Prevents peers from moving the file's pages into huge ones (MADV_COLLAPSE). A thread of the peer would do that,
    /// at the lowest priority if it likes, while accesses to the page wait. The kernel leaves a huge page's range alone
    /// while one page of it is held, for example by a pipe.
    fn hold_together(&self) -> rustix::io::Result<()> {
        let Source::Pages { file: Some(file), hold, .. } = &self.owner.source else { return Ok(()) };
        if self.length < HUGE_PAGE_BYTES {
            return Ok(());
        }
        let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let ranges = self.length / HUGE_PAGE_BYTES;
        let bytes = usize::try_from(ranges * PAGE_BYTES).unwrap_or(usize::MAX);
        rustix::pipe::fcntl_setpipe_size(&writer, bytes)?;
        for range in 0..ranges {
            let mut at = range * HUGE_PAGE_BYTES;
            // By reference: the pipe holds the file's page itself.
            rustix::pipe::splice(file.descriptor(), Some(&mut at), &writer, None, 1, SpliceFlags::NONBLOCK)?;
        }
        let _ = hold.set(reader);
        Ok(())
    }

    /// Returns whole pages to the machine. They read as zeros from here on. Returns whether that was done: it is not
    /// possible with memory that has a file or lies on the heap, or if the kernel refuses, as it does inside of huge
    /// pages.
    pub(crate) fn drop_pages(&self, offset: u64, bytes: u64) -> bool {
        let is_private = matches!(self.owner.source, Source::Pages { file: None, .. });
        if !is_private || bytes == 0 {
            return bytes == 0;
        }
        let start = self.pointer(offset, bytes, 1);
        let length = usize::try_from(bytes).unwrap_or(usize::MAX);
        // SAFETY: the span was checked to lie in this mapping, which is live and anonymous. All accesses to it are atomic,
        // and find zeros from here on.
        unsafe { rustix::mm::madvise(start.cast(), length, Advice::LinuxDontNeed) }.is_ok()
    }

    fn touch_all(&self) {
        for page in (0..self.length).step_by(4096) {
            self.word(page).fetch_add(0, Ordering::Relaxed);
        }
    }
}

/// Unmaps memory from its end, so that the rest stays one piece.
///
/// # Safety
/// `mmap` returned `start` for `length` bytes, and they are not used any more.
pub(crate) unsafe fn unmap(start: NonNull<u8>, length: usize) {
    let mut left = length;
    while left > 0 {
        let from = (left - 1) / UNMAPPED_AT_ONCE * UNMAPPED_AT_ONCE;
        // SAFETY: the caller guarantees that from is below the length of the mapping.
        let start = unsafe { start.as_ptr().add(from) };
        // SAFETY: the span is the rest of what mmap returned for the requested length, and the caller guarantees that
        // it is not used any more.
        let _ = unsafe { rustix::mm::munmap(start.cast(), left - from) };
        left = from;
    }
}

#[cfg(test)]
mod tests {
    use crate::{Mapping, Memory};

    const BYTES: u64 = 64 << 20;

    /// Resident memory of this process in bytes.
    fn resident() -> u64 {
        let text = std::fs::read_to_string("/proc/self/statm").expect("the kernel says it");
        text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).expect("a number") * 4096
    }

    #[test]
    fn what_is_given_back_is_zero_and_takes_no_memory() {
        let memory = Mapping::private(BYTES).expect("memory");
        for at in (0..BYTES).step_by(8) {
            memory.store(at, u64::MAX);
        }
        let before = resident();
        memory.give_back(100, BYTES - 200);
        assert!(resident() + BYTES / 2 < before, "{} bytes, and {before} before", resident());
        let edges = [96, 104, 4096, BYTES / 2, BYTES - 112, BYTES - 104];
        let read = edges.map(|at| memory.load(at));
        assert_eq!(read, [u64::from(u32::MAX), 0, 0, 0, 0, u64::MAX << 32]);
        memory.store(BYTES / 2, 5);
        assert_eq!(memory.load(BYTES / 2), 5, "it can be used again");
    }

    #[test]
    fn memory_that_cannot_be_given_back_is_overwritten() {
        for memory in [Mapping::shareable("shared", 3 * 4096), Mapping::private(3 * 4096)] {
            let memory = memory.expect("memory");
            memory.write(0, &[7; 3 * 4096]);
            memory.give_back(8, 3 * 4096 - 16);
            let mut bytes = [1; 3 * 4096];
            memory.read(0, &mut bytes);
            let is_clear = bytes[8..3 * 4096 - 8].iter().all(|byte| *byte == 0);
            assert!(is_clear && bytes[..8] == [7; 8] && bytes[3 * 4096 - 8..] == [7; 8]);
        }
    }
}
