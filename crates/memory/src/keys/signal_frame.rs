//! The register as the kernel has saved it of what a signal interrupted. The thread has it again when the handler returns.

use super::processor::place_in_saved_state;
use libc::ucontext_t;
use std::sync::OnceLock;

/// What the kernel writes where the state is saved in the way that this module knows (`FP_XSTATE_MAGIC1`).
const EXTENDED: u32 = 0x4650_5853;
/// Where the kernel says what is saved.
const DESCRIPTION: usize = 464;
/// Where a word says which parts of the state are not as they are at first.
const PARTS: usize = 512;
/// The register among the parts.
const REGISTER: u64 = 1 << 9;

/// What the kernel says of a saved state.
#[repr(C)]
#[derive(Clone, Copy)]
struct Description {
    magic: u32,
    _whole: u32,
    parts: u64,
    bytes: u32,
}

/// Where the register was saved. `None`: it was not.
fn place(context: &ucontext_t) -> Option<*mut u8> {
    static PLACE: OnceLock<usize> = OnceLock::new();
    let place = *PLACE.get_or_init(place_in_saved_state);
    let state = state(context)?;
    // SAFETY: the first 512 bytes of a saved state are always there, and the description is among them.
    let described = unsafe { state.add(DESCRIPTION) };
    // SAFETY: as above. Any bytes are a valid description.
    let Description { magic, parts, bytes, .. } = unsafe { described.cast::<Description>().read_unaligned() };
    let is_there = place > PARTS && usize::try_from(bytes).is_ok_and(|bytes| place + 4 <= bytes);
    // SAFETY: the kernel says that so many bytes are there.
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

/// The word that says which parts are not as they are at first.
fn parts(context: &ucontext_t) -> Option<*mut u64> {
    // SAFETY: it is there where the register is, which is behind it.
    place(context).and(state(context)).map(|state| unsafe { state.add(PARTS) }.cast())
}

/// What the register was. `None`: the machine does not say.
pub(crate) fn saved(context: &ucontext_t) -> Option<u32> {
    let (place, parts) = (place(context)?, parts(context)?);
    // SAFETY: place() and parts() lead to where the kernel has saved them.
    let parts = unsafe { parts.read_unaligned() };
    // SAFETY: as above.
    let register = unsafe { place.cast::<u32>().read_unaligned() };
    Some(if parts & REGISTER == 0 { 0 } else { register })
}

/// What the register is to be when the handler returns.
pub(crate) fn set_saved(context: &mut ucontext_t, register: u32) {
    let (Some(place), Some(parts)) = (place(context), parts(context)) else { return };
    // SAFETY: place() and parts() lead to where the kernel has saved them, which the handler alone has until it returns.
    let others = unsafe { parts.read_unaligned() };
    // SAFETY: as above.
    unsafe { parts.write_unaligned(others | REGISTER) };
    // SAFETY: as above.
    unsafe { place.cast::<u32>().write_unaligned(register) };
}
