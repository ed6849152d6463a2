//! Objects that outlive their tenant's clients, so that a producer may restart.

use crate::node::Node;
use crate::slabs::ObjectId;
use portcullis_nic::Nic;
use portcullis_protocol::{Keep, Lifetime, Moment, Refusal};

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

    /// An object goes as soon as nobody holds it.
    pub(crate) fn keep_no_longer(&mut self, object: ObjectId) {
        let record = self.slabs.get_mut(object);
        record.keep = Keep::No;
        let exposed = record.exposed > 0;
        if self.let_go(object) && !exposed {
            self.release_object(object);
        }
    }

    /// A tenant has no clients: what it has left behind stays for as long as it was asked to, and the tenant with it.
    pub(crate) fn keep_without_clients(&mut self, nic: &mut N, slot: u32, now: Moment) {
        let Some(since) = self.tenant(slot).and_then(|tenant| tenant.alone_since) else { return };
        let mut staying = false;
        for object in self.slabs.ids_where(|record| record.tenant == slot && !record.going) {
            let until = self.slabs.get(object).outlasts().map(|time| since.after(time));
            if until.is_some_and(|until| until <= now) {
                self.keep_no_longer(object);
                continue;
            }
            staying = true;
            self.kept_check = [self.kept_check, until].into_iter().flatten().min();
        }
        if !staying {
            self.end_tenant(nic, slot, now);
        }
    }

    /// Lets go of what was kept for tenants without clients, and is due.
    pub(crate) fn expire_kept(&mut self, nic: &mut N, now: Moment) -> bool {
        if self.kept_check.is_none_or(|due| due > now) {
            return false;
        }
        self.kept_check = None;
        for slot in 0..u32::try_from(self.tenants.len()).unwrap_or(u32::MAX) {
            self.keep_without_clients(nic, slot, now);
        }
        true
    }
}
