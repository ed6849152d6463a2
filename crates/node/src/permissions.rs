//! The permissions of a node: what each is over, who holds it, and what enforces it.
//!
//! This table is what the node acts on; the headers in remote memory only repeat it for clients.

use crate::slabs::ObjectId;
use crate::table::Table;
use crate::windows::WindowIndex;
use portcullis_nic::Region;
use portcullis_protocol::{Lifetime, Moment, PermissionId, Rights, Sharing};

/// «No permission» in a link.
pub(crate) const NONE: u32 = u32::MAX;

/// Where a permission is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// Its protection is being set up: the client has not heard of it.
    Starting {
        /// The request that asked for it.
        sequence: u32,
    },
    /// The client holds it.
    Live,
    /// It has ended; its protection is being taken down.
    Ended,
}

/// What enforces a permission.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Grip {
    /// Nothing of its own: mechanisms `queue-pair`, `node-copy` and `none`, or not set up yet.
    None,
    /// One window over lifetime word and buffer (Patronus §5.4, contiguity).
    Window(WindowIndex),
    /// A window over each.
    Windows {
        /// Over the lifetime word.
        header: WindowIndex,
        /// Over the buffer.
        buffer: WindowIndex,
    },
    /// A region over each, or the same one twice.
    Regions {
        /// Over the lifetime word.
        header: Region,
        /// Over the buffer.
        buffer: Region,
    },
}

/// Some of an object's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Extent {
    /// Where in the object they start.
    pub offset: u64,
    pub length: u64,
}

impl Extent {
    /// Whether the two share a byte. Neither reaches beyond its object.
    pub fn overlaps(self, other: Self) -> bool {
        self.offset < other.offset + other.length && other.offset < self.offset + self.length
    }
}

/// What a permission is over, and beside whom.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Claim {
    pub extent: Extent,
    pub sharing: Sharing,
}

impl Claim {
    /// Whether both cannot be held at once.
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
    pub client: u64,
    pub tenant: u32,
    pub rights: Rights,
    /// As last seen, from the start.
    pub lifetime: Lifetime,
    /// How long its request waited.
    pub waited: Lifetime,
    /// The node has put zero into the lifetime word: it ends when `lifetime` is over.
    pub final_notice: bool,
    pub stage: Stage,
    pub grip: Grip,
    chains: [Links; 2],
}

#[derive(Clone, Copy, Debug)]
struct Links {
    before: u32,
    after: u32,
}

/// The two lists that a permission is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Chain {
    /// Of its object's holders.
    Object = 0,
    /// Of its client's permissions.
    Client = 1,
}

impl Permission {
    /// A permission in no list.
    pub fn new(id: PermissionId, object: ObjectId, holder: (u64, u32), rights: Rights, claim: Claim) -> Self {
        Self {
            id,
            object,
            claim,
            client: holder.0,
            tenant: holder.1,
            rights,
            lifetime: Lifetime(0),
            waited: Lifetime(0),
            final_notice: false,
            stage: Stage::Ended,
            grip: Grip::None,
            chains: [Links { before: NONE, after: NONE }; 2],
        }
    }

    /// When it ends, as far as is known.
    pub fn deadline(&self) -> Moment {
        self.id.start.after(self.lifetime)
    }
}

/// All permissions, by slot.
#[derive(Debug, Default)]
pub(crate) struct Permissions {
    slots: Table<Option<Permission>>,
    free: Vec<u32>,
}

impl Permissions {
    pub fn insert(&mut self, permission: Permission) -> u32 {
        if let Some(slot) = self.free.pop() {
            self.slots[slot as usize] = Some(permission);
            return slot;
        }
        self.slots.push(Some(permission));
        // Headers bound the number of permissions, and there are fewer than 2^32 of them.
        u32::try_from(self.slots.len() - 1).unwrap_or(NONE)
    }

    pub fn remove(&mut self, slot: u32) {
        if self.slots[slot as usize].take().is_some() {
            self.free.push(slot);
        }
    }

    /// The permission in a slot that this node itself noted.
    pub fn get(&self, slot: u32) -> Option<&Permission> {
        self.slots.get(slot as usize)?.as_ref()
    }

    pub fn get_mut(&mut self, slot: u32) -> Option<&mut Permission> {
        self.slots.get_mut(slot as usize)?.as_mut()
    }

    /// How many there are, in any stage.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Puts a permission first in the list that starts with `head`.
    pub fn link(&mut self, chain: Chain, head: &mut u32, slot: u32) {
        let after = std::mem::replace(head, slot);
        if let Some(next) = self.get_mut(after) {
            next.chains[chain as usize].before = slot;
        }
        if let Some(this) = self.get_mut(slot) {
            this.chains[chain as usize] = Links { before: NONE, after };
        }
    }

    /// Takes a permission out of the list that starts with `head`.
    pub fn unlink(&mut self, chain: Chain, head: &mut u32, slot: u32) {
        let Some(this) = self.get_mut(slot) else { return };
        let nowhere = Links { before: NONE, after: NONE };
        let Links { before, after } = std::mem::replace(&mut this.chains[chain as usize], nowhere);
        match self.get_mut(before) {
            Some(previous) => previous.chains[chain as usize].after = after,
            None if *head == slot => *head = after,
            None => {}
        }
        if let Some(next) = self.get_mut(after) {
            next.chains[chain as usize].before = before;
        }
    }

    /// The slots of the list that starts with `head`.
    pub fn chain(&self, chain: Chain, head: u32) -> impl Iterator<Item = u32> + '_ {
        std::iter::successors(Some(head).filter(|&slot| slot != NONE), move |&slot| {
            self.get(slot).map(|this| this.chains[chain as usize].after).filter(|&next| next != NONE)
        })
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
            let slots: Vec<u32> = (0..24)
                .map(|_| table.insert(Permission::new(id, ObjectId(0), (0, 0), Rights::READ, claim)))
                .collect();
            let (mut head, mut model) = (NONE, Vec::new());
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
