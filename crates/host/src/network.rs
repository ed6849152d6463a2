//! TCP ports at which clients attach, whatever their accesses travel over.

use portcullis_attach::tls::NodeSecurity;

/// A TCP port that clients connect to.
#[derive(Clone, Debug)]
pub struct NetworkListen {
    /// `HOST:PORT`; port 0 means any free port.
    pub address: String,
    /// The way in which node and clients prove their identity.
    pub security: NodeSecurity,
    /// Whether to listen, without certificates, also at addresses that other machines can reach.
    pub plain_anywhere: bool,
    /// The tenant that the port's clients act for, if they have no certificates. `None`: the address of each client.
    pub tenant: Option<String>,
}
