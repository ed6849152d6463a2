//! The table of regions, as the node fills it.

use portcullis_nic::{Memory, RemoteAddress};
use portcullis_node::{OpenRegion, Regions};
use portcullis_onerma::{Allowed, HostAddress, OperationType, Region, RegionId, RegionKey, Responder};
use portcullis_protocol::{HolderKey, RegionName, Rights};
use std::fmt::Debug;

/// The responder with its table of regions. The node owns it, and the sockets borrow it from the node.
#[derive(Debug)]
pub(crate) struct NodeRegions<M>(pub Responder<M>);

fn allowed(rights: Rights) -> Allowed {
    let of = [
        (Rights::READ, OperationType::Read),
        (Rights::WRITE, OperationType::Write),
        (Rights::ATOMIC, OperationType::Atomic),
    ];
    let types: Vec<OperationType> =
        of.into_iter().filter(|(right, _)| rights.contains(*right)).map(|(_, it)| it).collect();
    Allowed::these(&types)
}

impl<M: Memory + Debug + Send + 'static> Regions for NodeRegions<M> {
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
            allowed: allowed(rights),
        };
        let id = self.0.regions().insert(region).ok()?;
        let key = self.0.regions().derive(id, HostAddress(host), client.0).expect("it was just opened");
        Some((RegionName { index: id.index, generation: id.generation }, HolderKey(key.to_bytes())))
    }

    fn close(&mut self, region: RegionName) {
        let id = RegionId { index: region.index, generation: region.generation };
        assert!(self.0.regions().remove(id), "a region is closed once");
    }
}
