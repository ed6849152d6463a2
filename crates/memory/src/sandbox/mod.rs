//! Sandboxes (RPCool §5.2): code runs on a stack of its own, with a temporary heap of its own, and its faults become
//! errors.
//!
//! - [`Sandbox::run`] is safe for any code. A panic is an error, and [`is_stack_used_up`](crate::is_stack_used_up)
//!   refers to the sandbox's stack. Nothing is abandoned: each destructor runs. A fault there ends the process, as it
//!   does outside.
//! - [`Inside::trap`] is for code that may fault, such as a library in C. A fault, an overflow of the stack or too much
//!   time ends that code where it stands. No destructor runs, so the caller has to guarantee the conditions in its
//!   documentation: the method is `unsafe`.
//!
//! Code cannot be abandoned in general. Safe Rust may be in the middle of the allocator, hold a lock, or have lent its
//! stack to another thread, and this is not visible from outside. So this crate abandons only code whose caller has
//! guaranteed that it can end anywhere.
//!
//! If the processor has protection keys, trapped code cannot reach memory that is withheld from it: the stacks and
//! temporary heaps of other sandboxes, mappings ([`Mapping::withhold`](crate::Mapping::withhold)), stacks of threads
//! ([`WithheldStack`]), and the process's heap ([`WithheldHeap`]). The data of the process that such code needs is put
//! into the temporary heap before ([`Arena`]).
//!
//! A sandbox reports what it protects ([`Protection`]). This module knows nothing of remote procedure calls.

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
    /// Bytes of its stack, at least 256 KiB. They take memory only when they are used.
    pub stack_bytes: u64,
    /// Bytes of its temporary heap.
    pub arena_bytes: u64,
}

impl Default for SandboxOptions {
    fn default() -> Self {
        Self { stack_bytes: 1 << 20, arena_bytes: 64 << 10 }
    }
}

/// Error: a sandbox cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SandboxError {
    /// This kind of processor is not supported: its entry code has not been written.
    #[error("there are no sandboxes on processors of this kind: x86-64 has them")]
    Processor,
    /// The machine refuses its stack.
    #[error(transparent)]
    Memory(#[from] MappingError),
    /// The machine does not report when code faults.
    #[error("cannot receive faults: {0}")]
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

/// Cause for which the processor refused an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// Nothing is mapped there.
    Unmapped,
    /// The mapping at the address does not allow this kind of access.
    Denied,
    /// The memory at the address is withheld from trapped code: see [`Protection::Keys`].
    Withheld,
    /// The mapped file has become shorter, or the machine has lost the page.
    Gone,
    /// The machine does not report the cause. This applies to addresses that no process can have.
    Unknown,
}

/// Reason for which trapped code did not finish.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Trapped {
    /// The code accessed memory that it must not access.
    #[error("a fault at {address:x?} ({cause:?})")]
    Fault {
        /// The address, if the machine reports it.
        address: Option<u64>,
        /// Cause of the fault.
        cause: Cause,
    },
    /// The code used up the sandbox's temporary heap: its allocations come from there if the process's heap is a
    /// [`WithheldHeap`].
    #[error("the sandbox's temporary heap is used up")]
    ArenaFull,
    /// The code used up the stack.
    #[error("the sandbox's stack has overflowed")]
    StackOverflow,
    /// The code exceeded its time limit.
    #[error("it ran longer than {0:?}")]
    OverBudget(Duration),
    /// The code panicked.
    #[error("it panicked")]
    Panicked,
    /// The code has not begun: the machine refuses what the trap needs, or the thread blocks the signal of the timer
    /// (`SIGVTALRM`).
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

/// A stack with guard pages at both ends, and a temporary heap. A sandbox is made once and used for one run after
/// another.
#[derive(Debug)]
pub struct Sandbox {
    // Declared first: it takes the pages' key away before the stack unmaps them.
    holder: Holder,
    stack: Stack,
}

impl Sandbox {
    /// A new sandbox. With the first one, the process installs a handler of faults. Faults that belong to no trap go to
    /// the handler that was installed before.
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

    /// The protection that sandboxes have on this machine.
    #[must_use]
    pub fn protection() -> Protection {
        Protection::of_this_machine()
    }

    /// Runs code on the sandbox's stack, to its end. Afterwards the temporary heap is empty again. Runs may be nested,
    /// each in a sandbox of its own.
    ///
    /// # Errors
    /// The code panicked: the error is the value of the panic.
    #[inline]
    pub fn run<R>(&mut self, code: impl FnOnce(&Inside<'_>) -> R) -> std::thread::Result<R> {
        // The thread may be older than the stack's key.
        keys::open();
        let room = Room::of(&self.stack);
        let inside = Inside { stack: &self.stack, holder: &self.holder, arena: Arena::new(room) };
        let entered = faults::StackNote::new(&self.stack);
        let top = self.stack.top();
        // SAFETY: the stack is this sandbox's own, mapped and aligned to pages, and not in use: self is borrowed
        // exclusively.
        let ended = unsafe { entry::run(|| code(&inside), None, top) };
        drop(entered);
        let Ended::Done(result) = ended else { unreachable!("only trapped code is abandoned") };
        room.reset();
        result
    }
}

/// The resources of code in a sandbox.
#[derive(Debug)]
pub struct Inside<'a> {
    stack: &'a Stack,
    holder: &'a Holder,
    arena: Arena<'a>,
}

impl<'a> Inside<'a> {
    /// The temporary heap. Its values are dropped without a destructor when the run ends.
    #[must_use]
    pub fn arena(&self) -> Arena<'a> {
        self.arena
    }

    /// Runs code that may fault. If it faults, overflows the stack, or uses more of the processor's time than `budget`,
    /// it ends where it stands, and the rest of the thread continues.
    ///
    /// The time is checked when the machine's clock ticks, every few milliseconds. Time in which the code waits does
    /// not count.
    ///
    /// # Errors
    /// See [`Trapped`].
    ///
    /// # Panics
    /// The thread is in a trap already, or not on this sandbox's stack.
    ///
    /// # Safety
    /// The code may end for good at each of its accesses to memory and calls; with a budget, at each of its
    /// instructions. At each of these points:
    ///
    /// - The code is not in the middle of anything that other code relies on: it holds no lock, and is not in the
    ///   allocator, in the standard streams, or in other code with a state of its own. It allocates in the [`Arena`] or
    ///   before the trap.
    /// - The code has lent nothing that lies on its stack, to no other thread and to no list.
    /// - A value that the code has half written is valid as it is, or is not read afterwards.
    /// - A signal handler of the program does not fault on this stack.
    ///
    /// The trap is meant for a fault of foreign code or of an access that the compiler does not know (assembly). A Rust
    /// reference to memory that does not exist remains undefined behaviour, caught or not.
    pub unsafe fn trap<R: Copy>(
        &self,
        budget: Option<Duration>,
        code: impl FnOnce() -> R + Copy,
    ) -> Result<R, Trapped> {
        assert!(self.stack.holds(here()), "a trap is set on its own sandbox's stack");
        assert!(!faults::is_in_trap(), "a trap is not set in a trap");
        faults::ensure_alternate_stack().map_err(Trapped::Refused)?;
        // The notes of abandoned code about other sandboxes do not hold any more.
        let entered = faults::StackNote::new(self.stack);
        let lease = self.holder.lease().map_err(Trapped::Refused)?;
        let key = lease.as_ref().map(|lease| lease.key);
        let frame = Frame::new(self.stack, key, self.arena.memory());
        let armed = budget.map(|budget| budget::arm(&frame, budget)).transpose();
        let armed = armed.map_err(Trapped::Refused)?;
        // SAFETY: the code stays on the stack that it is on. The caller guarantees that it can be abandoned. The code
        // is Copy, as its result is: neither has a destructor.
        let ended = unsafe { entry::run(code, Some(&frame), 0) };
        drop((armed, entered, lease));
        match ended {
            Ended::Done(Ok(result)) => Ok(result),
            Ended::Done(Err(_)) => Err(Trapped::Panicked),
            Ended::Abandoned => Err(frame.reason()),
        }
    }
}
