//! The copy on x86-64: its string instruction.

/// Copies bytes between places that other threads and processes may write at the same time.
///
/// # Safety
/// Both spans lie inside live memory.
#[inline]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: the caller guarantees that both spans lie inside live memory. The processor makes the copy, not the
    // language: a byte that a peer changes meanwhile arrives old or new. The direction flag is clear at every
    // function entry (System V ABI).
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") length => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags)
        );
    }
}
