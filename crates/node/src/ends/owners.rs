//! The owner of each queue pair, by the NIC's number for it.

use portcullis_nic::QpId;
use portcullis_protocol::ClientId;

/// The client that owns each queue pair, and the queue pair's number among the client's data queue pairs. This is a
/// table, because NICs number queue pairs from zero: each message leads to a look-up here.
#[derive(Debug, Default)]
pub(crate) struct Owners {
    owners: Vec<Option<(ClientId, Option<u32>)>>,
}

impl Owners {
    pub fn insert(&mut self, qp: QpId, client: ClientId, number: Option<u32>) {
        let index = qp.0 as usize;
        if self.owners.len() <= index {
            self.owners.resize(index + 1, None);
        }
        self.owners[index] = Some((client, number));
    }

    pub fn remove(&mut self, qp: QpId) {
        self.owners[qp.0 as usize] = None;
    }

    /// Returns the owner of a queue pair. Any number is allowed.
    pub fn get(&self, qp: QpId) -> Option<(ClientId, Option<u32>)> {
        *self.owners.get(qp.0 as usize)?
    }
}
