//! What the holder of a permission shows with each access.

use crate::Rkey;

/// Bytes of a grant that are there for a credential, of whatever kind. Keys of a NIC take eight of them; a key that is
/// derived for one permission needs more.
pub const CREDENTIAL_BYTES: usize = 32;

/// What the holder of a permission shows with each access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Credential {
    /// Keys that the NIC checks: one for the buffer, one for the permission's lifetime word. They are equal where
    /// one window covers both (Patronus §5.4, contiguity).
    Keys {
        /// The key of the buffer.
        buffer: Rkey,
        /// The key of the lifetime word.
        lifetime: Rkey,
    },
    /// None: accesses are messages, and the node looks the permission up.
    Node,
}

impl From<Rkey> for Credential {
    /// One key for everything.
    fn from(key: Rkey) -> Self {
        Self::Keys { buffer: key, lifetime: key }
    }
}
