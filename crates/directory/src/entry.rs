//! What stands in the directory under a name, and who may see it.

use crate::addresses::HeapRange;
use crate::lease::LeaseId;
use portcullis_errors::{Coded, ErrorCode};
use portcullis_protocol::{ObjectRef, TenantName};
use std::collections::BTreeSet;
use std::fmt;

/// Where something is reached, as text: a socket's path, or a node's address such as `udp:10.0.0.7:7777`. 1 to
/// [`Address::BYTES_MAX`] bytes of UTF-8 without control characters. Whoever connects reads it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Address(Box<str>);

/// A part of an entry is none that an entry can have.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EntryError {
    /// An address is empty, too long, or has a control character.
    #[error("an address in the directory has 1 to {} bytes without control characters", Address::BYTES_MAX)]
    Address,
    /// A node has no address, or too many.
    #[error("a node has 1 to {} addresses in the directory, not {addresses}", Target::NODE_ADDRESSES_MAX)]
    Addresses {
        /// How many were given.
        addresses: usize,
    },
    /// A list of tenants is too long.
    #[error("an access list has at most {} tenants, not {tenants}", Who::TENANTS_MAX)]
    Tenants {
        /// How many tenants were given.
        tenants: usize,
    },
}

impl Coded for EntryError {
    fn code(&self) -> ErrorCode {
        ErrorCode::EntryUnfit
    }
}

impl Address {
    /// The most bytes of an address.
    pub const BYTES_MAX: usize = 512;

    /// The address with this text.
    ///
    /// # Errors
    /// It is empty or too long, or has a control character.
    pub fn new(text: &str) -> Result<Self, EntryError> {
        let fits = (1..=Self::BYTES_MAX).contains(&text.len()) && !text.chars().any(char::is_control);
        if fits { Ok(Self(text.into())) } else { Err(EntryError::Address) }
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// What a name stands for.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Target {
    /// A channel of calls (RPCool §4.2).
    Channel {
        /// Where its server takes connections.
        address: Address,
    },
    /// A memory node.
    Node {
        /// Where it takes clients in: 1 to [`Target::NODE_ADDRESSES_MAX`] addresses, each a [`ScopedAddress`] as text.
        ///
        /// [`ScopedAddress`]: crate::ScopedAddress
        addresses: Vec<Address>,
    },
    /// A heap. That it has a name keeps it no longer than its holders do.
    Heap {
        /// Its addresses.
        range: HeapRange,
    },
    /// An object in a node's memory.
    Object {
        /// Where the node takes clients in.
        node: Address,
        /// The object.
        object: ObjectRef,
    },
}

impl Target {
    /// The most addresses of a node.
    pub const NODE_ADDRESSES_MAX: usize = 16;

    /// What kind of thing it is, as people are told.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Channel { .. } => "a channel of calls",
            Self::Node { .. } => "a memory node",
            Self::Heap { .. } => "a heap",
            Self::Object { .. } => "an object in a node's memory",
        }
    }

    fn check(&self) -> Result<(), EntryError> {
        match self {
            Self::Node { addresses } if !(1..=Self::NODE_ADDRESSES_MAX).contains(&addresses.len()) => {
                Err(EntryError::Addresses { addresses: addresses.len() })
            }
            _ => Ok(()),
        }
    }
}

/// Some tenants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Who {
    /// All tenants.
    Everybody,
    /// These tenants: see [`Who::tenants`] for how many there can be.
    Tenants(BTreeSet<TenantName>),
}

impl Who {
    /// The most tenants in a list.
    pub const TENANTS_MAX: usize = 64;

    /// Nobody.
    #[must_use]
    pub const fn nobody() -> Self {
        Self::Tenants(BTreeSet::new())
    }

    /// These tenants.
    ///
    /// # Errors
    /// They are more than [`Who::TENANTS_MAX`].
    pub fn tenants(tenants: impl IntoIterator<Item = TenantName>) -> Result<Self, EntryError> {
        let who = Self::Tenants(tenants.into_iter().collect());
        who.check()?;
        Ok(who)
    }

    /// Whether this tenant is one of them.
    #[must_use]
    pub fn includes(&self, tenant: &TenantName) -> bool {
        match self {
            Self::Everybody => true,
            Self::Tenants(tenants) => tenants.contains(tenant),
        }
    }

    pub(crate) fn check(&self) -> Result<(), EntryError> {
        match self {
            Self::Tenants(tenants) if tenants.len() > Self::TENANTS_MAX => {
                Err(EntryError::Tenants { tenants: tenants.len() })
            }
            _ => Ok(()),
        }
    }
}

/// The access list of an entry. The tenant that has registered it may do everything.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Access {
    /// Who else sees the entry. To others the name is not there.
    pub look_up: Who,
    /// Who else may register names below this one, for as long as the entry is there.
    pub register: Who,
}

impl Access {
    /// For nobody but the tenant that registers the entry.
    #[must_use]
    pub const fn private() -> Self {
        Self { look_up: Who::nobody(), register: Who::nobody() }
    }

    /// Everybody sees the entry, and nobody else registers names below it.
    #[must_use]
    pub const fn public() -> Self {
        Self { look_up: Who::Everybody, register: Who::nobody() }
    }
}

/// What is registered under a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// What the name stands for.
    pub target: Target,
    /// Who may see it.
    pub access: Access,
}

impl Entry {
    /// Whether it is an entry that a directory takes.
    ///
    /// # Errors
    /// A node has no address or too many, or an access list is too long.
    pub fn check(&self) -> Result<(), EntryError> {
        self.target.check()?;
        self.access.look_up.check()?;
        self.access.register.check()
    }
}

/// An entry that was looked up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// What the name stands for.
    pub target: Target,
    /// The tenant that has registered it.
    pub tenant: TenantName,
    /// The lease with which the entry ends.
    pub lease: LeaseId,
    /// Another number than that of every earlier registration of the name, so a name that has ended and come again between two
    /// looks is told from one that was there all the time.
    pub registration: u64,
}

/// An entry that is registered, whoever may see it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Registered {
    pub(crate) entry: Entry,
    pub(crate) tenant: TenantName,
    pub(crate) lease: LeaseId,
    pub(crate) registration: u64,
}

impl Registered {
    /// What a tenant sees of it.
    pub(crate) fn seen_by(&self, tenant: &TenantName) -> Option<Found> {
        (self.tenant == *tenant || self.entry.access.look_up.includes(tenant)).then(|| Found {
            target: self.entry.target.clone(),
            tenant: self.tenant,
            lease: self.lease,
            registration: self.registration,
        })
    }

    /// Whether a tenant may register names below it.
    pub(crate) fn lets_register(&self, tenant: &TenantName) -> bool {
        self.tenant == *tenant || self.entry.access.register.includes(tenant)
    }
}
