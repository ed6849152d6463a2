//! Peers of a served directory that are hostile, broken or silent.

use crate::promises::{entry, lease, name, tenant};
use crate::{PATIENCE, Served};
use portcullis_attach::Limits;
use portcullis_attach::unix::{MessageError, MessageSocket};
use portcullis_directory::{Access, Directory, DirectoryError, Remote, Trust};
use std::time::{Duration, Instant};

#[expect(clippy::disallowed_methods, reason = "a peer waits by the clock")]
fn soon() -> Instant {
    Instant::now() + PATIENCE
}

fn dial(served: &Served) -> MessageSocket {
    MessageSocket::connect(&served.path(), soon()).expect("it is served")
}

/// Checks that the server hangs up, after any messages that it sends before.
#[track_caller]
fn is_hung_up_on(socket: &MessageSocket) {
    loop {
        match socket.hear_until(1 << 16, soon()) {
            Ok((bytes, _)) if bytes.is_empty() => return,
            Ok(_) => {}
            Err(MessageError::Silent) => panic!("it is not hung up on"),
            Err(_) => return,
        }
    }
}

#[test]
fn whoever_says_what_is_no_message_is_hung_up_on_and_others_are_served() {
    let served = Served::start(Trust::in_own_user());
    let honest = served.client();
    let its = lease(&honest, "bank");
    let garbage: [&[u8]; 6] =
        [&[0xff], &[0xff; 64], &[0; 64], b"GET / HTTP/1.1\r\n\r\n", &[1; 40_000], &[7; 1]];
    for bytes in garbage {
        let peer = dial(&served);
        peer.say(bytes).expect("it is read");
        is_hung_up_on(&peer);
    }
    honest.keep_alive(&its).expect("it goes on");
}

#[test]
fn half_a_message_after_hello_ends_the_connection_with_all_it_had() {
    let served = Served::start(Trust::in_own_user());
    // The messages are written by hand, since the library sends no invalid ones: hello, a lease, a name, then half a
    // message.
    let peer = dial(&served);
    greet(&peer);
    let mut open = vec![2, 1, 4];
    open.extend(b"bank");
    open.extend([0xe0, 0xd4, 0x03]);
    peer.say(&open).expect("it is read");
    let (told, _) = peer.hear_until(1 << 16, soon()).expect("a lease");
    assert_eq!(told[..2], [2, 2], "a lease: {told:?}");
    let bank = lease(&served.directory, "bank");
    assert_eq!(served.directory.usage(&bank).expect("it lives").leases, 2);
    peer.say(&open[..4]).expect("it is read");
    is_hung_up_on(&peer);
    // The lease ends when the server notices the end, which the peer sees a moment earlier or later.
    let until = soon();
    while served.directory.usage(&bank).expect("it lives").leases > 1 {
        assert!(soon() < until + PATIENCE, "its lease stays");
        std::thread::yield_now();
    }
}

/// Returns the first request of a client: number 1, hello, the version.
fn hello() -> Vec<u8> {
    let mut bytes = vec![1, 0];
    let mut version = u32::from_be_bytes(*b"pdr3");
    while version >= 0x80 {
        bytes.push(u8::try_from(version & 0x7f).expect("seven bits") | 0x80);
        version >>= 7;
    }
    bytes.push(u8::try_from(version).expect("seven bits"));
    bytes
}

/// Sends the first request, and reads the welcome.
fn greet(peer: &MessageSocket) {
    peer.say(&hello()).expect("it is read");
    let (welcome, _) = peer.hear_until(1 << 16, soon()).expect("it is welcome");
    assert!(welcome.starts_with(&[1, 0]), "not the version of this server: {welcome:?}");
}

#[test]
fn whoever_asks_without_reading_is_hung_up_on_and_others_are_served() {
    let served = Served::start(Trust::in_own_user());
    let honest = served.client();
    let its = lease(&honest, "bank");
    let flood = dial(&served);
    greet(&flood);
    // Requests for a lease that the peer does not have: each has an answer that the peer does not read. In the end the
    // server accepts no more of them, or hangs up on the peer.
    let ask = [2, 2, 9];
    let mut sent = 0_u32;
    while flood.say_at_once(&ask) && sent < 1_000_000 {
        sent += 1;
        if sent.is_multiple_of(10_000) {
            honest.keep_alive(&its).expect("it is served meanwhile");
        }
    }
    honest.keep_alive(&its).expect("it goes on");
}

#[test]
fn silent_peers_are_hung_up_on_and_keep_nobody_out() {
    let limits = Limits { attach_within: Duration::from_millis(200), connections_max: 8, ..Limits::UNIX };
    let served = Served::with(Trust::in_own_user(), limits);
    // One user gets at most half of the places.
    let silent: Vec<_> = (0..4).map(|_| dial(&served)).collect();
    let told = Remote::connect(&served.path(), PATIENCE, crate::space()).expect_err("there is no room");
    assert!(matches!(told, DirectoryError::Refused { .. }), "{told}");
    silent.iter().for_each(is_hung_up_on);
    drop(silent);
    let until = soon();
    let client = loop {
        // The places are free when the server has closed the connections.
        match Remote::connect(&served.path(), PATIENCE, crate::space()) {
            Ok(client) => break client,
            Err(error) => assert!(soon() < until + PATIENCE, "{error}"),
        }
    };
    lease(&client, "bank");
}

#[test]
fn clients_that_end_in_the_middle_leave_nothing() {
    let served = Served::start(Trust::in_own_user());
    let honest = lease(&served.directory, "bank");
    for round in 0..50 {
        let client = served.client();
        let its = lease(&client, "bank");
        let channel = format!("bank/round-{round}");
        client.register(&its, &name(&channel), &entry("/a", Access::public())).expect("free");
        let watch = client.watch(&tenant("bank"), &name(&channel)).expect("it may");
        if round % 2 == 0 {
            drop((watch, client));
        } else {
            drop((client, watch));
        }
        served.until_not_found(&channel);
    }
    let usage = served.directory.usage(&honest).expect("it lives");
    assert_eq!((usage.leases, usage.names), (1, 0));
}
