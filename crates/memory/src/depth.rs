//! Depth of code on its stack. Code that follows links made by a peer checks the depth before each step, and returns an
//! error instead of overflowing the stack, which would end the process.

use std::cell::Cell;
use std::ptr::null_mut;

/// Stack that is kept for code between two checks, and for all that it calls: an allocator, formatting, a panic with
/// its message.
const RESERVE_BYTES: usize = 128 << 10;
/// The kernel does not let the first thread's stack grow closer than this to what is mapped below it: 256 pages, unless an
/// administrator chose otherwise (`stack_guard_gap`).
const GROWTH_GAP_BYTES: usize = 1 << 20;
/// Bytes that a stack is assumed to have below the place of the first check, if the machine does not report its end.
const UNKNOWN_BYTES: usize = 2 * RESERVE_BYTES;

/// The part of a stack that must not be used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reserve {
    low: usize,
    bytes: usize,
}

impl Reserve {
    /// All addresses: this thread has not looked up its stack yet.
    const UNKNOWN: Self = Self { low: 0, bytes: usize::MAX };

    /// The reserve of a stack whose lowest address is `low` and whose length is `bytes`. Below it are `guard` bytes
    /// that must stay unused.
    pub const fn of_stack(low: usize, bytes: usize, guard: usize) -> Self {
        // At most half of a small stack is kept.
        let kept = if RESERVE_BYTES < bytes / 2 { RESERVE_BYTES } else { bytes / 2 };
        Self { low: low - guard, bytes: guard + kept }
    }

    fn holds(self, address: usize) -> bool {
        address.wrapping_sub(self.low) < self.bytes
    }
}

thread_local! {
    static RESERVE: Cell<Reserve> = const { Cell::new(Reserve::UNKNOWN) };
}

/// Whether the caller has so little stack left that it should call nothing deeper. The stack is that of the thread, or
/// of the sandbox that the thread is in. On a stack that the program has brought itself, the answer is always no.
///
/// Code that checks this at each step downwards does not overflow its stack, if its frames and its calls between two
/// steps take less than 128 KiB together.
#[inline]
#[must_use]
pub fn is_stack_used_up() -> bool {
    let here = here();
    RESERVE.get().holds(here) && is_used_up(here)
}

#[cold]
fn is_used_up(here: usize) -> bool {
    if RESERVE.get().bytes == usize::MAX {
        RESERVE.set(of_this_thread(here));
    }
    RESERVE.get().holds(here)
}

/// Records the stack that the thread is on from now on. Returns the previous record.
#[inline]
pub(crate) fn replace(reserve: Reserve) -> Reserve {
    RESERVE.replace(reserve)
}

/// Restores the previous record.
#[inline]
pub(crate) fn restore(reserve: Reserve) {
    RESERVE.set(reserve);
}

/// The caller's place on its stack, within a few bytes.
#[inline(always)]
pub(crate) fn here() -> usize {
    let mark = 0_u8;
    std::ptr::from_ref(std::hint::black_box(&mark)).addr()
}

fn of_this_thread(here: usize) -> Reserve {
    let Some((low, bytes)) = bounds().filter(|&(low, bytes)| here.wrapping_sub(low) < bytes) else {
        return Reserve { low: here.saturating_sub(UNKNOWN_BYTES), bytes: RESERVE_BYTES };
    };
    if rustix::thread::gettid() != rustix::process::getpid() {
        return Reserve::of_stack(low, bytes, 0);
    }
    // The first thread's stack grows as it is used, down to its limit or to the gap above the next mapping below it.
    let gap = GROWTH_GAP_BYTES.min(bytes / 4);
    Reserve::of_stack(low + gap, bytes - gap, gap)
}

/// The lowest address and the length of this thread's stack. `None`: the machine does not report them.
pub(crate) fn bounds() -> Option<(usize, usize)> {
    // SAFETY: the structure is numbers and pointers that may be null.
    let mut attributes: libc::pthread_attr_t = unsafe { std::mem::zeroed() };
    // SAFETY: the function takes no arguments, and names the calling thread.
    let this = unsafe { libc::pthread_self() };
    // SAFETY: the call describes this thread, which lives, in a structure of this function's own.
    if unsafe { libc::pthread_getattr_np(this, &raw mut attributes) } != 0 {
        return None;
    }
    let (mut low, mut bytes) = (null_mut(), 0);
    // SAFETY: the structure was filled above, and both places are this function's own.
    let told = unsafe { libc::pthread_attr_getstack(&raw const attributes, &raw mut low, &raw mut bytes) };
    // SAFETY: the structure was filled above, and is not used any more.
    unsafe { libc::pthread_attr_destroy(&raw mut attributes) };
    (told == 0 && bytes > 0).then_some((low.addr(), bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Depth at which the stack is used up.
    fn dive(depth: u64) -> u64 {
        let frame = std::hint::black_box([depth; 16]);
        if is_stack_used_up() { frame[3] } else { dive(depth + 1).max(frame[5]) }
    }

    #[test]
    fn a_thread_learns_before_its_stack_ends() {
        for stack_bytes in [32 << 10, 256 << 10, 2 << 20, 16 << 20] {
            let depth = std::thread::Builder::new().stack_size(stack_bytes).spawn(|| {
                let deepest = dive(0);
                // The stack suffices for a second dive, and for an allocator, formatting and a panic.
                assert_eq!(dive(0), deepest);
                assert!(!is_stack_used_up());
                deepest
            });
            let deepest = depth.expect("a thread").join().expect("it comes back");
            // The smallest stack of a thread differs from one kind of processor to the other.
            let stack_bytes = stack_bytes.max(libc::PTHREAD_STACK_MIN);
            assert!(deepest > stack_bytes as u64 / 4096, "{deepest} in {stack_bytes}");
            assert!(deepest < stack_bytes as u64 / 128, "{deepest} in {stack_bytes}");
        }
    }

    #[test]
    fn what_is_left_is_enough_for_a_panic() {
        fn panic_when_deep(depth: u64) -> u64 {
            assert!(!is_stack_used_up(), "{}", format!("at {depth}"));
            panic_when_deep(std::hint::black_box(depth) + 1) + depth
        }
        let panicked = std::thread::spawn(|| panic_when_deep(0)).join().expect_err("it panics");
        assert!(panicked.downcast::<String>().expect("a message").starts_with("at "));
    }
}
