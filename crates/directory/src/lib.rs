//! The directory of a cluster (RPCool §4.1, §4.2, §4.6): names and their entries, the addresses of heaps, leases with
//! what each holds, and quotas.
//!
//! - [`Directory`]: the interface for users. [`Embedded`] is a directory within a process, [`Remote`] accesses that of
//!   another process of the machine, which serves it ([`Server`]), and `etcd::Etcd` is a directory for a cluster. All
//!   keep the same promises, and pass the same tests.
//! - [`DirectoryState`]: the state of the embedded directory, without I/O and without a clock.
//! - [`Name`], [`Entry`], [`Access`]: registered names and the access to them.
//! - [`Lease`]: everything that a process has in the directory ends with its lease. [`Watch`]: notification of changes.
//! - [`DirectoryAddress`]: the address of a directory, as text. [`Registration`]: keeps a serving process registered.
//! - [`ScopedAddress`]: an address, with the scope from which it is valid.
//! - [`Space`], [`HeapRange`]: the addresses of heaps. [`Quota`]: limits such as the bytes of heaps.
#![forbid(unsafe_code)]

mod addresses;
mod clock;
mod directory;
mod directory_address;
mod embedded;
mod entry;
mod error;
#[cfg(feature = "etcd")]
pub mod etcd;
mod lease;
mod name;
mod quota;
mod record;
mod registrar;
mod registration;
mod scoped;
mod sentry;
mod socket;
mod state;

pub use addresses::{HeapRange, Space, SpaceError};
pub use directory::{Directory, Watch};
pub use directory_address::{DirectoryAddress, OpenOptions};
pub use embedded::Embedded;
pub use entry::{Access, Address, Entry, EntryError, Found, Target, Who};
pub use error::DirectoryError;
pub use lease::{LEASE_MAX, LEASE_MIN, Lease, LeaseId};
pub use name::{Name, NameError};
pub use quota::{Limited, Quota, QuotaError, Usage};
pub use registrar::{Change, Holding, Registrar};
pub use registration::{Registration, StartError};
pub use scoped::{NotHere, Scope, ScopedAddress};
pub use socket::{Remote, Server, Trust};
pub use state::DirectoryState;
