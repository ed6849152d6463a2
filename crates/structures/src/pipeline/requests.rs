//! The requests of a structure's operation to its session, and their results.

use portcullis::{
    Access, Ask, BarePermission, Batch, Begun, Buffer, ChunkTerms, Entry, Error, Memory, Moment, NotBegun,
    VerbsEndpoint,
};
use std::rc::Rc;

/// An access of a structure's operation.
pub(super) type SharedAccess<M> = Access<Rc<BarePermission>, M>;

/// A request that is still to be posted.
pub(super) struct Request<M: Memory> {
    pub ask: Ask<Rc<BarePermission>, M>,
    /// Whether the access begins only when all before it have ended.
    pub is_fenced: bool,
    /// Whether an acquisition may take the client's last room for calls and wait there.
    pub waits_in_any_case: bool,
}

/// The result of a request that the node or its NIC carried out.
#[derive(Debug)]
pub enum Done<M: Memory> {
    Buffer(Buffer<M>),
    Word(u64),
    Granted(BarePermission),
    Entry(Entry),
    Chunks(ChunkTerms),
    Ended,
}

/// The result of posting a request.
pub(super) enum Posted<M: Memory> {
    Begun(Begun),
    /// The queue has no room now. The request is returned.
    Full(Request<M>),
    Failed(Error),
}

impl<M: Memory> Request<M> {
    pub fn new(ask: impl Into<Ask<Rc<BarePermission>, M>>) -> Self {
        Self { ask: ask.into(), is_fenced: false, waits_in_any_case: false }
    }

    /// Adds the request to a batch.
    pub fn post<E: VerbsEndpoint<Memory = M>>(self, batch: &mut Batch<'_, E>, now: Moment) -> Posted<M> {
        if self.is_fenced {
            batch.fence();
        }
        match batch.add(now, self.ask) {
            Ok(begun) => Posted::Begun(begun),
            Err(NotBegun { ask, error: Error::QueueFull { .. } }) => Posted::Full(Self { ask: *ask, ..self }),
            Err(NotBegun { error, .. }) => Posted::Failed(error),
        }
    }
}
