//! A server whose admission policy records its clients, certificates in a folder, and peers that can send anything.

// Each test program uses a part of this module.
#![allow(dead_code)]

pub mod papers;
pub mod wire;

use portcullis_attach::tls::{
    AdmissionPolicy, Admitted, AttachError, Attached, ClientSecurity, Connection, Ends, Listener,
    NodeSecurity, Offer, Peer, Terms, TlsHandshake, attach,
};
use portcullis_attach::{Acceptor, Limits, Reason};
use portcullis_nic::QpAddress;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Longer than any honest action takes, also on a busy machine. No successful test waits that long.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// Limits of servers in tests that are not about the deadline.
pub const UNHURRIED: Limits =
    Limits { attach_within: Duration::from_secs(600), connections_max: 4096, unattached_max: 64 };
/// Limits of servers in tests of the deadline.
pub const HURRIED: Limits = Limits { attach_within: Duration::from_secs(1), ..UNHURRIED };

pub const TERMS: Terms = Terms {
    data_queue_pairs: 2,
    send_depth: 256,
    control_depth: 64,
    message_bytes: 128,
    unenforced: portcullis_nic::GuaranteeSet::NONE,
};

pub fn end(number: u32) -> QpAddress {
    QpAddress { number, port: [7; 16], lid: 3, first_packet: 0x00AB_CDEF }
}

/// The ends that the rig's node makes for a client.
pub fn ends_of(client: u64) -> Ends {
    ends(1000 + 3 * u32::try_from(client).expect("few come"))
}

/// Ends that fit [`TERMS`].
pub fn ends(first: u32) -> Ends {
    Ends { control: end(first), data: vec![end(first + 1), end(first + 2)] }
}

#[derive(Default)]
struct Book {
    present: HashMap<u64, (Peer, Ends)>,
    admitted: u64,
    departed: Vec<u64>,
    refusal: Option<String>,
    terms: Option<Terms>,
    unfit: bool,
    /// If set, the next admission waits for this.
    barrier: Option<Receiver<()>>,
}

/// The record of the admission policy, for the test.
#[derive(Clone, Default)]
pub struct AdmissionRecord(Arc<(Mutex<Book>, Condvar)>);

impl AdmissionRecord {
    fn with<T>(&self, change: impl FnOnce(&mut Book) -> T) -> T {
        let outcome = change(&mut self.0.0.lock().expect("whole"));
        self.0.1.notify_all();
        outcome
    }

    fn wait(&self, what: &str, is_so: impl Fn(&Book) -> bool) {
        let book = self.0.0.lock().expect("whole");
        let (book, waited) = self.0.1.wait_timeout_while(book, PATIENCE, |book| !is_so(book)).expect("whole");
        assert!(!waited.timed_out(), "{what}: {:?} are present", book.present);
    }

    /// Waits until no admitted client is left. Checks that each departed once.
    pub fn wait_until_empty(&self) {
        self.wait("somebody is left behind", |book| book.present.is_empty());
        self.with(|book| {
            let mut departed = book.departed.clone();
            departed.sort_unstable();
            departed.dedup();
            assert_eq!(departed.len(), book.departed.len(), "somebody departed twice");
            assert_eq!(departed.len() as u64, book.admitted, "departures and admissions differ");
        });
    }

    pub fn wait_until_present(&self, clients: usize) {
        self.wait("somebody is missing", |book| book.present.len() == clients);
    }

    pub fn admitted(&self) -> u64 {
        self.with(|book| book.admitted)
    }

    pub fn peer(&self, client: u64) -> (Peer, Ends) {
        self.with(|book| book.present[&client].clone())
    }

    pub fn refuse(&self, reason: Option<&str>) {
        self.with(|book| book.refusal = reason.map(str::to_owned));
    }

    pub fn set_terms(&self, terms: Terms) {
        self.with(|book| book.terms = Some(terms));
    }

    pub fn bring_unfit_ends(&self, unfit: bool) {
        self.with(|book| book.unfit = unfit);
    }

    pub fn hold_next_admission(&self, until: Receiver<()>) {
        self.with(|book| book.barrier = Some(until));
    }
}

struct Recorder(AdmissionRecord);

impl AdmissionPolicy for Recorder {
    fn offer(&self, _: &Peer) -> Result<Offer, Reason> {
        Ok(Offer::QueuePairs(self.0.with(|book| book.terms).unwrap_or(TERMS)))
    }

    fn admit(&self, peer: &Peer, ends: Ends) -> Result<Admitted, Reason> {
        if let Some(barrier) = self.0.with(|book| book.barrier.take()) {
            barrier.recv_timeout(PATIENCE).expect("the test goes on");
        }
        self.0.with(|book| {
            if let Some(reason) = &book.refusal {
                return Err(reason.clone().into());
            }
            book.admitted += 1;
            let client = book.admitted;
            book.present.insert(client, (peer.clone(), ends.clone()));
            let mut own = ends_of(client);
            if book.unfit {
                own.data.pop();
            }
            Ok(Admitted { client, ends: own })
        })
    }

    fn depart(&self, client: u64) {
        self.0.with(|book| {
            book.present.remove(&client);
            book.departed.push(client);
        });
    }
}

/// A server, and the record of its admission policy.
pub struct Rig {
    pub server: Option<Acceptor>,
    pub admissions: AdmissionRecord,
    pub address: SocketAddr,
    security: ClientSecurity,
}

impl Rig {
    pub fn plain(limits: Limits) -> Self {
        Self::start(NodeSecurity::Plain, ClientSecurity::Plain { anywhere: false }, limits)
    }

    /// A server with certificates: a node for localhost and 127.0.0.1, and an honest tenant called orange.
    pub fn secured(papers: &papers::Papers, limits: Limits) -> Self {
        Self::start(NodeSecurity::Tls(papers.node()), ClientSecurity::Tls(papers.tenant("orange")), limits)
    }

    fn start(node: NodeSecurity, security: ClientSecurity, limits: Limits) -> Self {
        let listener = Listener::bind("127.0.0.1:0", node, false).expect("a port");
        let address = listener.local_address();
        let (server, admissions) = serve(vec![listener], limits);
        Self { server: Some(server), admissions, address, security }
    }

    pub fn attach(&self) -> Result<Attached<()>, AttachError> {
        self.attach_as(&self.security, &self.address.to_string())
    }

    pub fn attach_as(&self, security: &ClientSecurity, address: &str) -> Result<Attached<()>, AttachError> {
        attach(address, security, PATIENCE, |_| Ok((ends(1), ())))
    }

    /// Opens a connection and sends nothing.
    pub fn call(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream
    }

    /// Opens a connection and sends these bytes.
    pub fn call_and_say(&self, bytes: &[u8]) -> TcpStream {
        let mut stream = self.call();
        stream.write_all(bytes).expect("sent");
        stream
    }

    /// Checks that nothing is left of an attack, and that the server serves an honest client.
    pub fn assert_untouched(&self) {
        self.admissions.wait_until_empty();
        let attached = self.attach().expect("an honest client is served");
        self.admissions.wait_until_present(1);
        drop(attached);
        self.admissions.wait_until_empty();
    }
}

/// Starts a server. Returns it with its admission policy's record.
pub fn serve(listeners: Vec<Listener>, limits: Limits) -> (Acceptor, AdmissionRecord) {
    let admissions = AdmissionRecord::default();
    let server = Acceptor::start::<TlsHandshake>(listeners, Box::new(Recorder(admissions.clone())), limits);
    let server = server.expect("a server");
    (server, admissions)
}

/// Waits until the other side has hung up. Returns what it sent before.
pub fn last_words(stream: &mut TcpStream) -> Vec<u8> {
    let mut said = Vec::new();
    let mut bytes = [0; 4096];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return said,
            Ok(there) => said.extend_from_slice(&bytes[..there]),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return said,
            Err(error) => panic!("it does not hang up: {error}"),
        }
    }
}

/// Waits until something arrives from the node. Returns whether the node is alive then.
pub fn node_alive_after_news(connection: &mut Connection) -> bool {
    let timeout = Timespec::try_from(PATIENCE).expect("a time");
    let news = rustix::event::poll(&mut [PollFd::new(&connection.as_fd(), PollFlags::IN)], Some(&timeout));
    assert_eq!(news, Ok(1), "nothing came of the node");
    connection.node_alive()
}
