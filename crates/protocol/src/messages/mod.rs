//! The control messages: the requests that a client SENDs to its node, and the node's replies.
//!
//! Each message is 128 bytes, little-endian, with fields at fixed places; data of `node-copy` follows it. If the second
//! half is zero and nothing follows, only the first half is sent. Several messages travel as one if it has room for them
//! ([`Packing`]). This is a codec, not a transport: the same bytes travel through a software NIC's queues and over real
//! verbs.

mod named;
mod packed;
mod requests;
mod short;
mod wire;

pub use packed::{PACKED_HEAD_BYTES, Packing, RECORDS_MAX, Records, is_packed, messages_in};
pub use requests::{
    Acquire, Allocate, CopyRequest, GrantRequest, NamedRequest, QueuePairRequest, RequestBody,
};
pub use short::{message_in, received_message, sent_part};

use crate::{
    Credential, DirectoryName, Lifetime, Mechanism, ObjectRef, PermissionId, Refusal, RemoteAddress, Rights,
};
use portcullis_errors::{Coded, ErrorCode};

/// Bytes of a control message.
pub const MESSAGE_BYTES: usize = 128;

/// The most data one message of the `node-copy` mechanism carries behind its 128 bytes; longer accesses are split.
pub const DATA_BYTES_MAX: usize = 8192;

/// A client's request. The reply carries the same `sequence`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// A number chosen by the client; the node returns it in the reply.
    pub sequence: u32,
    /// The content of the request.
    pub body: RequestBody,
}

/// A node's answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reply {
    /// The number of the request.
    pub sequence: u32,
    /// The result of the request.
    pub body: ReplyBody,
}

/// The result of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplyBody {
    /// A permission was granted (to `Allocate`, `Acquire` and `AllocateChunk`).
    Granted(Granted),
    /// The new lifetime, from the permission's start (to `Extend`).
    Extended(Lifetime),
    /// The request was carried out (to `Revoke`, `Free`, `Keep`, `Publish`, `Unpublish`, `Share`, `Unshare`, `Include`,
    /// `Recover` and `Write`).
    Done,
    /// An entry of the directory (to `Lookup` and `List`).
    Entry(Entry),
    /// The client can request chunks on these terms (to `JoinChunks`).
    Chunks(ChunkTerms),
    /// There is no further entry (to `List`).
    EndOfList,
    /// This many bytes follow behind the message (to `Read`).
    Data(u64),
    /// The word's value before the operation (to the atomics).
    Value(u64),
    /// The request is refused, for this reason.
    Refused(Refusal),
}

impl Granted {
    /// The address at which the permission's bytes start.
    #[must_use]
    pub fn address(&self) -> RemoteAddress {
        RemoteAddress(self.object.address.0.wrapping_add(self.offset))
    }
}

/// An entry of a tenant's directory, as far as the requesting tenant may see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The name.
    pub name: DirectoryName,
    /// The object with that name.
    pub object: ObjectRef,
    /// The object's size, in bytes.
    pub size: u64,
    /// The rights that the requesting tenant's permissions over the object may have. For its own objects: all rights.
    pub rights: Rights,
}

/// The data that a client needs to request chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkTerms {
    /// The address at which the first chunk of the pool begins.
    pub base: RemoteAddress,
    /// Number of chunks in the pool.
    pub chunks: u64,
    /// Bytes of a chunk.
    pub chunk_bytes: u64,
    /// Number of chunks that the client can hold at a time.
    pub quota: u64,
    /// Number of chunks that the client holds already. A client that requests workers again, after the pool was
    /// rebuilt, may hold some.
    pub held: u64,
    /// The unit that hands the chunks out.
    pub by: HandedOutBy,
}

/// The unit that hands a node's chunks out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum HandedOutBy {
    /// Workers on the node's NIC, to which the client sends short messages: the node's CPU has no part in it (OneSidedMW).
    Nic,
    /// The node's CPU, to which the client sends control messages: the NIC has no chains. The keys are those of any
    /// permission, and give other clients of the tenant the same access as those.
    Cpu,
}

/// The way in which a request names an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ObjectName {
    /// This object and no other, for ever.
    Reference(ObjectRef),
    /// The tenant's object that starts at this address now.
    Address(RemoteAddress),
}

impl From<ObjectRef> for ObjectName {
    fn from(reference: ObjectRef) -> Self {
        Self::Reference(reference)
    }
}

impl ObjectName {
    /// The object's address, even if the object has ended.
    #[must_use]
    pub fn address(self) -> RemoteAddress {
        match self {
            Self::Reference(reference) => reference.address,
            Self::Address(address) => address,
        }
    }

    /// The refusal of a request whose name matches no existing object.
    #[must_use]
    pub fn missing(self) -> Refusal {
        match self {
            Self::Reference(_) => Refusal::Gone,
            Self::Address(_) => Refusal::NoSuchObject,
        }
    }
}

/// A range of an object's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// The offset of the range in the object.
    pub offset: u64,
    /// The number of bytes; zero: all bytes from the offset to the object's end.
    pub length: u64,
}

impl Part {
    /// The whole object.
    pub const WHOLE: Self = Self { offset: 0, length: 0 };
}

/// A permission as its holder gets it: the paper's `Perm` (Patronus §5.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Granted {
    /// The permission's id.
    pub permission: PermissionId,
    /// The object that the permission is over.
    pub object: ObjectRef,
    /// The offset of the permission's bytes in the object.
    pub offset: u64,
    /// The number of bytes that the permission covers.
    pub length: u64,
    /// The permission's lifetime, from its start.
    pub lifetime: Lifetime,
    /// The time that the request waited on the node before the permission started. The holder's clock may count from
    /// that much after the request was sent.
    pub waited: Lifetime,
    /// The longest lifetime that the permission can have, extensions included.
    pub longest: Lifetime,
    /// The credential that the permission's holder shows with each access.
    pub credential: Credential,
    /// The mechanism that enforces the permission.
    pub mechanism: Mechanism,
}

/// The bytes are not a message of this protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{what} in byte {at} of a control message means nothing")]
pub struct MalformedMessage {
    /// The unexpected value.
    pub what: u8,
    /// The offset of that value in the message.
    pub at: usize,
}

impl Coded for MalformedMessage {
    fn code(&self) -> ErrorCode {
        ErrorCode::MalformedMessage
    }
}

#[cfg(test)]
mod tests;
