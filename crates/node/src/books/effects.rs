//! What the books decide, as values: the other parts carry it out and say when that is done.

use super::permissions::PermissionSlot;
use super::pool::ObjectId;
use portcullis_protocol::{
    ClientId, Header, LIFETIME_OFFSET, Lifetime, PermissionId, RemoteAddress, Reply, ReplyBody, Rights,
    TenantId,
};

/// What is to be done for the books.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Effect {
    /// A permission is to be set up on the NIC. It has started once [`Books::handle_exposed`] says so.
    ///
    /// [`Books::handle_exposed`]: super::Books::handle_exposed
    Expose(Exposure),
    /// A permission has ended: its protection is to be taken down.
    Withdraw(Withdrawal),
    /// A reply is to go to a client.
    Reply(ClientId, Reply),
    /// A client cannot be served any more.
    Evict(ClientId),
}

/// A permission that is to be set up: the bytes that its holder may reach, and its header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exposure {
    pub permission: PermissionSlot,
    pub id: PermissionId,
    pub tenant: TenantId,
    pub client: ClientId,
    pub rights: Rights,
    /// Where its bytes start.
    pub address: RemoteAddress,
    /// How many they are.
    pub length: u64,
    pub lifetime: Lifetime,
}

impl Exposure {
    /// Where the permission's lifetime word is.
    pub fn lifetime_word(&self) -> RemoteAddress {
        RemoteAddress(self.id.header.0 + LIFETIME_OFFSET)
    }

    /// Whether its header lies right before its bytes: one window can cover both (Patronus §5.4, contiguity).
    pub fn is_contiguous(&self) -> bool {
        self.id.header.0 + Header::BYTES == self.address.0
    }
}

/// A permission that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Withdrawal {
    /// The slot that it had. Another permission may have that slot by now, which is exposed with a later effect or with
    /// the next batch.
    pub permission: PermissionSlot,
    pub tenant: TenantId,
    pub client: ClientId,
    pub rights: Rights,
    pub header: RemoteAddress,
    pub object: ObjectId,
    /// The object goes with it: nobody gets at its memory before the protection is down.
    pub last: bool,
    pub owed: Option<OwedReply>,
}

impl Withdrawal {
    /// All that it leaves behind, to be taken down at once.
    pub fn residue(&self) -> Residue {
        Residue { header: Some(self.header), object: Some(self.object), may_linger: false }
    }
}

/// A reply that waits until what it promises is true.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwedReply {
    pub client: ClientId,
    pub sequence: u32,
    pub body: ReplyBody,
}

/// What an ended permission leaves behind until it is known to be exposed no more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Residue {
    /// Its header.
    pub header: Option<RemoteAddress>,
    /// The object that its bytes belong to.
    pub object: Option<ObjectId>,
    /// Nobody gets at the memory before the residue is gone, so that may wait (Patronus §5.4).
    pub may_linger: bool,
}
