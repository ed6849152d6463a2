//! The node's ends of clients' queue pairs: the owner of each, and the rebuilds of broken ones.
//!
//! This module knows no permissions. The enforcement decides what accesses a queue pair allows its client.

mod client_ends;
mod gate;
mod owners;
mod rebuilds;

pub use client_ends::{Admission, ClientEnds};
pub(crate) use gate::{Gate, destroy_all};
pub(crate) use rebuilds::Rebuilt;

use owners::Owners;
use portcullis_nic::{Nic, QpChange, QpId, QpState};
use portcullis_protocol::{ClientId, Refusal};
use rebuilds::Rebuilds;
use std::collections::{BTreeMap, BTreeSet};

/// All ends of attached clients.
#[derive(Debug)]
pub(crate) struct Ends {
    clients: BTreeMap<ClientId, ClientEnds>,
    /// Clients without queue pairs.
    without: BTreeSet<ClientId>,
    owners: Owners,
    rebuilds: Rebuilds,
    /// Whether the NIC sees the state of peers' ends: [`portcullis_nic::Capabilities::sees_peer_ends`].
    sees_peer_ends: bool,
}

impl Ends {
    /// Creates a table without ends. `sees_peer_ends`: whether the NIC sees when a client's end breaks. `at_once`: the
    /// most queue pairs that are rebuilt at the same time.
    pub fn new(sees_peer_ends: bool, at_once: u32) -> Self {
        let (clients, without, owners) = (BTreeMap::new(), BTreeSet::new(), Owners::default());
        Self { clients, without, owners, rebuilds: Rebuilds::new(at_once), sees_peer_ends }
    }

    /// Enters the ends of a client.
    pub fn insert(&mut self, client: ClientId, ends: ClientEnds) {
        self.owners.insert(ends.control, client, None);
        for (number, &qp) in (0..).zip(&ends.data) {
            self.owners.insert(qp, client, Some(number));
        }
        for (number, &(qp, _)) in (ends.data.len()..).zip(&ends.chunks.access) {
            self.owners.insert(qp, client, u32::try_from(number).ok());
        }
        self.clients.insert(client, ends);
    }

    /// Enters a client that has no queue pairs.
    pub fn insert_without(&mut self, client: ClientId) {
        self.without.insert(client);
    }

    /// Removes a client that has left, and returns its ends. `None`: it had none.
    pub fn remove(&mut self, client: ClientId) -> Option<ClientEnds> {
        self.without.remove(&client);
        self.rebuilds.forget(client);
        let ends = self.clients.remove(&client)?;
        for qp in ends.all() {
            self.owners.remove(qp);
        }
        Some(ends)
    }

    /// Returns the client that owns a queue pair, and its number among the data queue pairs. No number: the control
    /// queue pair.
    pub fn owner(&self, qp: QpId) -> Option<(ClientId, Option<u32>)> {
        self.owners.get(qp)
    }

    /// Stops a client's queue pairs, so that it can send nothing more. Returns whether the client is attached.
    pub fn stop(&self, nic: &mut impl Nic, client: ClientId) -> bool {
        let Some(ends) = self.clients.get(&client) else { return self.without.contains(&client) };
        for qp in ends.all() {
            let _ = nic.modify_qp(qp, QpChange::Error);
        }
        true
    }

    /// Returns a client's data queue pairs. A client that has left has none.
    pub fn data(&self, client: ClientId) -> &[QpId] {
        self.clients.get(&client).map_or(&[], |ends| &ends.data)
    }

    /// Whether a client's number for a queue pair is that of a queue pair for chunks.
    pub fn is_for_chunks(&self, client: ClientId, number: u32) -> bool {
        number as usize >= self.data(client).len()
    }

    /// Returns a data queue pair that a client wants rebuilt. It allows no accesses from here on.
    ///
    /// # Errors
    /// [`Refusal::Malformed`]: the queue pair is not broken, or is being rebuilt already. An honest client sends the
    /// request once.
    pub fn stop_broken(&self, nic: &mut impl Nic, client: ClientId, number: u32) -> Result<QpId, Refusal> {
        let ends = self.clients.get(&client).ok_or(Refusal::Malformed)?;
        let qp = ends.numbered(number).ok_or(Refusal::Malformed)?;
        // If a client's requests had no reply for too long, its end breaks, which the node cannot see.
        let broken = !self.sees_peer_ends || nic.qp_state(qp).is_ok_and(|state| state == QpState::Error);
        if !broken || self.rebuilds.has(qp) {
            return Err(Refusal::Malformed);
        }
        if !self.sees_peer_ends {
            // Once the client has any reply, nothing that it sent here before is executed any more.
            let _ = nic.modify_qp(qp, QpChange::Error);
        }
        Ok(qp)
    }

    /// Whether the NIC sees when a client's end breaks.
    pub fn sees_peer_ends(&self) -> bool {
        self.sees_peer_ends
    }

    /// Starts the rebuild of a queue pair, for this request of its client.
    pub fn rebuild(&mut self, client: ClientId, sequence: u32, qp: QpId, number: u32) {
        self.rebuilds.ask(client, sequence, qp, number);
    }

    /// Takes the next step of each rebuild. Returns the rebuilds that are over, and whether any was under way.
    pub fn go_on_rebuilding<N: Nic>(
        &mut self,
        nic: &mut N,
        gate: &mut (impl Gate<N> + ?Sized),
    ) -> (Vec<Rebuilt>, bool) {
        self.rebuilds.step(nic, &mut self.clients, gate)
    }
}
