//! Charges refused accesses, and bars clients and tenants that break the rules too often.
//!
//! The look of an access ([`Charge`]) decides whether the client or its tenant pays. A software NIC reports the access
//! that it refused, so the node can look the key up. An RDMA device reports only which queue pair broke. Then an access
//! shortly after the end of one of the client's permissions is taken for late, and any other for a guess. A guesser can
//! end permissions of its own to get that excuse, so a tenant has few excuses: see [`ViolationLimits::excuses_max`].
//!
//! [`ViolationLimits::excuses_max`]: crate::ViolationLimits::excuses_max

use super::Books;
use super::violations::{Charge, Standing, TenantRecord};
use crate::audit::{AuditEvent, AuditRecord};
use portcullis_nic::{Access, AccessFault, Memory, RefusedAccess};
use portcullis_planted::planted;
use portcullis_protocol::{ClientId, Moment, Refusal, Rkey, SealedPacket, TenantId};
use std::sync::Arc;

/// The most recently ended permissions of siblings that are compared with one access.
const ENDED_LOOKED_AT_MAX: usize = 16_384;

/// The queue pair or region on which a client's access was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Broken {
    /// A data queue pair.
    Data,
    /// A queue pair for chunks, or a region, with the charge that the access looks like.
    Judged(Charge),
    /// The control queue pair. Without it the node cannot exchange messages with the client.
    Control,
}

impl<M: Memory> Books<M> {
    /// Charges a refused access to its client or tenant.
    pub fn handle_violation(
        &mut self,
        client: ClientId,
        broken: Broken,
        refused: Option<RefusedAccess>,
        now: Moment,
    ) {
        let control = broken == Broken::Control;
        let charge = match refused {
            // A control queue pair allows no access, so no key can be tried there.
            _ if control => Charge::Stray,
            _ if let Broken::Judged(charge) = broken => charge,
            Some(refused) => self.look_at(client, &refused, now),
            None => self.assume(client, now),
        };
        self.attached(client).conduct.violations.count(charge);
        self.counters.violations += 1;
        let reason = if control { "a broken control queue pair" } else { charge.reason() };
        self.audit.of_client(&self.accounts, now, AuditEvent::Violation, client, |record| AuditRecord {
            access: refused.map(Into::into),
            reason: Some(reason),
            ..record
        });
        match charge {
            Charge::Late if !planted!(LatenessChargedToTenant) => {
                self.charge_lateness(client, refused.is_some(), now);
            }
            Charge::Stray => self.charge_stray(client, now),
            Charge::Late | Charge::Guess => self.charge_tenant(client, now),
        }
        if control {
            self.evict(client);
        }
    }

    /// Charges a refused operation to the client whose key has sealed it. A packet that another key has sealed, or
    /// none, is charged to no client: any sender of packets can claim to be another client.
    ///
    /// An attacker on the path can send a copy of a packet at any later time. So each packet is charged once. An
    /// operation on a region that has ended counts as late, and only for a while: the packet may have been served
    /// before. Lateness costs the client nothing but a record.
    pub fn handle_refused_operation(
        &mut self,
        client: ClientId,
        packet: SealedPacket,
        refused: RefusedAccess,
        now: Moment,
    ) {
        let Some(it) = self.accounts.clients.get_mut(client) else { return };
        let grace = self.config.violations.late_grace;
        let charge = match (refused.fault, it.recent.region_ended(packet.region)) {
            (AccessFault::StaleKey, Some(ended)) if now.since(ended) <= grace => Charge::Late,
            (AccessFault::StaleKey, _) => return,
            _ => Charge::Stray,
        };
        let charged = if charge == Charge::Late { &mut it.late_packets } else { &mut it.stray_packets };
        if !charged.note(packet, &refused) {
            return;
        }
        self.handle_violation(client, Broken::Judged(charge), Some(refused), now);
    }

    /// Returns an attached client. The node owns queue pairs of attached clients only.
    fn attached(&mut self, client: ClientId) -> &mut super::accounts::Client {
        self.accounts
            .clients
            .get_mut(client)
            .expect("queue pairs of a client that has gone belong to no client")
    }

    /// Classifies a refused access that the NIC has described.
    fn look_at(&self, client: ClientId, refused: &RefusedAccess, now: Moment) -> Charge {
        use AccessFault::{Misaligned, MissingRight, OutsideRange, WrongQueuePair};
        let present = matches!(refused.fault, WrongQueuePair | MissingRight | OutsideRange | Misaligned);
        if present && self.holds_key(client, refused.rkey) {
            return Charge::Stray;
        }
        let it = self.accounts.clients.get(client).expect("a client with a refused access is attached");
        match it.recent.ended(refused.rkey) {
            Some(ended) if now.since(ended) <= self.config.violations.late_grace => Charge::Late,
            // The key was the client's own, but it ended too long ago for a race.
            Some(_) => Charge::Stray,
            None if self.extends_for_sibling(it.tenant, refused, now) => Charge::Late,
            None => Charge::Guess,
        }
    }

    /// Classifies a refused access about which the NIC reports nothing.
    fn assume(&mut self, client: ClientId, now: Moment) -> Charge {
        let grace = self.config.violations.late_grace;
        let it = self.attached(client);
        let ended_lately = it.recent.last_end().is_some_and(|ended| now.since(ended) <= grace);
        let tenant = it.tenant;
        let excused = ended_lately && self.tenant_record(tenant, now).excuse(now);
        if excused { Charge::Late } else { Charge::Guess }
    }

    fn holds_key(&self, client: ClientId, key: Rkey) -> bool {
        let it = self.accounts.clients.get(client).expect("a client with a refused access is attached");
        if let Some(shared) = self.accounts.tenants.get(it.tenant).shared_key {
            return it.held().permissions > 0 && shared == key;
        }
        self.permissions.last_with(key).is_some_and(|it| {
            it.client == client && it.credential().is_some_and(|credential| credential.has_key(key))
        })
    }

    /// Whether an access tried to extend a sibling's permission that has just ended. Keepers do that, from sessions of
    /// their own. Only the address and the key of the lifetime word count.
    fn extends_for_sibling(&self, tenant: TenantId, refused: &RefusedAccess, now: Moment) -> bool {
        if refused.needs != Access::REMOTE_ATOMIC {
            return false;
        }
        let since = Moment(now.0.saturating_sub(self.config.violations.late_grace.0));
        let siblings = self.accounts.clients.iter().filter(|client| client.tenant == tenant);
        let ended = siblings.flat_map(|client| client.recent.since(since)).take(ENDED_LOOKED_AT_MAX);
        ended.into_iter().any(|keys| keys.word == refused.address && keys.opened_word(refused.rkey))
    }

    fn charge_lateness(&mut self, client: ClientId, told: bool, now: Moment) {
        if let Standing::Paused { until } = self.attached(client).conduct.record_lateness(told, now) {
            self.audit_standing(client, AuditEvent::Pause, Charge::Late, until, now);
        }
    }

    /// Charges a client for a stray access. A client that strays too often is evicted alone, and all its permissions
    /// end.
    fn charge_stray(&mut self, client: ClientId, now: Moment) {
        let it = self.attached(client);
        match it.conduct.record_stray(now) {
            Standing::Paused { until } => {
                self.audit_standing(client, AuditEvent::Pause, Charge::Stray, until, now);
            }
            Standing::Barred { until } if !it.lost => {
                self.audit_standing(client, AuditEvent::Bar, Charge::Stray, until, now);
                self.end_all_of(client, "it is barred", now);
                self.evict(client);
            }
            Standing::Barred { .. } | Standing::Good => {}
        }
    }

    /// Charges a guess of a client to its tenant.
    fn charge_tenant(&mut self, client: ClientId, now: Moment) {
        let tenant = self.attached(client).tenant;
        let first = self.accounts.tenants.iter().next().map(|(first, _)| first);
        let tenant = first.filter(|_| planted!(ViolationToWrongTenant)).unwrap_or(tenant);
        let before = self.standing(tenant, now);
        match self.tenant_record(tenant, now).guesses.record(now) {
            Standing::Paused { until } => {
                self.audit_standing(client, AuditEvent::Pause, Charge::Guess, until, now);
            }
            Standing::Barred { until } if !before.is_barred() => self.bar(tenant, until, now),
            Standing::Barred { .. } | Standing::Good => {}
        }
    }

    fn audit_standing(
        &mut self,
        client: ClientId,
        event: AuditEvent,
        charge: Charge,
        until: Moment,
        now: Moment,
    ) {
        self.audit.of_client(&self.accounts, now, event, client, |record| AuditRecord {
            reason: Some(charge.reason()),
            until: Some(until),
            ..record
        });
    }

    /// Bars a tenant: all permissions of its clients end.
    fn bar(&mut self, tenant: TenantId, until: Moment, now: Moment) {
        let name = Arc::clone(&self.accounts.tenants.get(tenant).name);
        self.audit.of_tenant(now, AuditEvent::Bar, name, |record| AuditRecord {
            reason: Some(Charge::Guess.reason()),
            until: Some(until),
            ..record
        });
        self.standings.note_bar(until);
        let clients: Vec<ClientId> = self
            .accounts
            .clients
            .iter()
            .filter(|client| client.tenant == tenant)
            .map(|client| client.id)
            .collect();
        for client in clients {
            self.end_all_of(client, "its tenant is barred", now);
        }
    }

    /// Checks whether a client is served now, by its tenant's standing and its own.
    ///
    /// # Errors
    /// The client or its tenant is barred, or paused for the time in the refusal.
    pub fn check_served(&self, client: ClientId, tenant: TenantId, now: Moment) -> Result<(), Refusal> {
        self.standing(tenant, now).and(self.own_standing(client, now)).check(now)
    }

    /// Returns the standing of a tenant.
    pub(super) fn standing(&self, tenant: TenantId, now: Moment) -> Standing {
        let tenant = self.accounts.tenants.get(tenant);
        if tenant.offended { self.standings.of(&tenant.name, now) } else { Standing::Good }
    }

    /// Returns a client's own standing, without its tenant's.
    pub(super) fn own_standing(&self, client: ClientId, now: Moment) -> Standing {
        self.accounts.clients.get(client).map_or(Standing::Good, |client| client.conduct.standing(now))
    }

    /// Returns the tenant's record of violations.
    fn tenant_record(&mut self, tenant: TenantId, now: Moment) -> &mut TenantRecord {
        let tenant = self.accounts.tenants.get_mut(tenant);
        tenant.offended = true;
        self.standings.record(&tenant.name, now)
    }
}
