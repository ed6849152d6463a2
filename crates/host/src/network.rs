//! TCP ports at which clients attach, whatever their accesses travel over.

use portcullis_attach::tls::NodeSecurity;

/// A TCP port that clients connect to.
#[derive(Clone, Debug)]
pub struct NetworkListen {
    /// `HOST:PORT`; port 0 means any free port.
    pub address: String,
    /// How node and clients prove their identity.
    pub security: NodeSecurity,
    /// Without certificates, listen also where other machines can connect.
    pub plain_anywhere: bool,
    /// The tenant that its clients act for, if they have no certificates. `None`: the address that each comes from.
    pub tenant: Option<String>,
}
