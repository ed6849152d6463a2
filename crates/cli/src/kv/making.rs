//! Making a table, also if two clients make it at once.

use super::command_error::KvCommandError;
use super::connection::Target;
use super::keeping::{Kept, Wish, allowed, wish};
use crate::output::complain;
use clap::{Args, ValueEnum};
use portcullis::{DirectoryName, Keep, Lifetime};
use portcullis_structures::Pipeline;
use portcullis_structures::table::{Access, BlockMemory, Grain, Opened, Table, TableError, TableOptions};
use std::rc::Rc;

/// How a table is made.
#[derive(Args, Clone, Copy, Debug)]
pub struct Making {
    /// The unit of a reader's permissions: single values, or extents of many values of about the same size.
    #[arg(long, value_enum, default_value_t)]
    grain: GrainName,
    /// How long the death of a client can hold up others: twice this at the most.
    #[arg(long, value_name = "TIME", default_value = "1s")]
    lease: Lifetime,
    /// Groups of buckets of a subtable: each group has room for 21 keys.
    #[arg(long, value_name = "N", default_value_t = TableOptions::default().groups)]
    groups: u32,
    /// The table has at most 2^N subtables.
    #[arg(long, value_name = "N", default_value_t = TableOptions::default().depth_max)]
    depth_max: u32,
    /// The seed of the hashes of keys, for an experiment that can be repeated. Without it a number is drawn: a client that
    /// knows it can choose keys that leave no room for others.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// How long the table stays after the last client of its tenant has gone: a TIME, `longest` for as long as the node
    /// allows, `forever` for as long as the node runs, or `attached` for not at all.
    #[arg(long, value_name = "TIME", default_value = "longest", value_parser = wish)]
    keep: Wish,
}

/// [`Grain`] on the command line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum GrainName {
    Block,
    #[default]
    Extent,
}

impl Default for Making {
    fn default() -> Self {
        let TableOptions { lease, groups, depth_max, seed, .. } = TableOptions::default();
        Self { grain: GrainName::default(), lease, groups, depth_max, seed, keep: Wish::Longest }
    }
}

impl Making {
    fn options(&self, keep: Keep) -> TableOptions {
        let grain = match self.grain {
            GrainName::Block => Grain::Block,
            GrainName::Extent => Grain::Extent,
        };
        let Self { lease, groups, depth_max, seed, .. } = *self;
        // A command's session ends with the command, so a value in its chunks would be lost.
        TableOptions { blocks: BlockMemory::Objects, grain, lease, groups, depth_max, seed, keep }
    }
}

/// Opens the table for writing. If there is none, makes it and reports that.
pub fn open_or_make(target: &Target, pipeline: &Rc<Pipeline>) -> Result<Table, KvCommandError> {
    match target.open(pipeline, Access::Write) {
        Err(KvCommandError::NoTable { .. }) => {}
        opened => return opened,
    }
    let made = pipeline.block_on(make(pipeline, target.table, &Making::default()));
    Ok(match made.map_err(KvCommandError::of(target.table))? {
        (Opened::Made(table), keep) => {
            complain(format_args!("portcullis kv: made table {}: {}", target.table, Kept(keep)));
            table
        }
        (Opened::Found(table), _) => table,
    })
}

/// Opens the table with this name, or makes it. Returns the time for which a table that it makes is kept.
pub async fn make(
    pipeline: &Rc<Pipeline>,
    name: DirectoryName,
    making: &Making,
) -> Result<(Opened, Keep), TableError> {
    let keep = allowed(pipeline, making.keep).await?;
    Ok((Table::open_or_make(pipeline, name, &making.options(keep)).await?, keep))
}

#[cfg(test)]
mod tests {
    use super::*;
    use portcullis::host::{Host, HostConfig};
    use portcullis::{NodeConfig, SessionOptions};

    fn node(longest_keep: Lifetime) -> Host {
        let node = NodeConfig { pool_bytes: 64 << 20, longest_keep, ..NodeConfig::default() };
        Host::start(HostConfig { node, ..HostConfig::default() }).expect("a node")
    }

    fn client(node: &Host) -> Rc<Pipeline> {
        Rc::new(Pipeline::new(node.connect("orange", SessionOptions::default()).expect("a session")))
    }

    fn made(pipeline: &Rc<Pipeline>) -> (Opened, Keep) {
        let name = DirectoryName::new("t").expect("a name");
        pipeline.block_on(make(pipeline, name, &Making::default())).expect("a table")
    }

    #[test]
    fn who_loses_the_race_uses_the_other_table_and_leaves_nothing() {
        let node = node(Lifetime::seconds(60));
        let (Opened::Made(first), keep) = made(&client(&node)) else { panic!("there is no such table") };
        assert_eq!(keep, Keep::For(Lifetime::seconds(60)));
        let objects = node.counters().objects;
        let late = client(&node);
        let (Opened::Found(second), _) = made(&late) else { panic!("the name was taken") };
        assert_eq!(first.head(), second.head());
        drop((second, late));
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while node.counters().objects != objects {
            assert!(std::time::Instant::now() < until, "{:?}", node.counters());
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_table_is_kept_for_as_long_as_the_node_allows() {
        let node = node(Lifetime(u64::MAX));
        assert!(matches!(made(&client(&node)), (Opened::Made(_), Keep::Pinned)));
        let never = self::node(Lifetime(0));
        let name = DirectoryName::new("t").expect("a name");
        let pipeline = client(&never);
        let refused = pipeline.block_on(make(&pipeline, name, &Making::default()));
        let Err(error) = refused else { panic!("this node keeps nothing") };
        assert!(KvCommandError::of(name)(error).to_string().contains("--longest-keep"));
        let attached = Making { keep: Wish::Exactly(Keep::Attached), ..Making::default() };
        assert!(pipeline.block_on(make(&pipeline, name, &attached)).is_ok());
    }
}
