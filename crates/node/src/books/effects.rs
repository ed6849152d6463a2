//! What the books decide, as values. The other parts carry it out and report when that is done.

use super::guests::GuestKey;
use super::permissions::PermissionSlot;
use super::pool::ObjectId;
use portcullis_protocol::{
    ClientId, Header, LIFETIME_OFFSET, Lifetime, PermissionId, RemoteAddress, Reply, ReplyBody, Rights,
    TenantId,
};

/// What the other parts have to do.
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

/// A permission that is to be set up: the bytes that its holder may access, and its header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exposure {
    pub permission: PermissionSlot,
    pub id: PermissionId,
    pub tenant: TenantId,
    pub client: ClientId,
    pub object: ObjectId,
    pub rights: Rights,
    /// Where its bytes start.
    pub address: RemoteAddress,
    /// How many bytes there are.
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
    /// The slot that it had. Another permission may have that slot by now. That permission is exposed by a later effect
    /// or with the next batch.
    pub permission: PermissionSlot,
    pub tenant: TenantId,
    pub client: ClientId,
    pub rights: Rights,
    pub header: RemoteAddress,
    pub object: ObjectId,
    /// What its tenant was at the object, if the object is another tenant's.
    pub guest: Option<GuestKey>,
    /// The object goes too: its memory is used again only after the protection is down.
    pub last: bool,
    pub owed: Option<OwedReply>,
}

impl Withdrawal {
    /// All that the permission leaves behind, to be taken down at once.
    pub fn residue(&self) -> Residue {
        let (header, object) = (Some(self.header), Some(self.object));
        Residue { header, object, guest: self.guest, may_linger: false }
    }
}

/// A [`ReplyBody::Done`] that waits until what it promises is true.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwedReply {
    pub client: ClientId,
    /// The client's number for its request.
    pub sequence: u32,
}

impl OwedReply {
    /// The reply, which is due now.
    pub fn due(self) -> Effect {
        Effect::Reply(self.client, Reply { sequence: self.sequence, body: ReplyBody::Done })
    }
}

/// What an ended permission leaves behind until it is known to be exposed no more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Residue {
    /// Its header.
    pub header: Option<RemoteAddress>,
    /// The object that its bytes belong to.
    pub object: Option<ObjectId>,
    /// What the holder's tenant was at that object, if the object is another tenant's.
    pub guest: Option<GuestKey>,
    /// The memory is used again only after the residue is gone, so that may wait (Patronus §5.4).
    pub may_linger: bool,
}
