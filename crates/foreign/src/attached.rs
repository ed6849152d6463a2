//! A session in the form in which a binding holds it.

use crate::{Completion, Failure, Operations};
use portcullis::{ConnectError, Lifetime, Session, SessionOptions, connect_with};

/// A session, and the operations that were begun on it and not waited for.
#[derive(Debug)]
pub struct Attached {
    /// The session. A caller must not begin operations on its client directly without waiting for them at once: they
    /// would end among those of [`Attached::operations`].
    pub session: Session,
    /// The operations.
    pub operations: Operations,
}

impl Attached {
    /// Wraps a session on which no operation is under way.
    #[must_use]
    pub fn new(session: Session) -> Self {
        Self { session, operations: Operations::default() }
    }

    /// Connects to a node.
    ///
    /// # Errors
    /// As [`portcullis::connect`].
    pub fn connect(address: &str, options: SessionOptions) -> Result<Self, ConnectError> {
        connect_with(address, options).map(Self::new)
    }

    /// Begins the operations that were added, as far as there is room; the rest begins when others end.
    pub fn post(&mut self) {
        self.operations.post(&mut self.session);
    }

    /// Takes in the operations that have ended, without waiting. Returns the number of completions to take.
    pub fn poll(&mut self) -> usize {
        self.operations.poll(&mut self.session)
    }

    /// Waits until there are `at_least` completions to take, all operations have ended, or `time` has passed. Returns
    /// the number of completions to take. `None`: without a time limit.
    pub fn wait(&mut self, at_least: usize, time: Option<Lifetime>) -> usize {
        self.operations.wait(&mut self.session, at_least, time)
    }

    /// Carries out the operations that were added, and returns the completions in the order in which they ended,
    /// including completions of earlier operations.
    pub fn finish(&mut self) -> Vec<Completion> {
        self.post();
        self.wait(usize::MAX, None);
        std::iter::from_fn(|| self.operations.take()).collect()
    }

    /// Returns the reason why no operation succeeds any more. `None`: the session stands.
    pub fn over(&mut self) -> Option<Failure> {
        self.session.client().over().map(Failure::from)
    }
}
