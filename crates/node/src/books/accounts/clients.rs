//! The clients in the books, by number: the attached ones, and those that have left and may still hold something.
//! Numbers only grow.

use crate::books::charged::ChargedPackets;
use crate::books::permissions::{Chain, PermissionKind, PermissionSlot, Permissions};
use crate::books::postponed::WaiterSlot;
use crate::books::recent_keys::RecentKeys;
use crate::books::violations::Conduct;
use crate::config::ViolationLimits;
use portcullis_planted::planted;
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
    fn add(&mut self, bytes: u64) {
        self.permissions += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Subtracts a permission over an object of `bytes` bytes, which has ended.
    fn take(&mut self, bytes: u64) {
        self.permissions = self.permissions.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

/// The chunks of a client, if the node's CPU hands them out.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct ChunkShare {
    /// The most chunks that the client may hold. Zero: the client has not joined.
    pub quota: u64,
    held: u64,
}

impl ChunkShare {
    /// Returns the number of chunks that the client holds.
    pub fn held(self) -> u64 {
        self.held
    }
}

/// An attached client.
#[derive(Debug)]
pub(crate) struct Client {
    pub id: ClientId,
    pub tenant: TenantId,
    pub process: Option<u32>,
    /// The first of its permissions.
    pub(super) first: PermissionSlot,
    /// Number of its permissions, and the bytes of their objects.
    held: Holdings,
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

impl Client {
    /// Returns the first of its permissions.
    pub fn first(&self) -> PermissionSlot {
        self.first
    }

    /// Returns the number of its permissions, and the bytes of their objects.
    pub fn held(&self) -> Holdings {
        self.held
    }

    /// Counts a permission over an object of `bytes` bytes, which has begun.
    pub(super) fn hold(&mut self, kind: PermissionKind, bytes: u64) {
        self.held.add(bytes);
        self.chunks.held += u64::from(kind.is_chunk());
    }

    /// Subtracts a permission over an object of `bytes` bytes, which has ended.
    fn release(&mut self, kind: PermissionKind, bytes: u64) {
        self.held.take(bytes);
        self.chunks.held -= u64::from(kind.is_chunk());
    }
}

/// A client that has left, with its remaining permissions and requests.
#[derive(Debug)]
pub(crate) struct Departed {
    pub process: Option<u32>,
    pub tenant: TenantId,
    /// The first of its permissions.
    first: PermissionSlot,
    /// Requests of the client that may still wait.
    pub waiting: Vec<WaiterSlot>,
}

impl Departed {
    /// Returns the first of its permissions.
    pub fn first(&self) -> Option<PermissionSlot> {
        self.first.some()
    }

    /// Removes a permission, which is being set up, from the client's list.
    pub fn unlink(&mut self, slot: PermissionSlot, permissions: &mut Permissions) {
        permissions.unlink(Chain::Client, &mut self.first, slot);
    }
}

/// Clients by number. The number of a client that has left finds no other client.
#[derive(Debug)]
pub(crate) struct Clients {
    /// `None`: all numbers are used up.
    next: Option<u64>,
    // A table by number would grow with each client that attaches and leaves while one client stays.
    attached: BTreeMap<ClientId, Box<Client>>,
    departed: BTreeMap<ClientId, Departed>,
}

impl Default for Clients {
    fn default() -> Self {
        Self { next: Some(1), attached: BTreeMap::new(), departed: BTreeMap::new() }
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

    /// Moves an attached client to the clients that have left, with the requests of it that may still wait.
    pub fn depart(&mut self, id: ClientId, waiting: Vec<WaiterSlot>) {
        let Client { process, tenant, first, .. } = *self.attached.remove(&id).expect("a client leaves once");
        let first = if planted!(DepartedKeepHolding) { PermissionSlot::NONE } else { first };
        self.departed.insert(id, Departed { process, tenant, first, waiting });
    }

    /// Returns the first client that has left and may still hold something.
    pub fn first_departed(&self) -> Option<ClientId> {
        self.departed.first_key_value().map(|(&id, _)| id)
    }

    /// Returns a client that has left, unless it is forgotten.
    pub fn departed_mut(&mut self, id: ClientId) -> Option<&mut Departed> {
        self.departed.get_mut(&id)
    }

    /// Forgets a client that has left, and returns it.
    pub fn forget_departed(&mut self, id: ClientId) -> Option<Departed> {
        self.departed.remove(&id)
    }

    /// Returns the process of a client that is attached, or has left and is not forgotten yet. `None`: the client is
    /// not known any more.
    pub fn process_of(&self, id: ClientId) -> Option<Option<u32>> {
        let attached = self.get(id).map(|client| client.process);
        attached.or_else(|| self.departed.get(&id).map(|gone| gone.process))
    }

    /// Subtracts an ended permission of a client, and returns the first of its permissions. `None`: the client is not
    /// known any more.
    pub(super) fn release(
        &mut self,
        id: ClientId,
        kind: PermissionKind,
        bytes: u64,
    ) -> Option<&mut PermissionSlot> {
        match self.attached.get_mut(&id) {
            Some(client) => {
                client.release(kind, bytes);
                Some(&mut client.first)
            }
            None => self.departed.get_mut(&id).map(|gone| &mut gone.first),
        }
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
