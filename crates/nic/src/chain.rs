//! The features that a chain needs of a NIC beyond verbs: requests that wait for others, and requests that enable
//! others.
//!
//! A chain is a program of work requests that trigger and patch each other on the NIC (RedN; OneSidedMW, «Quick Recap
//! on RNIC Offloading»). Chains belong to the node: a client triggers a chain by a message, and neither posts nor
//! writes any of its requests. So all these features need a queue pair that its owner has made for chains
//! ([`ChainRole::privileged`]).
//!
//! A NIC reports the features that it has ([`Capabilities::chains`](crate::Capabilities::chains)). One without any has no
//! [`ChainNic`](crate::ChainNic), and requests that need a feature that the NIC lacks fail.

use crate::{CqId, QpId, Rkey, WindowBinding};

bitflags::bitflags! {
    /// Features for chains that a NIC has.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct ChainFeatures: u8 {
        /// [`ChainVerb::Nop`].
        const NOP = 1;
        /// [`ChainVerb::Wait`].
        const WAIT = 1 << 1;
        /// [`ChainVerb::Enable`], and send queues that wait for it.
        const ENABLE = 1 << 2;
        /// [`ChainVerb::EnableReceive`], and receive queues that wait for it.
        const ENABLE_RECEIVE = 1 << 3;
        /// [`ChainNic::create_counting_cq`](crate::ChainNic::create_counting_cq).
        const COUNTING = 1 << 4;
        /// [`ChainNic::register_queue_memory`](crate::ChainNic::register_queue_memory).
        const QUEUE_MEMORY = 1 << 5;
        /// [`ChainVerb::BindWindow`] and [`ChainVerb::LocalInvalidate`].
        const BIND_FOR_OTHERS = 1 << 6;
    }
}

/// The layout of a request in its entry of a managed queue, on a NIC with [`ChainFeatures::QUEUE_MEMORY`]. Offsets are
/// in bytes.
pub mod entry {
    /// Bytes of an entry.
    pub const BYTES: u64 = 64;
    /// The operation, its flags, and the key of the local span. Zero in the first two bytes is a NOP that is not signalled.
    pub const OPERATION: u64 = 0;
    /// The local address.
    pub const LOCAL_ADDRESS: u64 = 8;
    /// The key that a request shows, for its remote span or its window: four bytes.
    pub const RKEY: u64 = 20;
    /// The remote address.
    pub const REMOTE_ADDRESS: u64 = 24;
    /// A value to add or compare, a threshold, or a limit.
    pub const VALUE: u64 = 32;
    /// Leading bytes of a BIND_MW that do not include its region and its queue pair.
    pub const BIND_BYTES: u64 = 40;
    /// Leading bytes of a LOCAL_INV that do not include its queue pair.
    pub const INVALIDATE_BYTES: u64 = 24;
    /// Leading bytes of a READ or WRITE, which are the whole request.
    pub const TRANSFER_BYTES: u64 = 32;
}

/// The features of a queue pair beyond verbs. Without any of them, it is an ordinary queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ChainRole {
    /// Whether its send queue is managed: the NIC executes request number n, counted from zero over all laps of the
    /// ring, once a [`ChainVerb::Enable`] has set the queue's limit above n. Entries stay after their execution, and
    /// are executed again in the next lap, with the contents that they have then.
    pub managed_send: bool,
    /// Whether its receive queue is managed in the same way, by [`ChainVerb::EnableReceive`].
    pub managed_receive: bool,
    /// Whether it may post [`ChainVerb`]s. It is its own peer then, and is connected to no other.
    pub privileged: bool,
}

/// A request of a chain. On a queue pair without [`ChainRole::privileged`] it fails
/// ([`Status::LocalQpOperationError`](crate::Status::LocalQpOperationError)).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ChainVerb {
    /// Does nothing.
    Nop,
    /// Completes when a counting completion queue has reached a threshold: when `(count - threshold) mod 2^32 < 2^31`.
    /// The requests behind it wait. A waiting request costs nothing. It fails if the completion queue is destroyed.
    Wait {
        /// The counting completion queue.
        cq: CqId,
        /// The count to wait for.
        threshold: u32,
    },
    /// Sets the limit of a managed send queue. A limit below the present one has no effect.
    Enable {
        /// The queue pair, of any protection domain.
        queue_pair: QpId,
        /// Number of requests that the queue may execute, over all laps.
        limit: u64,
    },
    /// Sets the limit of a managed receive queue. A limit below the present one has no effect.
    EnableReceive {
        /// The queue pair, of any protection domain.
        queue_pair: QpId,
        /// Number of receives that the queue may use, over all laps.
        limit: u64,
    },
    /// Binds a type-2 window to another queue pair, of the same protection domain.
    BindWindow {
        /// The span that the window is to expose.
        binding: WindowBinding,
        /// The queue pair on which the window works from now on.
        queue_pair: QpId,
    },
    /// Frees a type-2 window that is bound to the given queue pair, another than the one that executes this request.
    LocalInvalidate {
        /// The window's present key.
        rkey: Rkey,
        /// The queue pair to which the window is bound.
        queue_pair: QpId,
    },
}
