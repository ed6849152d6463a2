//! Takes apart clients that have left, tenants whose last client has left, and the permissions of barred clients, a
//! little in each turn.
//!
//! However much a client or tenant holds, its end must not delay the turn in which others are served. A client that has
//! left is off the NIC at once. Its permissions end over as many turns as they need, and its tenant stays until then.

use super::Books;
use super::accounts::Client;
use super::effects::Residue;
use super::permissions::{Chain, PermissionSlot};
use crate::audit::AuditEvent;
use portcullis_nic::Memory;
use portcullis_planted::planted;
use portcullis_protocol::{ClientId, Lifetime, Moment, Refusal, TenantId};
use std::collections::VecDeque;

/// The work for the clients and tenants that are being taken apart, except for the clients that have left.
#[derive(Debug, Default)]
pub(crate) struct Departures {
    /// Attached clients whose permissions must all end, with the reason.
    barred: VecDeque<(ClientId, &'static str)>,
    /// Tenants without clients that the node must check, each once.
    tenants: VecDeque<TenantId>,
    /// Time of the next check of the kept objects of tenants without clients.
    pub kept_check: Option<Moment>,
}

impl Departures {
    /// Whether no attached client and no tenant is being taken apart.
    pub fn is_empty(&self) -> bool {
        self.barred.is_empty() && self.tenants.is_empty()
    }
}

/// State of a tenant without clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Left {
    /// The tenant has nothing left, and can end.
    Nothing,
    /// The tenant has objects that stay for a while.
    Kept,
    /// Other tenants still hold permissions over the tenant's objects. These are ending.
    Lent,
    /// The tenant has objects for which this turn had no more steps.
    More,
}

impl<M: Memory> Books<M> {
    /// Handles the departure of a client: its permissions end from now on.
    pub fn handle_detached(&mut self, client: ClientId, now: Moment) {
        self.audit_client(now, AuditEvent::Detach, client, None);
        let waiting = self.postponed.of_client(client);
        self.accounts.clients.depart(client, waiting);
    }

    /// Ends all permissions of an attached client. The client itself stays for now.
    pub(super) fn end_all_of(&mut self, client: ClientId, reason: &'static str, now: Moment) {
        self.departures.barred.push_back((client, reason));
        self.end_barred(now);
    }

    /// Whether the books take nothing apart at present.
    pub fn is_whole(&self) -> bool {
        let no_client_left = self.accounts.clients.first_departed().is_none();
        no_client_left && self.departures.is_empty() && self.leaving.is_empty() && self.freeing.is_empty()
    }

    /// Continues to end permissions of clients that are barred or have left, as far as this turn's steps allow.
    pub fn go_on_ending(&mut self, now: Moment) {
        self.end_barred(now);
        self.end_leaving(now);
        self.go_on_freeing(now);
        while self.steps_left > 0
            && let Some(client) = self.accounts.clients.first_departed()
        {
            let over = self.end_departed(client, now) || planted!(RestOfDepartedForgotten);
            if over && let Some(gone) = self.accounts.clients.forget_departed(client) {
                self.leave_tenant(gone.tenant, now);
            }
        }
    }

    /// Ends the permissions of barred clients.
    fn end_barred(&mut self, now: Moment) {
        while self.steps_left > 0
            && let Some(&(client, reason)) = self.departures.barred.front()
        {
            // A barred client may have left meanwhile. Its permissions then end with it.
            let first = self.accounts.clients.get(client).map_or(PermissionSlot::NONE, Client::first);
            if !self.end_live(Chain::Client, first, reason, now) {
                self.departures.barred.pop_front();
            }
        }
    }

    /// Ends the live permissions of a list, as far as this turn's steps allow. Returns whether there were any.
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

    /// Ends the waiting requests and the permissions of a client that has left. Returns whether none is left.
    fn end_departed(&mut self, client: ClientId, now: Moment) -> bool {
        while self.steps_left > 0 {
            let gone = self.accounts.clients.departed_mut(client).expect("it is taken out after this");
            if let Some(waiter) = gone.waiting.pop() {
                self.take_step();
                // Another client's request may have the slot by now.
                if self.postponed.is_of(waiter, client) {
                    let waiter = self.drop_waiter(waiter);
                    self.pass_waiter(&waiter, now);
                }
                continue;
            }
            let Some(slot) = gone.first() else { return true };
            if self.permissions.get(slot).is_live() {
                self.take_step();
                self.finish(slot, AuditEvent::Revoke, Some("its client left"), None, now);
            } else {
                // The permission is being set up: it ends once the NIC has confirmed it.
                gone.unlink(slot, &mut self.permissions);
            }
        }
        false
    }

    /// Removes one client from a tenant. With its last client the tenant ends, unless it has objects that stay.
    pub fn leave_tenant(&mut self, id: TenantId, now: Moment) {
        if self.accounts.tenants.get_mut(id).leave(now) {
            self.departures.tenants.push_back(id);
        }
    }

    /// Schedules a check of all tenants without clients, if something of one of them is due.
    pub(super) fn expire_kept(&mut self, now: Moment) -> bool {
        if self.departures.kept_check.is_none_or(|due| due > now) {
            return false;
        }
        self.departures.kept_check = None;
        let deserted = self.accounts.tenants.iter().filter(|(_, tenant)| tenant.alone_since().is_some());
        self.departures.tenants = deserted.map(|(id, _)| id).collect();
        true
    }

    /// Schedules a check of a tenant for which the NIC has finished something. If the tenant has no clients, it may be
    /// able to end.
    pub fn look_at_if_deserted(&mut self, id: TenantId) {
        let deserted = self.accounts.tenants.find(id).is_some_and(|tenant| tenant.alone_since().is_some());
        if deserted && !self.departures.tenants.contains(&id) {
            self.departures.tenants.push_back(id);
        }
    }

    /// Returns the next tenant without clients that the node must check.
    pub fn first_deserted(&self) -> Option<TenantId> {
        self.departures.tenants.front().copied()
    }

    /// Notes that the tenant of [`first_deserted`](Self::first_deserted) was checked.
    pub fn pass_deserted(&mut self) {
        self.departures.tenants.pop_front();
    }

    /// Releases the objects of a tenant without clients that were kept for long enough. `None`: the tenant has ended,
    /// or has a client again.
    pub fn let_kept_go(&mut self, id: TenantId, now: Moment) -> Option<Left> {
        loop {
            let tenant = self.accounts.tenants.find(id)?;
            let since = tenant.alone_since()?;
            let Some((time, object)) = tenant.first_kept() else { return Some(self.take_back(id, now)) };
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

    /// Ends other tenants' permissions over the objects of a tenant that has no clients and keeps nothing.
    fn take_back(&mut self, id: TenantId, now: Moment) -> Left {
        loop {
            if !self.take_step() {
                return Left::More;
            }
            if !self.strike_first_name(id, now) {
                break;
            }
        }
        if self.accounts.tenants.get(id).guests() > 0 { Left::Lent } else { Left::Nothing }
    }

    /// Schedules a check of the tenants without clients at `due`, or earlier.
    pub fn look_at_kept_at(&mut self, due: Moment) {
        let check = self.departures.kept_check;
        self.departures.kept_check = Some(check.map_or(due, |other| other.min(due)));
    }

    /// Returns the number of steps that this turn has left.
    pub fn steps_left(&self) -> usize {
        self.steps_left as usize
    }

    /// Gives this turn all its steps again, for a node that ends and takes everything apart at once.
    pub fn renew_steps(&mut self) {
        self.steps_left = self.config.steps_per_turn;
    }

    /// Returns the number of a tenant's objects.
    pub fn objects_of(&self, tenant: TenantId) -> usize {
        self.accounts.tenants.get(tenant).objects().len()
    }

    /// Handles the removal of a tenant from the NIC. The permissions `unexposed` were never exposed, and `residues` are
    /// not exposed any more.
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

    /// Removes a tenant that is off the NIC, with its objects, over which no other tenant holds permissions.
    pub fn handle_tenant_ended(&mut self, id: TenantId, now: Moment) {
        assert_eq!(
            self.accounts.tenants.get(id).guests(),
            0,
            "a tenant's lent objects come back before the tenant ends"
        );
        for object in self.accounts.tenants.get(id).objects().to_vec() {
            self.strike_name_if_any(object, now);
            self.strike_memberships(object);
            self.release_object(object);
        }
        self.accounts.tenants.remove(id);
    }
}
