//! A block that a client has claimed.

use crate::table::words::{BlockId, Claim, Slot, Version};
use portcullis::{BarePermission, Moment};
use std::rc::Rc;

/// A block that this client has claimed and no other client can have.
#[derive(Debug)]
pub(in crate::table) struct Claimed {
    pub block_id: BlockId,
    pub version: Version,
    pub permission: Rc<BarePermission>,
    /// Offset of the block in the permission.
    pub at: u64,
    /// Time from which the block must not get into a slot: on the session's clock.
    pub until: Moment,
    /// Number of times that the claim was renewed.
    pub renewals: u8,
    /// The pieces of the value whose first block this is. They were claimed and written for this block.
    pub pieces: Vec<Slot>,
}

impl Claimed {
    pub fn claim(&self) -> Claim {
        Claim::renewed(self.version, self.renewals)
    }

    pub fn slot(&self, fingerprint: u8) -> Slot {
        Slot::new(fingerprint, self.version, self.block_id)
    }
}
