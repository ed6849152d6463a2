//! The node's name in a directory: the addresses registered under it, and the messages about the registration.

use super::listen::has_any_port;
use super::refusal::NotServed;
use super::{ListenAddress, ServeOptions};
use clap::Args;
use portcullis::Address;
use portcullis::host::Host;
use portcullis::names::{
    Change, Directory, DirectoryAddress, DirectoryError, DirectoryServer, Embedded, Name, OpenOptions,
    Registration, ScopedAddress, Trust, node_holding, open_options,
};
use portcullis_attach::unix::SocketAccess;
use portcullis_program::output::complain;
use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// The shortest and the longest lease in seconds.
const LEASE_SECONDS: std::ops::RangeInclusive<u64> = 1..=86_400;
/// The shortest and the longest time that one request to the directory may take.
const PATIENCE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));

/// Options for the directory of the cluster.
#[derive(Args, Debug)]
pub struct DirectoryOptions {
    /// Register the node's addresses under --name TENANT/NODE in the directory there: etcd:http://HOST:PORT, with commas
    /// between several members, or unix:PATH. With embedded this node has the directory itself, and serves it to the processes
    /// of its machine at a socket beside that of --listen, called NAME.directory; with embedded:PATH at that one.
    #[arg(long, value_name = "ADDRESS")]
    directory: Option<DirectoryChoice>,
    /// Register this address in place of those of its kind in --listen: rdma:HOST:PORT or udp:HOST:PORT; may be given several
    /// times. Needed where the node listens at all addresses of its machine, as at udp:0.0.0.0:7472. Port 0 stands for the
    /// one that the node listens at.
    #[arg(long, value_name = "ADDRESS")]
    advertise: Vec<Address>,
    /// How long the registration stays when the node is gone, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = lease)]
    directory_lease: Duration,
    /// For a directory at https://: a folder with ca.pem, client.pem and client-key.pem.
    #[arg(long, value_name = "DIR", value_parser = portcullis_program::files::path())]
    directory_certificates: Option<PathBuf>,
}

/// The directory in which the node registers.
#[derive(Clone, PartialEq, Eq, Debug)]
enum DirectoryChoice {
    /// A directory that another process serves.
    At(DirectoryAddress),
    /// The node's own, served at this path or beside the node's socket.
    Embedded(Option<PathBuf>),
}

impl FromStr for DirectoryChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == EMBEDDED => Ok(Self::Embedded(None)),
            Some((EMBEDDED, path)) if !path.is_empty() => Ok(Self::Embedded(Some(path.into()))),
            _ => text.parse().map(Self::At).map_err(|error: DirectoryError| {
                format!("{error}, or {EMBEDDED} or {EMBEDDED}:PATH for one within this node")
            }),
        }
    }
}

/// Value of `--directory` that means a directory within the node.
const EMBEDDED: &str = "embedded";

fn lease(text: &str) -> Result<Duration, String> {
    let seconds = text.strip_suffix('s').unwrap_or(text).parse().ok();
    let seconds = seconds.filter(|seconds| LEASE_SECONDS.contains(seconds));
    seconds.map(Duration::from_secs).ok_or_else(|| {
        format!("a lease is {} to {} whole seconds", LEASE_SECONDS.start(), LEASE_SECONDS.end())
    })
}

/// A registration that the options request.
struct Wanted {
    choice: DirectoryChoice,
    name: Name,
    options: OpenOptions,
}

/// The node's place in a directory, and the directory if it is the node's own. Dropping this value removes the name
/// first.
#[derive(Debug)]
pub struct Registered {
    _registration: Registration,
    _server: Option<DirectoryServer>,
}

impl ServeOptions {
    /// The last part of the node's name, which names the certificate's file.
    pub fn name_of_certificate(&self) -> Option<&str> {
        self.name.as_deref().map(|name| name.rsplit('/').next().unwrap_or(name))
    }

    /// Whether the node is to be found by its name.
    pub fn has_directory(&self) -> bool {
        self.directory.directory.is_some()
    }

    fn wanted(&self) -> Result<Option<Wanted>, NotServed> {
        let DirectoryOptions { directory, directory_certificates, directory_lease, .. } = &self.directory;
        let Some(choice) = directory.clone() else { return Ok(None) };
        let Some(name) = &self.name else {
            return Err(wrong("--directory needs --name TENANT/NODE: the node's name there"));
        };
        let name = Name::new(name).map_err(|error| wrong(format!("--name {name}: {error}")))?;
        if name.above().next().is_none() {
            return Err(wrong(format!(
                "--name {name}: with --directory a node's name begins with its tenant, as TENANT/{name}"
            )));
        }
        let patience = (*directory_lease / 3).clamp(PATIENCE.0, PATIENCE.1);
        let options = open_options(directory_certificates.as_deref());
        let options = options.map_err(|error| wrong(format!("--directory-certificates: {error}")))?;
        if choice == DirectoryChoice::Embedded(None) {
            self.beside_socket()?;
        }
        Ok(Some(Wanted { choice, name, options: OpenOptions { patience, ..options } }))
    }

    /// Default path of the socket at which the node serves its own directory.
    fn beside_socket(&self) -> Result<PathBuf, NotServed> {
        let mut sockets = self.listen.iter().filter_map(ListenAddress::socket);
        let socket = sockets.next().map(|listen| listen.path.with_extension("directory"));
        socket.ok_or_else(|| {
            wrong("--directory embedded: write embedded:PATH, because there is no --listen shm:PATH")
        })
    }

    /// Checks the options that concern the name, as far as that needs neither a directory nor a node.
    pub fn check_name(&self) -> Result<(), NotServed> {
        let DirectoryOptions { advertise, directory_certificates, .. } = &self.directory;
        if self.wanted()?.is_none() {
            return match (advertise.first(), directory_certificates) {
                (Some(_), _) => Err(wrong("--advertise needs --directory: where the address is registered")),
                (_, Some(_)) => Err(wrong(
                    "--directory-certificates needs --directory: the certificates are for the directory",
                )),
                _ => Ok(()),
            };
        }
        for address in advertise {
            self.check_advertised(address)?;
        }
        for listen_address in &self.listen {
            let is_advertised =
                advertise.iter().any(|address| is_same_kind(address, &listen_address.address));
            if !is_advertised && host_of(&listen_address.address).is_some_and(is_wildcard) {
                let address = &listen_address.address;
                return Err(wrong(format!(
                    "--listen {address}: clients cannot connect to a wildcard address: add --advertise with the host \
                     that they see, as in --advertise {}",
                    with_host(address, "HOST", None)
                )));
            }
        }
        Ok(())
    }

    fn check_advertised(&self, address: &Address) -> Result<(), NotServed> {
        let Some(host) = host_of(address) else {
            return Err(wrong(format!(
                "--advertise {address}: a socket is registered by its file: leave it out"
            )));
        };
        if is_wildcard(host) {
            return Err(wrong(format!("--advertise {address}: write the host that clients see")));
        }
        let of_kind = self
            .listen
            .iter()
            .filter(|listen_address| is_same_kind(address, &listen_address.address))
            .count();
        match of_kind {
            0 => Err(wrong(format!("--advertise {address}: no --listen is of that kind"))),
            1 => Ok(()),
            _ if has_any_port(address) => Err(wrong(format!(
                "--advertise {address}: write the port, because several --listen are of that kind"
            ))),
            _ => Ok(()),
        }
    }

    /// The addresses under which the node is registered.
    fn registered(&self, host: &Host) -> Result<Vec<ScopedAddress>, NotServed> {
        let advertise = &self.directory.advertise;
        let mut registered = Vec::new();
        for (listen_address, got) in self.bound(host) {
            match &listen_address.address {
                Address::Shm(path) => {
                    let socket = ScopedAddress::of_socket(path);
                    registered.push(socket.map_err(|error| refused(listen_address, error))?);
                }
                address if advertise.iter().any(|other| is_same_kind(other, address)) => {}
                address => registered.push(scoped(listen_address, &with_port(address, got))?),
            }
        }
        for address in advertise {
            let mut got = self.bound(host).into_iter();
            let got = got
                .find(|(listen_address, _)| is_same_kind(address, &listen_address.address))
                .and_then(|(_, got)| got);
            registered.push(ScopedAddress::everywhere(&with_port(address, got)));
        }
        Ok(registered)
    }

    /// Registers the node, if the options request a name. The node serves whether or not the directory can be reached.
    pub fn register(&self, host: &Host, memory_bytes: u64) -> Result<Option<Registered>, NotServed> {
        let Some(Wanted { choice, name, options }) = self.wanted()? else { return Ok(None) };
        let addresses = self.registered(host)?;
        let (server, place, open): (_, _, Box<Open>) = match choice {
            DirectoryChoice::At(place) => {
                let there = place.to_string();
                (None, there, Box::new(move || place.open(&options)))
            }
            DirectoryChoice::Embedded(path) => {
                let path = path.map_or_else(|| self.beside_socket(), Ok)?;
                let directory = Embedded::new(options.space);
                let server = serve_directory(directory.clone(), &path)?;
                (
                    Some(server),
                    format!("unix:{}", path.display()),
                    Box::new(move || Ok(Arc::new(directory.clone()))),
                )
            }
        };
        let holding = node_holding(name.clone(), &addresses, memory_bytes, self.directory.directory_lease);
        let holding = holding.map_err(|error| NotServed::Machine(format!("--directory: {error}")))?;
        let told = Told { name, place, addresses };
        let started = Registration::start(holding, open, move |change| told.tell(change));
        let registration =
            started.map_err(|error| NotServed::Machine(format!("cannot be registered: {error}")))?;
        Ok(Some(Registered { _registration: registration, _server: server }))
    }
}

/// A function that opens a directory.
type Open = dyn FnMut() -> Result<Arc<dyn Directory>, DirectoryError> + Send;

/// Serves a directory to every user of the machine. Each user changes names as that user; this node's own user and root
/// are trusted with all.
fn serve_directory(directory: Embedded, path: &Path) -> Result<DirectoryServer, NotServed> {
    let started = DirectoryServer::start(directory, path, DIRECTORY_ACCESS, Trust::in_own_user());
    started.map_err(|error| NotServed::Machine(format!("--directory embedded:{}: {error}", path.display())))
}

const DIRECTORY_ACCESS: SocketAccess = SocketAccess { mode: 0o666, group: None };

fn wrong(text: impl Into<String>) -> NotServed {
    NotServed::Call(text.into())
}

fn refused(listen_address: &ListenAddress, error: impl Display) -> NotServed {
    NotServed::Machine(format!("--listen {} cannot be registered: {error}", listen_address.address))
}

/// Gives an address of loopback this machine's scope, because it leads to another node on each machine.
fn scoped(listen_address: &ListenAddress, address: &str) -> Result<ScopedAddress, NotServed> {
    if host_of(&listen_address.address).is_some_and(is_loopback) {
        return ScopedAddress::on_this_machine(address).map_err(|error| refused(listen_address, error));
    }
    Ok(ScopedAddress::everywhere(address))
}

/// The host of an address over a network, without brackets.
fn host_of(address: &Address) -> Option<&str> {
    let place = address.network_place()?;
    let host = place.rsplit_once(':').map_or(place, |(host, _)| host);
    Some(host.trim_start_matches('[').trim_end_matches(']'))
}

fn is_wildcard(host: &str) -> bool {
    host.is_empty() || host == "*" || host.parse().is_ok_and(|address: IpAddr| address.is_unspecified())
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

fn is_same_kind(one: &Address, other: &Address) -> bool {
    std::mem::discriminant(one) == std::mem::discriminant(other)
}

/// The address with the port that was assigned, if the kernel was to choose the port.
fn with_port(address: &Address, got: Option<SocketAddr>) -> String {
    let port = got.filter(|_| has_any_port(address)).map(|got| got.port());
    with_host(address, host_of(address).unwrap_or_default(), port)
}

fn with_host(address: &Address, host: &str, port: Option<u16>) -> String {
    let Some(place) = address.network_place() else { return address.to_string() };
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    let said = || place.rsplit_once(':').map(|(_, port)| port.to_owned()).unwrap_or_default();
    let port = port.map_or_else(said, |port| port.to_string());
    address.at_network_place(format!("{host}:{port}")).to_string()
}

/// Reports changes of the registration.
struct Told {
    name: Name,
    place: String,
    addresses: Vec<ScopedAddress>,
}

impl Told {
    fn tell(&self, change: Change) {
        let Self { name, place, addresses } = self;
        let at = addresses.iter().map(ScopedAddress::text).collect::<Vec<_>>().join(" and ");
        complain(match change {
            Change::Registered => format!("portcullis serve: registered as {name} in {place}: {at}"),
            Change::Back => format!("portcullis serve: registered as {name} again"),
            Change::Late(DirectoryError::NameTaken(_)) => format!(
                "portcullis serve: not registered as {name} yet: another process has the name. This node serves, and waits \
                 until the other's lease ends"
            ),
            Change::Late(error) => {
                format!(
                    "portcullis serve: not registered as {name} yet: {error}. This node serves, and tries again"
                )
            }
            Change::Lost(error) => format!(
                "portcullis serve: the registration as {name} is lost: {error}. This node still serves, and tries again; \
                 clients that have its address are not affected"
            ),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Address {
        text.parse().expect("an address")
    }

    #[test]
    fn a_directory_is_at_an_address_or_the_nodes_own() {
        assert_eq!("embedded".parse(), Ok(DirectoryChoice::Embedded(None)));
        assert_eq!("embedded:/a".parse(), Ok(DirectoryChoice::Embedded(Some("/a".into()))));
        assert_eq!("unix:/a".parse(), Ok(DirectoryChoice::At(DirectoryAddress::Unix("/a".into()))));
        for text in ["", "embedded:", "embed", "/a"] {
            let told = text.parse::<DirectoryChoice>().expect_err(text);
            assert!(told.contains("unix:PATH") && told.contains("embedded:PATH"), "{told}");
        }
    }

    #[test]
    fn a_lease_is_of_whole_seconds() {
        assert_eq!((lease("1"), lease("10s")), (Ok(Duration::from_secs(1)), Ok(Duration::from_secs(10))));
        for wrong in ["", "0", "1.5", "-1", "86401", "1ms", "5m"] {
            assert!(lease(wrong).expect_err(wrong).contains("whole seconds"), "{wrong}");
        }
    }

    #[test]
    fn hosts_that_others_do_not_reach_are_told_apart() {
        for text in ["udp:0.0.0.0:1", "rdma:[::]:1", "udp:*:1", "udp::1"] {
            assert!(host_of(&address(text)).is_some_and(is_wildcard), "{text}");
        }
        for text in ["udp:127.0.0.1:1", "rdma:[::1]:1", "udp:localhost:1"] {
            assert!(host_of(&address(text)).is_some_and(is_loopback), "{text}");
        }
        for text in ["udp:10.0.0.7:1", "rdma:[fd00::1]:1", "udp:node1:1"] {
            assert!(
                !host_of(&address(text)).is_some_and(|host| is_wildcard(host) || is_loopback(host)),
                "{text}"
            );
        }
    }

    #[test]
    fn an_assigned_port_takes_the_place_of_any() {
        let got = "[::]:4711".parse().ok();
        assert_eq!(with_port(&address("udp:[fd00::1]:0"), got), "udp:[fd00::1]:4711");
        assert_eq!(with_port(&address("rdma:node1:7471"), got), "rdma:node1:7471");
        assert_eq!(with_host(&address("udp:0.0.0.0:7472"), "HOST", None), "udp:HOST:7472");
    }
}
