//! Which table on which node a command is about, and the way there.

use super::trouble::Trouble;
use crate::rdma::ClientOptions;
use clap::Args;
use portcullis::{DirectoryName, SessionOptions, connect_with};
use portcullis_structures::Pipeline;
use portcullis_structures::table::{Access, Table};
use std::rc::Rc;

/// The arena of a client that has a few operations under way. The largest block takes about a third of it.
pub const ARENA_BYTES: u64 = 4 << 20;
/// The arena of a client that has many under way.
pub const LARGE_ARENA_BYTES: u64 = 32 << 20;

/// A table on a node.
#[derive(Args, Clone, Debug)]
pub struct Target {
    /// The node, for example shm:/run/portcullis.sock or rdma:node1:7471.
    #[arg(long, value_name = "ADDRESS")]
    node: String,
    #[command(flatten)]
    client: ClientOptions,
    /// The table's name: 1 to 48 bytes of text.
    #[arg(value_name = "TABLE")]
    pub table: DirectoryName,
}

impl Target {
    /// A session with the node, and a pipeline on it.
    pub fn connect(&self, arena_bytes: u64) -> Result<Rc<Pipeline>, Trouble> {
        let options = SessionOptions { arena_bytes, rdma: self.client.rdma()?, ..SessionOptions::default() };
        Ok(Rc::new(Pipeline::new(connect_with(&self.node, options)?)))
    }

    /// The table, which has to be there.
    pub fn open(&self, pipeline: &Rc<Pipeline>, access: Access) -> Result<Table, Trouble> {
        let opened = pipeline.block_on(Table::open_named(pipeline, self.table, access));
        opened.map_err(Trouble::of(self.table))
    }
}
