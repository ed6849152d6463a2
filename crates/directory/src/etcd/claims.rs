//! The holdings of a tenant's leases. They are read as a whole and added up, and a decision based on them is written
//! only if nothing was added since. So two processes with requests at the same time never exceed a quota together.

use super::api::{Compare, KeyValue, Keys, Number, RequestOp};
use super::keys::Layout;
use super::{Etcd, records};
use crate::addresses::HeapRange;
use crate::error::DirectoryError;
use crate::lease::Lease;
use crate::name::Name;
use crate::quota::{Asked, Quota, Usage};
use portcullis_protocol::TenantName;
use std::time::Instant;

/// The claims of a tenant at one revision of etcd's store.
#[derive(Debug)]
pub(super) struct Claims {
    tenant: TenantName,
    /// Prefix of the claims' keys.
    folder: String,
    revision: Number,
    claims: Vec<KeyValue>,
    quota: Quota,
}

/// The usage of one lease and its tenant, and the heaps of the lease.
#[derive(Debug)]
pub(super) struct OfLease {
    pub(super) usage: Usage,
    pub(super) heaps: Vec<HeapRange>,
}

pub(super) fn read(etcd: &Etcd, tenant: &TenantName, until: Instant) -> Result<Claims, DirectoryError> {
    read_with(etcd, tenant, [], until).map(|(claims, [])| claims)
}

/// Reads claims, and other keys at the same revision.
pub(super) fn read_with<const N: usize>(
    etcd: &Etcd,
    tenant: &TenantName,
    others: [Keys; N],
    until: Instant,
) -> Result<(Claims, [Vec<KeyValue>; N]), DirectoryError> {
    let layout = &etcd.0.layout;
    let quotas = [layout.quota(None), layout.quota(Some(tenant))];
    let mut keys = vec![Keys::below(&layout.claims(tenant))];
    keys.extend(quotas.map(|key| Keys::one(&key)));
    keys.extend(others);
    let (revision, parts) = etcd.read_all(keys.into_iter().map(RequestOp::read).collect(), until)?;
    let mut parts = parts.into_iter().map(|part| part.kvs);
    let mut next = || parts.next().unwrap_or_default();
    let claims = next();
    let [of_all, own] = [next(), next()];
    let quota = own.first().or(of_all.first()).map(records::quota).transpose()?.unwrap_or_default();
    let others = std::array::from_fn(|_| next());
    let folder = format!("{}/", layout.claims(tenant));
    Ok((Claims { tenant: *tenant, folder, revision, claims, quota }, others))
}

impl Claims {
    /// Checks that the lease lives, and returns its usage and its tenant's.
    pub(super) fn of(&self, etcd: &Etcd, lease: &Lease) -> Result<OfLease, DirectoryError> {
        let mut of = self.sum(lease.id().0)?;
        let key = etcd.0.layout.lease(lease);
        if !self.claims.iter().any(|claim| claim.key.0 == key.as_bytes()) {
            return Err(DirectoryError::LeaseEnded(lease.id()));
        }
        of.heaps.sort_unstable();
        Ok(of)
    }

    /// Whether the name is among the claims of the lease.
    pub(super) fn have_name(&self, etcd: &Etcd, lease: &Lease, name: &Name) -> bool {
        let key = etcd.0.layout.claimed_name(lease, name);
        self.claims.iter().any(|claim| claim.key.0 == key.as_bytes())
    }

    fn sum(&self, lease: u64) -> Result<OfLease, DirectoryError> {
        let mut usage = Usage::default();
        let mut heaps = Vec::new();
        for claim in &self.claims {
            let is_own = records::lease(claim)?.0 == lease;
            // The rest of the key is LEASE/KIND/...
            let key = std::str::from_utf8(&claim.key.0).map_err(|error| records::nonsense(claim, error))?;
            let kind = key.strip_prefix(&self.folder).and_then(|below| below.split('/').nth(1));
            match kind {
                Some("lease") => usage.leases += 1,
                Some("name") => usage.names += 1,
                Some("heap") => {
                    let range = heap(claim)?;
                    let overflow = || records::nonsense(claim, "more bytes than there can be");
                    usage.tenant_bytes = usage.tenant_bytes.checked_add(range.bytes).ok_or_else(overflow)?;
                    if is_own {
                        usage.process_bytes += range.bytes;
                        heaps.push(range);
                    }
                }
                _ => return Err(records::nonsense(claim, "no claim is called that")),
            }
        }
        Ok(OfLease { usage, heaps })
    }

    /// Checks that a live lease has room in its quota for the request.
    pub(super) fn admit(&self, etcd: &Etcd, lease: &Lease, asked: Asked) -> Result<(), DirectoryError> {
        Ok(self.quota.admit(&self.tenant, &self.of(etcd, lease)?.usage, asked)?)
    }

    /// Checks that the tenant may have another lease.
    pub(super) fn admit_lease(&self) -> Result<(), DirectoryError> {
        Ok(self.quota.admit(&self.tenant, &self.sum(0)?.usage, Asked::Lease)?)
    }

    /// Returns the conditions that nothing was added to these claims, and that no quota has changed.
    pub(super) fn hold(&self, etcd: &Etcd) -> [Compare; 3] {
        let layout = &etcd.0.layout;
        let keys = [
            Keys::below(&layout.claims(&self.tenant)),
            Keys::one(&layout.quota(None)),
            Keys::one(&layout.quota(Some(&self.tenant))),
        ];
        keys.map(|keys| Compare::none_put_since(keys, self.revision))
    }

    /// Returns the revision of the store at which the claims were read.
    pub(super) const fn revision(&self) -> Number {
        self.revision
    }
}

fn heap(claim: &KeyValue) -> Result<HeapRange, DirectoryError> {
    let bytes = std::str::from_utf8(&claim.value.0).ok().and_then(|text| text.parse().ok());
    match (Layout::address(&claim.key.0), bytes) {
        (Some(address), Some(bytes)) => Ok(HeapRange { address, bytes }),
        _ => Err(records::nonsense(claim, "no claim on a heap")),
    }
}
