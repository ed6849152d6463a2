//! Objects that belong together: a head and its members. The shares of the head's name apply to all of them.
//!
//! A structure in remote memory consists of several objects, which are added one after another. Its tenant shares it by
//! one name.

use super::Books;
use super::accounts::GuestKey;
use super::effects::OwedReply;
use super::pool::{Membership, ObjectId};
use super::requests::RequestOrigin;
use crate::audit::{AuditEvent, AuditRecord, AuditedMember};
use portcullis_nic::Memory;
use portcullis_planted::planted;
use portcullis_protocol::{Moment, ObjectRef, Refusal};

impl<M: Memory> Books<M> {
    /// Makes an object a member of a head. Both must be the tenant's own.
    pub(super) fn include(
        &mut self,
        from: RequestOrigin,
        (member, head): (ObjectRef, ObjectRef),
        now: Moment,
    ) -> Result<(), Refusal> {
        self.check_standing(from, now)?;
        let audited = AuditedMember { object: member, head };
        let member = self.pool.object_named(from.tenant, member.into())?;
        let head = self.pool.object_named(from.tenant, head.into())?;
        if self.head_of(member) != Some(head) {
            let of_head = self.pool.slabs.get(head);
            let record = self.pool.slabs.get(member);
            let is_free = record.name().is_none() && record.members().is_empty();
            if member == head || !is_free || self.head_of(member).is_some() || of_head.membership().is_some()
            {
                return Err(Refusal::CannotInclude);
            }
            self.join(member, head);
            self.audit.of_client(&self.accounts, now, AuditEvent::Include, from.client, |record| {
                AuditRecord { member: Some(Box::new(audited)), ..record }
            });
        }
        self.reply_done(from);
        Ok(())
    }

    fn join(&mut self, member: ObjectId, head: ObjectId) {
        let members = &mut self.pool.slabs.get_mut(head).named().members;
        let place = members.len();
        members.push(member);
        self.pool.slabs.get_mut(member).named().membership = Some(Membership { head, place });
    }

    fn head_of(&self, member: ObjectId) -> Option<ObjectId> {
        self.pool.slabs.get(member).membership().map(|it| it.head)
    }

    /// Returns the object whose name decides with whom an object is shared: its head, or itself.
    pub(super) fn namesake(&self, object: ObjectId) -> ObjectId {
        self.head_of(object).unwrap_or(object)
    }

    /// Returns the guests at an object and at its members for which `is_it` holds.
    pub(super) fn guests_of_all(&self, head: ObjectId, is_it: impl Fn(&GuestKey) -> bool) -> Vec<GuestKey> {
        let members = self.pool.slabs.get(head).members();
        let members = if planted!(MembersStayShared) { &[] } else { members };
        let all = std::iter::once(&head).chain(members);
        let guests = all.flat_map(|&object| self.pool.slabs.get(object).guests());
        guests.copied().filter(is_it).collect()
    }

    /// Ends the memberships of an object that is removed: of its members in it, and its own. Other tenants' permissions
    /// over it end.
    pub(super) fn strike_memberships(&mut self, object: ObjectId) {
        if self.pool.slabs.get(object).named.is_none() {
            return;
        }
        for member in std::mem::take(&mut self.pool.slabs.get_mut(object).named().members) {
            self.pool.slabs.get_mut(member).named().membership = None;
        }
        self.leave_head(object);
    }

    /// Removes an object from its head. Other tenants' permissions over it end.
    pub(super) fn leave_head(&mut self, object: ObjectId) {
        let Some(Membership { head, place }) = self.pool.slabs.get(object).membership() else { return };
        self.pool.slabs.get_mut(object).named().membership = None;
        let members = &mut self.pool.slabs.get_mut(head).named().members;
        members.swap_remove(place);
        if let Some(&moved) = members.get(place) {
            self.pool.slabs.get_mut(moved).named().membership = Some(Membership { head, place });
        }
        let guests = self.pool.slabs.get(object).guests().to_vec();
        self.show_out(&guests, None::<OwedReply>);
    }
}
