//! A process's lease with the directory, as the process sees it.

use super::directory::lease_nanos;
use super::world::World;
use crate::clock::Nanos;
use portcullis_directory::Lease;
use portcullis_protocol::TenantName;

/// A lease, with the time of the process's last request to keep it alive.
#[derive(Debug)]
pub(super) struct Holding {
    pub lease: Lease,
    asked: Nanos,
}

impl Holding {
    /// Opens a lease.
    pub fn open(world: &mut World, tenant: &TenantName) -> Option<Self> {
        let (asked, time_to_live) = (world.now, world.terms.time_to_live);
        let lease = world.directory.open(tenant, time_to_live, asked, &mut world.judge)?;
        Some(Self { lease, asked })
    }

    /// Whether the process must assume that the lease has ended.
    pub fn is_over(&self, now: Nanos) -> bool {
        now >= self.asked + lease_nanos(&self.lease)
    }

    /// Keeps the lease alive when a third of its time has passed. Returns whether the lease lives on.
    pub fn keep(&mut self, world: &mut World) -> bool {
        if world.now < self.asked + lease_nanos(&self.lease) / 3 {
            return true;
        }
        self.asked = world.now;
        world.directory.keep_alive(&self.lease, world.now, &mut world.judge)
    }
}
