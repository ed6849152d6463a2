//! SEND, with or without an invalidation: a message is delivered into a receive.

use super::{Exchange, Progress, Responder};
use crate::core::objects::Core;
use portcullis_memory::Bytes;
use portcullis_nic::{Completion, CompletionKind, LocalSpan, Rkey, Status};

/// Number of receives that are fetched ahead: two share a cache line.
const RECEIVES_AHEAD: u64 = 4;

impl<M: Bytes> Core<M> {
    /// Delivers a message of `length` bytes into the buffer of the responder's next receive.
    pub(super) fn deliver(
        &mut self,
        responder: &Responder,
        length: u32,
        invalidate: Option<Rkey>,
        exchange: &mut impl Exchange<M>,
    ) -> Result<Progress, Status> {
        let pair = self.qps.get(responder.id.0).ok_or(Status::RemoteOperationError)?;
        let (cq, label) = (pair.receive_cq, pair.label);
        let next = pair.receive.as_ref().and_then(|receive| {
            receive.prefetch(RECEIVES_AHEAD);
            receive.peek()
        });
        let room = self.has_completion_room(cq);
        let Some(next) = next.filter(|_| room) else { return Ok(Progress::NotReady) };
        let into = self.keys.local(responder.pd, LocalSpan { length, ..next.local }, true);
        let (status, outcome) = if length > next.local.length {
            (Status::LocalLengthError, Err(Status::RemoteInvalidRequestError))
        } else if let Some(into) = into {
            // A message invalidates a window only if it fits.
            if let Some(rkey) = invalidate {
                let gone = self.keys.invalidate(responder.pd, responder.id, rkey);
                gone.map_err(|_| Status::RemoteAccessError)?;
                // The completion of the receive confirms the end of the window.
                self.settle();
            }
            exchange.put(self, into, length);
            (Status::Success, Ok(Progress::Done))
        } else {
            (Status::LocalProtectionError, Err(Status::RemoteOperationError))
        };
        if let Some(receive) = self.qps.get_mut(responder.id.0).and_then(|pair| pair.receive.as_mut()) {
            receive.advance();
        }
        let invalidated = invalidate.filter(|_| status == Status::Success);
        let kind = CompletionKind::Receive { length, invalidated };
        self.put_completion(cq, &Completion { request: next.id, queue_pair: label, status, kind }, 0);
        outcome
    }
}
