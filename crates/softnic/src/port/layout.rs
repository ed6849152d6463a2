//! The places of a port's parts in its file.

use crate::core::{COMPLETION_BYTES, RECEIVE_BYTES, WORK_REQUEST_BYTES};
use portcullis_nic::{ASKING_DEPTH, EndpointSize};

/// The futex by which the client shows that it sleeps, and on which the engine wakes it.
pub const SLEEPING: u64 = 0;
/// The places where the client writes the number of completions that it has polled, for each completion queue. They lie on
/// cache lines of their own, since the NIC's thread and an engine read them.
const POLLED: u64 = 128;
const DATA_POLLED: u64 = 256;
const QUEUES: u64 = 4096;

/// Bytes of the two queues of a queue pair on which a client requests chunks.
const ASKING_BYTES: u64 =
    (ASKING_DEPTH as u64 * (WORK_REQUEST_BYTES + RECEIVE_BYTES)).next_multiple_of(WORK_REQUEST_BYTES);

/// A completion queue of a port. It has an entry for each request and receive that can be posted at once, so that it never
/// overflows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionRing {
    /// The offset of its first entry.
    pub offset: u64,
    /// Number of entries.
    pub depth: u32,
    /// The offset at which the client writes the number of completions that it has polled.
    pub cell: u64,
}

impl CompletionRing {
    fn end(&self) -> u64 {
        let end = self.offset + u64::from(self.depth) * COMPLETION_BYTES;
        end.next_multiple_of(WORK_REQUEST_BYTES)
    }
}

/// The offsets of a port's parts in its file, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortLayout {
    size: EndpointSize,
}

impl PortLayout {
    /// The layout of a port of this size.
    ///
    /// # Panics
    /// The size is not sound.
    #[must_use]
    pub fn new(size: EndpointSize) -> Self {
        assert!(size.is_sound(), "a port of {size:?} cannot be");
        Self { size }
    }

    /// The offset of the send queue of data queue pair `number`.
    #[must_use]
    pub fn data_send(&self, number: u32) -> u64 {
        QUEUES + u64::from(number) * u64::from(self.size.send_depth) * WORK_REQUEST_BYTES
    }

    /// The offset of the send queue of the control queue pair.
    #[must_use]
    pub fn control_send(&self) -> u64 {
        self.data_send(self.size.data_queue_pairs + self.size.chunk_queue_pairs)
    }

    /// The offset of the receive queue of the control queue pair.
    #[must_use]
    pub fn control_receive(&self) -> u64 {
        self.control_send() + u64::from(self.size.control_depth) * WORK_REQUEST_BYTES
    }

    /// The offset of the send queue of the queue pair of this place on which the client requests chunks.
    #[must_use]
    pub fn asking_send(&self, place: u32) -> u64 {
        let end = self.control_receive() + u64::from(self.size.control_depth) * RECEIVE_BYTES;
        end.next_multiple_of(WORK_REQUEST_BYTES) + u64::from(place) * ASKING_BYTES
    }

    /// The offset of the receive queue of the queue pair of this place on which the client requests chunks.
    #[must_use]
    pub fn asking_receive(&self, place: u32) -> u64 {
        self.asking_send(place) + u64::from(ASKING_DEPTH) * WORK_REQUEST_BYTES
    }

    /// The completion queue of the data queue pairs.
    #[must_use]
    pub fn data_completions(&self) -> CompletionRing {
        let requests = (self.size.data_queue_pairs + self.size.chunk_queue_pairs) * self.size.send_depth;
        let offset = self.asking_send(self.size.asking_queue_pairs());
        CompletionRing { offset, depth: requests.next_power_of_two(), cell: DATA_POLLED }
    }

    /// The completion queue of the other queue pairs.
    #[must_use]
    pub fn completions(&self) -> CompletionRing {
        let messages = self.size.control_depth + self.size.asking_queue_pairs() * ASKING_DEPTH;
        let offset = self.data_completions().end();
        CompletionRing { offset, depth: (2 * messages).next_power_of_two(), cell: POLLED }
    }

    /// The offset of the arena.
    #[must_use]
    pub fn arena(&self) -> u64 {
        self.completions().end().next_multiple_of(4096)
    }

    /// Bytes of the whole file.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        (self.arena() + self.size.arena_bytes).next_multiple_of(4096)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_parts_of_a_port_do_not_overlap(
            data_queue_pairs in 1u32..=16, chunk_queue_pairs in 0u32..=8, send in 0u32..=12, control in 0u32..=12,
            blocks in 2u32..64,
        ) {
            let control_depth = 1 << control;
            let message_bytes = blocks * 64;
            let size = EndpointSize { chunk_queue_pairs,
                data_queue_pairs, send_depth: 1 << send, control_depth, message_bytes,
                arena_bytes: 2 * u64::from(control_depth) * u64::from(message_bytes),
            };
            prop_assert!(size.is_sound());
            let layout = PortLayout::new(size);
            let mut parts: Vec<(u64, u64)> = (0..data_queue_pairs + chunk_queue_pairs)
                .map(|number| (layout.data_send(number), u64::from(size.send_depth) * 64))
                .collect();
            parts.push((0, QUEUES));
            parts.push((layout.control_send(), u64::from(control_depth) * 64));
            parts.push((layout.control_receive(), u64::from(control_depth) * 32));
            for place in 0..size.asking_queue_pairs() {
                parts.push((layout.asking_send(place), u64::from(ASKING_DEPTH) * 64));
                parts.push((layout.asking_receive(place), u64::from(ASKING_DEPTH) * 32));
            }
            for queue in [layout.data_completions(), layout.completions()] {
                parts.push((queue.offset, u64::from(queue.depth) * 32));
            }
            parts.push((layout.arena(), size.arena_bytes));
            parts.sort_unstable();
            for pair in parts.windows(2) {
                prop_assert!(pair[0].0 + pair[0].1 <= pair[1].0);
            }
            let last = parts.last().expect("there are parts");
            prop_assert!(last.0 + last.1 <= layout.bytes());
        }
    }
}
