//! Objects that outlive their tenant's clients, so that a producer may restart.

use crate::node::Node;
use crate::slabs::ObjectId;
use portcullis_nic::Nic;
use portcullis_protocol::{Keep, Lifetime, Refusal};

/// A node with this as its longest time keeps objects for as long as it runs.
pub(crate) const FOR_EVER: Lifetime = Lifetime(u64::MAX);

impl<N: Nic> Node<N> {
    /// Whether an object may be kept that way.
    pub(crate) fn check_keep(&self, keep: Keep) -> Result<(), Refusal> {
        let longest = self.config.longest_keep;
        let allowed = match keep {
            Keep::No | Keep::Attached => true,
            Keep::For(time) => time <= longest,
            Keep::Pinned => longest == FOR_EVER,
        };
        if allowed { Ok(()) } else { Err(Refusal::KeptTooLong { longest }) }
    }

    /// Keeps an object for as long as its record says.
    pub(crate) fn enter_kept(&mut self, object: ObjectId) {
        let record = self.slabs.get(object);
        let (tenant, time) = (record.tenant, record.kept_for());
        if let (Some(time), Some(tenant)) = (time, self.tenant_mut(tenant)) {
            tenant.kept.insert((time, object));
        }
    }

    /// An object is not kept any more: it goes with its last permission, or has gone.
    pub(crate) fn strike_kept(&mut self, object: ObjectId) {
        let record = self.slabs.get_mut(object);
        let (tenant, time) = (record.tenant, record.kept_for());
        record.keep = Keep::No;
        if let (Some(time), Some(tenant)) = (time, self.tenant_mut(tenant)) {
            tenant.kept.remove(&(time, object));
        }
    }

    /// An object goes as soon as nobody holds it.
    pub(crate) fn keep_no_longer(&mut self, object: ObjectId) {
        self.strike_kept(object);
        self.release_if_unwanted(object);
    }

    /// Lets go of an object that nobody holds, waits for or keeps. It is free at once where nothing exposes it.
    pub(crate) fn release_if_unwanted(&mut self, object: ObjectId) {
        let exposed = self.slabs.get(object).exposed > 0;
        if self.let_go(object) && !exposed {
            self.release_object(object);
        }
    }
}
