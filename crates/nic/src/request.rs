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
    /// The number of bytes.
    pub length: u32,
    /// The region.
    pub lkey: Lkey,
}

/// The remote bytes of a one-sided request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RemoteSpan {
    /// The first byte.
    pub address: RemoteAddress,
    /// The key that the request shows.
    pub rkey: Rkey,
}

/// A bind: the bytes that a window is to expose, and the accesses that it is to allow.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WindowBinding {
    /// The window.
    pub window: WindowId,
    /// The window's key from now on. The index stays; the caller advances the low byte ([`Rkey::advanced`]).
    pub rkey: Rkey,
    /// The region that the window lies over.
    pub region: RegionId,
    /// The first byte.
    pub address: RemoteAddress,
    /// The number of bytes. Zero unbinds a window of type 1.
    pub length: u64,
    /// The accesses that peers may make: flags of [`Access::REMOTE`].
    pub access: Access,
}

/// The operation of a work request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Operation {
    /// Sends a message to the peer's next receive.
    Send {
        /// The message.
        local: LocalSpan,
    },
    /// Sends a message as `Send` does; the peer's NIC also invalidates a type-2 window of its own.
    SendWithInvalidate {
        /// The message.
        local: LocalSpan,
        /// The peer's window.
        rkey: Rkey,
    },
    /// Reads remote bytes into local memory.
    Read {
        /// The local bytes, which are written.
        local: LocalSpan,
        /// The remote bytes, which are read.
        remote: RemoteSpan,
    },
    /// Writes local bytes to remote memory.
    Write {
        /// The local bytes, which are read.
        local: LocalSpan,
        /// The remote bytes, which are written.
        remote: RemoteSpan,
    },
    /// Stores `swap` in the remote word if it holds `compare`. The word's old value goes to the local 8 bytes.
    CompareAndSwap {
        /// 8 bytes.
        local: LocalSpan,
        /// 8 bytes, aligned.
        remote: RemoteSpan,
        /// The value that the word must have.
        compare: u64,
        /// The value to store.
        swap: u64,
    },
    /// Adds `add` to the remote word, wrapping. The word's old value goes to the local 8 bytes.
    FetchAndAdd {
        /// 8 bytes.
        local: LocalSpan,
        /// 8 bytes, aligned.
        remote: RemoteSpan,
        /// The number to add.
        add: u64,
    },
    /// Binds a window of this NIC.
    BindWindow(WindowBinding),
    /// Frees a type-2 window of this NIC.
    LocalInvalidate {
        /// The window's present key.
        rkey: Rkey,
    },
    /// Executes a request of a chain.
    Chain(ChainVerb),
}

/// A request for a send queue. Requests of one queue are executed in order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WorkRequest {
    /// The caller's number for the request, which the completion carries.
    pub id: u64,
    /// Whether a success produces a completion too. A failure always does.
    pub signalled: bool,
    /// The operation.
    pub operation: Operation,
}

/// A request for a receive queue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ReceiveRequest {
    /// The caller's number for the request, which the completion carries.
    pub id: u64,
    /// The buffer for the message.
    pub local: LocalSpan,
}

/// An encrypted operation without a queue pair, on a region of the node (1RMA).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OneShotRequest {
    /// The poster's number for the operation, which the completion carries.
    pub id: u64,
    /// The region.
    pub region: RegionName,
    /// The poster's key for the region.
    pub key: HolderKey,
    /// The first byte at the node.
    pub address: RemoteAddress,
    /// The bytes at this end. An atomic stores the word's old value here, as a native word.
    pub local: LocalSpan,
    /// The operation.
    pub verb: OneShotVerb,
}

/// The action of an operation without a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OneShotVerb {
    /// Reads bytes.
    Read,
    /// Writes bytes.
    Write {
        /// Whether the bytes may be written again if no answer arrives. If another client can write there, a repeated
        /// write could overwrite that client's later bytes.
        may_repeat: bool,
    },
    /// Compares and swaps an aligned word.
    CompareAndSwap {
        /// The value that the word must have.
        compare: u64,
        /// The value to store.
        swap: u64,
    },
    /// Adds to an aligned word, wrapping.
    FetchAndAdd {
        /// The number to add.
        add: u64,
    },
}
