//! The node that an example runs on: the node at the given address, or else a node inside the example.

use portcullis::host::{Host, HostConfig};
use portcullis::{Session, SessionOptions, connect};

/// Returns a session, and the node if the example started its own. That node ends when the returned `Host` is dropped.
pub fn session() -> Result<(Session, Option<Host>), Box<dyn std::error::Error>> {
    match std::env::args().nth(1) {
        Some(address) => Ok((connect(&address)?, None)),
        None => {
            let host = Host::start(HostConfig::default())?;
            let session = host.connect("example", SessionOptions::default())?;
            Ok((session, Some(host)))
        }
    }
}
