//! Options of a store on several nodes.

use crate::StoreOptions;
use portcullis::names::Name;
use portcullis::{DirectoryName, SessionOptions};
use std::time::Duration;

/// The least memory of a session for transfers.
pub(super) const ARENA_BYTES_MIN: u64 = 4 << 20;

/// The nodes of a store.
#[derive(Clone, Debug)]
pub enum NodeSource {
    /// The nodes at these addresses, each with the same part of the blocks: `shm:/run/portcullis.sock`,
    /// `udp:HOST:PORT`, `name:TENANT/NODE`. Clients that write an address in two ways rank its node in two ways.
    Addresses(Vec<String>),
    /// The nodes that are registered below this name in the directory of [`SpreadOptions::session`], each with a part
    /// of the blocks as large as its part of the memory. Nodes that join and leave are noticed.
    Below(Name),
}

/// How a handle spreads blocks over nodes.
#[derive(Clone, Debug)]
pub struct SpreadOptions {
    /// Number of nodes on which a put stores each block.
    pub copies: usize,
    /// The name of the blocks' table in the client's tenant, on each node.
    pub table: DirectoryName,
    /// How each node holds blocks.
    pub store: StoreOptions,
    /// The sessions. [`SessionOptions::within`] limits the time for which a node that stands still holds up an
    /// operation. [`SessionOptions::arena_bytes`], at least 4 MiB, is the memory for transfers with each node. More
    /// of it allows more operations at a time: one for each 2 MiB above the first 2 MiB, up to 16.
    pub session: SessionOptions,
    /// Time for which a node is young after it has joined, was started anew, or has freed its blocks since no client was
    /// left: gets look for blocks that were stored before one rank further, and copy blocks to it that it should have.
    pub young_for: Duration,
    /// Interval between two attempts to reach a lost node.
    pub retried_every: Duration,
}

impl Default for SpreadOptions {
    fn default() -> Self {
        Self {
            copies: 1,
            table: DirectoryName::new("blocks").expect("a name"),
            store: StoreOptions::default(),
            session: SessionOptions {
                within: portcullis::Lifetime::seconds(2),
                arena_bytes: 16 << 20,
                ..SessionOptions::default()
            },
            young_for: Duration::from_secs(3_600),
            retried_every: Duration::from_secs(1),
        }
    }
}
