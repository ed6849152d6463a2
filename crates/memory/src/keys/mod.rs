//! Protection keys of the processor (RPCool §5.2). Pages have a key, and a thread that has closed the key does not reach them. To close
//! and to open keys takes a thread nanoseconds.
//!
//! All memory has key 0 unless something else is said. One key is for memory that is *withheld* from trapped code, and each
//! sandbox that is in use has one. Only trapped code has them closed. Key 0 stays open there too: the thread's locals are under it, and
//! so is what the C library and the kernel write for each thread.
//!
//! A thread has a key closed that was allocated when the thread was there already, and so has each signal handler when it begins.
//! Whoever is not trapped code and touches such memory is let in by the handler of faults, and the access is made again.

mod processor;
pub(crate) mod segments;
mod signal_frame;

pub(crate) use processor::has_keys as are_there;
pub(crate) use signal_frame::{saved, set_saved};

use crate::faults;
use libc::c_int;
use rustix::io::Errno;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// What pages may be accessed for that get another key.
pub(crate) const READ_WRITE: c_int = libc::PROT_READ | libc::PROT_WRITE;

/// The bits of all keys in use here, as the processor's register has them. Zero: there are none.
static OURS: AtomicU32 = AtomicU32::new(0);

/// A key of this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Key(u32);

impl Key {
    /// A key that nobody has. `None`: there is none.
    pub fn allocate() -> Option<Self> {
        // SAFETY: a system call without pointers. The key is open for this thread.
        let number = unsafe { libc::syscall(libc::SYS_pkey_alloc, 0, 0) };
        let key = Self(u32::try_from(number).ok().filter(|number| (1..16).contains(number))?);
        OURS.fetch_or(key.bits(), Ordering::SeqCst);
        Some(key)
    }

    /// What the processor calls it.
    pub fn number(self) -> u32 {
        self.0
    }

    /// The key that the processor calls so.
    pub fn numbered(number: u32) -> Self {
        Self(number)
    }

    /// Its bits in the register: no access, and no writes.
    fn bits(self) -> u32 {
        0b11 << (2 * self.0)
    }

    /// Gives pages the key.
    ///
    /// # Safety
    /// They are whole pages that are mapped and may be accessed as `access` says.
    pub unsafe fn give_to(self, start: usize, bytes: usize, access: c_int) -> Result<(), Errno> {
        // SAFETY: the caller says that the pages are there. What may be done to them stays as it is but for the key.
        unsafe { set_key(start, bytes, access, self.0) }
    }
}

/// Gives pages a key.
///
/// # Safety
/// See [`Key::give_to`].
unsafe fn set_key(start: usize, bytes: usize, access: c_int, key: u32) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let returned = unsafe { libc::syscall(libc::SYS_pkey_mprotect, start, bytes, access, key) };
    crate::signals::check(if returned == 0 { 0 } else { -1 })
}

/// Gives pages back to everybody.
///
/// # Safety
/// See [`Key::give_to`].
pub(crate) unsafe fn release(start: usize, bytes: usize, access: c_int) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe { set_key(start, bytes, access, 0) }
}

/// The key of withheld memory. `None`: this machine has no keys, or another part of the program has taken them all.
pub(crate) fn withheld() -> Option<Key> {
    static KEY: OnceLock<Option<Key>> = OnceLock::new();
    *KEY.get_or_init(|| {
        // Whoever finds a key closed that it may open has to be let in.
        let can_be_used = processor::has_keys() && faults::listen().is_ok();
        let key = can_be_used.then(Key::allocate).flatten()?;
        segments::begin(key).ok().map(|()| key)
    })
}

/// Withholds pages from trapped code. Where there are no keys it does nothing.
///
/// # Safety
/// See [`Key::give_to`].
pub(crate) unsafe fn withhold(start: usize, bytes: usize, access: c_int) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    withheld().map_or(Ok(()), |key| unsafe { key.give_to(start, bytes, access) })
}

/// Opens the keys for this thread.
#[inline]
pub(crate) fn open() {
    let ours = OURS.load(Ordering::Relaxed);
    if ours != 0 {
        let register = processor::read_register();
        if register & ours != 0 {
            processor::write_register(register & !ours);
        }
    }
}

/// Closes them for this thread, all but one.
#[inline]
pub(crate) fn close_all_but(key: Key) {
    let closed = OURS.load(Ordering::Relaxed) & !key.bits();
    processor::write_register(processor::read_register() & !key.bits() | closed);
}

/// Whether only one key is open in a value of the register. So it is for trapped code, and not for signal handlers.
pub(crate) fn is_closed_all_but(key: Key, register: u32) -> bool {
    register & key.bits() == 0 && register & OURS.load(Ordering::Relaxed) != 0
}

/// The value with all keys open.
pub(crate) fn opened(register: u32) -> u32 {
    register & !OURS.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests;
