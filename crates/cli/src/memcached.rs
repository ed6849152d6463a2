//! `portcullis memcached`: gives clients of memcached a table in a node's memory.

use crate::expiry;
use crate::network::ClientOptions;
use crate::output::{complain, print_json, say};
use crate::signals::{self, Request};
use crate::size;
use crate::sockets;
use clap::Args;
use portcullis::host::SocketAccess;
use portcullis::{
    ClientSecurity, Coded, ConnectError, DirectoryName, ErrorCode, IdentityError, Keep, Lifetime, Session,
    SessionOptions, connect_with,
};
use portcullis_memcached::{Gateway, GatewayError, Listen};
use portcullis_structures::table::LONG_VALUE_BYTES_MAX;
use serde::Serialize;
use std::net::{IpAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  portcullis serve --memory 1GiB --listen shm:/run/portcullis.sock
  portcullis memcached --node shm:/run/portcullis.sock
  portcullis memcached --node shm:/run/portcullis.sock --threads 2 \\
      --listen tcp:127.0.0.1:11311 --table sessions --idle-timeout 10min
  portcullis memcached --node shm:/run/portcullis.sock \\
      --listen unix:/run/memcached.sock --socket-group www-data
  printf 'set a 0 60 2\\r\\nhi\\r\\nget a\\r\\nquit\\r\\n' | nc 127.0.0.1 11211

Clients of memcached need no change: the gateway speaks the text protocol and
the meta commands. The items lie in a table in the node's memory. Several
gateways with the same --table on one node serve the same items. All that they
store is within the quota of their tenant on the node; when it is full, the
least recently used items are removed.

The protocol has no passwords, and any client that reaches the gateway acts
for its tenant. So it listens at addresses of this machine only, unless
--dangerous-open-to-network is given. A Unix socket is open to the gateway's own
user only, unless --socket-mode or --socket-group is given.

A gateway that starts before its node waits for it. When the node ends, clients
get SERVER_ERROR until it is back, and the items are lost. Both are logged to
standard error, unless RUST_LOG changes that. SIGINT and SIGTERM stop the
gateway. SIGHUP changes nothing.

Exit codes: 0 stopped by a signal; 2 the call was wrong; 3 the node or this
machine refuses.";

/// The arena of each thread's session: a value of 1 MiB takes a few MiB of it.
const ARENA_BYTES: u64 = 16 << 20;

/// Time between two attempts to reach a node that has not started yet.
const TRIED_EVERY: Duration = Duration::from_secs(1);

/// Options of `portcullis memcached`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct MemcachedOptions {
    /// The node that keeps the items, for example shm:/run/portcullis.sock or name:bank/node1.
    #[arg(long, value_name = "ADDRESS")]
    node: String,
    #[command(flatten)]
    client: ClientOptions,
    /// An address for clients of memcached: tcp:HOST:PORT, or unix:PATH for a Unix socket; may be given several times. With
    /// port 0 the kernel chooses one.
    #[arg(long, value_name = "ADDRESS", default_value = "tcp:127.0.0.1:11211", value_parser = listen_address)]
    listen: Vec<GatewayAddress>,
    /// The mode of the Unix sockets' files, in octal [default: 0600, or 0660 with --socket-group: any process that opens one acts
    /// for the tenant].
    #[arg(long, value_name = "MODE", value_parser = sockets::mode)]
    socket_mode: Option<u32>,
    /// The group of the Unix sockets' files, by name or number.
    #[arg(long, value_name = "GROUP", value_parser = sockets::group)]
    socket_group: Option<u32>,
    /// Listen also at addresses that other machines reach: all their programs can then use the tenant's items.
    #[arg(long)]
    dangerous_open_to_network: bool,
    /// The name of the table in the node's memory. It is made if it does not exist.
    #[arg(long, value_name = "NAME", default_value = "memcached")]
    table: DirectoryName,
    /// How long the items stay after the tenant's last client has gone: a TIME, `forever` for as long as the node runs, or
    /// `attached` for not at all.
    #[arg(long, value_name = "TIME", default_value = "attached", value_parser = keep)]
    keep: Keep,
    /// Threads that serve, each with a session of its own. More threads than processors beside the node's are of no use.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = threads)]
    threads: usize,
    /// Connections at a time. Further ones get an error and are closed.
    #[arg(long, value_name = "N", default_value_t = 1024)]
    max_connections: u64,
    /// The largest item, with its key and a header of about 60 bytes: 1KiB to 128MiB, or as memcached's -I writes it, such as
    /// 8m. An item of more than 32 KiB lies in several pieces. A thread has the items of a round in its memory.
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = item_size)]
    item_size_max: u64,
    /// Memory for commands that arrive in many pieces, of all connections together: half of it for long lines of keys, half for
    /// large values. A client whose command finds none left waits. 1MiB to 64GiB.
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = request_bytes)]
    request_bytes_max: u64,
    /// End connections that have sent nothing for this long [default: never].
    #[arg(long, value_name = "TIME")]
    idle_timeout: Option<Lifetime>,
    /// Print the addresses as one JSON object: {"listening":[...],"process":...,"table":...}.
    #[arg(long)]
    json: bool,
}

/// An address at which a gateway listens, as the option gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum GatewayAddress {
    Tcp(String),
    Unix(PathBuf),
}

fn listen_address(text: &str) -> Result<GatewayAddress, String> {
    if let Some(address) = text.strip_prefix("tcp:").filter(|address| address.contains(':')) {
        return Ok(GatewayAddress::Tcp(address.to_owned()));
    }
    match text.strip_prefix("unix:") {
        Some(path) if !path.is_empty() => Ok(GatewayAddress::Unix(path.into())),
        _ => Err(format!("{text:?} is neither tcp:HOST:PORT nor unix:PATH")),
    }
}

fn keep(text: &str) -> Result<Keep, String> {
    match text {
        "forever" => Ok(Keep::Pinned),
        "attached" => Ok(Keep::Attached),
        time => time
            .parse()
            .map(Keep::For)
            .map_err(|error: portcullis::NoLifetime| format!("{error}; or write forever or attached")),
    }
}

fn threads(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|threads| (1..=256).contains(threads))
        .ok_or_else(|| "1 to 256 threads".to_owned())
}

fn item_size(text: &str) -> Result<u64, String> {
    let bytes = match memcached_size(text) {
        Some(bytes) => bytes,
        None => size::parse(text)?,
    };
    let allowed = 1 << 10..=LONG_VALUE_BYTES_MAX as u64;
    if allowed.contains(&bytes) { Ok(bytes) } else { Err("an item has 1KiB to 128MiB".to_owned()) }
}

fn request_bytes(text: &str) -> Result<u64, String> {
    let bytes = size::parse(text)?;
    if (1 << 20..=64 << 30).contains(&bytes) { Ok(bytes) } else { Err("1MiB to 64GiB".to_owned()) }
}

/// A size as memcached's `-I` writes it: a number and one letter.
fn memcached_size(text: &str) -> Option<u64> {
    let number = text.strip_suffix(|letter: char| letter.is_ascii_alphabetic())?;
    let shift = match &text[number.len()..] {
        "k" | "K" => 10,
        "m" | "M" => 20,
        "g" | "G" => 30,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// A reason why the gateway does not serve.
#[derive(Debug, thiserror::Error)]
enum MemcachedCommandError {
    #[error(transparent)]
    Gateway(#[from] GatewayError),
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error(
        "--listen tcp:{0}: other machines reach this address, and nothing would keep them from the tenant's items: listen \
         at 127.0.0.1, or add --dangerous-open-to-network"
    )]
    Open(String),
    #[error("cannot handle signals: {0}")]
    Signals(std::io::Error),
    #[error("cannot watch the certificate: {0}")]
    Expiry(std::io::Error),
}

impl MemcachedCommandError {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Identity(_)
            | Self::Open(_)
            | Self::Gateway(GatewayError::Connect(ConnectError::Address(_))) => 2,
            Self::Gateway(GatewayError::Connect(ConnectError::Find(error))) if error.is_callers() => 2,
            Self::Gateway(_) | Self::Signals(_) | Self::Expiry(_) => 3,
        }
    }
}

/// The output of `--json`.
#[derive(Serialize)]
struct Listening {
    listening: Vec<String>,
    process: u32,
    table: String,
}

/// Serves until a signal arrives.
pub fn run(options: &MemcachedOptions) -> ExitCode {
    match serve(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(format_args!("portcullis memcached: {error}"));
            ExitCode::from(error.exit_code())
        }
    }
}

/// Waits until the node can be reached. Returns `false` if a signal stops the gateway meanwhile.
///
/// # Errors
/// The node is reachable but refuses, or the command line is wrong: waiting would not help.
fn wait_for_node(
    connect: impl Fn() -> Result<Session, ConnectError>,
    requests: &Receiver<Request>,
) -> Result<bool, MemcachedCommandError> {
    let mut told = false;
    loop {
        let error = match connect() {
            Ok(_) => return Ok(true),
            Err(error) if is_away(&error) => error,
            Err(error) => return Err(GatewayError::from(error).into()),
        };
        if !std::mem::replace(&mut told, true) {
            tracing::warn!("waiting for the node: {error}");
        }
        let until = Instant::now() + TRIED_EVERY;
        while let Ok(request) = requests.recv_timeout(until.saturating_duration_since(Instant::now())) {
            if request == Request::Stop {
                return Ok(false);
            }
        }
    }
}

/// Whether the node may be reachable later.
fn is_away(error: &ConnectError) -> bool {
    use ErrorCode as Is;
    matches!(
        error.code(),
        Is::NoNode | Is::NoSuchHost | Is::NodeSilent | Is::HungUp | Is::NameLeadsNowhere | Is::DirectoryAway
    )
}

fn serve(options: &MemcachedOptions) -> Result<(), MemcachedCommandError> {
    options.check()?;
    let (node, session) = (options.node.clone(), options.client.session()?);
    let session = SessionOptions { arena_bytes: ARENA_BYTES, ..session };
    let expires = match &session.udp.security {
        ClientSecurity::Tls(identity) => Some(identity.validity()),
        ClientSecurity::Plain { .. } => None,
    };
    expires.map_or(Ok(()), expiry::watch).map_err(MemcachedCommandError::Expiry)?;
    let connect = Arc::new(move || connect_with(&node, session.clone()));
    // Signals are taken over before the sockets exist: a signal from now on stops the gateway.
    let (_sender, requests) = signals::requests().map_err(MemcachedCommandError::Signals)?;
    if !wait_for_node(&*connect, &requests)? {
        return Ok(());
    }
    let gateway = Gateway::start(portcullis_memcached::GatewayOptions {
        listen: options.listen(),
        threads: options.threads,
        connections_max: options.max_connections,
        item_bytes_max: options.item_size_max,
        request_bytes_max: options.request_bytes_max,
        idle_timeout: options.idle_timeout.map(|time| Duration::from_micros(time.0)),
        keep: options.keep,
        ..portcullis_memcached::GatewayOptions::new(options.table, connect)
    })?;
    options.announce(&gateway);
    // The gateway has no counters to print and no files to open anew.
    while requests.recv().is_ok_and(|request| request != Request::Stop) {}
    gateway.stop();
    Ok(())
}

impl MemcachedOptions {
    /// Checks what depends on more than one option.
    fn check(&self) -> Result<(), MemcachedCommandError> {
        let is_open = |address: &&String| {
            // The gateway cannot listen at a name that is not found either, and reports that then.
            let mut found = address.to_socket_addrs().into_iter().flatten();
            found.any(|address| !is_this_machine(address.ip()))
        };
        let mut addresses = self.listen.iter().filter_map(|address| match address {
            GatewayAddress::Tcp(address) => Some(address),
            GatewayAddress::Unix(_) => None,
        });
        match addresses.find(is_open).filter(|_| !self.dangerous_open_to_network) {
            Some(open) => Err(MemcachedCommandError::Open(open.clone())),
            None => Ok(()),
        }
    }

    fn listen(&self) -> Vec<Listen> {
        // A process that opens the socket acts as the tenant: by default only the gateway's own user may open it.
        let mode = self.socket_mode.unwrap_or(if self.socket_group.is_some() { 0o660 } else { 0o600 });
        let access = SocketAccess { mode, group: self.socket_group };
        let listen = |address: &GatewayAddress| match address {
            GatewayAddress::Tcp(address) => Listen::Tcp(address.clone()),
            GatewayAddress::Unix(path) => Listen::Unix { path: path.clone(), access },
        };
        self.listen.iter().map(listen).collect()
    }

    fn announce(&self, gateway: &Gateway) {
        let addresses = gateway.addresses().iter().map(|address| format!("tcp:{address}"));
        let paths = self.listen.iter().filter_map(|address| match address {
            GatewayAddress::Tcp(_) => None,
            GatewayAddress::Unix(path) => Some(format!("unix:{}", path.display())),
        });
        let listening = addresses.chain(paths).collect();
        let said = Listening { listening, process: std::process::id(), table: self.table.to_string() };
        if self.json {
            print_json(&said);
        } else {
            say(format_args!(
                "listening at {}: table {} on {}",
                said.listening.join(" and "),
                said.table,
                self.node
            ));
        }
    }
}

fn is_this_machine(address: IpAddr) -> bool {
    address.is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: MemcachedOptions,
    }

    fn parsed(words: &[&str]) -> MemcachedOptions {
        let line = ["memcached", "--node", "shm:/a"].iter().chain(words);
        Line::try_parse_from(line).expect("a call").options
    }

    #[test]
    fn nothing_but_this_machine_is_listened_at_unasked() {
        assert!(parsed(&[]).check().is_ok());
        assert!(parsed(&["--listen", "tcp:[::1]:0"]).check().is_ok());
        let open = ["--listen", "tcp:127.0.0.1:0", "--listen", "tcp:0.0.0.0:0"];
        let error = parsed(&open).check().expect_err("others reach it");
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("--dangerous-open-to-network"));
        let asked = parsed(&["--listen", "tcp:0.0.0.0:0", "--dangerous-open-to-network"]);
        assert!(asked.check().is_ok());
    }

    #[test]
    fn a_unix_socket_is_its_users_own_unless_somebody_is_named() {
        let access = |words: &[&str]| {
            let words = [&["--listen", "unix:/run/m.sock"], words].concat();
            let options = parsed(&words);
            assert!(options.check().is_ok());
            match &options.listen()[..] {
                [Listen::Unix { access, .. }] => *access,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(access(&[]), SocketAccess { mode: 0o600, group: None });
        assert_eq!(access(&["--socket-group", "7"]), SocketAccess { mode: 0o660, group: Some(7) });
        assert_eq!(access(&["--socket-mode", "0666"]).mode, 0o666);
    }

    #[test]
    fn what_cannot_be_served_is_refused_with_the_call() {
        for wrong in [
            &["--listen", "127.0.0.1:1"][..],
            &["--listen", "tcp:nowhere"],
            &["--listen", "unix:"],
            &["--socket-mode", "660"],
            &["--threads", "0"],
            &["--item-size-max", "129MiB"],
            &["--request-bytes-max", "1023KiB"],
            &["--item-size-max", "1g"],
            &["--item-size-max", "512"],
            &["--item-size-max", "m"],
            &["--keep", "soon"],
        ] {
            let line = ["memcached", "--node", "shm:/a"].iter().chain(wrong);
            assert!(Line::try_parse_from(line).is_err(), "{wrong:?}");
        }
        for (written, bytes) in [("8m", 8 << 20), ("128M", 128 << 20), ("512k", 512 << 10), ("2MiB", 2 << 20)]
        {
            assert_eq!(parsed(&["--item-size-max", written]).item_size_max, bytes);
        }
        assert_eq!(parsed(&["--keep", "90s"]).keep, Keep::For(Lifetime::seconds(90)));
    }
}
