//! The credential that the holder of a permission shows with each access.

use crate::Rkey;

/// Bytes that a grant has for a credential of any kind. A NIC's keys take eight of them, a [`HolderKey`] takes all.
pub const CREDENTIAL_BYTES: usize = 32;

/// Number of a client's queue pairs for accesses to chunks: the one in use and a spare. Each chunk has a window for
/// each of them.
pub const CHUNK_QUEUE_PAIRS: usize = 2;

/// The most data queue pairs of a client whose permissions have a window for each queue pair.
pub const GROUP_QUEUE_PAIRS_MAX: usize = CREDENTIAL_BYTES / size_of::<Rkey>();

/// The most data queue pairs for which a permission can have windows over its lifetime word as well, if the windows
/// over its bytes do not cover the word. If the client has more, the lifetime is extended by message.
pub const GROUP_WORD_QUEUE_PAIRS_MAX: usize = GROUP_QUEUE_PAIRS_MAX / 2;

/// The keys of a window group that open the permission's lifetime word.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WordKeys {
    /// The keys of the buffer: each window covers both (Patronus §5.4, contiguity).
    Same,
    /// Separate keys, stored behind those of the buffer.
    Own,
    /// No key: only the node's CPU changes the word.
    None,
}

/// The keys of a window group: a type-2 window for each data queue pair of the holder.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct KeyGroup {
    /// The buffer's keys by queue pair, from the first place on. With [`WordKeys::Own`] the keys of the lifetime word
    /// follow from place [`GROUP_WORD_QUEUE_PAIRS_MAX`] on. Zero: no window.
    keys: [Rkey; GROUP_QUEUE_PAIRS_MAX],
    word: WordKeys,
}

impl KeyGroup {
    /// Returns the group with the keys of a buffer, one for each queue pair, which open the lifetime word as well.
    #[must_use]
    pub fn of_both(buffer: impl IntoIterator<Item = Rkey>) -> Self {
        Self::with(buffer, WordKeys::Same)
    }

    /// Returns the group with the keys of a buffer, and no key for the lifetime word.
    #[must_use]
    pub fn of_buffer(buffer: impl IntoIterator<Item = Rkey>) -> Self {
        Self::with(buffer, WordKeys::None)
    }

    fn with(buffer: impl IntoIterator<Item = Rkey>, word: WordKeys) -> Self {
        let mut keys = [Rkey(0); GROUP_QUEUE_PAIRS_MAX];
        keys.iter_mut().zip(buffer).for_each(|(place, key)| *place = key);
        Self { keys, word }
    }

    /// Adds keys for the lifetime word, for [`GROUP_WORD_QUEUE_PAIRS_MAX`] queue pairs at most.
    #[must_use]
    pub fn with_word(mut self, lifetime: impl IntoIterator<Item = Rkey>) -> Self {
        let places = self.keys[GROUP_WORD_QUEUE_PAIRS_MAX..].iter_mut();
        places.zip(lifetime).for_each(|(place, key)| *place = key);
        self.word = WordKeys::Own;
        self
    }

    /// Returns the group with these keys, given in the form in which they are sent.
    #[must_use]
    pub fn from_parts(keys: [Rkey; GROUP_QUEUE_PAIRS_MAX], word: WordKeys) -> Self {
        Self { keys, word }
    }

    /// The keys by place, in the form in which they are sent.
    #[inline]
    #[must_use]
    pub fn keys(&self) -> &[Rkey; GROUP_QUEUE_PAIRS_MAX] {
        &self.keys
    }

    /// The keys that open the lifetime word.
    #[must_use]
    pub fn word(&self) -> WordKeys {
        self.word
    }

    /// The number of the queue pair that a key works on.
    #[must_use]
    pub fn queue_pair_of(&self, key: Rkey) -> Option<u32> {
        let place = self.keys.iter().position(|&it| it == key && it != Rkey(0))?;
        let place = if self.word == WordKeys::Own { place % GROUP_WORD_QUEUE_PAIRS_MAX } else { place };
        u32::try_from(place).ok()
    }

    /// Whether one of the windows had this key.
    #[must_use]
    pub fn has(&self, key: Rkey) -> bool {
        key != Rkey(0) && self.keys.contains(&key)
    }

    /// The keys of the lifetime word, by queue pair, as a group of their own. `None`: no key opens the word.
    #[must_use]
    pub fn of_word(&self) -> Option<Self> {
        match self.word {
            WordKeys::Same => Some(*self),
            WordKeys::Own => Some(Self::of_both(self.keys[GROUP_WORD_QUEUE_PAIRS_MAX..].iter().copied())),
            WordKeys::None => None,
        }
    }
}

/// A place in a node's table of regions, and the number of times that the place had been used before (1RMA §4.3). No
/// two regions of one run of a node have the same name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct RegionName {
    /// The index of the place.
    pub index: u32,
    /// Number of earlier uses of the place.
    pub generation: u32,
}

/// A packet that a permission's holder has sealed. An honest holder uses each counter once, so only copies of the packet have
/// the same counter.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SealedPacket {
    /// The region that the packet is for.
    pub region: RegionName,
    /// The holder's counter: the packet's nonce.
    pub counter: u64,
}

/// The secret of one permission's holder, derived from the key of the permission's region (1RMA §4.2). It seals the holder's
/// operations and is never sent in one.
#[derive(Clone, Copy)]
pub struct HolderKey(pub [u8; CREDENTIAL_BYTES]);

/// Compares in constant time: which bytes differ does not matter.
impl PartialEq for HolderKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).fold(0, |differ, (one, other)| differ | (one ^ other)) == 0
    }
}

impl Eq for HolderKey {}

/// Prints no bytes: they are a secret.
impl std::fmt::Debug for HolderKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HolderKey(…)")
    }
}

/// The credential that the holder of a permission shows with each access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Credential {
    /// Keys that the NIC checks: one for the buffer, one for the permission's lifetime word. They are equal if one
    /// window covers both (Patronus §5.4, contiguity).
    Keys {
        /// The key of the buffer.
        buffer: Rkey,
        /// The key of the lifetime word.
        lifetime: Rkey,
    },
    /// The keys of a window group: each works on its own data queue pair of the holder only (OneSidedMW, «QP and MW
    /// Grouping»).
    Group(KeyGroup),
    /// The keys of a chunk's windows, one for each of the holder's queue pairs for chunks. A key works on its own queue pair
    /// only (OneSidedMW).
    Chunk([Rkey; CHUNK_QUEUE_PAIRS]),
    /// A region of the node and the holder's key for it: each access is a packet that the key seals, for the bytes and the
    /// lifetime word alike (1RMA). It works in the session that the permission was granted to, and in no other.
    RegionKey {
        /// The region.
        region: RegionName,
        /// The holder's key.
        key: HolderKey,
    },
    /// No credential: accesses are messages, and the node looks the permission up.
    Node,
}

impl From<Rkey> for Credential {
    /// Uses one key for the buffer and the lifetime word.
    fn from(key: Rkey) -> Self {
        Self::Keys { buffer: key, lifetime: key }
    }
}

fn array(keys: &[Rkey]) -> [Rkey; GROUP_QUEUE_PAIRS_MAX] {
    let mut all = [Rkey(0); GROUP_QUEUE_PAIRS_MAX];
    all[..keys.len()].copy_from_slice(keys);
    all
}

impl Credential {
    /// The key of the buffer; if each queue pair has its own key, the one for the holder's first queue pair. `None`:
    /// accesses show no key.
    #[must_use]
    pub fn buffer_key(&self) -> Option<Rkey> {
        match self {
            Self::Keys { buffer, .. } => Some(*buffer),
            Self::Group(group) => Some(group.keys[0]),
            Self::Chunk(keys) => Some(keys[0]),
            Self::RegionKey { .. } | Self::Node => None,
        }
    }

    /// The key of the lifetime word; if each queue pair has its own key, the one for the holder's first queue pair.
    /// `None`: no key opens the word.
    #[must_use]
    pub fn lifetime_key(&self) -> Option<Rkey> {
        match self {
            Self::Keys { lifetime, .. } => Some(*lifetime),
            Self::Group(group) => group.of_word().map(|word| word.keys[0]),
            Self::Chunk(_) | Self::RegionKey { .. } | Self::Node => None,
        }
    }

    /// Iterates over the keys of the credential. A key may appear twice.
    pub fn keys(&self) -> impl Iterator<Item = Rkey> + use<> {
        let (keys, count) = match *self {
            Self::Keys { buffer, lifetime } => (array(&[buffer, lifetime]), 2),
            Self::Group(group) => (group.keys, GROUP_QUEUE_PAIRS_MAX),
            Self::Chunk(keys) => (array(&keys), CHUNK_QUEUE_PAIRS),
            Self::RegionKey { .. } | Self::Node => (array(&[]), 0),
        };
        keys.into_iter().take(count).filter(|key| *key != Rkey(0))
    }

    /// Whether `key` is one of the credential's keys.
    #[must_use]
    pub fn has_key(&self, key: Rkey) -> bool {
        match self {
            Self::Keys { buffer, lifetime } => *buffer == key || *lifetime == key,
            Self::Group(keys) => keys.has(key),
            Self::Chunk(keys) => keys.contains(&key),
            Self::RegionKey { .. } | Self::Node => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_of_a_lifetime_word_are_found_where_they_are() {
        let keys = |from: u32, count: u32| (from..from + count).map(Rkey);
        let both = KeyGroup::of_both(keys(1, 8));
        assert_eq!(both.of_word(), Some(both));
        let split = KeyGroup::of_buffer(keys(1, 3)).with_word(keys(11, 3));
        assert_eq!(split.of_word(), Some(KeyGroup::of_both(keys(11, 3))));
        assert!(split.has(Rkey(2)) && split.has(Rkey(12)) && !split.has(Rkey(0)));
        assert_eq!(KeyGroup::of_buffer(keys(1, 8)).of_word(), None);
    }
}
