//! The messages between a client and a server of a directory: one message each way, in postcard's encoding.

use crate::addresses::{HeapRange, Space};
use crate::entry::{Access, Entry, EntryError, Found, Who};
use crate::error::DirectoryError;
use crate::lease::LeaseId;
use crate::name::Name;
use crate::quota::{Limited, Quota, QuotaError, Usage};
use crate::record::{StoredTarget, StoredWho};
use portcullis_protocol::TenantName;
use serde::{Deserialize, Serialize};

/// The number in a client's first message, with which each side detects a peer of another kind or version.
pub(super) const VERSION: u32 = u32::from_be_bytes(*b"pdr3");
/// Maximum size of a message in bytes: an entry with as many addresses and tenants as it can have is half as long.
pub(super) const MESSAGE_BYTES_MAX: usize = 32 << 10;
/// Maximum number of bytes of entries in one answer, but for the last of them.
pub(super) const NAMES_BYTES_MAX: usize = MESSAGE_BYTES_MAX / 2;
/// Maximum number of other list items in one answer.
pub(super) const PART_MAX: usize = 1_000;

/// A request from a client. Its answer has the same number.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Question {
    pub number: u32,
    pub asked: Asked,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Asked {
    Hello {
        version: u32,
    },
    OpenLease {
        tenant: TenantName,
        milliseconds: u64,
    },
    KeepAlive(u64),
    EndLease(u64),
    Register {
        lease: u64,
        name: String,
        entry: SentEntry,
    },
    Withdraw {
        lease: u64,
        name: String,
    },
    LookUp {
        tenant: TenantName,
        name: String,
    },
    CreateHeap {
        lease: u64,
        bytes: u64,
        others: StoredWho,
    },
    HoldHeap {
        lease: u64,
        address: u64,
    },
    ReleaseHeap {
        lease: u64,
        address: u64,
    },
    Heaps(u64),
    Reclaim,
    SetQuota {
        tenant: Option<TenantName>,
        quota: [u64; 4],
    },
    Usage(u64),
    /// Requests the next part of a list.
    More,
    /// Begins a watch of a name. The connection does nothing else from then on.
    Watch {
        tenant: TenantName,
        name: String,
    },
    /// Begins a watch of a heap that a lease of the same user holds. The connection does nothing else from then on.
    WatchHeap {
        lease: u64,
        address: u64,
    },
    /// Requests the entries below a name, from the first one behind `after` on.
    List {
        tenant: TenantName,
        above: String,
        after: Option<String>,
    },
    /// Begins a watch of the entries below a name. The connection does nothing else from then on.
    WatchList {
        tenant: TenantName,
        above: String,
    },
    /// Requests the entries of a watched list behind this name.
    MoreNames {
        after: String,
    },
    /// Requests the next value of the watch. It is answered when the value differs from the last answer.
    Wait,
}

/// A message from the server.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Reply {
    pub number: u32,
    pub told: Told,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Told {
    Welcome {
        version: u32,
        space: SentSpace,
    },
    Done,
    Lease {
        id: u64,
        milliseconds: u64,
    },
    Found(SentFound),
    Heap(SentRange),
    /// Part of a list, and whether more parts follow.
    Heaps {
        heaps: Vec<SentRange>,
        is_more: bool,
    },
    Usage([u64; 4]),
    /// The entry that a watch sees under a name.
    Seen(Option<SentFound>),
    /// The holders that a watch sees of a heap: part of the list, and whether more parts follow.
    Holders {
        leases: Vec<u64>,
        is_more: bool,
    },
    /// The entries below a name: part of the list, and whether more parts follow.
    Names {
        names: Vec<SentName>,
        is_more: bool,
    },
    No(SentError),
}

/// A name, and its entry.
pub(super) type SentName = (String, SentFound);

/// The start and the end of the address space, and the sizes of the smallest and the largest heap.
pub(super) type SentSpace = [u64; 4];
/// The first address, and the number of bytes.
pub(super) type SentRange = (u64, u64);

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct SentEntry {
    target: StoredTarget,
    look_up: StoredWho,
    register: StoredWho,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct SentFound {
    target: StoredTarget,
    tenant: TenantName,
    lease: u64,
    registration: u64,
}

/// An error of the serving directory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum SentError {
    NoSuchName(String),
    NameTaken(String),
    NotAllowed { name: String, tenant: TenantName },
    NotThisTenant { tenant: TenantName, user: u32 },
    LeaseEnded(u64),
    Quota { tenant: TenantName, limited: u8, numbers: [u64; 3] },
    HeapSize([u64; 3]),
    NoAddresses(u64),
    NoSuchHeap(u64),
    Unfit { addresses: Option<usize>, tenants: Option<usize> },
    Contended,
    Refused(String),
}

pub(super) fn encode(message: &impl Serialize) -> Vec<u8> {
    postcard::to_allocvec(message).expect("texts and numbers have an encoding")
}

/// Decodes a message, if the bytes are exactly one.
pub(super) fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Option<T> {
    let (message, rest) = postcard::take_from_bytes(bytes).ok()?;
    rest.is_empty().then_some(message)
}

pub(super) fn sent_space(space: &Space) -> SentSpace {
    let (addresses, (smallest, largest)) = (space.addresses(), space.sizes());
    [addresses.start, addresses.end, smallest, largest]
}

pub(super) fn said_of_space([start, end, smallest, largest]: SentSpace) -> String {
    format!("{start:#x}..{end:#x} for heaps of {smallest} to {largest} bytes")
}

pub(super) const fn sent_range(range: HeapRange) -> SentRange {
    (range.address, range.bytes)
}

pub(super) const fn range((address, bytes): SentRange) -> HeapRange {
    HeapRange { address, bytes }
}

pub(super) const fn sent_quota(quota: Quota) -> [u64; 4] {
    [quota.process_bytes, quota.tenant_bytes, quota.names, quota.leases]
}

pub(super) const fn quota([process_bytes, tenant_bytes, names, leases]: [u64; 4]) -> Quota {
    Quota { process_bytes, tenant_bytes, names, leases }
}

pub(super) const fn sent_usage(usage: Usage) -> [u64; 4] {
    [usage.process_bytes, usage.tenant_bytes, usage.names, usage.leases]
}

pub(super) const fn usage([process_bytes, tenant_bytes, names, leases]: [u64; 4]) -> Usage {
    Usage { process_bytes, tenant_bytes, names, leases }
}

impl SentEntry {
    pub fn of(entry: &Entry) -> Self {
        let Entry { target, access } = entry;
        let (look_up, register) = (StoredWho::of(&access.look_up), StoredWho::of(&access.register));
        Self { target: StoredTarget::of(target), look_up, register }
    }

    pub fn read(self) -> Result<Entry, String> {
        let access = Access { look_up: self.look_up.read()?, register: self.register.read()? };
        Ok(Entry { target: self.target.read()?, access })
    }
}

impl SentFound {
    pub fn of(found: &Found) -> Self {
        let Found { target, tenant, lease, registration } = found;
        let (target, lease) = (StoredTarget::of(target), lease.0);
        Self { target, tenant: *tenant, lease, registration: *registration }
    }

    pub fn read(self) -> Result<Found, String> {
        let Self { target, tenant, lease, registration } = self;
        Ok(Found { target: target.read()?, tenant, lease: LeaseId(lease), registration })
    }
}

const LIMITED: [Limited; 4] = [Limited::ProcessBytes, Limited::TenantBytes, Limited::Names, Limited::Leases];

impl SentError {
    pub fn of(error: &DirectoryError) -> Self {
        use DirectoryError as Error;
        match error {
            Error::NoSuchName(name) => Self::NoSuchName(name.to_string()),
            Error::NameTaken(name) => Self::NameTaken(name.to_string()),
            Error::NotAllowed { name, tenant } => {
                Self::NotAllowed { name: name.to_string(), tenant: *tenant }
            }
            Error::NotThisTenant { tenant, user } => Self::NotThisTenant { tenant: *tenant, user: *user },
            Error::LeaseEnded(lease) => Self::LeaseEnded(lease.0),
            Error::Quota(QuotaError { tenant, limited, most, used, asked }) => {
                let limited = LIMITED.iter().position(|it| it == limited).unwrap_or_default();
                let limited = u8::try_from(limited).expect("there are four");
                Self::Quota { tenant: *tenant, limited, numbers: [*most, *used, *asked] }
            }
            Error::HeapSize { bytes, smallest, largest } => Self::HeapSize([*bytes, *smallest, *largest]),
            Error::NoAddresses { bytes } => Self::NoAddresses(*bytes),
            Error::NoSuchHeap(address) => Self::NoSuchHeap(*address),
            Error::Unfit(EntryError::Addresses { addresses }) => {
                Self::Unfit { addresses: Some(*addresses), tenants: None }
            }
            Error::Unfit(EntryError::Tenants { tenants }) => {
                Self::Unfit { addresses: None, tenants: Some(*tenants) }
            }
            Error::Unfit(EntryError::Address) => Self::Unfit { addresses: None, tenants: None },
            Error::Contended => Self::Contended,
            Error::Refused { why, .. } => Self::Refused(why.clone()),
            other => Self::Refused(other.to_string()),
        }
    }

    /// Returns the error for the client's caller. `at` is the directory's address.
    pub fn read(self, at: &str) -> DirectoryError {
        use DirectoryError as Error;
        let named = |text: &str, error: fn(Name) -> Error| {
            Name::new(text).map_or_else(|wrong| Error::Nonsense(wrong.to_string()), error)
        };
        match self {
            Self::NoSuchName(name) => named(&name, Error::NoSuchName),
            Self::NameTaken(name) => named(&name, Error::NameTaken),
            Self::NotAllowed { name, tenant } => match Name::new(&name) {
                Ok(name) => Error::NotAllowed { name, tenant },
                Err(wrong) => Error::Nonsense(wrong.to_string()),
            },
            Self::NotThisTenant { tenant, user } => Error::NotThisTenant { tenant, user },
            Self::LeaseEnded(lease) => Error::LeaseEnded(LeaseId(lease)),
            Self::Quota { tenant, limited, numbers: [most, used, asked] } => {
                match LIMITED.get(usize::from(limited)) {
                    Some(&limited) => Error::Quota(QuotaError { tenant, limited, most, used, asked }),
                    None => Error::Nonsense("it names a quota that does not exist".to_owned()),
                }
            }
            Self::HeapSize([bytes, smallest, largest]) => Error::HeapSize { bytes, smallest, largest },
            Self::NoAddresses(bytes) => Error::NoAddresses { bytes },
            Self::NoSuchHeap(address) => Error::NoSuchHeap(address),
            Self::Unfit { addresses: Some(addresses), .. } => EntryError::Addresses { addresses }.into(),
            Self::Unfit { tenants: Some(tenants), .. } => EntryError::Tenants { tenants }.into(),
            Self::Unfit { .. } => EntryError::Address.into(),
            Self::Contended => Error::Contended,
            Self::Refused(why) => Error::Refused { at: at.to_owned(), why },
        }
    }
}

/// Returns the sent form of an access list.
pub(super) fn sent_who(who: &Who) -> StoredWho {
    StoredWho::of(who)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{Address, Target};
    use proptest::prelude::*;

    fn tenant(number: usize) -> TenantName {
        TenantName::new(&format!("{number:064}")).expect("a tenant")
    }

    #[test]
    fn the_largest_entry_fits_into_a_message() {
        let all = || Who::tenants((0..Who::TENANTS_MAX).map(tenant)).expect("as many as there can be");
        let long = Address::new(&"x".repeat(Address::BYTES_MAX)).expect("an address");
        let target =
            Target::Node { addresses: vec![long; Target::NODE_ADDRESSES_MAX], memory_bytes: u64::MAX };
        let entry = Entry { target, access: Access { look_up: all(), register: all() } };
        let name = ["x"; Name::SEGMENTS_MAX].join("/");
        let asked = Asked::Register { lease: u64::MAX, name, entry: SentEntry::of(&entry) };
        let question = Question { number: u32::MAX, asked };
        let bytes = encode(&question);
        assert!(bytes.len() <= MESSAGE_BYTES_MAX, "{}", bytes.len());
        let Some(Question { asked: Asked::Register { entry: read, .. }, .. }) = decode(&bytes) else {
            panic!("it reads back")
        };
        assert_eq!(read.read(), Ok(entry));
    }

    #[test]
    fn the_longest_part_of_a_list_fits_into_a_message() {
        let told = Told::Heaps { heaps: vec![(u64::MAX, u64::MAX); PART_MAX], is_more: true };
        assert!(encode(&Reply { number: u32::MAX, told }).len() <= MESSAGE_BYTES_MAX);
        let told = Told::Holders { leases: vec![u64::MAX; PART_MAX], is_more: true };
        assert!(encode(&Reply { number: u32::MAX, told }).len() <= MESSAGE_BYTES_MAX);
    }

    #[test]
    fn the_longest_name_with_its_entry_fits_into_a_message_with_others() {
        let long = Address::new(&"x".repeat(Address::BYTES_MAX)).expect("an address");
        let target =
            Target::Node { addresses: vec![long; Target::NODE_ADDRESSES_MAX], memory_bytes: u64::MAX };
        let found = Found { target, tenant: tenant(1), lease: LeaseId(u64::MAX), registration: u64::MAX };
        let name = ("x".repeat(Name::BYTES_MAX), SentFound::of(&found));
        assert!(encode(&name).len() + 64 <= MESSAGE_BYTES_MAX - NAMES_BYTES_MAX);
    }

    #[test]
    fn numbers_of_quotas_read_back() {
        let given = Quota { process_bytes: 1, tenant_bytes: 2, names: 3, leases: 4 };
        assert_eq!(quota(sent_quota(given)), given);
    }

    #[test]
    fn errors_arrive_as_what_they_are() {
        let (name, bank) = (Name::new("bank/a").expect("a name"), tenant(1));
        let quota = QuotaError { tenant: bank, limited: Limited::Leases, most: 3, used: 2, asked: 1 };
        for error in [
            DirectoryError::NoSuchName(name.clone()),
            DirectoryError::NameTaken(name.clone()),
            DirectoryError::NotAllowed { name, tenant: bank },
            DirectoryError::NotThisTenant { tenant: bank, user: 7 },
            DirectoryError::Unfit(EntryError::Addresses { addresses: 17 }),
            DirectoryError::Unfit(EntryError::Tenants { tenants: 65 }),
            DirectoryError::Unfit(EntryError::Address),
            DirectoryError::LeaseEnded(LeaseId(7)),
            DirectoryError::Quota(quota),
            DirectoryError::HeapSize { bytes: 1, smallest: 2, largest: 3 },
            DirectoryError::NoAddresses { bytes: 5 },
            DirectoryError::NoSuchHeap(9),
            DirectoryError::Contended,
        ] {
            assert_eq!(SentError::of(&error).read("unix:/a"), error);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_none(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Some(Reply { told: Told::No(error), .. }) = decode(&bytes) {
                let _ = error.read("unix:/a");
            }
            if let Some(Question { asked: Asked::Register { entry, .. }, .. }) = decode(&bytes) {
                let _ = entry.read();
            }
        }
    }
}
