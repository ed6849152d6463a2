//! A session with a node on another machine: a control connection, and queue pairs on a device of this machine.

pub use portcullis_attach::tls::AttachError as RdmaAttachError;
pub use portcullis_ibverbs::{DeviceChoice, IbEndpoint, NodeLife};

use crate::SessionOptions;
use crate::session::ConnectError;
use portcullis_attach::tls::{ClientSecurity, Connection, Ends, Terms, attach};
use portcullis_host::rdma::client_end;
use portcullis_nic::GuaranteeSet;
use rustix::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// Options of a session with a node at `rdma:HOST:PORT`.
#[derive(Clone, Debug)]
pub struct RdmaOptions {
    /// The device of this machine to use.
    pub device: DeviceChoice,
    /// The means by which this client and the node prove their identity.
    pub security: ClientSecurity,
}

impl Default for RdmaOptions {
    /// Selects the only device of this machine, and no certificates. This is enough for nodes on this machine.
    fn default() -> Self {
        Self { device: DeviceChoice::default(), security: ClientSecurity::Plain { anywhere: false } }
    }
}

struct Attachment(Connection);

impl NodeLife for Attachment {
    fn node_alive(&mut self) -> bool {
        self.0.node_alive()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }
}

/// Attaches to the node at `HOST:PORT`. Returns the client's end, the client's number, and the guarantees that the
/// node's device does not give.
pub(crate) fn connect(
    place: &str,
    options: &SessionOptions,
    within: Duration,
) -> Result<(IbEndpoint, u64, GuaranteeSet), ConnectError> {
    let make = |terms: &Terms| {
        let (ends, endpoint) = client_end(terms, options.arena_bytes, &options.rdma.device)?;
        Ok((ends, (endpoint, terms.unenforced)))
    };
    let attached = attach(place, &options.rdma.security, within, make)?;
    let (mut endpoint, unenforced) = attached.made;
    let Ends { control, data } = attached.node;
    endpoint.connect(control, data, Box::new(Attachment(attached.connection)))?;
    Ok((endpoint, attached.client, unenforced))
}
