//! A directory in etcd, for a cluster that has outgrown one machine.
//!
//! etcd's own leases, watches and transactions do the work. An entry ends with its lease because etcd ends it. A
//! decision based on data that was read is written in a transaction that compares that data. This module keeps no state
//! beside etcd.
//!
//! **A process that may write below the prefix in etcd can do everything here**: the users of this module check access
//! lists and quotas. So etcd is for RPCool's trusted daemons: give certificates to them, and to no other process.
//!
//! **It uses etcd's JSON gateway**, which every etcd from 3.4 on has. The `etcd-client` crate uses gRPC, depends on
//! tokio and tonic, and needs `protoc` on the build machine.
//!
//! **When etcd is unavailable**, calls fail with [`DirectoryError::Away`] within [`EtcdOptions::patience`]. Confirmed
//! data is there when etcd returns, and leases live on: etcd gives them their time again when it starts.

mod api;
mod claims;
mod endpoint;
mod gateway;
mod heaps;
mod keys;
mod leases;
mod names;
mod records;
mod watch;

pub use endpoint::Identity;

use crate::addresses::{HeapRange, Space};
use crate::clock;
use crate::directory::{Directory, Watch};
use crate::entry::{Entry, Found, Who};
use crate::error::DirectoryError;
use crate::lease::{Lease, LeaseId};
use crate::name::Name;
use crate::quota::{Quota, Usage};
use api::{Answer, Compare, Keys, Number, Read, ReadAnswer, RequestOp, Transaction};
use endpoint::Endpoints;
use gateway::{Failure, Gateway, Repeat};
use keys::Layout;
use portcullis_protocol::TenantName;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The address of etcd, and the directory's part of it.
#[derive(Clone, Debug)]
pub struct EtcdOptions {
    /// The addresses of etcd's members with commas between them, such as `http://127.0.0.1:2379`. `http://` is for
    /// loopback only.
    pub endpoints: String,
    /// Prefix of all keys, after a leading slash: `portcullis` by default. Two prefixes are two directories.
    pub prefix: Name,
    /// Maximum duration of a call: 5 seconds by default.
    pub patience: Duration,
    /// The expected identity of etcd at `https://` addresses, and the client's own certificate.
    pub identity: Option<Identity>,
}

impl EtcdOptions {
    /// Returns the options for the etcd at these addresses, with defaults for the rest.
    ///
    /// # Panics
    /// Never: the usual prefix is a name.
    #[must_use]
    pub fn new(endpoints: impl Into<String>) -> Self {
        let prefix = Name::new("portcullis").expect("it is a name");
        Self { endpoints: endpoints.into(), prefix, patience: Duration::from_secs(5), identity: None }
    }

    /// Checks that the options are valid, without a connection to etcd.
    ///
    /// # Errors
    /// An address is not valid, or leads over a network without TLS; or the identity cannot be used.
    pub fn check(&self) -> Result<(), DirectoryError> {
        endpoint::agent(self.identity.as_ref())?;
        Endpoints::parse(&self.endpoints).map(|_| ())
    }
}

/// A directory in etcd. Clones share the same directory.
#[derive(Clone, Debug)]
pub struct Etcd(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    gateway: Gateway,
    layout: Layout,
    patience: Duration,
    space: Space,
}

/// Number of times that a transaction is tried when other processes have changed the data that was read.
const TRIES: usize = 64;

impl Etcd {
    /// Connects to the directory. It allocates the addresses of `space`; all its users must give the same.
    ///
    /// # Errors
    /// The options are not valid, etcd is away, or its directory allocates other addresses.
    pub fn connect(options: &EtcdOptions, space: Space) -> Result<Self, DirectoryError> {
        let gateway =
            Gateway::new(endpoint::agent(options.identity.as_ref())?, Endpoints::parse(&options.endpoints)?);
        let layout = Layout::new(&options.prefix);
        let etcd = Self(Arc::new(Shared { gateway, layout, patience: options.patience, space }));
        etcd.agree_on_space()?;
        Ok(etcd)
    }

    /// Checks that the directory has this space. The first process that connects stores its own.
    fn agree_on_space(&self) -> Result<(), DirectoryError> {
        let space = &self.0.space;
        let (smallest, largest) = space.sizes();
        let given = format!("{:x?} for heaps of {smallest} to {largest} bytes", space.addresses());
        let key = self.0.layout.space();
        let transaction = Transaction {
            compare: vec![Compare::is_absent(Keys::one(&key))],
            success: vec![RequestOp::put(&key, given.as_str(), Number(0))],
            failure: vec![RequestOp::read(Keys::one(&key))],
        };
        let answer = self.settle(&transaction, Repeat::Yes, self.until());
        let answer = answer.map_err(Failure::of_no_lease)?;
        if answer.succeeded {
            return Ok(());
        }
        let stored = answer.responses.first().and_then(|told| told.response_range.kvs.first());
        let stored = stored.map(|stored| String::from_utf8_lossy(&stored.value.0).into_owned());
        match stored {
            Some(stored) if stored == given => Ok(()),
            stored => Err(DirectoryError::OtherSpace { stored: stored.unwrap_or_default(), given }),
        }
    }

    /// Returns the time at which a call that begins now must end.
    fn until(&self) -> Instant {
        clock::now() + self.0.patience
    }

    fn read(&self, keys: Keys, until: Instant) -> Result<ReadAnswer, DirectoryError> {
        let read = self.0.gateway.ask("kv/range", &Read::all(keys), Repeat::Yes, until);
        read.map_err(Failure::of_no_lease)
    }

    /// Reads several keys at one revision.
    fn read_all(
        &self,
        reads: Vec<RequestOp>,
        until: Instant,
    ) -> Result<(Number, Vec<ReadAnswer>), DirectoryError> {
        let (expected, transaction) = (reads.len(), Transaction { success: reads, ..Transaction::default() });
        let answer = self.settle(&transaction, Repeat::Yes, until).map_err(Failure::of_no_lease)?;
        if answer.responses.len() != expected {
            return Err(DirectoryError::Nonsense("etcd has left out parts of an answer".to_owned()));
        }
        let parts = answer.responses.into_iter().map(|told| told.response_range).collect();
        Ok((answer.header.revision, parts))
    }

    fn settle(&self, transaction: &Transaction, repeat: Repeat, until: Instant) -> Result<Answer, Failure> {
        self.0.gateway.ask("kv/txn", transaction, repeat, until)
    }

    /// Repeats a transaction until no other process interferes, or there is an error.
    fn try_again<T>(
        &self,
        mut once: impl FnMut(Instant) -> Result<Option<T>, DirectoryError>,
    ) -> Result<T, DirectoryError> {
        let until = self.until();
        for _ in 0..TRIES {
            if let Some(done) = once(until)? {
                return Ok(done);
            }
            if clock::now() >= until {
                break;
            }
        }
        Err(DirectoryError::Contended)
    }
}

/// Returns the number of a lease in etcd's form.
fn lease_number(id: LeaseId) -> Number {
    Number(id.0.cast_signed())
}

impl Directory for Etcd {
    fn open_lease(&self, tenant: &TenantName, time_to_live: Duration) -> Result<Lease, DirectoryError> {
        leases::open(self, tenant, time_to_live)
    }

    fn keep_alive(&self, lease: &Lease) -> Result<(), DirectoryError> {
        leases::keep_alive(self, lease)
    }

    fn end_lease(&self, lease: &Lease) -> Result<(), DirectoryError> {
        leases::end(self, lease.id())
    }

    fn register(&self, lease: &Lease, name: &Name, entry: &Entry) -> Result<(), DirectoryError> {
        entry.check()?;
        self.try_again(|until| names::register(self, lease, name, entry, until))
    }

    fn withdraw(&self, lease: &Lease, name: &Name) -> Result<(), DirectoryError> {
        names::withdraw(self, lease, name)
    }

    fn look_up(&self, tenant: &TenantName, name: &Name) -> Result<Found, DirectoryError> {
        let found = names::look_up(self, tenant, name)?;
        found.ok_or_else(|| DirectoryError::NoSuchName(name.clone()))
    }

    fn watch(
        &self,
        tenant: &TenantName,
        name: &Name,
    ) -> Result<Box<dyn Watch<Option<Found>>>, DirectoryError> {
        names::watch(self, tenant, name)
    }

    fn list(&self, tenant: &TenantName, above: &Name) -> Result<BTreeMap<Name, Found>, DirectoryError> {
        names::list(self, tenant, above)
    }

    fn watch_list(
        &self,
        tenant: &TenantName,
        above: &Name,
    ) -> Result<Box<dyn Watch<BTreeMap<Name, Found>>>, DirectoryError> {
        names::watch_list(self, tenant, above)
    }

    fn create_heap(&self, lease: &Lease, bytes: u64, others: &Who) -> Result<HeapRange, DirectoryError> {
        heaps::create(self, lease, bytes, others)
    }

    fn hold_heap(&self, lease: &Lease, address: u64) -> Result<HeapRange, DirectoryError> {
        self.try_again(|until| heaps::hold(self, lease, address, until))
    }

    fn release_heap(&self, lease: &Lease, address: u64) -> Result<(), DirectoryError> {
        heaps::release(self, lease, address)
    }

    fn heaps(&self, lease: &Lease) -> Result<Vec<HeapRange>, DirectoryError> {
        heaps::held(self, lease)
    }

    fn watch_heap(
        &self,
        lease: &Lease,
        address: u64,
    ) -> Result<Box<dyn Watch<BTreeSet<LeaseId>>>, DirectoryError> {
        heaps::watch(self, lease, address)
    }

    fn reclaim(&self) -> Result<Vec<HeapRange>, DirectoryError> {
        heaps::reclaim(self, &self.0.space.addresses())
    }

    fn set_quota(&self, tenant: Option<&TenantName>, quota: Quota) -> Result<(), DirectoryError> {
        let put = RequestOp::put(&self.0.layout.quota(tenant), records::quota_bytes(quota), Number(0));
        let transaction = Transaction { success: vec![put], ..Transaction::default() };
        self.settle(&transaction, Repeat::Yes, self.until()).map(|_| ()).map_err(Failure::of_no_lease)
    }

    fn usage(&self, lease: &Lease) -> Result<Usage, DirectoryError> {
        let claims = claims::read(self, lease.tenant(), self.until())?;
        Ok(claims.of(self, lease)?.usage)
    }
}
