//! Entries of the directory, and the access to them.

use crate::addresses::HeapRange;
use crate::lease::LeaseId;
use portcullis_errors::{Coded, ErrorCode};
use portcullis_protocol::{ObjectRef, TenantName};
use std::collections::BTreeSet;
use std::fmt;

/// Address of a peer, as text: a socket's path, or a node's address such as `udp:10.0.0.7:7777`. It has 1 to
/// [`Address::BYTES_MAX`] bytes of UTF-8 without control characters. The connecting process parses it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Address(Box<str>);

/// A part of an entry is not valid.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EntryError {
    /// An address is empty, too long, or has a control character.
    #[error("an address in the directory has 1 to {} bytes without control characters", Address::BYTES_MAX)]
    Address,
    /// A node has no address, or too many.
    #[error("a node has 1 to {} addresses in the directory, not {addresses}", Target::NODE_ADDRESSES_MAX)]
    Addresses {
        /// Number of addresses given.
        addresses: usize,
    },
    /// A list of tenants is too long.
    #[error("an access list has at most {} tenants, not {tenants}", Who::TENANTS_MAX)]
    Tenants {
        /// Number of tenants given.
        tenants: usize,
    },
}

impl Coded for EntryError {
    fn code(&self) -> ErrorCode {
        ErrorCode::EntryUnfit
    }
}

impl Address {
    /// Maximum size of an address in bytes.
    pub const BYTES_MAX: usize = 512;

    /// Creates an address from its text.
    ///
    /// # Errors
    /// The text is empty or too long, or has a control character.
    pub fn new(text: &str) -> Result<Self, EntryError> {
        let fits = (1..=Self::BYTES_MAX).contains(&text.len()) && !text.chars().any(char::is_control);
        if fits { Ok(Self(text.into())) } else { Err(EntryError::Address) }
    }

    /// Returns the text.
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

/// The thing that a name stands for.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Target {
    /// A channel of calls (RPCool §4.2).
    Channel {
        /// The address at which its server accepts connections.
        address: Address,
    },
    /// A memory node.
    Node {
        /// The addresses at which it accepts clients: 1 to [`Target::NODE_ADDRESSES_MAX`], each a [`ScopedAddress`] as
        /// text.
        ///
        /// [`ScopedAddress`]: crate::ScopedAddress
        addresses: Vec<Address>,
        /// Bytes of memory that it lends. 0: an earlier version has registered the node, and did not say.
        memory_bytes: u64,
    },
    /// A heap. Its name does not keep it alive: it lives only as long as its holders.
    Heap {
        /// The heap's addresses.
        range: HeapRange,
    },
    /// An object in a node's memory.
    Object {
        /// The address at which the node accepts clients.
        node: Address,
        /// The object.
        object: ObjectRef,
    },
}

impl Target {
    /// Maximum number of addresses of a node.
    pub const NODE_ADDRESSES_MAX: usize = 16;

    /// Returns the kind of the target, as a word for people.
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
            Self::Node { addresses, .. } if !(1..=Self::NODE_ADDRESSES_MAX).contains(&addresses.len()) => {
                Err(EntryError::Addresses { addresses: addresses.len() })
            }
            _ => Ok(()),
        }
    }
}

/// A set of tenants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Who {
    /// All tenants.
    Everybody,
    /// These tenants, at most as many as [`Who::tenants`] allows.
    Tenants(BTreeSet<TenantName>),
}

impl Who {
    /// Maximum number of tenants in a list.
    pub const TENANTS_MAX: usize = 64;

    /// Returns the empty set.
    #[must_use]
    pub const fn nobody() -> Self {
        Self::Tenants(BTreeSet::new())
    }

    /// Creates a set of these tenants.
    ///
    /// # Errors
    /// There are more than [`Who::TENANTS_MAX`].
    pub fn tenants(tenants: impl IntoIterator<Item = TenantName>) -> Result<Self, EntryError> {
        let who = Self::Tenants(tenants.into_iter().collect());
        who.check()?;
        Ok(who)
    }

    /// Whether this tenant is in the set.
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

/// The access list of an entry. The tenant that has registered the entry has every right.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Access {
    /// Other tenants that see the entry. For all others the name does not exist.
    pub look_up: Who,
    /// Other tenants that may register names below this one, for as long as the entry exists.
    pub register: Who,
}

impl Access {
    /// Returns the access list for the registering tenant alone.
    #[must_use]
    pub const fn private() -> Self {
        Self { look_up: Who::nobody(), register: Who::nobody() }
    }

    /// Returns the access list with which every tenant sees the entry, and no other tenant registers names below it.
    #[must_use]
    pub const fn public() -> Self {
        Self { look_up: Who::Everybody, register: Who::nobody() }
    }
}

/// The entry under a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The thing that the name stands for.
    pub target: Target,
    /// The access list.
    pub access: Access,
}

impl Entry {
    /// Checks that a directory accepts the entry.
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
    /// The thing that the name stands for.
    pub target: Target,
    /// The tenant that has registered it.
    pub tenant: TenantName,
    /// The lease whose end also ends the entry.
    pub lease: LeaseId,
    /// Number that differs from that of every earlier registration of the name. It distinguishes a name that ended and
    /// was registered again between two looks from one that existed all the time.
    pub registration: u64,
}

/// A registered entry, before access checks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Registered {
    pub(crate) entry: Entry,
    pub(crate) tenant: TenantName,
    pub(crate) lease: LeaseId,
    pub(crate) registration: u64,
    /// Number that is higher than that of each earlier change of any name.
    pub(crate) revision: u64,
}

impl Registered {
    /// Returns the part of the entry that a tenant sees.
    pub(crate) fn seen_by(&self, tenant: &TenantName) -> Option<Found> {
        self.is_seen_by(tenant).then(|| Found {
            target: self.entry.target.clone(),
            tenant: self.tenant,
            lease: self.lease,
            registration: self.registration,
        })
    }

    /// Whether a tenant sees the entry.
    pub(crate) fn is_seen_by(&self, tenant: &TenantName) -> bool {
        self.tenant == *tenant || self.entry.access.look_up.includes(tenant)
    }

    /// Whether a tenant may register names below it.
    pub(crate) fn lets_register(&self, tenant: &TenantName) -> bool {
        self.tenant == *tenant || self.entry.access.register.includes(tenant)
    }
}
