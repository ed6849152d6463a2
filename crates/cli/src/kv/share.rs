//! `portcullis kv share` and `portcullis kv unshare`.

use super::CommandOutcome;
use super::command_error::KvCommandError;
use super::connection::{ARENA_BYTES, Target};
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
pub struct KvShareOptions {
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
pub fn share(options: &KvShareOptions) -> Result<CommandOutcome, KvCommandError> {
    change(options, true)
}

/// Ends another tenant's right to read a table.
pub fn unshare(options: &KvShareOptions) -> Result<CommandOutcome, KvCommandError> {
    change(options, false)
}

fn change(options: &KvShareOptions, shared: bool) -> Result<CommandOutcome, KvCommandError> {
    let KvShareOptions { target, with: tenant, json } = options;
    let name = target.table;
    let pipeline = target.connect(ARENA_BYTES)?;
    let table = target.open(&pipeline, Access::Read)?;
    let changed = pipeline.block_on(async {
        if shared { table.share(name, *tenant).await } else { table.unshare(name, *tenant).await }
    });
    changed.map_err(KvCommandError::of(name))?;
    if *json {
        print_json(&json!({"table": name.as_str(), "tenant": tenant.as_str(), "shared": shared}));
    } else if shared {
        say(format_args!("{tenant} can read table {name}"));
    } else {
        say(format_args!("{tenant} cannot read table {name} any more"));
    }
    Ok(CommandOutcome::AsAsked)
}
