//! The control messages: what a client SENDs to its node, and the node's replies.
//!
//! Each message is 128 bytes, little-endian, with fields at fixed places; data of `node-copy` follows it. Where the second
//! half is zero and nothing follows, only the first half is sent. This is a codec, not a transport: the same bytes travel
//! through a software NIC's queues and over real verbs.

mod named;
mod short;
mod wire;

pub use short::{message_in, received_message, sent_part};

use crate::{
    Credential, DirectoryName, Holders, Keep, Lifetime, Mechanism, ObjectRef, PermissionId, Refusal,
    RemoteAddress, Rights, Sharing, TenantName,
};
use portcullis_errors::{Coded, ErrorCode};

/// Bytes of a control message.
pub const MESSAGE_BYTES: usize = 128;

/// The most data one message of the `node-copy` mechanism carries behind its 128 bytes; longer accesses are split.
pub const DATA_BYTES_MAX: usize = 8192;

/// A client's request. `sequence` comes back in the reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Chosen by the client, echoed by the node.
    pub sequence: u32,
    /// What is asked for.
    pub body: RequestBody,
}

/// What a client asks of its node (Patronus §5.1, Table 2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestBody {
    /// Memory, and a permission over it.
    Allocate {
        /// Bytes.
        size: u64,
        /// The object's address is to be a multiple of this: a power of two. Zero and one ask for nothing.
        alignment: u64,
        /// How long the permission lives, from its grant.
        lifetime: Lifetime,
        /// What the permission allows.
        rights: Rights,
        /// Whether others may hold a permission at the same time.
        sharing: Sharing,
        /// How long the object is kept.
        keep: Keep,
    },
    /// A permission over an object that exists, or over a part of it.
    Acquire {
        /// Which object.
        object: ObjectName,
        /// Which bytes of it.
        part: Part,
        /// How long the permission lives, from its grant.
        lifetime: Lifetime,
        /// What the permission allows.
        rights: Rights,
        /// Whether others may hold a permission at the same time.
        sharing: Sharing,
        /// How long the request may wait for conflicting holders.
        wait: Lifetime,
    },
    /// A longer life for a permission, by message: the naive way of Patronus §5.3.
    Extend {
        /// Which permission.
        permission: PermissionId,
        /// Its new lifetime, from its start.
        lifetime: Lifetime,
    },
    /// The end of a permission.
    Revoke {
        /// Which permission.
        permission: PermissionId,
        /// Frees the object as well, as [`Free`](Self::Free) with [`Holders::Stay`] does. Does nothing to an object of
        /// another tenant.
        free: bool,
    },
    /// The end of an object, and of its members: from the answer on nothing of them is granted to anybody. The memory goes
    /// with the last permission.
    Free {
        /// Which object. One that was freed and is still there may be named again.
        object: ObjectName,
        /// What becomes of the permissions over it.
        holders: Holders,
    },
    /// Another time for which an object is kept. Without one, the object goes once its last permission has ended.
    Keep {
        /// Which object.
        object: ObjectName,
        /// How long it is kept from here on.
        keep: Keep,
    },
    /// A name for an object, in the directory of its tenant.
    Publish {
        /// The name, which no other object of the tenant has.
        name: DirectoryName,
        /// Which object: one of the tenant's own, without a name.
        object: ObjectRef,
    },
    /// The end of a name, and of what other tenants hold of its object.
    Unpublish {
        /// Which name.
        name: DirectoryName,
    },
    /// The object with a name.
    Lookup {
        /// The tenant that the object belongs to. `None`: the client's own.
        owner: Option<TenantName>,
        /// The name.
        name: DirectoryName,
    },
    /// The next object in the order of names.
    List {
        /// The tenant whose names are asked for. `None`: the client's own.
        owner: Option<TenantName>,
        /// The name before it. `None`: the first is asked for.
        after: Option<DirectoryName>,
    },
    /// Lets another tenant acquire permissions over a named object of the client's tenant.
    Share {
        /// The object's name.
        name: DirectoryName,
        /// The other tenant. It need not be attached.
        tenant: TenantName,
        /// The most that the other tenant's permissions may allow.
        rights: Rights,
    },
    /// Takes that back. The other tenant's permissions over the object end.
    Unshare {
        /// The object's name.
        name: DirectoryName,
        /// The other tenant.
        tenant: TenantName,
    },
    /// Has an object belong to another one, its head. Whatever the head is shared with may have the same rights over it.
    Include {
        /// The new member: one of the tenant's own objects, without a name, a head or members.
        member: ObjectRef,
        /// The head: one of the tenant's own objects, which is no member.
        head: ObjectRef,
    },
    /// Has the node make workers that allocate and free chunks for the client (OneSidedMW), or learns that it makes none:
    /// its CPU hands them out.
    JoinChunks,
    /// Allocates a chunk, where the node's CPU hands them out: an exclusive permission over zeros, without a deadline. It is
    /// freed by `Revoke`.
    AllocateChunk,
    /// Rebuilds a queue pair that went to ERR. The client has taken all completions off it.
    Recover {
        /// Its number among the client's data queue pairs.
        queue_pair: u32,
    },
    /// `node-copy` mechanism: bytes from the node.
    Read {
        /// The permission that covers them.
        permission: PermissionId,
        /// Where in the permission's buffer.
        offset: u64,
        /// How many, at most [`DATA_BYTES_MAX`].
        length: u64,
    },
    /// `node-copy` mechanism: the bytes behind this message go to the node.
    Write {
        /// The permission that covers them.
        permission: PermissionId,
        /// Where in the permission's buffer.
        offset: u64,
        /// How many, at most [`DATA_BYTES_MAX`].
        length: u64,
    },
    /// `node-copy` mechanism: compare and swap of an aligned 8-byte word.
    CompareAndSwap {
        /// The permission that covers it.
        permission: PermissionId,
        /// Where in the permission's buffer.
        offset: u64,
        /// The value that must be there.
        compare: u64,
        /// The value to put there.
        swap: u64,
    },
    /// `node-copy` mechanism: fetch and add on an aligned 8-byte word.
    FetchAndAdd {
        /// The permission that covers it.
        permission: PermissionId,
        /// Where in the permission's buffer.
        offset: u64,
        /// What to add, wrapping.
        add: u64,
    },
}

/// A node's answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reply {
    /// The number of the request.
    pub sequence: u32,
    /// What came of it.
    pub body: ReplyBody,
}

/// What came of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplyBody {
    /// A permission (to `Allocate`, `Acquire` and `AllocateChunk`).
    Granted(Granted),
    /// The new lifetime, from the permission's start (to `Extend`).
    Extended(Lifetime),
    /// Done (to `Revoke`, `Free`, `Keep`, `Publish`, `Unpublish`, `Share`, `Unshare`, `Include`, `Recover` and `Write`).
    Done,
    /// An entry of the directory (to `Lookup` and `List`).
    Entry(Entry),
    /// The workers are there (to `JoinChunks`).
    Chunks(ChunkTerms),
    /// There is no further entry (to `List`).
    EndOfList,
    /// This many bytes follow behind the message (to `Read`).
    Data(u64),
    /// The word's value before the operation (to the atomics).
    Value(u64),
    /// Refused, and why.
    Refused(Refusal),
}

impl Granted {
    /// Where the permission's bytes start.
    #[must_use]
    pub fn address(&self) -> RemoteAddress {
        RemoteAddress(self.object.address.0.wrapping_add(self.offset))
    }
}

/// An entry of a tenant's directory, as far as the asking tenant may see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The name.
    pub name: DirectoryName,
    /// The object with that name.
    pub object: ObjectRef,
    /// The object's size, in bytes.
    pub size: u64,
    /// What the asking tenant's permissions over the object may allow. Of its own objects: everything.
    pub rights: Rights,
}

/// What a client has to know to ask for chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkTerms {
    /// Where the first chunk of the pool begins.
    pub base: RemoteAddress,
    /// How many chunks the pool has.
    pub chunks: u64,
    /// Bytes of a chunk.
    pub chunk_bytes: u64,
    /// How many chunks the client can hold at a time.
    pub quota: u64,
    /// How many it holds already: it asks for workers again after the pool was rebuilt.
    pub held: u64,
    /// Whom it asks for them.
    pub by: HandedOutBy,
}

/// Who hands a node's chunks out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum HandedOutBy {
    /// Workers on the node's NIC, which the client asks by short messages: the node's CPU has no part in it (OneSidedMW).
    Nic,
    /// The node's CPU, which the client asks by control messages: the NIC has no chains. The keys are those of any
    /// permission, and so is what they open to others of the tenant.
    Cpu,
}

/// How a request names an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ObjectName {
    /// This object and no other, ever.
    Reference(ObjectRef),
    /// The object of the tenant that starts here now.
    Address(RemoteAddress),
}

impl From<ObjectRef> for ObjectName {
    fn from(reference: ObjectRef) -> Self {
        Self::Reference(reference)
    }
}

impl ObjectName {
    /// The object's address, also if the object is gone.
    #[must_use]
    pub fn address(self) -> RemoteAddress {
        match self {
            Self::Reference(reference) => reference.address,
            Self::Address(address) => address,
        }
    }

    /// The refusal of a request that names no object which is there.
    #[must_use]
    pub fn missing(self) -> Refusal {
        match self {
            Self::Reference(_) => Refusal::Gone,
            Self::Address(_) => Refusal::NoSuchObject,
        }
    }
}

/// Some of an object's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// Where in the object they start.
    pub offset: u64,
    /// How many; zero: all from there to the object's end.
    pub length: u64,
}

impl Part {
    /// All of the object.
    pub const WHOLE: Self = Self { offset: 0, length: 0 };
}

/// A permission as its holder gets it: the paper's `Perm` (Patronus §5.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Granted {
    /// Its id.
    pub permission: PermissionId,
    /// The object that it is over.
    pub object: ObjectRef,
    /// Where in the object the permission's bytes start.
    pub offset: u64,
    /// How many bytes it covers.
    pub length: u64,
    /// How long it lives, from its start.
    pub lifetime: Lifetime,
    /// How long the request waited on the node before the permission started. The holder's clock may count from that
    /// much after the request was sent.
    pub waited: Lifetime,
    /// The longest that it can live, extensions included.
    pub longest: Lifetime,
    /// What its holder shows with each access.
    pub credential: Credential,
    /// What enforces it.
    pub mechanism: Mechanism,
}

/// The bytes are not a message of this protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{what} in byte {at} of a control message means nothing")]
pub struct MalformedMessage {
    /// What was found there.
    pub what: u8,
    /// Where in the message.
    pub at: usize,
}

impl Coded for MalformedMessage {
    fn code(&self) -> ErrorCode {
        ErrorCode::MalformedMessage
    }
}

#[cfg(test)]
mod tests;
