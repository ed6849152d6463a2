//! Unsolicited datagrams: they neither hide other datagrams nor keep a waiting thread awake.

use portcullis_nic::Pollable;
use portcullis_onerma::{
    ControlLink, ExecutorLimits, InitiatorLimits, NodeEnd, PathError, UdpEndpoint, UdpSocket, find_path,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Longer than any machine takes to send a datagram to itself.
const LONG: Duration = Duration::from_secs(5);

fn loopback() -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a socket");
    let address = socket.local_address().expect("an address");
    (socket, address)
}

fn plain() -> std::net::UdpSocket {
    let socket = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
    socket.set_read_timeout(Some(LONG)).expect("set");
    socket
}

/// An engine that was told that nothing is left sleeps until another datagram arrives.
#[test]
fn empty_datagrams_hide_nothing_that_comes_behind_them() {
    let (mut node, address) = loopback();
    let client = plain();
    for _ in 0..100 {
        client.send_to(&[], address).expect("sent");
    }
    client.send_to(b"request", address).expect("sent");
    // Loopback has delivered them by now, in order.
    let mut came = Vec::new();
    while node.receive(|_, packet| came.push(packet.to_vec())).expect("received") > 0 {}
    assert_eq!(came, [b"request"]);
}

#[test]
fn a_node_at_all_addresses_answers_from_the_one_that_it_was_asked_at() {
    let mut node = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0).into()).expect("a socket");
    let port = node.local_address().expect("an address").port();
    let client = plain();
    for host in [Ipv4Addr::new(127, 0, 0, 2), Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 0, 0, 3)] {
        client.send_to(b"who", (host, port)).expect("sent");
        node.wait(LONG).expect("it waits");
        let mut asked = None;
        node.receive(|from, _| asked = Some(from)).expect("received");
        node.send(|packet| {
            packet.extend_from_slice(b"I");
            asked.take()
        })
        .expect("sent");
        let (_, from) = client.recv_from(&mut [0; 9]).expect("an answer");
        assert_eq!(from, SocketAddr::from((host, port)));
    }
}

/// A control connection on which no message is sent.
#[derive(Debug)]
struct Silence(OwnedFd);

impl ControlLink for Silence {
    fn say(&mut self, _message: &[u8]) {}

    fn go_on(&mut self) {}

    fn is_behind(&self) -> bool {
        false
    }

    fn hear(&mut self) -> Option<Vec<u8>> {
        None
    }

    fn is_alive(&self) -> bool {
        true
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[test]
fn what_comes_for_nothing_does_not_keep_an_event_loop_awake() {
    let (socket, own) = loopback();
    let (_node, link) = UnixStream::pair().expect("a pair");
    let initiator = InitiatorLimits {
        slots: 4,
        window: 1 << 16,
        packet_max: 1232,
        dispatch_timeout: LONG,
        timeout: Duration::from_millis(60),
    };
    let limits = (initiator, ExecutorLimits::for_round_trip(Duration::from_micros(50)));
    let node = NodeEnd { address: own, client: 1, control_depth: 4, message_bytes: 64 };
    let mut end = UdpEndpoint::new(
        node,
        4096,
        (socket, 1232),
        Box::new(Silence(link.into())),
        (limits.0, limits.1, portcullis_onerma::Pace::for_shared_processors()),
    )
    .expect("an end");
    let somebody = plain();
    for length in 0..100 {
        somebody.send_to(&vec![7; length], own).expect("sent");
    }
    assert!(end.arm(), "nothing has ended");
    let mut watched = [PollFd::from_borrowed_fd(end.descriptor(), PollFlags::IN)];
    let woken = poll(&mut watched, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).expect("polled");
    assert_eq!(woken, 0, "there is nothing to wake up for");
}

/// Answers each datagram as a node would, with `change` applied, after this time.
fn answering(
    after: Duration,
    change: impl Fn(&mut Vec<u8>) + Send + 'static,
) -> (SocketAddr, std::sync::mpsc::Sender<()>) {
    let (node, (stop, stopped)) = (plain(), std::sync::mpsc::channel());
    let address = node.local_addr().expect("an address");
    node.set_read_timeout(Some(Duration::from_millis(5))).expect("set");
    std::thread::spawn(move || {
        let mut held: Vec<(Instant, Vec<u8>, SocketAddr)> = Vec::new();
        while stopped.try_recv() != Err(std::sync::mpsc::TryRecvError::Disconnected) {
            let mut bytes = vec![0; 9000];
            if let Ok((length, from)) = node.recv_from(&mut bytes) {
                bytes.truncate(length);
                bytes[1] = 0xF1;
                change(&mut bytes);
                held.push((Instant::now(), bytes, from));
            }
            for (_, bytes, to) in held.extract_if(.., |(came, ..)| came.elapsed() >= after) {
                let _ = node.send_to(&bytes, to);
            }
        }
    });
    (address, stop)
}

#[test]
fn a_path_that_is_too_slow_for_operations_is_said_to_be_slow_and_not_silent() {
    let (mut socket, _) = loopback();
    let (node, _stop) = answering(Duration::from_millis(120), |_| {});
    let error = find_path(&mut socket, node, 4188, Duration::from_millis(600)).expect_err("no path");
    assert!(
        matches!(error, PathError::TooSlow { round_trip, .. } if round_trip >= Duration::from_millis(120)),
        "{error}"
    );
}

#[test]
fn answers_that_nobody_asked_for_are_not_believed() {
    let (mut socket, _) = loopback();
    let lies: [fn(&mut Vec<u8>); 2] = [|answer| answer.resize(8000, 0), |answer| answer[4] ^= 1];
    for lie in lies {
        let (node, _stop) = answering(Duration::ZERO, lie);
        let error = find_path(&mut socket, node, 4188, Duration::from_millis(200)).expect_err("no path");
        assert!(matches!(error, PathError::Silent { .. }), "{error}");
    }
}
