//! Files that are lent to peers, and that return to the machine only when no peer has them any more.
//!
//! The memory of a page is charged to the process that touched it first, and stays for as long as any process has the
//! file. So a process that lends files has to learn when no peer has them any more. The kernel reports it by a lease
//! (`F_SETLEASE`): it grants a lease for writing only if the file is neither open nor mapped anywhere else. A process
//! with an `O_PATH` descriptor keeps the pages without having the file open. Therefore the pages are freed as well,
//! while the lease prevents every process from opening the file. No peer can delay that.

use crate::{Mapping, MappingError};
use linux_raw_sys::general::{F_SETLEASE, F_SETSIG};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{FallocateFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;

/// A file that was lent to a peer.
#[derive(Debug)]
pub struct Loan {
    file: OwnedFd,
    length: u64,
}

impl Loan {
    /// Lends the file of shareable memory. Returns also the descriptor for the peer: copies of other descriptors are
    /// not noticed. From here on no process can seal the file.
    ///
    /// # Errors
    /// The memory has no file, or the machine refuses. It needs `/proc`.
    pub fn of(memory: &Mapping) -> Result<(Self, OwnedFd), MappingError> {
        let error = |what| MappingError::to(what, memory.length);
        let made = memory.file().ok_or_else(|| error("lend a file of")(Errno::BADF))?;
        // A seal could keep its pages from being freed.
        rustix::fs::fcntl_add_seals(made, SealFlags::SEAL).map_err(error("seal a file of"))?;
        let open = || open_again(made).map_err(error("open a file of"));
        let file = open()?;
        Ok((Self { file, length: memory.length }, open()?))
    }

    /// Frees the file's pages if only this process still has the file. Returns whether that was so. This process must
    /// not use the file any more either. The call never waits for a peer.
    ///
    /// # Errors
    /// The machine does not report which processes have the file.
    pub fn take_back(&self) -> Result<bool, MappingError> {
        let error = |what| MappingError::to(what, self.length);
        match self.lease() {
            Ok(()) => {}
            Err(Errno::AGAIN) => return Ok(false),
            Err(refused) => return Err(error("lease a file of")(refused)),
        }
        let all = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let given = rustix::fs::fallocate(&self.file, all, 0, self.length);
        let ended = control(self.file.as_fd(), F_SETLEASE, libc::F_UNLCK);
        given.and(ended).map_err(error("give back"))?;
        Ok(true)
    }

    fn lease(&self) -> Result<(), Errno> {
        // If another process opens the file while it is leased, the kernel sends a signal: SIGIO would end the process,
        // and SIGURG does nothing. The kernel forgets the chosen signal with each lease.
        control(self.file.as_fd(), F_SETSIG, libc::SIGURG)?;
        control(self.file.as_fd(), F_SETLEASE, libc::F_WRLCK)
    }
}

/// Opens the same file again, as a separate open file.
fn open_again(file: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

fn control(file: BorrowedFd<'_>, command: u32, value: libc::c_int) -> Result<(), Errno> {
    let command = libc::c_int::try_from(command).map_err(|_| Errno::INVAL)?;
    // SAFETY: the descriptor is open for as long as it is borrowed, and both commands take a number.
    crate::signals::check(unsafe { libc::fcntl(file.as_raw_fd(), command, value) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memory;

    fn lent() -> (Mapping, Loan, OwnedFd) {
        let memory = Mapping::shareable("test", 4 * 4096).expect("memory");
        let (loan, file) = Loan::of(&memory).expect("a loan");
        memory.write(0, &[7; 4 * 4096]);
        (memory, loan, file)
    }

    fn blocks(file: impl AsFd) -> i64 {
        rustix::fs::fstat(file).expect("a file").st_blocks
    }

    fn is_back(loan: &Loan) -> bool {
        loan.take_back().expect("the machine has leases")
    }

    #[test]
    fn what_somebody_has_is_not_back() {
        let (memory, loan, file) = lent();
        assert!(!is_back(&loan), "the descriptor is there");
        let copy = file.try_clone().expect("a copy");
        drop(file);
        assert!(!is_back(&loan), "a copy is there");
        let read_only = rustix::fs::open(
            format!("/proc/self/fd/{}", copy.as_raw_fd()),
            OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        );
        let mapped = Mapping::of_peer(copy, 4 * 4096, true).expect("it is mapped");
        drop(read_only.expect("it is opened"));
        let mapped_at_a_peer = mapped.clone();
        drop(mapped);
        assert!(!is_back(&loan), "a mapping is there");
        assert_eq!((memory.load(0), blocks(&loan.file)), (0x0707_0707_0707_0707, 32));
        drop(mapped_at_a_peer);
        assert!(is_back(&loan));
        assert_eq!(
            (memory.load(8), is_back(&loan)),
            (0, true),
            "its pages are gone, and it is back for good"
        );
    }

    #[test]
    fn a_path_to_it_keeps_no_pages_and_no_signal_ends_the_process() {
        let (_memory, loan, file) = lent();
        let again = |flags| {
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty())
        };
        let path = again(OFlags::PATH).expect("a path");
        drop(file);
        assert!(is_back(&loan));
        assert_eq!(blocks(&path), 0);
        // Another process opens the file while it is leased.
        loan.lease().expect("a lease");
        let opened = rustix::fs::open(
            format!("/proc/self/fd/{}", path.as_raw_fd()),
            OFlags::RDWR | OFlags::NONBLOCK,
            Mode::empty(),
        );
        assert_eq!(opened.err(), Some(Errno::AGAIN));
    }

    #[test]
    fn nobody_seals_what_is_lent() {
        let (_memory, loan, file) = lent();
        for seal in [SealFlags::FUTURE_WRITE, SealFlags::WRITE] {
            assert_eq!(rustix::fs::fcntl_add_seals(&file, seal).err(), Some(Errno::PERM));
        }
        drop(file);
        assert!(is_back(&loan));
    }
}
