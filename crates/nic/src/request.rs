//! Work requests.

use crate::{Access, ChainVerb, RegionId, WindowId};
use portcullis_protocol::{HolderKey, RegionName, RemoteAddress, Rkey};

/// A local key: names a region in the spans of a work request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Lkey(pub u32);

/// Local bytes of a work request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct LocalSpan {
    /// The first byte, as the region was registered.
    pub address: u64,
    /// How many.
    pub length: u32,
    /// The region.
    pub lkey: Lkey,
}

/// Where a one-sided request goes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RemoteSpan {
    /// The first byte.
    pub address: RemoteAddress,
    /// The key that the request shows.
    pub rkey: Rkey,
}

/// A bind: what a window is to expose.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WindowBinding {
    /// The window.
    pub window: WindowId,
    /// Its key from now on. The index stays; the caller advances the low byte ([`Rkey::advanced`]).
    pub rkey: Rkey,
    /// The region that it lies over.
    pub region: RegionId,
    /// The first byte.
    pub address: RemoteAddress,
    /// How many. Zero unbinds a window of type 1.
    pub length: u64,
    /// What peers may do, of [`Access::REMOTE`].
    pub access: Access,
}

/// What a work request does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Operation {
    /// A message to the peer's next receive.
    Send {
        /// The message.
        local: LocalSpan,
    },
    /// The same, and the peer's NIC invalidates a type-2 window of its own.
    SendWithInvalidate {
        /// The message.
        local: LocalSpan,
        /// The peer's window.
        rkey: Rkey,
    },
    /// Remote bytes to local.
    Read {
        /// Where they go.
        local: LocalSpan,
        /// Where they come from.
        remote: RemoteSpan,
    },
    /// Local bytes to remote.
    Write {
        /// Where they come from.
        local: LocalSpan,
        /// Where they go.
        remote: RemoteSpan,
    },
    /// Stores `swap` in the remote word if it holds `compare`. Its value before goes to the local 8 bytes.
    CompareAndSwap {
        /// 8 bytes.
        local: LocalSpan,
        /// 8 bytes, aligned.
        remote: RemoteSpan,
        /// What must be there.
        compare: u64,
        /// What goes there.
        swap: u64,
    },
    /// Adds `add` to the remote word, wrapping. Its value before goes to the local 8 bytes.
    FetchAndAdd {
        /// 8 bytes.
        local: LocalSpan,
        /// 8 bytes, aligned.
        remote: RemoteSpan,
        /// What is added.
        add: u64,
    },
    /// Binds a window of this NIC.
    BindWindow(WindowBinding),
    /// Frees a type-2 window of this NIC.
    LocalInvalidate {
        /// The window's present key.
        rkey: Rkey,
    },
    /// A request of a chain.
    Chain(ChainVerb),
}

/// A request for a send queue. Requests of one queue are executed in order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WorkRequest {
    /// Comes back in the completion.
    pub id: u64,
    /// Whether success is completed too. Failure always is.
    pub signalled: bool,
    /// What to do.
    pub operation: Operation,
}

/// A request for a receive queue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ReceiveRequest {
    /// Comes back in the completion.
    pub id: u64,
    /// Where the message goes.
    pub local: LocalSpan,
}

/// An encrypted operation without a queue pair, on a region of the node (1RMA).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OneShotRequest {
    /// The poster's number for it, which its completion carries.
    pub id: u64,
    /// The region.
    pub region: RegionName,
    /// The poster's key for the region.
    pub key: HolderKey,
    /// The first byte at the node.
    pub address: RemoteAddress,
    /// The bytes at this end. An atomic stores here, as a native word, what was there before.
    pub local: LocalSpan,
    /// What is to be done.
    pub verb: OneShotVerb,
}

/// What an operation without a queue pair does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OneShotVerb {
    /// Reads.
    Read,
    /// Writes.
    Write {
        /// Whether bytes may be written again if no answer comes. Otherwise somebody else's later bytes could be overwritten.
        may_repeat: bool,
    },
    /// Compares and swaps an aligned word.
    CompareAndSwap {
        /// What has to be there.
        compare: u64,
        /// What is to be there then.
        swap: u64,
    },
    /// Adds to an aligned word, wrapping.
    FetchAndAdd {
        /// How much.
        add: u64,
    },
}
