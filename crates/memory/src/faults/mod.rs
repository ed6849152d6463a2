//! What happens when an access faults: the trap of a sandbox that it belongs to ends its code; or a thread is let in whose protection
//! keys are closed though it is not trapped code; or what lies there is told, if it has a
//! label, and whoever heard of faults before this process did so here has its turn.
//!
//! There is one handler for all of it, so it does not matter which of them was wanted first.

mod labels;

pub use labels::{FaultLabel, FaultsUnexplained, explain_faults};

use crate::sandbox::{end_trap, let_in};
use crate::signals::Listened;
use libc::{c_int, c_void, siginfo_t, ucontext_t};
use rustix::io::Errno;
use std::sync::OnceLock;

static SEGMENTS: Listened = Listened::to(libc::SIGSEGV);
static BUSES: Listened = Listened::to(libc::SIGBUS);

/// Has the process hear of faults. Only the first call does something.
pub(crate) fn listen() -> Result<(), Errno> {
    static BEGUN: OnceLock<Result<(), Errno>> = OnceLock::new();
    *BEGUN.get_or_init(|| SEGMENTS.begin(on_fault).and_then(|()| BUSES.begin(on_fault)))
}

extern "C" fn on_fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // A handler begins with keys closed that it needs.
    crate::keys::open();
    // SAFETY: the kernel passes a good structure to each handler.
    let said = unsafe { &*info };
    let code = said.si_code;
    // SAFETY: for signals without an address the kernel has written something else there, which is read as a number.
    let address = unsafe { said.si_addr() }.addr();
    // SAFETY: the kernel passes what was interrupted to each handler, which alone has it until it returns.
    let interrupted = unsafe { &mut *context.cast::<ucontext_t>() };
    if end_trap(signal, code, address, interrupted) {
        return;
    }
    if let_in(signal, code, interrupted) {
        return;
    }
    // What somebody sends is no fault.
    if code > 0 {
        labels::tell(address);
    }
    let listened = if signal == libc::SIGBUS { &BUSES } else { &SEGMENTS };
    listened.pass_on(info, context);
}

#[cfg(test)]
mod tests;
