//! The client's end of a port in another process, which maps the memory that its node offers.

use portcullis_attach::unix::{self, AttachError, Offer};
use portcullis_memory::{Doorbell, Mapping, Watched};
use portcullis_nic::Lkey;
use portcullis_softnic::{PortEndpoint, PortLayout};
use std::path::Path;
use std::time::Duration;

/// A client that is attached.
#[derive(Debug)]
pub struct AttachedPort {
    /// The client's end of the NIC.
    pub endpoint: PortEndpoint,
    /// The client's number on the node.
    pub client: u64,
}

/// The offer is not a port of this version.
#[derive(Debug, thiserror::Error)]
#[error("the memory that the node offers does not have the size of a port")]
struct NotAPort;

/// Requests a port with an arena of `arena_bytes` from the node at `path`.
///
/// # Errors
/// There is no node, no answer within `within`, or not enough memory; or the node refuses.
pub fn attach(path: &Path, arena_bytes: u64, within: Duration) -> Result<AttachedPort, AttachError> {
    let attached = unix::attach(path, arena_bytes, within, |offer| {
        let Offer { size, memory_bytes, memory, page, event, alarm } = offer;
        if memory_bytes != PortLayout::new(size).bytes() {
            return Err(NotAPort.into());
        }
        let memory = Mapping::of_peer(memory, memory_bytes, true)?;
        let page = Mapping::of_peer(page, 4096, false)?;
        Ok((memory, size, (Doorbell::new(page, event), Watched::new(alarm))))
    });
    let attached = attached.map_err(|error| match error {
        AttachError::Unusable(reason) if reason.is::<NotAPort>() => {
            AttachError::NotANode { path: path.to_owned() }
        }
        error => error,
    })?;
    let (memory, size, bells) = attached.made;
    let connection = Some(attached.socket);
    let endpoint = PortEndpoint::new(memory, size, Lkey(attached.arena_key), bells, connection);
    Ok(AttachedPort { endpoint, client: attached.client })
}
