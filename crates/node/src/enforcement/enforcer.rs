//! The requirements of the node to a mechanism, by their subject: tenants, batches, and the queue pairs of clients
//! ([`Gate`]).

use super::{Domain, Ended, EnforcementOutcome, Surroundings};
use crate::books::{Exposure, PermissionSlot, Residue};
use crate::ends::Gate;
use portcullis_nic::{Access, Completion, Nic, QpId, VerbsError};
use portcullis_protocol::{Moment, Rkey, TenantId};

/// The permissions and ranges that a tenant leaves when the node removes it from the NIC. None of them is exposed any
/// more.
#[derive(Debug, Default)]
pub(crate) struct Leftovers {
    /// Permissions that were never exposed.
    pub unexposed: Vec<PermissionSlot>,
    pub residues: Vec<Residue>,
}

/// The result of [`Tenancy::shrink`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shrunk {
    /// Number of things that ended.
    pub ended: usize,
    /// Whether some of them are taken down with the tenant's next batch.
    pub in_batch: bool,
    /// Whether the NIC is still working for the tenant.
    pub waits_for_nic: bool,
}

/// A mechanism: how permissions are set up and taken down on the NIC.
pub(crate) trait Enforcer<N: Nic>: Tenancy<N> + Batches<N> + Gate<N> {}

impl<N: Nic, M: Tenancy<N> + Batches<N> + Gate<N>> Enforcer<N> for M {}

/// The part of a mechanism when tenants come and go.
pub(crate) trait Tenancy<N: Nic> {
    /// Returns the access that a tenant's region over the whole pool gives peers by itself: none if something finer
    /// enforces permissions.
    fn pool_access(&self) -> Access;

    /// Returns the key that opens all permissions of a tenant, if they have no keys of their own.
    fn shared_key(&self, _domain: &Domain) -> Option<Rkey> {
        None
    }

    /// Sets up a tenant's objects on the NIC, besides its domain.
    ///
    /// # Errors
    /// The NIC refuses. Nothing is left behind.
    fn enter_tenant(&mut self, _nic: &mut N, _tenant: TenantId, _domain: &Domain) -> Result<(), VerbsError> {
        Ok(())
    }

    /// Removes a tenant from the NIC, except for its domain: nothing of the tenant is exposed after this.
    fn end_tenant(&mut self, around: &mut Surroundings<'_, N>, ending: &[Ended]) -> Leftovers;

    /// Returns the number of things to take apart when a tenant ends.
    fn burden(&self, _tenant: TenantId) -> usize {
        0
    }

    /// Takes apart at most `most` things of a tenant without clients.
    fn shrink(&mut self, _nic: &mut N, _tenant: TenantId, _most: usize, _now: Moment) -> Shrunk {
        Shrunk::default()
    }

    /// Removes the mechanism from the NIC, after all tenants.
    fn end(&mut self, _nic: &mut N) {}
}

/// The part of a mechanism that sets permissions up and takes them down, in one batch for each turn and tenant.
pub(crate) trait Batches<N: Nic> {
    /// Sets up the permissions that start in this turn and takes down those that ended, for one tenant. Returns whether
    /// all of it is done.
    fn carry_out(
        &mut self,
        around: &mut Surroundings<'_, N>,
        starting: &mut Vec<Exposure>,
        ending: &mut Vec<Ended>,
    ) -> bool;

    /// Polls the confirmations of the NIC.
    fn poll(&mut self, _nic: &mut N, _completions: &mut Vec<Completion>) {}

    /// Handles a completion. Returns the tenant if a batch of the tenant is confirmed.
    fn confirm(
        &mut self,
        _nic: &mut N,
        completion: &Completion,
        _now: Moment,
        _outcomes: &mut Vec<EnforcementOutcome>,
    ) -> Option<TenantId> {
        unreachable!("{completion:?}: this mechanism asks the NIC for nothing that completes later")
    }

    /// Handles the break of one of the node's own queue pairs.
    fn handle_broken(&mut self, _nic: &mut N, _qp: QpId, _outcomes: &mut Vec<EnforcementOutcome>) {}

    /// Puts exposures that have lingered for long enough, or all that linger if the memory is `wanted`, into the next
    /// batch of their tenant. Adds that tenant to `busy`.
    fn release_lingering(&mut self, _wanted: bool, _now: Moment, _busy: &mut Vec<TenantId>) {}

    /// Does work that can wait until there is nothing else to do. Returns whether there is more.
    fn tend(&mut self, _nic: &mut N, _now: Moment) -> bool {
        false
    }

    /// Returns the next moment at which the mechanism needs a turn.
    fn next_wake(&self) -> Option<Moment> {
        None
    }

    /// Returns the number of windows in any state, and of operations on windows so far.
    fn windows(&self) -> (u64, u64) {
        (0, 0)
    }
}
