//! What carries calls where the two ends of a connection share no memory: between the ring of an end, which is its own, and wherever
//! the other end is.

use super::ends::{CallError, ReplyLine};
use crate::ScopeRef;
use crate::heap::Heap;
use std::fmt::Debug;
use std::time::Duration;

/// A client's carrier. What it cannot carry has no answer: [`bring`](Self::bring) says that it is so.
pub(super) trait ClientCarrier: Debug + Send + Sync {
    /// Sends the request whose line is at `place` in the ring, with the scope that it names.
    fn send(&mut self, place: u64, scope: ScopeRef);

    /// Sends that the call whose request is at `place` is cancelled.
    fn send_cancelled(&mut self, place: u64, call: u64);

    /// Puts the replies that have come into the ring, their results first. Does not wait. Returns whether more may come.
    fn bring(&mut self) -> bool;

    /// Waits a while for something that has come, at most so long.
    fn wait(&mut self, most: Duration);

    /// Whether a result of so many bytes was brought.
    ///
    /// # Errors
    /// [`CallError::ResultTooLong`].
    fn check_result(&self, length: u64) -> Result<(), CallError>;
}

/// A server's carrier.
pub(super) trait ServerCarrier: Debug + Send {
    /// Where methods put their results.
    fn results(&self) -> &Heap;

    /// Whether there is a request that was not brought.
    fn has_request(&self) -> bool;

    /// Puts the next request into the ring, if there is one. The one before was taken.
    fn bring(&mut self);

    /// Sends a reply, with the result that it names.
    fn take_away(&mut self, reply: &ReplyLine);
}
