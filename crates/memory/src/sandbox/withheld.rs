//! Memory that a program withholds from trapped code: mappings, and stacks of threads. The heap has a module of its
//! own.

use super::faults::ensure_alternate_stack;
use crate::depth::{bounds, here};
use crate::keys::{self, READ_WRITE};
use crate::{Mapping, MappingError};
use rustix::io::Errno;
use std::marker::PhantomData;

impl Mapping {
    /// Withholds the memory from trapped code of this process ([`Inside::trap`](super::Inside::trap)), reads included,
    /// until it is unmapped. If the machine has no protection keys, it does nothing.
    ///
    /// Memory that lies on the process's heap, because it is short, is withheld only if the heap is: see
    /// [`WithheldHeap`](super::WithheldHeap). The access rights of this process's other code stay the same.
    ///
    /// # Errors
    /// The machine refuses.
    pub fn withhold(&self) -> Result<(), MappingError> {
        let Some(access) = self.access_of_pages() else { return Ok(()) };
        let start = self.start.addr().get();
        // SAFETY: the pages are this mapping's, which is live, and have these access rights.
        unsafe { keys::withhold(start, self.owner.length, access) }
            .map_err(MappingError::to("withhold", self.length))
    }
}

/// Withholds the calling thread's stack from trapped code until this is dropped, from the caller's frame downwards. The
/// part above the frame, with the thread's locals, is not withheld. If the machine has no protection keys, it does
/// nothing.
///
/// A signal handler that the program has not put on a stack of its own (`SA_ONSTACK`) takes a few microseconds longer
/// there.
#[derive(Debug)]
pub struct WithheldStack {
    start: usize,
    bytes: usize,
    /// The value must be dropped by the thread whose stack it withholds.
    _thread: PhantomData<*const ()>,
}

impl WithheldStack {
    /// Withholds the stack.
    ///
    /// # Errors
    /// The machine refuses, or the thread is the process's first one, whose stack is not completely mapped.
    pub fn new() -> Result<Self, Errno> {
        let mut withheld = Self { start: 0, bytes: 0, _thread: PhantomData };
        if keys::withheld().is_none() {
            return Ok(withheld);
        }
        if rustix::thread::gettid() == rustix::process::getpid() {
            return Err(Errno::NOTSUP);
        }
        // A signal whose handler begins on withheld pages causes a fault, which is reported on the alternate stack.
        ensure_alternate_stack()?;
        let here = here();
        let (low, _) =
            bounds().filter(|&(low, bytes)| here.wrapping_sub(low) < bytes).ok_or(Errno::NOTSUP)?;
        let bytes = here / 4096 * 4096 - low;
        // SAFETY: pages of this thread's stack, which may be read and written. The handler of faults opens the key for
        // all code that touches them, except for trapped code.
        unsafe { keys::withhold(low, bytes, READ_WRITE) }?;
        (withheld.start, withheld.bytes) = (low, bytes);
        Ok(withheld)
    }
}

impl Drop for WithheldStack {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // The C library gives the stack to another thread, which needs it before it has a stack for signals.
            // SAFETY: as in new().
            let released = unsafe { keys::release(self.start, self.bytes, READ_WRITE) };
            assert!(released.is_ok(), "pages that had one key have another: {released:?}");
        }
    }
}
