//! The data that a Portcullis node and its clients exchange: ids, rights, the permission header in remote memory, the
//! control messages and the errors.
//!
//! This crate has only types, layouts and codecs: it reads no clock, uses no socket and allocates no shared memory. A
//! peer's bytes become a value of one of its types, or an error, in exactly one place ([`Request::decode`],
//! [`Reply::decode`]). Code behind that place never sees unchecked bytes.
#![forbid(unsafe_code)]

mod credential;
mod header;
mod holders;
mod ids;
mod keep;
mod mechanism;
mod messages;
mod names;
mod object_ref;
mod refusal;
mod rights;
mod text;

pub use credential::{
    CHUNK_QUEUE_PAIRS, CREDENTIAL_BYTES, Credential, GROUP_QUEUE_PAIRS_MAX, GROUP_WORD_QUEUE_PAIRS_MAX,
    HolderKey, KeyGroup, RegionName, SealedPacket, WordKeys,
};
pub use header::{Header, LIFETIME_OFFSET, LengthTooLarge};
pub use holders::Holders;
pub use ids::{ClientId, Incarnation, Lifetime, Moment, PermissionId, RemoteAddress, Rkey, TenantId};
pub use keep::Keep;
pub use mechanism::{Mechanism, UnknownMechanism};
pub use messages::{
    Acquire, Allocate, ChunkTerms, CopyRequest, DATA_BYTES_MAX, Entry, GrantRequest, Granted, HandedOutBy,
    MESSAGE_BYTES, MalformedMessage, NamedRequest, ObjectName, PACKED_HEAD_BYTES, Packing, Part,
    QueuePairRequest, RECORDS_MAX, Records, Reply, ReplyBody, Request, RequestBody, is_packed, message_in,
    messages_in, received_message, sent_part,
};
pub use names::{BadName, DirectoryName, Named, TenantName};
pub use object_ref::{ObjectRef, UnknownObjectRef};
pub use refusal::Refusal;
pub use rights::{Rights, Sharing, UnknownRights, UnknownSharing};
pub use text::{NoLifetime, UnknownIncarnation};
