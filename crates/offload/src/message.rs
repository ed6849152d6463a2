//! The messages between a client and a worker: requests and replies.

use crate::chain::{REQUEST_BYTES, Scratch};
use crate::record::{KEY_WORD_AT, LINE_BYTES, Layout, STATUS_AT, STATUS_CHUNK};
use portcullis_nic::{RemoteAddress, Rkey, entry};

/// A chunk, by the number of its record's first line.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Handle(pub u16);

impl Handle {
    /// Returns the bytes of a request. A request for a chunk has the same length, and may name any chunk.
    #[must_use]
    pub fn to_request(self) -> [u8; 8] {
        const _: () = assert!(REQUEST_BYTES == 8);
        u64::from(self.0).to_le_bytes()
    }
}

/// A window of a chunk, for one queue pair of its holder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkWindow {
    /// The window's key.
    pub rkey: Rkey,
    /// Address of the window's first byte.
    pub address: RemoteAddress,
    /// Number of bytes of the chunk.
    pub length: u64,
}

/// Reply of a worker. A worker replies to requests in the order in which they arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reply<const GROUP: usize> {
    /// Whether a chunk was allocated, or freed. If not, no chunk was free, or the chunk to be freed was not the
    /// client's.
    pub is_done: bool,
    /// Number of this use of the chunk or, after a free, of its next use. No two uses of a chunk have the same number.
    pub number_of_use: u64,
    /// The chunk's windows as they were bound, one for each queue pair of the group. After a free: the windows as they
    /// will be bound for the next holder. Without that holder's queue pair their keys open nothing.
    pub windows: [ChunkWindow; GROUP],
}

/// Bytes of a reply.
#[must_use]
pub const fn reply_bytes<const GROUP: usize>() -> u64 {
    Scratch::<GROUP>::REPLY_BYTES
}

impl<const GROUP: usize> Reply<GROUP> {
    /// Decodes the reply in a message. `None`: the message is too short.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        // A reply is a part of a record.
        let word = |at: u64| {
            let at = usize::try_from(at - STATUS_AT).ok()?;
            Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
        };
        let mut windows = [ChunkWindow { rkey: Rkey(0), address: RemoteAddress(0), length: 0 }; GROUP];
        for (window, at) in windows.iter_mut().zip(Layout::<GROUP>::BIND_AT) {
            let key = word(at + entry::RKEY - 4)? >> 32;
            *window = ChunkWindow {
                rkey: Rkey(u32::try_from(key).ok()?),
                address: RemoteAddress(word(at + entry::REMOTE_ADDRESS)?),
                length: word(at + entry::VALUE)?,
            };
        }
        let (is_done, number_of_use) = (word(STATUS_AT)? == STATUS_CHUNK, word(KEY_WORD_AT)?);
        Some(Self { is_done, number_of_use, windows })
    }
}

/// The addresses of a pool's chunks, as clients use them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// The first chunk's first byte.
    pub base: RemoteAddress,
    /// Number of bytes of a chunk.
    pub chunk_bytes: u64,
    /// Number of chunks.
    pub chunks: u64,
}

impl Geometry {
    /// The first byte of a chunk.
    #[must_use]
    pub fn address(&self, chunk: u64) -> RemoteAddress {
        RemoteAddress(self.base.0 + chunk * self.chunk_bytes)
    }

    /// Returns the chunk at an address. `None`: no chunk is there.
    #[must_use]
    pub fn chunk_at(&self, address: RemoteAddress) -> Option<u64> {
        let chunk = address.0.checked_sub(self.base.0)? / self.chunk_bytes;
        (chunk < self.chunks).then_some(chunk)
    }

    /// The handle of a chunk.
    ///
    /// # Panics
    /// There is no such chunk.
    #[must_use]
    pub fn handle<const GROUP: usize>(&self, chunk: u64) -> Handle {
        assert!(chunk < self.chunks, "there is no chunk {chunk}");
        let line = Layout::<GROUP>::record_of(chunk) / LINE_BYTES;
        Handle(u16::try_from(line).expect("the table has as many lines as handles"))
    }
}
