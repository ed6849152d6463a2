//! A session in the form in which a binding holds it.

use crate::{Completion, CudaDriver, CudaError, Failure, Operations, WantedCuda};
use portcullis::{ConnectError, Lifetime, Session, SessionEndpoint, SessionOptions, connect_with};
use portcullis_memory::Memory;
use std::path::Path;

/// The most bytes that one operation moves over UDP.
const UDP_BYTES_MAX: u32 = 256 << 10;

/// A session, and the operations that were begun on it and not waited for.
#[derive(Debug)]
pub struct Attached {
    /// The session. A caller must not begin operations on its client directly without waiting for them at once: they
    /// would end among those of [`Attached::operations`].
    pub session: Session,
    /// The operations.
    pub operations: Operations,
    is_registered: bool,
}

impl Attached {
    /// Wraps a session on which no operation is under way.
    #[must_use]
    pub fn new(session: Session) -> Self {
        Self { session, operations: Operations::default(), is_registered: false }
    }

    /// Connects to a node.
    ///
    /// # Errors
    /// As [`portcullis::connect`].
    pub fn connect(address: &str, options: SessionOptions) -> Result<Self, ConnectError> {
        connect_with(address, options).map(Self::new)
    }

    /// Registers the arena with CUDA, if that is wanted and has not been done. `library` is the file of CUDA's driver, for
    /// example [`CudaDriver::LIBRARY`]. Returns whether the arena is registered.
    ///
    /// # Errors
    /// The registration is required and impossible.
    pub fn register_with_cuda(&mut self, wanted: WantedCuda, library: &Path) -> Result<bool, CudaError> {
        if wanted == WantedCuda::No || self.is_registered {
            return Ok(self.is_registered);
        }
        let (arena, bytes) = (self.session.arena(), self.session.arena().length());
        let registered = CudaDriver::load(library).and_then(|driver| driver.register(arena, bytes));
        self.is_registered = registered.is_ok();
        match registered {
            Err(error) if wanted == WantedCuda::Required => Err(error),
            _ => Ok(self.is_registered),
        }
    }

    /// Whether the arena is registered with CUDA.
    #[must_use]
    pub fn is_registered_with_cuda(&self) -> bool {
        self.is_registered
    }

    /// Returns the largest number of bytes that one operation moves.
    pub fn operation_bytes_max(&mut self) -> u32 {
        match self.session.client().endpoint() {
            SessionEndpoint::Udp(_) => UDP_BYTES_MAX,
            _ => u32::MAX,
        }
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
