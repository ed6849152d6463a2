//! Mechanism `none`: nothing is enforced, for comparison. A permission is an address and a key to the whole pool.

use super::at_once::Immediate;
use super::{Domain, Exposing, Surroundings};
use crate::books::Exposure;
use portcullis_nic::{Access, Nic};
use portcullis_protocol::{ClientId, Credential, Rkey};

/// The mechanism that refuses nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Open;

impl<N: Nic> Immediate<N> for Open {
    const POOL_ACCESS: Access = Access::REMOTE;

    fn client_access(&self, _client: ClientId) -> Access {
        Access::REMOTE
    }

    fn shared_key(domain: &Domain) -> Option<Rkey> {
        Some(domain.region.rkey)
    }

    fn expose(&mut self, around: &mut Surroundings<'_, N>, exposure: &Exposure) -> Option<Credential> {
        around.enter(exposure, Exposing::NOTHING);
        let key = around.domain.region.rkey;
        Some(Credential::Keys { buffer: key, lifetime: key })
    }
}
