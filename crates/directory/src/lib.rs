//! The directory of a cluster (RPCool §4.1, §4.2, §4.6): what has which name, which addresses each heap has, who holds what and
//! until when, and how much that may be.
//!
//! - [`Directory`]: what its users see. [`Embedded`] is one within a process, [`Remote`] that of another process of the machine,
//!   which serves it ([`Server`]), `etcd::Etcd` one for a cluster; all keep the same promises, and pass the same tests.
//! - [`Ledger`]: the state of the embedded one, without I/O and without a clock.
//! - [`Name`], [`Entry`], [`Access`]: what is registered, and who may see it.
//! - [`Lease`]: everything that a process has in the directory ends with its lease. [`Watch`]: who is told.
//! - [`Place`]: where a directory is, as text. [`Registration`]: what a process that serves keeps registered.
//! - [`ScopedAddress`]: an address, and from where it leads there.
//! - [`Space`], [`HeapRange`]: the addresses of heaps. [`Quota`]: how many bytes of heaps.
#![forbid(unsafe_code)]

mod addresses;
mod clock;
mod directory;
mod embedded;
mod entry;
mod error;
#[cfg(feature = "etcd")]
pub mod etcd;
mod lease;
mod ledger;
mod name;
mod place;
mod quota;
mod record;
mod registrar;
mod registration;
mod scoped;
mod sentry;
mod socket;

pub use addresses::{HeapRange, Space, SpaceError};
pub use directory::{Directory, Watch};
pub use embedded::Embedded;
pub use entry::{Access, Address, Entry, EntryError, Found, Target, Who};
pub use error::DirectoryError;
pub use lease::{LEASE_MAX, LEASE_MIN, Lease, LeaseId};
pub use ledger::Ledger;
pub use name::{Name, NameError};
pub use place::{OpenOptions, Place};
pub use quota::{Limited, Quota, QuotaError, Usage};
pub use registrar::{Change, Holding, Registrar};
pub use registration::{Registration, StartError};
pub use scoped::{NotHere, Scope, ScopedAddress};
pub use socket::{Remote, Server, Trust};
