//! Options of commands that use an RDMA device of this machine.

use clap::{Args, ValueEnum};
use portcullis::{
    ClientIdentity, ClientSecurity, DeviceChoice, IdentityError, NodeIdentity, NodeSecurity, RdmaOptions,
};
use std::path::{Path, PathBuf};

/// The NIC that a command uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum NicKind {
    /// The software NIC, for processes of this machine.
    #[default]
    Software,
    /// An RDMA device, through libibverbs.
    Ibverbs,
}

impl NicKind {
    /// The name in benchmark reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Software => "softnic",
            Self::Ibverbs => "ibverbs",
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
    pub fn choice(&self) -> DeviceChoice {
        DeviceChoice { device: self.device.clone(), port: self.device_port, gid_index: self.gid_index }
    }

    /// The same options for another process of this program.
    pub fn arguments(&self) -> Vec<String> {
        let number = |name: &str, value: Option<u8>| value.map(|value| [name.to_owned(), value.to_string()]);
        let device = self.device.clone().map(|device| ["--device".to_owned(), device]);
        let rest = [number("--device-port", self.device_port), number("--gid-index", self.gid_index)];
        device.into_iter().chain(rest.into_iter().flatten()).flatten().collect()
    }
}

/// The three files of `portcullis certificates` for a name.
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

/// How a node proves its identity and identifies its clients: with `node-NAME.pem` in a directory of `portcullis
/// certificates`, or not at all.
pub fn node_security(certificates: Option<(&Path, &str)>) -> Result<NodeSecurity, IdentityError> {
    let Some((directory, name)) = certificates else { return Ok(NodeSecurity::Plain) };
    let Papers { authority, certificate, key } = Papers::of(directory, "node", name);
    Ok(NodeSecurity::Tls(NodeIdentity::load(&authority, &certificate, &key)?))
}

/// How a client reaches nodes at `rdma:HOST:PORT`.
#[derive(Args, Clone, Debug, Default)]
pub struct ClientOptions {
    #[command(flatten)]
    pub device: DeviceOptions,
    /// A directory made by `portcullis certificates`, for nodes of other machines.
    #[arg(long, value_name = "DIR", requires = "tenant")]
    pub certificates: Option<PathBuf>,
    /// The tenant to act for; its certificate is tenant-NAME.pem in that directory.
    #[arg(long, value_name = "NAME", requires = "certificates")]
    pub tenant: Option<String>,
}

impl ClientOptions {
    /// The options in the library's type.
    pub fn rdma(&self) -> Result<RdmaOptions, IdentityError> {
        let security = match (&self.certificates, &self.tenant) {
            (Some(directory), Some(tenant)) => {
                let Papers { authority, certificate, key } = Papers::of(directory, "tenant", tenant);
                ClientSecurity::Tls(ClientIdentity::load(&authority, &certificate, &key)?)
            }
            _ => ClientSecurity::Plain { anywhere: false },
        };
        Ok(RdmaOptions { device: self.device.choice(), security })
    }
}
