//! A permission that does not outlive its owner's interest.

use portcullis_client::Permission as Bare;
use portcullis_nic::GuaranteeSet;
use std::ops::Deref;
use std::sync::{Arc, Mutex};

/// What happens to a permission whose holder lets it drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum AtDrop {
    /// The session revokes it with its next call, or when it ends itself.
    #[default]
    Revoke,
    /// It expires on the node by itself: one message saved (Patronus §5.4).
    Expire,
}

/// A permission: [`BarePermission`](crate::BarePermission), and what becomes of it when it is dropped.
#[derive(Debug)]
pub struct Permission {
    /// Here until it is dropped or given back.
    bare: Option<Bare>,
    at_drop: AtDrop,
    dropped: Dropped,
    unenforced: GuaranteeSet,
}

/// Permissions that were dropped and are still to be revoked.
pub(crate) type Dropped = Arc<Mutex<Vec<Bare>>>;

impl Permission {
    pub(crate) fn new(bare: Bare, dropped: Dropped) -> Self {
        Self { bare: Some(bare), at_drop: AtDrop::default(), dropped, unenforced: GuaranteeSet::NONE }
    }

    pub(crate) fn without(mut self, unenforced: GuaranteeSet) -> Self {
        self.unenforced = unenforced;
        self
    }

    /// What this permission rests on and the node's device does not keep. Empty, unless the node was started with
    /// `--allow-unenforced`: its operator knows, and so does its holder.
    #[must_use]
    pub fn unenforced(&self) -> GuaranteeSet {
        self.unenforced
    }

    /// Chooses what happens when it is dropped.
    #[must_use]
    pub fn at_drop(mut self, at_drop: AtDrop) -> Self {
        self.at_drop = at_drop;
        self
    }

    /// The permission by itself: whoever takes it out has to revoke it, or lets it expire.
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

impl Drop for Permission {
    fn drop(&mut self) {
        if let (Some(bare), AtDrop::Revoke) = (self.bare.take(), self.at_drop)
            && let Ok(mut dropped) = self.dropped.lock()
        {
            dropped.push(bare);
        }
    }
}
