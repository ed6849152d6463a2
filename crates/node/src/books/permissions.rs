//! The permissions of a node: the bytes that each covers, its holder, and what enforces it.
//!
//! The node acts on this table. The headers in remote memory only repeat it for clients.

use crate::books::accounts::GuestKey;
use crate::books::key_holders::KeyHolders;
use crate::books::leases::Leases;
use crate::books::pool::ObjectId;
use portcullis_protocol::{
    ClientId, Credential, Lifetime, Moment, PermissionId, Rights, Rkey, Sharing, TenantId,
};
use portcullis_slots::{Reuse, Slots};

/// The place of a permission in the books. Slots are used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct PermissionSlot(pub u32);

impl PermissionSlot {
    /// «No permission» in a link. An `Option` would double a record.
    pub const NONE: Self = Self(u32::MAX);

    /// The slot, unless it is [`NONE`](Self::NONE).
    pub fn some(self) -> Option<Self> {
        (self != Self::NONE).then_some(self)
    }

    /// Returns the slot's place in a table.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

portcullis_slots::number_key!(PermissionSlot);

/// The cause of a permission. It decides which client gets a reply when the permission has started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// A request. Its client gets the reply.
    Request {
        /// The request's number.
        sequence: u32,
    },
    /// Something other than a request. No client gets a reply: the holder knows of the permission.
    Adopted,
}

/// The kind of memory that a permission is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PermissionKind {
    /// An object that a client has allocated.
    Object,
    /// A chunk that the node's CPU hands out. Its permission has no deadline.
    Chunk,
}

impl PermissionKind {
    /// Whether the permission is for a chunk.
    pub fn is_chunk(self) -> bool {
        self == Self::Chunk
    }
}

/// State of a permission. A permission that has ended is not in the books any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// The permission's protection is being set up, and its client does not know of it yet.
    Starting(Origin),
    /// The client holds it, and shows this credential.
    Live(Credential),
}

/// A range of an object's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Extent {
    /// Offset in the object at which the range starts.
    pub offset: u64,
    pub length: u64,
}

impl Extent {
    /// Whether the two ranges share a byte. Neither may reach beyond its object.
    pub fn overlaps(self, other: Self) -> bool {
        self.offset < other.offset + other.length && other.offset < self.offset + self.length
    }
}

/// The bytes that a permission covers, and whether other permissions may share them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Claim {
    pub extent: Extent,
    pub sharing: Sharing,
}

impl Claim {
    /// Whether the two claims cannot be held at once.
    pub fn conflicts(self, other: Self) -> bool {
        let shared = self.sharing == Sharing::Shared && other.sharing == Sharing::Shared;
        !shared && self.extent.overlaps(other.extent)
    }
}

/// A permission.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Permission {
    pub id: PermissionId,
    pub object: ObjectId,
    pub claim: Claim,
    pub client: ClientId,
    pub tenant: TenantId,
    pub rights: Rights,
    pub kind: PermissionKind,
    /// The lifetime from the start, as last seen.
    pub lifetime: Lifetime,
    /// Time for which its request waited.
    pub waited: Lifetime,
    /// The node has put zero into the lifetime word: the permission ends when `lifetime` is over.
    pub final_notice: bool,
    pub state: State,
    /// The guest that holds the permission, if the object is another tenant's.
    pub guest: Option<GuestKey>,
    /// Whether its tenant lost the object while the permission was being set up: then the permission ends as soon as it
    /// is live.
    pub uninvited: bool,
    chains: [Links; 3],
}

#[derive(Clone, Copy, Debug)]
struct Links {
    before: PermissionSlot,
    after: PermissionSlot,
}

/// The lists that a permission is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Chain {
    /// The holders of an object.
    Object = 0,
    /// The permissions of a client.
    Client = 1,
    /// The permissions of a guest.
    Guest = 2,
}

impl Permission {
    /// A permission in no list, whose protection is still to be set up.
    pub fn new(
        id: PermissionId,
        object: ObjectId,
        (client, tenant): (ClientId, TenantId),
        rights: Rights,
        claim: Claim,
        origin: Origin,
    ) -> Self {
        Self {
            id,
            object,
            claim,
            client,
            tenant,
            rights,
            kind: PermissionKind::Object,
            lifetime: Lifetime(0),
            waited: Lifetime(0),
            final_notice: false,
            state: State::Starting(origin),
            guest: None,
            uninvited: false,
            chains: [Links { before: PermissionSlot::NONE, after: PermissionSlot::NONE }; 3],
        }
    }

    /// Whether the client holds the permission.
    pub fn is_live(&self) -> bool {
        matches!(self.state, State::Live(_))
    }

    /// Returns the credential that the client shows, once it holds the permission.
    pub fn credential(&self) -> Option<Credential> {
        match self.state {
            State::Live(credential) => Some(credential),
            State::Starting(_) => None,
        }
    }

    /// Returns the moment at which the permission ends, as far as is known.
    pub fn deadline(&self) -> Moment {
        self.id.start.after(self.lifetime)
    }
}

/// All permissions, by slot, with their deadlines and keys.
#[derive(Debug)]
pub(crate) struct Permissions {
    slots: Slots<PermissionSlot, Permission>,
    leases: Leases,
    key_holders: KeyHolders,
}

impl Default for Permissions {
    fn default() -> Self {
        let slots = Slots::new(Reuse::LatestFirst, PermissionSlot::NONE.0);
        Self { slots, leases: Leases::default(), key_holders: KeyHolders::default() }
    }
}

impl Permissions {
    /// Adds a permission, which is due at its deadline.
    pub fn insert(&mut self, permission: Permission) -> PermissionSlot {
        let (deadline, start) = (permission.deadline(), permission.id.start);
        let slot = self.slots.insert(permission);
        self.leases.schedule(deadline, slot.0, start);
        slot
    }

    /// Removes a permission that has ended. It is not due any more.
    pub fn remove(&mut self, slot: PermissionSlot) {
        self.slots.remove(slot).expect("a permission ends once");
        self.leases.forget(slot.0);
    }

    /// Changes the start of a permission that has waited for a scrub to `now`, because its client does not know of it
    /// yet, and its time must not run out meanwhile.
    pub fn start_now(&mut self, slot: PermissionSlot, now: Moment) {
        let permission = self.get_mut(slot);
        if now <= permission.id.start {
            return;
        }
        permission.waited = Lifetime(permission.waited.0 + now.since(permission.id.start).0);
        permission.id.start = now;
        let deadline = permission.deadline();
        self.schedule(slot, deadline);
    }

    /// Makes a permission live, whose protection is up. Returns its record from before, and its origin.
    #[inline]
    pub fn make_live(&mut self, slot: PermissionSlot, credential: Credential) -> (Permission, Origin) {
        let record = self.get_mut(slot);
        // Copied before the change: a load of what was just stored would wait for the store.
        let permission = *record;
        let State::Starting(origin) = permission.state else { panic!("{slot:?} is exposed a second time") };
        record.state = State::Live(credential);
        credential.keys().for_each(|key| self.key_holders.note(key, slot));
        (permission, origin)
    }

    /// Takes out a permission that is due: it ends, or is scheduled again.
    pub fn due(&mut self, now: Moment) -> Option<PermissionSlot> {
        self.leases.due(now).map(PermissionSlot)
    }

    /// Changes the moment at which a permission is due.
    pub fn schedule(&mut self, slot: PermissionSlot, due: Moment) {
        let start = self.get(slot).id.start;
        self.leases.schedule(due, slot.0, start);
    }

    /// Returns the first moment at which a permission is due.
    pub fn next_due(&self) -> Option<Moment> {
        self.leases.next()
    }

    /// Returns the last permission that was granted with a key of this index, or the permission that has its slot now.
    /// `None`: it has ended.
    pub fn last_with(&self, key: Rkey) -> Option<&Permission> {
        self.key_holders.last(key).and_then(|slot| self.slots.get(slot))
    }

    /// Returns a permission that has not ended.
    pub fn get(&self, slot: PermissionSlot) -> &Permission {
        &self.slots[slot]
    }

    /// Returns a permission that has not ended, to be changed.
    pub fn get_mut(&mut self, slot: PermissionSlot) -> &mut Permission {
        &mut self.slots[slot]
    }

    /// Returns the number of permissions, in any state.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Puts a permission first in the list that starts with `head`.
    pub fn link(&mut self, chain: Chain, head: &mut PermissionSlot, slot: PermissionSlot) {
        let after = std::mem::replace(head, slot);
        if let Some(next) = after.some() {
            self.get_mut(next).chains[chain as usize].before = slot;
        }
        self.get_mut(slot).chains[chain as usize] = Links { before: PermissionSlot::NONE, after };
    }

    /// Removes a permission from the list that starts with `head`. A permission that is in no list stays in none.
    pub fn unlink(&mut self, chain: Chain, head: &mut PermissionSlot, slot: PermissionSlot) {
        let nowhere = Links { before: PermissionSlot::NONE, after: PermissionSlot::NONE };
        let links = &mut self.get_mut(slot).chains[chain as usize];
        let Links { before, after } = std::mem::replace(links, nowhere);
        match before.some() {
            Some(previous) => self.get_mut(previous).chains[chain as usize].after = after,
            None if *head == slot => *head = after,
            None => {}
        }
        if let Some(next) = after.some() {
            self.get_mut(next).chains[chain as usize].before = before;
        }
    }

    /// Iterates over the slots of the list that starts with `head`.
    pub fn chain(&self, chain: Chain, head: PermissionSlot) -> impl Iterator<Item = PermissionSlot> + '_ {
        let next = move |&slot: &PermissionSlot| self.get(slot).chains[chain as usize].after.some();
        std::iter::successors(head.some(), next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portcullis_protocol::RemoteAddress;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_chain_holds_what_was_linked_and_not_unlinked(steps in prop::collection::vec(0usize..24, 0..200)) {
            let mut table = Permissions::default();
            let id = PermissionId { header: RemoteAddress(0), start: Moment(0) };
            let claim = Claim { extent: Extent { offset: 0, length: 8 }, sharing: Sharing::Shared };
            let holder = (ClientId(0), TenantId(0));
            let new = || Permission::new(id, ObjectId(0), holder, Rights::READ, claim, Origin::Adopted);
            let slots: Vec<PermissionSlot> = (0..24).map(|_| table.insert(new())).collect();
            let (mut head, mut model) = (PermissionSlot::NONE, Vec::new());
            for step in steps {
                let slot = slots[step];
                if let Some(at) = model.iter().position(|&other| other == slot) {
                    model.remove(at);
                    table.unlink(Chain::Object, &mut head, slot);
                } else {
                    model.insert(0, slot);
                    table.link(Chain::Object, &mut head, slot);
                }
                prop_assert_eq!(table.chain(Chain::Object, head).collect::<Vec<_>>(), model.clone());
            }
        }
    }
}
