//! The operator's socket, as `portcullis serve` is told of it.

use clap::Args;
use portcullis::host::Host;
use std::path::PathBuf;

/// Options about the operator's socket.
#[derive(Args, Clone, Debug)]
pub struct AdminOptions {
    /// Make a socket here for `portcullis admin`, which only root and the node's own user can use: who is attached, who
    /// is barred, and serving them again.
    #[arg(long, value_name = "PATH")]
    pub admin: Option<PathBuf>,
}

/// What the node has counted, as one line of JSON: `{"counters":{...},"turns":{...},"audit":{...}}`, the last where there
/// is a log.
pub fn counted(host: &Host) -> String {
    let counted = host.admin().counted().unwrap_or_default();
    serde_json::to_string(&counted).unwrap_or_default()
}
