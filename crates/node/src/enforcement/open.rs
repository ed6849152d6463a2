//! Mechanism `none`: nothing is enforced. A permission is an address and a key that works for the whole pool: this is a
//! comparison.

use super::at_once::Immediate;
use super::{Domain, Exposing, Scene};
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

    fn expose(&mut self, scene: &mut Scene<'_, N>, exposure: &Exposure) -> Option<Credential> {
        scene.enter(exposure, Exposing::NOTHING);
        let key = scene.domain.region.rkey;
        Some(Credential::Keys { buffer: key, lifetime: key })
    }
}
