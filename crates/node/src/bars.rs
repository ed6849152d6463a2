//! Who is barred or paused, and how that ends: by time, or by the operator.

use crate::audit::{AuditEvent, AuditRecord};
use crate::client::Client;
use crate::node::Node;
use crate::violations::{Charge, Standing, Violations};
use portcullis_nic::Nic;
use portcullis_protocol::{ClientId, Moment};
use std::sync::Arc;

/// Somebody whom the node does not serve for a while.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bar {
    /// The tenant's name.
    pub tenant: Arc<str>,
    /// The client that it is about; `None`: the tenant with all its clients.
    pub client: Option<ClientId>,
    /// Whether all that it held has ended. Otherwise it is paused: what it holds goes on.
    pub barred: bool,
    /// Since when, on the node's clock.
    pub since: Moment,
    /// Until when.
    pub until: Moment,
    /// What for.
    pub charge: Charge,
}

/// An attached client, as its node's operator sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientReport {
    /// The node's number for it.
    pub id: ClientId,
    /// Its tenant's name.
    pub tenant: Arc<str>,
    /// Its process id, where the node knows it.
    pub process: Option<u32>,
    /// Permissions that it holds.
    pub permissions: u64,
    /// Bytes of the objects that it holds them over; an object counts with each of them.
    pub bytes: u64,
    /// What it was refused since it attached.
    pub violations: Violations,
    /// Whether it is served, its tenant's standing included.
    pub standing: Standing,
}

impl<N: Nic> Node<N> {
    /// Who is barred or paused now: tenants by name, then clients by number.
    #[must_use]
    pub fn bars(&self, now: Moment) -> Vec<Bar> {
        let tenants = self.standings.iter().filter_map(|(name, record)| {
            let (barred, until) = not_served(record.guesses.standing(now))?;
            let (tenant, since) = (Arc::clone(name), record.guesses.since());
            Some(Bar { tenant, client: None, barred, since, until, charge: Charge::Guess })
        });
        let mut bars: Vec<Bar> = tenants.collect();
        bars.extend(self.clients.iter().filter_map(|client| {
            let (barred, until) = not_served(client.conduct.standing(now))?;
            let (charge, since) = client.conduct.cause(now);
            let tenant = Arc::clone(&self.tenant(client.tenant)?.name);
            Some(Bar { tenant, client: Some(client.id), barred, since, until, charge })
        }));
        let number = |bar: &Bar| bar.client.map(|client| client.0);
        bars.sort_by(|one, other| {
            number(one).cmp(&number(other)).then_with(|| one.tenant.cmp(&other.tenant))
        });
        bars
    }

    /// Lifts the bars and pauses of the tenant called `name` and of its clients, as if none of them had ever broken a
    /// rule. Says whether there was one. A client that was shown out for its bar stays out until it attaches again.
    pub fn unbar(&mut self, name: &str, now: Moment) -> bool {
        let is_served = |standing| not_served(standing).is_none();
        let mut lifted = false;
        if self.standings.get(name).is_some_and(|record| !is_served(record.guesses.standing(now)))
            && let Some((name, _)) = self.standings.remove_entry(name)
        {
            self.audit_unbar(name, "by the operator", now);
            lifted = true;
        }
        let of_tenant = |tenant: u32| self.tenant(tenant).is_some_and(|tenant| &*tenant.name == name);
        let paused = |client: &&Client<N::Memory>| {
            of_tenant(client.tenant) && !client.lost && !is_served(client.conduct.standing(now))
        };
        let paused: Vec<u64> = self.clients.iter().filter(paused).map(|client| client.id.0).collect();
        for id in paused {
            if let Some(client) = self.clients.get_mut(id) {
                client.conduct.forgive();
            }
            self.audit_client(now, AuditEvent::Unbar, id, Some("by the operator"));
            lifted = true;
        }
        lifted
    }

    /// The attached clients, by number.
    #[must_use]
    pub fn clients(&self, now: Moment) -> Vec<ClientReport> {
        let report = |client: &Client<N::Memory>| {
            let tenant = Arc::clone(&self.tenant(client.tenant)?.name);
            Some(ClientReport {
                id: client.id,
                tenant,
                process: client.process,
                permissions: client.held.permissions,
                bytes: client.held.bytes,
                violations: client.conduct.violations,
                standing: self.standing(client.tenant, now).and(client.conduct.standing(now)),
            })
        };
        let mut clients: Vec<ClientReport> = self.clients.iter().filter_map(report).collect();
        clients.sort_by_key(|client| client.id.0);
        clients
    }

    /// Ends the bars whose time is over.
    pub(crate) fn end_bars(&mut self, now: Moment) -> bool {
        if self.next_bar_end.is_none_or(|end| now < end) {
            return false;
        }
        let served = self.standings.extract_if(|_, record| record.guesses.has_served_bar(now));
        let served: Vec<Arc<str>> = served.map(|(name, _)| name).collect();
        for name in served {
            self.audit_unbar(name, "its time is over", now);
        }
        let barred = self.standings.values().map(|record| record.guesses.standing(now));
        let ends = barred.filter_map(|standing| match standing {
            Standing::Barred { until } => Some(until),
            _ => None,
        });
        self.next_bar_end = ends.min();
        true
    }

    fn audit_unbar(&mut self, tenant: Arc<str>, reason: &'static str, now: Moment) {
        self.audit.push(now, AuditEvent::Unbar, |record| AuditRecord {
            tenant: Some(tenant),
            reason: Some(reason),
            ..record
        });
    }
}

/// Whether somebody who stands so is barred, and until when that lasts; `None`: is served.
fn not_served(standing: Standing) -> Option<(bool, Moment)> {
    match standing {
        Standing::Good => None,
        Standing::Paused { until } => Some((false, until)),
        Standing::Barred { until } => Some((true, until)),
    }
}
