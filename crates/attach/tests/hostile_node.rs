//! Peers that are not nodes, or hostile ones: the client ends in time, reports what it received, and keeps nothing.

use crate::rig;

use portcullis_attach::tls::{AttachError, Attached, ClientSecurity, Ends, attach};
use rig::wire::{self, FromNode};
use rig::{PATIENCE, end, ends, node_alive_after_news};
use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

/// Starts a node that answers one client. It ends when the sender is dropped.
fn node(answer: impl FnOnce(&mut TcpStream) + Send + 'static) -> (SocketAddr, Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let (sender, until) = channel::<()>();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        answer(&mut stream);
        let _ = until.recv_timeout(PATIENCE);
    });
    (address, sender)
}

fn attach_to(address: SocketAddr, within: Duration) -> Result<Attached<()>, AttachError> {
    attach(&address.to_string(), &ClientSecurity::Plain { anywhere: false }, within, |_| Ok((ends(1), ())))
}

/// Receives the client's next message, and sends these bytes.
fn exchange(stream: &mut TcpStream, bytes: &[u8]) {
    let mut length = [0; 2];
    stream.read_exact(&mut length).expect("a length");
    let mut body = vec![0; usize::from(u16::from_le_bytes(length))];
    stream.read_exact(&mut body).expect("a message");
    stream.write_all(bytes).expect("sent");
}

#[test]
fn what_is_no_node_is_called_none() {
    let terms = |data_queue_pairs, message_bytes| {
        let (send_depth, control_depth, unenforced) = (256, 64, 0);
        let terms =
            FromNode::Terms { data_queue_pairs, send_depth, control_depth, message_bytes, unenforced };
        wire::frame(&terms)
    };
    for (what, bytes) in [
        ("HTTP", b"HTTP/1.1 400 Bad Request\r\n\r\n".repeat(300)),
        ("nothing in a frame", vec![0, 0]),
        ("a frame that is too long", vec![0xff, 0xff]),
        ("garbage in a frame", vec![3, 0, 9, 9, 9]),
        ("terms beyond their bounds", terms(17, 128)),
        ("messages in which no request fits", terms(2, 64)),
        ("terms and more", [wire::frame(&wire::terms()), vec![0]].concat()),
        ("a welcome out of turn", wire::frame(&wire::welcome(1, &ends(1)))),
        ("a client's message", wire::frame(&wire::hello())),
    ] {
        let (address, _stays) = node(move |stream| exchange(stream, &bytes));
        let attached = attach_to(address, PATIENCE);
        assert!(matches!(attached, Err(AttachError::NotANode { .. })), "{what}: {attached:?}");
    }
}

#[test]
fn a_welcome_that_does_not_fit_the_terms_is_not_believed() {
    for (what, node_ends) in [
        ("too few", Ends { data: vec![end(1)], ..ends(1) }),
        ("too many", Ends { data: (2..40).map(end).collect(), ..ends(1) }),
        ("beyond 24 bits", Ends { control: end(1 << 24), ..ends(1) }),
        ("named twice", Ends { control: end(2), ..ends(1) }),
    ] {
        let (address, _stays) = node(move |stream| {
            exchange(stream, &wire::frame(&wire::terms()));
            exchange(stream, &wire::frame(&wire::welcome(1, &node_ends)));
        });
        let attached = attach_to(address, PATIENCE);
        assert!(matches!(attached, Err(AttachError::NotANode { .. })), "{what}: {attached:?}");
    }
}

#[test]
fn a_node_that_says_nothing_or_too_little_is_waited_for_so_long_and_no_longer() {
    let within = Duration::from_millis(200);
    let (mute, _stays) = node(|_| ());
    assert!(matches!(attach_to(mute, within), Err(AttachError::Silent { .. })));
    let (half, _stays) = node(|stream| exchange(stream, &wire::frame(&wire::terms())[..5]));
    assert!(matches!(attach_to(half, within), Err(AttachError::Silent { .. })));
    let (offers_only, _stays) = node(|stream| exchange(stream, &wire::frame(&wire::terms())));
    assert!(matches!(attach_to(offers_only, within), Err(AttachError::Silent { .. })));
}

#[test]
fn a_node_that_trickles_buys_no_time() {
    let (pace, ticks) = channel::<()>();
    let (address, _stays) = node(move |stream| {
        // A frame of 4096 bytes, one byte per tick: the client has no time for all of it.
        let _ = stream.write_all(&[0x00, 0x10]);
        while ticks.recv_timeout(Duration::from_millis(20)).is_err() && stream.write_all(&[0]).is_ok() {}
    });
    assert!(matches!(attach_to(address, Duration::from_millis(300)), Err(AttachError::Silent { .. })));
    drop(pace);
}

#[test]
fn a_node_that_hangs_up_is_told_from_one_that_refuses() {
    let (hangs_up, go) = node(|stream| stream.shutdown(std::net::Shutdown::Both).expect("shut down"));
    assert!(matches!(attach_to(hangs_up, PATIENCE), Err(AttachError::HungUp { .. })));
    drop(go);
    let (refuses, _stays) =
        node(|stream| exchange(stream, &wire::frame(&FromNode::Refused("full".to_owned()))));
    assert!(matches!(attach_to(refuses, PATIENCE), Err(AttachError::Refused(reason)) if reason == "full"));
}

#[test]
fn what_was_made_for_a_node_that_refuses_is_given_up() {
    struct Made(Arc<()>);
    let (address, _stays) = node(|stream| {
        exchange(stream, &wire::frame(&wire::terms()));
        exchange(stream, &wire::frame(&FromNode::Refused("no".to_owned())));
    });
    let (made, calls) = (Arc::new(()), Cell::new(0));
    let plain = ClientSecurity::Plain { anywhere: false };
    let attached = attach(&address.to_string(), &plain, PATIENCE, |_| {
        calls.set(calls.get() + 1);
        Ok((ends(1), Made(Arc::clone(&made))))
    });
    assert!(matches!(attached, Err(AttachError::Refused(_))));
    drop(attached.map(|attached| attached.made.0));
    assert_eq!((calls.get(), Arc::strong_count(&made)), (1, 1));
}

#[test]
fn a_node_that_speaks_after_the_welcome_is_gone() {
    let (speak, wait) = channel::<()>();
    let (address, _stays) = node(move |stream| {
        exchange(stream, &wire::frame(&wire::terms()));
        exchange(stream, &wire::frame(&wire::welcome(7, &ends(50))));
        wait.recv_timeout(PATIENCE).expect("told to");
        stream.write_all(b"!").expect("sent");
    });
    let mut attached = attach_to(address, PATIENCE).expect("attached");
    assert_eq!((attached.client, &attached.node), (7, &ends(50)));
    assert!(attached.connection.node_alive());
    speak.send(()).expect("it waits");
    assert!(!node_alive_after_news(&mut attached.connection));
}
