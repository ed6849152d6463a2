//! A file whose memory processes share.

use crate::MappingError;
use crate::mapping::{PAGE_BYTES, round_up};
use portcullis_errors::{Coded, ErrorCode};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;

/// Seals of a file that no process can change any more: neither its bytes, nor its length, nor its seals.
const FINAL: SealFlags =
    SealFlags::WRITE.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::SEAL);

/// Unit in bytes in which the kernel counts a file's memory.
const BLOCK_BYTES: u64 = 512;

/// Error: a file is not sealed for good.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SealError {
    /// The kernel does not seal the file while a process could still write to it.
    #[error("something can still write to the file: a mapping, or an operation that is under way")]
    Busy,
    /// Seals are missing.
    #[error("the file is not sealed: it lacks {0}")]
    Missing(String),
    /// Pages are missing.
    #[error("the file has holes: a process that reads them would have to allocate memory for them")]
    Holes,
    /// The machine refuses.
    #[error(transparent)]
    Machine(#[from] MappingError),
}

impl Coded for SealError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Busy => ErrorCode::SealBusy,
            Self::Missing(_) | Self::Holes => ErrorCode::NotSealed,
            Self::Machine(error) => error.code(),
        }
    }
}

/// A file without a name that cannot shrink any more, so that no peer can make an access to a mapping of it fault.
#[derive(Debug)]
pub struct SealedFile {
    descriptor: OwnedFd,
    length: u64,
}

impl SealedFile {
    /// Creates a file of zeros, `length` bytes rounded up to whole pages. It can neither shrink nor grow. The name only
    /// appears in `/proc`.
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

    /// Wraps a file that a peer has sent. The file is rejected unless it is `length` bytes long and sealed against
    /// shrinking.
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

    /// Seals the file so that from here on it cannot be mapped writable, written to or punched. Existing mappings can
    /// be written as before.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn seal_future_writes(&self) -> Result<(), MappingError> {
        rustix::fs::fcntl_add_seals(&self.descriptor, SealFlags::FUTURE_WRITE | SealFlags::SEAL)
            .map_err(MappingError::to("seal a file of", self.length))
    }

    /// Seals the file for good: from here on no process can write to it, map it writable, or change its length.
    ///
    /// The kernel can take up to 0.2 s for it, depending on what other processes do with the file's pages. So the
    /// receiver of a file never calls this: its sender does.
    ///
    /// # Errors
    /// [`SealError::Busy`]: some process still has a writable mapping, or an operation that may write is in progress.
    pub fn seal(&self) -> Result<(), SealError> {
        match rustix::fs::fcntl_add_seals(&self.descriptor, FINAL) {
            Ok(()) => Ok(()),
            Err(Errno::BUSY) => Err(SealError::Busy),
            // Its seals are final, whichever they are.
            Err(Errno::PERM) => self.check_seals(),
            Err(error) => Err(MappingError::to("seal a file of", self.length)(error).into()),
        }
    }

    /// Makes the machine allocate memory for all pages that were not written yet.
    ///
    /// # Errors
    /// The machine has not enough memory.
    pub fn allocate(&self) -> Result<(), MappingError> {
        rustix::fs::fallocate(&self.descriptor, FallocateFlags::empty(), 0, self.length)
            .map_err(MappingError::to("allocate", self.length))
    }

    /// Checks that the file is sealed for good, still has its length, and has all its pages. The answer comes from the
    /// kernel alone.
    ///
    /// The memory of a missing page would be charged to the reader: a peer that keeps the file's descriptor could make
    /// the reader take memory without end.
    ///
    /// # Errors
    /// The file fails one of the checks.
    pub fn check_sealed(&self) -> Result<(), SealError> {
        self.check_seals()?;
        let error = |what| MappingError::to(what, self.length);
        let measured = rustix::fs::fstat(&self.descriptor).map_err(error("measure"))?;
        if u64::try_from(measured.st_size) != Ok(self.length) {
            return Err(error("trust a file for")(Errno::PERM).into());
        }
        let blocks = u64::try_from(measured.st_blocks).unwrap_or(0);
        if blocks.saturating_mul(BLOCK_BYTES) < self.length {
            return Err(SealError::Holes);
        }
        Ok(())
    }

    fn check_seals(&self) -> Result<(), SealError> {
        let error = MappingError::to("read the seals of", self.length);
        let missing = FINAL.difference(rustix::fs::fcntl_get_seals(&self.descriptor).map_err(error)?);
        if missing.is_empty() {
            return Ok(());
        }
        let names: Vec<String> = missing.iter_names().map(|(name, _)| format!("F_SEAL_{name}")).collect();
        Err(SealError::Missing(names.join(", ")))
    }

    /// Length of the file in bytes.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The file's descriptor, for sending it to a peer.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
