//! What the holder of a permission shows with each access.

use crate::Rkey;

/// How many bytes a grant has for a credential of any kind. A NIC's keys take eight of them. A key that is derived for
/// one permission would need more.
pub const CREDENTIAL_BYTES: usize = 32;

/// Queue pairs of a client for accesses to chunks, the one in use and a spare. Each chunk has a window for each of them.
pub const CHUNK_QUEUE_PAIRS: usize = 2;

/// What the holder of a permission shows with each access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Credential {
    /// Keys that the NIC checks: one for the buffer, one for the permission's lifetime word. They are equal where one
    /// window covers both (Patronus §5.4, contiguity).
    Keys {
        /// The key of the buffer.
        buffer: Rkey,
        /// The key of the lifetime word.
        lifetime: Rkey,
    },
    /// The keys of a chunk's windows, one for each of the holder's queue pairs for chunks. A key works on its own queue pair
    /// only (OneSidedMW).
    Group([Rkey; CHUNK_QUEUE_PAIRS]),
    /// Nothing: accesses are messages, and the node looks the permission up.
    Node,
}

impl From<Rkey> for Credential {
    /// One key for everything.
    fn from(key: Rkey) -> Self {
        Self::Keys { buffer: key, lifetime: key }
    }
}
