//! Mechanism `queue-pair`: the flags of a client's queue pairs follow what it holds. No byte range is enforced: this is
//! a comparison.

use super::at_once::Immediate;
use super::{Domain, Ended, Exposing, Scene};
use crate::books::Exposure;
use portcullis_nic::{Access, Nic, QpChange, QpState};
use portcullis_protocol::{ClientId, Credential, Rights, Rkey};
use std::collections::HashMap;

/// How many permissions with each right a client holds.
#[derive(Debug, Default)]
pub(crate) struct QueuePair {
    held: HashMap<ClientId, [u32; 3]>,
}

impl<N: Nic> Immediate<N> for QueuePair {
    const POOL_ACCESS: Access = Access::REMOTE;

    fn client_access(&self, client: ClientId) -> Access {
        self.access(client)
    }

    fn shared_key(domain: &Domain) -> Option<Rkey> {
        Some(domain.region.rkey)
    }

    fn expose(&mut self, scene: &mut Scene<'_, N>, exposure: &Exposure) -> Option<Credential> {
        self.change(scene, exposure.client, exposure.rights, 1);
        scene.enter(exposure, Exposing::NOTHING);
        let key = scene.domain.region.rkey;
        Some(Credential::Keys { buffer: key, lifetime: key })
    }

    fn withdraw(&mut self, scene: &mut Scene<'_, N>, ended: &Ended) {
        self.change(scene, ended.withdrawal.client, ended.withdrawal.rights, -1);
    }

    fn forget_client(&mut self, client: ClientId) {
        self.held.remove(&client);
    }
}

impl QueuePair {
    fn access(&self, client: ClientId) -> Access {
        let held = self.held.get(&client).copied().unwrap_or_default();
        let mut access = Access::empty();
        access.set(Access::REMOTE_READ, held[0] > 0);
        access.set(Access::REMOTE_WRITE, held[1] > 0);
        // The lifetime word is extended by an atomic, whatever the permission's rights are.
        access.set(Access::REMOTE_ATOMIC, held.iter().any(|&holders| holders > 0));
        access
    }

    fn change<N: Nic>(&mut self, scene: &mut Scene<'_, N>, client: ClientId, rights: Rights, change: i32) {
        if scene.ends.data(client).is_empty() {
            // A client that has gone reaches nothing any more.
            return;
        }
        let before = self.access(client);
        let held = self.held.entry(client).or_default();
        for (held, right) in held.iter_mut().zip([Rights::READ, Rights::WRITE, Rights::ATOMIC]) {
            if rights.contains(right) {
                *held = held.saturating_add_signed(change);
            }
        }
        let access = self.access(client);
        if access == before {
            return;
        }
        for &qp in scene.ends.data(client) {
            // One that is in error gets its flags when it is rebuilt.
            if scene.nic.qp_state(qp).is_ok_and(|state| state == QpState::ReadyToSend) {
                let changed = scene.nic.modify_qp(qp, QpChange::Access { access });
                if changed.is_err() {
                    // Rather no access than more than is held.
                    let _ = scene.nic.modify_qp(qp, QpChange::Error);
                }
            }
        }
    }
}
