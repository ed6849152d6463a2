//! Clients that name an address without a machine, on a network on which the kernel must resolve addresses.

use crate::control_connection::ControlConnection;
use crate::rig::{alone, lenient, node_on};
use portcullis::{Allocate, DeviceChoice, SessionOptions};
use portcullis_attach::tls::Ends;
use portcullis_nic::QpAddress;
use std::net::Ipv4Addr;
use std::process::Command;
use std::time::{Duration, Instant};

/// The longest that an honest client may wait for the node. It is less than the second that the kernel waits for an
/// address.
const NODE_ANSWERS_WITHIN: Duration = Duration::from_millis(700);

/// A second device on a network that has to resolve addresses. It is removed when this value is dropped.
struct Network;

impl Network {
    fn new() -> Self {
        let network = Self;
        run("ip link add asked0 type veth peer name asked1");
        run("ip addr add 198.51.100.1/24 dev asked0");
        run("ip link set asked0 up");
        run("ip link set asked1 up");
        run("rdma link add asked type rxe netdev asked0");
        network
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        run("rdma link delete asked");
        run("ip link delete asked0");
    }
}

fn run(command: &str) {
    let mut words = command.split(' ');
    let ended = Command::new(words.next().expect("a program")).args(words).status().expect(command);
    assert!(ended.success() || std::thread::panicking(), "{command}: {ended}");
}

#[test]
#[ignore = "needs an RDMA device, and root for another one"]
fn nobody_waits_for_a_client_that_names_an_address_where_nobody_answers() {
    let _floor = alone();
    let _network = Network::new();
    let folder = tempfile::tempdir().expect("a folder");
    let device = DeviceChoice { device: Some("asked".to_owned()), ..DeviceChoice::default() };
    let host = node_on(device, lenient(), folder.path());
    let mut session = host.connect("blue", SessionOptions::default()).expect("a session");
    let end = |number| QpAddress {
        number,
        port: Ipv4Addr::new(198, 51, 100, 77).to_ipv6_mapped().octets(),
        ..QpAddress::default()
    };
    let ends = Ends { control: end(100), data: vec![end(101), end(102), end(103)] };
    let address = host.network_addresses()[0].to_string();
    let attack = std::thread::spawn(move || ControlConnection::connect(&address).bring(&ends));
    let mut longest = Duration::ZERO;
    while !attack.is_finished() {
        let asked = Instant::now();
        let object = session.allocate(Allocate::bytes(64)).expect("memory");
        session.revoke(object).expect("it has not ended");
        longest = longest.max(asked.elapsed());
    }
    let said = attack.join().expect("no panic");
    assert!(longest < NODE_ANSWERS_WITHIN, "the node was away for {longest:?}; it said {said:?}");
    drop((session, host));
}
