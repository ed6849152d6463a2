//! Sealed packets that a client was charged with.
//!
//! An attacker on a client's path can send a copy of any packet of the client. A copy has the counter of its original,
//! and only the client can seal another packet. So each packet is charged once. Whole packets are remembered, because
//! counters alone would not suffice: a dishonest client could seal one request with a large counter, or all its
//! requests with the same counter, and from then on stray at no cost.

use portcullis_nic::RefusedAccess;
use portcullis_protocol::SealedPacket;
use std::collections::BTreeSet;

/// The most packets that are remembered for one client and one kind of charge. A client whose violations stay below
/// those that cost a bar at once ([`ViolationLimits`](crate::ViolationLimits)) has fewer.
const REMEMBERED_MAX: usize = 256;

/// A packet for which its client was charged, ordered by counter first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Charged {
    counter: u64,
    place: (u32, u32),
    /// First byte, length and needed right. A packet with the same counter and another access is a packet that only the
    /// client can have sealed.
    access: (u64, u64, u8),
}

/// The packets of one client that were charged, for one kind of charge. Empty for a client that was never charged.
///
/// The packets with the highest counters are remembered. An honest client's counters grow, so a packet below all of
/// them is old, and may be a copy of a forgotten one: it is not charged. A dishonest client reaches that only with as
/// many charges as are remembered.
#[derive(Debug, Default)]
pub(crate) struct ChargedPackets {
    remembered: BTreeSet<Charged>,
    /// The highest packet that was forgotten.
    forgotten: Option<Charged>,
}

impl ChargedPackets {
    /// Notes that the client is to be charged for a packet. Returns whether it may be charged. If not, the packet is a
    /// copy, or may be one.
    pub fn note(&mut self, packet: SealedPacket, refused: &RefusedAccess) -> bool {
        let SealedPacket { region, counter } = packet;
        let access = (refused.address.0, refused.length, refused.needs.bits());
        let packet = Charged { counter, place: (region.index, region.generation), access };
        if self.forgotten.is_some_and(|forgotten| packet <= forgotten) || !self.remembered.insert(packet) {
            return false;
        }
        if self.remembered.len() > REMEMBERED_MAX {
            self.forgotten = self.remembered.pop_first();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ViolationLimits;
    use portcullis_nic::{Access, AccessFault, RemoteAddress, Rkey};
    use portcullis_protocol::RegionName;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn packet(counter: u64, generation: u32) -> SealedPacket {
        SealedPacket { region: RegionName { index: 3, generation }, counter }
    }

    fn to(address: u64) -> RefusedAccess {
        RefusedAccess {
            address: RemoteAddress(address),
            length: 8,
            needs: Access::REMOTE_READ,
            rkey: Rkey(3),
            fault: AccessFault::OutsideRange,
        }
    }

    #[test]
    fn more_are_remembered_than_bar_a_client_at_once() {
        let limits = ViolationLimits::default();
        assert!(REMEMBERED_MAX > (limits.free_max + limits.bar_after) as usize);
    }

    #[test]
    fn whoever_seals_one_packet_with_the_highest_counter_is_charged_with_the_next_ones_all_the_same() {
        let mut charged = ChargedPackets::default();
        assert!(charged.note(packet(u64::MAX, 0), &to(0)));
        assert!((1..REMEMBERED_MAX as u64).all(|counter| charged.note(packet(counter, 0), &to(0))));
    }

    #[test]
    fn whoever_seals_other_requests_with_one_counter_is_charged_with_each() {
        let mut charged = ChargedPackets::default();
        assert!((0..2000).all(|address| charged.note(packet(7, 0), &to(address))));
        assert!((1..2000).all(|generation| charged.note(packet(7, generation), &to(0))));
        let writes = RefusedAccess { needs: Access::REMOTE_WRITE, ..to(2001) };
        assert!(charged.note(packet(7, 2000), &writes));
        assert!(!charged.note(packet(7, 2000), &writes));
        assert_eq!(charged.remembered.len(), REMEMBERED_MAX);
    }

    proptest! {
        /// The client's packets are late by fewer packets than are remembered. Copies arrive at any time.
        #[test]
        fn an_honest_client_is_charged_with_each_of_its_packets_once(
            gaps in prop::collection::vec(1u64..1000, 1..1000),
            copies in prop::collection::vec((0usize..1000, 0usize..1000), 0..2000),
        ) {
            let counters: Vec<u64> =
                gaps.iter().scan(0, |counter, gap| { *counter += gap; Some(*counter) }).collect();
            let mut copies_of = vec![Vec::new(); counters.len()];
            for (after, of) in copies {
                let after = after % counters.len();
                copies_of[after].push(counters[of % (after + 1)]);
            }
            let (mut charged, mut paid) = (ChargedPackets::default(), HashSet::new());
            for (counter, copies) in counters.into_iter().zip(copies_of) {
                prop_assert!(charged.note(packet(counter, 0), &to(0)));
                prop_assert!(paid.insert(counter));
                for copy in copies {
                    prop_assert!(!charged.note(packet(copy, 0), &to(0)));
                }
            }
            prop_assert!(charged.remembered.len() <= REMEMBERED_MAX);
        }
    }
}
