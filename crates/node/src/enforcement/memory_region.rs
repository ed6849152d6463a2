//! Mechanism `memory-region`: a registration for each permission. As strong as windows, and slower.

use super::at_once::Immediate;
use super::{EXPOSED_BYTES, Ended, Exposing, Surroundings};
use crate::books::{Exposure, offset};
use portcullis_nic::{Access, Nic, Region, RegionId, RemoteAddress};
use portcullis_protocol::{ClientId, Credential};

/// The mechanism by registration. It registers a region over each permission's lifetime word and another over its
/// bytes, or one over both.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryRegion;

impl<N: Nic> Immediate<N> for MemoryRegion {
    const POOL_ACCESS: Access = Access::empty();

    fn client_access(&self, _client: ClientId) -> Access {
        Access::REMOTE
    }

    fn expose(&mut self, around: &mut Surroundings<'_, N>, exposure: &Exposure) -> Option<Credential> {
        let word = exposure.lifetime_word();
        let access = Access::from(exposure.rights);
        let (header, buffer) = if exposure.is_contiguous() {
            let both = register(around, word, EXPOSED_BYTES + exposure.length, access)?;
            (both, both)
        } else {
            let header = register(around, word, EXPOSED_BYTES, Access::REMOTE_ATOMIC)?;
            let Some(buffer) = register(around, exposure.address, exposure.length, access) else {
                let _ = around.nic.deregister_region(header.id);
                return None;
            };
            (header, buffer)
        };
        around.enter(exposure, Exposing::on_nic(header.id.0, buffer.id.0));
        Some(Credential::Keys { buffer: buffer.rkey, lifetime: header.rkey })
    }

    fn withdraw(&mut self, around: &mut Surroundings<'_, N>, ended: &Ended) {
        let Exposing { word, bytes, .. } = ended.exposing;
        let _ = around.nic.deregister_region(RegionId(bytes));
        if word != bytes {
            let _ = around.nic.deregister_region(RegionId(word));
        }
    }
}

fn register<N: Nic>(
    around: &mut Surroundings<'_, N>,
    from: RemoteAddress,
    bytes: u64,
    access: Access,
) -> Option<Region> {
    let (at, access) = (offset(from), access | Access::LOCAL_WRITE);
    around.nic.register_region(around.domain.pd, around.memory, at..at + bytes, from, access).ok()
}
