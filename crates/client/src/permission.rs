//! What a client holds: a permission and the lease that keeps it alive.

use crate::Error;
use portcullis_offload::Reply;
use portcullis_protocol::{
    CHUNK_QUEUE_PAIRS, Credential, Granted, Incarnation, Lifetime, Mechanism, Moment, ObjectRef,
    PermissionId, RemoteAddress, Rights, Sharing,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Two sound clocks differ by less than one part in this many: each may be off by a thousandth. The kernel itself slews
/// a clock by at most a two-thousandth.
const CLOCKS_DIFFER: u64 = 500;
/// What is lost when moments and the time that a request waited are cut off to whole µs.
const ROUNDED_MICROS: u64 = 3;

/// What one client has in common with its permissions, and with no other client's.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mark(Arc<()>);

impl PartialEq for Mark {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// How long a permission lives. All that keep it alive in this process share its lease.
///
/// The deadline is on the client's clock and needs no agreement with the node's clock. The node cannot have granted the
/// permission before the request was sent. So the deadline is too late by no more than the two clocks differ meanwhile
/// (Patronus §5.3). Decisions that need certainty keep a distance from it.
#[derive(Debug)]
pub struct Lease {
    pub(crate) permission: PermissionId,
    /// The credential for the lifetime word.
    pub(crate) credential: Credential,
    /// The client that the permission was granted to.
    holder: Option<Mark>,
    started_after: Moment,
    pub(crate) longest: Lifetime,
    lifetime: AtomicU64,
}

impl Lease {
    pub(crate) fn new(granted: Granted, requested_at: Moment, holder: &Mark) -> Self {
        let credential = match granted.credential {
            Credential::Keys { lifetime, .. } => Credential::Keys { buffer: lifetime, lifetime },
            Credential::Group(keys) => keys.of_word().map_or(Credential::Node, Credential::Group),
            // A region key opens both.
            other @ (Credential::Chunk(_) | Credential::RegionKey { .. } | Credential::Node) => other,
        };
        Self {
            permission: granted.permission,
            credential,
            holder: Some(holder.clone()),
            started_after: requested_at.after(granted.waited),
            longest: granted.longest,
            lifetime: AtomicU64::new(granted.lifetime.0),
        }
    }

    /// A moment on the client's clock before which the permission cannot have started: when the request was sent, plus
    /// the time that it waited at the node, as the node says.
    #[must_use]
    pub fn started_after(&self) -> Moment {
        self.started_after
    }

    /// The longest that the permission can live, including extensions.
    #[must_use]
    pub fn longest(&self) -> Lifetime {
        self.longest
    }

    /// Whether this client can reach the lifetime word. Otherwise only the node's CPU changes it for the client.
    pub(crate) fn has_word_for(&self, client: &Mark) -> bool {
        match self.credential {
            Credential::Keys { .. } => true,
            Credential::Group(_) | Credential::RegionKey { .. } => !self.is_of_another(client),
            Credential::Chunk(_) | Credential::Node => false,
        }
    }

    /// Whether its keys work in another client's session only: on that client's queue pairs, or under its number. Two sessions
    /// that used one region key would use one nonce twice.
    #[inline]
    pub(crate) fn is_of_another(&self, client: &Mark) -> bool {
        matches!(self.credential, Credential::Group(_) | Credential::RegionKey { .. })
            && self.holder.as_ref().is_some_and(|holder| holder != client)
    }

    /// How long the permission lives from its start, as far as this client knows.
    #[must_use]
    pub fn lifetime(&self) -> Lifetime {
        // Nothing else is published with this number, so any recent value is safe.
        Lifetime(self.lifetime.load(Ordering::Relaxed))
    }

    /// The moment on the client's clock from which the permission counts as dead.
    #[must_use]
    pub fn deadline(&self) -> Moment {
        self.started_after.after(self.lifetime())
    }

    /// Whether the permission cannot be over at the node yet, however much two sound clocks differ.
    pub(crate) fn surely_lives(&self, now: Moment) -> bool {
        let lifetime = self.lifetime();
        let differ = lifetime.0 / CLOCKS_DIFFER + ROUNDED_MICROS;
        now < self.started_after.after(Lifetime(lifetime.0.saturating_sub(differ)))
    }

    pub(crate) fn set_lifetime(&self, lifetime: Lifetime) {
        self.lifetime.store(lifetime.0, Ordering::Relaxed);
    }
}

/// The right to access some bytes of a node for some time: the paper's `Perm` (Patronus §5.1).
///
/// Not `Clone`: it ends by [`Client::revoke`](crate::Client::revoke), or by itself at its deadline. Dropping it tells
/// the node nothing.
#[derive(Debug)]
pub struct Permission {
    id: PermissionId,
    object: ObjectRef,
    offset: u64,
    length: u64,
    rights: Rights,
    sharing: Sharing,
    credential: Credential,
    mechanism: Mechanism,
    lease: Arc<Lease>,
}

impl Permission {
    pub(crate) fn new(
        granted: Granted,
        requested_at: Moment,
        (rights, sharing): (Rights, Sharing),
        holder: &Mark,
    ) -> Self {
        Self {
            id: granted.permission,
            object: granted.object,
            offset: granted.offset,
            length: granted.length,
            rights,
            sharing,
            credential: granted.credential,
            mechanism: granted.mechanism,
            lease: Arc::new(Lease::new(granted, requested_at, holder)),
        }
    }

    /// The permission over a chunk that a worker has allocated (OneSidedMW): exclusive, with every right, and without an end
    /// until the holder frees the chunk or is gone. No object of the node's books lies there.
    pub(crate) fn of_chunk(reply: &Reply<CHUNK_QUEUE_PAIRS>) -> Self {
        let [first, ..] = reply.windows;
        let credential = Credential::Chunk(reply.windows.map(|window| window.rkey));
        let id = PermissionId { header: first.address, start: Moment(0) };
        let for_ever = Lifetime(u64::MAX);
        Self {
            id,
            object: ObjectRef {
                incarnation: Incarnation(0),
                address: first.address,
                birth: reply.number_of_use,
            },
            offset: 0,
            length: first.length,
            rights: Rights::READ | Rights::WRITE | Rights::ATOMIC,
            sharing: Sharing::Exclusive,
            credential,
            mechanism: Mechanism::MemoryWindow,
            lease: Arc::new(Lease {
                permission: id,
                credential,
                holder: None,
                started_after: Moment(0),
                longest: for_ever,
                lifetime: AtomicU64::new(for_ever.0),
            }),
        }
    }

    /// Some bytes of a chunk, for the same credential and as long as the chunk.
    pub(crate) fn part_of_chunk(&self, offset: u64, length: u64) -> Self {
        debug_assert!(self.check_span(offset, length, self.rights).is_ok(), "a part lies in its chunk");
        Self { offset: self.offset + offset, length, lease: Arc::clone(&self.lease), ..*self }
    }

    /// Its name on the node.
    #[must_use]
    pub fn id(&self) -> PermissionId {
        self.id
    }

    /// The object that it covers, by which others can acquire the object as well.
    #[must_use]
    pub fn object(&self) -> ObjectRef {
        self.object
    }

    /// Where in the object its bytes start.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Where its bytes start, for work requests and traces. To name the object, use [`Permission::object`].
    #[must_use]
    pub fn address(&self) -> RemoteAddress {
        RemoteAddress(self.object.address.0.wrapping_add(self.offset))
    }

    /// How many bytes it covers.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// What it allows.
    #[must_use]
    pub fn rights(&self) -> Rights {
        self.rights
    }

    /// Whether it is exclusive or shared.
    #[must_use]
    pub fn sharing(&self) -> Sharing {
        self.sharing
    }

    /// The credential that each access shows.
    #[must_use]
    pub fn credential(&self) -> Credential {
        self.credential
    }

    /// What enforces it.
    #[must_use]
    pub fn mechanism(&self) -> Mechanism {
        self.mechanism
    }

    /// Its lease, for a keeper that extends it from another session of the same tenant.
    #[must_use]
    pub fn lease(&self) -> &Arc<Lease> {
        &self.lease
    }

    /// Checks that an access of these bytes that needs these rights is within the permission. Each access is checked by itself;
    /// a caller that cuts a transfer into several accesses checks the whole of it before the first one.
    ///
    /// # Errors
    /// [`Error::WrongRight`] or [`Error::OutsideRange`].
    #[inline]
    pub fn check_span(&self, offset: u64, length: u64, needed: Rights) -> Result<(), Error> {
        if !self.rights.contains(needed) {
            return Err(Error::WrongRight { needed });
        }
        if offset.checked_add(length).is_none_or(|end| end > self.length) {
            return Err(Error::OutsideRange { offset, length, size: self.length });
        }
        Ok(())
    }
}
