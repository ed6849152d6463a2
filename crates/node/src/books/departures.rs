//! Clients that have gone, tenants that go with their last client, and what barred clients held: taken apart a little
//! in each turn.
//!
//! However much a client or tenant holds, its end may not hold up the turn in which others are served. A client that
//! has gone is off the NIC at once. Its permissions end over as many turns as they need, and its tenant stays until
//! then.

use super::Books;
use super::effects::Residue;
use super::permissions::{Chain, PermissionSlot};
use super::postponed::WaiterSlot;
use crate::audit::AuditEvent;
use portcullis_nic::Memory;
use portcullis_protocol::planted::{self, Fault};
use portcullis_protocol::{ClientId, Lifetime, Moment, Refusal, TenantId};
use std::collections::{BTreeMap, VecDeque};

/// A client that has gone, and what is left of it.
#[derive(Debug)]
pub(crate) struct Departed {
    pub id: ClientId,
    pub process: Option<u32>,
    tenant: TenantId,
    /// The first of its permissions.
    first: PermissionSlot,
    /// Requests of the client that may still wait.
    waiting: Vec<WaiterSlot>,
}

/// All that is being taken apart.
#[derive(Debug, Default)]
pub(crate) struct Departures {
    clients: BTreeMap<ClientId, Departed>,
    /// Attached clients whose permissions are all to end, with the reason.
    barred: VecDeque<(ClientId, &'static str)>,
    /// Tenants without clients that the node has to look at, each once.
    tenants: VecDeque<TenantId>,
    /// When the node next looks at kept objects of tenants without clients.
    pub kept_check: Option<Moment>,
}

impl Departures {
    pub fn client(&self, client: ClientId) -> Option<&Departed> {
        self.clients.get(&client)
    }

    /// The first permission of a client that has gone.
    pub fn first_of(&mut self, client: ClientId) -> Option<&mut PermissionSlot> {
        self.clients.get_mut(&client).map(|gone| &mut gone.first)
    }

    /// Whether there is nothing left to do.
    pub fn is_empty(&self) -> bool {
        self.clients.is_empty() && self.barred.is_empty() && self.tenants.is_empty()
    }
}

/// What a tenant without clients still keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Left {
    /// Nothing: the tenant can end.
    Nothing,
    /// Objects that stay for a while.
    Kept,
    /// Objects of which other tenants still hold something, which ends.
    Lent,
    /// Objects that this turn had no more steps for.
    More,
}

impl<M: Memory> Books<M> {
    /// A client has gone: its permissions end from now on.
    pub fn handle_detached(&mut self, client: ClientId, now: Moment) {
        self.audit_client(now, AuditEvent::Detach, client, None);
        let gone = self.clients.remove(client).expect("a client leaves once");
        let waiting = self.postponed.of_client(client);
        let first = if planted::is(Fault::DepartedKeepHolding) { PermissionSlot::NONE } else { gone.first };
        let departed = Departed { id: client, process: gone.process, tenant: gone.tenant, first, waiting };
        self.departures.clients.insert(client, departed);
    }

    /// Ends all permissions of a client. The client itself stays for now.
    pub(super) fn end_all_of(&mut self, client: ClientId, reason: &'static str, now: Moment) {
        self.departures.barred.push_back((client, reason));
        self.end_barred(now);
    }

    /// Whether nothing is being taken apart.
    pub fn is_whole(&self) -> bool {
        self.departures.is_empty() && !self.guests.are_leaving() && self.freeing.is_empty()
    }

    /// Continues to end permissions of clients that are barred or have gone, as far as this turn's steps allow.
    pub fn go_on_ending(&mut self, now: Moment) {
        self.end_barred(now);
        self.end_leaving(now);
        self.go_on_freeing(now);
        while self.steps_left > 0
            && let Some((&client, _)) = self.departures.clients.first_key_value()
        {
            let over = self.end_departed(client, now) || planted::is(Fault::RestOfDepartedForgotten);
            if over && let Some(gone) = self.departures.clients.remove(&client) {
                self.leave_tenant(gone.tenant, now);
            }
        }
    }

    /// Ends the permissions of barred clients.
    fn end_barred(&mut self, now: Moment) {
        while self.steps_left > 0
            && let Some(&(client, reason)) = self.departures.barred.front()
        {
            // A barred client may have gone meanwhile. Its permissions then end with it.
            let first = self.clients.get(client).map_or(PermissionSlot::NONE, |client| client.first);
            if !self.end_live(Chain::Client, first, reason, now) {
                self.departures.barred.pop_front();
            }
        }
    }

    /// Ends the permissions of a list that are live, as far as this turn's steps allow. Returns whether there were any.
    pub(super) fn end_live(
        &mut self,
        chain: Chain,
        first: PermissionSlot,
        reason: &'static str,
        now: Moment,
    ) -> bool {
        // A permission that is being set up ends when the NIC has confirmed it.
        let live = self.permissions.chain(chain, first).filter(|&slot| self.permissions.get(slot).is_live());
        let some: Vec<PermissionSlot> = live.take(self.steps_left as usize).collect();
        for &slot in &some {
            self.take_step();
            self.finish(slot, AuditEvent::Revoke, Some(reason), None, now);
        }
        !some.is_empty()
    }

    /// Ends what a client that has gone waits for and holds. Returns whether that was all.
    fn end_departed(&mut self, client: ClientId, now: Moment) -> bool {
        while self.steps_left > 0 {
            let gone = self.departures.clients.get_mut(&client).expect("it is taken out after this");
            if let Some(waiter) = gone.waiting.pop() {
                self.take_step();
                // Another client's request may be there by now.
                if self.postponed.is_of(waiter, client) {
                    let waiter = self.drop_waiter(waiter);
                    self.pass_waiter(&waiter, now);
                }
                continue;
            }
            let Some(slot) = gone.first.some() else { return true };
            if self.permissions.get(slot).is_live() {
                self.take_step();
                self.finish(slot, AuditEvent::Revoke, Some("its client left"), None, now);
            } else {
                // Being set up: it is ended when the NIC has confirmed it.
                self.permissions.unlink(Chain::Client, &mut gone.first, slot);
            }
        }
        false
    }

    /// Takes one client off a tenant. With the last one the tenant ends, unless it has objects that stay.
    pub fn leave_tenant(&mut self, id: TenantId, now: Moment) {
        let tenant = self.tenants.get_mut(id);
        tenant.clients -= 1;
        if tenant.clients == 0 {
            tenant.alone_since = Some(now);
            self.departures.tenants.push_back(id);
        }
    }

    /// Has all tenants without clients looked at, when something of one of them is due.
    pub(super) fn expire_kept(&mut self, now: Moment) -> bool {
        if self.departures.kept_check.is_none_or(|due| due > now) {
            return false;
        }
        self.departures.kept_check = None;
        let deserted = self.tenants.iter().filter(|(_, tenant)| tenant.alone_since.is_some());
        self.departures.tenants = deserted.map(|(id, _)| id).collect();
        true
    }

    /// The NIC has finished something for a tenant. If the tenant has no clients, it may be able to end.
    pub fn look_at_if_deserted(&mut self, id: TenantId) {
        let deserted = self.tenants.find(id).is_some_and(|tenant| tenant.alone_since.is_some());
        if deserted && !self.departures.tenants.contains(&id) {
            self.departures.tenants.push_back(id);
        }
    }

    /// The next tenant without clients that the node has to look at.
    pub fn first_deserted(&self) -> Option<TenantId> {
        self.departures.tenants.front().copied()
    }

    /// That tenant has been looked at.
    pub fn pass_deserted(&mut self) {
        self.departures.tenants.pop_front();
    }

    /// Lets go of the objects of a tenant without clients that were kept for long enough. `None`: the tenant has ended,
    /// or has a client again.
    pub fn let_kept_go(&mut self, id: TenantId, now: Moment) -> Option<Left> {
        loop {
            let tenant = self.tenants.find(id)?;
            let since = tenant.alone_since?;
            let Some(&(time, object)) = tenant.kept.first() else { return Some(self.take_back(id, now)) };
            let until = since.after(Lifetime(time));
            if until > now {
                self.look_at_kept_at(until);
                return Some(Left::Kept);
            }
            if !self.take_step() {
                return Some(Left::More);
            }
            self.keep_no_longer(object, now);
        }
    }

    /// Has other tenants' permissions over the objects of a tenant end, which has no clients and keeps nothing.
    fn take_back(&mut self, id: TenantId, now: Moment) -> Left {
        loop {
            if !self.take_step() {
                return Left::More;
            }
            if !self.strike_first_name(id, now) {
                break;
            }
        }
        if self.tenants.get(id).guests > 0 { Left::Lent } else { Left::Nothing }
    }

    /// Has tenants without clients looked at again at `due`, or before.
    pub fn look_at_kept_at(&mut self, due: Moment) {
        let check = self.departures.kept_check;
        self.departures.kept_check = Some(check.map_or(due, |other| other.min(due)));
    }

    /// The steps that this turn has left.
    pub fn steps_left(&self) -> usize {
        self.steps_left as usize
    }

    /// Renews the steps of the turn: the node ends, and takes everything apart at once.
    pub fn renew_steps(&mut self) {
        self.steps_left = self.config.steps_per_turn;
    }

    /// How many objects a tenant has.
    pub fn objects_of(&self, tenant: TenantId) -> usize {
        self.tenants.get(tenant).objects.len()
    }

    /// A tenant is off the NIC. The permissions `unexposed` never were exposed, and `residues` are exposed no more.
    pub fn handle_tenant_off(
        &mut self,
        id: TenantId,
        mut unexposed: Vec<PermissionSlot>,
        residues: Vec<Residue>,
        now: Moment,
    ) {
        let permissions = &self.permissions;
        unexposed.extend(self.scrubs.take(|slot| permissions.get(slot).tenant == id));
        for permission in unexposed {
            self.handle_not_exposed(permission, Refusal::NicFailed, now);
        }
        for residue in residues {
            self.handle_withdrawn(residue, now);
        }
    }

    /// Removes a tenant that is off the NIC, with its objects, of which no other tenant holds anything.
    pub fn handle_tenant_ended(&mut self, id: TenantId, now: Moment) {
        assert_eq!(self.tenants.get(id).guests, 0, "what a tenant has lent comes back before it ends");
        for object in self.tenants.get(id).objects.clone() {
            self.strike_name_if_any(object, now);
            self.strike_memberships(object);
            self.release_object(object);
        }
        self.tenants.remove(id);
    }
}
