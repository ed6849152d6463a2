//! Freeing: what a tenant has freed is given to nobody any more, and goes with its last permission.
//!
//! An object without members and holders goes at once. With a head its members are freed, one after another, as far as a
//! turn's steps allow: until they are unlinked they count as freed because their head is. The head goes last.

use super::Books;
use super::effects::OwedReply;
use super::permissions::{Chain, PermissionSlot};
use super::pool::ObjectId;
use super::requests::RequestOrigin;
use crate::audit::AuditEvent;
use portcullis_nic::Memory;
use portcullis_protocol::planted::{self, Fault};
use portcullis_protocol::{Holders, Moment, ObjectName, Refusal};
use portcullis_slots::{Reuse, Slots};
use std::collections::{HashMap, VecDeque};

/// Why a permission ended, or did not start.
pub(super) const FREED: &str = "its object was freed";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct GroupKey(u32);

portcullis_slots::number_key!(GroupKey);

/// Objects that were freed together: a head and its members, or one alone.
#[derive(Debug, Default)]
struct Group {
    /// How many are there still. The head is until all members are known to the group.
    left: usize,
    /// Replies that are due when none is.
    owed: Vec<OwedReply>,
}

/// What was freed and is there still, as far as something is to be done for it.
#[derive(Debug)]
pub(crate) struct Freeing {
    groups: Slots<GroupKey, Group>,
    group_of: HashMap<ObjectId, GroupKey>,
    /// Objects whose members are to be freed or whose holders are to be ended, with the objects' births.
    under_way: VecDeque<(ObjectId, u64)>,
}

impl Default for Freeing {
    fn default() -> Self {
        let groups = Slots::new(Reuse::LatestFirst, u32::MAX);
        Self { groups, group_of: HashMap::new(), under_way: VecDeque::new() }
    }
}

impl Freeing {
    /// Whether nothing is to be done in a later turn.
    pub fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// The group of an object: a new one, if the object is in none yet.
    fn group(&mut self, object: ObjectId) -> GroupKey {
        if let Some(&group) = self.group_of.get(&object) {
            return group;
        }
        let group = self.groups.insert(Group::default());
        self.enter(object, group);
        group
    }

    fn enter(&mut self, object: ObjectId, group: GroupKey) {
        if self.group_of.insert(object, group).is_none() {
            self.groups[group].left += 1;
        }
    }

    /// An object has gone. Returns the replies that are due now.
    fn leave(&mut self, object: ObjectId) -> Vec<OwedReply> {
        if self.group_of.is_empty() {
            return Vec::new();
        }
        let Some(key) = self.group_of.remove(&object) else { return Vec::new() };
        let group = &mut self.groups[key];
        group.left -= 1;
        if group.left > 0 {
            return Vec::new();
        }
        self.groups.remove(key).expect("it was just there").owed
    }
}

impl<M: Memory> Books<M> {
    /// Frees an object of the client's tenant.
    pub(super) fn free(
        &mut self,
        from: RequestOrigin,
        name: ObjectName,
        holders: Holders,
        now: Moment,
    ) -> Result<(), Refusal> {
        let object = self.pool.object_of(from.tenant, name)?;
        let record = self.pool.slabs.get(object);
        // It has gone with its last permission. Its members, if it had any, belong to nothing, so this is no end of theirs.
        if record.going && (!record.freed || holders == Holders::Stay) {
            return Err(name.missing());
        }
        let answers_at_once = holders == Holders::Stay || planted::is(Fault::FreeAnsweredEarly);
        if !answers_at_once {
            let group = self.freeing.group(object);
            let owed = OwedReply { client: from.client, sequence: from.sequence };
            self.freeing.groups[group].owed.push(owed);
        }
        self.begin_to_free(object, holders, now);
        self.go_on_freeing(now);
        if answers_at_once {
            self.reply_done(from);
        }
        Ok(())
    }

    /// From now on nothing of an object and of its members is granted. The object goes when it has neither members nor
    /// holders. Ends no permission yet: see [`Books::go_on_freeing`].
    pub(super) fn begin_to_free(&mut self, object: ObjectId, holders: Holders, now: Moment) {
        if !planted::is(Fault::MembersNotFreed) && !self.pool.slabs.get(object).members().is_empty() {
            self.freeing.group(object);
        }
        self.strike_as_freed(object, holders, now);
    }

    /// Marks an object as freed: nobody is granted anything of it any more. Its members and holders are still there.
    fn strike_as_freed(&mut self, object: ObjectId, holders: Holders, now: Moment) {
        let record = self.pool.slabs.get_mut(object);
        let first_time = !std::mem::replace(&mut record.freed, true);
        record.ends_holders |= holders == Holders::End;
        record.is_awaited |= holders != Holders::Stay;
        let birth = record.birth;
        if first_time {
            self.strike_kept(object);
            // What other tenants hold ends in any case.
            self.strike_name_if_any(object, now);
            self.serve_waiters(object, now);
        }
        self.leave_head(object);
        let record = self.pool.slabs.get(object);
        let holders_end = record.ends_holders && record.holders > 0;
        if !record.members().is_empty() || holders_end {
            self.freeing.under_way.push_back((object, birth));
        } else {
            self.release_if_unwanted(object, now);
        }
    }

    /// Continues to free members and to end permissions over freed objects, as far as this turn's steps allow.
    pub(super) fn go_on_freeing(&mut self, now: Moment) {
        while self.steps_left > 0
            && let Some(&(object, birth)) = self.freeing.under_way.front()
        {
            // The object may have gone meanwhile, and another may have its number.
            let is_there = self.pool.slabs.is_live(object) && self.pool.slabs.get(object).birth == birth;
            if is_there && (self.free_a_member(object, now) || self.end_some_holders(object, now)) {
                continue;
            }
            self.freeing.under_way.pop_front();
            if is_there {
                self.release_if_unwanted(object, now);
            }
        }
    }

    /// Frees a member of a freed head. Returns whether there was one.
    fn free_a_member(&mut self, head: ObjectId, now: Moment) -> bool {
        let record = self.pool.slabs.get(head);
        let Some(&member) = record.members().last() else { return false };
        let holders = match (record.ends_holders, record.is_awaited) {
            (true, _) => Holders::End,
            (false, true) => Holders::Await,
            (false, false) => Holders::Stay,
        };
        self.take_step();
        if planted::is(Fault::MembersNotFreed) {
            self.leave_head(member);
            return true;
        }
        let group = self.freeing.group(head);
        self.freeing.enter(member, group);
        self.strike_as_freed(member, holders, now);
        true
    }

    /// Ends permissions over a freed object whose holders are not to stay. Returns whether there were any.
    fn end_some_holders(&mut self, object: ObjectId, now: Moment) -> bool {
        let record = self.pool.slabs.get(object);
        if !record.ends_holders {
            return false;
        }
        // A permission that is being set up ends when the NIC has confirmed it.
        let live = self
            .permissions
            .chain(Chain::Object, record.first)
            .filter(|&it| self.permissions.get(it).is_live());
        let some: Vec<PermissionSlot> = live.take(self.steps_left as usize).collect();
        for &slot in &some {
            self.take_step();
            self.finish(slot, AuditEvent::Revoke, Some(FREED), None, now);
        }
        !some.is_empty()
    }

    /// A freed object has gone: replies may be due that wait for that.
    pub(super) fn handle_freed_gone(&mut self, object: ObjectId) {
        for owed in self.freeing.leave(object) {
            self.handle_settled(owed);
        }
    }
}
