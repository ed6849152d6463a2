//! An object's record: its holders, and the requests for it.

use super::slabs::ObjectId;
use crate::books::guests::GuestKey;
use crate::books::permissions::PermissionSlot;
use crate::books::postponed::WaiterSlot;
use portcullis_protocol::{DirectoryName, Holders, Keep, TenantId};
use std::collections::VecDeque;

/// What the node keeps about an object that has a name or had one, or belongs to one.
#[derive(Debug, Default)]
pub(crate) struct NamedObject {
    /// Its name in the directory.
    pub name: Option<DirectoryName>,
    /// Other tenants that hold something of it, and with which it is shared.
    pub guests: Vec<GuestKey>,
    /// How many of the object's `exposed`, `holders` and `waiting` are other tenants'.
    pub exposed: u32,
    pub holders: u32,
    pub waits: u32,
    /// Another tenant may have written into it.
    pub mixed: bool,
    /// The objects that belong to it.
    pub members: Vec<ObjectId>,
    /// What it belongs to itself.
    pub membership: Option<Membership>,
}

/// What an object belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Membership {
    pub head: ObjectId,
    /// Its place among the head's members.
    pub place: usize,
}

/// What the node keeps about an object besides its place.
#[derive(Debug)]
pub(crate) struct Object {
    pub tenant: TenantId,
    /// Its place in its tenant's list.
    pub listed: u32,
    /// Which object of this run of the node it is: see [`portcullis_protocol::ObjectRef`].
    pub birth: u64,
    /// What the object outlives.
    pub keep: Keep,
    /// A client has been told the reference. Until then no client can ask to keep or free the object.
    pub told: bool,
    /// Its tenant has freed it: nothing of it is granted any more. Of several frees the one that asks most of its holders.
    pub freed: Option<Holders>,
    /// Its last permission has ended: the object goes when no window exposes it any more.
    pub going: bool,
    /// The header hole before its buffer is in use.
    pub hole_used: bool,
    /// The permission whose header is in the hole.
    pub hole_slot: PermissionSlot,
    /// Permissions over the object whose protection may still be up: until it is down, the memory is not used again.
    pub exposed: u32,
    pub holders: u32,
    /// What there is of it only if it has a name or belongs to one. Few objects do, and every request reads this record:
    /// so it is elsewhere.
    pub named: Option<Box<NamedObject>>,
    /// How many of the holders are exclusive.
    pub exclusive: u32,
    /// A part of the object was asked for: holders and waiting requests may get along beside each other.
    pub divided: bool,
    /// The first of its holders.
    pub first: PermissionSlot,
    /// Requests that wait for the object, first come first served.
    pub waiting: VecDeque<WaiterSlot>,
    /// A later turn lets some of them in.
    pub put_off: bool,
    /// The bytes are being zeroed; the first permission waits for that.
    pub scrubbing: bool,
}

impl Object {
    /// Its name in the directory, if it has one.
    pub fn name(&self) -> Option<DirectoryName> {
        self.named.as_ref()?.name
    }

    /// The objects that belong to it.
    pub fn members(&self) -> &[ObjectId] {
        self.named.as_ref().map_or(&[], |it| &it.members)
    }

    /// What it belongs to, if it does.
    pub fn membership(&self) -> Option<Membership> {
        self.named.as_ref()?.membership
    }

    /// The other tenants that hold something of it, and with which it is shared.
    pub fn guests(&self) -> &[GuestKey] {
        self.named.as_ref().map_or(&[], |it| &it.guests)
    }

    /// What there is of it only if it has a name or belongs to one.
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
            exposed: 0,
            holders: 0,
            named: None,
            exclusive: 0,
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

    /// Whether a client waits until the object has gone: its windows do not linger.
    pub fn end_is_awaited(&self) -> bool {
        self.freed > Some(Holders::Stay)
    }

    /// Whether its own tenant holds it, waits for it, or has it kept. An object of which no client was told cannot be
    /// used or freed: it is not kept.
    pub fn is_wanted(&self) -> bool {
        let holds = self.holders > self.named.as_ref().map_or(0, |it| it.holders);
        let waits = self.waiting.len() > self.named.as_ref().map_or(0, |it| it.waits) as usize;
        holds || waits || (self.keep != Keep::No && self.told)
    }

    /// How long a kept object stays after its tenant's last client has gone, in µs. [`u64::MAX`]: for as long as the
    /// node runs.
    pub fn kept_for(&self) -> Option<u64> {
        match self.keep {
            Keep::No => None,
            Keep::Attached => Some(0),
            Keep::For(time) => Some(time.0),
            Keep::Pinned => Some(u64::MAX),
        }
    }
}
