//! Sandboxes (RPCool §5.2): code runs on a stack of its own, with a temporary heap of its own, and what it does wrong becomes an error.
//!
//! - [`Sandbox::run`] is safe for any code. A panic is an error, and code that asks [`is_stack_used_up`](crate::is_stack_used_up) is
//!   answered for the sandbox's stack. Nothing is abandoned: each destructor runs. A fault there ends the process, as it does outside.
//! - [`Inside::trap`] is for code that may fault, such as a library in C. A fault, an overflow of the stack or too much time ends
//!   that code where it stands. No destructor runs, so the caller promises what such code may hold: it is `unsafe`.
//!
//! Code cannot be abandoned in general. Safe Rust may be in the middle of the allocator, hold a lock, or have lent its stack to
//! another thread, and nobody can tell from outside. So this crate never does it to code that was not promised to bear it.
//!
//! Where the processor has protection keys, trapped code does not reach what is withheld from it: the stacks and temporary heaps of other
//! sandboxes, mappings ([`Mapping::withhold`](crate::Mapping::withhold)), stacks of threads ([`WithheldStack`]), and the process's heap
//! ([`WithheldHeap`]). What such code is to know of the process is put into the temporary heap before ([`Arena`]).
//!
//! A sandbox says what it protects ([`Protection`]). It knows nothing of calls.

mod arena;
mod budget;
mod entry;
mod faults;
mod key_ring;
mod protection;
mod stack;
#[cfg(all(test, target_arch = "x86_64"))]
mod tests;
mod withheld;
mod withheld_heap;

pub use arena::{Arena, ArenaFull};
pub use protection::{NoKeys, Protection};
pub use withheld::WithheldStack;
pub use withheld_heap::WithheldHeap;

pub(crate) use faults::{end_trap, let_in};

use crate::depth::here;
use crate::{MappingError, keys};
use arena::Room;
use entry::Ended;
use faults::Frame;
use key_ring::{Holder, Pages};
use portcullis_errors::{Coded, ErrorCode};
use rustix::io::Errno;
use stack::Stack;
use std::time::Duration;

/// The sizes of a sandbox.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SandboxOptions {
    /// Bytes of its stack. They take memory only where they are used. It has at least 256 KiB.
    pub stack_bytes: u64,
    /// Bytes of its temporary heap.
    pub arena_bytes: u64,
}

impl Default for SandboxOptions {
    fn default() -> Self {
        Self { stack_bytes: 1 << 20, arena_bytes: 64 << 10 }
    }
}

/// There is no sandbox.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SandboxError {
    /// Nobody has written the entry for this kind of processor.
    #[error("there are no sandboxes on processors of this kind: x86-64 has them")]
    Processor,
    /// The machine refuses its stack.
    #[error(transparent)]
    Memory(#[from] MappingError),
    /// The machine does not say when code faults.
    #[error("cannot be told of faults: {0}")]
    Signals(#[source] Errno),
}

impl Coded for SandboxError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Processor => ErrorCode::NoSandbox,
            Self::Memory(error) => error.code(),
            Self::Signals(_) => ErrorCode::Machine,
        }
    }
}

/// What kept the processor from an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// Nothing is mapped there.
    Unmapped,
    /// Something is mapped there that may not be accessed so.
    Denied,
    /// Memory of the process is there that is withheld from trapped code: see [`Protection::Keys`].
    Withheld,
    /// A file was to be there that has become shorter, or the machine has lost the page.
    Gone,
    /// The machine does not say. So it is with addresses that no process can have.
    Unknown,
}

/// Why trapped code did not come to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Trapped {
    /// It touched memory that it may not.
    #[error("a fault at {address:x?} ({cause:?})")]
    Fault {
        /// The address, if the machine says it.
        address: Option<u64>,
        /// Why it faulted.
        cause: Cause,
    },
    /// It used up the sandbox's temporary heap: its allocations come from there if the process's heap is a [`WithheldHeap`].
    #[error("the sandbox's temporary heap is used up")]
    ArenaFull,
    /// It used up the stack.
    #[error("the sandbox's stack has overflowed")]
    StackOverflow,
    /// It took longer than it may.
    #[error("it ran longer than {0:?}")]
    OverBudget(Duration),
    /// It panicked.
    #[error("it panicked")]
    Panicked,
    /// It has not begun: the machine refuses what the trap needs, or the thread blocks the signal of the timer (`SIGVTALRM`).
    #[error("this machine refuses a trap: {0}")]
    Refused(Errno),
}

impl Coded for Trapped {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Fault { .. } => ErrorCode::SandboxFault,
            Self::ArenaFull => ErrorCode::HeapFull,
            Self::StackOverflow => ErrorCode::SandboxStack,
            Self::OverBudget(_) => ErrorCode::SandboxBudget,
            Self::Panicked => ErrorCode::MethodPanicked,
            Self::Refused(_) => ErrorCode::Machine,
        }
    }
}

/// A stack with guard pages at both ends, and a temporary heap. It is made once and used for one run after another.
#[derive(Debug)]
pub struct Sandbox {
    // It takes its pages' key away before they are unmapped.
    holder: Holder,
    stack: Stack,
}

impl Sandbox {
    /// A new sandbox. With the first one, the process begins to hear of faults; those that belong to no trap go to whoever heard of
    /// them before.
    ///
    /// # Errors
    /// See [`SandboxError`].
    pub fn new(options: SandboxOptions) -> Result<Self, SandboxError> {
        if !entry::IS_THERE {
            return Err(SandboxError::Processor);
        }
        crate::faults::listen().map_err(SandboxError::Signals)?;
        let stack = Stack::new(options.stack_bytes, options.arena_bytes)?;
        let holder = Holder::new(Pages::new(stack.pages()));
        let holder = holder.map_err(MappingError::to("give a key to", options.stack_bytes))?;
        Ok(Self { holder, stack })
    }

    /// What sandboxes of this machine keep code from.
    #[must_use]
    pub fn protection() -> Protection {
        Protection::of_this_machine()
    }

    /// Runs code on the sandbox's stack, to its end. What it allocated in the temporary heap is gone afterwards. Runs may be nested,
    /// each in a sandbox of its own.
    ///
    /// # Errors
    /// The code panicked: the error is what it panicked with.
    #[inline]
    pub fn run<R>(&mut self, code: impl FnOnce(&Inside<'_>) -> R) -> std::thread::Result<R> {
        // The thread may be older than the stack's key.
        keys::open();
        let room = Room::of(&self.stack);
        let inside = Inside { stack: &self.stack, holder: &self.holder, arena: Arena::new(room) };
        let entered = faults::StackNote::new(&self.stack);
        let top = self.stack.top();
        // SAFETY: the stack is this sandbox's own, mapped and aligned to pages, and nobody is on it: self is borrowed exclusively.
        let ended = unsafe { entry::run(|| code(&inside), None, top) };
        drop(entered);
        let Ended::Done(result) = ended else { unreachable!("only trapped code is abandoned") };
        room.reset();
        result
    }
}

/// What code finds in a sandbox.
#[derive(Debug)]
pub struct Inside<'a> {
    stack: &'a Stack,
    holder: &'a Holder,
    arena: Arena<'a>,
}

impl<'a> Inside<'a> {
    /// The temporary heap. What is put into it is gone when the run ends, without a destructor.
    #[must_use]
    pub fn arena(&self) -> Arena<'a> {
        self.arena
    }

    /// Runs code that may fault. If it does, if it overflows the stack, or if it uses more of the processor's time than `budget`, it
    /// ends where it stands, and the rest of the thread goes on.
    ///
    /// The time is looked at when the machine's clock ticks, every few milliseconds. Time in which the code waits does not count.
    ///
    /// # Errors
    /// See [`Trapped`].
    ///
    /// # Panics
    /// The thread is in a trap already, or not on this sandbox's stack.
    ///
    /// # Safety
    /// The code may end for good at each of its accesses to memory and calls; with a budget, at each of its instructions. Wherever
    /// that is:
    ///
    /// - It is not in the middle of anything that others rely on: it holds no lock, and is not in the allocator, in the standard
    ///   streams, or in other code with a state of its own. It allocates in the [`Arena`] or before the trap.
    /// - It has lent nothing that lies on its stack, to no other thread and to no list.
    /// - What it has half written is valid as it is, or nobody looks at it afterwards.
    /// - A signal handler of the program does not fault on this stack.
    ///
    /// What the trap is for is a fault of foreign code or of an access that the compiler does not know (assembly). A reference of
    /// Rust's to where nothing is remains undefined, caught or not.
    pub unsafe fn trap<R: Copy>(
        &self,
        budget: Option<Duration>,
        code: impl FnOnce() -> R + Copy,
    ) -> Result<R, Trapped> {
        assert!(self.stack.holds(here()), "a trap is set on its own sandbox's stack");
        assert!(!faults::is_in_trap(), "a trap is not set in a trap");
        faults::ensure_alternate_stack().map_err(Trapped::Refused)?;
        // What abandoned code has noted about other sandboxes does not hold any more.
        let entered = faults::StackNote::new(self.stack);
        let lease = self.holder.lease().map_err(Trapped::Refused)?;
        let key = lease.as_ref().map(|lease| lease.key);
        let frame = Frame::new(self.stack, key, self.arena.memory());
        let armed = budget.map(|budget| budget::arm(&frame, budget)).transpose();
        let armed = armed.map_err(Trapped::Refused)?;
        // SAFETY: the code stays on the stack that it is on. It bears to be abandoned, says the caller, and is Copy, as its result is:
        // neither has a destructor.
        let ended = unsafe { entry::run(code, Some(&frame), 0) };
        drop((armed, entered, lease));
        match ended {
            Ended::Done(Ok(result)) => Ok(result),
            Ended::Done(Err(_)) => Err(Trapped::Panicked),
            Ended::Abandoned => Err(frame.reason()),
        }
    }
}
