//! Freeing: a freed object is granted to no client any more, and is removed with its last permission.
//!
//! An object without members and holders is removed at once. If a head is freed, its members are freed one after
//! another, as far as a turn's steps allow. Until a member is unlinked it counts as freed because its head is. The head
//! is removed last.

use super::Books;
use super::effects::OwedReply;
use super::pending_frees::{PendingFreeKey, PendingFrees};
use super::permissions::Chain;
use super::pool::ObjectId;
use super::requests::RequestOrigin;
use portcullis_nic::Memory;
use portcullis_planted::planted;
use portcullis_protocol::{Holders, Keep, Moment, ObjectName, Refusal};
use std::collections::{HashMap, VecDeque};

/// Reason that a permission ended, or did not start.
pub(super) const FREED: &str = "its object was freed";

/// Freed objects that still exist, as far as the node has work for them.
#[derive(Debug, Default)]
pub(crate) struct Freeing {
    pending_frees: PendingFrees,
    /// The group of objects with which each object is removed: a head and its members, or one object alone. The head
    /// stays until all its members are in the group.
    together: HashMap<ObjectId, PendingFreeKey>,
    /// Objects whose members must be freed or whose holders must be ended, with the objects' births.
    under_way: VecDeque<(ObjectId, u64)>,
}

impl Freeing {
    /// Whether no later turn has work to do.
    pub fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Returns the group with which an object is removed: itself alone, unless a larger group is known.
    fn pending_free(&mut self, object: ObjectId) -> PendingFreeKey {
        *self.together.entry(object).or_insert_with(|| self.pending_frees.begin(1))
    }

    /// Adds a member to the group of its head.
    fn join(&mut self, member: ObjectId, head: ObjectId) {
        let pending_free = self.pending_free(head);
        if self.together.insert(member, pending_free).is_none() {
            self.pending_frees.add(pending_free);
        }
    }

    /// Notes that an object was removed. Returns the replies that are due now.
    fn leave(&mut self, object: ObjectId) -> Vec<OwedReply> {
        // Nearly always there is no group, and this check costs less than a hash.
        if self.together.is_empty() {
            return Vec::new();
        }
        let pending_free = self.together.remove(&object);
        pending_free.map_or_else(Vec::new, |pending_free| self.pending_frees.one_gone(pending_free))
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
        // The object is only waiting for its last exposure to end. Its members, if it had any, belong to no head now,
        // so this request does not end them.
        if record.going && (record.freed.is_none() || holders == Holders::Stay) {
            return Err(name.missing());
        }
        let answers_at_once = holders == Holders::Stay || planted!(FreeAnsweredEarly);
        if !answers_at_once {
            let pending_free = self.freeing.pending_free(object);
            let owed = OwedReply { client: from.client, sequence: from.sequence };
            self.freeing.pending_frees.owe(pending_free, owed);
        }
        self.begin_to_free(object, holders, now);
        self.go_on_freeing(now);
        if answers_at_once {
            self.reply_done(from);
        }
        Ok(())
    }

    /// Begins to free an object. From now on nothing of it and of its members is granted. The object is removed when it
    /// has neither members nor holders. No permission ends yet: see [`Books::go_on_freeing`].
    pub(super) fn begin_to_free(&mut self, object: ObjectId, holders: Holders, now: Moment) {
        if !planted!(MembersNotFreed) && !self.pool.slabs.get(object).members().is_empty() {
            self.freeing.pending_free(object);
        }
        self.strike_as_freed(object, holders, now);
    }

    /// Marks an object as freed: no permission over it is granted any more. Its members and holders stay for now.
    fn strike_as_freed(&mut self, object: ObjectId, holders: Holders, now: Moment) {
        let record = self.pool.slabs.get_mut(object);
        let first_time = record.freed.is_none();
        record.freed = record.freed.max(Some(holders));
        let birth = record.birth;
        if first_time {
            self.accounts.set_keep(object, Keep::No, &mut self.pool.slabs);
            // Other tenants' permissions end in any case.
            self.strike_name_if_any(object, now);
            self.serve_waiters(object, now);
        }
        self.leave_head(object);
        let record = self.pool.slabs.get(object);
        let holders_end = record.freed == Some(Holders::End) && record.permissions.held() > 0;
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
            // The object may have been removed meanwhile, and another may have its id.
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

    /// Frees a member of a freed head. Returns whether it had one.
    fn free_a_member(&mut self, head: ObjectId, now: Moment) -> bool {
        let record = self.pool.slabs.get(head);
        let (Some(&member), Some(holders)) = (record.members().last(), record.freed) else { return false };
        self.take_step();
        if planted!(MembersNotFreed) {
            self.leave_head(member);
            return true;
        }
        self.freeing.join(member, head);
        self.strike_as_freed(member, holders, now);
        true
    }

    /// Ends permissions over a freed object whose holders must not stay. Returns whether there were any.
    fn end_some_holders(&mut self, object: ObjectId, now: Moment) -> bool {
        let record = self.pool.slabs.get(object);
        record.freed == Some(Holders::End) && self.end_live(Chain::Object, record.first, FREED, now)
    }

    /// Queues the replies that are due because a freed object was removed.
    pub(super) fn handle_freed_gone(&mut self, object: ObjectId) {
        for owed in self.freeing.leave(object) {
            self.handle_settled(owed);
        }
    }
}
