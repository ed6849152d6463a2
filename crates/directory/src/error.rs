//! The errors of a directory.

use crate::entry::EntryError;
use crate::lease::LeaseId;
use crate::name::Name;
use crate::quota::QuotaError;
use portcullis_errors::{Coded, ErrorCode};
use portcullis_protocol::TenantName;

/// A directory did not carry out a request.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirectoryError {
    /// The name has no entry that the requesting tenant may see. When withdrawing: this lease has not registered the
    /// name.
    #[error("the directory has no entry {0}, or it is not for this tenant")]
    NoSuchName(Name),
    /// Another process has registered the name.
    #[error(
        "another process has registered {0} in the directory: choose another name, or wait until its lease ends"
    )]
    NameTaken(Name),
    /// The tenant may not register the name.
    #[error(
        "tenant {tenant} may not register {name}: it is not below `{tenant}/`, and no name above it is registered that lets \
         the tenant"
    )]
    NotAllowed {
        /// The name.
        name: Name,
        /// The tenant.
        tenant: TenantName,
    },
    /// The process may not act for the tenant.
    #[error(
        "user {user} may not act for tenant {tenant} in the directory: processes of that user are tenant uid:{user} there"
    )]
    NotThisTenant {
        /// The tenant.
        tenant: TenantName,
        /// The user of the process.
        user: u32,
    },
    /// A part of the entry is not valid.
    #[error(transparent)]
    Unfit(#[from] EntryError),
    /// The lease has ended, and everything that belonged to it.
    #[error("the lease {0} with the directory has ended: it was not kept alive in time, or was given back")]
    LeaseEnded(LeaseId),
    /// A quota has no room.
    #[error(transparent)]
    Quota(#[from] QuotaError),
    /// No heap can have the requested size.
    #[error("a heap has {smallest} to {largest} bytes, not {bytes}")]
    HeapSize {
        /// Number of bytes requested.
        bytes: u64,
        /// Bytes of the smallest heap.
        smallest: u64,
        /// Bytes of the largest heap.
        largest: u64,
    },
    /// All places for heaps of this size are taken.
    #[error("all addresses for heaps of {bytes} bytes are taken")]
    NoAddresses {
        /// Number of bytes requested.
        bytes: u64,
    },
    /// No heap is at this address that this lease holds, or that the tenant may hold.
    #[error("there is no heap at {0:#x}, or it is not for this process")]
    NoSuchHeap(u64),
    /// The directory cannot be reached, or does not answer in time.
    #[error("the directory at {at} does not answer: {why}{}", uncertain(*.may_have_happened))]
    Away {
        /// The address of the last request.
        at: String,
        /// The failure in place of an answer.
        why: String,
        /// Whether the request may have been carried out.
        may_have_happened: bool,
    },
    /// The directory has refused the request itself.
    #[error("the directory at {at} refuses: {why}")]
    Refused {
        /// The address of the request.
        at: String,
        /// The directory's reason.
        why: String,
    },
    /// The directory's answer, or its stored data, is not valid.
    #[error("the directory's answer makes no sense: {0}")]
    Nonsense(String),
    /// Other processes changed the same data again and again, so that the request never succeeded. Nothing was changed.
    #[error("others change the same things in the directory all the time: try again later")]
    Contended,
    /// The directory is in use with another address space for heaps.
    #[error(
        "the directory gives out other addresses than this process was configured with: {stored} there, {given} here"
    )]
    OtherSpace {
        /// The directory's address space.
        stored: String,
        /// This process's address space.
        given: String,
    },
    /// The text is not an address of a directory, or the directory cannot be reached safely there.
    #[error("{text} is not the address of a directory: {why}")]
    BadEndpoint {
        /// The text.
        text: String,
        /// Reason for the failure.
        why: &'static str,
    },
    /// The directory is in etcd, and this program was built without support for etcd.
    #[error(
        "{text} is a directory in etcd, and this program was built without: build the crate portcullis-directory with its \
         feature \"etcd\""
    )]
    WithoutEtcd {
        /// The directory's address.
        text: String,
    },
    /// A certificate or a key for the directory cannot be used.
    #[error("{what} for the directory cannot be used: {why}")]
    BadIdentity {
        /// The file whose content cannot be used.
        what: &'static str,
        /// Reason for the failure.
        why: String,
    },
}

fn uncertain(may_have_happened: bool) -> &'static str {
    if may_have_happened { ". The request may have taken effect" } else { ". Nothing was changed" }
}

impl Coded for DirectoryError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::NoSuchName(_) => ErrorCode::NoSuchName,
            Self::NameTaken(_) => ErrorCode::NameTaken,
            Self::NotAllowed { .. } => ErrorCode::RegistrationNotAllowed,
            Self::NotThisTenant { .. } => ErrorCode::NotThisTenant,
            Self::Unfit(error) => error.code(),
            Self::LeaseEnded(_) => ErrorCode::LeaseEnded,
            Self::Quota(error) => error.code(),
            Self::HeapSize { .. } => ErrorCode::HeapSize,
            Self::NoAddresses { .. } => ErrorCode::NoAddresses,
            Self::NoSuchHeap(_) => ErrorCode::NoSuchHeap,
            Self::Away { .. } => ErrorCode::DirectoryAway,
            Self::Refused { .. } => ErrorCode::DirectoryRefused,
            Self::Nonsense(_) => ErrorCode::DirectoryNonsense,
            Self::Contended => ErrorCode::DirectoryContended,
            Self::OtherSpace { .. } => ErrorCode::Configuration,
            Self::BadEndpoint { .. } => ErrorCode::UnknownAddress,
            Self::WithoutEtcd { .. } => ErrorCode::WithoutEtcd,
            Self::BadIdentity { .. } => ErrorCode::IdentityUnacceptable,
        }
    }
}
