//! Options of a handle on a store.

use portcullis::{Keep, Lifetime};
use portcullis_structures::table::TableOptions;

/// How a handle holds blocks, and how long new ones are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreOptions {
    /// Time for which a look-up holds the blocks that it finds, at most the node's longest lifetime. A read that
    /// begins within half of this time finds the block. 0: a look-up holds nothing, and a block that it has found may
    /// be gone when it is read.
    pub lease: Lifetime,
    /// How long the death of a client can hold up others that change the table of the keys: twice this at the most.
    pub table_lease: Lifetime,
    /// The seed of the table of the keys, for a test that can be repeated. `None`: a number is drawn.
    pub seed: Option<u64>,
    /// Largest number of blocks that look-ups hold at a time. A look-up that finds more of them reports them without a
    /// lease.
    pub leases_max: usize,
    /// Time for which a block is kept when no client has a permission on it, at most what the node allows.
    pub keep: Keep,
    /// Whether a store without room evicts blocks that have not been used for long. Otherwise it stores no more blocks
    /// until some are removed.
    pub evicts: bool,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            lease: Lifetime::seconds(2),
            table_lease: TableOptions::default().lease,
            seed: None,
            leases_max: 4_096,
            keep: Keep::Attached,
            evicts: true,
        }
    }
}
