//! A session as a binding holds it.

use crate::{Completion, Failure, Operations};
use portcullis::{ConnectError, Lifetime, Session, SessionOptions, connect_with};

/// A session, and the operations that were begun on it and not waited for.
#[derive(Debug)]
pub struct Attached {
    /// The session. Operations that are begun on its client directly, and not waited for at once, end among those of
    /// [`Attached::operations`]: nobody does that.
    pub session: Session,
    /// The operations.
    pub operations: Operations,
}

impl Attached {
    /// Around a session on which nothing is under way.
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

    /// Begins what was added to the operations, as far as there is room; the rest begins when others end.
    pub fn post(&mut self) {
        self.operations.post(&mut self.session);
    }

    /// Takes in what has ended, without waiting. Returns how many completions there are to take.
    pub fn poll(&mut self) -> usize {
        self.operations.poll(&mut self.session)
    }

    /// Waits until there are `at_least` completions to take, all have ended, or `time` has passed. Returns how many there
    /// are. `None`: as long as it takes.
    pub fn wait(&mut self, at_least: usize, time: Option<Lifetime>) -> usize {
        self.operations.wait(&mut self.session, at_least, time)
    }

    /// Carries out what was added, and returns the completions in the order of their ends. Those of earlier operations are
    /// among them.
    pub fn finish(&mut self) -> Vec<Completion> {
        self.post();
        self.wait(usize::MAX, None);
        std::iter::from_fn(|| self.operations.take()).collect()
    }

    /// Why nothing succeeds any more. `None`: the session stands.
    pub fn over(&mut self) -> Option<Failure> {
        self.session.client().over().map(Failure::from)
    }
}
