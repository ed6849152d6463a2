//! Charging what the NIC refused, and barring who has broken the rules too often.
//!
//! Who pays depends on what the access looked like ([`Charge`]). A NIC in software says what it refused, so that the
//! node can look the key up. An RDMA device says only which queue pair broke; then an access shortly after one of its
//! client's permissions has ended is assumed to be late, and any other to be a guess. Since a guesser can end
//! permissions of its own for that, a tenant has few such excuses: see [`ViolationLimits::excuses_max`].
//!
//! [`ViolationLimits::excuses_max`]: crate::ViolationLimits::excuses_max

use crate::audit::{AuditEvent, AuditRecord};
use crate::node::Node;
use crate::permissions::Stage;
use crate::violations::{Charge, Standing, TenantRecord};
use portcullis_nic::{Access, AccessFault, Nic, QpId, RefusedAccess};
use portcullis_protocol::planted::{self, Fault};
use portcullis_protocol::{Mechanism, Moment, Rkey};
use std::sync::Arc;

/// Siblings' permissions that are looked at for one access, of those that ended a moment ago.
const ENDED_LOOKED_AT_MAX: usize = 16_384;

/// Tenants that broke a rule and are remembered for it.
const STANDINGS_MAX: usize = 1 << 16;

impl<N: Nic> Node<N> {
    /// The NIC has refused an access on this queue pair.
    pub(crate) fn note_violation(&mut self, qp: QpId, refused: Option<RefusedAccess>, now: Moment) {
        let Some((client, number)) = self.qp_owners.get(qp) else { return };
        let control = number.is_none();
        let charge = match refused {
            // No access is let through there, whatever key it shows: no key can be tried.
            _ if control => Charge::Stray,
            Some(refused) => self.look_at(client, &refused, now),
            None => self.assume(client, now),
        };
        let Some(it) = self.clients.get_mut(client) else { return };
        it.conduct.violations.count(charge);
        self.counters.violations += 1;
        let reason = if control { "a broken control queue pair" } else { charge.reason() };
        self.audit_of_client(now, AuditEvent::Violation, client, |record| AuditRecord {
            access: refused.map(Into::into),
            reason: Some(reason),
            ..record
        });
        match charge {
            Charge::Late if !planted::is(Fault::LatenessChargedToTenant) => {
                self.charge_lateness(client, refused.is_some(), now);
            }
            Charge::Stray => self.charge_stray(client, now),
            Charge::Late | Charge::Guess => self.charge_tenant(client, now),
        }
        if control {
            self.evict(client);
        }
    }

    /// What an access looks like that the NIC tells all of.
    fn look_at(&self, client: u64, refused: &RefusedAccess, now: Moment) -> Charge {
        use AccessFault::{Misaligned, MissingRight, OutsideRange, WrongQueuePair};
        let Some(it) = self.clients.get(client) else { return Charge::Guess };
        let present = matches!(refused.fault, WrongQueuePair | MissingRight | OutsideRange | Misaligned);
        if present && self.holds_key(client, refused.rkey) {
            return Charge::Stray;
        }
        match it.recent.ended(refused.rkey) {
            Some(ended) if now.since(ended) <= self.config.violations.late_grace => Charge::Late,
            // It was the client's own once: no guess, and no race with its end either.
            Some(_) => Charge::Stray,
            None if self.extends_for_sibling(it.tenant, refused, now) => Charge::Late,
            None => Charge::Guess,
        }
    }

    /// What an access is taken for that the NIC tells nothing of.
    fn assume(&mut self, client: u64, now: Moment) -> Charge {
        let Some(it) = self.clients.get(client) else { return Charge::Guess };
        let grace = self.config.violations.late_grace;
        let ended_lately = it.recent.last_end().is_some_and(|ended| now.since(ended) <= grace);
        let excused = ended_lately && self.tenant_record(it.tenant, now).is_some_and(|it| it.excuse(now));
        if excused { Charge::Late } else { Charge::Guess }
    }

    fn holds_key(&self, client: u64, key: Rkey) -> bool {
        if matches!(self.mechanism(), Mechanism::QueuePair | Mechanism::None) {
            // Permissions have no keys of their own: all of a tenant's have the one over the pool.
            return self.clients.get(client).is_some_and(|it| {
                let region = self.tenant(it.tenant).map(|tenant| tenant.region.rkey);
                it.held.permissions > 0 && region == Some(key)
            });
        }
        let last = self.key_holders.last(key).and_then(|slot| self.permissions.get(slot));
        let held = last.filter(|it| it.client == client && it.stage == Stage::Live);
        let keys = held.and_then(|it| self.keys(it.tenant, it.grip));
        keys.is_some_and(|(buffer, lifetime)| buffer == key || lifetime == key)
    }

    /// Whether an access extends a sibling's permission that has ended just before: a keeper does that from a session of
    /// its own. Nothing but the word's own place and key counts.
    fn extends_for_sibling(&self, tenant: u32, refused: &RefusedAccess, now: Moment) -> bool {
        if refused.needs != Access::REMOTE_ATOMIC {
            return false;
        }
        let since = Moment(now.0.saturating_sub(self.config.violations.late_grace.0));
        let siblings = self.clients.iter().filter(|client| client.tenant == tenant);
        let ended = siblings.flat_map(|client| client.recent.since(since)).take(ENDED_LOOKED_AT_MAX);
        ended.into_iter().any(|keys| keys.word == refused.address && keys.lifetime == refused.rkey)
    }

    fn charge_lateness(&mut self, client: u64, told: bool, now: Moment) {
        let Some(it) = self.clients.get_mut(client) else { return };
        if let Standing::Paused { until } = it.conduct.record_lateness(told, now) {
            self.audit_standing(client, AuditEvent::Pause, Charge::Late, until, now);
        }
    }

    /// A client that strays too often is shown out: it alone, and all that it holds ends.
    fn charge_stray(&mut self, client: u64, now: Moment) {
        let Some(it) = self.clients.get_mut(client) else { return };
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

    /// A tenant answers for the guess of one of its clients.
    fn charge_tenant(&mut self, client: u64, now: Moment) {
        let Some(tenant) = self.clients.get(client).map(|client| client.tenant) else { return };
        let first = self.tenants.iter().position(Option::is_some).and_then(|slot| u32::try_from(slot).ok());
        let tenant = first.filter(|_| planted::is(Fault::ViolationToWrongTenant)).unwrap_or(tenant);
        let before = self.standing(tenant, now);
        let after = self.tenant_record(tenant, now).map(|record| record.guesses.record(now));
        match after.unwrap_or(Standing::Good) {
            Standing::Paused { until } => {
                self.audit_standing(client, AuditEvent::Pause, Charge::Guess, until, now);
            }
            Standing::Barred { until } if !before.is_barred() => self.bar(tenant, until, now),
            Standing::Barred { .. } | Standing::Good => {}
        }
    }

    fn audit_standing(&mut self, client: u64, event: AuditEvent, charge: Charge, until: Moment, now: Moment) {
        self.audit_of_client(now, event, client, |record| AuditRecord {
            reason: Some(charge.reason()),
            until: Some(until),
            ..record
        });
    }

    /// A tenant has broken the rules too often: all that it holds ends.
    fn bar(&mut self, tenant: u32, until: Moment, now: Moment) {
        let name = self.tenant(tenant).map(|tenant| Arc::clone(&tenant.name));
        self.audit.push(now, AuditEvent::Bar, |record| AuditRecord {
            tenant: name,
            reason: Some(Charge::Guess.reason()),
            until: Some(until),
            ..record
        });
        self.next_bar_end = Some(self.next_bar_end.map_or(until, |end| end.min(until)));
        let clients: Vec<u64> =
            self.clients.iter().filter(|client| client.tenant == tenant).map(|client| client.id.0).collect();
        for client in clients {
            self.end_all_of(client, "its tenant is barred", now);
        }
    }

    /// How a tenant stands.
    pub(crate) fn standing(&self, tenant: u32, now: Moment) -> Standing {
        let offender = self.tenant(tenant).filter(|tenant| tenant.offended);
        let record = offender.and_then(|tenant| self.standings.get(&tenant.name));
        record.map_or(Standing::Good, |record| record.guesses.standing(now))
    }

    /// How a client stands by itself, whatever its tenant's standing.
    pub(crate) fn own_standing(&self, client: u64, now: Moment) -> Standing {
        self.clients.get(client).map_or(Standing::Good, |client| client.conduct.standing(now))
    }

    /// What a tenant answers for, by its name: it outlasts its clients.
    fn tenant_record(&mut self, tenant: u32, now: Moment) -> Option<&mut TenantRecord> {
        let it = self.tenant_mut(tenant)?;
        it.offended = true;
        let name = Arc::clone(&it.name);
        if self.standings.len() >= STANDINGS_MAX && !self.standings.contains_key(&name) {
            // Whoever stands well needs no memory of it.
            self.standings.retain(|_, record| record.guesses.standing(now) != Standing::Good);
        }
        let limits = self.config.violations;
        Some(self.standings.entry(name).or_insert_with(|| TenantRecord::new(limits)))
    }
}
