//! The actions of a worker with names: it publishes objects, shares them with other tenants, and uses what others
//! share.

use super::{Purpose, Worker};
use crate::dice::Dice;
use crate::oracle::LONGEST_KEEP;
use crate::scene::{Scene, SimClient};
use portcullis_client::{Acquire, ControlRequest};
use portcullis_protocol::{
    DirectoryName, Entry, Keep, Lifetime, NamedRequest, ObjectRef, Rights, TenantName,
};
use std::collections::HashSet;

/// Names that all workers use, so that they meet.
const NAMES: u64 = 4;
/// Entries that a worker has found and has not used yet.
const FOUND_MAX: usize = 4;

/// A worker's habits and knowledge of names.
#[derive(Debug)]
pub(super) struct Names {
    /// A separate random stream: a worker that uses names does everything else as one that does not.
    dice: Dice,
    tenants: usize,
    found: Vec<Entry>,
    /// Objects of other tenants.
    foreign: HashSet<ObjectRef>,
    /// The object to which the worker last wanted to give a name.
    head: Option<ObjectRef>,
}

impl Names {
    pub fn new(dice: Dice, tenants: usize) -> Self {
        Self { dice, tenants, found: Vec::new(), foreign: HashSet::new(), head: None }
    }

    /// Whether an object is another tenant's, which may take it back.
    pub fn is_foreign(&self, object: ObjectRef) -> bool {
        self.foreign.contains(&object)
    }

    /// Records an entry that a lookup returned.
    pub fn found(&mut self, entry: Entry, foreign: bool) {
        if foreign {
            self.foreign.insert(entry.object);
        }
        if self.found.len() < FOUND_MAX {
            self.found.push(entry);
        }
    }

    fn name(&mut self) -> DirectoryName {
        let text = format!("name {}", self.dice.of(0..NAMES));
        text.parse().expect("it is short")
    }

    fn other(&mut self, tenant: usize) -> TenantName {
        let other = (tenant + 1 + self.dice.index(self.tenants.max(2) - 1)) % self.tenants.max(2);
        other.to_string().parse().expect("it is short")
    }

    fn rights(&mut self) -> Rights {
        let some = [Rights::READ, Rights::READ | Rights::WRITE, Rights::all(), Rights::ATOMIC];
        some[self.dice.index(some.len())]
    }
}

impl Names {
    /// Picks an object of another tenant that may belong to an object shared with this tenant.
    fn look_at_members(&mut self, scene: &mut Scene<'_>) {
        let owner = (scene.tenant + 1 + self.dice.index(self.tenants.max(2) - 1)) % self.tenants.max(2);
        let Some(members) = scene.gossip.members.get_mut(owner).filter(|_| owner != scene.tenant) else {
            return;
        };
        let Some(&object) = self.dice.pick(members.make_contiguous()) else { return };
        let (name, rights) = (self.name(), self.rights());
        self.found(Entry { name, object, size: 8, rights }, true);
    }
}

impl Worker {
    /// Does something with names, now and then. Returns whether it did.
    pub(super) fn use_names(&mut self, client: &mut SimClient, scene: &mut Scene<'_>) -> bool {
        let Some(names) = &mut self.names else { return false };
        if !names.dice.per_mille(300) {
            return false;
        }
        if !names.found.is_empty() && self.held.len() < self.held_max && names.dice.per_mille(800) {
            self.acquire_found(client, scene);
            return true;
        }
        let (name, other) = (names.name(), names.other(scene.tenant));
        let known = scene.gossip.objects[scene.tenant].make_contiguous();
        let object = names.dice.pick(known).copied();
        if names.dice.per_mille(120) {
            names.look_at_members(scene);
            return true;
        }
        let (request, purpose): (ControlRequest, _) = match (names.dice.of(0..18), object, names.head) {
            (0..4, Some(object), _) => {
                names.head = Some(object);
                (NamedRequest::Publish { name, object }.into(), Purpose::Naming)
            }
            (16.., Some(member), Some(head)) => {
                scene.gossip.include(scene.tenant, member);
                (ControlRequest::Include { member, head }, Purpose::Naming)
            }
            (4, ..) => (NamedRequest::Unpublish { name }.into(), Purpose::Naming),
            (5..9, ..) => {
                let rights = names.rights();
                (NamedRequest::Share { name, tenant: other, rights }.into(), Purpose::Naming)
            }
            (9..11, ..) => (NamedRequest::Unshare { name, tenant: other }.into(), Purpose::Naming),
            (11, Some(object), _) => {
                let time = Lifetime(names.dice.magnitude(1..LONGEST_KEEP.0 + 1));
                let keep = [Keep::Attached, Keep::For(time), Keep::No][names.dice.index(3)];
                (ControlRequest::Keep { object: object.into(), keep }, Purpose::Naming)
            }
            (12, ..) => {
                let after = names.dice.per_mille(500).then_some(name);
                let owner = Some(other);
                (NamedRequest::List { owner, after }.into(), Purpose::Lookup { foreign: true })
            }
            (13, ..) => {
                (NamedRequest::Lookup { owner: None, name }.into(), Purpose::Lookup { foreign: false })
            }
            _ => {
                let owner = Some(other);
                (NamedRequest::Lookup { owner, name }.into(), Purpose::Lookup { foreign: true })
            }
        };
        self.calls.extend(client.call(scene.moment, request).map(|call| (call, purpose)));
        true
    }

    /// Requests a permission over an object that was found: most often one that it may have.
    fn acquire_found(&mut self, client: &mut SimClient, scene: &mut Scene<'_>) {
        let Some(names) = &mut self.names else { return };
        let at = names.dice.index(names.found.len());
        let entry = if names.dice.per_mille(500) { names.found[at] } else { names.found.swap_remove(at) };
        let dice = &mut names.dice;
        let rights = if dice.per_mille(150) { Rights::all() } else { entry.rights };
        let wait = Lifetime(dice.magnitude(1..20_000));
        let mut ask = Acquire::object(entry.object).rights(rights).wait(wait);
        ask = ask.lifetime(Lifetime(dice.magnitude(20..self.habits.lifetime_max.max(40))));
        if !dice.per_mille(350) {
            ask = ask.shared();
        }
        if dice.per_mille(200) {
            let offset = dice.of(0..entry.size.max(1));
            ask = ask.part(offset, dice.of(0..entry.size - offset + 1));
        }
        let call = client.call(scene.moment, ask);
        self.began(call, Purpose::Grant { sharing: ask.sharing });
    }
}
