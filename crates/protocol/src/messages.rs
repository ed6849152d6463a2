//! The control messages: what a client SENDs to its node, and the node's replies.
//!
//! Each message is 64 bytes, little-endian, fields at fixed places; data of the `rpc` mechanism follows behind.
//! A codec, not a transport: the same bytes travel through a software NIC's queues and over real verbs.

use crate::{
    Lifetime, Mechanism, Moment, PermissionId, Refusal, RemoteAddress, Rights, Rkey, Sharing, Token,
};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a control message.
pub const MESSAGE_BYTES: usize = 64;

/// The most data one message of the `rpc` mechanism carries behind its 64 bytes; longer accesses are split.
pub const DATA_BYTES_MAX: usize = 8192;

/// A client's request. `sequence` comes back in the reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Chosen by the client, echoed by the node.
    pub sequence: u32,
    /// What is asked.
    pub body: RequestBody,
}

/// What a client asks of its node (Patronus §5.1, Table 2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestBody {
    /// Memory, and a permission over it.
    Allocate {
        /// Bytes.
        size: u64,
        /// How long the permission lives, from its grant.
        lifetime: Lifetime,
        /// What the permission allows.
        rights: Rights,
        /// Beside whom.
        sharing: Sharing,
        /// Whether the object outlives its permissions: it goes when freed, or when the tenant's last client goes.
        keep: bool,
    },
    /// A permission over an object that exists.
    Acquire {
        /// Where the object starts.
        address: RemoteAddress,
        /// The object's size; zero takes whatever it is.
        size: u64,
        /// How long the permission lives, from its grant.
        lifetime: Lifetime,
        /// What the permission allows.
        rights: Rights,
        /// Beside whom.
        sharing: Sharing,
        /// How long the request may wait for conflicting holders.
        wait: Lifetime,
    },
    /// A longer life for a permission, by RPC: the naive way of Patronus §5.3.
    Extend {
        /// Which.
        permission: PermissionId,
        /// Its new lifetime, from its start.
        lifetime: Lifetime,
    },
    /// The end of a permission.
    Revoke {
        /// Which.
        permission: PermissionId,
        /// Also lets the object go that `keep` kept.
        free: bool,
    },
    /// Lets a kept object go once its last permission has ended.
    Free {
        /// Where the object starts.
        address: RemoteAddress,
    },
    /// Rebuild a queue pair that went to error. The client has taken all completions off it.
    Recover {
        /// Its number among the client's data queue pairs.
        queue_pair: u32,
    },
    /// `rpc` mechanism: bytes from the node.
    Read {
        /// The permission that covers them.
        permission: PermissionId,
        /// Where in the permission's buffer.
        offset: u64,
        /// How many, at most [`DATA_BYTES_MAX`].
        length: u64,
    },
    /// `rpc` mechanism: the bytes behind this message go to the node.
    Write {
        /// The permission that covers them.
        permission: PermissionId,
        /// Where in the permission's buffer.
        offset: u64,
        /// How many, at most [`DATA_BYTES_MAX`].
        length: u64,
    },
    /// `rpc` mechanism: compare and swap of an aligned 8-byte word.
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
    /// `rpc` mechanism: fetch and add on an aligned 8-byte word.
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
    /// The request's.
    pub sequence: u32,
    /// What came of it.
    pub body: ReplyBody,
}

/// What came of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplyBody {
    /// A permission (to `Allocate` and `Acquire`).
    Granted(Granted),
    /// The new lifetime, from the permission's start (to `Extend`).
    Extended(Lifetime),
    /// Done (to `Revoke`, `Free`, `Recover` and `Write`).
    Done,
    /// So many bytes follow behind this message (to `Read`).
    Data(u64),
    /// The word's value before the operation (to the atomics).
    Value(u64),
    /// No, and why.
    Refused(Refusal),
}

/// A permission as its holder gets it: the paper's `Perm` (Patronus §5.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Granted {
    /// Its name.
    pub permission: PermissionId,
    /// Where its buffer starts.
    pub address: RemoteAddress,
    /// The buffer's length in bytes.
    pub length: u64,
    /// How long it lives, from its start.
    pub lifetime: Lifetime,
    /// How long the request waited on the node before it started: its holder's clock may count from that much after
    /// the request was sent.
    pub waited: Lifetime,
    /// The longest that it can live, extensions included.
    pub longest: Lifetime,
    /// What its holder shows with each access.
    pub token: Token,
    /// What enforces it.
    pub mechanism: Mechanism,
}

/// Bytes that are no message of this protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{what} in byte {at} of a control message means nothing")]
pub struct MalformedMessage {
    /// What was found there.
    pub what: u8,
    /// Where.
    pub at: usize,
}

/// The layout of both directions. What a field means depends on `kind`.
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
    second: U64,
    /// Of a grant: how long the request waited, in µs.
    waited: U32,
    /// Of a grant: the longest lifetime, in µs.
    longest: U32,
}

const _: () = assert!(size_of::<Wire>() == MESSAGE_BYTES);

const FLAG_SHARED: u8 = 1;
const FLAG_KEEP: u8 = 2;

mod kind {
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
    pub const GRANTED_KEYS: u8 = 129;
    pub const GRANTED_NODE: u8 = 130;
    pub const EXTENDED: u8 = 131;
    pub const DONE: u8 = 132;
    pub const DATA: u8 = 133;
    pub const VALUE: u8 = 134;
    pub const REFUSED: u8 = 135;
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
            second: U64::ZERO,
            waited: U32::ZERO,
            longest: U32::ZERO,
        }
    }

    fn with_permission(mut self, permission: PermissionId) -> Self {
        self.address = U64::new(permission.header.0);
        self.start = U64::new(permission.start.0);
        self
    }

    fn with_access(mut self, rights: Rights, sharing: Sharing, keep: bool) -> Self {
        self.rights = rights.bits();
        self.flags = match sharing {
            Sharing::Exclusive => 0,
            Sharing::Shared => FLAG_SHARED,
        } | if keep { FLAG_KEEP } else { 0 };
        self
    }

    fn permission(&self) -> PermissionId {
        PermissionId { header: RemoteAddress(self.address.get()), start: Moment(self.start.get()) }
    }

    fn access(&self) -> Result<(Rights, Sharing), MalformedMessage> {
        let rights = Rights::from_bits(self.rights).ok_or(MalformedMessage { what: self.rights, at: 1 })?;
        if self.flags & !(FLAG_SHARED | FLAG_KEEP) != 0 {
            return Err(MalformedMessage { what: self.flags, at: 2 });
        }
        let shared = self.flags & FLAG_SHARED != 0;
        Ok((rights, if shared { Sharing::Shared } else { Sharing::Exclusive }))
    }
}

impl Request {
    /// The request as bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; MESSAGE_BYTES] {
        let new = |kind| Wire::new(kind, self.sequence);
        let access = |kind, permission, offset: u64| {
            let mut wire = new(kind).with_permission(permission);
            wire.lifetime = U64::new(offset);
            wire
        };
        let wire = match self.body {
            RequestBody::Allocate { size, lifetime, rights, sharing, keep } => {
                let mut wire = new(kind::ALLOCATE).with_access(rights, sharing, keep);
                wire.length = U64::new(size);
                wire.lifetime = U64::new(lifetime.0);
                wire
            }
            RequestBody::Acquire { address, size, lifetime, rights, sharing, wait } => {
                let mut wire = new(kind::ACQUIRE).with_access(rights, sharing, false);
                wire.address = U64::new(address.0);
                wire.length = U64::new(size);
                wire.lifetime = U64::new(lifetime.0);
                wire.first = U64::new(wait.0);
                wire
            }
            RequestBody::Extend { permission, lifetime } => {
                let mut wire = new(kind::EXTEND).with_permission(permission);
                wire.lifetime = U64::new(lifetime.0);
                wire
            }
            RequestBody::Revoke { permission, free } => {
                let mut wire = new(kind::REVOKE).with_permission(permission);
                wire.flags = u8::from(free);
                wire
            }
            RequestBody::Free { address } => {
                let mut wire = new(kind::FREE);
                wire.address = U64::new(address.0);
                wire
            }
            RequestBody::Recover { queue_pair } => {
                let mut wire = new(kind::RECOVER);
                wire.length = U64::new(u64::from(queue_pair));
                wire
            }
            RequestBody::Read { permission, offset, length } => {
                let mut wire = access(kind::READ, permission, offset);
                wire.length = U64::new(length);
                wire
            }
            RequestBody::Write { permission, offset, length } => {
                let mut wire = access(kind::WRITE, permission, offset);
                wire.length = U64::new(length);
                wire
            }
            RequestBody::CompareAndSwap { permission, offset, compare, swap } => {
                let mut wire = access(kind::COMPARE_AND_SWAP, permission, offset);
                wire.first = U64::new(compare);
                wire.second = U64::new(swap);
                wire
            }
            RequestBody::FetchAndAdd { permission, offset, add } => {
                let mut wire = access(kind::FETCH_AND_ADD, permission, offset);
                wire.first = U64::new(add);
                wire
            }
        };
        zerocopy::transmute!(wire)
    }

    /// The request in `bytes`.
    ///
    /// # Errors
    /// A field holds what no client of this version writes.
    pub fn decode(bytes: [u8; MESSAGE_BYTES]) -> Result<Self, MalformedMessage> {
        let wire: Wire = zerocopy::transmute!(bytes);
        let permission = wire.permission();
        let offset = wire.lifetime.get();
        let length = wire.length.get();
        let lifetime = Lifetime(wire.lifetime.get());
        let body = match wire.kind {
            kind::ALLOCATE => {
                let (rights, sharing) = wire.access()?;
                let keep = wire.flags & FLAG_KEEP != 0;
                RequestBody::Allocate { size: length, lifetime, rights, sharing, keep }
            }
            kind::ACQUIRE => {
                let (rights, sharing) = wire.access()?;
                let address = RemoteAddress(wire.address.get());
                let wait = Lifetime(wire.first.get());
                RequestBody::Acquire { address, size: length, lifetime, rights, sharing, wait }
            }
            kind::EXTEND => RequestBody::Extend { permission, lifetime },
            kind::REVOKE => match wire.flags {
                0 | 1 => RequestBody::Revoke { permission, free: wire.flags == 1 },
                what => return Err(MalformedMessage { what, at: 2 }),
            },
            kind::FREE => RequestBody::Free { address: RemoteAddress(wire.address.get()) },
            kind::RECOVER => RequestBody::Recover {
                queue_pair: u32::try_from(length)
                    .map_err(|_| MalformedMessage { what: wire.length.as_bytes()[7], at: 31 })?,
            },
            kind::READ => RequestBody::Read { permission, offset, length },
            kind::WRITE => RequestBody::Write { permission, offset, length },
            kind::COMPARE_AND_SWAP => RequestBody::CompareAndSwap {
                permission,
                offset,
                compare: wire.first.get(),
                swap: wire.second.get(),
            },
            kind::FETCH_AND_ADD => RequestBody::FetchAndAdd { permission, offset, add: wire.first.get() },
            what => return Err(MalformedMessage { what, at: 0 }),
        };
        Ok(Self { sequence: wire.sequence.get(), body })
    }
}

impl Reply {
    /// The reply as bytes.
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

    /// The reply in `bytes`.
    ///
    /// # Errors
    /// A field holds what no node of this version writes.
    pub fn decode(bytes: [u8; MESSAGE_BYTES]) -> Result<Self, MalformedMessage> {
        let wire: Wire = zerocopy::transmute!(bytes);
        let body = match wire.kind {
            kind::GRANTED_KEYS | kind::GRANTED_NODE => ReplyBody::Granted(Granted::from_wire(&wire)?),
            kind::EXTENDED => ReplyBody::Extended(Lifetime(wire.lifetime.get())),
            kind::DONE => ReplyBody::Done,
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

impl Granted {
    fn wire(&self, sequence: u32) -> Wire {
        let (kind, keys) = match self.token {
            Token::Keys { buffer, lifetime } => {
                (kind::GRANTED_KEYS, u64::from(buffer.0) | u64::from(lifetime.0) << 32)
            }
            Token::Node => (kind::GRANTED_NODE, 0),
        };
        let mut wire = Wire::new(kind, sequence).with_permission(self.permission);
        wire.detail = self.mechanism.wire();
        wire.length = U64::new(self.length);
        wire.lifetime = U64::new(self.lifetime.0);
        wire.first = U64::new(self.address.0);
        wire.second = U64::new(keys);
        // Told shorter than it is, where it does not fit: that errs to the safe side.
        wire.waited = U32::new(u32::try_from(self.waited.0).unwrap_or(u32::MAX));
        wire.longest = U32::new(u32::try_from(self.longest.0).unwrap_or(u32::MAX));
        wire
    }

    fn from_wire(wire: &Wire) -> Result<Self, MalformedMessage> {
        let (buffer, lifetime): (U32, U32) = {
            let [buffer, lifetime]: [U32; 2] = zerocopy::transmute!(wire.second);
            (buffer, lifetime)
        };
        let token = if wire.kind == kind::GRANTED_KEYS {
            Token::Keys { buffer: Rkey(buffer.get()), lifetime: Rkey(lifetime.get()) }
        } else {
            Token::Node
        };
        Ok(Self {
            permission: wire.permission(),
            address: RemoteAddress(wire.first.get()),
            length: wire.length.get(),
            lifetime: Lifetime(wire.lifetime.get()),
            waited: Lifetime(wire.waited.get().into()),
            longest: Lifetime(wire.longest.get().into()),
            token,
            mechanism: Mechanism::from_wire(wire.detail)
                .ok_or(MalformedMessage { what: wire.detail, at: 3 })?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn permission() -> impl Strategy<Value = PermissionId> {
        (any::<u64>(), any::<u64>())
            .prop_map(|(header, start)| PermissionId { header: RemoteAddress(header), start: Moment(start) })
    }

    fn rights() -> impl Strategy<Value = Rights> {
        (0u8..8).prop_map(Rights::from_bits_truncate)
    }

    fn sharing() -> impl Strategy<Value = Sharing> {
        prop_oneof![Just(Sharing::Exclusive), Just(Sharing::Shared)]
    }

    fn request() -> impl Strategy<Value = RequestBody> {
        let word = any::<u64>;
        prop_oneof![
            (word(), word(), rights(), sharing(), any::<bool>()).prop_map(
                |(size, lifetime, rights, sharing, keep)| RequestBody::Allocate {
                    size,
                    lifetime: Lifetime(lifetime),
                    rights,
                    sharing,
                    keep
                }
            ),
            (word(), word(), word(), rights(), sharing(), word()).prop_map(
                |(address, size, lifetime, rights, sharing, wait)| RequestBody::Acquire {
                    address: RemoteAddress(address),
                    size,
                    lifetime: Lifetime(lifetime),
                    rights,
                    sharing,
                    wait: Lifetime(wait)
                }
            ),
            (permission(), word()).prop_map(|(permission, lifetime)| RequestBody::Extend {
                permission,
                lifetime: Lifetime(lifetime)
            }),
            (permission(), any::<bool>())
                .prop_map(|(permission, free)| RequestBody::Revoke { permission, free }),
            word().prop_map(|address| RequestBody::Free { address: RemoteAddress(address) }),
            any::<u32>().prop_map(|queue_pair| RequestBody::Recover { queue_pair }),
            (permission(), word(), word()).prop_map(|(permission, offset, length)| RequestBody::Read {
                permission,
                offset,
                length
            }),
            (permission(), word(), word()).prop_map(|(permission, offset, length)| RequestBody::Write {
                permission,
                offset,
                length
            }),
            (permission(), word(), word(), word()).prop_map(|(permission, offset, compare, swap)| {
                RequestBody::CompareAndSwap { permission, offset, compare, swap }
            }),
            (permission(), word(), word()).prop_map(|(permission, offset, add)| RequestBody::FetchAndAdd {
                permission,
                offset,
                add
            }),
        ]
    }

    proptest! {
        #[test]
        fn a_request_survives_the_wire(sequence: u32, body in request()) {
            let request = Request { sequence, body };
            prop_assert_eq!(Request::decode(request.encode()), Ok(request));
        }

        #[test]
        fn any_bytes_become_a_message_or_an_error(bytes: [u8; 32], more: [u8; 32]) {
            let mut message = [0; MESSAGE_BYTES];
            message[..32].copy_from_slice(&bytes);
            message[32..].copy_from_slice(&more);
            if let Ok(request) = Request::decode(message) {
                prop_assert_eq!(Request::decode(request.encode()), Ok(request));
            }
            if let Ok(reply) = Reply::decode(message) {
                prop_assert_eq!(Reply::decode(reply.encode()), Ok(reply));
            }
        }

        #[test]
        fn a_grant_survives_the_wire(
            permission in permission(), address: u64, length: u64, times: (u64, u32, u32), keys: Option<(u32, u32)>,
            mechanism in 0usize..5,
        ) {
            let token = keys.map_or(Token::Node, |(buffer, lifetime)| {
                Token::Keys { buffer: Rkey(buffer), lifetime: Rkey(lifetime) }
            });
            let granted = Granted {
                permission, address: RemoteAddress(address), length, lifetime: Lifetime(times.0),
                waited: Lifetime(times.1.into()), longest: Lifetime(times.2.into()), token,
                mechanism: Mechanism::ALL[mechanism],
            };
            let reply = Reply { sequence: 7, body: ReplyBody::Granted(granted) };
            prop_assert_eq!(Reply::decode(reply.encode()), Ok(reply));
        }

        #[test]
        fn every_refusal_number_reads_back(number: u8, a: u64, b: u64) {
            if let Some(refusal) = Refusal::from_wire((number, a, b)) {
                let reply = Reply { sequence: 1, body: ReplyBody::Refused(refusal) };
                prop_assert_eq!(Reply::decode(reply.encode()), Ok(reply));
            }
        }
    }
}
