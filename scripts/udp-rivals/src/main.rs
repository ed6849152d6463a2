//! Encrypted reads of 64 bytes beside what else there is over UDP on loopback, in one run: bare datagrams, datagrams over
//! quinn, a rekey by a third party, and reads while somebody floods the node with garbage. Rounds take turns; ratios are of
//! one round.
//!
//!     cargo run --release --manifest-path scripts/udp-rivals/Cargo.toml

mod flood;
mod quic;

use portcullis_memory::{Mapping, pin};
use portcullis_onerma::{
    Action, Allowed, Command, Destination, HostAddress, Initiator, InitiatorLimits, OperationType, Region,
    RegionId, RegionKey, RegionTable, Responder, ResponderLimits, ServiceClass, Status, UdpSocket,
};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const BYTES: usize = 64;
const ROUNDS: usize = 9;
const EXCHANGES: usize = 10_000;
const HOLDER: u64 = 1;
const MANAGER: u64 = 2;
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
        let mut regions = RegionTable::new(1, 1);
        let region = Region {
            key: RegionKey::new([7; 32]),
            address: 0,
            length: 4096,
            offset: 0,
            lifetime_word: None,
            allowed: Allowed::these(&[OperationType::Read, OperationType::Rekey]),
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
        let memory = Mapping::shareable("memory", 4096).expect("memory");
        Self { responder: Mutex::new(Responder::new(memory, regions, limits)), region }
    }

    fn serve(&self, mut socket: UdpSocket, stop: &AtomicBool) {
        pin(NODE);
        let began = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            let mut responder = self.responder.lock().expect("no panic");
            let now = began.elapsed();
            socket.receive(|from, packet| responder.handle_packet(from, packet, now)).expect("receives");
            socket.send(|packet| responder.poll_transmit(packet)).expect("sends");
        }
    }

    /// What opens the region to a client now.
    fn grant(&self, node: SocketAddr, host: SocketAddr, client: u64) -> Destination {
        let mut responder = self.responder.lock().expect("no panic");
        let key = responder.regions().derive(self.region, HostAddress::from(host.ip()), client);
        let key = key.expect("it is there").set_up();
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
    rekey: f64,
    refused: f64,
    flood: flood::Figures,
}

fn round() -> Figures {
    let (bare, quinn) = (bare(), quic::round_trip());
    let node = Node::new();
    let ((theirs, address), (ours, host)) = (socket(), socket());
    let stop = AtomicBool::new(false);
    let mut client = Client::new(ours);
    std::thread::scope(|scope| {
        scope.spawn(|| node.serve(theirs, &stop));
        let key = node.grant(address, host, HOLDER);
        let read = || Action::Read(vec![0; BYTES]);
        let reads = (0..EXCHANGES).map(|_| client.one(&key, read(), Status::Ok)).collect();
        let (mut rekeys, mut refusals) = (Vec::new(), Vec::new());
        for turn in 0..EXCHANGES / 10 {
            let holder = node.grant(address, host, HOLDER);
            let manager = node.grant(address, host, MANAGER);
            let next = RegionKey::new([u8::try_from(turn % 251).expect("it is small"); 32]);
            rekeys.push(client.one(&manager, Action::Rekey(next), Status::Ok));
            let refused = Status::RemoteAuthenticationFailure;
            refusals.push(client.one(&holder, read(), refused));
        }
        let key = node.grant(address, host, HOLDER);
        let flood = flood::measure(&mut client, &key);
        stop.store(true, Ordering::Relaxed);
        Figures { bare, read: median(reads), quinn, rekey: median(rekeys), refused: median(refusals), flood }
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
    println!("rekey {}, read that is refused after it {}", of(|it| it.rekey), of(|it| it.refused));
    println!("  rekey by read (one round trip): {}", of(|it| it.rekey / it.read));
    println!("64 reads under way [M/s]: {}", of(|it| it.flood.alone));
    println!("  beside a thread that sends nothing: {}", of(|it| it.flood.beside_idle));
    println!("  beside garbage that names nothing: {}", of(|it| it.flood.beside_garbage));
    println!("    share of the rate beside a thread that sends nothing: {}", of(|it| it.flood.beside_garbage / it.flood.beside_idle));
    println!("  beside requests under no key: {}", of(|it| it.flood.beside_unproven));
    println!("    share: {}", of(|it| it.flood.beside_unproven / it.flood.beside_idle));
    println!("    of these, the attacker sent [M/s]: {}", of(|it| it.flood.sent));
}
