//! Mechanism `memory-region`: a registration for each permission. As strong as windows, and slower.

use super::at_once::Immediate;
use super::{EXPOSED_BYTES, Ended, Exposing, Scene};
use crate::books::{Exposure, offset};
use portcullis_nic::{Access, Nic, Region, RegionId, RemoteAddress};
use portcullis_protocol::{ClientId, Credential};

/// The mechanism by registration: a region over each permission's lifetime word and one over its bytes, or one over both.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryRegion;

impl<N: Nic> Immediate<N> for MemoryRegion {
    const POOL_ACCESS: Access = Access::empty();

    fn client_access(&self, _client: ClientId) -> Access {
        Access::REMOTE
    }

    fn expose(&mut self, scene: &mut Scene<'_, N>, exposure: &Exposure) -> Option<Credential> {
        let word = exposure.lifetime_word();
        let access = Access::from(exposure.rights);
        let (header, buffer) = if exposure.is_contiguous() {
            let both = register(scene, word, EXPOSED_BYTES + exposure.length, access)?;
            (both, both)
        } else {
            let header = register(scene, word, EXPOSED_BYTES, Access::REMOTE_ATOMIC)?;
            let Some(buffer) = register(scene, exposure.address, exposure.length, access) else {
                let _ = scene.nic.deregister_region(header.id);
                return None;
            };
            (header, buffer)
        };
        scene.enter(exposure, Exposing { word: header.id.0, bytes: buffer.id.0 });
        Some(Credential::Keys { buffer: buffer.rkey, lifetime: header.rkey })
    }

    fn withdraw(&mut self, scene: &mut Scene<'_, N>, ended: &Ended) {
        let Exposing { word, bytes } = ended.exposing;
        let _ = scene.nic.deregister_region(RegionId(bytes));
        if word != bytes {
            let _ = scene.nic.deregister_region(RegionId(word));
        }
    }
}

fn register<N: Nic>(
    scene: &mut Scene<'_, N>,
    from: RemoteAddress,
    bytes: u64,
    access: Access,
) -> Option<Region> {
    let (at, access) = (offset(from), access | Access::LOCAL_WRITE);
    scene.nic.register_region(scene.domain.pd, scene.memory, at..at + bytes, from, access).ok()
}
