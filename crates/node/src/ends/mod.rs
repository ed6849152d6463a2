//! The node's ends of clients' queue pairs: whose each is, and how broken ones are rebuilt.
//!
//! Nothing here knows permissions: what a queue pair lets its client do is the enforcement's to say.

mod client_ends;
mod owners;
mod rebuilds;

pub use client_ends::{Admission, ClientEnds};
pub(crate) use rebuilds::Rebuilt;

use owners::Owners;
use portcullis_nic::{Access, Nic, QpChange, QpId, QpState};
use portcullis_protocol::{ClientId, Refusal};
use rebuilds::Rebuilds;
use std::collections::BTreeMap;

/// All ends of attached clients.
#[derive(Debug)]
pub(crate) struct Ends {
    clients: BTreeMap<ClientId, ClientEnds>,
    owners: Owners,
    rebuilds: Rebuilds,
    /// See [`portcullis_nic::Capabilities::sees_peer_ends`].
    sees_peer_ends: bool,
}

impl Ends {
    /// No ends yet, on a NIC that sees when a client's end breaks or does not. `at_once`: queue pairs that are rebuilt
    /// at the same time.
    pub fn new(sees_peer_ends: bool, at_once: u32) -> Self {
        let (clients, owners) = (BTreeMap::new(), Owners::default());
        Self { clients, owners, rebuilds: Rebuilds::new(at_once), sees_peer_ends }
    }

    /// A client is attached through these.
    pub fn insert(&mut self, client: ClientId, ends: ClientEnds) {
        self.owners.insert(ends.control, client, None);
        for (number, &qp) in (0..).zip(&ends.data) {
            self.owners.insert(qp, client, Some(number));
        }
        self.clients.insert(client, ends);
    }

    /// A client has gone: its queue pairs are nobody's.
    pub fn remove(&mut self, client: ClientId) {
        self.rebuilds.forget(client);
        if let Some(ends) = self.clients.remove(&client) {
            for &qp in ends.data.iter().chain([&ends.control]) {
                self.owners.remove(qp);
            }
        }
    }

    /// Whose a queue pair is, and which of its data queue pairs; no number: its control queue pair.
    pub fn owner(&self, qp: QpId) -> Option<(ClientId, Option<u32>)> {
        self.owners.get(qp)
    }

    /// Nothing more comes from a client after this. Returns whether it is attached.
    pub fn stop(&self, nic: &mut impl Nic, client: ClientId) -> bool {
        let Some(ends) = self.clients.get(&client) else { return false };
        for &qp in ends.data.iter().chain([&ends.control]) {
            let _ = nic.modify_qp(qp, QpChange::Error);
        }
        true
    }

    /// A client's data queue pairs. A client that has gone has none.
    pub fn data(&self, client: ClientId) -> &[QpId] {
        self.clients.get(&client).map_or(&[], |ends| &ends.data)
    }

    /// A client wants a data queue pair rebuilt. Returns the queue pair, which lets nothing through from here on.
    ///
    /// # Errors
    /// [`Refusal::Malformed`]: there is nothing to mend, or it is being mended already: an honest client asks once.
    pub fn stop_broken(&self, nic: &mut impl Nic, client: ClientId, number: u32) -> Result<QpId, Refusal> {
        let &qp = self.data(client).get(number as usize).ok_or(Refusal::Malformed)?;
        // A client whose requests had no answer for too long has a broken end that nobody else can see.
        let broken = !self.sees_peer_ends || nic.qp_state(qp).is_ok_and(|state| state == QpState::Error);
        if !broken || self.rebuilds.has(qp) {
            return Err(Refusal::Malformed);
        }
        if !self.sees_peer_ends {
            // Whatever the answer: once the client has it, nothing that it sent there before is executed any more.
            let _ = nic.modify_qp(qp, QpChange::Error);
        }
        Ok(qp)
    }

    /// Whether the NIC sees when a client's end breaks.
    pub fn sees_peer_ends(&self) -> bool {
        self.sees_peer_ends
    }

    /// Has a queue pair rebuilt, for this request of its client's.
    pub fn rebuild(&mut self, client: ClientId, sequence: u32, qp: QpId, number: u32) {
        self.rebuilds.ask(client, sequence, qp, number);
    }

    /// Takes each queue pair that is being rebuilt a step on. `access` says what a client's may let through. Says which
    /// rebuilds are over, and whether there were any at all.
    pub fn go_on_rebuilding(
        &mut self,
        nic: &mut impl Nic,
        access: impl Fn(ClientId) -> Access,
    ) -> (Vec<Rebuilt>, bool) {
        self.rebuilds.step(nic, &mut self.clients, access)
    }
}
