//! The copy on aarch64: pairs of vector registers.
//!
//! Normal memory may be read and written at any address. A store across two cache lines costs more than one within a
//! line, so a long copy aligns its target.

/// Bytes that one turn moves, in four vector registers.
const TURN_BYTES: usize = 64;
/// Bytes of a vector register.
const VECTOR_BYTES: usize = 16;
/// Length from which a copy aligns its target.
const ALIGNED_BYTES: usize = 256;

/// Copies bytes between places that other threads and processes may write at the same time.
///
/// # Safety
/// Both spans lie inside live memory.
#[inline]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, length: usize) {
    let head = if length < ALIGNED_BYTES { 0 } else { to.addr().wrapping_neg() % VECTOR_BYTES };
    let turns = (length - head) / TURN_BYTES;
    let rest = head + turns * TURN_BYTES;
    if head > 0 {
        // SAFETY: the first bytes of both spans, which the caller guarantees; fewer than a vector has.
        unsafe { few(from, to, head) };
    }
    if turns > 0 {
        // SAFETY: `head` is within both spans: `length` is larger than it.
        let source = unsafe { from.add(head) };
        // SAFETY: as above.
        let target = unsafe { to.add(head) };
        // SAFETY: this many whole turns lie in both spans after the head.
        unsafe { many(source, target, turns) };
    }
    // SAFETY: head and turns are not longer than the spans.
    let source = unsafe { from.add(rest) };
    // SAFETY: as above.
    let target = unsafe { to.add(rest) };
    // SAFETY: the last bytes of both spans, fewer than a turn has.
    unsafe { few(source, target, length - rest) };
}

/// Copies `turns` turns, at least one.
///
/// # Safety
/// Both spans lie inside live memory.
#[inline]
unsafe fn many(from: *const u8, to: *mut u8, turns: usize) {
    // SAFETY: the caller guarantees that both spans lie inside live memory. The processor makes the copy, not the
    // language: each byte is read once and written once, and one that a peer changes meanwhile arrives old or new.
    unsafe {
        std::arch::asm!(
            "2:",
            "ldp {a:q}, {b:q}, [{from}]",
            "ldp {c:q}, {d:q}, [{from}, #32]",
            "add {from}, {from}, #64",
            "subs {turns}, {turns}, #1",
            "stp {a:q}, {b:q}, [{to}]",
            "stp {c:q}, {d:q}, [{to}, #32]",
            "add {to}, {to}, #64",
            "b.ne 2b",
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            turns = inout(reg) turns => _,
            a = out(vreg) _,
            b = out(vreg) _,
            c = out(vreg) _,
            d = out(vreg) _,
            options(nostack)
        );
    }
}

/// Copies fewer bytes than a turn has: a piece for each bit of their number that is set.
///
/// # Safety
/// Both spans lie inside live memory.
#[inline]
unsafe fn few(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: the caller guarantees that both spans lie inside live memory. The lengths of the pieces add up to
    // `length`, so that each byte is read once and written once. The processor makes the copy, not the language.
    unsafe {
        std::arch::asm!(
            "tbz {length}, #5, 3f",
            "ldp {a:q}, {b:q}, [{from}], #32",
            "stp {a:q}, {b:q}, [{to}], #32",
            "3:",
            "tbz {length}, #4, 4f",
            "ldr {a:q}, [{from}], #16",
            "str {a:q}, [{to}], #16",
            "4:",
            "tbz {length}, #3, 5f",
            "ldr {part}, [{from}], #8",
            "str {part}, [{to}], #8",
            "5:",
            "tbz {length}, #2, 6f",
            "ldr {part:w}, [{from}], #4",
            "str {part:w}, [{to}], #4",
            "6:",
            "tbz {length}, #1, 7f",
            "ldrh {part:w}, [{from}], #2",
            "strh {part:w}, [{to}], #2",
            "7:",
            "tbz {length}, #0, 8f",
            "ldrb {part:w}, [{from}]",
            "strb {part:w}, [{to}]",
            "8:",
            length = in(reg) length,
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            part = out(reg) _,
            a = out(vreg) _,
            b = out(vreg) _,
            options(nostack, preserves_flags)
        );
    }
}
