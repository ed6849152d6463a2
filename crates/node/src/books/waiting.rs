//! Requests that wait for an object: who goes before whom, and who hears of it.
//!
//! Those who ask for the whole of an object, or hold it, are first come, first served. Once somebody has asked for a
//! part of it, requests and holders that have no byte in common do not wait for each other.

use super::Books;
use super::permissions::{Chain, Claim, Origin, PermissionSlot};
use super::pool::ObjectId;
use super::postponed::{Waiter, WaiterSlot};
use portcullis_nic::Memory;
use portcullis_protocol::planted::{self, Fault};
use portcullis_protocol::{Moment, Refusal, Sharing};

/// Permissions that an object has at the most once parts of it are asked for: each request looks at all of them.
const PARTS_MAX: u32 = 1024;

/// Claims that are compared in the time of a step.
const CLAIMS_PER_STEP: usize = 64;

/// Requests waiting for a divided object that are looked at when somebody lets go. Those behind wait for these.
const LOOKED_AT_MAX: usize = 64;

impl<M: Memory> Books<M> {
    /// Somebody asks for a part of an object.
    pub(super) fn divide(&mut self, object: ObjectId) -> Result<(), Refusal> {
        let record = self.pool.slabs.get_mut(object);
        if record.holders >= PARTS_MAX {
            return Err(Refusal::NodeFull { limit: PARTS_MAX.into() });
        }
        record.divided = true;
        Ok(())
    }

    /// Whether a permission may start beside the present holders.
    pub(super) fn admits(&self, object: ObjectId, claim: Claim) -> bool {
        let record = self.pool.slabs.get(object);
        // Nobody but the holder that waits for it: other tenants' bytes may still lie there.
        if record.scrubbing {
            return false;
        }
        let shared = claim.sharing == Sharing::Shared || planted::is(Fault::ExclusiveBesideShared);
        if record.holders == 0 || (record.exclusive == 0 && shared) {
            return true;
        }
        let room = record.divided && record.holders < PARTS_MAX;
        room && !self.holders(object).any(|(_, held)| held.conflicts(claim))
    }

    /// The holders of an object, the latest first, and what they hold.
    fn holders(&self, object: ObjectId) -> impl Iterator<Item = (PermissionSlot, Claim)> + '_ {
        let chain = self.permissions.chain(Chain::Object, self.pool.slabs.get(object).first);
        chain.map(|slot| (slot, self.permissions.get(slot).claim))
    }

    /// Whether somebody waits for the object who must not be overtaken by such a permission.
    pub(super) fn is_awaited(&self, object: ObjectId, claim: Claim) -> bool {
        let record = self.pool.slabs.get(object);
        if !record.divided {
            return !record.waiting.is_empty();
        }
        record.waiting.iter().any(|&waiter| self.postponed.get(waiter).wish.claim.conflicts(claim))
    }

    /// Somebody waits for the object: its holders cannot extend any more (Patronus §5.3).
    pub(super) fn give_notice(&mut self, object: ObjectId, claim: Claim, now: Moment) {
        let divided = self.pool.slabs.get(object).divided;
        let aware = |slot: PermissionSlot| self.permissions.get(slot).final_notice;
        let holders: Vec<PermissionSlot> = if divided {
            let concerned = |&(slot, held): &(PermissionSlot, Claim)| held.conflicts(claim) && !aware(slot);
            self.holders(object).filter(concerned).map(|(slot, _)| slot).collect()
        } else {
            // The latest holders come first: behind one that has had its notice, all have. A crowd of holders costs
            // each of those who wait nothing that way.
            self.holders(object).map(|(slot, _)| slot).take_while(|&slot| !aware(slot)).collect()
        };
        for slot in holders {
            self.notify(slot, now);
        }
    }

    /// Lets those in that wait for an object, as far as they may be there together.
    pub(super) fn serve_waiters(&mut self, object: ObjectId, now: Moment) {
        if planted::is(Fault::WaiterForgotten) {
            return;
        }
        loop {
            if self.steps_left == 0 {
                return self.serve_later(object);
            }
            let Some(waiter) = self.next_admitted(object) else { return };
            self.take_step();
            let Waiter { wish, .. } = self.drop_waiter(waiter);
            // A client that has gone meanwhile gets nothing.
            if self.clients.get(wish.from.client).is_none() {
                continue;
            }
            match self.start(&wish, object, Origin::Request { sequence: wish.from.sequence }, now) {
                Ok(slot) => self.expose(slot),
                Err(refusal) => self.refuse(wish.from, refusal),
            }
        }
    }

    /// This turn has done enough: a later one lets in who waits for the object.
    fn serve_later(&mut self, object: ObjectId) {
        let record = self.pool.slabs.get_mut(object);
        if !record.waiting.is_empty() && !std::mem::replace(&mut record.put_off, true) {
            self.put_off.push_back((object, record.birth));
        }
    }

    /// Goes on with letting those in that an earlier turn had no time for.
    pub(super) fn serve_put_off(&mut self, now: Moment) -> bool {
        let any = !self.put_off.is_empty();
        if planted::is(Fault::PutOffForgotten) {
            self.put_off.clear();
        }
        while self.steps_left > 0
            && let Some((object, birth)) = self.put_off.pop_front()
        {
            // The object may have gone meanwhile, and another may have its number.
            if !self.pool.slabs.is_live(object) || self.pool.slabs.get(object).birth != birth {
                continue;
            }
            self.pool.slabs.get_mut(object).put_off = false;
            self.serve_waiters(object, now);
            self.release_if_unwanted(object);
        }
        any
    }

    /// So many claims are compared: in a crowd that takes time as well.
    pub(super) fn charge_claims(&mut self, claims: usize) {
        self.take_steps(claims / CLAIMS_PER_STEP);
    }

    /// The first of those who wait that may start now, and overtakes nobody who is in its way.
    fn next_admitted(&mut self, object: ObjectId) -> Option<WaiterSlot> {
        let record = self.pool.slabs.get(object);
        if record.divided {
            let waiting = record.waiting.len().min(LOOKED_AT_MAX);
            self.charge_claims(waiting * (record.holders as usize + waiting / 2));
        }
        let record = self.pool.slabs.get(object);
        let most = if record.divided { LOOKED_AT_MAX } else { 1 };
        let mut before: Vec<Claim> = Vec::new();
        for &waiter in record.waiting.iter().take(most) {
            let claim = self.postponed.get(waiter).wish.claim;
            let free = !before.iter().any(|other| other.conflicts(claim));
            if free && self.admits(object, claim) {
                return Some(waiter);
            }
            before.push(claim);
        }
        None
    }

    /// Requests that have waited for as long as they were ready to.
    pub(super) fn time_out_requests(&mut self, now: Moment) -> bool {
        let mut worked = false;
        while self.steps_left > 0
            && let Some(slot) = self.postponed.timed_out(now)
        {
            self.take_step();
            let waiter = self.drop_waiter(slot);
            self.refuse(waiter.wish.from, Refusal::Conflict);
            // Those behind it may be let in beside the present holders.
            self.serve_waiters(waiter.object, now);
            worked = true;
        }
        worked
    }

    /// Takes out a request that waits.
    pub(super) fn drop_waiter(&mut self, slot: WaiterSlot) -> Waiter {
        let waiter = self.postponed.take(slot);
        self.pool.slabs.get_mut(waiter.object).no_longer_waits(slot);
        waiter
    }
}
