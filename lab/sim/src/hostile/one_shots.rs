//! The attempts of a hostile client over UDP: operations that its key does not open, and keys of other clients.

use super::Hostile;
use crate::endpoint::{RAW, SimEndpoint, scratch};
use crate::scene::{Scene, Sighting};
use crate::worker::sighting;
use portcullis_nic::{LocalSpan, OneShotOperations, OneShotRequest, OneShotVerb, VerbsEndpoint};
use portcullis_protocol::{HolderKey, RegionName, RemoteAddress};

impl Hostile {
    /// Posts an operation that no permission allows, or that a permission allows only by chance.
    pub(super) fn stray_without_queue_pair(&mut self, endpoint: &mut SimEndpoint, scene: &mut Scene<'_>) {
        let Some((at, region, key)) = self.target(scene) else { return };
        let (mut address, mut length) = (at.address.0, at.length);
        match self.dice.of(0..6) {
            // The access stays as it is, with a right that the client may not have.
            0..2 => length = 1 + self.dice.of(0..length.max(1)),
            // The access reaches one byte too far, on either side.
            2 => length += 1,
            3 => address = address.wrapping_sub(1),
            4 => address = address.wrapping_add(self.dice.of(0..length.max(1) + 64)),
            _ => address = self.dice.any(),
        }
        let is_atomic = self.dice.per_mille(350);
        let verb = match self.dice.of(0..2) {
            0 if is_atomic => OneShotVerb::FetchAndAdd { add: self.dice.of(0..3) },
            _ if is_atomic => {
                OneShotVerb::CompareAndSwap { compare: self.dice.of(0..3_000), swap: self.dice.of(0..3_000) }
            }
            0 => OneShotVerb::Read,
            _ => OneShotVerb::Write { may_repeat: self.dice.per_mille(500) },
        };
        if is_atomic && self.dice.per_mille(300) {
            address = at.word.0.0;
        }
        let length = if is_atomic { 8 } else { u32::try_from(length.clamp(1, 256)).unwrap_or(1) };
        let local = LocalSpan { address: scratch(&endpoint.size()), length, lkey: endpoint.arena_key() };
        let address = RemoteAddress(address);
        let mut operations = endpoint.one_shots().expect("the end is over UDP");
        operations.post_one_shot(&[OneShotRequest { id: RAW, region, key, address, local, verb }]);
    }

    /// Returns a region that the client has or had, or that another client has, and a key.
    fn target(&mut self, scene: &mut Scene<'_>) -> Option<(Sighting, RegionName, HolderKey)> {
        let seen = scene.gossip.sightings.iter().copied().filter(|it| it.region.is_some());
        let seen: Vec<Sighting> = seen.collect();
        let own = self.held.last().map(sighting);
        let target = match self.dice.of(0..6) {
            0..3 => own.or_else(|| self.past.last().copied()),
            3 => self.dice.pick(&self.past).copied(),
            4 => self.let_go.or(own),
            _ => self.dice.pick(&seen).copied(),
        };
        let target = target?;
        let (mut region, mut key) = target.region?;
        if self.dice.per_mille(100) {
            key.0[self.dice.index(32)] ^= 1;
        }
        if self.dice.per_mille(100) {
            region.generation = region.generation.wrapping_add(1);
        }
        Some((target, region, key))
    }
}
