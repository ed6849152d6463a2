//! The layout of control messages, except for those with a name. Only this module and `named` turn a peer's bytes into
//! values.

use super::{
    Acquire, Allocate, ChunkTerms, CopyRequest, GrantRequest, Granted, HandedOutBy, MESSAGE_BYTES,
    MalformedMessage, ObjectName, Part, QueuePairRequest, Reply, ReplyBody, Request, RequestBody,
};
use crate::{
    CREDENTIAL_BYTES, Credential, GROUP_QUEUE_PAIRS_MAX, HolderKey, Holders, Incarnation, Keep, KeyGroup,
    Lifetime, Mechanism, Moment, ObjectRef, PermissionId, Refusal, RegionName, RemoteAddress, Rights, Rkey,
    Sharing, WordKeys,
};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The layout of both directions. The meaning of a field depends on `kind`.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Wire {
    kind: u8,
    rights: u8,
    flags: u8,
    detail: u8,
    sequence: U32,
    address: U64,
    start: U64,
    length: U64,
    lifetime: U64,
    first: U64,
    /// The incarnation of the node, and below it the object's birth. Used in a message that names an object.
    incarnation: U64,
    birth: U64,
    // The most frequent requests are complete up to here: the other half is not sent if it is zero.
    second: U64,
    /// The time that the request waited, in µs. Used in a grant.
    waited: U32,
    /// The longest lifetime, in µs. Used in a grant.
    longest: U32,
    /// The offset of a part in its object.
    offset: U64,
    /// The alignment, in an allocation. The region's place and generation, in a grant with a region key.
    alignment: U64,
    /// The credential, in a grant. Its meaning depends on `kind`.
    credential: [U64; CREDENTIAL_BYTES / 8],
}

const _: () = assert!(size_of::<Wire>() == MESSAGE_BYTES);

const FLAG_SHARED: u8 = 1;
/// The object is named only by its address.
const FLAG_ADDRESS: u8 = 2;
/// Position of the two bits for the time that an object is kept.
const KEEP_SHIFT: u32 = 2;
const KEEP_BITS: u8 = 3 << KEEP_SHIFT;
/// Position of the two bits for the treatment of the permissions over a freed object.
const HOLDERS_SHIFT: u32 = 4;
const HOLDERS_BITS: u8 = 3 << HOLDERS_SHIFT;

pub(super) mod kind {
    pub const ALLOCATE: u8 = 1;
    pub const ACQUIRE: u8 = 2;
    pub const EXTEND: u8 = 3;
    pub const REVOKE: u8 = 4;
    pub const FREE: u8 = 5;
    pub const RECOVER: u8 = 6;
    pub const READ: u8 = 7;
    pub const WRITE: u8 = 8;
    pub const COMPARE_AND_SWAP: u8 = 9;
    pub const FETCH_AND_ADD: u8 = 10;
    pub const KEEP: u8 = 11;
    pub const PUBLISH: u8 = 12;
    pub const UNPUBLISH: u8 = 13;
    pub const LOOKUP: u8 = 14;
    pub const LIST: u8 = 15;
    pub const SHARE: u8 = 16;
    pub const UNSHARE: u8 = 17;
    pub const INCLUDE: u8 = 18;
    pub const JOIN_CHUNKS: u8 = 19;
    pub const ALLOCATE_CHUNK: u8 = 20;
    /// A packed message, in both directions.
    pub const PACKED: u8 = 128;
    pub const GRANTED_KEYS: u8 = 129;
    pub const GRANTED_NODE: u8 = 130;
    pub const GRANTED_GROUP: u8 = 139;
    pub const GRANTED_REGION_KEY: u8 = 140;
    pub const EXTENDED: u8 = 131;
    pub const DONE: u8 = 132;
    pub const DATA: u8 = 133;
    pub const VALUE: u8 = 134;
    pub const REFUSED: u8 = 135;
    pub const ENTRY: u8 = 136;
    pub const END_OF_LIST: u8 = 137;
    pub const CHUNKS: u8 = 138;
}

impl Wire {
    fn new(kind: u8, sequence: u32) -> Self {
        Self {
            kind,
            rights: 0,
            flags: 0,
            detail: 0,
            sequence: U32::new(sequence),
            address: U64::ZERO,
            start: U64::ZERO,
            length: U64::ZERO,
            lifetime: U64::ZERO,
            first: U64::ZERO,
            incarnation: U64::ZERO,
            birth: U64::ZERO,
            second: U64::ZERO,
            waited: U32::ZERO,
            longest: U32::ZERO,
            offset: U64::ZERO,
            alignment: U64::ZERO,
            credential: [U64::ZERO; CREDENTIAL_BYTES / 8],
        }
    }

    fn with_length(mut self, length: u64) -> Self {
        self.length = U64::new(length);
        self
    }

    fn with_permission(mut self, permission: PermissionId) -> Self {
        self.address = U64::new(permission.header.0);
        self.start = U64::new(permission.start.0);
        self
    }

    fn with_access(mut self, rights: Rights, sharing: Sharing) -> Self {
        self.rights = rights.bits();
        self.flags |= match sharing {
            Sharing::Exclusive => 0,
            Sharing::Shared => FLAG_SHARED,
        };
        self
    }

    fn with_keep(mut self, keep: Keep) -> Self {
        let (kind, time) = match keep {
            Keep::No => (0, 0),
            Keep::Attached => (1, 0),
            Keep::For(time) => (2, time.0),
            Keep::Pinned => (3, 0),
        };
        self.flags |= kind << KEEP_SHIFT;
        self.first = U64::new(time);
        self
    }

    fn keep(&self) -> Keep {
        match (self.flags & KEEP_BITS) >> KEEP_SHIFT {
            0 => Keep::No,
            1 => Keep::Attached,
            2 => Keep::For(Lifetime(self.first.get())),
            _ => Keep::Pinned,
        }
    }

    fn with_holders(mut self, holders: Holders) -> Self {
        let kind = match holders {
            Holders::Stay => 0,
            Holders::End => 1,
            Holders::Await => 2,
        };
        self.flags |= kind << HOLDERS_SHIFT;
        self
    }

    fn holders(&self) -> Result<Holders, MalformedMessage> {
        match (self.flags & HOLDERS_BITS) >> HOLDERS_SHIFT {
            0 => Ok(Holders::Stay),
            1 => Ok(Holders::End),
            2 => Ok(Holders::Await),
            _ => Err(MalformedMessage { what: self.flags, at: 2 }),
        }
    }

    fn with_reference(mut self, reference: ObjectRef) -> Self {
        self.incarnation = U64::new(reference.incarnation.0);
        self.birth = U64::new(reference.birth);
        self
    }

    fn reference(&self, address: RemoteAddress) -> ObjectRef {
        let incarnation = Incarnation(self.incarnation.get());
        ObjectRef { incarnation, address, birth: self.birth.get() }
    }

    fn with_object(mut self, object: ObjectName) -> Self {
        self.address = U64::new(object.address().0);
        match object {
            ObjectName::Reference(reference) => self.with_reference(reference),
            ObjectName::Address(_) => {
                self.flags |= FLAG_ADDRESS;
                self
            }
        }
    }

    fn object(&self) -> ObjectName {
        let address = RemoteAddress(self.address.get());
        if self.flags & FLAG_ADDRESS != 0 {
            ObjectName::Address(address)
        } else {
            ObjectName::Reference(self.reference(address))
        }
    }

    fn with_head(mut self, head: ObjectRef) -> Self {
        self.start = U64::new(head.incarnation.0);
        self.first = U64::new(head.address.0);
        self.second = U64::new(head.birth);
        self
    }

    fn head(&self) -> ObjectRef {
        let (incarnation, address) = (Incarnation(self.start.get()), RemoteAddress(self.first.get()));
        ObjectRef { incarnation, address, birth: self.second.get() }
    }

    /// Refuses flags that this version does not use.
    fn check_flags(&self, known: u8) -> Result<(), MalformedMessage> {
        let unknown = self.flags & !known != 0;
        if unknown { Err(MalformedMessage { what: self.flags, at: 2 }) } else { Ok(()) }
    }

    fn permission(&self) -> PermissionId {
        PermissionId { header: RemoteAddress(self.address.get()), start: Moment(self.start.get()) }
    }

    fn access(&self) -> Result<(Rights, Sharing), MalformedMessage> {
        let rights = Rights::from_bits(self.rights).ok_or(MalformedMessage { what: self.rights, at: 1 })?;
        let shared = self.flags & FLAG_SHARED != 0;
        Ok((rights, if shared { Sharing::Shared } else { Sharing::Exclusive }))
    }
}

impl Request {
    /// Returns the request as bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; MESSAGE_BYTES] {
        let wire = match self.body {
            RequestBody::Grant(request) => request.wire(self.sequence),
            RequestBody::Named(request) => return Self::encode_named(self.sequence, request),
            RequestBody::QueuePair(QueuePairRequest::JoinChunks) => {
                Wire::new(kind::JOIN_CHUNKS, self.sequence)
            }
            RequestBody::QueuePair(QueuePairRequest::Recover { queue_pair }) => {
                Wire::new(kind::RECOVER, self.sequence).with_length(queue_pair.into())
            }
            RequestBody::Copy(access) => access.wire(self.sequence),
        };
        zerocopy::transmute!(wire)
    }

    /// Decodes the request in `bytes`.
    ///
    /// # Errors
    /// A field holds a value that no client of this version writes.
    pub fn decode(bytes: [u8; MESSAGE_BYTES]) -> Result<Self, MalformedMessage> {
        let wire: Wire = zerocopy::transmute!(bytes);
        let permission = wire.permission();
        let offset = wire.lifetime.get();
        let length = wire.length.get();
        let lifetime = Lifetime(wire.lifetime.get());
        let body = match wire.kind {
            kind::ALLOCATE => {
                wire.check_flags(FLAG_SHARED | KEEP_BITS)?;
                let ((rights, sharing), keep) = (wire.access()?, wire.keep());
                let alignment = wire.alignment.get();
                GrantRequest::Allocate(Allocate { size: length, alignment, lifetime, rights, sharing, keep })
                    .into()
            }
            kind::ACQUIRE => {
                wire.check_flags(FLAG_SHARED | FLAG_ADDRESS)?;
                let (rights, sharing) = wire.access()?;
                let (object, wait) = (wire.object(), Lifetime(wire.first.get()));
                let part = Part { offset: wire.offset.get(), length };
                GrantRequest::Acquire(Acquire { object, part, lifetime, rights, sharing, wait }).into()
            }
            kind::EXTEND => GrantRequest::Extend { permission, lifetime }.into(),
            kind::REVOKE => match wire.flags {
                0 | 1 => GrantRequest::Revoke { permission, free: wire.flags == 1 }.into(),
                what => return Err(MalformedMessage { what, at: 2 }),
            },
            kind::FREE => {
                wire.check_flags(FLAG_ADDRESS | HOLDERS_BITS)?;
                GrantRequest::Free { object: wire.object(), holders: wire.holders()? }.into()
            }
            kind::KEEP => {
                wire.check_flags(FLAG_ADDRESS | KEEP_BITS)?;
                GrantRequest::Keep { object: wire.object(), keep: wire.keep() }.into()
            }
            kind::INCLUDE => {
                wire.check_flags(0)?;
                let member = wire.reference(RemoteAddress(wire.address.get()));
                GrantRequest::Include { member, head: wire.head() }.into()
            }
            kind::JOIN_CHUNKS => QueuePairRequest::JoinChunks.into(),
            kind::ALLOCATE_CHUNK => GrantRequest::AllocateChunk.into(),
            kind::RECOVER => QueuePairRequest::Recover {
                queue_pair: u32::try_from(length)
                    .map_err(|_| MalformedMessage { what: wire.length.as_bytes()[7], at: 31 })?,
            }
            .into(),
            kind::READ => CopyRequest::Read { permission, offset, length }.into(),
            kind::WRITE => CopyRequest::Write { permission, offset, length }.into(),
            kind::COMPARE_AND_SWAP => CopyRequest::CompareAndSwap {
                permission,
                offset,
                compare: wire.first.get(),
                swap: wire.second.get(),
            }
            .into(),
            kind::FETCH_AND_ADD => {
                CopyRequest::FetchAndAdd { permission, offset, add: wire.first.get() }.into()
            }
            kind::PUBLISH..=kind::UNSHARE => return Self::decode_named(bytes),
            what => return Err(MalformedMessage { what, at: 0 }),
        };
        Ok(Self { sequence: wire.sequence.get(), body })
    }
}

impl Reply {
    /// Returns the reply as bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; MESSAGE_BYTES] {
        let new = |kind| Wire::new(kind, self.sequence);
        let wire = match self.body {
            ReplyBody::Granted(granted) => granted.wire(self.sequence),
            ReplyBody::Extended(lifetime) => {
                let mut wire = new(kind::EXTENDED);
                wire.lifetime = U64::new(lifetime.0);
                wire
            }
            ReplyBody::Done => new(kind::DONE),
            ReplyBody::Entry(entry) => return Self::encode_entry(self.sequence, &entry),
            ReplyBody::EndOfList => new(kind::END_OF_LIST),
            ReplyBody::Chunks(terms) => {
                let mut wire = new(kind::CHUNKS);
                wire.address = U64::new(terms.base.0);
                wire.length = U64::new(terms.chunk_bytes);
                wire.first = U64::new(terms.chunks);
                wire.second = U64::new(terms.quota);
                wire.start = U64::new(terms.held);
                wire.detail = u8::from(terms.by == HandedOutBy::Cpu);
                wire
            }
            ReplyBody::Data(length) => {
                let mut wire = new(kind::DATA);
                wire.length = U64::new(length);
                wire
            }
            ReplyBody::Value(value) => {
                let mut wire = new(kind::VALUE);
                wire.first = U64::new(value);
                wire
            }
            ReplyBody::Refused(refusal) => {
                let (number, first, second) = refusal.wire();
                let mut wire = new(kind::REFUSED);
                wire.detail = number;
                wire.first = U64::new(first);
                wire.second = U64::new(second);
                wire
            }
        };
        zerocopy::transmute!(wire)
    }

    /// Decodes the reply in `bytes`.
    ///
    /// # Errors
    /// A field holds a value that no node of this version writes.
    pub fn decode(bytes: [u8; MESSAGE_BYTES]) -> Result<Self, MalformedMessage> {
        let wire: Wire = zerocopy::transmute!(bytes);
        let body = match wire.kind {
            kind::GRANTED_KEYS | kind::GRANTED_GROUP | kind::GRANTED_REGION_KEY | kind::GRANTED_NODE => {
                ReplyBody::Granted(Granted::from_wire(&wire)?)
            }
            kind::EXTENDED => ReplyBody::Extended(Lifetime(wire.lifetime.get())),
            kind::DONE => ReplyBody::Done,
            kind::ENTRY => return Self::decode_entry(bytes),
            kind::END_OF_LIST => ReplyBody::EndOfList,
            kind::CHUNKS => ReplyBody::Chunks(ChunkTerms {
                base: RemoteAddress(wire.address.get()),
                chunks: wire.first.get(),
                chunk_bytes: wire.length.get(),
                quota: wire.second.get(),
                held: wire.start.get(),
                by: match wire.detail {
                    0 => HandedOutBy::Nic,
                    1 => HandedOutBy::Cpu,
                    what => return Err(MalformedMessage { what, at: 3 }),
                },
            }),
            kind::DATA => ReplyBody::Data(wire.length.get()),
            kind::VALUE => ReplyBody::Value(wire.first.get()),
            kind::REFUSED => ReplyBody::Refused(
                Refusal::from_wire((wire.detail, wire.first.get(), wire.second.get()))
                    .ok_or(MalformedMessage { what: wire.detail, at: 3 })?,
            ),
            what => return Err(MalformedMessage { what, at: 0 }),
        };
        Ok(Self { sequence: wire.sequence.get(), body })
    }
}

impl GrantRequest {
    fn wire(self, sequence: u32) -> Wire {
        let new = |kind| Wire::new(kind, sequence);
        match self {
            Self::Allocate(Allocate { size, alignment, lifetime, rights, sharing, keep }) => {
                let mut wire = new(kind::ALLOCATE).with_access(rights, sharing).with_keep(keep);
                wire.length = U64::new(size);
                wire.alignment = U64::new(alignment);
                wire.lifetime = U64::new(lifetime.0);
                wire
            }
            Self::AllocateChunk => new(kind::ALLOCATE_CHUNK),
            Self::Acquire(Acquire { object, part, lifetime, rights, sharing, wait }) => {
                let mut wire = new(kind::ACQUIRE).with_access(rights, sharing).with_object(object);
                wire.offset = U64::new(part.offset);
                wire.length = U64::new(part.length);
                wire.lifetime = U64::new(lifetime.0);
                wire.first = U64::new(wait.0);
                wire
            }
            Self::Extend { permission, lifetime } => {
                let mut wire = new(kind::EXTEND).with_permission(permission);
                wire.lifetime = U64::new(lifetime.0);
                wire
            }
            Self::Revoke { permission, free } => {
                let mut wire = new(kind::REVOKE).with_permission(permission);
                wire.flags = u8::from(free);
                wire
            }
            Self::Free { object, holders } => new(kind::FREE).with_object(object).with_holders(holders),
            Self::Include { member, head } => new(kind::INCLUDE).with_object(member.into()).with_head(head),
            Self::Keep { object, keep } => new(kind::KEEP).with_object(object).with_keep(keep),
        }
    }
}

impl CopyRequest {
    fn wire(self, sequence: u32) -> Wire {
        let access = |kind, permission, offset: u64| {
            let mut wire = Wire::new(kind, sequence).with_permission(permission);
            wire.lifetime = U64::new(offset);
            wire
        };
        match self {
            Self::Read { permission, offset, length } => {
                access(kind::READ, permission, offset).with_length(length)
            }
            Self::Write { permission, offset, length } => {
                access(kind::WRITE, permission, offset).with_length(length)
            }
            Self::CompareAndSwap { permission, offset, compare, swap } => {
                let mut wire = access(kind::COMPARE_AND_SWAP, permission, offset);
                wire.first = U64::new(compare);
                wire.second = U64::new(swap);
                wire
            }
            Self::FetchAndAdd { permission, offset, add } => {
                let mut wire = access(kind::FETCH_AND_ADD, permission, offset);
                wire.first = U64::new(add);
                wire
            }
        }
    }
}

impl Granted {
    fn wire(&self, sequence: u32) -> Wire {
        let new =
            |kind| Wire::new(kind, sequence).with_permission(self.permission).with_reference(self.object);
        let with_keys = |kind, keys: [Rkey; GROUP_QUEUE_PAIRS_MAX]| {
            let mut wire = new(kind);
            wire.credential = zerocopy::transmute!(keys.map(|key| U32::new(key.0)));
            wire
        };
        let mut wire = match self.credential {
            Credential::Keys { buffer, lifetime } => {
                let mut keys = [Rkey(0); GROUP_QUEUE_PAIRS_MAX];
                (keys[0], keys[1]) = (buffer, lifetime);
                with_keys(kind::GRANTED_KEYS, keys)
            }
            Credential::Group(group) => {
                let mut wire = with_keys(kind::GRANTED_GROUP, *group.keys());
                wire.second = U64::new(word_byte(group.word()));
                wire
            }
            Credential::RegionKey { region: RegionName { index, generation }, key } => {
                let mut wire = new(kind::GRANTED_REGION_KEY);
                wire.alignment = U64::new(u64::from(generation) << 32 | u64::from(index));
                wire.credential = zerocopy::transmute!(key.0);
                wire
            }
            // The worker that binds a chunk's windows sends the chunk's keys, never the node's CPU.
            Credential::Chunk(_) | Credential::Node => new(kind::GRANTED_NODE),
        };
        wire.detail = self.mechanism.wire();
        wire.length = U64::new(self.length);
        wire.lifetime = U64::new(self.lifetime.0);
        wire.first = U64::new(self.object.address.0);
        wire.offset = U64::new(self.offset);
        // A time that does not fit is shortened, which is the safe side.
        wire.waited = U32::new(u32::try_from(self.waited.0).unwrap_or(u32::MAX));
        wire.longest = U32::new(u32::try_from(self.longest.0).unwrap_or(u32::MAX));
        wire
    }

    fn from_wire(wire: &Wire) -> Result<Self, MalformedMessage> {
        let keys: [U32; GROUP_QUEUE_PAIRS_MAX] = zerocopy::transmute!(wire.credential);
        let keys = keys.map(|key| Rkey(key.get()));
        let credential = match wire.kind {
            kind::GRANTED_KEYS => Credential::Keys { buffer: keys[0], lifetime: keys[1] },
            kind::GRANTED_GROUP => {
                let word = wire.second.get().to_le_bytes()[0];
                let word = word_keys(word).ok_or(MalformedMessage { what: word, at: 64 })?;
                Credential::Group(KeyGroup::from_parts(keys, word))
            }
            kind::GRANTED_REGION_KEY => {
                let [index, generation]: [U32; 2] = zerocopy::transmute!(wire.alignment);
                let region = RegionName { index: index.get(), generation: generation.get() };
                Credential::RegionKey { region, key: HolderKey(zerocopy::transmute!(wire.credential)) }
            }
            _ => Credential::Node,
        };
        Ok(Self {
            permission: wire.permission(),
            object: wire.reference(RemoteAddress(wire.first.get())),
            offset: wire.offset.get(),
            length: wire.length.get(),
            lifetime: Lifetime(wire.lifetime.get()),
            waited: Lifetime(wire.waited.get().into()),
            longest: Lifetime(wire.longest.get().into()),
            credential,
            mechanism: Mechanism::from_wire(wire.detail)
                .ok_or(MalformedMessage { what: wire.detail, at: 3 })?,
        })
    }
}

/// Returns a byte for the keys that open the lifetime word.
fn word_byte(word: WordKeys) -> u64 {
    match word {
        WordKeys::None => 0,
        WordKeys::Same => 1,
        WordKeys::Own => 2,
    }
}

fn word_keys(byte: u8) -> Option<WordKeys> {
    [WordKeys::None, WordKeys::Same, WordKeys::Own]
        .into_iter()
        .find(|&word| word_byte(word) == u64::from(byte))
}
