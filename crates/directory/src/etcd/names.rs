//! Names: one key for each, which only one lease can put.

use super::api::{Compare, KeyValue, Keys, RequestOp, Transaction};
use super::gateway::Repeat;
use super::keys::Layout;
use super::watch::Watching;
use super::{Etcd, claims, lease_number, records};
use crate::directory::Watch;
use crate::entry::{Entry, Found};
use crate::error::DirectoryError;
use crate::lease::Lease;
use crate::name::Name;
use crate::quota::Asked;
use portcullis_protocol::TenantName;
use std::collections::BTreeMap;
use std::time::Instant;

pub(super) fn register(
    etcd: &Etcd,
    lease: &Lease,
    name: &Name,
    entry: &Entry,
    until: Instant,
) -> Result<Option<()>, DirectoryError> {
    let (layout, tenant) = (&etcd.0.layout, lease.tenant());
    let key = layout.name(name);
    let (claims, [there]) = claims::read_with(etcd, tenant, [Keys::one(&key)], until)?;
    claims.of(etcd, lease)?;
    let mut compare = claims.hold(etcd).to_vec();
    compare.push(Compare::is_there(Keys::one(&layout.lease(lease))));
    if !name.is_of(tenant) {
        compare.push(permission(etcd, tenant, name, until)?);
    }
    match there.first() {
        Some(stored) => {
            let there = records::registered(stored)?;
            if there.lease != lease.id() {
                return Err(DirectoryError::NameTaken(name.clone()));
            }
            if there.entry == *entry && claims.have_name(etcd, lease, name) {
                return Ok(Some(()));
            }
            compare.push(Compare::is_still(Keys::one(&key), stored.mod_revision));
        }
        None => {
            claims.admit(etcd, lease, Asked::Name)?;
            compare.push(Compare::is_absent(Keys::one(&key)));
        }
    }
    let id = lease_number(lease.id());
    let put = RequestOp::put(&key, records::entry_bytes(entry, tenant), id);
    let success = vec![put, RequestOp::put(&layout.claimed_name(lease, name), "", id)];
    let told = etcd.settle(&Transaction { compare, success, failure: vec![] }, Repeat::No, until);
    Ok(told.map_err(|failure| failure.of_lease(lease.id()))?.succeeded.then_some(()))
}

/// Returns the condition that a name above this one still has the entry that was read, and that entry lets the tenant
/// register this name.
fn permission(
    etcd: &Etcd,
    tenant: &TenantName,
    name: &Name,
    until: Instant,
) -> Result<Compare, DirectoryError> {
    let keys: Vec<_> = name.above().map(|above| Keys::one(&etcd.0.layout.name(&above))).collect();
    let reads = keys.iter().cloned().map(RequestOp::read).collect();
    let (_, parts) = etcd.read_all(reads, until)?;
    for (keys, part) in keys.into_iter().zip(parts) {
        if let Some(stored) = part.kvs.first()
            && records::registered(stored)?.lets_register(tenant)
        {
            return Ok(Compare::is_still(keys, stored.mod_revision));
        }
    }
    Err(DirectoryError::NotAllowed { name: name.clone(), tenant: *tenant })
}

pub(super) fn withdraw(etcd: &Etcd, lease: &Lease, name: &Name) -> Result<(), DirectoryError> {
    let layout = &etcd.0.layout;
    let claimed = layout.claimed_name(lease, name);
    let transaction = Transaction {
        compare: vec![Compare::is_there(Keys::one(&claimed))],
        success: vec![RequestOp::delete(&layout.name(name)), RequestOp::delete(&claimed)],
        failure: vec![RequestOp::read(Keys::one(&layout.lease(lease)))],
    };
    let answer = etcd.settle(&transaction, Repeat::No, etcd.until());
    let answer = answer.map_err(|failure| failure.of_lease(lease.id()))?;
    let lives = answer.responses.first().is_some_and(|told| !told.response_range.kvs.is_empty());
    match answer.succeeded {
        true => Ok(()),
        false if lives => Err(DirectoryError::NoSuchName(name.clone())),
        false => Err(DirectoryError::LeaseEnded(lease.id())),
    }
}

pub(super) fn look_up(
    etcd: &Etcd,
    tenant: &TenantName,
    name: &Name,
) -> Result<Option<Found>, DirectoryError> {
    let read = etcd.read(Keys::one(&etcd.0.layout.name(name)), etcd.until())?;
    seen(&read.kvs, tenant)
}

pub(super) fn watch(
    etcd: &Etcd,
    tenant: &TenantName,
    name: &Name,
) -> Result<Box<dyn Watch<Option<Found>>>, DirectoryError> {
    let tenant = *tenant;
    let keys = Keys::one(&etcd.0.layout.name(name));
    Ok(Box::new(Watching::new(etcd, keys, Box::new(move |there| seen(there, &tenant)))?))
}

pub(super) fn list(
    etcd: &Etcd,
    tenant: &TenantName,
    above: &Name,
) -> Result<BTreeMap<Name, Found>, DirectoryError> {
    let read = etcd.read(etcd.0.layout.names_below(above), etcd.until())?;
    Ok(all_seen(&etcd.0.layout, &read.kvs, tenant))
}

pub(super) fn watch_list(
    etcd: &Etcd,
    tenant: &TenantName,
    above: &Name,
) -> Result<Box<dyn Watch<BTreeMap<Name, Found>>>, DirectoryError> {
    let (tenant, layout) = (*tenant, etcd.0.layout.clone());
    let keys = layout.names_below(above);
    Ok(Box::new(Watching::new(etcd, keys, Box::new(move |there| Ok(all_seen(&layout, there, &tenant))))?))
}

/// Returns the entries that a tenant sees, of these keys. A key that another program has put, and that has no entry, is left out:
/// it would hide all others.
fn all_seen(layout: &Layout, there: &[KeyValue], tenant: &TenantName) -> BTreeMap<Name, Found> {
    let entry = |stored: &KeyValue| {
        let found = records::registered(stored).ok()?.seen_by(tenant)?;
        Some((layout.name_of(&stored.key.0)?, found))
    };
    there.iter().filter_map(entry).collect()
}

fn seen(there: &[KeyValue], tenant: &TenantName) -> Result<Option<Found>, DirectoryError> {
    let registered = there.first().map(records::registered).transpose()?;
    Ok(registered.and_then(|registered| registered.seen_by(tenant)))
}
