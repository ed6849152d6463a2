//! Encrypted reads of 64 bytes over sockets on loopback, compared with bare datagrams between the same processors: one
//! at a time, and 64 outstanding. Both ends poll. Rounds alternate; ratios are of one round.
//!
//!     cargo run --release -p portcullis-onerma --example udp_read
//!
//! The same measurement without encryption shows its cost:
//!
//!     PORTCULLIS_DANGEROUS_PLAIN=1 cargo run --release -p portcullis-onerma --features dangerous-plain --example udp_read

#![allow(clippy::print_stdout, reason = "it is a program")]

use portcullis_memory::Mapping;
use portcullis_onerma::{
    Action, Allowed, Command, Destination, HostAddress, IS_ENCRYPTED, Initiator, InitiatorLimits, NodeSocket,
    OperationType, Region, RegionKey, RegionTable, Responder, ResponderLimits, ServiceClass, Status,
    UdpSocket,
};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const BYTES: usize = 64;
const ROUNDS: usize = 9;
const LATENCIES: usize = 20_000;
const RATE_TIME: Duration = Duration::from_millis(500);
const UNDER_WAY: usize = 64;

fn pin(processor: usize) {
    let mut set = CpuSet::new();
    set.set(processor);
    // With a single processor the figures mean nothing anyway.
    let _ = sched_setaffinity(None, &set);
}

fn socket() -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a socket");
    let address = socket.local_address().expect("an address");
    (socket, address)
}

/// Sends received datagrams back.
fn echo(mut socket: UdpSocket, stop: &AtomicBool) {
    pin(0);
    let mut back = VecDeque::new();
    while !stop.load(Ordering::Relaxed) {
        let keep = |from, datagram: &mut [u8]| {
            back.push_back((from, <[u8; BYTES]>::try_from(&*datagram).expect("its length")));
        };
        socket.receive(keep).expect("receives");
        let poll = |bytes: &mut Vec<u8>| {
            let (to, datagram) = back.pop_front()?;
            bytes.extend_from_slice(&datagram);
            Some(to)
        };
        socket.send(poll).expect("sends");
    }
}

fn serve(mut responder: Responder<Mapping>, mut socket: NodeSocket, stop: &AtomicBool) {
    pin(0);
    let began = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        socket.turn(&mut responder, began.elapsed());
    }
}

/// The measured exchange: `begin` provides the bytes to send for one exchange, `taken` returns the number of exchanges
/// that a datagram ended.
trait Exchange {
    fn begin(&mut self, now: Duration);
    fn transmit(&mut self, datagram: &mut Vec<u8>) -> Option<SocketAddr>;
    fn taken(&mut self, from: SocketAddr, datagram: &mut [u8], now: Duration) -> usize;
}

struct Bare {
    to: SocketAddr,
    waiting: usize,
}

impl Exchange for Bare {
    fn begin(&mut self, _: Duration) {
        self.waiting += 1;
    }

    fn transmit(&mut self, datagram: &mut Vec<u8>) -> Option<SocketAddr> {
        self.waiting = self.waiting.checked_sub(1)?;
        datagram.extend_from_slice(&[7; BYTES]);
        Some(self.to)
    }

    fn taken(&mut self, _: SocketAddr, datagram: &mut [u8], _: Duration) -> usize {
        assert_eq!(datagram.len(), BYTES);
        1
    }
}

struct Reads {
    initiator: Initiator,
    to: Destination,
    /// The bytes of the latest read.
    buffer: [u8; BYTES],
}

impl Exchange for Reads {
    fn begin(&mut self, now: Duration) {
        let action = Action::Read(BYTES);
        let command = Command { action, to: self.to.clone(), address: 0, class: ServiceClass::Latency };
        self.initiator.issue(command, now).expect("a slot");
    }

    fn transmit(&mut self, datagram: &mut Vec<u8>) -> Option<SocketAddr> {
        self.initiator.poll_transmit(datagram)
    }

    fn taken(&mut self, from: SocketAddr, datagram: &mut [u8], now: Duration) -> usize {
        if let Some(data) = self.initiator.handle_packet(from, datagram, now) {
            self.buffer[data.offset..][..data.bytes.len()].copy_from_slice(data.bytes);
        }
        let ends = std::iter::from_fn(|| self.initiator.poll_completion());
        ends.inspect(|end| assert_eq!(end.status, Status::Ok)).count()
    }
}

/// The median of single exchanges in microseconds, and millions a second with many outstanding.
struct Figures {
    typical: f64,
    rate: f64,
}

/// One round: bare datagrams, and reads.
struct Round {
    datagrams: Figures,
    reads: Figures,
}

fn measure(exchange: &mut impl Exchange, socket: &mut UdpSocket) -> Figures {
    let began = Instant::now();
    let turn = |exchange: &mut _, socket: &mut UdpSocket| {
        let exchange: &mut dyn Exchange = exchange;
        socket.send(|datagram| exchange.transmit(datagram)).expect("sends");
        let (now, mut ended) = (began.elapsed(), 0);
        socket.receive(|from, datagram| ended += exchange.taken(from, datagram, now)).expect("receives");
        ended
    };
    let mut times: Vec<Duration> = (0..LATENCIES)
        .map(|_| {
            let start = Instant::now();
            exchange.begin(began.elapsed());
            while turn(exchange, socket) == 0 {}
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    let (start, mut done) = (Instant::now(), 0);
    (0..UNDER_WAY).for_each(|_| exchange.begin(began.elapsed()));
    while start.elapsed() < RATE_TIME {
        let ended = turn(exchange, socket);
        (0..ended).for_each(|_| exchange.begin(began.elapsed()));
        done += ended;
    }
    let elapsed = start.elapsed();
    let mut left = UNDER_WAY;
    while left > 0 {
        left -= turn(exchange, socket);
    }
    let rate = f64::from(u32::try_from(done).expect("it is half a second")) / elapsed.as_secs_f64() / 1e6;
    Figures { typical: times[LATENCIES / 2].as_secs_f64() * 1e6, rate }
}

/// Returns a node's end with one region, and the key for it of `client`.
fn node(client: SocketAddr, node: SocketAddr) -> (Responder<Mapping>, Destination) {
    let mut regions = RegionTable::new(1, 1);
    let allowed = Allowed::these(&[OperationType::Read]);
    let region = Region {
        key: RegionKey::new([7; 32]),
        address: 0,
        length: 4096,
        offset: 0,
        lifetime_word: None,
        allowed,
    };
    let region = regions.insert(region).expect("room");
    let host = HostAddress::from(client.ip());
    let key = regions.derive(region, host, 1).expect("it is there");
    let limits = ResponderLimits {
        packet_max: 1280,
        waiting_max: 1 << 20,
        changes_max: 1,
        client_changes_max: 1,
        change_timeout: Duration::from_millis(1),
        finished_max: 1,
    };
    let memory = Mapping::shareable("memory", 4096).expect("memory");
    (
        Responder::new(memory, &regions, limits),
        Destination { address: node, client: 1, region, key: key.set_up() },
    )
}

fn round() -> Round {
    let stop = AtomicBool::new(false);
    let theirs = NodeSocket::bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a port");
    let address = theirs.local_address().expect("its address");
    let (mut ours, own) = socket();
    let (bare, echoes) = socket();
    let datagrams = std::thread::scope(|scope| {
        scope.spawn(|| echo(bare, &stop));
        let figures = measure(&mut Bare { to: echoes, waiting: 0 }, &mut ours);
        stop.store(true, Ordering::Relaxed);
        figures
    });
    stop.store(false, Ordering::Relaxed);
    let (responder, to) = node(own, address);
    let limits = InitiatorLimits {
        slots: 2 * u32::try_from(UNDER_WAY).expect("few"),
        window: 1 << 20,
        packet_max: 1280,
        dispatch_timeout: Duration::from_secs(1),
        timeout: Duration::from_secs(1),
    };
    let reads = std::thread::scope(|scope| {
        scope.spawn(|| serve(responder, theirs, &stop));
        let figures =
            measure(&mut Reads { initiator: Initiator::new(limits), to, buffer: [0; BYTES] }, &mut ours);
        stop.store(true, Ordering::Relaxed);
        figures
    });
    Round { datagrams, reads }
}

fn spread(mut values: Vec<f64>) -> String {
    values.sort_unstable_by(f64::total_cmp);
    format!("{:.2} ({:.2}-{:.2})", values[values.len() / 2], values[0], values[values.len() - 1])
}

fn main() {
    pin(1);
    let rounds: Vec<Round> = (0..ROUNDS).map(|_| round()).collect();
    let of = |value: fn(&Round) -> f64| spread(rounds.iter().map(value).collect());
    if !IS_ENCRYPTED {
        println!("NOT ENCRYPTED (dangerous-plain): packets go out as they are");
    }
    println!("medians of {ROUNDS} rounds (least-most); {BYTES} bytes");
    println!(
        "one at a time [usec]: datagram {}, read {}",
        of(|it| it.datagrams.typical),
        of(|it| it.reads.typical)
    );
    println!("  read by datagram: {}", of(|it| it.reads.typical / it.datagrams.typical));
    println!(
        "{UNDER_WAY} under way [M/s]: datagrams {}, reads {}",
        of(|it| it.datagrams.rate),
        of(|it| it.reads.rate)
    );
    println!("  reads by datagrams: {}", of(|it| it.reads.rate / it.datagrams.rate));
}
