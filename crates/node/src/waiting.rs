//! Requests that wait for an object: who goes before whom, and who hears of it.
//!
//! Those who ask for the whole of an object, or hold it, are first come, first served. Once somebody has asked for a
//! part of it, requests and holders that have no byte in common do not wait for each other.

use crate::node::Node;
use crate::permissions::{Chain, Claim};
use crate::postponed::Waiter;
use crate::slabs::ObjectId;
use portcullis_nic::Nic;
use portcullis_protocol::planted::{self, Fault};
use portcullis_protocol::{Moment, Refusal, Sharing};

/// Permissions that an object has at the most once parts of it are asked for: each request looks at all of them.
const PARTS_MAX: u32 = 1024;

/// Claims that are compared in the time of a step.
const CLAIMS_PER_STEP: usize = 64;

/// Requests waiting for a divided object that are looked at when somebody lets go. Those behind wait for these.
const LOOKED_AT_MAX: usize = 64;

impl<N: Nic> Node<N> {
    /// Somebody asks for a part of an object.
    pub(crate) fn divide(&mut self, object: ObjectId) -> Result<(), Refusal> {
        let record = self.slabs.get_mut(object);
        if record.holders >= PARTS_MAX {
            return Err(Refusal::NodeFull { limit: PARTS_MAX.into() });
        }
        record.divided = true;
        Ok(())
    }

    /// Whether a permission may start beside the present holders.
    pub(crate) fn admits(&self, object: ObjectId, claim: Claim) -> bool {
        let record = self.slabs.get(object);
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
    fn holders(&self, object: ObjectId) -> impl Iterator<Item = (u32, Claim)> + '_ {
        let chain = self.permissions.chain(Chain::Object, self.slabs.get(object).first);
        chain.filter_map(|slot| self.permissions.get(slot).map(|it| (slot, it.claim)))
    }

    /// Whether somebody waits for the object who must not be overtaken by such a permission.
    pub(crate) fn is_awaited(&self, object: ObjectId, claim: Claim) -> bool {
        let record = self.slabs.get(object);
        if !record.divided {
            return !record.waiting.is_empty();
        }
        let mut waiting = record.waiting.iter().filter_map(|&waiter| self.postponed.get(waiter));
        waiting.any(|waiter| waiter.wish.claim.conflicts(claim))
    }

    /// Somebody waits for the object: its holders cannot extend any more (Patronus §5.3).
    pub(crate) fn give_notice(&mut self, object: ObjectId, claim: Claim, now: Moment) {
        let divided = self.slabs.get(object).divided;
        let aware = |slot: u32| self.permissions.get(slot).is_none_or(|it| it.final_notice);
        let holders: Vec<u32> = if divided {
            let concerned = |&(slot, held): &(u32, Claim)| held.conflicts(claim) && !aware(slot);
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
    pub(crate) fn serve_waiters(&mut self, object: ObjectId, now: Moment) {
        if planted::is(Fault::WaiterForgotten) {
            return;
        }
        loop {
            if self.steps_left == 0 {
                return self.serve_later(object);
            }
            let Some(waiter) = self.next_admitted(object) else { return };
            self.take_step();
            let record = self.slabs.get_mut(object);
            record.no_longer_waits(waiter);
            let Some(Waiter { wish, .. }) = self.postponed.take(waiter) else { continue };
            if self.clients.get(wish.client).is_none() {
                continue;
            }
            match self.start(&wish, object, now) {
                Ok(slot) => self.enlist(slot),
                Err(refusal) => self.refuse(wish.client, wish.sequence, refusal),
            }
        }
    }

    /// This turn has done enough: a later one lets in who waits for the object.
    fn serve_later(&mut self, object: ObjectId) {
        let record = self.slabs.get_mut(object);
        if !record.waiting.is_empty() && !std::mem::replace(&mut record.put_off, true) {
            self.put_off.push_back((object, record.birth));
        }
    }

    /// Goes on with letting those in that an earlier turn had no time for.
    pub(crate) fn serve_put_off(&mut self, now: Moment) -> bool {
        let any = !self.put_off.is_empty();
        if planted::is(Fault::PutOffForgotten) {
            self.put_off.clear();
        }
        while self.steps_left > 0
            && let Some((object, birth)) = self.put_off.pop_front()
        {
            if !self.slabs.is_live(object) || self.slabs.get(object).birth != birth {
                continue;
            }
            self.slabs.get_mut(object).put_off = false;
            self.serve_waiters(object, now);
            self.release_if_unwanted(object);
        }
        any
    }

    /// So many claims are compared: in a crowd that takes time as well.
    pub(crate) fn charge_claims(&mut self, claims: usize) {
        let steps = u32::try_from(claims / CLAIMS_PER_STEP).unwrap_or(u32::MAX);
        self.steps_left = self.steps_left.saturating_sub(steps);
    }

    /// The first of those who wait that may start now, and overtakes nobody who is in its way.
    fn next_admitted(&mut self, object: ObjectId) -> Option<u32> {
        let record = self.slabs.get(object);
        if record.divided {
            let waiting = record.waiting.len().min(LOOKED_AT_MAX);
            self.charge_claims(waiting * (record.holders as usize + waiting / 2));
        }
        let record = self.slabs.get(object);
        let most = if record.divided { LOOKED_AT_MAX } else { 1 };
        let mut before: Vec<Claim> = Vec::new();
        for &waiter in record.waiting.iter().take(most) {
            // One that is not there any more is taken out.
            let Some(claim) = self.postponed.get(waiter).map(|it| it.wish.claim) else { return Some(waiter) };
            let free = !before.iter().any(|other| other.conflicts(claim));
            if free && self.admits(object, claim) {
                return Some(waiter);
            }
            before.push(claim);
        }
        None
    }

    /// Requests that have waited for as long as they were ready to.
    pub(crate) fn time_out_requests(&mut self, now: Moment) -> bool {
        let mut worked = false;
        while self.steps_left > 0
            && let Some(slot) = self.postponed.timed_out(now)
        {
            self.take_step();
            let Some(waiter) = self.drop_waiter(slot) else { continue };
            self.refuse(waiter.wish.client, waiter.wish.sequence, Refusal::Conflict);
            // Those behind it may be let in beside the present holders.
            self.serve_waiters(waiter.object, now);
            worked = true;
        }
        worked
    }

    pub(crate) fn drop_waiter(&mut self, slot: u32) -> Option<Waiter> {
        let waiter = self.postponed.take(slot)?;
        self.slabs.get_mut(waiter.object).no_longer_waits(slot);
        Some(waiter)
    }
}
