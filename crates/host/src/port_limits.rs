//! The limits of a client's port, and the size of a client's end that follows from them.

use portcullis_nic::EndpointSize;
use portcullis_node::NodeConfig;
use portcullis_protocol::{CHUNK_QUEUE_PAIRS, DATA_BYTES_MAX, MESSAGE_BYTES, Mechanism, PACKED_HEAD_BYTES};

/// Control messages under way in each direction by default, if they carry many requests each.
const PACKED_DEPTH: u32 = 32;
/// The same, if they carry one each.
const SINGLE_DEPTH: u32 = 64;

/// The limits of a client's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortLimits {
    /// Requests that each data queue pair holds: a power of two.
    pub send_depth: u32,
    /// Control messages that may be under way in each direction: a power of two. `None`: 32, or 64 if most of them carry
    /// one request each, as over UDP and with the mechanism `node-copy`.
    pub control_depth: Option<u32>,
    /// Requests, and replies, for which a control message has room: 1 to 64. Twice as many fit if they are short.
    pub requests_per_message: u32,
    /// The largest arena that a client gets, in bytes. On an RDMA device the arenas belong to the clients.
    pub arena_bytes_max: u64,
    /// Bytes of all clients' ports together, arenas and queues. The node fills and locks a client's port when the
    /// client attaches. One tenant gets no more than it leaves to others.
    pub ports_bytes_max: u64,
}

impl Default for PortLimits {
    fn default() -> Self {
        Self {
            send_depth: 256,
            control_depth: None,
            requests_per_message: 32,
            arena_bytes_max: 64 << 20,
            ports_bytes_max: 512 << 20,
        }
    }
}

impl PortLimits {
    /// The size of a client's end, without its buffers.
    pub(crate) fn size(&self, config: &NodeConfig) -> EndpointSize {
        let copies = config.mechanism == Mechanism::NodeCopy;
        let data = if copies { DATA_BYTES_MAX } else { 0 };
        let packed = match self.requests_per_message as usize {
            0 | 1 => 0,
            requests => PACKED_HEAD_BYTES + requests * MESSAGE_BYTES,
        };
        let default_depth = if copies || packed == 0 { SINGLE_DEPTH } else { PACKED_DEPTH };
        let size = EndpointSize {
            data_queue_pairs: 1 + config.spare_queue_pairs,
            chunk_queue_pairs: config
                .chunks
                .filter(|_| config.chains)
                .map_or(0, |_| u32::try_from(CHUNK_QUEUE_PAIRS).unwrap_or(u32::MAX)),
            send_depth: self.send_depth,
            control_depth: self.control_depth.unwrap_or(default_depth),
            message_bytes: u32::try_from(packed.max(MESSAGE_BYTES + data)).unwrap_or(u32::MAX),
            arena_bytes: 0,
        };
        size.with_buffers(0)
    }

    /// Control messages under way of a client without queue pairs.
    #[cfg(feature = "udp")]
    pub(crate) fn depth_without_queue_pairs(&self) -> u32 {
        self.control_depth.unwrap_or(SINGLE_DEPTH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn depth(limits: PortLimits, mechanism: Mechanism) -> u32 {
        limits.size(&NodeConfig { mechanism, ..NodeConfig::default() }).control_depth
    }

    #[test]
    fn clients_whose_messages_carry_one_request_have_more_of_them_by_default() {
        let limits = PortLimits::default();
        let single = PortLimits { requests_per_message: 1, ..limits };
        assert_eq!(depth(limits, Mechanism::MemoryWindow), PACKED_DEPTH);
        assert_eq!(depth(limits, Mechanism::NodeCopy), SINGLE_DEPTH);
        assert_eq!(depth(single, Mechanism::MemoryWindow), SINGLE_DEPTH);
    }

    #[test]
    fn a_depth_that_was_set_holds_for_all_clients() {
        let limits = PortLimits { control_depth: Some(8), ..PortLimits::default() };
        assert!(Mechanism::ALL.into_iter().all(|mechanism| depth(limits, mechanism) == 8));
    }

    #[cfg(feature = "udp")]
    #[test]
    fn clients_without_queue_pairs_have_as_many_messages_as_requests() {
        let limits = PortLimits::default();
        assert_eq!(limits.depth_without_queue_pairs(), SINGLE_DEPTH);
        let limits = PortLimits { control_depth: Some(8), ..limits };
        assert_eq!(limits.depth_without_queue_pairs(), 8);
    }
}
