//! The attached clients, by number. Numbers only grow.

use crate::client::Client;
use portcullis_protocol::ClientId;
use std::collections::BTreeMap;

/// Clients by number. One that is gone is never found again under its number.
#[derive(Debug)]
pub(crate) struct Roster<M> {
    /// None: all have been given.
    next: Option<u64>,
    // A table by number would grow with everyone who comes and goes while one client stays.
    clients: BTreeMap<u64, Box<Client<M>>>,
}

impl<M> Default for Roster<M> {
    fn default() -> Self {
        Self { next: Some(1), clients: BTreeMap::new() }
    }
}

impl<M> Roster<M> {
    /// The number that the next client gets. None: there are no more.
    pub fn next_id(&self) -> Option<ClientId> {
        self.next.map(ClientId)
    }

    /// Goes on with this number.
    pub fn count_from(&mut self, next: u64) {
        self.next = Some(next);
    }

    /// Takes in the client that was given [`Roster::next_id`].
    pub fn insert(&mut self, client: Client<M>) {
        self.next = client.id.0.checked_add(1);
        self.clients.insert(client.id.0, Box::new(client));
    }

    pub fn remove(&mut self, id: u64) -> Option<Box<Client<M>>> {
        self.clients.remove(&id)
    }

    pub fn get(&self, id: u64) -> Option<&Client<M>> {
        self.clients.get(&id).map(|client| &**client)
    }

    pub fn get_mut(&mut self, id: u64) -> Option<&mut Client<M>> {
        self.clients.get_mut(&id).map(|client| &mut **client)
    }

    pub fn attached(&self) -> u32 {
        u32::try_from(self.clients.len()).unwrap_or(u32::MAX)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Client<M>> {
        self.clients.values().map(|client| &**client)
    }
}
