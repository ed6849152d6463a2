//! Peers that break the rules, arrive in crowds, or do nothing. The server uses no certificates; the messages are the
//! same with them. After each attack no state may be left behind, and an honest client must be served.

use crate::rig;

use portcullis_attach::Limits;
use portcullis_attach::tls::Ends;
use rig::wire::{self, FromClient, FromNode};
use rig::{HURRIED, Rig, UNHURRIED, end, ends, last_words};
use rustix::net::{AddressFamily, SocketType};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpStream};
use std::sync::mpsc::channel;
use std::time::Duration;

/// Checks that the server hangs up without an answer, long before the peer's time is up.
fn assert_shown_out(rig: &Rig, what: &str, stream: &mut TcpStream) {
    let said = last_words(stream);
    assert!(said.is_empty(), "{what} was answered with {said:?}");
    assert_eq!(rig.admissions.admitted(), 0, "{what}");
}

fn offered(rig: &Rig) -> TcpStream {
    let mut stream = rig.call_and_say(&wire::frame(&wire::hello()));
    assert_eq!(wire::read(&mut stream), wire::terms());
    stream
}

fn attached(rig: &Rig) -> TcpStream {
    let mut stream = offered(rig);
    stream.write_all(&wire::frame(&wire::of_ends(&ends(1)))).expect("sent");
    assert!(matches!(wire::read(&mut stream), FromNode::Welcome { .. }));
    stream
}

#[test]
fn whoever_does_not_say_hello_is_shown_out_at_once() {
    let rig = Rig::plain(UNHURRIED);
    let wrong_magic = FromClient::Hello { magic: *b"PORTCUL\x01", version: 3 };
    let cases: [(&str, Vec<u8>); 9] = [
        ("garbage", (0..200u8).map(|byte| byte.wrapping_mul(37) | 0x80).collect()),
        ("a request over HTTP", b"GET / HTTP/1.1\r\nHost: node\r\n\r\n".to_vec()),
        ("a TLS hello", vec![0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03]),
        ("a frame of nothing", vec![0, 0]),
        ("a frame that is too long", vec![0x01, 0x10]),
        ("a frame of the largest length", vec![0xff, 0xff]),
        ("another magic", wire::frame(&wrong_magic)),
        ("ends before the hello", wire::frame(&wire::of_ends(&ends(1)))),
        ("a node's message", wire::frame(&wire::terms())),
    ];
    for (what, bytes) in cases {
        let mut stream = rig.call_and_say(&bytes);
        if what == "a TLS hello" || what == "a request over HTTP" {
            // The first two bytes could be a length, but no message can follow.
            let _ = stream.write_all(&vec![0x55; 40 << 10]);
        }
        assert_shown_out(&rig, what, &mut stream);
    }
    rig.assert_untouched();
}

#[test]
fn a_hello_of_another_version_is_told_so() {
    let rig = Rig::plain(UNHURRIED);
    let hello = FromClient::Hello { magic: *b"PORTCUL\0", version: 4 };
    let mut stream = rig.call_and_say(&wire::frame(&hello));
    let FromNode::Refused(reason) = wire::parse(&last_words(&mut stream)) else { panic!("not refused") };
    assert!(reason.contains("version 3"), "{reason}");
    rig.assert_untouched();
}

#[test]
fn a_message_with_something_before_or_behind_it_is_none() {
    let rig = Rig::plain(UNHURRIED);
    let hello = wire::frame(&wire::hello());
    let mut longer = postcard::to_allocvec(&wire::hello()).expect("encoded");
    longer.push(0);
    let framed = [&[u8::try_from(longer.len()).expect("short"), 0][..], &longer].concat();
    for (what, bytes) in [
        ("a hello and a byte", [&hello[..], &[0]].concat()),
        ("two hellos", hello.repeat(2)),
        ("a hello and ends", [&hello[..], &wire::frame(&wire::of_ends(&ends(1)))].concat()),
        ("a frame longer than its message", framed),
        ("a frame whose message is no hello", [&[3, 0][..], &[9, 9, 9]].concat()),
    ] {
        assert_shown_out(&rig, what, &mut rig.call_and_say(&bytes));
    }
    rig.assert_untouched();
}

#[test]
fn ends_that_do_not_fit_the_terms_are_refused_with_the_reason() {
    let rig = Rig::plain(UNHURRIED);
    let crowd: Vec<_> = (2..130).map(end).collect();
    for (ends, why) in [
        (Ends { data: vec![end(2)], ..ends(1) }, "1 data queue pairs"),
        (Ends { data: vec![], ..ends(1) }, "0 data queue pairs"),
        (Ends { data: crowd, ..ends(1) }, "128 data queue pairs"),
        (Ends { control: end(1 << 24), ..ends(1) }, "24 bits"),
        (Ends { data: vec![end(2), end(u32::MAX)], ..ends(1) }, "24 bits"),
        (Ends { control: end(2), ..ends(1) }, "twice"),
    ] {
        let mut stream = offered(&rig);
        stream.write_all(&wire::frame(&wire::of_ends(&ends))).expect("sent");
        let FromNode::Refused(reason) = wire::parse(&last_words(&mut stream)) else { panic!("{why}") };
        assert!(reason.contains(why), "{reason}");
    }
    assert_eq!(rig.admissions.admitted(), 0);
    rig.assert_untouched();
}

#[test]
fn messages_out_of_order_end_the_attach() {
    let rig = Rig::plain(UNHURRIED);
    let message = wire::frame(&wire::of_ends(&ends(1)));
    for (what, bytes) in [
        ("a second hello", wire::frame(&wire::hello())),
        ("a node's message", wire::frame(&wire::welcome(1, &ends(1)))),
        ("ends and a byte", [&message[..], &[0]].concat()),
        ("ends twice", message.repeat(2)),
        ("ends cut off within their frame", [&[20, 0][..], &message[2..22]].concat()),
    ] {
        let mut stream = offered(&rig);
        stream.write_all(&bytes).expect("sent");
        assert_shown_out(&rig, what, &mut stream);
    }
    rig.assert_untouched();
}

#[test]
fn a_byte_after_the_welcome_ends_the_client() {
    let rig = Rig::plain(UNHURRIED);
    for bytes in [&b"\0"[..], &wire::frame(&wire::hello()), &[0xff; 9000]] {
        let mut stream = attached(&rig);
        rig.admissions.wait_until_present(1);
        // The server may hang up before all bytes are sent.
        let _ = stream.write_all(bytes);
        assert!(last_words(&mut stream).is_empty());
        rig.admissions.wait_until_empty();
    }
    rig.assert_untouched();
}

#[test]
fn a_client_that_closes_only_its_half_is_gone() {
    let rig = Rig::plain(UNHURRIED);
    let mut stream = attached(&rig);
    stream.shutdown(Shutdown::Write).expect("shut down");
    assert!(last_words(&mut stream).is_empty());
    rig.assert_untouched();
}

#[test]
fn whoever_falls_silent_halfway_is_told_so_and_dropped_when_its_time_is_up() {
    let rig = Rig::plain(HURRIED);
    let hello = wire::frame(&wire::hello());
    let message = wire::frame(&wire::of_ends(&ends(1)));
    let mut nothing = rig.call();
    let mut half_a_length = rig.call_and_say(&hello[..1]);
    let mut half_a_hello = rig.call_and_say(&hello[..7]);
    let mut no_ends = offered(&rig);
    let mut half_its_ends = offered(&rig);
    half_its_ends.write_all(&message[..message.len() - 1]).expect("sent");
    for stream in [&mut nothing, &mut half_a_length, &mut half_a_hello, &mut no_ends, &mut half_its_ends] {
        assert_eq!(wire::parse(&last_words(stream)), FromNode::TooLate);
    }
    assert_eq!(rig.admissions.admitted(), 0);
    rig.assert_untouched();
}

#[test]
fn a_byte_now_and_then_buys_no_time() {
    let rig = Rig::plain(HURRIED);
    let mut stream = rig.call();
    stream.set_read_timeout(Some(HURRIED.attach_within / 8)).expect("a timeout");
    // The pace matters: each byte arrives well before the deadline, and all of them take much longer.
    let hello = wire::frame(&wire::hello());
    let mut said = 0;
    let heard = loop {
        if said < hello.len() && stream.write_all(&hello[said..=said]).is_ok() {
            said += 1;
        }
        let mut bytes = [0; 64];
        match stream.read(&mut bytes) {
            Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock) => {}
            other => break other.map(|there| bytes[..there].to_vec()),
        }
    };
    let too_late = wire::frame(&FromNode::TooLate);
    assert!(!matches!(heard, Ok(bytes) if !bytes.is_empty() && bytes != too_late), "it was answered");
    assert!(said < hello.len(), "it was given the time to say all of it");
    rig.assert_untouched();
}

#[test]
fn a_refused_peer_that_stays_is_dropped_when_its_time_is_up() {
    let rig = Rig::plain(HURRIED);
    rig.admissions.refuse(Some("no"));
    let mut stream = offered(&rig);
    stream.write_all(&wire::frame(&wire::of_ends(&ends(1)))).expect("sent");
    assert_eq!(wire::read(&mut stream), FromNode::Refused("no".to_owned()));
    // The node has refused and closed its half of the connection. It ignores further bytes, and drops the peer at the
    // deadline.
    while stream.write_all(&[0; 16]).is_ok() {
        let timeout = Some(Duration::from_millis(20));
        stream.set_read_timeout(timeout).expect("a timeout");
    }
    rig.admissions.refuse(None);
    rig.assert_untouched();
}

#[test]
fn an_endless_talker_is_cut_off() {
    let rig = Rig::plain(UNHURRIED);
    rig.admissions.refuse(Some("no"));
    let mut stream = offered(&rig);
    stream.write_all(&wire::frame(&wire::of_ends(&ends(1)))).expect("sent");
    let mut said = 0;
    while stream.write_all(&[0; 4096]).is_ok() {
        said += 4096;
        assert!(said < 64 << 20, "nobody cuts it off");
    }
    rig.admissions.refuse(None);
    rig.assert_untouched();
}

#[test]
fn a_peer_that_never_reads_keeps_nobody_waiting() {
    let rig = Rig::plain(HURRIED);
    let never_reads: Vec<_> = (0..10).map(|_| rig.call_and_say(&wire::frame(&wire::hello()))).collect();
    drop(rig.attach().expect("an honest client is served meanwhile"));
    rig.assert_untouched();
    for mut stream in never_reads {
        assert_eq!(wire::parse(&last_words(&mut stream)), wire::terms());
    }
}

#[test]
fn a_client_that_dies_between_its_ends_and_the_welcome_leaves_nothing() {
    let rig = Rig::plain(UNHURRIED);
    let (go_on, barrier) = channel();
    rig.admissions.hold_next_admission(barrier);
    let mut stream = offered(&rig);
    stream.write_all(&wire::frame(&wire::of_ends(&ends(1)))).expect("sent");
    // A reset instead of a close: the node's next packets have no receiver.
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).expect("set");
    drop(stream);
    go_on.send(()).expect("it waits");
    rig.assert_untouched();
    assert_eq!(rig.admissions.admitted(), 2, "it was let in, and departed");
}

#[test]
fn dying_at_any_step_leaves_nothing() {
    let rig = Rig::plain(UNHURRIED);
    let (hello, message) = (wire::frame(&wire::hello()), wire::frame(&wire::of_ends(&ends(1))));
    for cut in (0..hello.len()).step_by(3) {
        drop(rig.call_and_say(&hello[..cut]));
    }
    for cut in (0..=message.len()).step_by(7) {
        let mut stream = offered(&rig);
        stream.write_all(&message[..cut]).expect("sent");
    }
    drop(offered(&rig));
    drop(attached(&rig));
    rig.assert_untouched();
}

#[test]
fn half_open_connections_keep_nobody_out() {
    let papers = rig::papers::Papers::new();
    for (rig, can_be_told) in [(Rig::plain(UNHURRIED), true), (Rig::secured(&papers, UNHURRIED), false)] {
        let mut silent: Vec<_> = (0..200).map(|_| rig.call()).collect();
        for _ in 0..5 {
            drop(rig.attach().expect("an honest client is served"));
        }
        rig.assert_untouched();
        // One address gets half the places. Its earlier connections were closed in favour of later ones.
        for displaced in &mut silent[..200 - UNHURRIED.unattached_max / 2] {
            let last = last_words(displaced);
            assert_eq!(!last.is_empty(), can_be_told);
            assert!(
                !can_be_told
                    || matches!(wire::parse(&last), FromNode::Refused(why) if why.contains("no room"))
            );
        }
    }
}

/// Opens a connection from another address of this machine.
fn call_from(rig: &Rig, source: Ipv4Addr) -> std::io::Result<TcpStream> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
    rustix::net::bind(&socket, &SocketAddrV4::new(source, 0))?;
    rustix::net::connect(&socket, &rig.address)?;
    Ok(socket.into())
}

#[test]
fn a_flood_from_one_address_displaces_nobody_of_another() {
    let rig = Rig::plain(Limits { unattached_max: 8, ..UNHURRIED });
    let mut early = offered(&rig);
    let mut silent = rig.call();
    let flood: Vec<_> =
        (0..200).map(|_| call_from(&rig, Ipv4Addr::new(127, 0, 0, 2)).expect("a connection")).collect();
    // The newest connection of the flood is accepted last. When it is answered, all were accepted.
    let mut newest = call_from(&rig, Ipv4Addr::new(127, 0, 0, 2)).expect("a connection");
    newest.write_all(&wire::frame(&wire::hello())).expect("sent");
    assert_eq!(wire::read(&mut newest), wire::terms());
    early.write_all(&wire::frame(&wire::of_ends(&ends(1)))).expect("sent");
    assert!(matches!(wire::read(&mut early), FromNode::Welcome { .. }));
    silent.write_all(&wire::frame(&wire::hello())).expect("sent");
    assert_eq!(wire::read(&mut silent), wire::terms());
    drop((early, silent, newest, flood));
    rig.assert_untouched();
}

#[test]
fn attached_clients_are_not_displaced_by_those_who_come() {
    let rig = Rig::plain(Limits { unattached_max: 2, ..UNHURRIED });
    let mut clients: Vec<_> = (0..20).map(|_| rig.attach().expect("attached")).collect();
    let silent: Vec<_> = (0..50).map(|_| rig.call()).collect();
    drop(rig.attach().expect("attached"));
    rig.admissions.wait_until_present(20);
    assert!(clients.iter_mut().all(|client| client.connection.node_alive()));
    drop((silent, clients));
    rig.assert_untouched();
}
