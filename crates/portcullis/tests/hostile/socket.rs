//! Attacks on the attach socket.

use crate::attach_connection::{AttachConnection, hello, mapped};
use crate::attacker::Attacker;
use crate::child::{self, Child};
use crate::rig::{BLUE, RED, Rig, alone, descriptors, lenient, random, resident_bytes, wait_for};
use portcullis::NodeConfig;
use portcullis::host::{Host, HostConfig, Listen};
use portcullis_attach::unix::{
    AdmissionPolicy, Admitted, Listener, Peer, PortOffer, SocketAccess, UnixHandshake,
};
use portcullis_attach::{Acceptor, Errand, Limits, Reason};
use portcullis_nic::EndpointSize;
use rand::{Rng, RngExt};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::process::{Resource, Rlimit, setrlimit};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

#[test]
fn whoever_says_nothing_is_told_so_and_hung_up_on_and_holds_nobody_up() {
    let rig = Rig::new();
    let before = descriptors();
    let silent: Vec<AttachConnection> =
        (0..300).map(|_| AttachConnection::connect(&rig.socket(RED))).collect();
    drop(Attacker::attach(&rig.socket(BLUE)));
    rig.others_go_on(20);
    for connection in &silent {
        assert!(connection.hear().is_too_late(), "a silent peer is told so");
        assert!(connection.hear().is_end(), "a silent connection is closed");
    }
    drop(silent);
    wait_for("descriptors to come back", || descriptors() <= before);
    rig.clear();
}

#[test]
fn what_is_no_hello_is_refused() {
    let rig = Rig::new();
    let mut random = random();
    let sound = hello(4096);
    let mut hellos: Vec<Vec<u8>> = (1..64).map(|length| sound[..length].to_vec()).collect();
    hellos.extend([65, 66, 128, 4096, 65536].map(|length| {
        let mut long = vec![0; length];
        long[..64].copy_from_slice(&sound);
        long
    }));
    hellos.extend((0..200).map(|_| {
        let mut bytes = vec![0; random.random_range(1..200)];
        random.fill_bytes(&mut bytes);
        bytes
    }));
    hellos.extend([u64::MAX, u64::MAX - 4095, 1 << 63, (64 << 20) + 1].map(|arena| hello(arena).to_vec()));
    for bytes in hellos {
        let connection = AttachConnection::connect(&rig.socket(RED));
        assert!(connection.say(&bytes));
        let heard = connection.hear();
        assert!(heard.is_refusal() && heard.descriptors.is_empty(), "a port for {} bytes", bytes.len());
        assert!(connection.hear().is_end());
    }
    // An empty message ends the connection.
    let connection = AttachConnection::connect(&rig.socket(RED));
    connection.say(&[]);
    assert!(connection.hear().is_end());
    rig.clear();
}

#[test]
fn a_word_after_the_welcome_is_the_last() {
    let rig = Rig::new();
    for again in [&hello(4096)[..], &[0; 1], &[0xff; 300]] {
        let (connection, port, memory) = AttachConnection::attach(&rig.socket(RED));
        assert!(connection.say(again));
        assert!(connection.hear().is_end(), "it is shown out");
        drop((port, memory));
    }
    // The attacker sends all messages at once, and some twice, before the node has answered. It gets at most one port
    // before the node hangs up.
    let words = [hello(4096), mapped()];
    for second in words {
        for third in words {
            let connection = AttachConnection::connect(&rig.socket(RED));
            for word in [hello(4096), second, third, hello(4096)] {
                connection.say(&word);
            }
            while !connection.hear().is_end() {}
        }
    }
    // The node refuses the second message of the conversation without the first.
    let connection = AttachConnection::connect(&rig.socket(RED));
    connection.say(&mapped());
    assert!(connection.hear().is_refusal());
    rig.clear();
}

#[test]
fn descriptors_passed_with_words_do_not_stay_with_the_node() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let _server = closed_server(folder.path(), 64, Descriptors::Taken);
    let before = descriptors();
    for round in 0..50 {
        let connection = AttachConnection::connect(&folder.path().join(RED));
        let gift = std::fs::File::open("/dev/null").expect("a file");
        let gifts: Vec<_> = (0..=round).map(|_| gift.as_fd()).collect();
        assert!(connection.say_with(&hello(4096), &gifts));
        // More descriptors arrive with a message that is too late.
        connection.say_with(&[0], &gifts);
        let heard = connection.hear();
        // If the node hangs up before it has read all messages, the kernel reports a reset.
        assert!(heard.is_refusal() || heard.is_end());
    }
    wait_for("descriptors to come back", || descriptors() <= before);
}

#[test]
fn the_kernel_refuses_descriptors_where_it_can() {
    let rig = Rig::new();
    let connection = AttachConnection::connect(&rig.socket(RED));
    let gift = std::fs::File::open("/dev/null").expect("a file");
    if connection.say_with(&hello(4096), &[gift.as_fd()]) {
        println!("SKIPPED that the kernel refuses descriptors: this one has no SO_PASSRIGHTS (Linux 6.16)");
    } else {
        assert!(
            connection.say(&hello(4096)) && connection.hear().offer().is_some(),
            "without them it is a hello"
        );
    }
    drop(connection);
    rig.clear();
}

/// A descriptor whose last close takes a minute, unless the returned listener is closed before. It is a connection that
/// lingers because its peer does not read.
fn lingering() -> (OwnedFd, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut stream = TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
    stream.set_nonblocking(true).expect("an option");
    while stream.write(&[0; 65536]).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::from_mins(1))).expect("an option");
    (stream.into(), listener)
}

#[test]
fn a_descriptor_whose_close_waits_holds_up_nobody_at_another_socket() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let server = closed_server(folder.path(), 64, Descriptors::Taken);
    let mut unread = Vec::new();
    for _ in 0..3 {
        let (gift, listener) = lingering();
        let connection = AttachConnection::connect(&folder.path().join(RED));
        // The descriptor is passed without a hello.
        assert!(connection.say_with(&[0], &[gift.as_fd()]));
        unread.push((connection, listener));
        drop(gift);
        for _ in 0..20 {
            let connection = AttachConnection::connect(&folder.path().join(BLUE));
            connection.say(&hello(4096));
            assert!(connection.hear().is_refusal(), "it got as far as the desk");
        }
    }
    let started = Instant::now();
    drop(server);
    assert!(started.elapsed() < Duration::from_secs(20), "the server's end waited for a peer");
    drop(unread);
}

#[test]
fn two_thousand_clients_come_and_go_and_nothing_is_left() {
    // Pool and log are small: they count as used memory once all their pages have been touched.
    let node = NodeConfig { pool_bytes: 4 << 20, audit_records_max: 1024, ..lenient() };
    let rig = Rig::with(node, &[RED, BLUE]);
    let cycle = |count: u32| {
        for round in 0..count {
            match round % 4 {
                0 => drop(AttachConnection::connect(&rig.socket(RED))),
                1 => {
                    AttachConnection::connect(&rig.socket(RED)).say(&hello(4096));
                }
                2 => drop(AttachConnection::attach(&rig.socket(RED))),
                _ => {
                    let mut attacker = rig.attacker();
                    attacker.allocate(4096, portcullis::Sharing::Exclusive);
                }
            }
        }
        wait_for("all to be gone", || rig.host.counters().clients == 2);
    };
    cycle(200);
    let (fds, bytes) = (descriptors(), resident_bytes());
    cycle(2000);
    wait_for("descriptors to come back", || descriptors() <= fds);
    let grown = resident_bytes().saturating_sub(bytes);
    println!("2,000 cycles: {grown} bytes more");
    assert!(grown < 8 << 20, "{grown} bytes more than before");
    rig.clear();
}

#[test]
fn a_storm_of_connections_keeps_nobody_out_for_long() {
    let rig = Rig::new();
    let stop = AtomicBool::new(false);
    let knocked = AtomicU32::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let connections: Vec<_> =
                    (0..64).filter_map(|_| AttachConnection::try_connect(&rig.socket(RED))).collect();
                for connection in connections.iter().step_by(3) {
                    connection.say(&[1; 64]);
                }
                knocked.fetch_add(1, Ordering::Relaxed);
            }
        });
        for _ in 0..20 {
            drop(Attacker::attach(&rig.socket(BLUE)));
        }
        rig.others_go_on(20);
        wait_for("a storm", || knocked.load(Ordering::Relaxed) > 20);
        stop.store(true, Ordering::Relaxed);
    });
    rig.clear();
}

const OWN: SocketAccess = SocketAccess { mode: 0o600, group: None };

/// A policy that admits no client: these tests look at the socket only.
struct Closed;

/// A port that is never offered.
enum NoOffer {}

impl PortOffer for NoOffer {
    fn size(&self) -> EndpointSize {
        match *self {}
    }

    fn memory_bytes(&self) -> u64 {
        match *self {}
    }

    fn descriptors(&self) -> [BorrowedFd<'_>; 4] {
        match *self {}
    }

    fn was_offered(&mut self) {
        match *self {}
    }

    fn preparation(&self) -> Errand {
        match *self {}
    }

    fn give_up(&mut self) {
        match *self {}
    }
}

impl AdmissionPolicy for Closed {
    type Offer = NoOffer;

    fn offer(&self, _: &Peer, _: u64) -> Result<NoOffer, Reason> {
        Err("closed".into())
    }

    fn admit(&self, _: &Peer, offer: &mut NoOffer) -> Result<Admitted, Reason> {
        match *offer {}
    }

    fn depart(&self, _: u64) {}
}

/// Whether the sockets accept descriptors of peers.
#[derive(PartialEq)]
enum Descriptors {
    Taken,
    RefusedWherePossible,
}

/// Starts an acceptor without a node, at two sockets.
fn closed_server(folder: &Path, connections_max: usize, descriptors: Descriptors) -> Acceptor {
    let listeners = [RED, BLUE].map(|name| Listener::bind(&folder.join(name), OWN).expect("a socket"));
    if descriptors == Descriptors::Taken {
        listeners.iter().for_each(Listener::dangerous_take_descriptors);
    }
    let limits = Limits { connections_max, ..Limits::UNIX };
    Acceptor::start::<UnixHandshake<Closed>>(listeners.into(), Closed, limits).expect("an acceptor")
}

#[test]
fn connections_beyond_the_limit_are_told_so_and_the_other_listener_has_room() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let _server = closed_server(folder.path(), 64, Descriptors::RefusedWherePossible);
    let connections: Vec<AttachConnection> =
        (0..200).map(|_| AttachConnection::connect(&folder.path().join(RED))).collect();
    let told = connections
        .iter()
        .map(AttachConnection::hear)
        .filter(super::attach_connection::Heard::is_refusal)
        .count();
    assert!(told >= 200 - 64, "{told} were told that there is no room");
    let crowd: Vec<AttachConnection> =
        (0..200).map(|_| AttachConnection::connect(&folder.path().join(RED))).collect();
    let connection = AttachConnection::connect(&folder.path().join(BLUE));
    connection.say(&hello(4096));
    let reason = String::from_utf8_lossy(&connection.hear().bytes).into_owned();
    assert!(reason.contains("closed"), "it got as far as the desk: {reason}");
    drop(crowd);
}

/// Not a test: a node that runs until it is killed. The folder's name contains how many descriptors the node may open
/// and how many of them are taken already.
#[test]
fn a_child_that_is_a_node_with_few_descriptors() {
    let Some(folder) = child::path() else { return };
    let name = folder.file_name().and_then(|name| name.to_str()).expect("a name");
    let (most, taken) = name.split_once('-').expect("two numbers");
    let (most, taken) = (most.parse().ok(), taken.parse().expect("a number"));
    setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most }).expect("fewer are always granted");
    let listen = [RED, BLUE].map(|name| Listen { path: folder.join(name), tenant: Some(name.to_owned()) });
    let _host =
        Host::start(HostConfig { listen: listen.into(), ..HostConfig::default() }).expect("a node starts");
    let _taken: Vec<_> = (0..taken).map(|_| std::fs::File::open("/dev/null").expect("a file")).collect();
    child::say_ready("");
    // The read ends when the parent kills this process or dies.
    let _ = std::io::stdin().read_line(&mut String::new());
}

fn node_with(folder: &Path, most: usize, taken: usize) -> (Child, PathBuf) {
    let folder = folder.join(format!("{most}-{taken}"));
    std::fs::create_dir(&folder).expect("a folder");
    let (node, _) = Child::start("socket::a_child_that_is_a_node_with_few_descriptors", &folder);
    (node, folder)
}

#[test]
fn a_node_without_descriptors_says_so_and_recovers() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    // A client takes four descriptors. Among four consecutive limits, one leaves the node no descriptor for refusing a
    // client.
    for most in 64..68 {
        let (_node, folder) = node_with(folder.path(), most, 32);
        let path = folder.join(RED);
        let mut connections = Vec::new();
        let mut refused = 0;
        while refused < 5 {
            let connection = AttachConnection::connect(&path);
            connection.say(&hello(4096));
            refused += u32::from(connection.hear().offer().is_none());
            connections.push(connection);
        }
        assert!(
            connections.len() < most,
            "{} connections to a node with {most} descriptors",
            connections.len()
        );
        drop(connections);
        wait_for("a port again", || {
            let connection = AttachConnection::connect(&path);
            connection.say(&hello(4096)) && connection.hear().offer().is_some()
        });
    }
}

#[test]
fn silence_at_one_socket_leaves_descriptors_to_clients_of_another() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let (_node, folder) = node_with(folder.path(), 256, 0);
    let gift = std::fs::File::open("/dev/null").expect("a file");
    if AttachConnection::connect(&folder.join(RED)).say_with(&[0], &[gift.as_fd()]) {
        println!(
            "SKIPPED: before Linux 6.16 who is turned away holds a descriptor until a thread has closed it"
        );
        return;
    }
    for _ in 0..4 {
        let silent: Vec<AttachConnection> =
            (0..500).map(|_| AttachConnection::connect(&folder.join(RED))).collect();
        let honest: Vec<Attacker> = (0..10).map(|_| Attacker::attach(&folder.join(BLUE))).collect();
        let refused = silent.iter().filter(|connection| connection.has_heard()).count();
        assert!(refused > 0, "some were told that there is no room");
        drop((honest, silent));
    }
}
