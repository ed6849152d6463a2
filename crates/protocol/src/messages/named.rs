//! The layout of messages that carry a name: the messages about the directory.

use super::wire::kind;
use super::{Entry, MESSAGE_BYTES, MalformedMessage, NamedRequest, Reply, ReplyBody, Request};
use crate::{DirectoryName, Incarnation, ObjectRef, RemoteAddress, Rights, TenantName};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The layout of both directions. The content of `subject` depends on `kind`.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct NamedWire {
    kind: u8,
    rights: u8,
    /// Flags, of which none is in use.
    flags: u8,
    /// Bytes of the name. Zero: the message has no name.
    name_bytes: u8,
    sequence: U32,
    /// Bytes of the tenant's name. Zero: the message names no tenant.
    tenant_bytes: u8,
    unused: [u8; 7],
    name: [u8; DirectoryName::BYTES_MAX],
    /// The tenant's name, or an object.
    subject: [u8; TenantName::BYTES_MAX],
}

const _: () = assert!(size_of::<NamedWire>() == MESSAGE_BYTES);

/// The offset of the name in the message.
const NAME_AT: usize = 16;
/// The offset of the tenant's name in the message.
const SUBJECT_AT: usize = NAME_AT + DirectoryName::BYTES_MAX;

/// An object in a message.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct ObjectFields {
    incarnation: U64,
    address: U64,
    birth: U64,
    /// The object's size, in bytes. Used only in an entry.
    size: U64,
    unused: [u8; 32],
}

impl NamedWire {
    fn new(kind: u8, sequence: u32) -> Self {
        Self {
            kind,
            rights: 0,
            flags: 0,
            name_bytes: 0,
            sequence: U32::new(sequence),
            tenant_bytes: 0,
            unused: [0; 7],
            name: [0; DirectoryName::BYTES_MAX],
            subject: [0; TenantName::BYTES_MAX],
        }
    }

    fn with_name(mut self, name: Option<DirectoryName>) -> Self {
        if let Some(name) = name {
            (self.name, self.name_bytes) = name.padded();
        }
        self
    }

    fn with_tenant(mut self, tenant: Option<TenantName>) -> Self {
        if let Some(tenant) = tenant {
            (self.subject, self.tenant_bytes) = tenant.padded();
        }
        self
    }

    fn with_rights(mut self, rights: Rights) -> Self {
        self.rights = rights.bits();
        self
    }

    fn with_object(mut self, object: ObjectRef, size: u64) -> Self {
        self.subject = zerocopy::transmute!(ObjectFields {
            incarnation: U64::new(object.incarnation.0),
            address: U64::new(object.address.0),
            birth: U64::new(object.birth),
            size: U64::new(size),
            unused: [0; 32],
        });
        self
    }

    fn name(&self) -> Result<DirectoryName, MalformedMessage> {
        let text = text(&self.name, self.name_bytes, (3, NAME_AT))?;
        DirectoryName::new(text).map_err(|_| self.no_name(&self.name, self.name_bytes, (3, NAME_AT)))
    }

    fn name_if_any(&self) -> Result<Option<DirectoryName>, MalformedMessage> {
        if self.name_bytes == 0 { Ok(None) } else { self.name().map(Some) }
    }

    fn tenant(&self) -> Result<TenantName, MalformedMessage> {
        let text = text(&self.subject, self.tenant_bytes, (8, SUBJECT_AT))?;
        TenantName::new(text).map_err(|_| self.no_name(&self.subject, self.tenant_bytes, (8, SUBJECT_AT)))
    }

    fn tenant_if_any(&self) -> Result<Option<TenantName>, MalformedMessage> {
        if self.tenant_bytes == 0 { Ok(None) } else { self.tenant().map(Some) }
    }

    fn no_name(&self, bytes: &[u8], count: u8, (count_at, at): (usize, usize)) -> MalformedMessage {
        let control = bytes.iter().take(count.into()).position(u8::is_ascii_control);
        match control {
            Some(place) => MalformedMessage { what: bytes[place], at: at + place },
            None => MalformedMessage { what: count, at: count_at },
        }
    }

    fn rights(&self) -> Result<Rights, MalformedMessage> {
        Rights::from_bits(self.rights).ok_or(MalformedMessage { what: self.rights, at: 1 })
    }

    fn object(&self) -> (ObjectRef, u64) {
        let fields: ObjectFields = zerocopy::transmute!(self.subject);
        let (incarnation, address) =
            (Incarnation(fields.incarnation.get()), RemoteAddress(fields.address.get()));
        (ObjectRef { incarnation, address, birth: fields.birth.get() }, fields.size.get())
    }

    /// Refuses flags that this version does not use.
    fn check_flags(&self) -> Result<(), MalformedMessage> {
        if self.flags == 0 { Ok(()) } else { Err(MalformedMessage { what: self.flags, at: 2 }) }
    }
}

/// Returns the first `count` bytes as text. `count_at` and `at` are the offsets of the count and of the bytes in the
/// message.
fn text(bytes: &[u8], count: u8, (count_at, at): (usize, usize)) -> Result<&str, MalformedMessage> {
    let text = bytes.get(..count.into()).ok_or(MalformedMessage { what: count, at: count_at })?;
    std::str::from_utf8(text).map_err(|error| {
        let place = error.valid_up_to();
        MalformedMessage { what: text[place], at: at + place }
    })
}

impl Request {
    /// Returns a request about the directory as bytes.
    pub(super) fn encode_named(sequence: u32, request: NamedRequest) -> [u8; MESSAGE_BYTES] {
        let new = |kind| NamedWire::new(kind, sequence);
        let wire = match request {
            NamedRequest::Publish { name, object } => {
                new(kind::PUBLISH).with_name(Some(name)).with_object(object, 0)
            }
            NamedRequest::Unpublish { name } => new(kind::UNPUBLISH).with_name(Some(name)),
            NamedRequest::Lookup { owner, name } => {
                new(kind::LOOKUP).with_name(Some(name)).with_tenant(owner)
            }
            NamedRequest::List { owner, after } => new(kind::LIST).with_name(after).with_tenant(owner),
            NamedRequest::Share { name, tenant, rights } => {
                new(kind::SHARE).with_name(Some(name)).with_tenant(Some(tenant)).with_rights(rights)
            }
            NamedRequest::Unshare { name, tenant } => {
                new(kind::UNSHARE).with_name(Some(name)).with_tenant(Some(tenant))
            }
        };
        zerocopy::transmute!(wire)
    }

    /// Decodes the request about the directory in `bytes`.
    ///
    /// # Errors
    /// A field holds a value that no client of this version writes.
    pub(super) fn decode_named(bytes: [u8; MESSAGE_BYTES]) -> Result<Self, MalformedMessage> {
        let wire: NamedWire = zerocopy::transmute!(bytes);
        wire.check_flags()?;
        let body = match wire.kind {
            kind::PUBLISH => NamedRequest::Publish { name: wire.name()?, object: wire.object().0 },
            kind::UNPUBLISH => NamedRequest::Unpublish { name: wire.name()? },
            kind::LOOKUP => NamedRequest::Lookup { owner: wire.tenant_if_any()?, name: wire.name()? },
            kind::LIST => NamedRequest::List { owner: wire.tenant_if_any()?, after: wire.name_if_any()? },
            kind::SHARE => {
                NamedRequest::Share { name: wire.name()?, tenant: wire.tenant()?, rights: wire.rights()? }
            }
            kind::UNSHARE => NamedRequest::Unshare { name: wire.name()?, tenant: wire.tenant()? },
            what => return Err(MalformedMessage { what, at: 0 }),
        };
        Ok(Self { sequence: wire.sequence.get(), body: body.into() })
    }
}

impl Reply {
    /// Returns a reply with an entry of the directory, as bytes.
    pub(super) fn encode_entry(sequence: u32, entry: &Entry) -> [u8; MESSAGE_BYTES] {
        let wire = NamedWire::new(kind::ENTRY, sequence).with_name(Some(entry.name));
        let wire = wire.with_rights(entry.rights).with_object(entry.object, entry.size);
        zerocopy::transmute!(wire)
    }

    /// Decodes the reply with an entry of the directory in `bytes`.
    ///
    /// # Errors
    /// A field holds a value that no node of this version writes.
    pub(super) fn decode_entry(bytes: [u8; MESSAGE_BYTES]) -> Result<Self, MalformedMessage> {
        let wire: NamedWire = zerocopy::transmute!(bytes);
        wire.check_flags()?;
        let (object, size) = wire.object();
        let entry = Entry { name: wire.name()?, object, size, rights: wire.rights()? };
        Ok(Self { sequence: wire.sequence.get(), body: ReplyBody::Entry(entry) })
    }
}
