//! Options of commands that reach nodes over a network: RDMA devices, UDP, and the certificates for both.

use clap::{Args, ValueEnum};
use portcullis::{
    ClientIdentity, ClientSecurity, IdentityError, Lifetime, NodeIdentity, NodeSecurity, SessionOptions,
    UdpOptions,
};
#[cfg(feature = "rdma")]
use portcullis::{DeviceChoice, RdmaOptions};
use std::path::{Path, PathBuf};

/// The NIC that a command uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum NicKind {
    /// The software NIC, for processes of this machine.
    #[default]
    Software,
    /// An RDMA device, through libibverbs.
    Ibverbs,
    /// No NIC: encrypted operations over UDP.
    Udp,
}

impl NicKind {
    /// The name in benchmark reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Software => "softnic",
            Self::Ibverbs => "ibverbs",
            Self::Udp => "udp",
        }
    }

    /// Address at which a node listens on any port of this machine, if clients reach it over the network in this way.
    /// `None`: the node listens at a socket.
    pub fn any_port(self) -> Option<&'static str> {
        match self {
            Self::Software => None,
            Self::Ibverbs => Some("rdma:127.0.0.1:0"),
            Self::Udp => Some("udp:127.0.0.1:0"),
        }
    }

    /// The kind of NIC that reaches a node at this address.
    pub fn of_address(address: &str) -> Self {
        match address.split_once(':') {
            Some(("rdma", _)) => Self::Ibverbs,
            Some(("udp", _)) => Self::Udp,
            _ => Self::Software,
        }
    }
}

/// Options for the device.
#[derive(Args, Clone, Debug, Default)]
pub struct DeviceOptions {
    /// The RDMA device, by its name in `ibv_devices` [default: the only one with a link].
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
    /// The device's port, counted from one [default: the one with a link].
    #[arg(long, value_name = "N")]
    pub device_port: Option<u8>,
    /// The index of the port's address, as in `show_gids` [default: RoCE v2 over IPv4, if there is one].
    #[arg(long, value_name = "N")]
    pub gid_index: Option<u8>,
}

impl DeviceOptions {
    /// The choice in the library's type.
    #[cfg(feature = "rdma")]
    pub fn choice(&self) -> DeviceChoice {
        DeviceChoice { device: self.device.clone(), port: self.device_port, gid_index: self.gid_index }
    }

    /// Options of a session over this device, without certificates.
    #[must_use]
    pub fn session(&self) -> SessionOptions {
        SessionOptions {
            #[cfg(feature = "rdma")]
            rdma: RdmaOptions { device: self.choice(), ..RdmaOptions::default() },
            ..SessionOptions::default()
        }
    }

    /// The options as arguments for another process of this program.
    pub fn arguments(&self) -> Vec<String> {
        let number = |name: &str, value: Option<u8>| value.map(|value| [name.to_owned(), value.to_string()]);
        let device = self.device.clone().map(|device| ["--device".to_owned(), device]);
        let rest = [number("--device-port", self.device_port), number("--gid-index", self.gid_index)];
        device.into_iter().chain(rest.into_iter().flatten()).flatten().collect()
    }
}

/// The three files that `portcullis certificates` makes for a name.
struct Papers {
    authority: PathBuf,
    certificate: PathBuf,
    key: PathBuf,
}

impl Papers {
    fn of(directory: &Path, role: &str, name: &str) -> Self {
        Self {
            authority: directory.join("ca.pem"),
            certificate: directory.join(format!("{role}-{name}.pem")),
            key: directory.join(format!("{role}-{name}-key.pem")),
        }
    }
}

/// The node's way to prove its identity and to identify its clients: with `node-NAME.pem` in a directory of `portcullis
/// certificates`, or not at all.
pub fn node_security(certificates: Option<(&Path, &str)>) -> Result<NodeSecurity, IdentityError> {
    let Some((directory, name)) = certificates else { return Ok(NodeSecurity::Plain) };
    let Papers { authority, certificate, key } = Papers::of(directory, "node", name);
    Ok(NodeSecurity::Tls(NodeIdentity::load(&authority, &certificate, &key)?))
}

/// How a client reaches nodes at `rdma:HOST:PORT` and `udp:HOST:PORT`.
#[derive(Args, Clone, Debug, Default)]
pub struct ClientOptions {
    #[command(flatten)]
    /// The RDMA device.
    pub device: DeviceOptions,
    /// A directory made by `portcullis certificates`, for nodes of other machines.
    #[arg(long, value_name = "DIR", requires = "tenant", value_parser = crate::files::path())]
    pub certificates: Option<PathBuf>,
    /// The tenant to act for; its certificate is tenant-NAME.pem in that directory.
    #[arg(long, value_name = "NAME", requires = "certificates")]
    pub tenant: Option<String>,
    /// Bytes of the largest UDP datagram that the path to the node carries [default: found out].
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1232..=65507))]
    pub datagram_max: Option<u32>,
    /// How long the attach and each operation may wait for the node before it fails [default: 5s].
    #[arg(long, value_name = "TIME")]
    pub within: Option<Lifetime>,
}

impl ClientOptions {
    /// A session's options.
    pub fn session(&self) -> Result<SessionOptions, IdentityError> {
        let security = self.security()?;
        let udp = UdpOptions { security: security.clone(), datagram_max: self.datagram_max };
        let options = SessionOptions {
            #[cfg(feature = "rdma")]
            rdma: RdmaOptions { device: self.device.choice(), security },
            udp,
            ..SessionOptions::default()
        };
        Ok(SessionOptions { within: self.within.unwrap_or(options.within), ..options })
    }

    fn security(&self) -> Result<ClientSecurity, IdentityError> {
        Ok(match (&self.certificates, &self.tenant) {
            (Some(directory), Some(tenant)) => {
                let Papers { authority, certificate, key } = Papers::of(directory, "tenant", tenant);
                ClientSecurity::Tls(ClientIdentity::load(&authority, &certificate, &key)?)
            }
            _ => ClientSecurity::Plain { anywhere: false },
        })
    }
}
