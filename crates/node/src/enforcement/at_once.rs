//! Mechanisms that set up and take down each permission by itself, and are done when the call returns.

use super::{Domain, Ended, Enforcer, Leftovers, Outcome, Surroundings, destroy_all};
use crate::books::Exposure;
use portcullis_nic::{Access, Nic, QpId};
use portcullis_protocol::{ClientId, Credential, Refusal, Rkey};

/// A mechanism that sets up and takes down each permission by itself, and is done when the call returns.
pub(crate) trait Immediate<N: Nic> {
    /// The access of [`Enforcer::pool_access`].
    const POOL_ACCESS: Access;

    /// Implements [`Enforcer::client_access`].
    fn client_access(&self, client: ClientId) -> Access;

    /// Implements [`Enforcer::shared_key`].
    fn shared_key(_domain: &Domain) -> Option<Rkey> {
        None
    }

    /// Sets a permission up. `None`: the NIC refuses, and nothing exposes the permission.
    fn expose(&mut self, around: &mut Surroundings<'_, N>, exposure: &Exposure) -> Option<Credential>;

    /// Takes a permission down. Nothing exposes it after this.
    fn withdraw(&mut self, _around: &mut Surroundings<'_, N>, _ended: &Ended) {}

    /// Implements [`Enforcer::forget_client`].
    fn forget_client(&mut self, _client: ClientId) {}
}

/// An [`Immediate`] mechanism as an [`Enforcer`].
#[derive(Debug)]
pub(crate) struct AtOnce<I>(pub I);

impl<N: Nic, I: Immediate<N>> Enforcer<N> for AtOnce<I> {
    fn pool_access(&self) -> Access {
        I::POOL_ACCESS
    }

    fn client_access(&self, client: ClientId) -> Access {
        self.0.client_access(client)
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

    fn forget_client(&mut self, nic: &mut N, client: ClientId, data: Vec<QpId>) {
        self.0.forget_client(client);
        destroy_all(nic, &data);
    }

    fn carry_out(
        &mut self,
        around: &mut Surroundings<'_, N>,
        starting: &mut Vec<Exposure>,
        ending: &mut Vec<Ended>,
    ) -> bool {
        for ended in ending.drain(..) {
            self.0.withdraw(around, &ended);
            let Ended { withdrawal, .. } = ended;
            around.outcomes.push(Outcome::Withdrawn(withdrawal.residue()));
            around.outcomes.extend(withdrawal.owed.map(Outcome::Settled));
        }
        for exposure in starting.drain(..) {
            let exposed = self.0.expose(around, &exposure);
            around.outcomes.push(match exposed {
                Some(credential) => Outcome::Exposed(exposure.permission, credential),
                None => Outcome::NotExposed(exposure.permission, Refusal::NicFailed),
            });
        }
        true
    }
}
