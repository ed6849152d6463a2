//! Attacks on the operator's socket, by a malfunctioning process of the node's own user.

use crate::rig::{BLUE, RED, Rig, descriptors, lenient, random, wait_for};
use portcullis::host::admin::{Admin, AdminError, Standing};
use portcullis::{Session, SessionOptions};
use rand::{Rng, RngExt};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send,
    socket_with,
};

/// A raw connection to the operator's socket.
struct Knock(OwnedFd);

impl Knock {
    fn at(rig: &Rig) -> Self {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let socket = socket.expect("a socket");
        let address = SocketAddrUnix::new(rig.admin_socket()).expect("a path");
        connect(&socket, &address).expect("the node listens");
        Self(socket)
    }

    fn say(&self, bytes: &[u8]) -> Result<usize, Errno> {
        send(&self.0, bytes, SendFlags::NOSIGNAL)
    }

    /// Reads everything that the node sends until it hangs up.
    fn hear(&self) -> Vec<u8> {
        let (mut all, mut piece) = (Vec::new(), vec![0; 64 << 10]);
        loop {
            match recv(&self.0, &mut piece[..], RecvFlags::empty()) {
                Ok((_, 0)) | Err(Errno::CONNRESET) => return all,
                Ok((_, length)) => all.extend_from_slice(&piece[..length]),
                Err(Errno::INTR) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// Checks that the node serves the operator during the attack.
fn operator_is_served(rig: &Rig) {
    let clients = Admin::at(rig.admin_socket()).clients().expect("the node answers");
    assert!(clients.iter().any(|client| client.tenant == BLUE && client.standing == Standing::Good));
}

#[test]
fn garbage_is_refused_and_hung_up_on() {
    let rig = Rig::new();
    let mut random = random();
    let mut orders: Vec<Vec<u8>> = vec![
        b"{}".to_vec(),
        b"null".to_vec(),
        br#"{"command":"stop"}"#.to_vec(),
        br#"{"command":"unbar"}"#.to_vec(),
        br#"{"command":"unbar","tenant":7}"#.to_vec(),
        br#"{"command":"list"} {"command":"list"}"#.to_vec(),
        b"[".repeat(4096),
        vec![b'{'; 4097],
        vec![0; 100_000],
    ];
    orders.extend((0..200).map(|_| {
        let mut bytes = vec![0; random.random_range(1..5000)];
        random.fill_bytes(&mut bytes);
        bytes
    }));
    for order in orders {
        let knock = Knock::at(&rig);
        knock.say(&order).expect("the node hears it");
        let told = String::from_utf8(knock.hear()).expect("text");
        assert!(told.starts_with("{\"refused\":"), "{told}");
    }
    operator_is_served(&rig);
    rig.clear();
}

#[test]
fn a_crowd_that_says_nothing_keeps_no_operator_out() {
    let rig = Rig::new();
    let before = descriptors();
    let silent: Vec<Knock> = (0..300).map(|_| Knock::at(&rig)).collect();
    for _ in 0..20 {
        operator_is_served(&rig);
    }
    for knock in &silent {
        assert!(knock.hear().is_empty(), "a silent connection is closed in the end");
    }
    drop(silent);
    wait_for("descriptors to come back", || descriptors() <= before);
    rig.clear();
}

#[test]
fn those_who_order_and_do_not_listen_hold_nobody_up() {
    let rig = Rig::new();
    // The answer is so long that it does not fit into a socket's buffer.
    let name = "x".repeat(1000);
    let small = SessionOptions { arena_bytes: 64 << 10, ..SessionOptions::default() };
    let crowd: Vec<Session> =
        (0..400).map(|_| rig.host.connect(&name, small.clone()).expect("a session")).collect();
    let before = descriptors();
    let deaf: Vec<Knock> = (0..64)
        .map(|_| {
            let knock = Knock::at(&rig);
            // A second order before the first one is answered makes the node drop the connection.
            for _ in 0..2 {
                let _ = knock.say(br#"{"command":"clients"}"#);
            }
            knock
        })
        .collect();
    for _ in 0..20 {
        operator_is_served(&rig);
    }
    let told = rig.host.admin().clients().expect("the node answers");
    let heard = Admin::at(rig.admin_socket()).clients().expect("the node answers");
    assert_eq!((told.len(), heard.len()), (402, 402));
    drop(deaf);
    wait_for("descriptors to come back", || descriptors() <= before);
    drop(crowd);
    rig.clear();
}

#[test]
fn an_order_half_way_when_the_node_ends_ends_with_it() {
    let mut rig = Rig::with(lenient(), &[]);
    let waiting = Knock::at(&rig);
    rig.host.stop();
    assert!(waiting.hear().is_empty());
    assert!(!rig.admin_socket().exists(), "its place is free again");
    assert!(matches!(rig.host.admin().bars(), Err(AdminError::Ended)));
    let error = Admin::at(rig.admin_socket()).bars().expect_err("no node is there");
    assert!(matches!(error, AdminError::NoNode(_)), "{error}");
}

#[test]
fn inside_a_program_the_operator_sees_the_same() {
    let rig = Rig::with(lenient(), &[BLUE]);
    let session = rig.host.connect(RED, SessionOptions::default()).expect("a session");
    let outside = Admin::at(rig.admin_socket());
    let inside = rig.host.admin();
    let numbers = |admin: &Admin| -> Vec<(u64, String, Option<u32>)> {
        let clients = admin.clients().expect("the node answers").into_iter();
        clients.map(|client| (client.client, client.tenant, client.process)).collect()
    };
    assert_eq!(numbers(inside), numbers(&outside));
    assert!(numbers(inside).contains(&(session.number(), RED.to_owned(), Some(std::process::id()))));
    assert!(!inside.unbar(RED).expect("the node answers"), "it is not barred");
    assert_eq!(inside.bars().expect("the node answers"), []);
    drop(session);
    rig.clear();
}
