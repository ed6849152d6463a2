//! READ and WRITE.

use super::{Exchange, Progress, Responder};
use crate::core::objects::Core;
use portcullis_memory::Bytes;
use portcullis_nic::{Access, RemoteSpan, Status};

// The whole range is looked at, at every part of a long transfer: a permission that ended cuts it off. No key is looked
// at for a request of no bytes (InfiniBand specification, C9-88).
impl<M: Bytes> Core<M> {
    #[inline]
    pub(super) fn read(
        &self,
        responder: &Responder,
        remote: RemoteSpan,
        length: u32,
        exchange: &mut impl Exchange<M>,
    ) -> Result<Progress, Status> {
        if length == 0 {
            return Ok(Progress::Done);
        }
        let from = self.admit(responder, remote, length, Access::REMOTE_READ)?;
        Ok(exchange.fetch(self, from, length))
    }

    #[inline]
    pub(super) fn write(
        &self,
        responder: &Responder,
        remote: RemoteSpan,
        length: u32,
        exchange: &mut impl Exchange<M>,
    ) -> Result<Progress, Status> {
        if length == 0 {
            return Ok(Progress::Done);
        }
        let into = self.admit(responder, remote, length, Access::REMOTE_WRITE)?;
        Ok(exchange.store(self, into, length))
    }
}
