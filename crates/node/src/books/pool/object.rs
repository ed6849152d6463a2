//! An object's record: its holders, and the requests for it.

use super::slabs::ObjectId;
use crate::books::accounts::{GuestCounts, GuestKey, PermissionCounts};
use crate::books::permissions::PermissionSlot;
use crate::books::postponed::WaiterSlot;
use portcullis_protocol::{DirectoryName, Holders, Keep, TenantId};
use std::collections::VecDeque;

/// The node's data about an object that has or had a name, or that is or was a head or a member.
#[derive(Debug, Default)]
pub(crate) struct NamedObject {
    /// The object's name in the directory.
    pub name: Option<DirectoryName>,
    /// The other tenants that hold permissions over it or wait for them, and with which it is shared.
    pub guests: Vec<GuestKey>,
    /// Other tenants' part of the object's `permissions` and `waiting`.
    pub of_guests: GuestCounts,
    /// Whether another tenant may have written into it.
    pub mixed: bool,
    /// The objects that belong to it.
    pub members: Vec<ObjectId>,
    /// The object's own membership in a head.
    pub membership: Option<Membership>,
}

/// Membership of an object in a head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Membership {
    pub head: ObjectId,
    /// The object's place among the head's members.
    pub place: usize,
}

/// The node's data about an object, besides its place.
#[derive(Debug)]
pub(crate) struct Object {
    pub tenant: TenantId,
    /// The object's place in its tenant's list.
    pub listed: u32,
    /// Number of the object in this run of the node: see [`portcullis_protocol::ObjectRef`].
    pub birth: u64,
    /// How long the object stays without permissions.
    pub keep: Keep,
    /// Whether a client has received the reference. Until then no client can request to keep or free the object.
    pub told: bool,
    /// Set once its tenant has freed it: then nothing of it is granted any more. After several frees, the strictest of
    /// them.
    pub freed: Option<Holders>,
    /// Whether its last permission has ended: the object is removed when no window exposes it any more.
    pub going: bool,
    /// Whether the header hole before its buffer is in use.
    pub hole_used: bool,
    /// The permission whose header is in the hole.
    pub hole_slot: PermissionSlot,
    pub permissions: PermissionCounts,
    /// The data that only named objects, heads and members have. Few objects have it, and every request reads this
    /// record, so it is elsewhere.
    pub named: Option<Box<NamedObject>>,
    /// Whether a request was for a part of the object: then holders and waiting requests need not conflict.
    pub divided: bool,
    /// The first of its holders.
    pub first: PermissionSlot,
    /// Requests that wait for the object, in the order of their arrival.
    pub waiting: VecDeque<WaiterSlot>,
    /// Whether a later turn serves the waiting requests.
    pub put_off: bool,
    /// Whether the bytes are being zeroed. The first permission waits for that.
    pub scrubbing: bool,
}

impl Object {
    /// Returns its name in the directory, if it has one.
    pub fn name(&self) -> Option<DirectoryName> {
        self.named.as_ref()?.name
    }

    /// Returns the objects that belong to it.
    pub fn members(&self) -> &[ObjectId] {
        self.named.as_ref().map_or(&[], |it| &it.members)
    }

    /// Returns its membership in a head, if it has one.
    pub fn membership(&self) -> Option<Membership> {
        self.named.as_ref()?.membership
    }

    /// Returns the other tenants that hold permissions over it or wait for them, and with which it is shared.
    pub fn guests(&self) -> &[GuestKey] {
        self.named.as_ref().map_or(&[], |it| &it.guests)
    }

    /// Returns the data that only named objects, heads and members have. Creates it if there is none yet.
    pub fn named(&mut self) -> &mut NamedObject {
        self.named.get_or_insert_default()
    }

    pub fn new(tenant: TenantId, birth: u64, keep: Keep) -> Self {
        Self {
            tenant,
            listed: 0,
            birth,
            keep,
            told: false,
            freed: None,
            going: false,
            hole_used: false,
            hole_slot: PermissionSlot::NONE,
            permissions: PermissionCounts::default(),
            named: None,
            divided: false,
            first: PermissionSlot::NONE,
            waiting: VecDeque::new(),
            put_off: false,
            scrubbing: false,
        }
    }

    /// Removes a waiting request: most often the one that has waited for longest.
    pub fn no_longer_waits(&mut self, waiter: WaiterSlot) {
        if let Some(at) = self.waiting.iter().position(|&other| other == waiter) {
            self.waiting.remove(at);
        }
    }

    /// Whether a client waits until the object is removed. Then its windows do not linger.
    pub fn end_is_awaited(&self) -> bool {
        self.freed > Some(Holders::Stay)
    }

    /// Whether its own tenant holds it, waits for it, or has it kept. If no client has received its reference, no
    /// client can use or free it, so it is not kept.
    pub fn is_wanted(&self) -> bool {
        let of_guests = self.named.as_ref().map_or_else(GuestCounts::default, |it| it.of_guests);
        let holds = self.permissions.held() > of_guests.permissions().held();
        let waits = self.waiting.len() > of_guests.waits() as usize;
        holds || waits || (self.keep != Keep::No && self.told)
    }

    /// Returns how long a kept object stays after its tenant's last client has left, in µs. [`u64::MAX`]: for as long
    /// as the node runs.
    pub fn kept_for(&self) -> Option<u64> {
        match self.keep {
            Keep::No => None,
            Keep::Attached => Some(0),
            Keep::For(time) => Some(time.0),
            Keep::Pinned => Some(u64::MAX),
        }
    }
}
