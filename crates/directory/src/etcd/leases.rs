//! Leases of the directory are leases of etcd. A claim that ends with the lease names its tenant.

use super::api::{Grant, LeaseAnswer, Number, OfLease, Part, RequestOp, Transaction};
use super::gateway::{Failure, Repeat};
use super::{Etcd, claims, lease_number};
use crate::error::DirectoryError;
use crate::lease::{self, Lease, LeaseId};
use portcullis_protocol::TenantName;
use std::time::{Duration, Instant};

pub(super) fn open(
    etcd: &Etcd,
    tenant: &TenantName,
    time_to_live: Duration,
) -> Result<Lease, DirectoryError> {
    // The key of the space may have been deleted since this directory was connected.
    etcd.agree_on_space()?;
    claims::read(etcd, tenant, etcd.until())?.admit_lease()?;
    let seconds = i64::try_from(lease::whole_seconds(time_to_live)).expect("leases are of a day at most");
    let grant = Grant { seconds: Number(seconds) };
    // If the answer is lost, the lease has nothing and ends by itself.
    let told: LeaseAnswer =
        etcd.0.gateway.ask("lease/grant", &grant, Repeat::No, etcd.until()).map_err(Failure::of_no_lease)?;
    let (Ok(id @ 1..), Ok(seconds @ 1..)) = (u64::try_from(told.id.0), u64::try_from(told.seconds.0)) else {
        return Err(DirectoryError::Nonsense("etcd grants a lease that is none".to_owned()));
    };
    let lease = Lease::new(LeaseId(id), *tenant, Duration::from_secs(seconds));
    let claimed = etcd.try_again(|until| claim(etcd, &lease, until));
    if claimed.is_err() {
        // If this fails, the lease ends by itself.
        let _ = end(etcd, lease.id());
    }
    claimed.map(|()| lease)
}

fn claim(etcd: &Etcd, lease: &Lease, until: Instant) -> Result<Option<()>, DirectoryError> {
    let claims = claims::read(etcd, lease.tenant(), until)?;
    claims.admit_lease()?;
    let transaction = Transaction {
        compare: claims.hold(etcd).into(),
        success: vec![RequestOp::put(&etcd.0.layout.lease(lease), "", lease_number(lease.id()))],
        failure: vec![],
    };
    let answer = etcd.settle(&transaction, Repeat::No, until);
    Ok(answer.map_err(|failure| failure.of_lease(lease.id()))?.succeeded.then_some(()))
}

pub(super) fn keep_alive(etcd: &Etcd, lease: &Lease) -> Result<(), DirectoryError> {
    let request = OfLease { id: lease_number(lease.id()) };
    let told = etcd.0.gateway.ask("lease/keepalive", &request, Repeat::Yes, etcd.until());
    match told {
        Ok(Part::Result(LeaseAnswer { seconds: Number(1..), .. })) => Ok(()),
        Ok(Part::Result(_)) => Err(DirectoryError::LeaseEnded(lease.id())),
        Ok(Part::Error(complaint)) => Err(etcd.0.gateway.complaint(complaint).of_lease(lease.id())),
        Err(failure) => Err(failure.of_lease(lease.id())),
    }
}

pub(super) fn end(etcd: &Etcd, lease: LeaseId) -> Result<(), DirectoryError> {
    let request = OfLease { id: lease_number(lease) };
    let told: Result<LeaseAnswer, _> =
        etcd.0.gateway.ask("lease/revoke", &request, Repeat::Yes, etcd.until());
    match told {
        Ok(_) | Err(Failure::NoLease) => Ok(()),
        Err(Failure::Other(error)) => Err(error),
    }
}
