//! The register's value in the state that the kernel saves when a signal interrupts a thread. The thread gets the value
//! back when the handler returns.

use super::processor::place_in_saved_state;
use libc::ucontext_t;
use std::sync::OnceLock;

/// Magic number of a state that is saved in the format that this module knows (`FP_XSTATE_MAGIC1`).
const EXTENDED: u32 = 0x4650_5853;
/// Offset of the kernel's description of the saved state.
const DESCRIPTION: usize = 464;
/// Offset of the word that marks the parts of the state that differ from their initial values.
const PARTS: usize = 512;
/// The register's bit among the parts.
const REGISTER: u64 = 1 << 9;

/// The kernel's description of a saved state.
#[repr(C)]
#[derive(Clone, Copy)]
struct Description {
    magic: u32,
    _whole: u32,
    parts: u64,
    bytes: u32,
}

/// The place where the register was saved. `None`: it was not saved.
fn place(context: &ucontext_t) -> Option<*mut u8> {
    static PLACE: OnceLock<usize> = OnceLock::new();
    let place = *PLACE.get_or_init(place_in_saved_state);
    let state = state(context)?;
    // SAFETY: the first 512 bytes of a saved state are always there, and the description is among them.
    let described = unsafe { state.add(DESCRIPTION) };
    // SAFETY: as above. Any bytes are a valid description.
    let Description { magic, parts, bytes, .. } = unsafe { described.cast::<Description>().read_unaligned() };
    let is_there = place > PARTS && usize::try_from(bytes).is_ok_and(|bytes| place + 4 <= bytes);
    // SAFETY: the kernel's description guarantees that this many bytes are there.
    (magic == EXTENDED && parts & REGISTER != 0 && is_there).then(|| unsafe { state.add(place) })
}

#[cfg(target_arch = "x86_64")]
fn state(context: &ucontext_t) -> Option<*mut u8> {
    let state = context.uc_mcontext.fpregs.cast::<u8>();
    (!state.is_null()).then_some(state)
}

#[cfg(not(target_arch = "x86_64"))]
fn state(_: &ucontext_t) -> Option<*mut u8> {
    None
}

/// The word that marks the parts that differ from their initial values.
fn parts(context: &ucontext_t) -> Option<*mut u64> {
    // SAFETY: the word exists if the register does, which lies behind it.
    place(context).and(state(context)).map(|state| unsafe { state.add(PARTS) }.cast())
}

/// Returns the interrupted code's value of the register. `None`: the machine does not report it.
pub(crate) fn saved(context: &ucontext_t) -> Option<u32> {
    let (place, parts) = (place(context)?, parts(context)?);
    // SAFETY: place() and parts() point to the places where the kernel has saved them.
    let parts = unsafe { parts.read_unaligned() };
    // SAFETY: as above.
    let register = unsafe { place.cast::<u32>().read_unaligned() };
    Some(if parts & REGISTER == 0 { 0 } else { register })
}

/// Sets the value that the register gets when the handler returns.
pub(crate) fn set_saved(context: &mut ucontext_t, register: u32) {
    let (Some(place), Some(parts)) = (place(context), parts(context)) else { return };
    // SAFETY: place() and parts() point to the places where the kernel has saved them, which the handler alone has
    // until it returns.
    let others = unsafe { parts.read_unaligned() };
    // SAFETY: as above.
    unsafe { parts.write_unaligned(others | REGISTER) };
    // SAFETY: as above.
    unsafe { place.cast::<u32>().write_unaligned(register) };
}
