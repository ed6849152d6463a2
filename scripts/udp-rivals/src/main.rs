//! Encrypted reads of 64 bytes beside what else there is over UDP on loopback, in one run: bare datagrams, datagrams over
//! quinn, a rekey by a third party, and reads while somebody floods the node with garbage. Rounds take turns; ratios are of
//! one round.
//!
//!     cargo run --release --manifest-path scripts/udp-rivals/Cargo.toml

mod flood;
mod quic;
mod rekey;

use portcullis_memory::{Mapping, pin};
use portcullis_onerma::{
    Action, Allowed, Command, DerivedKey, Destination, HostAddress, Initiator, InitiatorLimits, NodeSocket, OperationType, Region,
    RegionId, RegionKey, RegionTable, Responder, ResponderLimits, ServiceClass, Status, UdpSocket,
};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const BYTES: usize = 64;
const ROUNDS: usize = 9;
const EXCHANGES: usize = 10_000;
const HOLDER: u64 = 1;
const MANAGER: u64 = 2;
const INCARNATION: u64 = 1;
const REGION_BYTES: u64 = 4096;
const ALLOWED: [OperationType; 2] = [OperationType::Read, OperationType::Rekey];
/// The processors of the two ends.
const NODE: usize = 0;
const CLIENT: usize = 1;

fn socket() -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a socket");
    let address = socket.local_address().expect("an address");
    (socket, address)
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    times[times.len() / 2]
}

fn spread(mut values: Vec<f64>) -> String {
    values.sort_unstable_by(f64::total_cmp);
    format!("{:.2} ({:.2}-{:.2})", values[values.len() / 2], values[0], values[values.len() - 1])
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// The node's end: its responder is shared, so that the owner of the region can derive keys.
struct Node {
    responder: Mutex<Responder<Mapping>>,
    region: RegionId,
}

impl Node {
    fn new() -> Self {
        let mut regions = RegionTable::new(INCARNATION, 1);
        let region = Region {
            key: RegionKey::new([7; 32]),
            address: 0,
            length: REGION_BYTES,
            offset: 0,
            lifetime_word: None,
            allowed: Allowed::these(&ALLOWED),
        };
        let region = regions.insert(region).expect("room");
        let limits = ResponderLimits {
            packet_max: 1280,
            waiting_max: 1 << 20,
            changes_max: 16,
            client_changes_max: 16,
            change_timeout: Duration::from_millis(50),
            finished_max: 16,
        };
        let memory = Mapping::shareable("memory", REGION_BYTES).expect("memory");
        Self { responder: Mutex::new(Responder::new(memory, regions, limits)), region }
    }

    fn serve(&self, mut socket: NodeSocket, mut control: TcpStream, host: SocketAddr, stop: &AtomicBool) {
        pin(NODE);
        let began = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            socket.turn(&mut self.responder.lock().expect("no panic"), began.elapsed());
            rekey::hand_out(&mut control, || self.derive(host, HOLDER));
        }
    }

    /// A client's key now.
    fn derive(&self, host: SocketAddr, client: u64) -> DerivedKey {
        let mut responder = self.responder.lock().expect("no panic");
        responder.regions().derive(self.region, HostAddress::from(host.ip()), client).expect("it is there")
    }

    /// What opens the region to a client now.
    fn grant(&self, node: SocketAddr, host: SocketAddr, client: u64) -> Destination {
        let key = self.derive(host, client).set_up();
        Destination { address: node, client, region: self.region, key }
    }
}

/// A client's end.
struct Client {
    initiator: Initiator,
    socket: UdpSocket,
    began: Instant,
}

impl Client {
    fn new(socket: UdpSocket) -> Self {
        let limits = InitiatorLimits {
            slots: 256,
            window: 1 << 20,
            packet_max: 1280,
            dispatch_timeout: Duration::from_secs(1),
            timeout: Duration::from_secs(1),
        };
        Self { initiator: Initiator::new(limits), socket, began: Instant::now() }
    }

    fn begin(&mut self, to: &Destination, action: Action) {
        let command = Command { action, to: to.clone(), address: 0, class: ServiceClass::Latency };
        self.initiator.issue(command, self.began.elapsed()).expect("a slot");
    }

    /// Sends and takes in once. Returns how operations have ended.
    fn turn(&mut self, ended: &mut Vec<Status>) {
        let Self { initiator, socket, began } = self;
        socket.send(|packet| initiator.poll_transmit(packet)).expect("sends");
        let now = began.elapsed();
        socket.receive(|from, packet| initiator.handle_packet(from, packet, now)).expect("receives");
        if initiator.next_timeout().is_some_and(|due| due <= now) {
            initiator.handle_timeout(now);
        }
        ended.extend(std::iter::from_fn(|| initiator.poll_completion()).map(|end| end.status));
    }

    /// One operation at a time. Returns its time in microseconds.
    fn one(&mut self, to: &Destination, action: Action, expected: Status) -> f64 {
        let (before, mut ended) = (Instant::now(), Vec::new());
        self.begin(to, action);
        while ended.is_empty() {
            self.turn(&mut ended);
        }
        assert_eq!(ended, [expected]);
        micros(before.elapsed())
    }
}

fn bare() -> f64 {
    let ((mut ours, _), (mut theirs, to)) = (socket(), socket());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(NODE);
            while !stop.load(Ordering::Relaxed) {
                let mut back = None;
                theirs.receive(|from, bytes| back = Some((from, bytes.to_vec()))).expect("receives");
                let poll = |out: &mut Vec<u8>| {
                    let (to, bytes) = back.take()?;
                    out.extend_from_slice(&bytes);
                    Some(to)
                };
                theirs.send(poll).expect("sends");
            }
        });
        let times = (0..EXCHANGES).map(|_| {
            let before = Instant::now();
            let mut left = true;
            let poll = |out: &mut Vec<u8>| {
                out.extend_from_slice(&[7; BYTES]);
                std::mem::take(&mut left).then_some(to)
            };
            // What is appended without a destination is not sent.
            let poll_once = { let mut poll = poll; move |out: &mut Vec<u8>| { let start = out.len(); let to = poll(out); if to.is_none() { out.truncate(start); } to } };
            ours.send(poll_once).expect("sends");
            while ours.receive(|_, _| {}).expect("receives") == 0 {}
            micros(before.elapsed())
        });
        let typical = median(times.collect());
        stop.store(true, Ordering::Relaxed);
        typical
    })
}

/// What one round has measured, in microseconds.
struct Figures {
    bare: f64,
    read: f64,
    quinn: f64,
    rekey: rekey::Figures,
    flood: flood::Figures,
}

fn round() -> Figures {
    let (bare, quinn) = (bare(), quic::round_trip());
    let node = Node::new();
    let theirs = NodeSocket::bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a port");
    let address = theirs.local_address().expect("its address");
    let (ours, host) = socket();
    let stop = AtomicBool::new(false);
    let mut client = Client::new(ours);
    std::thread::scope(|scope| {
        let [mut owner, control] = rekey::control();
        scope.spawn(|| node.serve(theirs, control, host, &stop));
        let key = node.grant(address, host, HOLDER);
        let read = || Action::Read(vec![0; BYTES]);
        let reads = (0..EXCHANGES).map(|_| client.one(&key, read(), Status::Ok)).collect();
        let mut manager = Client::new(socket().0);
        let mut parties =
            rekey::Parties { node: &node, address, host, holder: &mut client, manager: &mut manager };
        let rekey = rekey::measure(&mut parties, &mut owner);
        let key = node.grant(address, host, HOLDER);
        let flood = flood::measure(&mut client, &key);
        stop.store(true, Ordering::Relaxed);
        Figures { bare, read: median(reads), quinn, rekey, flood }
    })
}

fn main() {
    pin(CLIENT);
    let rounds: Vec<Figures> = (0..ROUNDS).map(|_| round()).collect();
    let of = |value: fn(&Figures) -> f64| spread(rounds.iter().map(value).collect());
    println!("medians of {ROUNDS} rounds (least-most); {BYTES} bytes; times in usec");
    println!("bare datagram {}, encrypted read {}", of(|it| it.bare), of(|it| it.read));
    println!("  read by bare datagram: {}", of(|it| it.read / it.bare));
    println!("datagram over quinn {}", of(|it| it.quinn));
    println!("  quinn by read: {}", of(|it| it.quinn / it.read));
    println!("refused by a rekey, with the next key at hand: {}", of(|it| it.rekey.with_next_key));
    println!("  in round trips of a read: {}", of(|it| it.rekey.with_next_key / it.rekey.read));
    println!("refused by a rekey, without: {}", of(|it| it.rekey.without));
    println!("  in round trips, less one to the owner: {}", of(|it| (it.rekey.without - it.rekey.control) / it.rekey.read));
    println!("  round trip to the owner over TCP: {}", of(|it| it.rekey.control));
    println!("64 reads under way [M/s]: {}", of(|it| it.flood.alone));
    println!("  beside a thread that sends nothing: {}", of(|it| it.flood.beside_idle));
    println!("  beside garbage that names nothing: {}", of(|it| it.flood.beside_garbage));
    println!("    share of the rate beside a thread that sends nothing: {}", of(|it| it.flood.beside_garbage / it.flood.beside_idle));
    println!("  beside requests under no key: {}", of(|it| it.flood.beside_unproven));
    println!("    share: {}", of(|it| it.flood.beside_unproven / it.flood.beside_idle));
    println!("    of these, the attacker sent [M/s]: {}", of(|it| it.flood.sent));
}
