//! COMPARE_AND_SWAP and FETCH_AND_ADD.

use super::{Exchange, Progress, Responder, WORD_BYTES};
use crate::core::objects::Core;
use portcullis_memory::Bytes;
use portcullis_nic::{Access, RemoteSpan, Status};

impl<M: Bytes> Core<M> {
    /// Changes a word of the responder's; the requester gets its value before. `operate` says how, and where it lies.
    pub(super) fn change(
        &self,
        responder: &Responder,
        remote: RemoteSpan,
        exchange: &mut impl Exchange<M>,
        operate: impl FnOnce(&M, u64) -> u64,
    ) -> Result<Progress, Status> {
        let there = self.admit(responder, remote, WORD_BYTES, Access::REMOTE_ATOMIC)?;
        let word = u64::from(WORD_BYTES);
        if !remote.address.0.is_multiple_of(word) || !there.offset.is_multiple_of(word) {
            return Err(Status::RemoteInvalidRequestError);
        }
        exchange.fetch_word(self, operate(&self.memories[there.memory], there.offset));
        Ok(Progress::Done)
    }
}
