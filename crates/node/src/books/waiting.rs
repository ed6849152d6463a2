//! Requests that wait for an object: their order, and which holders get notice.
//!
//! Requests for the whole of an object are served first come, first served. Once there was a request for a part of an
//! object, requests and holders that have no byte in common do not wait for each other.

use super::Books;
use super::permissions::{Chain, Claim, Origin, PermissionSlot};
use super::pool::ObjectId;
use super::postponed::{Waiter, WaiterSlot};
use portcullis_nic::Memory;
use portcullis_planted::planted;
use portcullis_protocol::{Moment, Refusal, Sharing, TenantId};

/// The most permissions over an object of which parts were requested: each request looks at all of them.
const PARTS_MAX: u32 = 1024;

/// Number of claims that can be compared in the time of one step.
const CLAIMS_PER_STEP: usize = 64;

/// Number of requests for a divided object that are checked when a holder releases it. Requests behind them wait for
/// these.
const LOOKED_AT_MAX: usize = 64;

impl<M: Memory> Books<M> {
    /// Notes that there was a request for a part of the object.
    pub(super) fn divide(&mut self, object: ObjectId) -> Result<(), Refusal> {
        let record = self.pool.slabs.get_mut(object);
        if record.permissions.held() >= PARTS_MAX {
            return Err(Refusal::NodeFull { limit: PARTS_MAX.into() });
        }
        record.divided = true;
        Ok(())
    }

    /// Whether a permission of a tenant may start beside the present holders.
    pub(super) fn admits(&self, object: ObjectId, claim: Claim, tenant: TenantId) -> bool {
        let record = self.pool.slabs.get(object);
        // Only the holder that waits for the scrub is admitted: other tenants' bytes may still lie there.
        if record.scrubbing {
            return false;
        }
        // Each tenant's windows are bound and unbound in an order of their own. So no permission starts before the
        // protection of other tenants' ended permissions is known to be down.
        if self.fading_beside(object, tenant) > 0 {
            return false;
        }
        let shared = claim.sharing == Sharing::Shared || planted!(ExclusiveBesideShared);
        if record.permissions.held() == 0 || (record.permissions.exclusive() == 0 && shared) {
            return true;
        }
        let room = record.divided && record.permissions.held() < PARTS_MAX;
        room && !self.holders(object).any(|(_, held)| held.conflicts(claim))
    }

    /// Iterates over the holders of an object and their claims, the latest first.
    fn holders(&self, object: ObjectId) -> impl Iterator<Item = (PermissionSlot, Claim)> + '_ {
        let chain = self.permissions.chain(Chain::Object, self.pool.slabs.get(object).first);
        chain.map(|slot| (slot, self.permissions.get(slot).claim))
    }

    /// Whether a request waits for the object that a permission with this claim must not overtake.
    pub(super) fn is_awaited(&self, object: ObjectId, claim: Claim) -> bool {
        let record = self.pool.slabs.get(object);
        if !record.divided {
            return !record.waiting.is_empty();
        }
        record.waiting.iter().any(|&waiter| self.postponed.get(waiter).wish.claim.conflicts(claim))
    }

    /// Notifies the holders that are in the way of a waiting request: they cannot extend any more (Patronus §5.3).
    pub(super) fn give_notice(&mut self, object: ObjectId, claim: Claim, now: Moment) {
        let divided = self.pool.slabs.get(object).divided;
        let aware = |slot: PermissionSlot| self.permissions.get(slot).final_notice;
        let holders: Vec<PermissionSlot> = if divided {
            let concerned = |&(slot, held): &(PermissionSlot, Claim)| held.conflicts(claim) && !aware(slot);
            self.holders(object).filter(concerned).map(|(slot, _)| slot).collect()
        } else {
            // The latest holders come first: all holders after a notified one were notified too. So a crowd of holders
            // costs a further waiting request nothing.
            self.holders(object).map(|(slot, _)| slot).take_while(|&slot| !aware(slot)).collect()
        };
        for slot in holders {
            self.notify(slot, now);
        }
    }

    /// Grants the waiting requests for the object, as far as they can hold it together. Refuses all of them if the
    /// object was freed.
    pub(super) fn serve_waiters(&mut self, object: ObjectId, now: Moment) {
        if planted!(WaiterForgotten) {
            return;
        }
        loop {
            if self.steps_left == 0 {
                return self.serve_later(object);
            }
            let Some(waiter) = self.next_admitted(object) else { return };
            self.take_step();
            let Waiter { wish, .. } = self.drop_waiter(waiter);
            if self.pool.is_freed(object) {
                self.refuse(wish.from, Refusal::Gone);
            } else if self.accounts.clients.get(wish.from.client).is_some() {
                match self.start(&wish, object, Origin::Request { sequence: wish.from.sequence }, now) {
                    Ok(slot) => self.expose(slot),
                    Err(refusal) => self.refuse(wish.from, refusal),
                }
            }
            wish.guest.into_iter().for_each(|guest| self.forget_guest_if_gone(guest));
        }
    }

    /// Leaves the waiting requests for the object to a later turn: this turn has no steps left.
    fn serve_later(&mut self, object: ObjectId) {
        let record = self.pool.slabs.get_mut(object);
        if !record.waiting.is_empty() && !std::mem::replace(&mut record.put_off, true) {
            self.put_off.push_back((object, record.birth));
        }
    }

    /// Continues to grant the requests for which an earlier turn had no steps.
    pub(super) fn serve_put_off(&mut self, now: Moment) -> bool {
        let any = !self.put_off.is_empty();
        if planted!(PutOffForgotten) {
            self.put_off.clear();
        }
        while self.steps_left > 0
            && let Some((object, birth)) = self.put_off.pop_front()
        {
            // The object may have been removed meanwhile, and another may have its id.
            if !self.pool.slabs.is_live(object) || self.pool.slabs.get(object).birth != birth {
                continue;
            }
            self.pool.slabs.get_mut(object).put_off = false;
            self.serve_waiters(object, now);
            self.release_if_unwanted(object, now);
        }
        any
    }

    /// Takes steps for comparing claims, because comparing many of them takes time.
    pub(super) fn charge_claims(&mut self, claims: usize) {
        self.take_steps(claims / CLAIMS_PER_STEP);
    }

    /// Returns the first waiting request that may start now, and that overtakes no request in its way.
    fn next_admitted(&mut self, object: ObjectId) -> Option<WaiterSlot> {
        let record = self.pool.slabs.get(object);
        if self.pool.is_freed(object) {
            return record.waiting.front().copied();
        }
        if record.divided {
            let waiting = record.waiting.len().min(LOOKED_AT_MAX);
            self.charge_claims(waiting * (record.permissions.held() as usize + waiting / 2));
        }
        let record = self.pool.slabs.get(object);
        let most = if record.divided { LOOKED_AT_MAX } else { 1 };
        let mut before: Vec<Claim> = Vec::new();
        for &waiter in record.waiting.iter().take(most) {
            let wish = &self.postponed.get(waiter).wish;
            let (claim, tenant) = (wish.claim, wish.from.tenant);
            let free = !before.iter().any(|other| other.conflicts(claim));
            if free && self.admits(object, claim, tenant) {
                return Some(waiter);
            }
            before.push(claim);
        }
        None
    }

    /// Refuses requests that have waited for their longest time.
    pub(super) fn time_out_requests(&mut self, now: Moment) -> bool {
        let mut worked = false;
        while self.steps_left > 0
            && let Some(slot) = self.postponed.timed_out(now)
        {
            self.take_step();
            let waiter = self.drop_waiter(slot);
            self.refuse(waiter.wish.from, Refusal::Conflict);
            self.pass_waiter(&waiter, now);
            worked = true;
        }
        worked
    }

    /// Takes out a waiting request.
    pub(super) fn drop_waiter(&mut self, slot: WaiterSlot) -> Waiter {
        let waiter = self.postponed.take(slot);
        self.accounts.stop_waiting(slot, waiter.object, waiter.wish.guest, &mut self.pool.slabs);
        waiter
    }

    /// Handles a request that waits no more and was not granted.
    pub(super) fn pass_waiter(&mut self, waiter: &Waiter, now: Moment) {
        waiter.wish.guest.into_iter().for_each(|guest| self.forget_guest_if_gone(guest));
        // The requests behind it may fit beside the present holders.
        self.serve_waiters(waiter.object, now);
        // Other tenants alone do not keep the object.
        self.release_if_unwanted(waiter.object, now);
    }
}
