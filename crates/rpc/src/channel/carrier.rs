//! Carriers of calls between the two ends of a connection that share no memory. Each end has a ring of its own, and a
//! carrier connects the ring to the other end.

use super::ends::{CallError, ReplyLine};
use crate::ScopeRef;
use crate::heap::Heap;
use std::fmt::Debug;
use std::time::Duration;

/// A client's carrier. A call that cannot be carried gets no answer: then [`bring`](Self::bring) returns `false`.
pub(super) trait ClientCarrier: Debug + Send + Sync {
    /// Sends the request whose line is at `place` in the ring, with the scope that it names.
    fn send(&mut self, place: u64, scope: ScopeRef);

    /// Sends that the call whose request is at `place` is cancelled.
    fn send_cancelled(&mut self, place: u64, call: u64);

    /// Copies the received replies into the ring, their results first. Does not wait. Returns whether more replies can
    /// follow.
    fn bring(&mut self) -> bool;

    /// Waits until something has been received, but at most for `most`.
    fn wait(&mut self, most: Duration);

    /// Checks that a result of `length` bytes was received as a whole.
    ///
    /// # Errors
    /// [`CallError::ResultTooLong`].
    fn check_result(&self, length: u64) -> Result<(), CallError>;
}

/// A server's carrier.
pub(super) trait ServerCarrier: Debug + Send {
    /// The heap that methods put their results into.
    fn results(&self) -> &Heap;

    /// Whether a request has been received that is not in the ring yet.
    fn has_request(&self) -> bool;

    /// Copies the next request into the ring, if there is one. The one before has been taken from the ring.
    fn bring(&mut self);

    /// Sends a reply, with the result that it names.
    fn take_away(&mut self, reply: &ReplyLine);
}
