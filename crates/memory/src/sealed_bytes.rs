//! Bytes of a file that no process can write any more, so that references into them are sound.

use crate::MappingError;
use crate::address_range::Claim;
use rustix::io::Errno;
use rustix::mm::Advice;
use std::ptr::NonNull;

/// The bytes of a file that is sealed for good, at an agreed address. They never change, whichever processes have the
/// file.
#[derive(Debug)]
pub struct SealedBytes {
    start: NonNull<u8>,
    claim: Claim,
}

// SAFETY: the bytes are only read, and stay mapped for as long as self lives, in whichever thread that is.
unsafe impl Send for SealedBytes {}
// SAFETY: as above.
unsafe impl Sync for SealedBytes {}

impl SealedBytes {
    /// The bytes of a whole claim. A file is mapped at the claim's start that
    /// [`SealedFile::check_sealed`](crate::SealedFile::check_sealed) has found sealed.
    pub(crate) fn claimed(start: NonNull<u8>, claim: Claim) -> Self {
        Self { start, claim }
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        let length = usize::try_from(self.claim.length()).unwrap_or(usize::MAX);
        // SAFETY: the claim's length is mapped from start on for as long as self lives, and readable. The file has all
        // of F_SEAL_WRITE, F_SEAL_SHRINK and F_SEAL_GROW, which no process can remove: the kernel set the first only
        // when no writable mapping and no pinned page was left, and it allows none afterwards. So the bytes do not
        // change.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), length) }
    }

    /// Offset of the bytes in their range of addresses.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.claim.offset()
    }

    /// Maps all pages, so that later reads do not fault on them. The time depends on the length.
    ///
    /// # Errors
    /// The machine refuses.
    pub fn fill(&self) -> Result<(), MappingError> {
        let length = usize::try_from(self.claim.length()).unwrap_or(usize::MAX);
        // SAFETY: the span is this mapping, which is live; the advice changes no bytes.
        match unsafe { rustix::mm::madvise(self.start.as_ptr().cast(), length, Advice::LinuxPopulateRead) } {
            // Kernels before Linux 5.14 do not have this advice. There each page is mapped at its first use.
            Ok(()) | Err(Errno::INVAL) => Ok(()),
            Err(error) => Err(MappingError::to("fill", self.claim.length())(error)),
        }
    }
}
