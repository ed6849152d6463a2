//! Leases: each process has one, and everything that the process has in the directory ends with its lease (RPCool
//! §4.6).

use portcullis_protocol::TenantName;
use std::fmt;
use std::time::Duration;

/// The number of a lease in its directory. It is never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LeaseId(pub u64);

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The shortest duration of a lease.
pub const LEASE_MIN: Duration = Duration::from_secs(1);
/// The longest duration of a lease.
pub const LEASE_MAX: Duration = Duration::from_hours(24);

/// The lease of one process. It ends if it is not kept alive in time, however the process has ended.
///
/// A process whose keep-alive is not answered must assume that its lease has ended when the lease's time has passed
/// since the process *sent* the last request that was answered: for the directory the time begins later.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lease {
    id: LeaseId,
    tenant: TenantName,
    time_to_live: Duration,
}

impl Lease {
    pub(crate) const fn new(id: LeaseId, tenant: TenantName, time_to_live: Duration) -> Self {
        Self { id, tenant, time_to_live }
    }

    /// Returns the lease's number.
    #[must_use]
    pub const fn id(&self) -> LeaseId {
        self.id
    }

    /// Returns the tenant of the process.
    #[must_use]
    pub const fn tenant(&self) -> &TenantName {
        &self.tenant
    }

    /// Returns how long the lease lives without being kept alive. It is the requested time in whole seconds, from
    /// [`LEASE_MIN`] to [`LEASE_MAX`], or longer if the directory has a longer minimum.
    #[must_use]
    pub const fn time_to_live(&self) -> Duration {
        self.time_to_live
    }
}

/// Returns the granted time in whole seconds for a requested time.
pub(crate) fn whole_seconds(asked: Duration) -> u64 {
    let asked = asked.clamp(LEASE_MIN, LEASE_MAX);
    asked.as_secs() + u64::from(asked.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_never_shorter_than_asked_for_and_has_its_bounds() {
        let cases = [(0, 1), (1_000, 1), (1_001, 2), (86_399_001, 86_400), (86_400_001, 86_400)];
        for (asked, given) in cases {
            assert_eq!(whole_seconds(Duration::from_millis(asked)), given, "{asked} ms");
        }
    }
}
