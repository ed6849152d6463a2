//! What a directory says no with.

use crate::entry::EntryError;
use crate::lease::LeaseId;
use crate::name::Name;
use crate::quota::QuotaError;
use portcullis_errors::{Coded, ErrorCode};
use portcullis_protocol::TenantName;

/// A directory did not do what it was asked for.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirectoryError {
    /// Nothing has the name that the asking tenant may see. Of a name to be withdrawn: this lease has not registered it.
    #[error("there is nothing called {0} in the directory, or it is not for this tenant")]
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
    /// A part of the entry is none that an entry can have.
    #[error(transparent)]
    Unfit(#[from] EntryError),
    /// The lease has ended, and everything with it.
    #[error("the lease {0} with the directory has ended: it was not kept alive in time, or was given back")]
    LeaseEnded(LeaseId),
    /// There is no room in a quota.
    #[error(transparent)]
    Quota(#[from] QuotaError),
    /// No heap can have so many bytes.
    #[error("a heap has {smallest} to {largest} bytes, not {bytes}")]
    HeapSize {
        /// How many were asked for.
        bytes: u64,
        /// Bytes of the smallest heap.
        smallest: u64,
        /// Bytes of the largest heap.
        largest: u64,
    },
    /// All places for heaps of this size are taken.
    #[error("all addresses for heaps of {bytes} bytes are taken")]
    NoAddresses {
        /// How many bytes were asked for.
        bytes: u64,
    },
    /// No heap lies there that this lease holds, or that the tenant may hold.
    #[error("there is no heap at {0:#x}, or it is not for this process")]
    NoSuchHeap(u64),
    /// The directory cannot be reached, or does not answer in time.
    #[error("the directory at {at} does not answer: {why}{}", uncertain(*.may_have_happened))]
    Away {
        /// Where it was asked last.
        at: String,
        /// What came instead of an answer.
        why: String,
        /// Whether what was asked for may have been carried out.
        may_have_happened: bool,
    },
    /// The directory has refused the request itself.
    #[error("the directory at {at} refuses: {why}")]
    Refused {
        /// Where it was asked.
        at: String,
        /// What it said.
        why: String,
    },
    /// The directory's answer, or what is stored in it, makes no sense.
    #[error("the directory says what makes no sense: {0}")]
    Nonsense(String),
    /// Others changed the same things again and again, so the request never came through. Nothing was changed.
    #[error("others change the same things in the directory all the time: try again later")]
    Contended,
    /// The directory is used with other addresses for heaps.
    #[error(
        "the directory gives out other addresses than this process was told: {stored} there, {given} here"
    )]
    OtherSpace {
        /// What the directory has.
        stored: String,
        /// What this process was told.
        given: String,
    },
    /// The text is no address of a directory, or leads where no directory is reached safely.
    #[error("{text} is no address of a directory: {why}")]
    BadEndpoint {
        /// The text.
        text: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The directory is in etcd, and this program was built without.
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
        /// Which file's content.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },
}

fn uncertain(may_have_happened: bool) -> &'static str {
    if may_have_happened { ". What was asked for may have happened" } else { ". Nothing was changed" }
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
