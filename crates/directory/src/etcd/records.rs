//! Data stored in etcd. Its bytes are parsed into values here, or into an error: other processes may have written them.

use super::api::KeyValue;
use super::keys::Layout;
use crate::addresses::HeapRange;
use crate::entry::{Access, Entry, Registered, Who};
use crate::error::DirectoryError;
use crate::lease::LeaseId;
use crate::quota::Quota;
use crate::record::{StoredTarget, StoredWho};
use portcullis_protocol::TenantName;
use serde::{Deserialize, Serialize};
use std::fmt;

#[derive(Serialize, Deserialize)]
pub(super) struct StoredEntry {
    tenant: String,
    target: StoredTarget,
    look_up: StoredWho,
    register: StoredWho,
}

#[derive(Serialize, Deserialize)]
pub(super) struct StoredHeap {
    bytes: u64,
    tenant: String,
    others: StoredWho,
}

#[derive(Serialize, Deserialize)]
pub(super) struct StoredQuota {
    process_bytes: u64,
    tenant_bytes: u64,
    names: u64,
    leases: u64,
}

/// A heap in its stored form.
pub(super) struct KnownHeap {
    pub(super) range: HeapRange,
    pub(super) tenant: TenantName,
    pub(super) others: Who,
}

pub(super) fn entry_bytes(entry: &Entry, tenant: &TenantName) -> Vec<u8> {
    bytes(&StoredEntry {
        tenant: tenant.to_string(),
        target: StoredTarget::of(&entry.target),
        look_up: StoredWho::of(&entry.access.look_up),
        register: StoredWho::of(&entry.access.register),
    })
}

pub(super) fn heap_bytes(bytes: u64, tenant: &TenantName, others: &Who) -> Vec<u8> {
    self::bytes(&StoredHeap { bytes, tenant: tenant.to_string(), others: StoredWho::of(others) })
}

pub(super) fn quota_bytes(quota: Quota) -> Vec<u8> {
    let Quota { process_bytes, tenant_bytes, names, leases } = quota;
    bytes(&StoredQuota { process_bytes, tenant_bytes, names, leases })
}

pub(super) fn registered(stored: &KeyValue) -> Result<Registered, DirectoryError> {
    let entry: StoredEntry = parse(stored)?;
    let nonsense = |error| nonsense(stored, error);
    let target = entry.target.read().map_err(nonsense)?;
    let look_up = entry.look_up.read().map_err(nonsense)?;
    let access = Access { look_up, register: entry.register.read().map_err(nonsense)? };
    let there = Entry { target, access };
    there.check().map_err(|error| nonsense(error.to_string()))?;
    Ok(Registered {
        entry: there,
        tenant: tenant(stored, &entry.tenant)?,
        lease: lease(stored)?,
        registration: stored.create_revision.0.cast_unsigned(),
        revision: stored.mod_revision.0.cast_unsigned(),
    })
}

pub(super) fn known_heap(stored: &KeyValue) -> Result<KnownHeap, DirectoryError> {
    let heap: StoredHeap = parse(stored)?;
    let address = Layout::address(&stored.key.0).ok_or_else(|| nonsense(stored, "not a heap's key"))?;
    let range = HeapRange { address, bytes: heap.bytes };
    Ok(KnownHeap {
        range,
        tenant: tenant(stored, &heap.tenant)?,
        others: heap.others.read().map_err(|error| nonsense(stored, error))?,
    })
}

pub(super) fn quota(stored: &KeyValue) -> Result<Quota, DirectoryError> {
    let StoredQuota { process_bytes, tenant_bytes, names, leases } = parse(stored)?;
    Ok(Quota { process_bytes, tenant_bytes, names, leases })
}

/// Returns the lease whose end deletes a key.
pub(super) fn lease(stored: &KeyValue) -> Result<LeaseId, DirectoryError> {
    match u64::try_from(stored.lease.0) {
        Ok(id) if id != 0 => Ok(LeaseId(id)),
        _ => Err(nonsense(stored, "it ends with no lease")),
    }
}

pub(super) fn nonsense(stored: &KeyValue, why: impl fmt::Display) -> DirectoryError {
    let key = String::from_utf8_lossy(&stored.key.0);
    DirectoryError::Nonsense(format!("in etcd, under {key}: {why}"))
}

fn bytes(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("texts and numbers are JSON")
}

fn parse<'a, T: Deserialize<'a>>(stored: &'a KeyValue) -> Result<T, DirectoryError> {
    serde_json::from_slice(&stored.value.0).map_err(|error| nonsense(stored, error))
}

fn tenant(stored: &KeyValue, name: &str) -> Result<TenantName, DirectoryError> {
    TenantName::new(name).map_err(|error| nonsense(stored, error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::Target;

    #[test]
    fn a_node_that_an_earlier_version_has_registered_is_read() {
        let stored = br#"{"node":{"addresses":["udp:a:1"]}}"#;
        let target: StoredTarget = serde_json::from_slice(stored).expect("an entry of version 0.2.0");
        assert!(
            matches!(target.read(), Ok(Target::Node { addresses, memory_bytes: 0 }) if addresses.len() == 1)
        );
    }
}
