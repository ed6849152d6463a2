//! A lock that needs no memory of its own, and that a forked child can open.

use rustix::thread::futex;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, Ordering};

const OPEN: u32 = 0;
const CLOSED: u32 = 1;
/// Closed, and a thread may sleep until it is opened.
const AWAITED: u32 = 2;

/// A value that one thread uses at a time.
pub(crate) struct Lock<T> {
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is only reached while the lock is held, by one thread at a time.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self { state: AtomicU32::new(OPEN), value: UnsafeCell::new(value) }
    }

    /// Calls the closure while this thread alone uses the value.
    pub(crate) fn with<R>(&self, use_it: impl FnOnce(&mut T) -> R) -> R {
        self.close();
        // SAFETY: the lock is held, so no other reference exists. A thread does not enter again while it uses the
        // value: no code that runs under the lock calls an allocator.
        let result = use_it(unsafe { &mut *self.value.get() });
        self.open();
        result
    }

    /// Closes the lock. A thread that forks closes it before the fork.
    pub(crate) fn close(&self) {
        if self.state.compare_exchange(OPEN, CLOSED, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return;
        }
        while self.state.swap(AWAITED, Ordering::Acquire) != OPEN {
            // The thread was woken or interrupted: the loop checks again.
            let _ = futex::wait(&self.state, futex::Flags::PRIVATE, AWAITED, None);
        }
    }

    /// Opens the lock. After a fork both the parent and the child open it.
    pub(crate) fn open(&self) {
        if self.state.swap(OPEN, Ordering::Release) == AWAITED {
            let _ = futex::wake(&self.state, futex::Flags::PRIVATE, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Lock;

    #[test]
    fn one_thread_uses_the_value_at_a_time() {
        static COUNT: Lock<u64> = Lock::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..20_000).for_each(|_| COUNT.with(|count| *count += 1)));
            }
        });
        assert_eq!(COUNT.with(|count| *count), 80_000);
    }
}
