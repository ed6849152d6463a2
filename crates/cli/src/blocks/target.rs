//! The nodes that a command uses, and the store on them.

use super::command_error::BlocksCommandError;
use crate::network::ClientOptions;
use clap::Args;
use portcullis::names::Name;
use portcullis::{DirectoryName, Keep, NoLifetime, SessionOptions};
use portcullis_blocks::StoreOptions;
use portcullis_blocks::spread_store::{NodeSource, SpreadOptions, SpreadStore};

/// Bytes of the arena of each session.
const ARENA_BYTES: u64 = 32 << 20;

/// The nodes of a store, and the client that connects to them.
#[derive(Args, Clone, Debug)]
pub struct Target {
    /// A node, for example shm:/run/portcullis.sock, udp:node1:7472 or name:bank/node1; given once for each node.
    #[arg(long, value_name = "ADDRESS", required_unless_present = "below", conflicts_with = "below")]
    node: Vec<String>,
    /// All nodes that are registered below this name in the directory, for example bank/kv.
    #[arg(long, value_name = "NAME")]
    below: Option<Name>,
    #[command(flatten)]
    client: ClientOptions,
    /// Number of nodes that have each block.
    #[arg(long, value_name = "COUNT", default_value = "1", value_parser = clap::value_parser!(u8).range(1..=16))]
    pub copies: u8,
    /// The store's name in the tenant: 1 to 48 bytes of text.
    #[arg(long, value_name = "NAME", default_value = "blocks")]
    table: DirectoryName,
    /// How long new blocks stay when no client of the tenant is there: forever, which the node allows with
    /// --longest-keep forever, a time such as 10m, or attached: not at all.
    #[arg(long, value_name = "TIME", default_value = "forever", value_parser = keep)]
    keep: Keep,
}

fn keep(text: &str) -> Result<Keep, String> {
    Ok(match text {
        "forever" => Keep::Pinned,
        "attached" => Keep::Attached,
        time => Keep::For(
            time.parse().map_err(|error: NoLifetime| format!("{error}; or write forever or attached"))?,
        ),
    })
}

impl Target {
    /// Opens the store.
    pub fn open(&self) -> Result<SpreadStore, BlocksCommandError> {
        let plain = SpreadOptions::default();
        let client = self.client.session()?;
        let within = self.client.within.unwrap_or(plain.session.within);
        let nodes = match &self.below {
            Some(name) => NodeSource::Below(name.clone()),
            None => NodeSource::Addresses(self.node.clone()),
        };
        let options = SpreadOptions {
            copies: self.copies.into(),
            table: self.table,
            store: StoreOptions { keep: self.keep, ..plain.store },
            session: SessionOptions { arena_bytes: ARENA_BYTES, within, ..client },
            ..plain
        };
        Ok(SpreadStore::open(nodes, options)?)
    }
}
