//! The layout of keys in etcd.
//!
//! ```text
//! PREFIX/space                          the addresses that are given out
//! PREFIX/quota, PREFIX/quotas/TENANT    quotas
//! PREFIX/names/NAME                     an entry; ends with its lease
//! PREFIX/heaps/ADDRESS                  a heap: so two heaps never have one place
//! PREFIX/holders/ADDRESS/LEASE          who holds it; ends with the lease
//! PREFIX/claims/TENANT/LEASE/...        what the lease has: itself, its names, its heaps; ends with the lease
//! ```
//!
//! A tenant's usage is the sum of its claims, so no counter must be decreased when a lease ends.

use super::api::Keys;
use crate::lease::{Lease, LeaseId};
use crate::name::Name;
use portcullis_protocol::TenantName;
use std::ops::Range;

#[derive(Clone, Debug)]
pub(super) struct Layout(String);

impl Layout {
    pub(super) fn new(prefix: &Name) -> Self {
        Self(format!("/{prefix}"))
    }

    pub(super) fn space(&self) -> String {
        format!("{}/space", self.0)
    }

    pub(super) fn quota(&self, tenant: Option<&TenantName>) -> String {
        match tenant {
            Some(tenant) => format!("{}/quotas/{}", self.0, segment(tenant)),
            None => format!("{}/quota", self.0),
        }
    }

    pub(super) fn name(&self, name: &Name) -> String {
        format!("{}/names/{name}", self.0)
    }

    /// Returns the keys of the names below another one.
    pub(super) fn names_below(&self, above: &Name) -> Keys {
        Keys::below(&self.name(above))
    }

    /// Returns the name that a key stands for. `None`: it is the key of no name.
    pub(super) fn name_of(&self, key: &[u8]) -> Option<Name> {
        let text = std::str::from_utf8(key).ok()?.strip_prefix(&format!("{}/names/", self.0))?;
        Name::new(text).ok()
    }

    pub(super) fn heap(&self, address: u64) -> String {
        format!("{}/heaps/{address:016x}", self.0)
    }

    /// Returns the keys of the heaps at these addresses.
    pub(super) fn heaps(&self, among: &Range<u64>) -> Keys {
        Keys::from(&self.heap(among.start), &self.heap(among.end))
    }

    /// Returns the address that a heap's key ends with.
    pub(super) fn address(key: &[u8]) -> Option<u64> {
        let last = key.rsplit(|&byte| byte == b'/').next()?;
        u64::from_str_radix(std::str::from_utf8(last).ok()?, 16).ok()
    }

    pub(super) fn holders(&self, address: u64) -> String {
        format!("{}/holders/{address:016x}", self.0)
    }

    pub(super) fn holder(&self, address: u64, lease: LeaseId) -> String {
        format!("{}/{lease}", self.holders(address))
    }

    pub(super) fn claims(&self, tenant: &TenantName) -> String {
        format!("{}/claims/{}", self.0, segment(tenant))
    }

    fn claims_of(&self, lease: &Lease) -> String {
        format!("{}/{}", self.claims(lease.tenant()), lease.id())
    }

    pub(super) fn lease(&self, lease: &Lease) -> String {
        format!("{}/lease", self.claims_of(lease))
    }

    pub(super) fn claimed_name(&self, lease: &Lease, name: &Name) -> String {
        format!("{}/name/{name}", self.claims_of(lease))
    }

    pub(super) fn claimed_heap(&self, lease: &Lease, address: u64) -> String {
        format!("{}/heap/{address:016x}", self.claims_of(lease))
    }
}

/// Encodes a tenant's name as a segment of a key.
fn segment(tenant: &TenantName) -> String {
    tenant.as_str().replace('%', "%25").replace('/', "%2F")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_tenants_claims_lie_below_another_ones() {
        let layout = Layout::new(&Name::new("portcullis").expect("a name"));
        let claims = |name: &str| layout.claims(&TenantName::new(name).expect("a tenant"));
        assert_eq!(claims("bank"), "/portcullis/claims/bank");
        assert_eq!(claims("bank/eu"), "/portcullis/claims/bank%2Feu");
        assert_ne!(claims("bank/eu"), claims("bank%2Feu"));
    }

    #[test]
    fn a_names_key_is_read_back() {
        let layout = Layout::new(&Name::new("a/b").expect("a name"));
        let name = Name::new("bank/kv/one").expect("a name");
        assert_eq!(layout.name_of(layout.name(&name).as_bytes()), Some(name));
        for key in ["/a/b/heaps/bank", "/a/b/names/", "/a/b/names/bank//kv", "/b/names/bank"] {
            assert_eq!(layout.name_of(key.as_bytes()), None, "{key}");
        }
    }

    #[test]
    fn a_heaps_key_ends_with_its_address() {
        let layout = Layout::new(&Name::new("a/b").expect("a name"));
        assert_eq!(Layout::address(layout.heap(0x1000_0000_0000).as_bytes()), Some(0x1000_0000_0000));
        assert_eq!(Layout::address(b"/a/b/heaps/xyz"), None);
    }
}
