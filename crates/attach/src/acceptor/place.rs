//! Where acceptors are, for whoever ends them.

use super::Acceptor;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// Where acceptors are put once they exist. Their policies need what serves the clients, and that is made first.
#[derive(Clone, Debug, Default)]
pub struct AcceptorPlace(Arc<Mutex<Vec<Acceptor>>>);

impl AcceptorPlace {
    /// Puts one there.
    pub fn put(&self, acceptor: Acceptor) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(acceptor);
    }

    /// Ends the acceptors, and waits until they have ended.
    pub fn clear(&self) {
        // They are dropped outside the lock: their threads may be waiting for the serving thread, and that one for the lock.
        let acceptors = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        drop(acceptors);
    }

    /// Those that are there. `None`: another thread has the lock, for a moment. Never waits.
    #[must_use]
    pub fn try_look(&self) -> Option<MutexGuard<'_, Vec<Acceptor>>> {
        match self.0.try_lock() {
            Ok(acceptors) => Some(acceptors),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}
