//! A node in this process with a gateway on it, and clients that speak memcached's protocol by hand.

use portcullis::host::{Host, HostConfig, Listen};
use portcullis::{DirectoryName, NodeConfig, Quota, SessionOptions, connect_with};
use portcullis_memcached::{Gateway, GatewayOptions};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Time after which an event counts as missing.
pub const LATE_AFTER: Duration = Duration::from_secs(20);

/// A node with a socket for each of some tenants.
pub struct Node {
    pub host: Host,
    folder: TempDir,
}

impl Node {
    pub fn new() -> Self {
        Self::with_quota(Quota::default())
    }

    pub fn with_quota(quota: Quota) -> Self {
        Self::with(NodeConfig { pool_bytes: 96 << 20, quota, ..NodeConfig::default() })
    }

    pub fn with(node: NodeConfig) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Self { host: Self::host(node, &folder), folder }
    }

    fn host(node: NodeConfig, folder: &TempDir) -> Host {
        let listen = ["orange", "green"]
            .map(|tenant| Listen { path: folder.path().join(tenant), tenant: Some(tenant.to_owned()) });
        let config = HostConfig { node, listen: listen.into(), overcommit: true, ..HostConfig::default() };
        Host::start(config).expect("a node starts")
    }

    /// Ends the node, and starts another one in its place.
    pub fn start_anew(self) -> Self {
        let Self { mut host, folder } = self;
        host.stop();
        drop(host);
        let node = NodeConfig { pool_bytes: 96 << 20, ..NodeConfig::default() };
        Self { host: Self::host(node, &folder), folder }
    }

    /// The options of a gateway with a few threads, at any port.
    pub fn options(&self, tenant: &str) -> GatewayOptions {
        let address = format!("shm:{}", self.folder.path().join(tenant).display());
        let connect = move || {
            let session = SessionOptions { arena_bytes: 8 << 20, ..SessionOptions::default() };
            connect_with(&address, session)
        };
        let table = DirectoryName::new("memcached").expect("a name");
        let options = GatewayOptions::new(table, Arc::new(connect));
        GatewayOptions {
            listen: vec![portcullis_memcached::Listen::Tcp("127.0.0.1:0".to_owned())],
            threads: 2,
            ..options
        }
    }

    pub fn gateway(&self) -> Gateway {
        Gateway::start(self.options("orange")).expect("a gateway starts")
    }
}

/// The value of a counter of `stats`.
pub fn counter(gateway: &Gateway, name: &str) -> u64 {
    let rows = gateway.statistics();
    let row = rows.iter().find(|(other, _)| *other == name).expect("a counter");
    row.1.parse().expect("a number")
}

/// Waits until a condition holds.
#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let late = Instant::now() + LATE_AFTER;
    while !is_so() {
        assert!(Instant::now() < late, "it never came: {what}");
        std::thread::yield_now();
    }
}

/// Writes to a connection until the gateway ends it.
pub fn send_all(mut stream: &TcpStream, bytes: &[u8]) {
    // A gateway that rejects the bytes closes the connection.
    let _ = stream.write_all(bytes);
}

/// A client.
pub struct Client(pub TcpStream);

impl Client {
    pub fn new(gateway: &Gateway) -> Self {
        Self::at(gateway.addresses()[0])
    }

    pub fn at(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("a connection");
        stream.set_read_timeout(Some(LATE_AFTER)).expect("a timeout");
        stream.set_write_timeout(Some(LATE_AFTER)).expect("a timeout");
        stream.set_nodelay(true).expect("no delay");
        Self(stream)
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.write_all(bytes.as_ref()).expect("the gateway reads");
    }

    /// Receives as many bytes as are expected, and compares them.
    #[track_caller]
    pub fn expect(&mut self, expected: impl AsRef<[u8]>) {
        let expected = expected.as_ref();
        let mut got = vec![0; expected.len()];
        let mut bytes = 0;
        while bytes < expected.len() {
            match self.0.read(&mut got[bytes..]) {
                Ok(0) => break,
                Ok(more) => bytes += more,
                Err(error) => panic!("{error} after {:?}", got[..bytes].escape_ascii().to_string()),
            }
            if got[..bytes] != expected[..bytes] {
                break;
            }
        }
        assert!(got[..bytes] == *expected, "expected {}\ngot      {}", shown(expected), shown(&got[..bytes]));
    }

    /// Sends a line, and expects an answer.
    #[track_caller]
    pub fn ask(&mut self, line: &str, answer: &str) {
        self.send(format!("{line}\r\n"));
        self.expect(format!("{answer}\r\n"));
    }

    /// Receives a line without its end.
    pub fn line(&mut self) -> String {
        let mut line = self.line_to(b'\n');
        assert!(line.ends_with("\r\n"), "{line}");
        line.truncate(line.len() - 2);
        line
    }

    /// Receives bytes up to this one.
    pub fn line_to(&mut self, end: u8) -> String {
        let mut line = Vec::new();
        let mut byte = [0];
        while line.last() != Some(&end) {
            match self.0.read(&mut byte) {
                Ok(1) => line.push(byte[0]),
                other => panic!("{other:?} after {}", shown(&line)),
            }
        }
        String::from_utf8_lossy(&line).into_owned()
    }

    #[track_caller]
    pub fn set(&mut self, key: &str, value: &[u8]) {
        self.store(key, value);
        self.expect("STORED\r\n");
    }

    pub fn store(&mut self, key: &str, value: &[u8]) {
        self.send([format!("set {key} 0 0 {}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat());
    }

    #[track_caller]
    pub fn expect_value(&mut self, key: &str, value: &[u8]) {
        self.send(format!("get {key}\r\n"));
        let head = format!("VALUE {key} 0 {}\r\n", value.len());
        self.expect([head.as_bytes(), value, b"\r\nEND\r\n"].concat());
    }

    /// Whether a key exists.
    pub fn has(&mut self, key: &str) -> bool {
        self.send(format!("mg {key}\r\n"));
        match &self.line()[..] {
            "HD" => true,
            "EN" => false,
            other => panic!("{other}"),
        }
    }

    /// Expects these last bytes, and then the end of the connection.
    #[track_caller]
    pub fn expect_end(&mut self, last: &str) {
        self.expect(last);
        match self.0.read(&mut [0]) {
            Ok(0) => {}
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
            other => panic!("the connection goes on: {other:?}"),
        }
    }
}

/// The beginning and the end of bytes.
fn shown(bytes: &[u8]) -> String {
    let (first, last) = (&bytes[..bytes.len().min(200)], &bytes[bytes.len().saturating_sub(200)..]);
    format!("{} bytes: {} … {}", bytes.len(), first.escape_ascii(), last.escape_ascii())
}
