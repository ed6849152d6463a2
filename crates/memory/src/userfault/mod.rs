//! Memory whose missing pages another thread or process fills (userfaultfd).
//!
//! A [`Userfault`] represents the memory of the process that made it. Its holder receives each touch of a missing page
//! and each write to a protected one, and the touching thread sleeps until the page exists. The kernel's own accesses
//! on behalf of the process, such as those of `read(2)`, wait in the same way. So do calls that change the mapping:
//! each is an [`Event`], and while one waits to be taken the kernel fills and moves no pages.
//!
//! The memory is anonymous and private. Only such pages can be moved, and an attempt to move a page shows whether the
//! kernel or a device has pinned it.

mod calls;
mod events;
mod handover;
mod powers;
#[cfg(test)]
mod tests;

pub use events::{Event, PageFault};
pub use handover::{
    Command, Handed, Handover, HandoverError, MARKS_BYTES, Request, Taken, Terms, answer, deny, hand_over,
    join, mark_of, next_command, number_of,
};
pub use powers::Powers;

use calls::{Api, Copied, Move, Protect, Register};
use events::MESSAGE_BYTES;
use portcullis_errors::{Coded, ErrorCode};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Messages taken from the kernel at once.
const MESSAGES_MAX: usize = 32;
/// Zeros to fill pages with. The kernel's shared page of zeros would save a copy, but it cannot be moved on every kernel.
static ZEROS: [u8; 64 * PAGE] = [0; 64 * PAGE];

/// Access rights of a page that is filled: it can be written at once, or the first write is a [`PageFault`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fill {
    /// Writes do not fault.
    Writable,
    /// The first write faults.
    Protected,
}

/// Reason for which a call stopped early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// The next page exists already.
    There,
    /// The process changes its mappings: the waiting events must be taken first.
    Changing,
    /// The next page is not mapped, or its mapping is not watched.
    Unmapped,
}

/// Progress of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Done {
    /// Number of bytes that are done, from the first on.
    pub bytes: usize,
    /// Reason why the call stopped early. `None`: it did all.
    pub stop: Option<Stop>,
}

/// Reason for which a page was not moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stays {
    /// The page does not exist.
    Missing,
    /// The kernel or a device has pinned the page, or another process shares it.
    Pinned,
    /// The page is locked, or its protection differs from the target's.
    Unlike,
    /// The target has a page already.
    Occupied,
    /// The process changes its mappings, as in [`Stop::Changing`].
    Changing,
}

/// Reason for which pages cannot be filled.
#[derive(Debug, thiserror::Error)]
pub enum UserfaultError {
    /// The process is not allowed to delay the kernel's own accesses.
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
    /// The process that owns the memory has ended.
    #[error("the process whose memory it is has ended")]
    Ended,
    /// The kernel refused a call.
    #[error("cannot {what} pages of memory: {source}")]
    Call {
        /// The operation that failed.
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

/// Faults of one process's memory, and the calls that fill its pages.
#[derive(Debug)]
pub struct Userfault {
    descriptor: OwnedFd,
}

impl Userfault {
    /// Opens the faults of this process's memory. It does not use the heap, since the heap's own memory may be in the
    /// watched range.
    ///
    /// # Errors
    /// The process is not allowed to, or the kernel cannot.
    pub fn new() -> Result<Self, UserfaultError> {
        match calls::open_device() {
            Ok(descriptor) => return Ok(Self { descriptor }),
            // There is no device, or this user cannot open it. The system call has other rules.
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

    /// Wraps the descriptor of another process's memory, which that process has sent.
    #[must_use]
    pub fn of_peer(descriptor: OwnedFd) -> Self {
        Self { descriptor }
    }

    /// Returns what this kernel can do for this process's own memory.
    ///
    /// # Errors
    /// [`UserfaultError::Feature`], or as [`Userfault::new`].
    pub fn powers() -> Result<Powers, UserfaultError> {
        let mut api = Api::new(0);
        calls::api(&Self::new()?.descriptor, &mut api).map_err(UserfaultError::to("watch"))?;
        Powers::of(api.features())
    }

    /// Requests features from the kernel. It is called once, before any memory is watched. Returns the features that
    /// are active: forks are followed only if this process has the right to it.
    ///
    /// # Errors
    /// The descriptor is not a userfaultfd, or features were requested before.
    pub fn agree(&self, powers: Powers) -> Result<Powers, UserfaultError> {
        match calls::api(&self.descriptor, &mut Api::new(powers.features())) {
            Ok(()) => Ok(powers),
            Err(Errno::PERM) if powers.forks => self.agree(Powers { forks: false, ..powers }),
            Err(source) => Err(UserfaultError::to("watch")(source)),
        }
    }

    /// Watches a range of the process's memory, which is anonymous and private. From here on, a thread that touches a
    /// missing page of it, or writes to a protected one, sleeps until the page is filled.
    ///
    /// # Errors
    /// The range is not on page boundaries, is not mapped in that way, or the process has ended.
    pub fn watch(&self, address: u64, length: u64) -> Result<(), UserfaultError> {
        calls::register(&self.descriptor, &mut Register::new(calls::Range::new(address, length)))
            .map_err(UserfaultError::to("watch"))
    }

    /// Stops watching a range. Missing pages are zeros from here on.
    ///
    /// # Errors
    /// As [`Userfault::watch`].
    pub fn unwatch(&self, address: u64, length: u64) -> Result<(), UserfaultError> {
        calls::unregister(&self.descriptor, &mut calls::Range::new(address, length))
            .map_err(UserfaultError::to("stop watching"))
    }

    /// Takes the events that wait to be taken. It does not wait for events.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn take(&self, into: &mut Vec<Event>) -> Result<(), UserfaultError> {
        let mut bytes = [0; MESSAGES_MAX * MESSAGE_BYTES];
        let length = match rustix::io::read(&self.descriptor, &mut bytes) {
            Ok(length) => length,
            Err(Errno::AGAIN | Errno::INTR) => 0,
            Err(source) => return Err(UserfaultError::to("receive events of")(source)),
        };
        let messages = bytes[..length].chunks_exact(MESSAGE_BYTES);
        into.extend(messages.filter_map(events::parse));
        Ok(())
    }

    /// Fills missing pages with `bytes`, a whole number of pages, and wakes the threads that wait for them.
    ///
    /// # Errors
    /// The process has ended, or the range is not on page boundaries.
    pub fn fill(&self, address: u64, bytes: &[u8], fill: Fill) -> Result<Done, UserfaultError> {
        let mut done = 0;
        // The kernel fills within one mapping at a time, and does not report where a mapping ends.
        let mut step = bytes.len();
        while done < bytes.len() {
            let part = &bytes[done..bytes.len().min(done.saturating_add(step))];
            let mut copy = Copied::new(address + done as u64, part, fill == Fill::Protected);
            let result = calls::copy(&self.descriptor, &mut copy);
            done += copy.done();
            let stop = match result {
                Ok(()) => continue,
                Err(Errno::AGAIN) if copy.done() > 0 => continue,
                Err(Errno::NOENT) if part.len() > PAGE => {
                    step = PAGE;
                    continue;
                }
                Err(Errno::AGAIN) => Stop::Changing,
                Err(Errno::EXIST) => Stop::There,
                Err(Errno::NOENT) => Stop::Unmapped,
                Err(source) => return Err(UserfaultError::to("fill")(source)),
            };
            return Ok(Done { bytes: done, stop: Some(stop) });
        }
        Ok(Done { bytes: done, stop: None })
    }

    /// Fills missing pages with zeros, writable. Otherwise the same as [`Userfault::fill`].
    ///
    /// # Errors
    /// As [`Userfault::fill`].
    pub fn fill_zeros(&self, address: u64, length: usize) -> Result<Done, UserfaultError> {
        let mut done = 0;
        while done < length {
            let part = ZEROS.len().min(length - done);
            let filled = self.fill(address + done as u64, &ZEROS[..part], Fill::Writable)?;
            done += filled.bytes;
            if filled.stop.is_some() {
                return Ok(Done { bytes: done, ..filled });
            }
        }
        Ok(Done { bytes: done, stop: None })
    }

    /// Moves pages of this process, one after another, to missing pages of a watched range of it. Returns the number of
    /// bytes that were moved, and the reason for which the next page was not.
    ///
    /// # Safety
    /// No reference of this process points into either range, and no code relies on the contents of the target.
    ///
    /// # Errors
    /// The target is not watched, or the range is not on page boundaries.
    pub unsafe fn move_out(
        &self,
        from: u64,
        to: u64,
        length: u64,
    ) -> Result<(usize, Option<Stays>), UserfaultError> {
        let (mut done, mut step) = (0, length);
        while done < length {
            let part = step.min(length - done);
            let mut moved = Move::new(calls::Range::new(from + done, part), to + done);
            // SAFETY: the caller's promise.
            let result = unsafe { calls::move_pages(&self.descriptor, &mut moved) };
            done += moved.done() as u64;
            let stays = match result {
                Ok(()) => continue,
                Err(Errno::AGAIN) if moved.done() > 0 => continue,
                // The pages may belong to several mappings.
                Err(Errno::INVAL | Errno::NOENT) if part > PAGE as u64 => {
                    step = PAGE as u64;
                    continue;
                }
                Err(Errno::AGAIN) => Stays::Changing,
                Err(Errno::BUSY) => Stays::Pinned,
                Err(Errno::NOENT) => Stays::Missing,
                Err(Errno::EXIST) => Stays::Occupied,
                Err(Errno::INVAL) => Stays::Unlike,
                Err(source) => return Err(UserfaultError::to("move")(source)),
            };
            return Ok((usize::try_from(done).unwrap_or(usize::MAX), Some(stays)));
        }
        Ok((usize::try_from(done).unwrap_or(usize::MAX), None))
    }

    /// Protects existing pages. When this returns, no write to them is in progress, and the next one is a
    /// [`PageFault`].
    ///
    /// # Errors
    /// The process has ended, or the range is not on page boundaries.
    pub fn protect(&self, address: u64, length: u64) -> Result<Option<Stop>, UserfaultError> {
        self.set_protection(address, length, true)
    }

    /// Lifts the protection of pages, and wakes the threads that wait for them.
    ///
    /// # Errors
    /// As [`Userfault::protect`].
    pub fn allow(&self, address: u64, length: u64) -> Result<Option<Stop>, UserfaultError> {
        self.set_protection(address, length, false)
    }

    fn set_protection(&self, address: u64, length: u64, on: bool) -> Result<Option<Stop>, UserfaultError> {
        loop {
            let mut protect = Protect::new(calls::Range::new(address, length), on);
            return match calls::protect(&self.descriptor, &mut protect) {
                Ok(()) => Ok(None),
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => Ok(Some(Stop::Changing)),
                Err(Errno::NOENT) => Ok(Some(Stop::Unmapped)),
                Err(source) => Err(UserfaultError::to("protect")(source)),
            };
        }
    }

    /// Wakes the threads that wait for pages of the range. They touch the page again.
    ///
    /// # Errors
    /// The range is not on page boundaries.
    pub fn wake(&self, address: u64, length: u64) -> Result<(), UserfaultError> {
        calls::wake(&self.descriptor, &mut calls::Range::new(address, length))
            .map_err(UserfaultError::to("wake for"))
    }
}

impl From<Userfault> for OwnedFd {
    fn from(userfault: Userfault) -> Self {
        userfault.descriptor
    }
}

impl AsFd for Userfault {
    /// The descriptor is readable when an event waits to be taken.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
