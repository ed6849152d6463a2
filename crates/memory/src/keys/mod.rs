//! Protection keys of the processor (RPCool §5.2). Each page has a key, and a thread that has closed the key cannot
//! reach the page. A thread closes and opens keys in nanoseconds.
//!
//! Memory has key 0 by default. One key is for memory that is *withheld* from trapped code, and each sandbox in use has
//! a key of its own. Only trapped code has those keys closed. Key 0 stays open there too: it covers the thread's
//! locals, and the data that the C library and the kernel write for each thread.
//!
//! A thread that existed before a key was allocated has that key closed, and so has each signal handler when it begins.
//! If code that is not trapped touches such memory, the handler of faults opens the keys for it, and the access is
//! repeated.

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

/// Access rights of pages that get another key.
pub(crate) const READ_WRITE: c_int = libc::PROT_READ | libc::PROT_WRITE;

/// The bits of all keys in use here, as in the processor's register. Zero: no keys are in use.
static OURS: AtomicU32 = AtomicU32::new(0);

/// A key of this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Key(u32);

impl Key {
    /// Allocates a key that is not in use. Returns `None` if the process can have no more keys.
    pub fn allocate() -> Option<Self> {
        // SAFETY: a system call without pointers. The key is open for this thread.
        let number = unsafe { libc::syscall(libc::SYS_pkey_alloc, 0, 0) };
        let key = Self(u32::try_from(number).ok().filter(|number| (1..16).contains(number))?);
        OURS.fetch_or(key.bits(), Ordering::SeqCst);
        Some(key)
    }

    /// The processor's number of the key.
    pub fn number(self) -> u32 {
        self.0
    }

    /// The key with a number of the processor.
    pub fn numbered(number: u32) -> Self {
        Self(number)
    }

    /// The key's bits in the register: no access, and no writes.
    fn bits(self) -> u32 {
        0b11 << (2 * self.0)
    }

    /// Assigns the key to pages.
    ///
    /// # Safety
    /// The pages are whole pages that are mapped with the access rights `access`.
    pub unsafe fn give_to(self, start: usize, bytes: usize, access: c_int) -> Result<(), Errno> {
        // SAFETY: the caller guarantees that the pages are mapped. Their access rights stay as they are but for the
        // key.
        unsafe { set_key(start, bytes, access, self.0) }
    }
}

/// Assigns a key to pages.
///
/// # Safety
/// See [`Key::give_to`].
unsafe fn set_key(start: usize, bytes: usize, access: c_int, key: u32) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let returned = unsafe { libc::syscall(libc::SYS_pkey_mprotect, start, bytes, access, key) };
    crate::signals::check(if returned == 0 { 0 } else { -1 })
}

/// Assigns key 0 to pages, which makes them accessible to all code.
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
        // Code that finds a key closed that it may open depends on the handler of faults.
        let can_be_used = processor::has_keys() && faults::listen().is_ok();
        let key = can_be_used.then(Key::allocate).flatten()?;
        segments::begin(key).ok().map(|()| key)
    })
}

/// Withholds pages from trapped code. Without keys it does nothing.
///
/// # Safety
/// See [`Key::give_to`].
pub(crate) unsafe fn withhold(start: usize, bytes: usize, access: c_int) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    withheld().map_or(Ok(()), |key| unsafe { key.give_to(start, bytes, access) })
}

/// Opens all keys in use here for this thread.
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

/// Closes all keys in use here for this thread, except one.
#[inline]
pub(crate) fn close_all_but(key: Key) {
    let closed = OURS.load(Ordering::Relaxed) & !key.bits();
    processor::write_register(processor::read_register() & !key.bits() | closed);
}

/// Whether only `key` is open in a value of the register. This holds for trapped code, and not for signal handlers.
pub(crate) fn is_closed_all_but(key: Key, register: u32) -> bool {
    register & key.bits() == 0 && register & OURS.load(Ordering::Relaxed) != 0
}

/// The value with all keys in use here open.
pub(crate) fn opened(register: u32) -> u32 {
    register & !OURS.load(Ordering::Relaxed)
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests;
