//! Keys: a region key for each region, from which the keys of single holders are derived, and how packets are sealed with
//! these (1RMA §4.2, appendix A).
//!
//! # Derivation
//! 1RMA derives a key with one AES block over initiator address, process and operation type. Today's addresses are too long
//! for one block, and a permission has more to it. So a derived key is HMAC-SHA256 under the region key, over a label and
//! all of [`KeyTerms`], each of fixed length, so that no two sets of terms have the same encoding.
//!
//! # Why no nonce is used twice
//! AES-GCM loses everything if a key meets one nonce twice. A nonce is the sender's role and the sender's counter, which
//! only grows. For one derived key there are two senders, and their roles differ:
//! - *The initiator.* The key holds for one client id, and a node never gives an id twice in one run. The counter is the
//!   client's, over all its keys. A client that starts anew attaches anew, and gets another id and so other keys.
//! - *The responder.* Its counter is the node's, over all keys. A node that starts anew has another incarnation, which is part
//!   of the terms, so no key of its earlier run comes again, whoever chose the region key.
//!
//! So neither side has to remember a counter over its own restart. A counter that reaches its end sends nothing more
//! ([`Counter`]).

use ring::{aead, hmac};
use zeroize::Zeroize;

/// Bytes of a region key.
pub(crate) const REGION_KEY_BYTES: usize = 32;
/// Says what a derived key is for. Another protocol with the same region key would have another.
const LABEL: &[u8; 24] = b"portcullis one-shot key ";

/// The key of a region, `K_r`. The node never sends it. Whoever may give the region another key chooses the next one.
#[derive(Clone)]
pub struct RegionKey([u8; REGION_KEY_BYTES]);

impl RegionKey {
    /// These random bytes as a key.
    #[must_use]
    pub fn new(bytes: [u8; REGION_KEY_BYTES]) -> Self {
        Self(bytes)
    }

    /// For a request that gives a region this key.
    pub(crate) fn to_bytes(&self) -> [u8; REGION_KEY_BYTES] {
        self.0
    }

    /// The key for these terms.
    #[must_use]
    pub fn derive(&self, terms: &KeyTerms) -> DerivedKey {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.0);
        let mut derived = [0; 32];
        derived.copy_from_slice(hmac::sign(&key, &terms.encode()).as_ref());
        DerivedKey(derived)
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

/// What a derived key is for. The two ends use one key for an operation, so they must agree about all of this.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyTerms {
    /// The run of the node that has the region.
    pub incarnation: u64,
    /// Where requests come from.
    pub initiator: HostAddress,
    /// The node's number for the client.
    pub client: u64,
    /// What the key allows.
    pub operation: OperationType,
    /// The region's place in the node's table.
    pub index: u32,
    /// How often that place has been used. With it a key opens one permission and no later one.
    pub generation: u32,
    /// The region's first byte in the node's memory.
    pub base: u64,
    /// Bytes of the region.
    pub length: u64,
}

impl KeyTerms {
    fn encode(&self) -> [u8; 24 + 8 + 16 + 8 + 1 + 4 + 4 + 8 + 8] {
        let mut bytes = [0; 81];
        let parts: [&[u8]; 9] = [
            LABEL,
            &self.incarnation.to_le_bytes(),
            &self.initiator.0,
            &self.client.to_le_bytes(),
            &[self.operation as u8],
            &self.index.to_le_bytes(),
            &self.generation.to_le_bytes(),
            &self.base.to_le_bytes(),
            &self.length.to_le_bytes(),
        ];
        let mut at = 0;
        for part in parts {
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        assert_eq!(at, bytes.len(), "each part has its place");
        bytes
    }
}

/// A host's address: IPv6, or IPv4 mapped to it. Without a port: a client may send from several.
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

/// What a derived key is good for (1RMA §4.2): each right of a permission is a key of its own.
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

    /// Whether it changes something at the node. Such an operation has four hops (1RMA §5.1).
    pub(crate) fn is_change(self) -> bool {
        self != Self::Read
    }
}

/// The key of one holder of a region for one type of operations, `K_d`. It is sent to its holder over an encrypted control
/// connection, and never in an operation. Keys cannot be compared: that would take longer the more bytes are equal.
#[derive(Clone)]
pub struct DerivedKey([u8; 32]);

impl DerivedKey {
    /// A key that came over the control connection.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// For the control connection.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; 32] {
        self.0
    }

    /// Ready to seal and open. Setting a key up takes as long as sealing a short packet.
    pub(crate) fn cipher(&self) -> Cipher {
        let key =
            aead::UnboundKey::new(&aead::AES_256_GCM, &self.0).expect("the key is as long as AES-256 wants");
        Cipher(aead::LessSafeKey::new(key))
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

/// Who seals a packet: a part of its nonce.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sender {
    Initiator = 1,
    Responder = 2,
}

/// A derived key, set up.
#[derive(Debug)]
pub(crate) struct Cipher(aead::LessSafeKey);

impl Cipher {
    fn nonce(sender: Sender, counter: u64) -> aead::Nonce {
        let mut bytes = [0; aead::NONCE_LEN];
        bytes[0] = sender as u8;
        bytes[4..].copy_from_slice(&counter.to_be_bytes());
        aead::Nonce::assume_unique_for_key(bytes)
    }

    /// Encrypts the bytes of `packet` from `header` on, appends the tag, and authenticates the header with them. `counter`
    /// must be new.
    pub fn seal(&self, sender: Sender, counter: u64, packet: &mut Vec<u8>, header: usize) {
        let (head, body) = packet.split_at_mut(header);
        let tag =
            self.0.seal_in_place_separate_tag(Self::nonce(sender, counter), aead::Aad::from(&*head), body);
        packet.extend_from_slice(tag.expect("packets are far shorter than AES-GCM allows").as_ref());
    }

    /// Decrypts what is behind the header. `None`: somebody else has made the packet, or it was changed on its way.
    pub fn open<'a>(
        &self,
        sender: Sender,
        counter: u64,
        header: &[u8],
        body: &'a mut [u8],
    ) -> Option<&'a [u8]> {
        let opened = self.0.open_in_place(Self::nonce(sender, counter), aead::Aad::from(header), body);
        opened.ok().map(|plain| &*plain)
    }
}

/// A sender's counter: each value once.
#[derive(Debug)]
pub(crate) struct Counter(u64);

impl Counter {
    /// From one on: zero stands for no packet.
    pub fn new() -> Self {
        Self(1)
    }

    /// The next value. `None`: there are no more, and nothing may be sent any more.
    pub fn next(&mut self) -> Option<u64> {
        let value = self.0;
        self.0 = value.checked_add(1)?;
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms() -> KeyTerms {
        KeyTerms {
            incarnation: 1,
            initiator: HostAddress([2; 16]),
            client: 3,
            operation: OperationType::Read,
            index: 4,
            generation: 5,
            base: 6,
            length: 7,
        }
    }

    #[test]
    fn each_term_makes_another_key() {
        let region = RegionKey::new([9; 32]);
        let own = terms();
        let others = [
            KeyTerms { incarnation: 2, ..own },
            KeyTerms { initiator: HostAddress([3; 16]), ..own },
            KeyTerms { client: 4, ..own },
            KeyTerms { operation: OperationType::Write, ..own },
            KeyTerms { index: 5, ..own },
            KeyTerms { generation: 6, ..own },
            KeyTerms { base: 7, ..own },
            KeyTerms { length: 8, ..own },
        ];
        let mut keys: Vec<_> = others.iter().map(|terms| region.derive(terms).to_bytes()).collect();
        keys.push(region.derive(&own).to_bytes());
        keys.push(RegionKey::new([8; 32]).derive(&own).to_bytes());
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 10);
        assert_eq!(region.derive(&own).to_bytes(), region.derive(&own).to_bytes());
    }

    #[test]
    fn what_is_sealed_opens_for_its_sender_its_counter_and_its_header_only() {
        let cipher = RegionKey::new([9; 32]).derive(&terms()).cipher();
        let mut packet = b"head and body".to_vec();
        cipher.seal(Sender::Initiator, 7, &mut packet, 4);
        assert!(!packet.windows(4).any(|part| part == b"body"), "it is not encrypted");
        let open = |sender, counter, packet: &[u8]| {
            let (head, body) = packet.split_at(4);
            cipher.open(sender, counter, head, &mut body.to_vec()).map(<[u8]>::to_vec)
        };
        assert_eq!(open(Sender::Initiator, 7, &packet).as_deref(), Some(&b" and body"[..]));
        assert_eq!(open(Sender::Responder, 7, &packet), None);
        assert_eq!(open(Sender::Initiator, 8, &packet), None);
        for at in 0..packet.len() {
            let mut changed = packet.clone();
            changed[at] ^= 1;
            assert_eq!(open(Sender::Initiator, 7, &changed), None, "byte {at}");
        }
    }

    #[test]
    fn a_counter_ends_instead_of_beginning_anew() {
        let mut counter = Counter(u64::MAX - 1);
        assert_eq!((counter.next(), counter.next(), counter.next()), (Some(u64::MAX - 1), None, None));
    }
}
