//! A port that an attacker floods, over real sockets: proven clients are served all the same.

use crate::rig;

use portcullis_onerma::{Destination, NodeSocket, Status, UdpSocket};
use rig::{Client, INITIATOR, Node, RESPONDER};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

/// More than a burst.
const BURST: usize = 100;
/// More than any port has room for.
const FLOOD: usize = 200_000;
const SECOND: Duration = Duration::from_secs(1);

/// A node behind a port, and the memory that its clients may read.
struct Port {
    node: Node,
    socket: NodeSocket,
    region: portcullis_onerma::RegionId,
    now: Duration,
}

/// A client with a socket, or an attacker that has the client's packets.
struct Peer {
    client: Client,
    socket: UdpSocket,
    key: Destination,
}

fn bind() -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a socket");
    let address = socket.local_address().expect("its address");
    (socket, address)
}

impl Port {
    fn at(ip: Ipv4Addr) -> Self {
        let socket = NodeSocket::bind((ip, 0).into()).expect("a port");
        let mut node = Node::new(RESPONDER);
        node.address = (Ipv4Addr::LOCALHOST, socket.local_address().expect("its address").port()).into();
        let region = node.region(0, 4096);
        Self { node, socket, region, now: SECOND }
    }

    fn peer(&mut self) -> Peer {
        let (socket, address) = bind();
        let client = Client { address, ..Client::new(1, INITIATOR) };
        let key = self.node.grant(self.region, &client);
        Peer { client, socket, key }
    }

    fn turn(&mut self) -> bool {
        self.socket.turn(&mut self.node.responder, self.now)
    }

    fn serve_all(&mut self) {
        while self.turn() {}
    }

    /// Sends requests in a client's name, as an attacker does, with a tag that is valid under no key.
    fn flood(&mut self, count: usize) {
        let mut of = self.peer();
        let mut packet = of.request(self.now);
        *packet.last_mut().expect("a packet") ^= 1;
        let (mut socket, _) = bind();
        send(&mut socket, self.node.address, &packet, count);
    }

    /// Makes the port count as flooded from now on.
    fn be_flooded(&mut self) {
        let before = self.node.responder.counters().refused;
        self.flood(BURST);
        self.serve_all();
        assert_eq!(self.node.responder.counters().refused - before, BURST as u64);
    }
}

fn send(socket: &mut UdpSocket, to: SocketAddr, packet: &[u8], count: usize) {
    let mut left = count;
    while left > 0 {
        let burst = left.min(32);
        let mut sent = 0;
        let poll = |out: &mut Vec<u8>| {
            sent += 1;
            (sent <= burst).then(|| {
                out.extend_from_slice(packet);
                to
            })
        };
        socket.send(poll).expect("sent");
        while socket.is_behind() {
            socket.send(|_| None).expect("sent");
        }
        left -= burst;
    }
}

impl Peer {
    fn request(&mut self, now: Duration) -> Vec<u8> {
        self.client.read(&self.key, 0, 64, now);
        rig::next(|it| self.client.initiator.poll_transmit(it)).expect("a request").1
    }

    fn ask(&mut self, port: &Port) {
        let packet = self.request(port.now);
        send(&mut self.socket, port.node.address, &packet, 1);
    }

    /// Whether the answer has arrived.
    fn is_answered(&mut self, now: Duration) -> bool {
        let Self { client, socket, .. } = self;
        socket.receive(|from, packet| client.receive(from, packet, now)).expect("received");
        client.completed().inspect(|end| assert_eq!(end.status, Status::Ok)).is_some()
    }
}

#[test]
fn who_has_proven_itself_is_served_while_its_port_is_full() {
    let mut port = Port::at(Ipv4Addr::LOCALHOST);
    let (mut honest, mut late) = (port.peer(), port.peer());
    port.be_flooded();
    honest.ask(&port);
    port.serve_all();
    assert!(honest.is_answered(port.now));
    assert_eq!(port.socket.senders_apart(), 1);

    port.flood(FLOOD);
    let before = port.node.responder.counters().refused;
    honest.ask(&port);
    late.ask(&port);
    port.turn();
    assert!(honest.is_answered(port.now), "it is asked first");
    assert!(port.node.responder.counters().refused - before <= BURST as u64);
    port.serve_all();
    assert!(!late.is_answered(port.now), "there was no room for what it sent");
    late.ask(&port);
    port.serve_all();
    assert!(late.is_answered(port.now));
    assert_eq!(port.socket.senders_apart(), 2);
}

#[test]
fn a_busy_sender_does_not_keep_the_node_from_its_port() {
    let mut port = Port::at(Ipv4Addr::LOCALHOST);
    let (mut busy, mut other) = (port.peer(), port.peer());
    port.be_flooded();
    busy.ask(&port);
    port.serve_all();
    assert!(busy.is_answered(port.now));
    other.ask(&port);
    let mut turns = 0;
    while !other.is_answered(port.now) {
        busy.ask(&port);
        port.turn();
        assert!(busy.is_answered(port.now));
        turns += 1;
        assert!(turns < 100, "nobody looks at the port");
    }
    assert!(turns > 1, "the busy sender is asked first");
}

#[test]
fn nobody_is_set_apart_where_nobody_floods() {
    let mut port = Port::at(Ipv4Addr::LOCALHOST);
    let mut peers: Vec<Peer> = (0..BURST).map(|_| port.peer()).collect();
    peers.iter_mut().for_each(|peer| peer.ask(&port));
    port.serve_all();
    assert!(peers.iter_mut().all(|peer| peer.is_answered(port.now)));
    assert_eq!(port.socket.senders_apart(), 0);
}

#[test]
fn copies_from_elsewhere_take_no_place_from_whoever_uses_it() {
    let mut port = Port::at(Ipv4Addr::LOCALHOST);
    let mut honest = port.peer();
    port.be_flooded();
    honest.ask(&port);
    port.serve_all();
    let packet = honest.request(port.now);
    let mut copies: Vec<UdpSocket> = (0..BURST).map(|_| bind().0).collect();
    copies.iter_mut().for_each(|it| send(it, port.node.address, &packet, 1));
    port.serve_all();
    let places = port.socket.senders_apart();
    assert!((2..BURST).contains(&places), "they are bounded");

    // The copies' senders are silent from here on.
    port.now += SECOND;
    honest.ask(&port);
    port.serve_all();
    port.be_flooded();
    let mut late = port.peer();
    late.ask(&port);
    port.serve_all();
    assert_eq!(port.socket.senders_apart(), places, "it has the place of a silent one");
    port.flood(FLOOD);
    late.ask(&port);
    honest.ask(&port);
    port.turn();
    assert!(late.is_answered(port.now) && honest.is_answered(port.now));

    // All places are free again after a long silence of their senders.
    port.now += 9 * SECOND;
    honest.ask(&port);
    port.serve_all();
    assert!(port.socket.senders_apart() <= 2);
    port.now += 11 * SECOND;
    honest.ask(&port);
    port.serve_all();
    port.turn();
    assert!(port.socket.senders_apart() <= 1);
}

#[test]
fn answers_leave_from_where_their_requests_went() {
    let mut port = Port::at(Ipv4Addr::UNSPECIFIED);
    port.node.address.set_ip(Ipv4Addr::new(127, 0, 0, 2).into());
    let mut honest = port.peer();
    port.be_flooded();
    for apart in [1, 1, 1] {
        honest.ask(&port);
        port.serve_all();
        assert!(honest.is_answered(port.now), "its client takes nothing from another address");
        assert_eq!(port.socket.senders_apart(), apart);
    }
}

#[test]
fn no_other_socket_joins_a_port() {
    use rustix::net::{self, AddressFamily, SocketType, sockopt};
    let mut port = Port::at(Ipv4Addr::LOCALHOST);
    let mut honest = port.peer();
    port.be_flooded();
    honest.ask(&port);
    port.serve_all();
    assert_eq!(port.socket.senders_apart(), 1);
    let stranger = net::socket(AddressFamily::INET, SocketType::DGRAM, None).expect("a socket");
    sockopt::set_socket_reuseport(&stranger, true).expect("it may be set");
    assert_eq!(net::bind(&stranger, &port.node.address), Err(rustix::io::Errno::ADDRINUSE));
}
