//! BIND_MW and LOCAL_INV: the operations of a requester at its own end.

use crate::core::objects::Core;
use portcullis_memory::Bytes;
use portcullis_nic::{Operation, PdId, QpId, Status};

impl<M: Bytes> Core<M> {
    /// Executes an operation that needs no peer, for queue pair `id` of domain `pd`. Any other operation fails. Returns
    /// whether the operation has ended accesses that were allowed before.
    pub(in crate::core) fn execute_here(
        &mut self,
        id: QpId,
        pd: PdId,
        operation: Option<Operation>,
    ) -> Result<bool, Status> {
        match operation {
            Some(Operation::BindWindow(binding)) => self.keys.bind(pd, id, &binding),
            Some(Operation::LocalInvalidate { rkey }) => {
                let ended = self.keys.invalidate(pd, id, rkey);
                ended.map(|()| true).map_err(|_| Status::LocalQpOperationError)
            }
            _ => Err(Status::LocalQpOperationError),
        }
    }
}
