//! Wake-up of a thread that waits for the operating system.

use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Wakes a thread that waits for this descriptor.
#[derive(Debug)]
pub struct Wake(OwnedFd);

impl Wake {
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Wakes the thread.
    pub fn ring(&self) {
        // The write fails if the thread has not seen billions of rings: then the thread is awake.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Clears the rings that the thread has seen.
    pub fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
