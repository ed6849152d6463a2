//! The tenants and clients that are barred or paused, and the end of bars and pauses: by time or by the operator.

use super::Books;
use super::accounts::Client;
use super::violations::{Charge, Standing, Violations};
use crate::audit::{AuditEvent, AuditRecord};
use portcullis_nic::Memory;
use portcullis_protocol::{ClientId, Moment};
use std::sync::Arc;

/// A tenant or a client that the node does not serve now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bar {
    /// The tenant's name.
    pub tenant: Arc<str>,
    /// The client. `None`: the bar is for the tenant with all its clients.
    pub client: Option<ClientId>,
    /// Whether it is barred: all its permissions have ended. Otherwise it is paused, and keeps its permissions.
    pub barred: bool,
    /// Start of the bar or pause, on the node's clock.
    pub since: Moment,
    /// End of the bar or pause, on the node's clock.
    pub until: Moment,
    /// The kind of violation.
    pub charge: Charge,
}

/// An attached client, as the node's operator sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientReport {
    /// The node's number for the client.
    pub id: ClientId,
    /// The name of its tenant.
    pub tenant: Arc<str>,
    /// The client's process id, if the node knows it.
    pub process: Option<u32>,
    /// Number of permissions that the client holds.
    pub permissions: u64,
    /// Bytes of the objects of these permissions. An object counts with each of them.
    pub bytes: u64,
    /// Number of chunks that the client holds, as far as the node has recorded it. The books count only chunks that the
    /// node's CPU has handed out.
    pub chunks: u64,
    /// The client's refused accesses since it attached.
    pub violations: Violations,
    /// Whether the client is served. This includes its tenant's standing.
    pub standing: Standing,
}

impl<M: Memory> Books<M> {
    /// Returns all present bars and pauses: those of tenants by name, then those of clients by number.
    pub fn bars(&self, now: Moment) -> Vec<Bar> {
        let tenants = self.standings.iter().filter_map(|(name, record)| {
            let (barred, until) = not_served(record.guesses.standing(now))?;
            let (tenant, since) = (Arc::clone(name), record.guesses.since());
            Some(Bar { tenant, client: None, barred, since, until, charge: Charge::Guess })
        });
        let mut bars: Vec<Bar> = tenants.collect();
        bars.extend(self.accounts.clients.iter().filter_map(|client| {
            let (barred, until) = not_served(client.conduct.standing(now))?;
            let (charge, since) = client.conduct.cause(now);
            let tenant = Arc::clone(&self.accounts.tenants.get(client.tenant).name);
            Some(Bar { tenant, client: Some(client.id), barred, since, until, charge })
        }));
        bars.sort_by(|one, other| one.client.cmp(&other.client).then_with(|| one.tenant.cmp(&other.tenant)));
        bars
    }

    /// Lifts the bars and pauses of the tenant called `name` and of its clients, as if none of them had ever broken a
    /// rule. Returns whether there was a bar or a pause. A client that was evicted for its bar must attach again.
    pub fn unbar(&mut self, name: &str, now: Moment) -> bool {
        let mut lifted = false;
        if let Some(name) = self.standings.forgive(name, now) {
            self.audit_unbar(name, now, "by the operator");
            lifted = true;
        }
        let paused = |client: &&Client| {
            let is_served = not_served(client.conduct.standing(now)).is_none();
            *self.accounts.tenants.get(client.tenant).name == *name && !client.lost && !is_served
        };
        let paused: Vec<ClientId> =
            self.accounts.clients.iter().filter(paused).map(|client| client.id).collect();
        for id in paused {
            let client = self.accounts.clients.get_mut(id).expect("it was just among them");
            client.conduct.forgive();
            self.audit_client(now, AuditEvent::Unbar, id, Some("by the operator"));
            lifted = true;
        }
        lifted
    }

    /// Reports on the attached clients, in the order of their numbers.
    pub fn clients(&self, now: Moment) -> Vec<ClientReport> {
        let report = |client: &Client| ClientReport {
            id: client.id,
            tenant: Arc::clone(&self.accounts.tenants.get(client.tenant).name),
            process: client.process,
            permissions: client.held().permissions,
            bytes: client.held().bytes,
            chunks: client.chunks.held(),
            violations: client.conduct.violations,
            standing: self.standing(client.tenant, now).and(client.conduct.standing(now)),
        };
        self.accounts.clients.iter().map(report).collect()
    }

    /// Ends the bars that have lasted for their time.
    pub(super) fn end_bars(&mut self, now: Moment) -> bool {
        let Some(served) = self.standings.take_served(now) else { return false };
        for name in served {
            self.audit_unbar(name, now, "its time is over");
        }
        true
    }

    fn audit_unbar(&mut self, tenant: Arc<str>, now: Moment, reason: &'static str) {
        self.audit.of_tenant(now, AuditEvent::Unbar, tenant, |record| AuditRecord {
            reason: Some(reason),
            ..record
        });
    }
}

/// Returns whether the standing is a bar, and when it ends. `None`: the standing is good.
fn not_served(standing: Standing) -> Option<(bool, Moment)> {
    match standing {
        Standing::Good => None,
        Standing::Paused { until } => Some((false, until)),
        Standing::Barred { until } => Some((true, until)),
    }
}
