//! Mechanisms that set up and take down each permission by itself, and are done when the call returns.

use super::enforcer::{Batches, Leftovers, Tenancy};
use super::{Domain, Ended, EnforcementOutcome, Surroundings};
use crate::books::Exposure;
use crate::ends::{Gate, destroy_all};
use portcullis_nic::{Access, Nic, QpId};
use portcullis_protocol::{ClientId, Credential, Refusal, Rkey};

/// A mechanism that sets up and takes down each permission by itself, and is done when the call returns.
pub(crate) trait Immediate<N: Nic> {
    /// The access of [`Tenancy::pool_access`].
    const POOL_ACCESS: Access;

    /// Implements [`Gate::access`].
    fn client_access(&self, client: ClientId) -> Access;

    /// Implements [`Tenancy::shared_key`].
    fn shared_key(_domain: &Domain) -> Option<Rkey> {
        None
    }

    /// Sets a permission up. `None`: the NIC refuses, and nothing exposes the permission.
    fn expose(&mut self, around: &mut Surroundings<'_, N>, exposure: &Exposure) -> Option<Credential>;

    /// Takes a permission down. Nothing exposes it after this.
    fn withdraw(&mut self, _around: &mut Surroundings<'_, N>, _ended: &Ended) {}

    /// Implements [`Gate::forget_client`].
    fn forget_client(&mut self, _client: ClientId) {}
}

/// An [`Immediate`] mechanism as an [`Enforcer`](super::enforcer::Enforcer).
#[derive(Debug)]
pub(crate) struct AtOnce<I>(pub I);

impl<N: Nic, I: Immediate<N>> Tenancy<N> for AtOnce<I> {
    fn pool_access(&self) -> Access {
        I::POOL_ACCESS
    }

    fn shared_key(&self, domain: &Domain) -> Option<Rkey> {
        I::shared_key(domain)
    }

    fn end_tenant(&mut self, around: &mut Surroundings<'_, N>, ending: &[Ended]) -> Leftovers {
        for ended in ending {
            self.0.withdraw(around, ended);
        }
        Leftovers::default()
    }
}

impl<N: Nic, I: Immediate<N>> Gate<N> for AtOnce<I> {
    fn access(&self, client: ClientId) -> Access {
        self.0.client_access(client)
    }

    fn forget_client(&mut self, nic: &mut N, client: ClientId, data: Vec<QpId>) {
        self.0.forget_client(client);
        destroy_all(nic, &data);
    }
}

impl<N: Nic, I: Immediate<N>> Batches<N> for AtOnce<I> {
    fn carry_out(
        &mut self,
        around: &mut Surroundings<'_, N>,
        starting: &mut Vec<Exposure>,
        ending: &mut Vec<Ended>,
    ) -> bool {
        for ended in ending.drain(..) {
            self.0.withdraw(around, &ended);
            let Ended { withdrawal, .. } = ended;
            around.outcomes.push(EnforcementOutcome::Withdrawn(withdrawal.residue()));
            around.outcomes.extend(withdrawal.owed.map(EnforcementOutcome::Settled));
        }
        for exposure in starting.drain(..) {
            let exposed = self.0.expose(around, &exposure);
            around.outcomes.push(match exposed {
                Some(credential) => EnforcementOutcome::Exposed(exposure.permission, credential),
                None => EnforcementOutcome::NotExposed(exposure.permission, Refusal::NicFailed),
            });
        }
        true
    }
}
