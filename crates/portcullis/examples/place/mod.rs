//! Where an example runs: on the node whose address it is given, or on one of its own.

use portcullis::host::{Host, HostConfig};
use portcullis::{Session, SessionOptions, connect};

/// A session, and the node behind it if that is the example's own: it ends with what is returned.
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
