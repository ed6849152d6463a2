//! Transfers over real sockets on loopback: directly, and through an attacker on the path that loses, repeats, alters
//! and forges datagrams.

use crate::rig;

use portcullis_memory::{Mapping, Memory};
use portcullis_onerma::{
    Action, Atomic, Destination, Executor, ExecutorLimits, InitiatorLimits, NodeSocket, OperationType,
    ResponderLimits, ServiceClass, Status, Transfer, TransferEnd, UdpSocket,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rig::{Client, Node};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Scope;
use std::time::{Duration, Instant};

const BYTES: usize = 40_000;
/// Number of bytes for tests in which each loss costs a time-out.
const LESS: usize = 8000;
const REGION: u64 = 48_000;
/// Size of packets, so that several fit into one system call, and operations have several.
const PACKET_MAX: usize = 1280;

/// Time-outs that a busy machine keeps.
const INITIATOR: InitiatorLimits = InitiatorLimits {
    slots: 64,
    window: 1 << 20,
    packet_max: PACKET_MAX,
    dispatch_timeout: Duration::from_millis(100),
    timeout: Duration::from_millis(60),
};
const RESPONDER: ResponderLimits = ResponderLimits {
    packet_max: PACKET_MAX,
    waiting_max: 1 << 20,
    changes_max: 64,
    client_changes_max: 64,
    change_timeout: Duration::from_millis(40),
    finished_max: 64,
};
const LIMITS: ExecutorLimits = ExecutorLimits {
    transfers: 64,
    patience: Duration::from_secs(60),
    local_target: Duration::from_millis(1),
    remote_target: Duration::from_millis(5),
    rtt: Duration::from_micros(50),
};

fn any_port() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

fn socket() -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind(any_port()).expect("a socket");
    let address = socket.local_address().expect("an address");
    (socket, address)
}

/// Answers all requests until `stop` is set.
fn serve(mut node: Node, mut socket: NodeSocket, stop: &AtomicBool) {
    let began = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let worked = socket.turn(&mut node.responder, began.elapsed());
        node.responder.handle_timeout(began.elapsed());
        if !worked {
            std::thread::yield_now();
        }
    }
}

/// A client whose datagrams are sent to `via`.
struct Session {
    executor: Executor,
    socket: UdpSocket,
    began: Instant,
    keys: [Destination; 3],
    memory: Mapping,
    /// Data of the latest read.
    read: Vec<u8>,
}

impl Session {
    fn run(&mut self, action: Action) -> TransferEnd {
        let place = match action.operation() {
            OperationType::Read => 0,
            OperationType::Write => 1,
            _ => 2,
        };
        let to = self.keys[place].clone();
        let transfer = Transfer { action, to, address: 0, class: ServiceClass::Bulk, may_repeat: true };
        self.executor.begin(transfer, self.began.elapsed()).expect("there is room");
        loop {
            let Self { executor, socket, began, read, .. } = self;
            let left = socket.send(|it| executor.poll_transmit(it)).expect("sends");
            let now = began.elapsed();
            let came = socket.receive(|from, packet| {
                if let Some(data) = executor.handle_packet(from, packet, now) {
                    rig::store(&data, read);
                }
            });
            let came = came.expect("receives");
            executor.handle_timeout(began.elapsed());
            if let Some(end) = executor.poll_end() {
                return end;
            }
            if came + left == 0 {
                std::thread::yield_now();
            }
        }
    }
}

/// Starts a node on a thread of its own, and a session with it. `via` returns the address at which the session reaches
/// the node.
fn start<'scope>(
    scope: &'scope Scope<'scope, '_>,
    stop: &'scope AtomicBool,
    via: impl FnOnce(SocketAddr) -> SocketAddr,
) -> Session {
    let theirs = NodeSocket::bind(any_port()).expect("a port");
    let address = theirs.local_address().expect("its address");
    let (ours, own) = socket();
    let mut node = Node::new(RESPONDER);
    node.address = via(address);
    let client = Client { address: own, ..Client::new(1, INITIATOR) };
    let region = node.region(0, REGION);
    let keys = [OperationType::Read, OperationType::Write, OperationType::Atomic]
        .map(|_| node.grant(region, &client));
    let memory = node.memory.clone();
    scope.spawn(move || serve(node, theirs, stop));
    let executor = Executor::new(client.initiator, LIMITS);
    Session { executor, socket: ours, began: Instant::now(), keys, memory, read: Vec::new() }
}

/// Stops the node's thread even if a test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn transfers_arrive_whole_over_sockets() {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        let mut session = start(scope, &stop, |node| node);
        for round in 0..20u8 {
            let end = session.run(Action::Write(vec![round; BYTES]));
            assert_eq!((end.status, end.is_uncertain), (Status::Ok, false));
            let end = session.run(Action::Read(BYTES));
            assert_eq!(end.status, Status::Ok);
            assert!(session.read == vec![round; BYTES]);
        }
    });
}

/// Forwards datagrams between the session and the node. Loses some, repeats some, alters some, and reflects some to
/// their sender.
fn attack(node: SocketAddr, seed: u64, mut socket: UdpSocket, stop: &AtomicBool) {
    let mut dice = StdRng::seed_from_u64(seed);
    let (mut client, mut seen) = (None, Vec::<(SocketAddr, Vec<u8>)>::new());
    while !stop.load(Ordering::Relaxed) {
        let mut on = Vec::new();
        socket
            .receive(|from, packet| {
                if from != node {
                    client = Some(from);
                }
                let to = if from == node { client.expect("a node answers only") } else { node };
                let mut packet = packet.to_vec();
                seen.push((to, packet.clone()));
                match dice.random_range(0..40) {
                    0 => return,
                    1 => on.push((to, packet.clone())),
                    2 => {
                        let at = dice.random_range(0..packet.len());
                        packet[at] ^= 1 << dice.random_range(0..8);
                    }
                    3 => on.push((from, packet.clone())),
                    4 => on.push(seen[dice.random_range(0..seen.len())].clone()),
                    _ => {}
                }
                on.push((to, packet));
            })
            .expect("receives");
        let mut on = on.into_iter();
        let poll = |bytes: &mut Vec<u8>| {
            let (to, packet) = on.next()?;
            bytes.extend_from_slice(&packet);
            Some(to)
        };
        if socket.send(poll).expect("sends") == 0 {
            std::thread::yield_now();
        }
    }
}

#[test]
fn whoever_is_on_the_path_of_sockets_changes_nothing_and_repeats_nothing() {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        let mut session = start(scope, &stop, |node| {
            let (between, address) = socket();
            let stop = &stop;
            scope.spawn(move || attack(node, 1, between, stop));
            address
        });
        let (mut sure, mut perhaps) = (0, 0);
        for round in 0..4u8 {
            let end = session.run(Action::Write(vec![round; LESS]));
            // A refusal is not sealed, so an attacker that alters a request can cause one, as it could lose the
            // request.
            if end.status == Status::Ok {
                let mut there = vec![0; LESS];
                session.memory.read(0, &mut there);
                assert!(there == vec![round; LESS]);
            }
            session.memory.store(0, 0);
            for _ in 0..4 {
                let end = session.run(Action::Atomic(Atomic::FetchAndAdd { add: 1 }));
                sure += u64::from(end.status == Status::Ok);
                perhaps += u64::from(end.is_uncertain);
                let word = session.memory.load(0);
                assert!((sure..=sure + perhaps).contains(&word), "{word} of {sure} and {perhaps}");
            }
            (sure, perhaps) = (0, 0);
        }
    });
}
