//! The audit trail of the books: each record names the tenant, client and permission that its event concerns.

use super::Books;
use super::accounts::Accounts;
use super::permissions::Permission;
use super::pool::Pool;
use crate::audit::{AuditEvent, AuditQueue, AuditRecord, AuditedChunk, AuditedPermission, AuditedRefusal};
use crate::chunks::{Adopted, client_of};
use crate::config::NodeConfig;
use portcullis_nic::Memory;
use portcullis_protocol::{ClientId, Moment, Refusal};
use std::sync::Arc;

/// The audit records that were not taken yet. They have a bounded queue, which loses some rather than grow.
pub(crate) struct AuditTrail {
    queue: AuditQueue,
}

impl AuditTrail {
    /// A trail of the events that `config` selects.
    pub fn new(config: &NodeConfig) -> Self {
        let queue = if config.audit {
            AuditQueue::new(config.audit_events, config.audit_records_max as usize)
        } else {
            AuditQueue::disabled()
        };
        Self { queue }
    }

    /// Returns the number of records that were lost since the node started.
    pub fn lost(&self) -> u64 {
        self.queue.lost()
    }

    /// Audits an event of a tenant, with the fields that `add` sets.
    pub fn of_tenant(
        &mut self,
        at: Moment,
        event: AuditEvent,
        tenant: Arc<str>,
        add: impl FnOnce(AuditRecord) -> AuditRecord,
    ) {
        self.queue.push(at, event, |record| add(AuditRecord { tenant: Some(tenant), ..record }));
    }

    /// Audits an event of a client, with the fields that `add` sets.
    pub fn of_client(
        &mut self,
        accounts: &Accounts,
        at: Moment,
        event: AuditEvent,
        client: ClientId,
        add: impl FnOnce(AuditRecord) -> AuditRecord,
    ) {
        self.queue.push(at, event, |record| {
            let client = accounts.clients.get(client);
            add(AuditRecord {
                tenant: client.map(|it| Arc::clone(&accounts.tenants.get(it.tenant).name)),
                client: client.map(|client| client.id),
                process: client.and_then(|client| client.process),
                ..record
            })
        });
    }

    /// Audits an event of a permission.
    pub fn of_permission<M: Memory>(
        &mut self,
        (accounts, pool): (&Accounts, &Pool<M>),
        at: Moment,
        event: AuditEvent,
        permission: &Permission,
        reason: Option<&'static str>,
    ) {
        self.queue.push(at, event, |record| {
            let name = |tenant| Arc::clone(&accounts.tenants.get(tenant).name);
            let process = accounts.clients.process_of(permission.client);
            let (address, length) = pool.bytes_of(permission);
            let owner = pool.slabs.get(permission.object).tenant;
            AuditRecord {
                owner: (owner != permission.tenant).then(|| name(owner)),
                tenant: Some(name(permission.tenant)),
                client: process.is_some().then_some(permission.client),
                process: process.flatten(),
                permission: Some(AuditedPermission {
                    id: permission.id,
                    address,
                    length,
                    rights: permission.rights,
                    sharing: permission.claim.sharing,
                    lifetime: permission.lifetime,
                }),
                reason,
                ..record
            }
        });
    }

    /// Audits that a quota of a client's tenant is used up.
    pub fn of_quota(&mut self, accounts: &Accounts, at: Moment, client: ClientId, refusal: &Refusal) {
        self.of_client(accounts, at, AuditEvent::Quota, client, |record| AuditRecord {
            refusal: Some(Box::new(AuditedRefusal { peer: None, reason: refusal.to_string() })),
            ..record
        });
    }

    /// Audits the changes that the NIC has made to a chunk since the node read its record last.
    fn of_chunk(&mut self, accounts: &Accounts, at: Moment, change: Adopted) {
        let Adopted { chunk, before, now, frees, number_of_use } = change;
        if frees > 0 {
            let ended = AuditedChunk { chunk, number_of_use: number_of_use.wrapping_sub(1) };
            let client = before.map(client_of);
            // The holders in between, and how long each had the chunk, are not known any more.
            self.queue.push(at, AuditEvent::FreeChunk, |record| AuditRecord {
                client,
                chunk: Some(Box::new(ended)),
                count: Some(frees),
                ..record
            });
        }
        if let Some(holder) = now.map(client_of) {
            let begun = AuditedChunk { chunk, number_of_use };
            self.of_client(accounts, at, AuditEvent::AllocateChunk, holder, |record| AuditRecord {
                client: Some(holder),
                chunk: Some(Box::new(begun)),
                ..record
            });
        }
    }
}

impl<M: Memory> Books<M> {
    /// Takes out the next audit record.
    pub fn poll_audit(&mut self) -> Option<AuditRecord> {
        self.audit.queue.pop()
    }

    /// Audits an event of a client.
    pub fn audit_client(
        &mut self,
        at: Moment,
        event: AuditEvent,
        client: ClientId,
        reason: Option<&'static str>,
    ) {
        self.audit.of_client(&self.accounts, at, event, client, |record| AuditRecord { reason, ..record });
    }

    /// Audits that a peer was refused before it was a client. `further` is the number of others since the last record.
    pub fn audit_refused(&mut self, at: Moment, (peer, reason): (String, String), further: u64) {
        self.audit.queue.push(at, AuditEvent::Refuse, |record| AuditRecord {
            refusal: Some(Box::new(AuditedRefusal { peer: Some(peer), reason })),
            count: (further > 0).then_some(further),
            ..record
        });
    }

    /// Audits the changes that the NIC has made to a chunk since the node read its record last.
    pub fn audit_chunk(&mut self, at: Moment, change: Adopted) {
        self.audit.of_chunk(&self.accounts, at, change);
    }
}
