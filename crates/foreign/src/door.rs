//! A value that is used by one thread at a time, until it is closed, in the process that made it.

use crate::Misuse;
use portcullis_memory::forks;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};

/// Lets one thread in at a time. Nobody waits: who comes while another is inside gets an error.
///
/// In a child of `fork` nobody is let in, and nothing of the value is dropped: the value's mappings and connections are the
/// parent's.
#[derive(Debug)]
pub struct Door<T> {
    what: &'static str,
    /// The process that opened it: what [`forks`] said then.
    opened_in: AtomicU32,
    /// `None`: it is closed.
    inside: ManuallyDrop<Mutex<Option<T>>>,
}

/// The way in to the value of a [`Door`], until this is dropped.
#[derive(Debug)]
pub struct Entered<'a, T>(MutexGuard<'a, Option<T>>);

impl<T> Door<T> {
    /// A door to a value. Errors call it `what`.
    pub fn new(what: &'static str, value: T) -> Self {
        Self::over(what, Some(value))
    }

    /// A door that is closed, until [`Door::open`].
    #[must_use]
    pub fn closed(what: &'static str) -> Self {
        Self::over(what, None)
    }

    fn over(what: &'static str, value: Option<T>) -> Self {
        Self { what, opened_in: AtomicU32::new(forks()), inside: ManuallyDrop::new(Mutex::new(value)) }
    }

    /// Opens a closed door to another value. A door that is open, or whose value a panic has left behind, stays as it is, and
    /// the value comes back.
    ///
    /// # Errors
    /// The value.
    pub fn open(&self, value: T) -> Result<(), T> {
        match self.inside.try_lock() {
            Ok(mut inside) if inside.is_none() => {
                self.opened_in.store(forks(), Ordering::Relaxed);
                *inside = Some(value);
                Ok(())
            }
            _ => Err(value),
        }
    }

    /// Whether the process is the one that made the value.
    fn is_at_home(&self) -> bool {
        forks() == self.opened_in.load(Ordering::Relaxed)
    }

    fn lock(&self) -> Result<MutexGuard<'_, Option<T>>, Misuse> {
        let what = self.what;
        if !self.is_at_home() {
            return Err(Misuse::Forked { what });
        }
        match self.inside.try_lock() {
            Ok(inside) => Ok(inside),
            Err(TryLockError::WouldBlock) => Err(Misuse::InUse { what }),
            // A panic has left the value in the middle of something.
            Err(TryLockError::Poisoned(_)) => Err(Misuse::Panicked),
        }
    }

    /// Goes in.
    ///
    /// # Errors
    /// [`Misuse::InUse`], [`Misuse::Closed`], [`Misuse::Forked`], or [`Misuse::Panicked`] after a panic inside.
    #[inline]
    pub fn enter(&self) -> Result<Entered<'_, T>, Misuse> {
        let inside = self.lock()?;
        if inside.is_none() {
            return Err(Misuse::Closed { what: self.what });
        }
        Ok(Entered(inside))
    }

    /// Closes the door for good and returns the value. `None`: it was closed before.
    ///
    /// # Errors
    /// As [`Door::enter`].
    pub fn close(&self) -> Result<Option<T>, Misuse> {
        self.close_if(|_| true)
    }

    /// As [`Door::close`], if `is_meant` says that the value inside is the one to close. `None`: it is not, or the door was
    /// closed before.
    ///
    /// # Errors
    /// As [`Door::enter`].
    pub fn close_if(&self, is_meant: impl FnOnce(&T) -> bool) -> Result<Option<T>, Misuse> {
        let mut inside = self.lock()?;
        if inside.as_ref().is_some_and(is_meant) { Ok(inside.take()) } else { Ok(None) }
    }

    /// Whether the door was closed. A door that somebody is inside of is open.
    pub fn is_closed(&self) -> bool {
        matches!(
            self.lock().map(|inside| inside.is_none()),
            Ok(true) | Err(Misuse::Forked { .. } | Misuse::Panicked)
        )
    }
}

impl<T> Drop for Door<T> {
    fn drop(&mut self) {
        if self.is_at_home()
            && let Ok(inside) = self.inside.get_mut()
        {
            drop(inside.take());
        }
    }
}

impl<T> Deref for Entered<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.0.as_ref().expect("only close() takes it out, and it has to go in for that")
    }
}

impl<T> DerefMut for Entered<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("only close() takes it out, and it has to go in for that")
    }
}
