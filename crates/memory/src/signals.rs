//! Signals that this process shares with other handlers: a handler takes the signals that it knows, and passes all
//! others on.
//!
//! This module does not know what the signals are for.

use libc::{c_int, c_void, siginfo_t};
use rustix::io::Errno;
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

/// A signal with a handler of this crate, and the handler that was installed before.
pub(crate) struct Listened {
    signal: c_int,
    former: OnceLock<libc::sigaction>,
}

pub(crate) type Handler = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);

impl Listened {
    pub const fn to(signal: c_int) -> Self {
        Self { signal, former: OnceLock::new() }
    }

    /// Installs a handler for the signal, once for all.
    pub fn begin(&self, handler: Handler) -> Result<(), Errno> {
        // SAFETY: all fields of the structure are numbers or an optional function.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: the call only reads, into a structure that is this function's own.
        check(unsafe { libc::sigaction(self.signal, null(), &raw mut action) })?;
        // Before the handler can be called, it needs the former handler, to which it passes signals on.
        let _ = self.former.set(action);
        action.sa_sigaction = (handler as *const ()).expose_provenance();
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGVTALRM] {
            // SAFETY: a set that is this function's own, and a valid signal.
            unsafe { libc::sigaddset(&raw mut action.sa_mask, signal) };
        }
        // SAFETY: the handler has the signature that SA_SIGINFO requires, and does only what signal handlers may.
        check(unsafe { libc::sigaction(self.signal, &raw const action, null_mut()) })
    }

    /// Passes a signal on to the handler that was installed before.
    pub fn pass_on(&self, info: *mut siginfo_t, context: *mut c_void) {
        // SAFETY: the kernel passes a valid structure to each handler.
        let is_fault = unsafe { (*info).si_code } > 0;
        let Some(former) = self.former.get() else { return };
        match former.sa_sigaction {
            libc::SIG_IGN if !is_fault => {}
            libc::SIG_DFL | libc::SIG_IGN => self.end_process(is_fault),
            handler if former.sa_flags & libc::SA_SIGINFO != 0 => {
                // SAFETY: the code that set the handler with this flag guaranteed this signature.
                let handler = unsafe { std::mem::transmute::<usize, Handler>(handler) };
                handler(self.signal, info, context);
            }
            handler => {
                // SAFETY: the code that set the handler without the flag guaranteed this signature.
                let handler = unsafe { std::mem::transmute::<usize, extern "C" fn(c_int)>(handler) };
                handler(self.signal);
            }
        }
    }

    /// Makes the process end by the signal when the handler returns: the access is repeated, or the signal is.
    fn end_process(&self, is_fault: bool) {
        // SAFETY: SIG_DFL is an action that every signal has.
        unsafe { libc::signal(self.signal, libc::SIG_DFL) };
        if !is_fault {
            // SAFETY: a signal to this thread, which stays blocked until the handler returns.
            unsafe { libc::raise(self.signal) };
        }
    }
}

/// Converts the result of a libc function that returns zero, or sets `errno`.
pub(crate) fn check(returned: c_int) -> Result<(), Errno> {
    if returned == 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL))
}
