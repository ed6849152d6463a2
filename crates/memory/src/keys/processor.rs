//! The register of the keys that a thread has closed (PKRU): two bits for each key.

/// Whether the operating system lets programs use the processor's keys (CPUID 7.ECX.OSPKE).
#[cfg(target_arch = "x86_64")]
pub(crate) fn has_keys() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    const OSPKE: u32 = 1 << 4;
    __cpuid(0).eax >= 7 && __cpuid_count(7, 0).ecx & OSPKE != 0
}

/// Returns this thread's value of the register.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) fn read_register() -> u32 {
    let register: u32;
    // SAFETY: the instruction reads a register. The register exists, because the caller has a key.
    unsafe {
        core::arch::asm!("rdpkru", in("ecx") 0, out("eax") register, out("edx") _, options(nomem, nostack));
    };
    register
}

/// Sets the register for this thread. No access to memory is moved across this.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) fn write_register(register: u32) {
    // SAFETY: the instruction writes a register that exists. An access to memory that the thread cannot reach
    // afterwards faults.
    unsafe { core::arch::asm!("wrpkru", in("ecx") 0, in("edx") 0, in("eax") register, options(nostack)) };
}

/// Offset of the register in the state that the kernel saves of a thread when a signal interrupts it (CPUID 0xD.9).
#[cfg(target_arch = "x86_64")]
pub(super) fn place_in_saved_state() -> usize {
    usize::try_from(std::arch::x86_64::__cpuid_count(0xd, 9).ebx).unwrap_or(0)
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn has_keys() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn read_register() -> u32 {
    0
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn write_register(_: u32) {}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn place_in_saved_state() -> usize {
    0
}
