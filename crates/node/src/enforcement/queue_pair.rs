//! Mechanism `queue-pair`: the access flags of a client's queue pairs follow the client's permissions. No byte range is
//! enforced: this is for comparison.

use super::at_once::Immediate;
use super::{Domain, Ended, Exposing, Surroundings};
use crate::books::Exposure;
use portcullis_nic::{Access, Nic, QpChange, QpState};
use portcullis_protocol::{ClientId, Credential, Rights, Rkey};
use std::collections::HashMap;

/// Number of permissions with each right, for each client.
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

    fn expose(&mut self, around: &mut Surroundings<'_, N>, exposure: &Exposure) -> Option<Credential> {
        self.change(around, exposure.client, exposure.rights, 1);
        around.enter(exposure, Exposing::NOTHING);
        let key = around.domain.region.rkey;
        Some(Credential::Keys { buffer: key, lifetime: key })
    }

    fn withdraw(&mut self, around: &mut Surroundings<'_, N>, ended: &Ended) {
        self.change(around, ended.withdrawal.client, ended.withdrawal.rights, -1);
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
        // Holders extend the lifetime word by an atomic, whatever rights the permission has.
        access.set(Access::REMOTE_ATOMIC, held.iter().any(|&holders| holders > 0));
        access
    }

    fn change<N: Nic>(
        &mut self,
        around: &mut Surroundings<'_, N>,
        client: ClientId,
        rights: Rights,
        change: i32,
    ) {
        if around.ends.data(client).is_empty() {
            // A client that has left has no access any more.
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
        for &qp in around.ends.data(client) {
            // A queue pair in error gets its flags when it is rebuilt.
            if around.nic.qp_state(qp).is_ok_and(|state| state == QpState::ReadyToSend) {
                let changed = around.nic.modify_qp(qp, QpChange::Access { access });
                if changed.is_err() {
                    // No access is better than more access than the client's permissions allow.
                    let _ = around.nic.modify_qp(qp, QpChange::Error);
                }
            }
        }
    }
}
