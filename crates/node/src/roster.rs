//! The attached clients, by number. Numbers only grow.

use crate::client::Client;
use portcullis_protocol::ClientId;
use std::collections::VecDeque;

/// Clients by number. One that is gone is never found again under its number.
#[derive(Debug)]
pub(crate) struct Roster<M> {
    first: u32,
    clients: VecDeque<Option<Box<Client<M>>>>,
    attached: u32,
}

impl<M> Default for Roster<M> {
    fn default() -> Self {
        Self { first: 1, clients: VecDeque::new(), attached: 0 }
    }
}

impl<M> Roster<M> {
    /// The number that the next client gets.
    pub fn next_id(&self) -> ClientId {
        let count = u32::try_from(self.clients.len()).unwrap_or(u32::MAX);
        ClientId(self.first.saturating_add(count))
    }

    /// Takes in the client that was given [`Roster::next_id`].
    pub fn insert(&mut self, client: Client<M>) {
        self.clients.push_back(Some(Box::new(client)));
        self.attached += 1;
    }

    pub fn remove(&mut self, id: u32) -> Option<Box<Client<M>>> {
        let index = id.checked_sub(self.first)?;
        let client = self.clients.get_mut(index as usize)?.take()?;
        self.attached -= 1;
        while let Some(None) = self.clients.front() {
            self.clients.pop_front();
            self.first += 1;
        }
        Some(client)
    }

    pub fn get(&self, id: u32) -> Option<&Client<M>> {
        self.clients.get(id.checked_sub(self.first)? as usize)?.as_deref()
    }

    pub fn get_mut(&mut self, id: u32) -> Option<&mut Client<M>> {
        self.clients.get_mut(id.checked_sub(self.first)? as usize)?.as_deref_mut()
    }

    pub fn attached(&self) -> u32 {
        self.attached
    }

    pub fn iter(&self) -> impl Iterator<Item = &Client<M>> {
        self.clients.iter().filter_map(Option::as_deref)
    }
}
