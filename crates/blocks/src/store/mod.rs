//! The blocks of one node, as one client sees them.
//!
//! A table of the tenant has an entry for each key: the block's length and its object. A block is an object of its own,
//! so each reader has a permission on that block alone.
//!
//! - `put` writes the object first (`write`), then enters it (`enter`), then keeps it. A client that dies in between leaves
//!   an object that ends with its permission, or an entry without an object, which is a miss.
//! - `look` holds the blocks that a look-up has found, and reads blocks.
//! - `remove` and `evict` free the object first, then remove its entry.

mod enter;
mod evict;
mod look;
mod put;
mod remove;
mod write;

pub use look::{Block, Got};
pub use put::Put;

use self::evict::Need;
use crate::counters::Counters;
use crate::entry::Entry;
use crate::error::{BlockError, is_no_room};
use crate::held::HeldBlocks;
use crate::options::StoreOptions;
use crate::recency::Recency;
use portcullis::{
    Acquire, Allocate, BarePermission, Clock, DirectoryName, Error, Keep, Lifetime, Moment, ProcessClock,
    Refusal, SessionEndpoint, VerbsEndpoint,
};
use portcullis_structures::Pipeline;
use portcullis_structures::table::{Opened, Table, TableError, TableOptions};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

/// Lifetime of a permission to read for one call, if the node allows it. The permission is revoked when the call is
/// over. A process that stands still can hold up the memory of a freed block for this long.
const READ_LIFETIME: Lifetime = Lifetime::seconds(2);

/// Lifetime of the permission to write a new block, if the node allows it: no other client wants the block.
const WRITE_LIFETIME: Lifetime = Lifetime::seconds(10);

/// Largest number of keys of one step of a look-up.
const STEP_KEYS: usize = 256;

/// A handle on the blocks of one node.
///
/// Its operations are futures that the handle's [`Pipeline`] carries out. An operation that is dropped midway leaves
/// permissions that end by themselves, at the latest with their lifetime. One that is set aside midway may hold up
/// others of the handle that want room.
pub struct Store<E: VerbsEndpoint = SessionEndpoint, C: Clock = ProcessClock> {
    pipeline: Rc<Pipeline<E, C>>,
    table: Table<E, C>,
    options: StoreOptions,
    read_lifetime: Lifetime,
    write_lifetime: Lifetime,
    age: Lifetime,
    held: RefCell<HeldBlocks>,
    recency: RefCell<Recency>,
    counters: Cell<Counters>,
    /// Whether an operation of this handle evicts blocks.
    evicting: Cell<bool>,
    /// Number of evictions until the next look for blocks that others have stored.
    evictions_to_scan: Cell<u64>,
    /// The room for which operations wait until another one has evicted blocks.
    waiting_need: Cell<Need>,
    /// Time from which the room of the last eviction counts.
    settled_at: Cell<Moment>,
    /// Time until which no other eviction is tried: the last one was in vain.
    in_vain_until: Cell<Moment>,
}

/// The blocks of a store, counted.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Usage {
    /// Number of blocks.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Number of blocks that no client evicts.
    pub pinned: u64,
    /// The bytes of those.
    pub pinned_bytes: u64,
}

impl<E: VerbsEndpoint, C: Clock> fmt::Debug for Store<E, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("table", &self.table)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl<E: VerbsEndpoint, C: Clock> Store<E, C> {
    /// Opens the store whose table has this name in the client's tenant. If there is none, makes it.
    ///
    /// # Errors
    /// [`TableError::NotKept`]: blocks that are not kept end with the call that stores them. The node does not allow such a
    /// lease or keep, the name is one of something else, or the node is gone or refuses.
    pub async fn open(
        pipeline: &Rc<Pipeline<E, C>>,
        name: DirectoryName,
        options: &StoreOptions,
    ) -> Result<Self, BlockError> {
        if options.keep == Keep::No {
            return Err(TableError::NotKept.into());
        }
        let longest = tried_grant(pipeline, options).await?;
        let table_options = TableOptions {
            seed: options.seed,
            lease: options.table_lease,
            keep: options.keep,
            ..TableOptions::default()
        };
        let (Opened::Found(table) | Opened::Made(table)) =
            Table::open_or_make(pipeline, name, &table_options).await?;
        // The memory that the table wants is there after an eviction.
        table.let_caller_make_room();
        Ok(Self {
            pipeline: Rc::clone(pipeline),
            age: table.age().await?,
            table,
            options: *options,
            read_lifetime: READ_LIFETIME.min(longest),
            write_lifetime: WRITE_LIFETIME.min(longest),
            held: RefCell::default(),
            recency: RefCell::default(),
            counters: Cell::default(),
            evicting: Cell::default(),
            evictions_to_scan: Cell::default(),
            waiting_need: Cell::default(),
            settled_at: Cell::new(Moment(0)),
            in_vain_until: Cell::new(Moment(0)),
        })
    }

    /// Ends the leases of look-ups and the permissions of the handle. The blocks stay.
    ///
    /// # Errors
    /// The session failed.
    pub async fn close(self) -> Result<(), BlockError> {
        let held = self.held.borrow_mut().let_all_go();
        self.revoke(held).await;
        Ok(self.table.close().await?)
    }

    /// Returns the age that the store had when this handle was opened. A store has none of the blocks that were put on its
    /// node before: the node was started anew, or has freed its memory since no client was left.
    #[must_use]
    pub fn age(&self) -> Lifetime {
        self.age
    }

    /// Counts of what became of the keys of this handle's operations.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters.get()
    }

    /// Hands each key to `each`, with the length of its block and whether it is pinned, in no order. A block that is
    /// stored or removed meanwhile is handed over or not.
    ///
    /// # Errors
    /// The table failed, or the node is gone.
    pub async fn for_each(&self, mut each: impl FnMut(&[u8], u64, bool)) -> Result<(), BlockError> {
        self.for_each_entry(|key, entry| each(key, entry.length, entry.is_pinned)).await
    }

    /// Counts the blocks.
    ///
    /// # Errors
    /// As [`Store::for_each`].
    pub async fn usage(&self) -> Result<Usage, BlockError> {
        let mut usage = Usage::default();
        let count = |_: &[u8], entry: Entry| {
            usage.blocks += 1;
            usage.bytes = usage.bytes.saturating_add(entry.length);
            if entry.is_pinned {
                usage.pinned += 1;
                usage.pinned_bytes = usage.pinned_bytes.saturating_add(entry.length);
            }
        };
        self.for_each_entry(count).await?;
        Ok(usage)
    }

    async fn for_each_entry(&self, mut each: impl FnMut(&[u8], Entry)) -> Result<(), BlockError> {
        let look = |key: &[u8], value: &[u8]| {
            if let Some(entry) = Entry::from_bytes(value) {
                each(key, entry);
            }
        };
        Ok(self.table.for_each(look).await?)
    }
}

impl<E: VerbsEndpoint, C: Clock> Store<E, C> {
    /// Fails if the node owes an answer that was given up: each further step would probably wait for its whole limit.
    fn check_heard(&self) -> Result<(), BlockError> {
        if self.pipeline.is_silent() { Err(BlockError::Silent) } else { Ok(()) }
    }

    fn count(&self, count: impl FnOnce(&mut Counters)) {
        let mut counters = self.counters.get();
        count(&mut counters);
        self.counters.set(counters);
    }

    /// Acquires shared permissions to read blocks, all at once. Returns each one, or the error in its place. An
    /// object of another length than its entry says is not the block: another program of the tenant has written the
    /// entry.
    async fn acquire(
        &self,
        entries: impl Iterator<Item = Entry>,
        lifetime: Lifetime,
    ) -> Vec<Result<Rc<BarePermission>, Error>> {
        let ask = |entry: &Entry| {
            Acquire::object(entry.object).lifetime(lifetime).read_only().shared().wait(Lifetime(0))
        };
        let entries: Vec<_> = entries.collect();
        let mut granted = each(entries.iter().map(|entry| self.pipeline.acquire(ask(entry)))).await;
        let mut others = Vec::new();
        for (granted, entry) in granted.iter_mut().zip(&entries) {
            if granted.as_ref().is_ok_and(|permission| permission.length() != entry.length) {
                others.extend(std::mem::replace(granted, Err(Error::Refused(Refusal::Gone))).ok());
            }
        }
        self.revoke(others.into_iter().map(Rc::new)).await;
        granted.into_iter().map(|granted| granted.map(Rc::new)).collect()
    }

    /// Revokes permissions. One that cannot be revoked has ended before, or ends with its lifetime.
    async fn revoke(&self, permissions: impl IntoIterator<Item = Rc<BarePermission>>) {
        self.end(permissions, false).await;
    }

    /// Ends permissions. `free`: also frees their objects, which end with the permissions in any case if they are not
    /// kept.
    async fn end(&self, permissions: impl IntoIterator<Item = Rc<BarePermission>>, free: bool) {
        // A permission that another operation still uses ends with its lifetime.
        let permissions = permissions.into_iter().filter_map(|permission| Rc::try_unwrap(permission).ok());
        each(permissions.map(|permission| self.pipeline.revoke(permission, free))).await;
    }
}

/// Makes requests all at once, and waits for them. Returns the end of each.
async fn each<T>(requests: impl Iterator<Item: Future<Output = Result<T, Error>>>) -> Vec<Result<T, Error>> {
    let under_way: Vec<_> = requests.collect();
    let mut ends = Vec::with_capacity(under_way.len());
    for request in under_way {
        ends.push(request.await);
    }
    ends
}

/// Whether an object is gone, also with its node's last run.
fn is_gone(error: &Error) -> bool {
    matches!(error, Error::Refused(Refusal::Gone | Refusal::AnotherNode))
}

/// Returns the first error after which the session cannot be used any more.
fn end_of_session<'e>(errors: impl IntoIterator<Item = &'e Error>) -> Result<(), BlockError> {
    let ends = |error: &&Error| {
        matches!(error, Error::SessionLost | Error::NodeGone | Error::LocalFault(_) | Error::Barred)
    };
    errors.into_iter().find(ends).map_or(Ok(()), |error| Err(BlockError::Session(*error)))
}

/// Checks with an object of its own that the node allows the lease and the keep. Returns the longest lifetime that the node
/// allows, if it is less than the store's longest.
async fn tried_grant<E: VerbsEndpoint, C: Clock>(
    pipeline: &Pipeline<E, C>,
    options: &StoreOptions,
) -> Result<Lifetime, BlockError> {
    let mut lifetime = options.lease.max(WRITE_LIFETIME);
    loop {
        let ask = Allocate { keep: options.keep, ..Allocate::bytes(8).lifetime(lifetime) };
        match pipeline.allocate(ask).await {
            Ok(permission) => {
                // If this fails, the object ends with its permission, or is one of eight bytes.
                let _ = pipeline.revoke(permission, true).await;
                return Ok(lifetime);
            }
            // The node has checked the rest before.
            Err(error) if is_no_room(&error) => return Ok(lifetime),
            Err(Error::Refused(Refusal::LifetimeTooLong { longest }))
                if longest >= options.lease && longest < lifetime =>
            {
                lifetime = longest;
            }
            Err(error) => return Err(error.into()),
        }
    }
}
