//! The operator's socket: the options of `portcullis serve` for it.

use clap::Args;
use portcullis::host::Host;
use portcullis_program::output::print_json;
use std::path::PathBuf;

/// Options about the operator's socket.
#[derive(Args, Clone, Debug)]
pub struct AdminOptions {
    /// Make a socket here for `portcullis admin`, to see clients and bars and to lift bars; only root and the node's
    /// own user can use it.
    #[arg(long, value_name = "PATH", value_parser = portcullis_program::files::path())]
    pub admin: Option<PathBuf>,
}

/// Prints the node's counters as one line of JSON: `{"counters":{...},"turns":{...},"audit":{...}}`. The last part is
/// present only if there is an audit log.
pub fn print_counters(host: &Host) {
    print_json(&host.admin().counted().unwrap_or_default());
}
