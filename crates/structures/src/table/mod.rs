//! An extendible hash table in remote memory: RACE, made to survive its users.
//!
//! All operations are one-sided: reads and atomics of the client, and permissions from the node. A client may die at
//! any step. No other client then waits for longer than two leases, no key is lost or doubled, and no torn value is
//! read.
//!
//! # How it is built
//! - The *head* has the table's options, the directory, and the numbers of all subtables and extents.
//! - A *subtable* has groups of three buckets: a main bucket, the overflow bucket of both, a main bucket. A key has two
//!   combined buckets (a main bucket with its overflow bucket), each of which one read takes.
//! - A *bucket* has seven slots and a header, which defines the hashes of the keys in the bucket.
//! - An *extent* has blocks of one size. A *block* has one key and its value, or the beginning of a long one, or a
//!   piece of it. A block is never changed while a slot names it: a new value is a new block.
//! - An extent that has no block in use goes back to the node, and its memory serves blocks of other sizes.
//!
//! # What each step rests on
//! - A slot is one word, which names a block, its version and a fingerprint. Each change of a key is one
//!   COMPARE_AND_SWAP of its slot. So an operation has happened, or it has not.
//! - A new key is *pending* at first. Its client looks at all slots again, and only then makes the key count. Two
//!   clients that insert one key at the same time cannot both succeed: each has to remove the other's pending slot
//!   first.
//! - A subtable is split bucket by bucket. The client that splits it freezes a bucket's slots, writes the bucket of the
//!   new subtable, and then changes the header of the old bucket. From that moment on the keys that have moved are in
//!   the new one. Readers go on meanwhile. The right to split is an exclusive permission with a lease, which another
//!   client takes over.
//! - The directory is a hint. From each subtable links lead to those that were split off it, so every client finds its
//!   way from any entry, however old.
//! - An extent is given back in steps. Its client retires each of its blocks, with a COMPARE_AND_SWAP that succeeds
//!   only if no client has claimed the block. Once all are retired, no block of it can be claimed any more, and no slot
//!   names one.
//! - Blocks can lie in chunks of the session that makes the table instead ([`BlockMemory::Chunks`]). Then the handle
//!   itself knows which blocks are taken, and no other client can open the table.
//! - A block belongs to its claim from its claim until a lease later, and can get into a slot until another lease
//!   later. A block that is claimed for longer, and in no slot, is an orphan: [`Table::sweep`] frees it.
//!
//! # The parts of a handle
//! Each part has fields of its own, which no other part sees. A part uses only those above it in this list:
//!
//! - `words`, `shape` and `error`: the words of a table, its layout, its errors. They have no state.
//! - `leases`: the permissions that the handle holds. An access to a part of the table (`Leased`) is made under one of
//!   them.
//! - `head`: the words and the records of the head, and the objects that belong to it. It uses `leases`.
//! - `index`: the directory, the subtables, their buckets and slots. It uses `leases` and `head`. It moves slots and does
//!   not know what they name.
//! - `blocks`: the blocks, in extents or in chunks, and the values in them. It uses `leases` and `head`, and never
//!   `index`: to a block, a slot is a name.
//! - `splits`: the splits of subtables. It uses `index`, and asks `blocks` for the keys of the slots that it moves.
//! - `changes`: the turns of the handle's operations that change one key, and the slots that they have left
//!   (`slot_cache`). It looks for nothing.
//!
//! [`Table`] ties them together. Its operations are in the other modules: `find` (get), `store` (insert, update, remove),
//! `scan`, `expiry`, `statistics`, `sweep`, `vacate`, `end`.

mod blocks;
mod changes;
mod end;
mod error;
mod expiry;
mod find;
mod get;
mod head;
mod index;
mod leases;
mod making;
mod scan;
mod shape;
mod slot_cache;
mod splits;
mod statistics;
mod store;
mod sweep;
mod vacate;
mod words;

pub use blocks::{block_bytes, stored_bytes};
pub use error::TableError;
pub use making::Opened;
pub use shape::{BlockMemory, Grain, KEY_BYTES_MAX, LONG_VALUE_BYTES_MAX, TableOptions, VALUE_BYTES_MAX};
pub use splits::SplitUnderWay;
pub use statistics::Statistics;
pub use store::{Condition, Stored};
pub use sweep::Swept;
pub use vacate::Vacated;

use crate::Pipeline;
use blocks::Blocks;
use changes::Changes;
use head::Head;
use index::Index;
use leases::{Leased, Leases, Part};
use portcullis::{
    Allocate, ChunkTerms, Clock, DirectoryName, Effect, Lifetime, Moment, ObjectRef, Rights, TenantName,
    VerbsEndpoint,
};
use portcullis::{ProcessClock, SessionEndpoint};
use shape::{FIRST_WORDS, MADE_AT};
use splits::Splits;
use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use words::Entry;

/// The accesses that a handle may make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Read only: its permissions have no other right.
    Read,
    /// Read and write.
    Write,
}

/// A handle on a table.
///
/// Its operations are futures that a [`Pipeline`] carries out: one with [`Pipeline::block_on`], many at once with
/// [`Pipeline::run`]. Each is linearizable by itself.
pub struct Table<E: VerbsEndpoint = SessionEndpoint, C: Clock = ProcessClock> {
    pipeline: Rc<Pipeline<E, C>>,
    options: TableOptions,
    leases: Rc<Leases<E, C>>,
    head: Rc<Head<E, C>>,
    index: Rc<Index<E, C>>,
    blocks: Rc<Blocks<E, C>>,
    splits: Splits<E, C>,
    changes: Changes<E, C>,
    /// Largest number of bytes of a value that is stored.
    value_bytes_max: Cell<usize>,
}

impl<E: VerbsEndpoint, C: Clock> fmt::Debug for Table<E, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table")
            .field("head", &self.head.object())
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// Longest time that the first write of a table's head may take.
const MADE_WITHIN: Lifetime = Lifetime::seconds(1);

impl<E: VerbsEndpoint, C: Clock> Table<E, C> {
    /// Makes an empty table. [`Table::head`] returns the object that names it.
    ///
    /// # Errors
    /// An option is out of its range, or the node refuses the memory, or has no chunks for blocks in chunks.
    pub async fn create(pipeline: &Rc<Pipeline<E, C>>, options: &TableOptions) -> Result<Self, TableError> {
        let operation = async {
            options.check()?;
            let seed = options.seed_or_drawn()?;
            let terms = match options.blocks {
                BlockMemory::Objects => None,
                BlockMemory::Chunks => Some(pipeline.chunk_terms().await?),
            };
            let ask = Allocate::bytes(options.head_bytes());
            let lifetime = options.lease.max(MADE_WITHIN);
            let head = Rc::new(pipeline.allocate(ask.shared().lifetime(lifetime)).await?);
            let table = Self::new(pipeline, head.object(), (*options, seed), Access::Write, terms);
            table.leases.keep(Part::Head, &head);
            pipeline.zero(&head, options.head_bytes()).await?;
            table.index.make_root().await?;
            pipeline.write(&head, MADE_AT, &first_words(table.head.node_time_under(&head))).await?;
            // The options make the object a table: they are written last.
            pipeline.write(&head, 0, &options.to_bytes(seed)).await?;
            table.head.keep_part(head.object()).await?;
            Ok(table)
        };
        pipeline.limited(("making a table", Effect::Perhaps), operation).await
    }

    /// Gives the table a name in its tenant, by which [`Table::open_named`] finds it.
    ///
    /// # Errors
    /// The name is taken, or the node refuses.
    pub async fn publish(&self, name: DirectoryName) -> Result<(), TableError> {
        let operation = async { Ok(self.pipeline.publish(name, self.head.object()).await?) };
        self.pipeline.limited(("the publication of a table", Effect::Perhaps), operation).await
    }

    /// Opens the table with this name in the client's tenant.
    ///
    /// # Errors
    /// The name does not exist, or an error of [`Table::open`].
    pub async fn open_named(
        pipeline: &Rc<Pipeline<E, C>>,
        name: DirectoryName,
        access: Access,
    ) -> Result<Self, TableError> {
        let operation = async {
            let entry = pipeline.lookup(None, name).await?;
            Self::open(pipeline, entry.object, access).await
        };
        pipeline.limited(("the look-up of a table", Effect::Nothing), operation).await
    }

    /// Opens a table that another tenant shares with the client's own, for reading.
    ///
    /// # Errors
    /// The name does not exist, the table is not shared with this tenant, or an error of [`Table::open`].
    pub async fn open_shared(
        pipeline: &Rc<Pipeline<E, C>>,
        owner: TenantName,
        name: DirectoryName,
    ) -> Result<Self, TableError> {
        let operation = async {
            let entry = pipeline.lookup(Some(owner), name).await?;
            Self::open(pipeline, entry.object, Access::Read).await
        };
        pipeline.limited(("the look-up of a table", Effect::Nothing), operation).await
    }

    /// Lets another tenant read the table, which has this name. The table's memory belongs together: the other tenant
    /// can read all of it, including the content that it had before, and the content that is added later.
    ///
    /// # Errors
    /// The table has no such name, or the node refuses.
    pub async fn share(&self, name: DirectoryName, tenant: TenantName) -> Result<(), TableError> {
        let operation = async { Ok(self.pipeline.share(name, tenant, Rights::READ).await?) };
        self.pipeline.limited(("a request to share a table", Effect::Perhaps), operation).await
    }

    /// Ends the sharing of the table with another tenant. When this returns, no access of the other tenant can succeed
    /// any more.
    ///
    /// # Errors
    /// The table was not shared with this tenant, or the node refuses.
    pub async fn unshare(&self, name: DirectoryName, tenant: TenantName) -> Result<(), TableError> {
        let operation = async { Ok(self.pipeline.unshare(name, tenant).await?) };
        self.pipeline.limited(("a request to share a table no more", Effect::Perhaps), operation).await
    }

    /// Opens a table that exists.
    ///
    /// # Errors
    /// The object is gone or is not a table, or [`TableError::OfOneHandle`].
    pub async fn open(
        pipeline: &Rc<Pipeline<E, C>>,
        head: ObjectRef,
        access: Access,
    ) -> Result<Self, TableError> {
        let operation = async {
            let (options, seed) = Head::read_options(pipeline, head).await?;
            if options.blocks == BlockMemory::Chunks {
                return Err(TableError::OfOneHandle);
            }
            let table = Self::new(pipeline, head, (options, seed), access, None);
            table.index.load_routes().await?;
            Ok(table)
        };
        pipeline.limited(("opening a table", Effect::Nothing), operation).await
    }

    fn new(
        pipeline: &Rc<Pipeline<E, C>>,
        head: ObjectRef,
        (options, seed): (TableOptions, u64),
        access: Access,
        terms: Option<ChunkTerms>,
    ) -> Self {
        // The options of a handle are printed, so they do not contain the seed.
        let options = TableOptions { seed: None, ..options };
        let leases = Rc::new(Leases::new(pipeline, options, access));
        let head = Rc::new(Head::new(pipeline, &leases, options, head));
        let blocks = Rc::new(Blocks::new(pipeline, options, &leases, &head, terms));
        let index = Rc::new(Index::new(pipeline, (options, seed), &leases, &head));
        let splits = Splits::new(pipeline, options, &leases, &index, &blocks);
        let value_bytes_max = Cell::new(VALUE_BYTES_MAX);
        Self {
            pipeline: Rc::clone(pipeline),
            options,
            leases,
            head,
            index,
            blocks,
            splits,
            changes: Changes::new(pipeline, options.lease),
            value_bytes_max,
        }
    }

    /// Returns the object that names the table.
    #[must_use]
    pub fn head(&self) -> ObjectRef {
        self.head.object()
    }

    /// Returns the time since the table was made, or a little more. If a table was made by a version that did not write
    /// this down, returns the time since the node was started.
    ///
    /// # Errors
    /// The table is gone, or the node is gone or refuses.
    pub async fn age(&self) -> Result<Lifetime, TableError> {
        let operation = async {
            let made = Moment(self.head.word(MADE_AT).await?);
            Ok(self.head.node_time().await?.since(made))
        };
        self.pipeline.limited(("a look at the age of a table", Effect::Nothing), operation).await
    }

    /// Returns a split that this handle carries out at this moment. A test of a client's death in the middle of a split
    /// learns from this when that moment has come.
    #[must_use]
    pub fn split_under_way(&self) -> Option<SplitUnderWay> {
        self.splits.under_way()
    }

    /// Returns how finely reads are guarded.
    #[must_use]
    pub fn grain(&self) -> Grain {
        self.options.grain
    }

    /// Returns the lease of [`TableOptions`].
    #[must_use]
    pub fn lease(&self) -> Lifetime {
        self.options.lease
    }
}

/// Encodes the words of a new table's head from the time at which it is made to the first entry of its directory.
fn first_words(made: Moment) -> Vec<u8> {
    let mut words = [0; FIRST_WORDS];
    words[0] = made.0;
    words[FIRST_WORDS - 1] = Entry::new(0, 0).0;
    words.into_iter().flat_map(u64::to_le_bytes).collect()
}
