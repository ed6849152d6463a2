//! Clients that have gone, tenants that go with their last client, and what barred ones held: taken apart a little in
//! each turn.
//!
//! However much somebody holds, its end may not hold up the turn in which others are served. A client that has gone is
//! off the NIC at once; its permissions end over as many turns as they need, and its tenant stays until then.

use crate::audit::AuditEvent;
use crate::client::Client;
use crate::node::Node;
use crate::permissions::{Chain, NONE, Stage};
use portcullis_nic::Nic;
use portcullis_protocol::planted::{self, Fault};
use portcullis_protocol::{ClientId, Lifetime, Moment};
use std::collections::{BTreeMap, VecDeque};

/// How soon a tenant is looked at again whose last windows wait for the NIC.
const LOOK_AGAIN: Lifetime = Lifetime::millis(2);

/// A client that has gone, and what is left of it.
#[derive(Debug)]
pub(crate) struct Departed {
    pub id: ClientId,
    pub process: Option<u32>,
    tenant: u32,
    /// The first of its permissions.
    pub first: u32,
    /// Requests of it that may still wait, by slot.
    waiting: Vec<u32>,
}

/// All that is being taken apart.
#[derive(Debug, Default)]
pub(crate) struct Departures {
    clients: BTreeMap<u64, Departed>,
    /// Attached clients all of whose permissions end, and what for.
    barred: VecDeque<(u64, &'static str)>,
    /// Tenants without clients that are to be looked at, each once.
    tenants: VecDeque<u32>,
}

impl Departures {
    pub fn client(&self, client: u64) -> Option<&Departed> {
        self.clients.get(&client)
    }

    pub fn client_mut(&mut self, client: u64) -> Option<&mut Departed> {
        self.clients.get_mut(&client)
    }

    /// Whether there is nothing to go on with.
    pub fn is_empty(&self) -> bool {
        self.clients.is_empty() && self.barred.is_empty() && self.tenants.is_empty()
    }
}

impl<N: Nic> Node<N> {
    /// Takes one of the steps that this turn has left. Returns whether there was one.
    pub(crate) fn take_step(&mut self) -> bool {
        let left = self.steps_left.checked_sub(1);
        self.steps_left = left.unwrap_or(0);
        left.is_some()
    }

    /// A client has gone: what it held ends from now on.
    pub(crate) fn take_apart(&mut self, nic: &mut N, gone: &Client<N::Memory>, now: Moment) {
        let waiting = self.postponed.of_client(gone.id.0);
        let Client { id, process, tenant, first, .. } = *gone;
        let first = if planted::is(Fault::DepartedKeepHolding) { NONE } else { first };
        self.departures.clients.insert(id.0, Departed { id, process, tenant, first, waiting });
        self.go_on_taking_apart(nic, now);
    }

    /// All permissions of a client end, which itself stays for now.
    pub(crate) fn end_all_of(&mut self, client: u64, reason: &'static str, now: Moment) {
        self.departures.barred.push_back((client, reason));
        self.end_barred(now);
    }

    /// Goes on with what is being taken apart, as far as this turn's steps go. Returns whether there was anything.
    pub(crate) fn go_on_taking_apart(&mut self, nic: &mut N, now: Moment) -> bool {
        if self.departures.is_empty() {
            return false;
        }
        self.end_barred(now);
        while self.steps_left > 0
            && let Some((&client, _)) = self.departures.clients.first_key_value()
        {
            let over = self.end_departed(client, now) || planted::is(Fault::RestOfDepartedForgotten);
            if over && let Some(gone) = self.departures.clients.remove(&client) {
                self.leave_tenant(gone.tenant, now);
            }
        }
        while self.steps_left > 0
            && let Some(&tenant) = self.departures.tenants.front()
            && self.look_at_deserted(nic, tenant, now)
        {
            self.departures.tenants.pop_front();
        }
        true
    }

    /// All that is left, at once: the node ends.
    pub(crate) fn take_all_apart(&mut self, nic: &mut N, now: Moment) {
        while !self.departures.is_empty() {
            self.steps_left = self.config.steps_per_turn;
            self.go_on_taking_apart(nic, now);
        }
    }

    /// Ends the permissions of those who are barred.
    fn end_barred(&mut self, now: Moment) {
        while self.steps_left > 0
            && let Some(&(client, reason)) = self.departures.barred.front()
        {
            let first = self.clients.get(client).map_or(NONE, |client| client.first);
            let chain = self.permissions.chain(Chain::Client, first);
            // What is being set up is ended when the NIC has confirmed it.
            let live =
                chain.filter(|&slot| self.permissions.get(slot).is_some_and(|it| it.stage == Stage::Live));
            let held: Vec<u32> = live.take(self.steps_left as usize).collect();
            if held.is_empty() {
                self.departures.barred.pop_front();
            }
            for slot in held {
                self.take_step();
                self.finish(slot, AuditEvent::Revoke, Some(reason), None, now);
            }
        }
    }

    /// Ends what a client that has gone waits for and holds. Returns whether that was all.
    fn end_departed(&mut self, client: u64, now: Moment) -> bool {
        while self.steps_left > 0 {
            let Some(gone) = self.departures.clients.get_mut(&client) else { return true };
            if let Some(waiter) = gone.waiting.pop() {
                self.take_step();
                // Another's may be in its slot by now.
                if self.postponed.get(waiter).is_some_and(|it| it.wish.client == client)
                    && let Some(waiter) = self.drop_waiter(waiter)
                {
                    self.serve_waiters(waiter.object, now);
                }
                continue;
            }
            let slot = gone.first;
            let Some(permission) = self.permissions.get(slot) else { return true };
            if permission.stage == Stage::Live {
                self.take_step();
                self.finish(slot, AuditEvent::Revoke, Some("its client left"), None, now);
            } else {
                // Being set up: it is ended when the NIC has confirmed it.
                self.permissions.unlink(Chain::Client, &mut gone.first, slot);
            }
        }
        false
    }

    /// One client less. With the last one the tenant ends, unless it has objects that stay.
    pub(crate) fn leave_tenant(&mut self, slot: u32, now: Moment) {
        let Some(tenant) = self.tenant_mut(slot) else { return };
        tenant.clients -= 1;
        if tenant.clients == 0 {
            tenant.alone_since = Some(now);
            self.departures.tenants.push_back(slot);
        }
    }

    /// Has the tenants looked at that have no clients, when something of one of them is due.
    pub(crate) fn expire_kept(&mut self, now: Moment) -> bool {
        if self.kept_check.is_none_or(|due| due > now) {
            return false;
        }
        self.kept_check = None;
        let slots = 0..u32::try_from(self.tenants.len()).unwrap_or(u32::MAX);
        let deserted = slots.filter(|&slot| self.tenant(slot).is_some_and(|it| it.alone_since.is_some()));
        self.departures.tenants = deserted.collect();
        true
    }

    /// The NIC has done something for a tenant: if it has no clients, that may have been the last thing.
    pub(crate) fn look_at_if_deserted(&mut self, slot: u32) {
        let deserted = self.tenant(slot).is_some_and(|tenant| tenant.alone_since.is_some());
        if deserted && !self.departures.tenants.contains(&slot) {
            self.departures.tenants.push_back(slot);
        }
    }

    /// A tenant without clients: what it has left behind stays for as long as it was asked to, and the tenant with it.
    /// Returns whether there is no more to do now.
    fn look_at_deserted(&mut self, nic: &mut N, slot: u32, now: Moment) -> bool {
        loop {
            let Some(tenant) = self.tenant(slot) else { return true };
            // Somebody has come meanwhile.
            let Some(since) = tenant.alone_since else { return true };
            let Some(&(time, object)) = tenant.kept.first() else { break };
            let until = since.after(Lifetime(time));
            if until > now {
                self.look_at_kept_at(until);
                return true;
            }
            if !self.take_step() {
                return false;
            }
            self.keep_no_longer(object);
        }
        let Some(tenant) = self.tenants.get_mut(slot as usize).and_then(Option::as_deref_mut) else {
            return true;
        };
        let burden = u32::try_from(tenant.burden()).unwrap_or(u32::MAX);
        if burden <= self.config.steps_per_turn {
            self.steps_left = self.steps_left.saturating_sub(burden);
            self.end_tenant(nic, slot, now);
            return true;
        }
        // Too much for one turn: its windows first. What they exposed goes by itself.
        let most = self.steps_left as usize;
        let mut ended = tenant.windows.retire_unused(nic, most, &mut self.gone_windows);
        while ended < most
            && let Some(lingering) = tenant.windows.lingered(now)
        {
            tenant.overdue.push(lingering);
            ended += 1;
        }
        let tenant_waits = tenant.waits_for_nic();
        if !tenant.overdue.is_empty() {
            self.mark_busy(slot);
        }
        self.steps_left -= u32::try_from(ended).unwrap_or(u32::MAX).min(self.steps_left);
        if ended > 0 {
            return false;
        }
        if tenant_waits {
            self.look_at_kept_at(now.after(LOOK_AGAIN));
        } else {
            // Nothing will come any more that could make it smaller.
            self.end_tenant(nic, slot, now);
        }
        true
    }

    fn look_at_kept_at(&mut self, due: Moment) {
        self.kept_check = Some(self.kept_check.map_or(due, |other| other.min(due)));
    }
}
