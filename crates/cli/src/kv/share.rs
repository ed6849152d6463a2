//! `portcullis kv share` and `portcullis kv unshare`.

use super::Outcome;
use super::connection::{ARENA_BYTES, Target};
use super::trouble::Trouble;
use crate::output::{print_json, say};
use clap::Args;
use portcullis::TenantName;
use portcullis_structures::table::Access;
use serde_json::json;

const EXAMPLES: &str = "\
Examples:
  portcullis kv share --node shm:/run/p.sock cities uid:1001
  # As that tenant:
  portcullis kv get --node shm:/run/p.sock --owner uid:1000 cities Bern
  portcullis kv unshare --node shm:/run/p.sock cities uid:1001

The other tenant can then read the table, with all keys that are added later;
the node's NIC refuses all other accesses. The tenant reads the table's memory
as it is, which may have values that were removed or replaced and not yet
overwritten. It can delay the table's writers, as any reader can, for a lease
each time.

When `unshare` returns, no access of the other tenant can succeed any more.";

/// Options of both commands.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    #[command(flatten)]
    target: Target,
    /// The other tenant, for example uid:1001. It need not be attached.
    #[arg(value_name = "TENANT")]
    with: TenantName,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

/// Lets another tenant read a table.
pub fn share(options: &Options) -> Result<Outcome, Trouble> {
    change(options, true)
}

/// Ends another tenant's right to read a table.
pub fn unshare(options: &Options) -> Result<Outcome, Trouble> {
    change(options, false)
}

fn change(options: &Options, shared: bool) -> Result<Outcome, Trouble> {
    let Options { target, with: tenant, json } = options;
    let name = target.table;
    let pipeline = target.connect(ARENA_BYTES)?;
    let table = target.open(&pipeline, Access::Read)?;
    let changed = pipeline.block_on(async {
        if shared { table.share(name, *tenant).await } else { table.unshare(name, *tenant).await }
    });
    changed.map_err(Trouble::of(name))?;
    if *json {
        print_json(&json!({"table": name.as_str(), "tenant": tenant.as_str(), "shared": shared}));
    } else if shared {
        say(format_args!("{tenant} can read table {name}"));
    } else {
        say(format_args!("{tenant} cannot read table {name} any more"));
    }
    Ok(Outcome::AsAsked)
}
