//! An attacker on the path: a proxy at another address of this machine, under the node's port number for TCP and UDP.
//! The connection passes unchanged. The test decides how datagrams pass.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Direction of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    ToNode,
    ToClient,
}

/// A datagram that is to be sent: its direction, its delay and its bytes.
pub type Sent = (Way, Duration, Vec<u8>);
type Conduct = Box<dyn FnMut(Way, Vec<u8>) -> Vec<Sent> + Send>;

/// Datagrams that have passed, in order.
pub type Seen = Arc<Mutex<Vec<(Way, Vec<u8>)>>>;

/// A proxy on the path between clients and a node.
pub struct Proxy {
    pub address: SocketAddr,
    /// The datagrams that have passed.
    pub seen: Seen,
    conduct: Arc<Mutex<Conduct>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

pub fn pass(way: Way, bytes: Vec<u8>) -> Vec<Sent> {
    vec![(way, Duration::ZERO, bytes)]
}

impl Proxy {
    /// Starts a proxy in front of the node at `node`. `host` is the last byte of its loopback address.
    pub fn new(
        node: &str,
        host: u8,
        conduct: impl FnMut(Way, Vec<u8>) -> Vec<Sent> + Send + 'static,
    ) -> Self {
        let node: SocketAddr = node.parse().expect("an address");
        let address = SocketAddr::from(([127, 0, 0, host], node.port()));
        let listener = TcpListener::bind(address).expect("a port");
        let front = UdpSocket::bind(address).expect("a port");
        let stop = Arc::new(AtomicBool::new(false));
        let conduct: Arc<Mutex<Conduct>> = Arc::new(Mutex::new(Box::new(conduct)));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let mut path = Path {
            node,
            front,
            backs: HashMap::new(),
            held: Vec::new(),
            conduct: Arc::clone(&conduct),
            seen: Arc::clone(&seen),
        };
        let its = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            listener.set_nonblocking(true).expect("set");
            path.front.set_nonblocking(true).expect("set");
            while !its.load(Ordering::Relaxed) {
                if let Ok((client, _)) = listener.accept() {
                    client.set_nonblocking(false).expect("set");
                    join(client, node);
                }
                if !path.turn() {
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
        });
        Self { address, seen, conduct, stop, thread: Some(thread) }
    }

    /// Replaces the conduct of the proxy.
    pub fn behave(&self, conduct: impl FnMut(Way, Vec<u8>) -> Vec<Sent> + Send + 'static) {
        *self.conduct.lock().expect("not poisoned") = Box::new(conduct);
    }

    pub fn udp(&self) -> String {
        format!("udp:{}", self.address)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Forwards a connection to the node. Each direction ends with the connection.
fn join(client: TcpStream, node: SocketAddr) {
    let Ok(onward) = TcpStream::connect(node) else { return };
    let ends = [(&client, &onward), (&onward, &client)]
        .map(|(from, to)| (from.try_clone().expect("a descriptor"), to.try_clone().expect("a descriptor")));
    for (mut from, mut to) in ends {
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(there) = from.read(&mut bytes)
                && there > 0
                && to.write_all(&bytes[..there]).is_ok()
            {}
            let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
        });
    }
}

struct Path {
    node: SocketAddr,
    front: UdpSocket,
    /// A socket toward the node for each client.
    backs: HashMap<SocketAddr, UdpSocket>,
    held: Vec<(Instant, SocketAddr, Way, Vec<u8>)>,
    conduct: Arc<Mutex<Conduct>>,
    seen: Seen,
}

impl Path {
    fn turn(&mut self) -> bool {
        let mut came = Vec::new();
        let mut bytes = vec![0; 1 << 16];
        while let Ok((length, from)) = self.front.recv_from(&mut bytes) {
            self.backs.entry(from).or_insert_with(|| {
                let back = UdpSocket::bind("127.0.0.1:0").expect("a socket");
                back.set_nonblocking(true).expect("set");
                back
            });
            came.push((from, Way::ToNode, bytes[..length].to_vec()));
        }
        for (&client, back) in &self.backs {
            while let Ok((length, _)) = back.recv_from(&mut bytes) {
                came.push((client, Way::ToClient, bytes[..length].to_vec()));
            }
        }
        let worked = !came.is_empty();
        for (client, way, bytes) in came {
            self.seen.lock().expect("not poisoned").push((way, bytes.clone()));
            let sent = (self.conduct.lock().expect("not poisoned"))(way, bytes);
            let now = Instant::now();
            self.held.extend(sent.into_iter().map(|(way, after, bytes)| (now + after, client, way, bytes)));
        }
        let now = Instant::now();
        for (_, client, way, bytes) in self.held.extract_if(.., |(due, ..)| *due <= now) {
            // A datagram that the system does not send counts as lost on the path.
            let _ = match way {
                Way::ToNode => self.backs[&client].send_to(&bytes, self.node),
                Way::ToClient => self.front.send_to(&bytes, client),
            };
        }
        worked
    }
}
