//! The table of regions, as the node fills it.

use portcullis_nic::RemoteAddress;
use portcullis_node::{OpenRegion, Regions};
use portcullis_onerma::{HostAddress, Region, RegionKey, RegionTable};
use portcullis_protocol::{HolderKey, RegionName};

/// The table of regions. The node owns it, and the responders of its lanes share the regions.
#[derive(Debug)]
pub(super) struct NodeRegions(pub RegionTable);

impl Regions for NodeRegions {
    fn open(&mut self, region: OpenRegion) -> Option<(RegionName, HolderKey)> {
        let OpenRegion { client, host, address, offset, length, lifetime_word, rights } = region;
        let mut key = [0; 32];
        // On a machine without random numbers no region is opened.
        getrandom::fill(&mut key).ok()?;
        let RemoteAddress(address) = address;
        let region = Region {
            key: RegionKey::new(key),
            address,
            length,
            offset,
            lifetime_word: Some(lifetime_word.0),
            allowed: rights.into(),
        };
        let id = self.0.insert(region).ok()?;
        let key = self.0.derive(id, HostAddress(host), client.0).expect("it was just opened");
        Some((id.into(), HolderKey(key.to_bytes())))
    }

    fn close(&mut self, region: RegionName) {
        assert!(self.0.remove(region.into()), "a region is closed once");
    }

    fn has_ended(&mut self, region: RegionName) -> bool {
        self.0.has_ended(region.into())
    }
}
