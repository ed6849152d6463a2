//! Leases: one for each process, with which everything ends that the process has in the directory (RPCool §4.6).

use portcullis_protocol::TenantName;
use std::fmt;
use std::time::Duration;

/// The number of a lease in its directory. It is given once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LeaseId(pub u64);

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The shortest time that a lease is given for.
pub const LEASE_MIN: Duration = Duration::from_secs(1);
/// The longest time that a lease is given for.
pub const LEASE_MAX: Duration = Duration::from_hours(24);

/// The lease of one process. It ends when it was not kept alive for its time, however the process has ended.
///
/// A process whose keep-alive is not answered has to take its lease for ended when the time has passed since it *asked* the
/// last time that it was answered: for the directory the time begins later.
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

    /// Its number.
    #[must_use]
    pub const fn id(&self) -> LeaseId {
        self.id
    }

    /// The tenant of the process.
    #[must_use]
    pub const fn tenant(&self) -> &TenantName {
        &self.tenant
    }

    /// How long the lease lives without being kept alive: what was asked for in whole seconds, from [`LEASE_MIN`] to
    /// [`LEASE_MAX`], or longer if the directory gives none as short.
    #[must_use]
    pub const fn time_to_live(&self) -> Duration {
        self.time_to_live
    }
}

/// The time that is given when so much was asked for, in whole seconds.
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
