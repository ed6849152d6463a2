//! The node and the table that a command uses, and the connection to them.

use super::command_error::KvCommandError;
use crate::network::ClientOptions;
use clap::Args;
use portcullis::{DirectoryName, SessionOptions, TenantName, connect_with};
use portcullis_structures::Pipeline;
use portcullis_structures::table::{Access, Table};
use std::rc::Rc;

/// The arena of a client with a few operations in flight. The largest block takes about a third of it.
pub const ARENA_BYTES: u64 = 4 << 20;
/// The arena of a client with many operations in flight.
pub const LARGE_ARENA_BYTES: u64 = 32 << 20;

/// A node, and the client that connects to it.
#[derive(Args, Clone, Debug)]
pub struct NodeOptions {
    /// The node, for example shm:/run/portcullis.sock, rdma:node1:7471 or name:bank/node1.
    #[arg(long, value_name = "ADDRESS")]
    node: String,
    #[command(flatten)]
    client: ClientOptions,
}

impl NodeOptions {
    /// A session with the node, and a pipeline on it.
    pub fn connect(&self, arena_bytes: u64) -> Result<Rc<Pipeline>, KvCommandError> {
        let options = SessionOptions { arena_bytes, ..self.client.session()? };
        Ok(Rc::new(Pipeline::new(connect_with(&self.node, options)?)))
    }
}

/// A table on a node.
#[derive(Args, Clone, Debug)]
pub struct Target {
    #[command(flatten)]
    node: NodeOptions,
    /// The table's name: 1 to 48 bytes of text.
    #[arg(value_name = "TABLE")]
    pub table: DirectoryName,
}

impl Target {
    /// A session with the node, and a pipeline on it.
    pub fn connect(&self, arena_bytes: u64) -> Result<Rc<Pipeline>, KvCommandError> {
        self.node.connect(arena_bytes)
    }

    /// Opens the table, which must exist.
    pub fn open(&self, pipeline: &Rc<Pipeline>, access: Access) -> Result<Table, KvCommandError> {
        let opened = pipeline.block_on(Table::open_named(pipeline, self.table, access));
        opened.map_err(KvCommandError::of(self.table))
    }
}

/// A table that is read: of the client's own tenant, or of one that shares it.
#[derive(Args, Clone, Debug)]
pub struct Source {
    #[command(flatten)]
    pub target: Target,
    /// The tenant that shares the table with this one, for example uid:1000 [default: this tenant's own table].
    #[arg(long, value_name = "TENANT")]
    owner: Option<TenantName>,
}

impl Source {
    /// Opens the table for reading.
    pub fn open(&self, pipeline: &Rc<Pipeline>) -> Result<Table, KvCommandError> {
        let Some(owner) = self.owner else { return self.target.open(pipeline, Access::Read) };
        let opened = pipeline.block_on(Table::open_shared(pipeline, owner, self.target.table));
        opened.map_err(KvCommandError::of_shared(self.target.table, owner))
    }
}
