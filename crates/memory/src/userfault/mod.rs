//! Memory whose missing pages another thread or process fills (userfaultfd).
//!
//! A [`Userfault`] stands for the memory of the process that made it. Whoever holds it is told of each touch of a missing
//! page and of each write to a protected one, and the thread that touched sleeps until the page is there. The kernel's own
//! accesses on behalf of the process, such as those of `read(2)`, wait in the same way.
//!
//! The pages belong to a file in memory (shmem): a page is missing while the file has a hole there.

mod calls;
mod handover;
#[cfg(test)]
mod tests;

pub use handover::{Handed, Handover, HandoverError, Request, deny, hand_over, release};

use crate::{Mapping, Memory};
use calls::{Api, Copied, Protect, Range, Register, Zeroed};
use portcullis_errors::{Coded, ErrorCode};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Bytes of one message of the kernel.
const MESSAGE_BYTES: usize = 32;
/// Messages taken from the kernel at once.
const MESSAGES_MAX: usize = 32;
/// The message that a page was touched, and what its flags say.
const EVENT_PAGEFAULT: u8 = 0x12;
const FLAG_WRITE: u64 = 1;
const FLAG_PROTECTED: u64 = 2;

/// What a range needs of the kernel, each with the Linux version that brought it.
const FEATURES: [(u64, &str); 2] = [
    (1 << 5, "missing pages of files in memory (Linux 4.11)"),
    (1 << 12, "write protection of files in memory (Linux 5.19)"),
];

/// A thread has touched a page and sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The page's first address in the process whose memory it is.
    pub address: u64,
    /// The thread wants to write.
    pub is_write: bool,
    /// The page is there, and protected.
    pub is_protected: bool,
}

/// Whether a page that is filled can be written at once, or the first write is a [`Fault`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fill {
    /// Writes need no leave.
    Writable,
    /// The first write faults.
    Protected,
}

/// Why pages cannot be filled.
#[derive(Debug, thiserror::Error)]
pub enum UserfaultError {
    /// The process may not have the kernel's own accesses wait.
    #[error(
        "this process may not handle page faults of the kernel: run it as root or with CAP_SYS_PTRACE, let its user open \
         /dev/userfaultfd (chown or chmod), or set the sysctl vm.unprivileged_userfaultfd to 1"
    )]
    Denied,
    /// The kernel was built without userfaultfd.
    #[error("this kernel has no userfaultfd: it needs Linux with CONFIG_USERFAULTFD=y")]
    Missing,
    /// The kernel is too old.
    #[error("this kernel's userfaultfd has no {0}")]
    Feature(&'static str),
    /// The process whose memory it is has ended.
    #[error("the process whose memory it is has ended")]
    Ended,
    /// The kernel refused a call.
    #[error("cannot {what} pages of memory: {source}")]
    Call {
        /// What was to be done.
        what: &'static str,
        /// The kernel's reason.
        source: Errno,
    },
}

impl Coded for UserfaultError {
    fn code(&self) -> ErrorCode {
        ErrorCode::Machine
    }
}

impl UserfaultError {
    fn to(what: &'static str) -> impl Fn(Errno) -> Self {
        move |source| if source == Errno::SRCH { Self::Ended } else { Self::Call { what, source } }
    }
}

/// The faults of one process's memory, and the calls that fill its pages.
#[derive(Debug)]
pub struct Userfault {
    descriptor: OwnedFd,
}

impl Userfault {
    /// For the memory of this process. It makes no use of the heap, since the heap's own memory may be what it is for.
    ///
    /// # Errors
    /// The process may not, or the kernel cannot.
    pub fn new() -> Result<Self, UserfaultError> {
        match calls::open_device() {
            Ok(descriptor) => return Ok(Self { descriptor }),
            // No device, or not for this user: the system call has rules of its own.
            Err(Errno::NOENT | Errno::ACCESS | Errno::PERM | Errno::NXIO | Errno::NODEV) => {}
            Err(source) => return Err(UserfaultError::to("watch")(source)),
        }
        match calls::open() {
            Ok(descriptor) => Ok(Self { descriptor }),
            Err(Errno::PERM) => Err(UserfaultError::Denied),
            Err(Errno::NOSYS) => Err(UserfaultError::Missing),
            Err(source) => Err(UserfaultError::to("watch")(source)),
        }
    }

    /// For the memory of the process that passed the descriptor.
    #[must_use]
    pub fn of_peer(descriptor: OwnedFd) -> Self {
        Self { descriptor }
    }

    /// Has the kernel say what it can. Called once, before anything is watched.
    ///
    /// # Errors
    /// [`UserfaultError::Feature`], or the descriptor is none of this kind.
    pub fn agree(&self) -> Result<(), UserfaultError> {
        let wanted = FEATURES.iter().fold(0, |all, (bit, _)| all | bit);
        match calls::api(&self.descriptor, &mut Api::new(wanted)) {
            Ok(()) => Ok(()),
            // The kernel refuses all when one is missing. Asked for none, a fresh descriptor says which it has.
            Err(Errno::INVAL) => {
                let fresh = Self::new()?;
                let mut api = Api::new(0);
                calls::api(&fresh.descriptor, &mut api).map_err(UserfaultError::to("watch"))?;
                let missing = FEATURES.iter().find(|(bit, _)| api.features() & bit == 0);
                Err(missing.map_or(UserfaultError::to("watch")(Errno::INVAL), |&(_, name)| {
                    UserfaultError::Feature(name)
                }))
            }
            Err(source) => Err(UserfaultError::to("watch")(source)),
        }
    }

    /// Watches a range of the process's memory, which is a mapping of a file in memory: from here on, whoever touches a
    /// missing page of it, or writes to a protected one, sleeps until the page is filled.
    ///
    /// # Errors
    /// The range is not on page boundaries, not mapped so, or the process has ended.
    pub fn watch(&self, address: u64, length: u64) -> Result<(), UserfaultError> {
        calls::register(&self.descriptor, &mut Register::new(Range::new(address, length)))
            .map_err(UserfaultError::to("watch"))
    }

    /// Watches the whole of a mapping of this process.
    ///
    /// # Errors
    /// As [`Userfault::watch`].
    pub fn watch_mapping(&self, mapping: &Mapping) -> Result<(), UserfaultError> {
        self.watch(mapping.start().addr().get() as u64, mapping.length())
    }

    /// Takes the faults that wait to be taken, without waiting.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn take(&self, into: &mut Vec<Fault>) -> Result<(), UserfaultError> {
        let mut bytes = [0; MESSAGES_MAX * MESSAGE_BYTES];
        let length = match rustix::io::read(&self.descriptor, &mut bytes) {
            Ok(length) => length,
            Err(Errno::AGAIN | Errno::INTR) => 0,
            Err(source) => return Err(UserfaultError::to("be told of")(source)),
        };
        let messages = bytes[..length].chunks_exact(MESSAGE_BYTES);
        into.extend(messages.filter_map(parse));
        Ok(())
    }

    /// Fills missing pages with `bytes`, a whole number of pages, and wakes who waits for them. Returns how many bytes
    /// were filled: fewer if the next page was there already.
    ///
    /// # Errors
    /// The range is not watched, or the process has ended.
    pub fn fill(&self, address: u64, bytes: &[u8], fill: Fill) -> Result<usize, UserfaultError> {
        let mut done = 0;
        while done < bytes.len() {
            let mut copy = Copied::new(address + done as u64, &bytes[done..], fill == Fill::Protected);
            let result = calls::copy(&self.descriptor, &mut copy);
            done += copy.done();
            match result {
                Ok(()) | Err(Errno::AGAIN) => {}
                Err(Errno::EXIST) => break,
                Err(source) => return Err(UserfaultError::to("fill")(source)),
            }
        }
        Ok(done)
    }

    /// Fills missing pages with zeros, writable, and wakes who waits for them. Returns as [`Userfault::fill`].
    ///
    /// # Errors
    /// As [`Userfault::fill`].
    pub fn fill_zeros(&self, address: u64, length: usize) -> Result<usize, UserfaultError> {
        let mut done = 0;
        while done < length {
            let rest = Range::new(address + done as u64, (length - done) as u64);
            let mut zeroed = Zeroed::new(rest);
            let result = calls::zero(&self.descriptor, &mut zeroed);
            done += zeroed.done();
            match result {
                Ok(()) | Err(Errno::AGAIN) => {}
                Err(Errno::EXIST) => break,
                Err(source) => return Err(UserfaultError::to("fill")(source)),
            }
        }
        Ok(done)
    }

    /// Protects pages that are there: when this returns, no write to them is under way, and the next one is a [`Fault`].
    ///
    /// # Errors
    /// The range is not watched, or the process has ended.
    pub fn protect(&self, address: u64, length: u64) -> Result<(), UserfaultError> {
        self.set_protection(address, length, true)
    }

    /// Lifts the protection of pages, and wakes who waits for them.
    ///
    /// # Errors
    /// As [`Userfault::protect`].
    pub fn allow(&self, address: u64, length: u64) -> Result<(), UserfaultError> {
        self.set_protection(address, length, false)
    }

    fn set_protection(&self, address: u64, length: u64, on: bool) -> Result<(), UserfaultError> {
        loop {
            let mut protect = Protect::new(Range::new(address, length), on);
            match calls::protect(&self.descriptor, &mut protect) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                result => return result.map_err(UserfaultError::to("protect")),
            }
        }
    }

    /// Wakes who waits for pages of the range. They touch the page again.
    ///
    /// # Errors
    /// The range is not on page boundaries.
    pub fn wake(&self, address: u64, length: u64) -> Result<(), UserfaultError> {
        calls::wake(&self.descriptor, &mut Range::new(address, length))
            .map_err(UserfaultError::to("wake for"))
    }
}

impl From<Userfault> for OwnedFd {
    fn from(userfault: Userfault) -> Self {
        userfault.descriptor
    }
}

impl AsFd for Userfault {
    /// Readable when a fault waits to be taken.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// What a message of the kernel says.
fn parse(message: &[u8]) -> Option<Fault> {
    let word = |at: usize| message.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes);
    let (flags, address) = (word(8)?, word(16)?);
    (message[0] == EVENT_PAGEFAULT).then_some(Fault {
        address: address & !(PAGE as u64 - 1),
        is_write: flags & (FLAG_WRITE | FLAG_PROTECTED) != 0,
        is_protected: flags & FLAG_PROTECTED != 0,
    })
}
