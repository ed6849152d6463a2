//! The sizes of a client's end, and which sizes node and client accept from each other.

/// The most data queue pairs that a client may have.
pub const DATA_QUEUE_PAIRS_MAX: u32 = 16;
/// The most queue pairs that an end may have for accesses to chunks.
pub const CHUNK_QUEUE_PAIRS_MAX: u32 = 8;
/// Requests, and receives, that each queue pair holds on which a client requests chunks.
pub const ASKING_DEPTH: u32 = 16;
/// The most requests that a queue may hold.
pub const DEPTH_MAX: u32 = 4096;
/// Bytes of the smallest room for a control message: each request fits.
pub const MESSAGE_BYTES_MIN: u32 = 128;
/// The bytes of which all rooms for control messages are multiples.
const MESSAGE_STEP: u32 = 64;
/// Bytes of the largest control message.
pub const MESSAGE_BYTES_MAX: u32 = 64 << 10;
/// Bytes of the largest arena that a node makes.
pub const ARENA_BYTES_MAX: u64 = 1 << 30;

/// Bytes of a page. Arenas are whole pages.
const PAGE_BYTES: u64 = 4096;

/// The sizes of a client's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointSize {
    /// Data queue pairs, the one in use and the spares: 1 to [`DATA_QUEUE_PAIRS_MAX`]. Completions carry their numbers.
    pub data_queue_pairs: u32,
    /// Queue pairs for accesses to chunks, numbered behind the data queue pairs: 0 to [`CHUNK_QUEUE_PAIRS_MAX`]. If
    /// there are any, the end has two more, of [`ASKING_DEPTH`], on which the client requests chunks.
    pub chunk_queue_pairs: u32,
    /// Requests that each data queue pair holds: a power of two, at most [`DEPTH_MAX`].
    pub send_depth: u32,
    /// Requests, and receives, that the control queue pair holds: a power of two, at most [`DEPTH_MAX`].
    pub control_depth: u32,
    /// Bytes of a control message, a multiple of 64 from [`MESSAGE_BYTES_MIN`] to [`MESSAGE_BYTES_MAX`]: the message
    /// itself and, with the mechanism `node-copy`, its data.
    pub message_bytes: u32,
    /// Bytes of the arena: room for all messages in both directions, and for the client's buffers.
    pub arena_bytes: u64,
}

impl EndpointSize {
    /// The same size, with an arena for `bytes` of buffers. Room for messages is added.
    #[must_use]
    pub fn with_buffers(self, bytes: u64) -> Self {
        let pages = bytes.saturating_add(self.messages()).div_ceil(PAGE_BYTES);
        Self { arena_bytes: pages.saturating_mul(PAGE_BYTES), ..self }
    }

    /// Bytes of all messages that may be under way.
    fn messages(&self) -> u64 {
        (2 * u64::from(self.control_depth)).saturating_mul(self.message_bytes.into())
    }

    /// Number of queue pairs on which the client requests chunks.
    #[must_use]
    pub fn asking_queue_pairs(&self) -> u32 {
        if self.chunk_queue_pairs == 0 { 0 } else { 2 }
    }

    /// Whether such an end is possible. The numbers may come from a peer.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let is_depth = |depth: u32| depth.is_power_of_two() && depth <= DEPTH_MAX;
        (1..=DATA_QUEUE_PAIRS_MAX).contains(&self.data_queue_pairs)
            && self.chunk_queue_pairs <= CHUNK_QUEUE_PAIRS_MAX
            && is_depth(self.send_depth)
            && is_depth(self.control_depth)
            && (MESSAGE_BYTES_MIN..=MESSAGE_BYTES_MAX).contains(&self.message_bytes)
            && self.message_bytes.is_multiple_of(MESSAGE_STEP)
            && (self.messages()..=ARENA_BYTES_MAX).contains(&self.arena_bytes)
    }
}
