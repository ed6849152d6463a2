//! Whether this process is a copy of another one.
//!
//! A child of `fork` has its parent's mappings and descriptors. If its copies of the parent's values wrote there, they
//! would write to the parent's memory and files.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// How often the ancestors of this process have forked on the way to it, since the first call of [`forks`].
static FORKS: AtomicU32 = AtomicU32::new(0);
static COUNTED: Once = Once::new();

/// Returns a number that differs in every child that was made by `fork` since. The first call installs the counter, and
/// later ones take a nanosecond.
#[must_use]
pub fn forks() -> u32 {
    COUNTED.call_once(|| {
        // SAFETY: the function that the child calls only adds to an atomic, which it may do at any time.
        let refused = unsafe { libc::pthread_atfork(None, None, Some(count)) };
        assert!(refused == 0, "the C library has no memory for one more function");
    });
    FORKS.load(Ordering::Relaxed)
}

extern "C" fn count() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::forks;
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork};

    #[test]
    fn a_child_has_another_number_than_its_parent() {
        let mine = forks();
        // SAFETY: the child only reads an atomic and ends.
        match unsafe { fork() }.expect("a child") {
            ForkResult::Child => {
                let ended = i32::from(forks() == mine);
                // SAFETY: this ends the process at once, and runs no other code of the test program.
                unsafe { libc::_exit(ended) }
            }
            ForkResult::Parent { child } => {
                assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
                assert_eq!(forks(), mine);
            }
        }
    }
}
