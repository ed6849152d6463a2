//! The decisions of the books, as values. The other parts of the node carry them out and report when that is done.

use super::accounts::GuestKey;
use super::permissions::PermissionSlot;
use super::pool::ObjectId;
use portcullis_protocol::{
    ClientId, Header, LIFETIME_OFFSET, Lifetime, PermissionId, RemoteAddress, Reply, ReplyBody, Rights,
    TenantId,
};

/// A task for the other parts of the node.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Effect {
    /// A permission must be set up on the NIC. It has started once [`Books::handle_exposed`] is called.
    ///
    /// [`Books::handle_exposed`]: super::Books::handle_exposed
    Expose(Exposure),
    /// A permission has ended: its protection must be taken down.
    Withdraw(Withdrawal),
    /// A reply must be sent to a client.
    Reply(ClientId, Reply),
    /// A client cannot be served any more.
    Evict(ClientId),
}

/// A permission to be set up: the bytes that its holder may access, and its header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exposure {
    pub permission: PermissionSlot,
    pub id: PermissionId,
    pub tenant: TenantId,
    pub client: ClientId,
    pub object: ObjectId,
    pub rights: Rights,
    /// Address of its first byte.
    pub address: RemoteAddress,
    /// Number of its bytes.
    pub length: u64,
    pub lifetime: Lifetime,
}

impl Exposure {
    /// Returns the address of the permission's lifetime word.
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
    /// The slot that the permission had. Another permission may have that slot by now. That permission is exposed by a
    /// later effect or with the next batch.
    pub permission: PermissionSlot,
    pub tenant: TenantId,
    pub client: ClientId,
    pub rights: Rights,
    pub header: RemoteAddress,
    pub object: ObjectId,
    /// The guest that held the permission, if the object is another tenant's.
    pub guest: Option<GuestKey>,
    /// Whether the object is removed too. Its memory is used again only after the protection is down.
    pub last: bool,
    pub owed: Option<OwedReply>,
}

impl Withdrawal {
    /// Returns all remains of the permission, to be taken down at once.
    pub fn residue(&self) -> Residue {
        let (header, object) = (Some(self.header), Some(self.object));
        Residue { header, object, guest: self.guest, may_linger: false }
    }
}

/// A [`ReplyBody::Done`] that waits until its promise is true.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwedReply {
    pub client: ClientId,
    /// The client's number for its request.
    pub sequence: u32,
}

impl OwedReply {
    /// Returns the reply as an effect, now that it is due.
    pub fn due(self) -> Effect {
        Effect::Reply(self.client, Reply { sequence: self.sequence, body: ReplyBody::Done })
    }
}

/// The remains of an ended permission, until they are known not to be exposed any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Residue {
    /// The permission's header.
    pub header: Option<RemoteAddress>,
    /// The object of the permission's bytes.
    pub object: Option<ObjectId>,
    /// The guest that held the permission, if the object is another tenant's.
    pub guest: Option<GuestKey>,
    /// Whether the taking down may wait, because the memory is used again only after it (Patronus §5.4).
    pub may_linger: bool,
}
