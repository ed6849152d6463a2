//! A value that is used by one thread at a time, until it is closed, in the process that made it.

use crate::Misuse;
use portcullis_memory::forks;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};

/// Lets one thread in at a time. No thread waits: a thread that enters while another is inside gets an error.
///
/// In a child of `fork` no thread is let in, and no part of the value is dropped: the value's mappings and connections
/// belong to the parent.
#[derive(Debug)]
pub struct ExclusiveCell<T> {
    what: &'static str,
    /// The value of [`forks`] in the process that opened the cell.
    opened_in: AtomicU32,
    /// The value. `None`: the cell is closed.
    inside: ManuallyDrop<Mutex<Option<T>>>,
}

/// Access to the value of an [`ExclusiveCell`], until this is dropped.
#[derive(Debug)]
pub struct Entered<'a, T>(MutexGuard<'a, Option<T>>);

impl<T> ExclusiveCell<T> {
    /// Makes a cell with a value. Errors call the value `what`.
    pub fn new(what: &'static str, value: T) -> Self {
        Self::over(what, Some(value))
    }

    /// Makes a cell that is closed until [`ExclusiveCell::open`].
    #[must_use]
    pub fn closed(what: &'static str) -> Self {
        Self::over(what, None)
    }

    fn over(what: &'static str, value: Option<T>) -> Self {
        Self { what, opened_in: AtomicU32::new(forks()), inside: ManuallyDrop::new(Mutex::new(value)) }
    }

    /// Opens a closed cell with another value. An open cell, or one whose value a panic has left behind, stays as it is,
    /// and the call returns the new value.
    ///
    /// # Errors
    /// The new value, if the cell was not closed.
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
            // The panic has left the value in the middle of a change.
            Err(TryLockError::Poisoned(_)) => Err(Misuse::Panicked),
        }
    }

    /// Lets the calling thread in.
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

    /// Closes the cell for good and returns the value. `None`: it was closed before.
    ///
    /// # Errors
    /// As [`ExclusiveCell::enter`].
    pub fn close(&self) -> Result<Option<T>, Misuse> {
        self.close_if(|_| true)
    }

    /// Closes the cell for good and returns the value, if `is_meant` returns true for the value inside. `None`: it
    /// returned false, or the cell was closed before.
    ///
    /// # Errors
    /// As [`ExclusiveCell::enter`].
    pub fn close_if(&self, is_meant: impl FnOnce(&T) -> bool) -> Result<Option<T>, Misuse> {
        let mut inside = self.lock()?;
        if inside.as_ref().is_some_and(is_meant) { Ok(inside.take()) } else { Ok(None) }
    }

    /// Whether the cell was closed. A cell is open while another thread is inside.
    pub fn is_closed(&self) -> bool {
        matches!(
            self.lock().map(|inside| inside.is_none()),
            Ok(true) | Err(Misuse::Forked { .. } | Misuse::Panicked)
        )
    }
}

impl<T> Drop for ExclusiveCell<T> {
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
