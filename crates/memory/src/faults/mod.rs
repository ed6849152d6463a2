//! Handling of an access that faults. If the access belongs to a sandbox's trap, the trap's code ends. If a thread's
//! protection keys are closed although it does not run trapped code, they are opened for it. Otherwise the label at the
//! address is printed, if there is one, and the handler that was installed before this one runs.
//!
//! One handler does all of this, so it does not matter which part is needed first.

mod labels;

pub use labels::{FaultLabel, FaultsUnexplained, explain_faults};

use crate::sandbox::{end_trap, let_in};
use crate::signals::Listened;
use libc::{c_int, c_void, siginfo_t, ucontext_t};
use rustix::io::Errno;
use std::sync::OnceLock;

static SEGMENTS: Listened = Listened::to(libc::SIGSEGV);
static BUSES: Listened = Listened::to(libc::SIGBUS);

/// Installs the handler of faults. Only the first call has an effect.
pub(crate) fn listen() -> Result<(), Errno> {
    static BEGUN: OnceLock<Result<(), Errno>> = OnceLock::new();
    *BEGUN.get_or_init(|| SEGMENTS.begin(on_fault).and_then(|()| BUSES.begin(on_fault)))
}

extern "C" fn on_fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // A handler begins with keys closed that it needs.
    crate::keys::open();
    // SAFETY: the kernel passes a valid structure to each handler.
    let said = unsafe { &*info };
    let code = said.si_code;
    // SAFETY: for signals without an address the kernel has written something else there, which is read as a number.
    let address = unsafe { said.si_addr() }.addr();
    // SAFETY: the kernel passes the interrupted state to each handler, which alone has it until it returns.
    let interrupted = unsafe { &mut *context.cast::<ucontext_t>() };
    if end_trap(signal, code, address, interrupted) {
        return;
    }
    if let_in(signal, code, interrupted) {
        return;
    }
    // A signal that was sent by a process is not a fault.
    if code > 0 {
        labels::tell(address);
    }
    let listened = if signal == libc::SIGBUS { &BUSES } else { &SEGMENTS };
    listened.pass_on(info, context);
}

#[cfg(test)]
mod tests;
