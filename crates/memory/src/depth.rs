//! How deep code is on its stack: whoever follows what a peer has linked looks before each step, and ends with an error where the
//! stack's end would end the process.

use std::cell::Cell;
use std::ptr::null_mut;

/// What a stack has left for code that looks where it is and for what that calls until it looks again: an allocator, formatting, a
/// panic with its message.
const RESERVE_BYTES: usize = 128 << 10;
/// The kernel does not let the first thread's stack grow closer than this to what is mapped below it: 256 pages, unless an
/// administrator chose otherwise (`stack_guard_gap`).
const GROWTH_GAP_BYTES: usize = 1 << 20;
/// What a stack is taken to have below the place where it was first asked about, if the machine does not say where it ends.
const UNKNOWN_BYTES: usize = 2 * RESERVE_BYTES;

/// The part of a stack that is not to be used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reserve {
    low: usize,
    bytes: usize,
}

impl Reserve {
    /// All addresses: nobody has asked yet which they are.
    const UNKNOWN: Self = Self { low: 0, bytes: usize::MAX };

    /// That of a stack whose lowest address is `low` and which has so many bytes. Below it are `guard` bytes that nothing may be in.
    pub const fn of_stack(low: usize, bytes: usize, guard: usize) -> Self {
        // Of a small stack half can be used.
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

/// Whether the caller has so little left of its stack that nothing deeper should be called: that of the thread, or of the sandbox that
/// it is in. On a stack that the program has brought itself, it never has.
///
/// Code that asks this at each step downwards does not overflow its stack, if its frames and what it calls between two steps
/// take less than 128 KiB together.
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

/// Says on which stack the thread is from here on. Returns what was said before.
#[inline]
pub(crate) fn replace(reserve: Reserve) -> Reserve {
    RESERVE.replace(reserve)
}

/// Takes back what was said.
#[inline]
pub(crate) fn restore(reserve: Reserve) {
    RESERVE.set(reserve);
}

/// Where on its stack the caller is, within a few bytes.
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
    // The first thread's stack grows as it is used, down to its limit or to the gap above what is mapped below it.
    let gap = GROWTH_GAP_BYTES.min(bytes / 4);
    Reserve::of_stack(low + gap, bytes - gap, gap)
}

/// The lowest address and the length of this thread's stack. `None`: the machine does not say.
pub(crate) fn bounds() -> Option<(usize, usize)> {
    // SAFETY: the structure is numbers and pointers that may be null.
    let mut attributes: libc::pthread_attr_t = unsafe { std::mem::zeroed() };
    // SAFETY: it takes nothing, and names the calling thread.
    let this = unsafe { libc::pthread_self() };
    // SAFETY: it is told about this thread, which lives, into a structure of this function's own.
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

    /// How deep it gets until the stack is used up.
    fn dive(depth: u64) -> u64 {
        let frame = std::hint::black_box([depth; 16]);
        if is_stack_used_up() { frame[3] } else { dive(depth + 1).max(frame[5]) }
    }

    #[test]
    fn a_thread_learns_before_its_stack_ends() {
        for stack_bytes in [32 << 10, 256 << 10, 2 << 20, 16 << 20] {
            let depth = std::thread::Builder::new().stack_size(stack_bytes).spawn(|| {
                let deepest = dive(0);
                // Once more, and with what an allocator, formatting and a panic need.
                assert_eq!(dive(0), deepest);
                assert!(!is_stack_used_up());
                deepest
            });
            let deepest = depth.expect("a thread").join().expect("it comes back");
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
