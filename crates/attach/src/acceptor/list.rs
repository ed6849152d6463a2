//! The shared list of running acceptors, for the code that ends them.

use super::Acceptor;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// The shared list of acceptors. It is created before them: an acceptor's policy needs the server of the clients, which
/// is created first.
#[derive(Clone, Debug, Default)]
pub struct AcceptorList(Arc<Mutex<Vec<Acceptor>>>);

impl AcceptorList {
    /// Adds an acceptor.
    pub fn put(&self, acceptor: Acceptor) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(acceptor);
    }

    /// Ends the acceptors, and waits until they have ended.
    pub fn clear(&self) {
        // The acceptors are dropped outside the lock: their threads may be waiting for the serving thread, and the
        // serving thread for the lock.
        let acceptors = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        drop(acceptors);
    }

    /// Returns the acceptors, or `None` if another thread holds the lock, which it does only for a moment. Never waits.
    #[must_use]
    pub fn try_look(&self) -> Option<MutexGuard<'_, Vec<Acceptor>>> {
        match self.0.try_lock() {
            Ok(acceptors) => Some(acceptors),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}
