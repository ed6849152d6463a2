//! A file that memory is shared through.

use crate::MappingError;
use crate::mapping::{PAGE_BYTES, round_up};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;

/// A file without a name that cannot shrink any more, so that no peer can make an access to a mapping of it fault.
#[derive(Debug)]
pub struct SealedFile {
    descriptor: OwnedFd,
    length: u64,
}

impl SealedFile {
    /// A file of zeros, `length` bytes rounded up to whole pages. It can neither shrink nor grow. The name only shows
    /// in `/proc`.
    ///
    /// # Errors
    /// The machine does not have enough.
    pub fn new(name: &str, length: u64) -> Result<Self, MappingError> {
        let length = round_up(length, PAGE_BYTES);
        let error = |what| MappingError::to(what, length);
        let descriptor = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(error("create a file of"))?;
        rustix::fs::ftruncate(&descriptor, length).map_err(error("size a file of"))?;
        rustix::fs::fcntl_add_seals(&descriptor, SealFlags::SHRINK | SealFlags::GROW)
            .map_err(error("seal a file of"))?;
        Ok(Self { descriptor, length })
    }

    /// A file that a peer passed. It is refused unless it is `length` bytes long and sealed against shrinking.
    ///
    /// # Errors
    /// The file is not such a file.
    pub fn of_peer(descriptor: OwnedFd, length: u64) -> Result<Self, MappingError> {
        let error = |what| MappingError::to(what, length);
        let seals = rustix::fs::fcntl_get_seals(&descriptor).map_err(error("read the seals of"))?;
        let size = rustix::fs::fstat(&descriptor).map_err(error("measure"))?.st_size;
        let sound = seals.contains(SealFlags::SHRINK) && u64::try_from(size).is_ok_and(|size| size == length);
        if !sound {
            return Err(error("trust a file for")(Errno::PERM));
        }
        Ok(Self { descriptor, length })
    }

    /// From here on the file cannot be mapped writable, written to or punched. Existing mappings can be written as
    /// before.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn seal_future_writes(&self) -> Result<(), MappingError> {
        rustix::fs::fcntl_add_seals(&self.descriptor, SealFlags::FUTURE_WRITE | SealFlags::SEAL)
            .map_err(MappingError::to("seal a file of", self.length))
    }

    /// Its size in bytes.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The file's descriptor, to be passed on.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
