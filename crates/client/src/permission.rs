//! Permissions of a client, and the leases that keep them alive.

use crate::Error;
use portcullis_offload::Reply;
use portcullis_protocol::{
    CHUNK_QUEUE_PAIRS, Credential, Granted, Incarnation, Lifetime, Mechanism, Moment, ObjectRef,
    PermissionId, RemoteAddress, Rights, Sharing,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The divisor that bounds the difference of two sound clocks: they differ by less than one part in this many, since
/// each may be off by a thousandth. The kernel itself slews a clock by at most a two-thousandth.
const CLOCKS_DIFFER: u64 = 500;
/// The most that is lost by rounding moments and the time that a request waited down to whole µs.
const ROUNDED_MICROS: u64 = 3;

/// Identity that a client shares with its permissions, and with no other client's permissions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mark(Arc<()>);

impl PartialEq for Mark {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// The lifetime of a permission. All holders in this process that extend the permission share its lease.
///
/// The deadline is on the client's clock and needs no agreement with the node's clock. The node cannot have granted the
/// permission before the request was sent. So the deadline is too late by no more than the two clocks drift apart
/// meanwhile (Patronus §5.3). Decisions that need certainty leave a margin before it.
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
            // A region key opens both the bytes and the lifetime word.
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

    /// Returns a moment on the client's clock before which the permission cannot have started: the moment at which the
    /// request was sent, plus the time that it waited at the node, which the node reports.
    #[must_use]
    pub fn started_after(&self) -> Moment {
        self.started_after
    }

    /// Returns the longest lifetime that the permission can have, including extensions.
    #[must_use]
    pub fn longest(&self) -> Lifetime {
        self.longest
    }

    /// Returns whether this client can reach the lifetime word. Otherwise only the node's CPU can change the word for
    /// the client.
    pub(crate) fn has_word_for(&self, client: &Mark) -> bool {
        match self.credential {
            Credential::Keys { .. } => true,
            Credential::Group(_) | Credential::RegionKey { .. } => !self.is_of_another(client),
            Credential::Chunk(_) | Credential::Node => false,
        }
    }

    /// Returns whether the lease's keys work in another client's session only: on that client's queue pairs, or under
    /// that client's number. Two sessions that used one region key would use one nonce twice.
    #[inline]
    pub(crate) fn is_of_another(&self, client: &Mark) -> bool {
        matches!(self.credential, Credential::Group(_) | Credential::RegionKey { .. })
            && self.holder.as_ref().is_some_and(|holder| holder != client)
    }

    /// Returns the permission's lifetime, counted from its start, as far as this client knows.
    #[must_use]
    pub fn lifetime(&self) -> Lifetime {
        // This number publishes no other data, so any recent value is safe.
        Lifetime(self.lifetime.load(Ordering::Relaxed))
    }

    /// Returns the moment on the client's clock from which the permission counts as dead.
    #[must_use]
    pub fn deadline(&self) -> Moment {
        self.started_after.after(self.lifetime())
    }

    /// Returns whether the permission cannot have ended at the node yet, however much two sound clocks differ.
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
/// Not `Clone`: a permission ends by [`ControlRequest::Revoke`](crate::ControlRequest), or by itself at its deadline.
/// Dropping it sends nothing to the node.
#[derive(Debug)]
pub struct Permission {
    id: PermissionId,
    object: ObjectRef,
    offset: u64,
    length: u64,
    rights: Rights,
    sharing: Sharing,
    pub(crate) credential: Credential,
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

    /// Makes the permission over a chunk that a worker has allocated (OneSidedMW). It is exclusive, has every right,
    /// and does not end until the holder frees the chunk or is gone. The node's books have no object there.
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

    /// Makes a permission over some bytes of a chunk, with the chunk's credential and lease.
    pub(crate) fn part_of_chunk(&self, offset: u64, length: u64) -> Self {
        debug_assert!(self.check_span(offset, length, self.rights).is_ok(), "a part lies in its chunk");
        Self { offset: self.offset + offset, length, lease: Arc::clone(&self.lease), ..*self }
    }

    /// Returns a view of the permission, for accesses that are begun when the permission is not at hand.
    #[must_use]
    pub fn view(&self) -> PermissionView {
        PermissionView(Self { lease: Arc::clone(&self.lease), ..*self })
    }

    /// Returns the permission's name on the node.
    #[must_use]
    pub fn id(&self) -> PermissionId {
        self.id
    }

    /// Returns the reference of the covered object, with which other clients can acquire the object as well.
    #[must_use]
    pub fn object(&self) -> ObjectRef {
        self.object
    }

    /// Returns the offset of the permission's bytes in the object.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the address of the permission's first byte, for work requests and traces. To name the object, use
    /// [`Permission::object`].
    #[must_use]
    pub fn address(&self) -> RemoteAddress {
        RemoteAddress(self.object.address.0.wrapping_add(self.offset))
    }

    /// Returns the number of bytes that the permission covers.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Returns the rights that the permission grants.
    #[must_use]
    pub fn rights(&self) -> Rights {
        self.rights
    }

    /// Returns whether the permission is exclusive or shared.
    #[must_use]
    pub fn sharing(&self) -> Sharing {
        self.sharing
    }

    /// Returns the credential that each access shows.
    #[must_use]
    pub fn credential(&self) -> Credential {
        self.credential
    }

    /// Returns the mechanism that enforces the permission.
    #[must_use]
    pub fn mechanism(&self) -> Mechanism {
        self.mechanism
    }

    /// Returns the permission's lease, for a keeper that extends it from another session of the same tenant.
    #[must_use]
    pub fn lease(&self) -> &Arc<Lease> {
        &self.lease
    }

    /// Checks that the permission covers these bytes and has the rights that an access needs. Each access is checked by
    /// itself; a caller that cuts a transfer into several accesses checks the whole of it before the first one.
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

impl AsRef<Self> for Permission {
    fn as_ref(&self) -> &Self {
        self
    }
}

/// A permission as accesses need it, without the right to end it. The view may outlive the permission: then the node's
/// NIC refuses its accesses.
#[derive(Debug)]
pub struct PermissionView(Permission);

impl AsRef<Permission> for PermissionView {
    fn as_ref(&self) -> &Permission {
        &self.0
    }
}
