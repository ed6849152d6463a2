//! A tenant's protection domain, and its region over the pool. Every mechanism needs them.

use crate::books::POOL_BASE;
use portcullis_nic::{Access, Memory, Nic, PdId, Region, VerbsError};

/// A protection domain with a region over the whole pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Domain {
    pub pd: PdId,
    pub region: Region,
}

impl Domain {
    /// Sets up a domain whose region gives peers `access` by itself. If that fails, nothing is left behind.
    pub fn new<N: Nic>(nic: &mut N, memory: &N::Memory, access: Access) -> Result<Self, VerbsError> {
        let pd = nic.allocate_pd()?;
        let access = access | Access::LOCAL_WRITE | Access::WINDOW_BIND;
        let region = nic.register_region(pd, memory, 0..memory.length(), POOL_BASE, access);
        let region = region.inspect_err(|_| {
            let _ = nic.deallocate_pd(pd);
        })?;
        Ok(Self { pd, region })
    }

    /// Removes the region from the NIC. The domain stays, because clients' queue pairs may still be in it.
    pub fn deregister(&self, nic: &mut impl Nic) {
        let _ = nic.deregister_region(self.region.id);
    }
}
