//! How accesses travel to the node. The credential of an access tells which way it takes.

use crate::Error;
use crate::access::Access;
use crate::control::Control;
use crate::operations::Operations;
use portcullis_nic::{LocalSpan, VerbsEndpoint};

/// What carriers of one client share.
pub(crate) struct Link<'a, E: VerbsEndpoint> {
    pub(crate) endpoint: &'a mut E,
    pub(crate) operations: &'a mut Operations<E::Memory>,
    pub(crate) control: &'a mut Control,
}

/// An access that has its slot: the operation's id, and where in the arena the bytes are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun<'a> {
    pub(crate) operation: u64,
    pub(crate) local: LocalSpan,
    pub(crate) access: &'a Access,
}

/// When an access is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Posting {
    /// As soon as there is room.
    AtOnce,
    /// With the others of its batch.
    Staged,
}

/// A way for accesses to the node, in the order in which they are handed over.
pub(crate) trait Carrier<E: VerbsEndpoint> {
    /// Takes an access in: to be sent as soon as there is room, or to be staged for a batch.
    ///
    /// # Errors
    /// [`Error::QueueFull`], or this end cannot carry the access. Nothing was taken in.
    fn take_in(&mut self, link: &mut Link<'_, E>, begun: Begun<'_>, posting: Posting) -> Result<(), Error>;

    /// Sends what was staged. Cannot fail: room was found when each access was taken in.
    fn send_staged(&mut self, link: &mut Link<'_, E>);

    /// Forgets what was staged with its operations, which never began.
    fn cancel_staged(&mut self, link: &mut Link<'_, E>);

    /// Forgets everything: the operations have ended.
    fn clear(&mut self);
}
