//! Calls one channel in three ways with the same code: from its own machine, through a node in shared memory, and over
//! UDP. Then measures a call without arguments in each way, beside a ping-pong of datagrams.
//!
//! ```console
//! cargo run --release -p portcullis-rpc --example between_machines
//! ```

use portcullis::host::{Host, HostConfig, Listen, NetworkListen, UdpConfig};
use portcullis::{NodeConfig, NodeSecurity};
use portcullis_rpc::channel::{AtNode, Connection, Copied, Failure, Reply, serve};
use portcullis_rpc::{Boxed, List, Text, Vector};
use std::error::Error;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

/// Number of calls that are measured in each way.
const CALLS: usize = 5_000;

#[portcullis_rpc::service]
trait Library {
    /// Returns the titles, among those given, that the library has.
    #[method(100)]
    fn find(
        &self,
        titles: Copied<'_, Vector<Text>>,
        reply: &mut Reply<'_>,
    ) -> Result<Boxed<List<Text>>, Failure>;

    /// Returns the word.
    #[method(101)]
    fn echo(&self, word: u64) -> Result<u64, Failure>;
}

struct Shelf(Vec<&'static str>);

impl Library for Shelf {
    fn find(
        &self,
        titles: Copied<'_, Vector<Text>>,
        reply: &mut Reply<'_>,
    ) -> Result<Boxed<List<Text>>, Failure> {
        let (scope, mut found) = (reply.scope(4096)?, List::EMPTY);
        for title in titles.get()?.get(titles.view())? {
            let title = title.get(titles.view())?;
            if self.0.contains(&title) {
                found.push_back(scope, Text::new(scope, title)?)?;
            }
        }
        Ok(Boxed::new(scope, found)?)
    }

    fn echo(&self, word: u64) -> Result<u64, Failure> {
        Ok(word)
    }
}

fn ask(library: &mut LibraryClient<Connection>) -> Result<Vec<String>, Box<dyn Error>> {
    let scope = library.0.scope(4096)?;
    let titles: Result<Vec<Text>, _> =
        ["Emma", "Ulysses", "Faust"].into_iter().map(|title| Text::new(&scope, title)).collect();
    let titles = Boxed::new(&scope, Vector::new(&scope, &titles?)?)?;
    let found = library.find(&scope, titles)?;
    let found = found.look(&mut library.0)?;
    let mut titles = Vec::new();
    for title in found.get()?.iter(found.view()) {
        titles.push(title?.get(found.view())?.to_owned());
    }
    Ok(titles)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn round_trip(library: &mut LibraryClient<Connection>) -> Result<Duration, Box<dyn Error>> {
    let mut times = Vec::with_capacity(CALLS);
    for word in 0..CALLS as u64 {
        let before = Instant::now();
        assert_eq!(library.echo(word)?, word);
        times.push(before.elapsed());
    }
    Ok(median(times))
}

/// Measures a datagram of one line, there and back, while both ends poll.
fn ping_pong() -> Result<Duration, Box<dyn Error>> {
    let ends = [UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?];
    for (end, other) in [(0, 1), (1, 0)] {
        ends[end].connect(ends[other].local_addr()?)?;
        ends[end].set_nonblocking(true)?;
    }
    let [here, there] = ends;
    let echo = std::thread::spawn(move || {
        let mut bytes = [0; 64];
        while bytes[0] != 1 {
            if there.recv(&mut bytes).is_ok() {
                let _ = there.send(&bytes);
            }
        }
    });
    let mut times = Vec::with_capacity(CALLS);
    for left in (0..CALLS).rev() {
        let (before, mut bytes) = (Instant::now(), [u8::from(left == 0); 64]);
        here.send(&bytes)?;
        while here.recv(&mut bytes).is_err() {}
        times.push(before.elapsed());
    }
    echo.join().map_err(|_| "the other end has panicked")?;
    Ok(median(times))
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let (local, node) = (folder.path().join("library.sock"), folder.path().join("node.sock"));
    // Clients of other machines connect to this node as the tenant «readers».
    let readers = Some("readers".to_owned());
    let listen = NetworkListen {
        address: "127.0.0.1:0".to_owned(),
        security: NodeSecurity::Plain,
        plain_anywhere: false,
        tenant: readers.clone(),
    };
    let host = Host::start(HostConfig {
        node: NodeConfig { pool_bytes: 64 << 20, ..NodeConfig::default() },
        listen: vec![Listen { path: node.clone(), tenant: readers }],
        udp: Some(UdpConfig { listen: vec![listen], ..UdpConfig::default() }),
        ..HostConfig::default()
    })?;
    let _server = serve(&local)
        .service(LibraryServer(Shelf(vec!["Emma", "Emil", "Faust"])))
        .at_node(&host, AtNode::channel("library").admit("readers"))?
        .start()?;

    let addresses = [
        local.display().to_string(),
        format!("shm:{}#library", node.display()),
        format!("udp:{}#library", host.network_addresses()[0]),
    ];
    for address in addresses {
        let mut library = LibraryClient(Connection::open(&address)?);
        let found = ask(&mut library)?;
        let time = round_trip(&mut library)?;
        println!("{address}: found {found:?}; a call without arguments takes {time:.1?}");
    }
    println!("a ping-pong of datagrams takes {:.1?}", ping_pong()?);
    Ok(())
}
