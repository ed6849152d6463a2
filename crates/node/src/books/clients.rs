//! The attached clients in the books, by number. Numbers only grow.

use super::charged::ChargedPackets;
use super::permissions::PermissionSlot;
use super::recent_keys::RecentKeys;
use super::violations::Conduct;
use crate::config::ViolationLimits;
use portcullis_protocol::{ClientId, TenantId};
use std::collections::BTreeMap;

/// Number and size of a client's permissions. They are counted as permissions start and end, so that a report on all
/// clients need not walk over permissions.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Holdings {
    pub permissions: u64,
    pub bytes: u64,
}

impl Holdings {
    /// Counts a permission over an object of `bytes` bytes, which has begun.
    pub fn add(&mut self, bytes: u64) {
        self.permissions += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Subtracts a permission over an object of `bytes` bytes, which has ended.
    pub fn take(&mut self, bytes: u64) {
        self.permissions = self.permissions.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

/// The chunks of a client, if the node's CPU hands them out.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct ChunkShare {
    /// The most chunks that the client may hold. Zero: the client has not joined.
    pub quota: u64,
    pub held: u64,
}

/// An attached client.
#[derive(Debug)]
pub(crate) struct Client {
    pub id: ClientId,
    pub tenant: TenantId,
    pub process: Option<u32>,
    /// The first of its permissions.
    pub first: PermissionSlot,
    /// Number of its permissions, and the bytes of their objects.
    pub held: Holdings,
    pub chunks: ChunkShare,
    pub conduct: Conduct,
    /// Packets of operations without queue pairs for which the client was charged: the late ones, and the strays.
    pub late_packets: ChargedPackets,
    pub stray_packets: ChargedPackets,
    /// Keys that the client held until a moment ago.
    pub recent: RecentKeys,
    /// The client is not served any more, and its eviction was reported.
    pub lost: bool,
}

/// Clients by number. The number of a client that has left finds no other client.
#[derive(Debug)]
pub(crate) struct Clients {
    /// `None`: all numbers are used up.
    next: Option<u64>,
    // A table by number would grow with each client that attaches and leaves while one client stays.
    attached: BTreeMap<ClientId, Box<Client>>,
}

impl Default for Clients {
    fn default() -> Self {
        Self { next: Some(1), attached: BTreeMap::new() }
    }
}

impl Clients {
    /// Returns the number of the next client. `None`: all numbers are used up.
    pub fn next_id(&self) -> Option<ClientId> {
        self.next.map(ClientId)
    }

    /// Continues at this number, for tests near the end of a counter.
    pub fn count_from(&mut self, next: u64) {
        self.next = Some(next);
    }

    /// Adds the client that has [`next_id`](Self::next_id) as its number.
    pub fn insert(&mut self, id: ClientId, tenant: TenantId, process: Option<u32>, limits: ViolationLimits) {
        assert_eq!(self.next_id(), Some(id), "clients come in by their numbers");
        self.next = id.0.checked_add(1);
        let client = Client {
            id,
            tenant,
            process,
            first: PermissionSlot::NONE,
            held: Holdings::default(),
            chunks: ChunkShare::default(),
            conduct: Conduct::new(limits),
            late_packets: ChargedPackets::default(),
            stray_packets: ChargedPackets::default(),
            recent: RecentKeys::default(),
            lost: false,
        };
        self.attached.insert(id, Box::new(client));
    }

    pub fn remove(&mut self, id: ClientId) -> Option<Box<Client>> {
        self.attached.remove(&id)
    }

    /// Returns a client, unless it has left.
    pub fn get(&self, id: ClientId) -> Option<&Client> {
        self.attached.get(&id).map(|client| &**client)
    }

    /// Returns a client to be changed, unless it has left.
    pub fn get_mut(&mut self, id: ClientId) -> Option<&mut Client> {
        self.attached.get_mut(&id).map(|client| &mut **client)
    }

    /// Returns the number of attached clients.
    pub fn len(&self) -> u32 {
        u32::try_from(self.attached.len()).expect("the limit of clients is a number of 32 bits")
    }

    pub fn iter(&self) -> impl Iterator<Item = &Client> {
        self.attached.values().map(|client| &**client)
    }
}
