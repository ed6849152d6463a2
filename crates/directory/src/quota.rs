//! Quotas: limits on what a process and a tenant may have in the directory at a time (RPCool §4.6).

use portcullis_errors::{Coded, ErrorCode};
use portcullis_planted::planted;
use portcullis_protocol::TenantName;
use std::fmt;

/// Limits for each process of a tenant, and for the tenant in all, at a time.
///
/// A heap counts for each process that holds it, with its requested bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quota {
    /// Bytes of heaps that one process holds.
    pub process_bytes: u64,
    /// Bytes of heaps that all processes of the tenant hold.
    pub tenant_bytes: u64,
    /// Names that the tenant has registered.
    pub names: u64,
    /// Leases of the tenant.
    pub leases: u64,
}

impl Default for Quota {
    /// Returns 64 GiB for a process, and 256 GiB, 1,000 names and 1,000 leases for a tenant.
    fn default() -> Self {
        Self { process_bytes: 64 << 30, tenant_bytes: 256 << 30, names: 1_000, leases: 1_000 }
    }
}

/// Present usage of a process and its tenant.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Usage {
    /// Bytes of heaps that the process holds.
    pub process_bytes: u64,
    /// Bytes of heaps that all processes of the tenant hold.
    pub tenant_bytes: u64,
    /// Names that the tenant has registered.
    pub names: u64,
    /// Leases of the tenant.
    pub leases: u64,
}

/// A limit of a [`Quota`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limited {
    /// Bytes of heaps of one process.
    ProcessBytes,
    /// Bytes of heaps of a tenant.
    TenantBytes,
    /// Names of a tenant.
    Names,
    /// Leases of a tenant.
    Leases,
}

impl fmt::Display for Limited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ProcessBytes => "bytes of heaps that one process may hold",
            Self::TenantBytes => "bytes of heaps that all its processes may hold",
            Self::Names => "names",
            Self::Leases => "leases",
        })
    }
}

/// A request exceeds a quota. Nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the quota of tenant {tenant} is {most} {limited}, of which {used} are used: there is no room for {asked} more"
)]
pub struct QuotaError {
    /// The tenant with the quota.
    pub tenant: TenantName,
    /// The limit that would be exceeded.
    pub limited: Limited,
    /// Value of the limit.
    pub most: u64,
    /// Amount in use.
    pub used: u64,
    /// Amount requested.
    pub asked: u64,
}

impl Coded for QuotaError {
    fn code(&self) -> ErrorCode {
        ErrorCode::DirectoryQuota
    }
}

/// A request that counts against a quota.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Asked {
    HeapBytes(u64),
    Name,
    Lease,
}

impl Quota {
    /// Checks that the request fits within the quota, beside the present usage.
    pub(crate) fn admit(&self, tenant: &TenantName, used: &Usage, asked: Asked) -> Result<(), QuotaError> {
        let check = |limited, most: u64, used: u64, asked: u64| {
            let has_room = used.checked_add(asked).is_some_and(|sum| sum <= most);
            let tenant = *tenant;
            if has_room { Ok(()) } else { Err(QuotaError { tenant, limited, most, used, asked }) }
        };
        match asked {
            Asked::HeapBytes(bytes) => {
                check(Limited::ProcessBytes, self.process_bytes, used.process_bytes, bytes)?;
                let others = if planted!(TenantsBytesNotCompared) { 0 } else { used.tenant_bytes };
                check(Limited::TenantBytes, self.tenant_bytes, others, bytes)
            }
            Asked::Name => check(Limited::Names, self.names, used.names, 1),
            Asked::Lease => check(Limited::Leases, self.leases, used.leases, 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_which_quota_it_is_and_how_much_is_used() {
        let tenant = TenantName::new("bank").expect("a tenant");
        let quota = Quota { process_bytes: 100, tenant_bytes: 150, names: 1, leases: 0 };
        let used = Usage { process_bytes: 50, tenant_bytes: 110, names: 0, leases: 0 };
        assert_eq!(quota.admit(&tenant, &used, Asked::HeapBytes(40)), Ok(()));
        let told = quota.admit(&tenant, &used, Asked::HeapBytes(51)).expect_err("a process may hold 100");
        assert_eq!((told.limited, told.most, told.used, told.asked), (Limited::ProcessBytes, 100, 50, 51));
        let told = quota.admit(&tenant, &used, Asked::HeapBytes(41)).expect_err("all may hold 150");
        assert_eq!(
            told.to_string(),
            "the quota of tenant bank is 150 bytes of heaps that all its processes may hold, of which 110 are used: there is \
             no room for 41 more"
        );
        assert_eq!(quota.admit(&tenant, &used, Asked::Name), Ok(()));
        assert!(quota.admit(&tenant, &used, Asked::Lease).is_err());
        assert!(quota.admit(&tenant, &used, Asked::HeapBytes(u64::MAX)).is_err(), "the sum overflows");
    }
}
