//! A permission that ends when its owner drops it.

use portcullis_client::Permission as Bare;
use portcullis_nic::GuaranteeSet;
use std::ops::Deref;
use std::sync::{Arc, Mutex};

/// The end of a permission whose holder drops it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum AtDrop {
    /// The session revokes it with its next call. The permission ends with the session at the latest.
    #[default]
    Revoke,
    /// The node ends it when its lease expires. That saves one message (Patronus §5.4).
    Expire,
}

/// A [`BarePermission`](crate::BarePermission) that ends when this value is dropped, in the way that [`AtDrop`]
/// selects.
#[derive(Debug)]
pub struct Permission {
    /// `None` only after the bare permission was taken out.
    bare: Option<Bare>,
    at_drop: AtDrop,
    dropped: Dropped,
    unenforced: GuaranteeSet,
}

/// Permissions that were dropped and have not been revoked yet.
pub(crate) type Dropped = Arc<Mutex<Vec<Bare>>>;

impl Permission {
    pub(crate) fn new(bare: Bare, dropped: Dropped) -> Self {
        Self { bare: Some(bare), at_drop: AtDrop::default(), dropped, unenforced: GuaranteeSet::NONE }
    }

    pub(crate) fn without(mut self, unenforced: GuaranteeSet) -> Self {
        self.unenforced = unenforced;
        self
    }

    /// Returns the guarantees that this permission needs and the node's device does not give. The set is empty unless
    /// the node was started with `--allow-unenforced`.
    #[must_use]
    pub fn unenforced(&self) -> GuaranteeSet {
        self.unenforced
    }

    /// Chooses what happens when the permission is dropped.
    #[must_use]
    pub fn at_drop(mut self, at_drop: AtDrop) -> Self {
        self.at_drop = at_drop;
        self
    }

    /// Returns the bare permission. The caller must revoke it, or let it expire.
    #[must_use]
    pub fn into_bare(mut self) -> Option<Bare> {
        self.bare.take()
    }
}

impl Deref for Permission {
    type Target = Bare;

    fn deref(&self) -> &Bare {
        self.bare.as_ref().expect("it is taken out only by what consumes self")
    }
}

impl AsRef<Bare> for Permission {
    fn as_ref(&self) -> &Bare {
        self
    }
}

impl Drop for Permission {
    fn drop(&mut self) {
        if let (Some(bare), AtDrop::Revoke) = (self.bare.take(), self.at_drop)
            && let Ok(mut dropped) = self.dropped.lock()
        {
            dropped.push(bare);
        }
    }
}
