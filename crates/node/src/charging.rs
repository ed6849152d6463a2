//! Charging what the NIC refused, and barring who has broken the rules too often.

use crate::audit::{AuditEvent, AuditRecord};
use crate::node::Node;
use crate::permissions::{Chain, NONE};
use crate::violations::{Charge, Standing, ViolationBudget};
use portcullis_nic::{Nic, QpId};
use portcullis_protocol::Moment;
use portcullis_protocol::planted::{self, Fault};
use std::sync::Arc;

/// Tenants that broke a rule and are remembered for it.
const STANDINGS_MAX: usize = 1 << 16;

impl<N: Nic> Node<N> {
    /// The NIC has refused an access on this queue pair.
    pub(crate) fn note_violation(&mut self, qp: QpId, now: Moment) {
        let Some((client, number)) = self.qp_owners.get(qp) else { return };
        let Some(it) = self.clients.get_mut(client) else { return };
        let tenant = it.tenant;
        let charge = Charge::Guess;
        it.violations.count(charge);
        self.counters.violations += 1;
        let reason = if number.is_some() { "a refused access" } else { "a broken control queue pair" };
        self.audit_client(now, AuditEvent::Violation, client, Some(reason));
        let first = self.tenants.iter().position(Option::is_some).and_then(|slot| u32::try_from(slot).ok());
        let tenant = first.filter(|_| planted::is(Fault::ViolationToWrongTenant)).unwrap_or(tenant);
        self.charge_tenant(tenant, client, now);
        if number.is_none() {
            self.evict(client);
        }
    }

    /// A tenant answers for a guess of one of its clients.
    fn charge_tenant(&mut self, tenant: u32, client: u32, now: Moment) {
        let before = self.standing(tenant, now);
        match self.record_violation(tenant, now) {
            Standing::Paused { until } => self.audit_pause(client, Charge::Guess, until, now),
            Standing::Barred { until } if !before.is_barred() => self.bar(tenant, until, now),
            Standing::Barred { .. } | Standing::Good => {}
        }
    }

    fn audit_pause(&mut self, client: u32, charge: Charge, until: Moment, now: Moment) {
        self.audit_of_client(now, AuditEvent::Pause, client, |record| AuditRecord {
            reason: Some(charge.reason()),
            until: Some(until),
            ..record
        });
    }

    /// A tenant has broken the rules too often: all that it holds ends.
    fn bar(&mut self, tenant: u32, until: Moment, now: Moment) {
        let name = self.tenant(tenant).map(|tenant| Arc::clone(&tenant.name));
        self.audit.push(|| AuditRecord {
            tenant: name,
            reason: Some(Charge::Guess.reason()),
            until: Some(until),
            ..AuditRecord::new(now, AuditEvent::Bar)
        });
        self.next_bar_end = self.next_bar_end.min(until);
        let clients: Vec<u32> =
            self.clients.iter().filter(|client| client.tenant == tenant).map(|client| client.id.0).collect();
        for client in clients {
            self.end_all_of(client, "its tenant is barred", now);
        }
    }

    /// All permissions of a client end.
    fn end_all_of(&mut self, client: u32, reason: &'static str, now: Moment) {
        let first = self.clients.get(client).map_or(NONE, |client| client.first);
        let held: Vec<u32> = self.permissions.chain(Chain::Client, first).collect();
        for slot in held {
            self.finish(slot, AuditEvent::Revoke, Some(reason), None, now);
        }
    }

    /// How a tenant stands.
    pub(crate) fn standing(&self, tenant: u32, now: Moment) -> Standing {
        let offender = self.tenant(tenant).filter(|tenant| tenant.offended);
        let budget = offender.and_then(|tenant| self.standings.get(&tenant.name));
        budget.map_or(Standing::Good, |budget| budget.standing(now))
    }

    fn record_violation(&mut self, tenant: u32, now: Moment) -> Standing {
        let Some(it) = self.tenant_mut(tenant) else { return Standing::Good };
        it.offended = true;
        let name = Arc::clone(&it.name);
        if self.standings.len() >= STANDINGS_MAX && !self.standings.contains_key(&name) {
            // Whoever stands well needs no memory of it.
            self.standings.retain(|_, budget| budget.standing(now) != Standing::Good);
        }
        let limits = self.config.violations;
        self.standings.entry(name).or_insert_with(|| ViolationBudget::new(limits)).record(now)
    }
}
