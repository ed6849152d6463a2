//! What a program withholds from trapped code: mappings, and stacks of threads. Its heap has a module of its own.

use super::faults::ensure_alternate_stack;
use crate::depth::{bounds, here};
use crate::keys::{self, READ_WRITE};
use crate::{Mapping, MappingError};
use rustix::io::Errno;
use std::marker::PhantomData;

impl Mapping {
    /// Withholds the memory from trapped code of this process ([`Inside::trap`](super::Inside::trap)), reads included, until it is
    /// unmapped. Where the machine has no protection keys it does nothing.
    ///
    /// Memory that lies on the process's heap, because it is short, stays as that is: see [`WithheldHeap`](super::WithheldHeap). What
    /// this process may only read it may read as before.
    ///
    /// # Errors
    /// The machine refuses.
    pub fn withhold(&self) -> Result<(), MappingError> {
        let Some(access) = self.access_of_pages() else { return Ok(()) };
        let start = self.start.addr().get();
        // SAFETY: the pages are this mapping's, which is there, and may be accessed so.
        unsafe { keys::withhold(start, self.owner.length, access) }
            .map_err(MappingError::to("withhold", self.length))
    }
}

/// The calling thread's stack is withheld from trapped code for as long as this lives, from the caller's frame downwards. What lies above
/// it, with the thread's locals, is not. Where the machine has no protection keys it does nothing.
///
/// A handler of a signal that the program has not put on a stack of its own (`SA_ONSTACK`) takes a few microseconds longer there.
#[derive(Debug)]
pub struct WithheldStack {
    start: usize,
    bytes: usize,
    /// It is dropped by the thread whose stack it is.
    _thread: PhantomData<*const ()>,
}

impl WithheldStack {
    /// Withholds it.
    ///
    /// # Errors
    /// The machine refuses, or the thread is the process's first one, whose stack is not all there.
    pub fn new() -> Result<Self, Errno> {
        let mut withheld = Self { start: 0, bytes: 0, _thread: PhantomData };
        if keys::withheld().is_none() {
            return Ok(withheld);
        }
        if rustix::thread::gettid() == rustix::process::getpid() {
            return Err(Errno::NOTSUP);
        }
        // A signal whose handler begins on withheld pages is told as a fault on this stack.
        ensure_alternate_stack()?;
        let here = here();
        let (low, _) =
            bounds().filter(|&(low, bytes)| here.wrapping_sub(low) < bytes).ok_or(Errno::NOTSUP)?;
        let bytes = here / 4096 * 4096 - low;
        // SAFETY: pages of this thread's stack, which may be read and written. Whoever touches them is let in, or is trapped code.
        unsafe { keys::withhold(low, bytes, READ_WRITE) }?;
        (withheld.start, withheld.bytes) = (low, bytes);
        Ok(withheld)
    }
}

impl Drop for WithheldStack {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // The C library gives the stack to another thread, which has to come as far as its stack for signals.
            // SAFETY: as in new().
            let released = unsafe { keys::release(self.start, self.bytes, READ_WRITE) };
            assert!(released.is_ok(), "pages that had one key have another: {released:?}");
        }
    }
}
