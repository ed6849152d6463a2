//! Keys: a region key for each region, from which the keys of single holders are derived, and the sealing of packets
//! with these (1RMA §4.2, appendix A).
//!
//! # Derivation
//! 1RMA derives a key with one AES block over initiator address, process and operation type. Today's addresses are too
//! long for one block, and a permission has further terms. So a key is derived in two steps, each an HMAC-SHA256:
//!
//! ```text
//! DerivationKey = HMAC(K_r, "portcullis one-shot region " | incarnation, index, generation, base, length, rights)
//! K_d           = HMAC(DerivationKey, "portcullis one-shot holder " | initiator, client)
//! ```
//!
//! 1RMA has a key for each type of operation. Here the types that a region allows are terms of the first step (rights),
//! and a region belongs to one permission: a holder has one key, which is valid for these types and for no other. The
//! type of an operation is in each packet's header, which is authenticated.
//!
//! The reason for two steps: a node performs the first when a region enters its table or gets another key, and keeps
//! its result with the region, one for each region. The second is for each packet, and hashes two blocks: HMAC's keyed
//! states are kept, and the terms fit into one block with their padding. A node keeps no state for a client or a holder
//! of a key.
//!
//! The derivation is sound if HMAC-SHA256 is a pseudorandom function:
//! - The results of the first step are then like independent random keys, one for each set of region terms. Each is
//!   used only for the second step. So the results of the second step are like random keys too, one for each set of
//!   both terms.
//! - Each step has one encoding: a label of its own and fields of fixed length. No two sets of terms have the same
//!   encoding.
//! - `K_r` is used only for the first step in this protocol. The labels separate it from another protocol that would
//!   use it as well, if that has labels of its own.
//! - A holder has `K_d` alone. From it neither the key above it nor the `K_d` of another holder can be computed.
//! - A party that knows `K_r` knows all keys below it: the node, and the party that has chosen `K_r`.
//!
//! # Why no nonce is used twice
//! AES-GCM loses all its security if a key is used twice with one nonce. A nonce is the sender's role and the sender's
//! counter, which only grows. For one derived key there are two senders, and their roles differ:
//! - *The initiator.* The key is for one client id, and a node never assigns an id twice in one run. The counter is the
//!   client's, over all its keys. A client that restarts attaches anew, and gets another id and so other keys.
//! - *The responder.* Its counters are the node's, over all keys: each lane and each book of changes draws from a part of
//!   the numbers of its own. A node that restarts has another incarnation, which is
//!   part of the terms, so no key of an earlier run recurs, whichever party chose the region key.
//!
//! So neither side must remember a counter over its own restart. A side whose counter reaches its end sends no more
//! packets ([`Counter`](crate::cipher::Counter)).

use crate::cipher::Cipher;
use crate::regions::Allowed;
use portcullis_planted::planted;
use ring::hmac;
use std::sync::Arc;
use zeroize::Zeroize;

/// Bytes of a region key.
pub(crate) const REGION_KEY_BYTES: usize = 32;
/// Label of the first step of a derivation.
const REGION_LABEL: &[u8; 27] = b"portcullis one-shot region ";
/// Label of the second step.
const HOLDER_LABEL: &[u8; 27] = b"portcullis one-shot holder ";
/// Number of bytes that the second step hashes.
const HOLDER_BYTES: usize = HOLDER_LABEL.len() + 16 + 8;
/// The longest message that SHA-256 hashes as one block: its padding takes a byte, and its length eight.
const ONE_BLOCK: usize = 64 - 9;

/// The key of a region, `K_r`. The node never sends it. The party that may give the region another key chooses the next
/// one.
#[derive(Clone)]
pub struct RegionKey([u8; REGION_KEY_BYTES]);

impl RegionKey {
    /// Creates a key from these random bytes.
    #[must_use]
    pub fn new(bytes: [u8; REGION_KEY_BYTES]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes for a request that gives a region this key.
    pub(crate) fn to_bytes(&self) -> [u8; REGION_KEY_BYTES] {
        self.0
    }

    /// Performs the first step of a derivation: returns the key from which those of the region's holders are derived.
    #[must_use]
    pub fn derivation_key(&self, terms: &RegionTerms) -> DerivationKey {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.0);
        let mut derived = [0; 32];
        derived.copy_from_slice(hmac::sign(&key, &terms.encode()).as_ref());
        let derivation = DerivationKey::from_bytes(&derived);
        derived.zeroize();
        derivation
    }
}

impl Drop for RegionKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl std::fmt::Debug for RegionKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RegionKey(…)")
    }
}

/// Terms of a region for the first step of a derivation. The two ends use one key for an operation, so they must agree
/// on all of these terms and of [`HolderTerms`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegionTerms {
    /// The incarnation of the node that has the region.
    pub incarnation: u64,
    /// The region's place in the node's table.
    pub index: u32,
    /// Number of earlier uses of that place. Because of it a key is valid for one permission and no later one.
    pub generation: u32,
    /// The address of the region's first byte, as its holders name it.
    pub address: u64,
    /// Bytes of the region.
    pub length: u64,
    /// The types of operations that the region allows.
    pub allowed: Allowed,
}

impl RegionTerms {
    fn encode(&self) -> [u8; REGION_LABEL.len() + 8 + 4 + 4 + 8 + 8 + 1] {
        encode([
            REGION_LABEL,
            &self.incarnation.to_le_bytes(),
            &self.index.to_le_bytes(),
            &self.generation.to_le_bytes(),
            &self.address.to_le_bytes(),
            &self.length.to_le_bytes(),
            &[self.allowed.bits()],
        ])
    }
}

/// Terms of the holder of a key, for the second step of a derivation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HolderTerms {
    /// The host that requests are sent from.
    pub initiator: HostAddress,
    /// The node's number for the client.
    pub client: u64,
}

impl HolderTerms {
    fn encode(&self) -> [u8; HOLDER_BYTES] {
        encode([HOLDER_LABEL, &self.initiator.0, &self.client.to_le_bytes()])
    }
}

const _: () = assert!(HOLDER_BYTES <= ONE_BLOCK, "each packet's derivation hashes one block of terms");

/// Concatenates the parts.
fn encode<const PARTS: usize, const BYTES: usize>(parts: [&[u8]; PARTS]) -> [u8; BYTES] {
    let (mut bytes, mut at) = ([0; BYTES], 0);
    for part in parts {
        bytes[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    assert_eq!(at, BYTES, "each part has its place");
    bytes
}

/// The key from which those of a region's holders are derived. The node never sends it.
#[derive(Clone)]
pub struct DerivationKey(hmac::Key);

impl DerivationKey {
    fn from_bytes(bytes: &[u8; 32]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, bytes))
    }

    /// Returns a publicly known key, for places without a region. No key is derived from it. It overwrites the key of a
    /// region that has ended: ring's keys are not erased when they are dropped.
    pub(crate) fn blank() -> Self {
        Self::from_bytes(&[0; 32])
    }

    /// Performs the second step of a derivation: returns the key of a holder.
    #[must_use]
    pub fn derive(&self, terms: &HolderTerms) -> DerivedKey {
        let anybody = HolderTerms { initiator: HostAddress([0; 16]), client: 0 };
        let terms = if planted!(HolderNotAmongTerms) { &anybody } else { terms };
        let mut derived = [0; 32];
        derived.copy_from_slice(hmac::sign(&self.0, &terms.encode()).as_ref());
        DerivedKey(derived)
    }
}

impl std::fmt::Debug for DerivationKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DerivationKey(…)")
    }
}

/// A host's address: IPv6, or IPv4 mapped to it. It has no port: a client may send from several.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct HostAddress(pub [u8; 16]);

impl From<std::net::IpAddr> for HostAddress {
    fn from(address: std::net::IpAddr) -> Self {
        match address {
            std::net::IpAddr::V4(address) => Self(address.to_ipv6_mapped().octets()),
            std::net::IpAddr::V6(address) => Self(address.octets()),
        }
    }
}

/// The types of operations, each a right that a region may allow (1RMA §4.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum OperationType {
    /// Reads.
    Read = 1,
    /// Writes.
    Write = 2,
    /// COMPARE_AND_SWAP and FETCH_AND_ADD.
    Atomic = 3,
    /// Giving the region another key (1RMA §5.2).
    Rekey = 4,
}

impl OperationType {
    /// Every type.
    pub const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Atomic, Self::Rekey];

    /// Whether the operation changes data or keys of the node. Such an operation has four hops (1RMA §5.1).
    pub(crate) fn is_change(self) -> bool {
        self != Self::Read
    }
}

/// The key of one holder of a region, `K_d`, for the types of operations that the region allows. It is sent to its
/// holder over an encrypted control connection, and never in an operation. Keys cannot be compared: a comparison would
/// take longer the more bytes are equal.
#[derive(Clone)]
pub struct DerivedKey([u8; 32]);

impl DerivedKey {
    /// Creates a key from bytes received over the control connection.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes to send over the control connection.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; 32] {
        self.0
    }

    /// Sets the key up for operations. The set-up takes longer than sealing a short packet, so a client does it once.
    #[must_use]
    pub fn set_up(&self) -> OperationKey {
        OperationKey(Arc::new(self.cipher()))
    }

    /// Sets the key up to seal and open packets.
    pub(crate) fn cipher(&self) -> Cipher {
        Cipher::new(&self.0)
    }
}

impl Drop for DerivedKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl std::fmt::Debug for DerivedKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DerivedKey(…)")
    }
}

/// A derived key, set up. Clones share it.
#[derive(Clone)]
pub struct OperationKey(Arc<Cipher>);

impl OperationKey {
    pub(crate) fn cipher(&self) -> &Cipher {
        &self.0
    }
}

impl std::fmt::Debug for OperationKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OperationKey(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGION: RegionTerms = RegionTerms {
        incarnation: 1,
        index: 4,
        generation: 5,
        address: 6,
        length: 7,
        allowed: Allowed::NONE,
    };
    const HOLDER: HolderTerms = HolderTerms { initiator: HostAddress([2; 16]), client: 3 };

    fn derive(region: &RegionTerms, holder: &HolderTerms) -> [u8; 32] {
        RegionKey::new([9; 32]).derivation_key(region).derive(holder).to_bytes()
    }

    #[test]
    fn each_term_makes_another_key() {
        let regions = [
            REGION,
            RegionTerms { incarnation: 2, ..REGION },
            RegionTerms { index: 5, ..REGION },
            RegionTerms { generation: 6, ..REGION },
            RegionTerms { address: 7, ..REGION },
            RegionTerms { length: 8, ..REGION },
            RegionTerms { allowed: Allowed::these(&[OperationType::Read]), ..REGION },
        ];
        let holders = [
            HOLDER,
            HolderTerms { initiator: HostAddress([3; 16]), ..HOLDER },
            HolderTerms { client: 4, ..HOLDER },
        ];
        let all = regions.iter().flat_map(|region| holders.iter().map(|holder| derive(region, holder)));
        let mut keys: Vec<_> = all.collect();
        keys.push(RegionKey::new([8; 32]).derivation_key(&REGION).derive(&HOLDER).to_bytes());
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 7 * 3 + 1);
        assert_eq!(derive(&REGION, &HOLDER), derive(&REGION, &HOLDER));
    }

    /// Computes the derivation of this module's documentation explicitly.
    #[test]
    fn a_key_is_two_hmacs_over_labels_and_terms() {
        let sign = |key: &[u8], parts: &[&[u8]]| {
            let key = hmac::Key::new(hmac::HMAC_SHA256, key);
            hmac::sign(&key, &parts.concat()).as_ref().to_vec()
        };
        let region: [&[u8]; 7] = [
            b"portcullis one-shot region ",
            &1u64.to_le_bytes(),
            &4u32.to_le_bytes(),
            &5u32.to_le_bytes(),
            &6u64.to_le_bytes(),
            &7u64.to_le_bytes(),
            &[0],
        ];
        let above = sign(&[9; 32], &region);
        let holder: [&[u8]; 3] = [b"portcullis one-shot holder ", &[2; 16], &3u64.to_le_bytes()];
        assert_eq!(derive(&REGION, &HOLDER).to_vec(), sign(&above, &holder));
    }
}
