//! Ends the code of the trap that a fault belongs to.
//!
//! Code in a signal handler takes no lock and allocates no memory, and reads only thread locals that need no set-up and
//! no destructor.

use super::arena::Room;
use super::stack::{GUARD_BYTES, Stack};
use super::{Cause, Trapped, entry};
use crate::depth::{self, Reserve};
use crate::keys::{self, Key};
use crate::mapping::PAGE_BYTES;
use crate::signals::check;
use crate::{Mapping, MappingError};
use libc::{c_int, c_void, ucontext_t};
use rustix::io::Errno;
use rustix::mm::MprotectFlags;
use std::cell::{Cell, OnceCell};
use std::ptr::{from_ref, null, null_mut};
use std::sync::atomic::{Ordering, compiler_fence};
use std::time::Duration;

/// `si_code` of an access to an address where nothing is mapped, and of an access that is not allowed.
const SEGV_MAPERR: c_int = 1;
const SEGV_ACCERR: c_int = 2;
/// `si_code` of an access to pages whose key is closed.
const SEGV_PKUERR: c_int = 4;
/// Minimum length in bytes of the stack for signal handlers.
const ALTERNATE_BYTES: usize = 64 << 10;
/// Message of a process that ends because a sandbox's stack has overflowed outside a trap.
const OVERFLOWED: &[u8] =
    b"\nportcullis: a sandbox has overflowed its stack outside a trap: ending the process\n";

thread_local! {
    /// The trap that this thread is in.
    static TRAP: Cell<*const Frame> = const { Cell::new(null()) };
    /// Start of the lower guard of the sandbox that this thread is in. Zero: the thread is in no sandbox.
    static GUARD: Cell<usize> = const { Cell::new(0) };
    /// The temporary heap of the sandbox that this thread is in.
    static ROOM: Cell<Option<Room>> = const { Cell::new(None) };
    /// The stack for signals, if this module made it for the thread.
    static ALTERNATE: OnceCell<Option<Alternate>> = const { OnceCell::new() };
}

/// The place to which the thread returns if a trap's code is abandoned.
#[derive(Debug)]
pub(super) struct Frame {
    /// Initial stack pointer of the landing. The entry writes it.
    stack_pointer: Cell<usize>,
    /// Lowest address of the stack, which is that of its guard, and the address behind its last.
    low: usize,
    top: usize,
    /// The key that stays open. `None`: the machine has no keys.
    key: Option<Key>,
    /// The memory that the code allocates from.
    room: Option<Room>,
    reason: Cell<Option<Trapped>>,
    pub(super) deadline: Cell<Option<Deadline>>,
}

/// Time limit of a trap's code.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    pub budget: Duration,
    /// In nanoseconds of the thread's own clock.
    pub until: u64,
    /// The signals that were blocked when the trap was set.
    pub mask: u64,
}

impl Frame {
    pub fn new(stack: &Stack, key: Option<Key>, room: Room) -> Self {
        let (low, top) = (stack.guard(), stack.top());
        Self { low, top, key, room: Some(room), ..Self::none() }
    }

    /// A frame without code.
    pub fn none() -> Self {
        let (stack_pointer, reason, deadline) = (Cell::new(0), Cell::new(None), Cell::new(None));
        Self { stack_pointer, low: 0, top: 0, key: None, room: None, reason, deadline }
    }

    pub fn stack_pointer(&self) -> *mut usize {
        self.stack_pointer.as_ptr()
    }

    /// Allows the code to be abandoned from here on.
    pub fn open(&self) {
        TRAP.set(from_ref(self));
        // For a signal handler too, the code's accesses follow this.
        compiler_fence(Ordering::SeqCst);
        self.key.into_iter().for_each(keys::close_all_but);
    }

    /// Forbids the code to be abandoned from here on.
    pub fn close(&self) {
        if self.key.is_some() {
            keys::open();
        }
        compiler_fence(Ordering::SeqCst);
        TRAP.set(null());
    }

    /// Why the code was abandoned.
    pub fn reason(&self) -> Trapped {
        self.reason.get().unwrap_or(Trapped::Panicked)
    }

    /// Whether a signal has interrupted this trap's code, and not a signal handler or another sandbox.
    pub(super) fn is_interrupted(&self, context: &ucontext_t) -> bool {
        (self.low..self.top).contains(&entry::stack_pointer(context)) && self.has_closed(context)
    }

    /// Whether the keys have the state that they have for this trap's code. A signal handler begins with another one.
    fn has_closed(&self, context: &ucontext_t) -> bool {
        self.key.zip(keys::saved(context)).is_none_or(|(key, saved)| keys::is_closed_all_but(key, saved))
    }

    /// Ends the trap's code as soon as the signal handler returns.
    pub(super) fn abandon(&self, context: &mut ucontext_t, reason: Trapped) {
        TRAP.set(null());
        self.reason.set(Some(reason));
        open_interrupted(context);
        entry::land(context, self.stack_pointer.get());
    }

    fn why(&self, signal: c_int, code: c_int, address: usize) -> Trapped {
        let cause = match (signal, code) {
            (libc::SIGBUS, _) => Cause::Gone,
            (_, SEGV_MAPERR) => Cause::Unmapped,
            (_, SEGV_ACCERR) => Cause::Denied,
            (_, SEGV_PKUERR) => Cause::Withheld,
            _ => Cause::Unknown,
        };
        if cause == Cause::Denied && (self.low..self.low + GUARD_BYTES).contains(&address) {
            return Trapped::StackOverflow;
        }
        if cause == Cause::Denied && self.room.is_some_and(|room| room.end().addr().get() == address) {
            return Trapped::ArenaFull;
        }
        Trapped::Fault { address: (cause != Cause::Unknown).then_some(address as u64), cause }
    }
}

/// Opens the keys for the code that a signal has interrupted. Returns whether one was closed.
fn open_interrupted(context: &mut ucontext_t) -> bool {
    let Some(saved) = keys::saved(context) else { return false };
    let opened = keys::opened(saved);
    if opened != saved {
        keys::set_saved(context, opened);
    }
    opened != saved
}

/// Opens the keys for a thread that cannot reach memory because the thread is older than the key, or is in a signal
/// handler. Returns whether that was the cause of the fault: then the access is repeated.
pub(crate) fn let_in(signal: c_int, code: c_int, interrupted: &mut ucontext_t) -> bool {
    signal == libc::SIGSEGV && code == SEGV_PKUERR && open_interrupted(interrupted)
}

/// The trap that this thread is in.
pub(super) fn trap<'a>() -> Option<&'a Frame> {
    // SAFETY: while TRAP is set, the thread is within entry::run, whose frame lives on the stack of trap(). The caller
    // is a signal handler, which ends before that code continues, or only checks whether there is a trap.
    unsafe { TRAP.get().as_ref() }
}

pub(super) fn is_in_trap() -> bool {
    trap().is_some()
}

/// Source of the thread's allocations.
pub(super) enum Allocating {
    /// From the process's heap.
    OnTheHeap,
    /// From the temporary heap of the trap that the thread is in.
    InATrap(Room),
}

/// The present source of this thread's allocations. The allocations of a panic must outlive the trap, so they come from
/// the process's heap.
pub(super) fn allocating() -> Allocating {
    let room = trap().filter(|_| !std::thread::panicking()).and_then(|frame| frame.room);
    room.map_or(Allocating::OnTheHeap, Allocating::InATrap)
}

/// Whether an address is in the temporary heap of the sandbox that the thread is in.
pub(super) fn is_temporary(address: usize) -> bool {
    ROOM.get().is_some_and(|room| room.holds(address))
}

/// Ends the trap that the thread is in if its code cannot reach an address.
pub(super) fn touch_in_trap(address: *mut u8) {
    if let Allocating::InATrap(_) = allocating() {
        entry::touch(address);
    }
}

/// Ends the trap that the thread is in, which has no room left in its temporary heap.
pub(super) fn end_for_want_of_room() {
    if let Allocating::InATrap(room) = allocating() {
        entry::touch(room.end().as_ptr());
    }
}

/// Records which sandbox's stack the thread is on, until this is dropped.
#[derive(Debug)]
pub(super) struct StackNote {
    former: (usize, Reserve, Option<Room>),
}

impl StackNote {
    #[inline]
    pub fn new(stack: &Stack) -> Self {
        let room = ROOM.replace(Some(Room::of(stack)));
        Self { former: (GUARD.replace(stack.guard()), depth::replace(stack.reserve()), room) }
    }
}

impl Drop for StackNote {
    #[inline]
    fn drop(&mut self) {
        let (guard, reserve, room) = self.former;
        ROOM.set(room);
        GUARD.set(guard);
        depth::restore(reserve);
    }
}

/// Ends the trap that a fault belongs to. Returns whether there was one. If a sandbox's stack has overflowed outside a
/// trap, it prints a message.
pub(crate) fn end_trap(signal: c_int, code: c_int, address: usize, interrupted: &mut ucontext_t) -> bool {
    // A signal that another process or thread sends is not a fault. A panic must not be abandoned half-way either: the
    // thread would count it for ever.
    let frame = trap().filter(|frame| code > 0 && frame.is_interrupted(interrupted));
    if let Some(frame) = frame.filter(|_| !std::thread::panicking()) {
        frame.abandon(interrupted, frame.why(signal, code, address));
        return true;
    }
    let guard = GUARD.get();
    if guard != 0 && (guard..guard + GUARD_BYTES).contains(&address) {
        // SAFETY: the arguments are a descriptor, and bytes that live for ever.
        unsafe { libc::write(libc::STDERR_FILENO, OVERFLOWED.as_ptr().cast(), OVERFLOWED.len()) };
    }
    false
}

/// A stack for one thread's signal handlers.
#[derive(Debug)]
struct Alternate {
    memory: Mapping,
}

impl Alternate {
    fn new() -> Result<Self, MappingError> {
        let guard = PAGE_BYTES;
        let memory = Mapping::reserved(None, ALTERNATE_BYTES as u64 + guard)?;
        // SAFETY: a page of a fresh mapping that is not in use yet.
        unsafe { rustix::mm::mprotect(memory.start.as_ptr().cast(), 4096, MprotectFlags::empty()) }
            .map_err(MappingError::to("guard", guard))?;
        Ok(Self { memory })
    }

    fn set(flags: c_int, stack: *mut c_void) -> Result<(), Errno> {
        let wanted = libc::stack_t { ss_sp: stack, ss_flags: flags, ss_size: ALTERNATE_BYTES };
        // SAFETY: the stack is mapped for as long as it is set: the drop of an Alternate unsets it first.
        check(unsafe { libc::sigaltstack(&raw const wanted, null_mut()) })
    }
}

impl Drop for Alternate {
    fn drop(&mut self) {
        // The thread ends, and std has already freed the stack that the thread had before.
        if Self::set(libc::SS_DISABLE, null_mut()).is_err() {
            // Memory that signals are handled on must stay mapped.
            std::mem::forget(self.memory.clone());
        }
    }
}

/// Ensures that the thread handles signals on a stack that is large enough. Only a thread's first call has an effect.
pub(super) fn ensure_alternate_stack() -> Result<(), Errno> {
    let ensured = ALTERNATE.try_with(|alternate| {
        if alternate.get().is_none() {
            let made = make_alternate()?;
            let _ = alternate.set(made);
        }
        Ok(())
    });
    // A thread whose locals were destroyed is about to end.
    ensured.unwrap_or(Err(Errno::NOTSUP))
}

fn make_alternate() -> Result<Option<Alternate>, Errno> {
    let mut present = libc::stack_t { ss_sp: null_mut(), ss_flags: 0, ss_size: 0 };
    // SAFETY: the call only reads, into a structure that is this function's own.
    check(unsafe { libc::sigaltstack(null(), &raw mut present) })?;
    if present.ss_flags & libc::SS_DISABLE == 0 && present.ss_size >= ALTERNATE_BYTES {
        return Ok(None);
    }
    let made = Alternate::new().map_err(|_| Errno::NOMEM)?;
    let start = made.memory.pointer(PAGE_BYTES, ALTERNATE_BYTES as u64, 1);
    Alternate::set(0, start.cast())?;
    Ok(Some(made))
}
