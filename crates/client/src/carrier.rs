//! Carriers of accesses to the node. The credential of an access selects its carrier.

use crate::Error;
use crate::access::AddressedAccess;
use crate::control::Control;
use crate::limit::Limit;
use crate::operations::Operations;
use portcullis_nic::{LocalSpan, Status, VerbsEndpoint};
use portcullis_protocol::Moment;

/// State that the carriers and the requests of one client share.
pub(crate) struct Link<E: VerbsEndpoint> {
    pub(crate) endpoint: E,
    pub(crate) operations: Operations<E::Memory>,
    pub(crate) control: Control,
    /// For how long operations and calls may be under way.
    pub(crate) limit: Limit,
}

/// An access that has its slot and is to be sent: the operation's id, and the place of the bytes in the arena.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing<'a> {
    pub(crate) operation: u64,
    pub(crate) local: LocalSpan,
    pub(crate) access: &'a AddressedAccess<'a>,
}

/// Time at which an access is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Posting {
    /// As soon as there is room.
    AtOnce,
    /// With the others of its batch.
    Staged,
    /// With the others of its batch, and only if the access with this id is carried out, which was taken in directly
    /// before.
    Linked(u64),
}

/// The error of a carrier that carries no linked accesses.
pub(crate) const LINKS_NOTHING: Error = Error::LocalFault(Status::LocalQpOperationError);

impl Posting {
    /// Returns whether an access waits for the others of its batch. `None`: it is linked to one of them.
    pub(crate) fn is_staged(self) -> Option<bool> {
        match self {
            Self::AtOnce => Some(false),
            Self::Staged => Some(true),
            Self::Linked(_) => None,
        }
    }
}

/// Sends accesses to the node in the order in which it takes them in.
pub(crate) trait Carrier<E: VerbsEndpoint> {
    /// Takes an access in, and sends it as soon as there is room or stages it for a batch.
    ///
    /// # Errors
    /// [`Error::QueueFull`], or the client's endpoint cannot carry the access. Nothing was taken in. Only data queue pairs
    /// carry linked accesses: other carriers have no order in which one could depend on another.
    fn take_in(&mut self, link: &mut Link<E>, begun: Outgoing<'_>, posting: Posting) -> Result<(), Error>;

    /// Sends the staged accesses. It cannot fail: room was found when each access was taken in.
    fn send_staged(&mut self, link: &mut Link<E>);

    /// Drops the staged accesses and their operations, which never began.
    fn cancel_staged(&mut self, link: &mut Link<E>);

    /// Returns whether accesses wait that [`Carrier::pump`] could send.
    fn is_backed_up(&self) -> bool;

    /// Sends what waited for room. If a refusal would be charged to the client, accesses whose permission has expired
    /// meanwhile are ended instead.
    fn pump(&mut self, link: &mut Link<E>, now: Moment);

    /// Drops all accesses: the operations have ended.
    fn clear(&mut self);
}

/// A carrier that exists only if the client's endpoint has the part on which it sends.
impl<E: VerbsEndpoint, C: Carrier<E>> Carrier<E> for Option<C> {
    #[inline]
    fn take_in(&mut self, link: &mut Link<E>, begun: Outgoing<'_>, posting: Posting) -> Result<(), Error> {
        match self {
            Some(carrier) => carrier.take_in(link, begun, posting),
            None => Err(Error::LocalFault(Status::LocalQpOperationError)),
        }
    }

    #[inline]
    fn send_staged(&mut self, link: &mut Link<E>) {
        if let Some(carrier) = self {
            carrier.send_staged(link);
        }
    }

    fn cancel_staged(&mut self, link: &mut Link<E>) {
        if let Some(carrier) = self {
            carrier.cancel_staged(link);
        }
    }

    #[inline]
    fn is_backed_up(&self) -> bool {
        self.as_ref().is_some_and(C::is_backed_up)
    }

    #[inline]
    fn pump(&mut self, link: &mut Link<E>, now: Moment) {
        if let Some(carrier) = self {
            carrier.pump(link, now);
        }
    }

    fn clear(&mut self) {
        if let Some(carrier) = self {
            carrier.clear();
        }
    }
}
