//! What a chain needs of a NIC beyond verbs: requests that wait for others, and that let others run.
//!
//! A chain is a program of work requests that trigger and patch each other on the NIC (RedN; OneSidedMW, «Quick Recap on
//! RNIC Offloading»). It is the node's: a client triggers a chain by a message, and neither posts nor writes any of its
//! requests. So all of this needs a queue pair that its owner has made for chains ([`ChainRole::privileged`]).
//!
//! A NIC says which of it it has ([`Capabilities::chains`](crate::Capabilities::chains)). Calls for what it does not have
//! are refused ([`VerbsError::Unsupported`](crate::VerbsError::Unsupported)), and such requests fail.

use crate::{CqId, QpId, Rkey, WindowBinding};

bitflags::bitflags! {
    /// Parts of the vocabulary of chains that a NIC has.
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
        /// [`Nic::create_counting_cq`](crate::Nic::create_counting_cq).
        const COUNTING = 1 << 4;
        /// [`Nic::register_queue_memory`](crate::Nic::register_queue_memory).
        const QUEUE_MEMORY = 1 << 5;
        /// [`ChainVerb::BindWindow`] and [`ChainVerb::LocalInvalidate`].
        const BIND_FOR_OTHERS = 1 << 6;
    }
}

/// Where the parts of a request stand in its entry of a managed queue: the layout of a NIC with
/// [`ChainFeatures::QUEUE_MEMORY`]. Offsets in bytes.
pub mod entry {
    /// Bytes of an entry.
    pub const BYTES: u64 = 64;
    /// The operation, its flags, and the key of the local span. Zero in the first two bytes is a NOP that is not signalled.
    pub const OPERATION: u64 = 0;
    /// The local address.
    pub const LOCAL_ADDRESS: u64 = 8;
    /// The key that a request shows, of its remote span or its window: four bytes.
    pub const RKEY: u64 = 20;
    /// The remote address.
    pub const REMOTE_ADDRESS: u64 = 24;
    /// A value to add or compare, a threshold, or a limit.
    pub const VALUE: u64 = 32;
    /// The first bytes of a BIND_MW, without its region and the queue pair that it is for.
    pub const BIND_BYTES: u64 = 40;
    /// The first bytes of a LOCAL_INV, without the queue pair that it is for.
    pub const INVALIDATE_BYTES: u64 = 24;
    /// The first bytes of a READ or WRITE, which are all of it.
    pub const TRANSFER_BYTES: u64 = 32;
}

/// What a queue pair is beyond verbs. Without any of it, it is an ordinary one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ChainRole {
    /// Its send queue is managed: the NIC executes request number n, counted from zero over all laps of the ring, when a
    /// [`ChainVerb::Enable`] has set the queue's limit above n. Entries stay after their execution, and are executed
    /// again in the next lap, as they are then.
    pub managed_send: bool,
    /// Its receive queue is managed in the same way, by [`ChainVerb::EnableReceive`].
    pub managed_receive: bool,
    /// It may post [`ChainVerb`]s. It is its own peer, and is connected to no other.
    pub privileged: bool,
}

/// A request of a chain. On a queue pair without the privilege it fails
/// ([`Status::LocalQpOperationError`](crate::Status::LocalQpOperationError)).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ChainVerb {
    /// Does nothing.
    Nop,
    /// Is done when a counting completion queue has reached a threshold: when `(count - threshold) mod 2^32 < 2^31`. The
    /// requests behind it wait. It costs nothing while it waits, and fails when the completion queue goes.
    Wait {
        /// The counting completion queue.
        cq: CqId,
        /// The count that it waits for.
        threshold: u32,
    },
    /// Sets the limit of a managed send queue. A limit below the present one changes nothing.
    Enable {
        /// The queue pair, of any protection domain.
        queue_pair: QpId,
        /// How many requests it may execute, over all laps.
        limit: u64,
    },
    /// Sets the limit of a managed receive queue. A limit below the present one changes nothing.
    EnableReceive {
        /// The queue pair, of any protection domain.
        queue_pair: QpId,
        /// How many receives it may use, over all laps.
        limit: u64,
    },
    /// Binds a type-2 window to another queue pair, of the same protection domain.
    BindWindow {
        /// What the window is to expose.
        binding: WindowBinding,
        /// The queue pair on which the window works from now on.
        queue_pair: QpId,
    },
    /// Frees a type-2 window that is bound to another queue pair, and to no other than that.
    LocalInvalidate {
        /// The window's present key.
        rkey: Rkey,
        /// The queue pair.
        queue_pair: QpId,
    },
}
