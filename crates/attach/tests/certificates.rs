//! The certificates that each side accepts, and those that it rejects.

use crate::rig;

use portcullis_attach::Reason;
use portcullis_attach::tls::{AttachError, ClientSecurity, attach};
use rcgen::ExtendedKeyUsagePurpose::{Any, ClientAuth, ServerAuth};
use rig::papers::{Pair, Papers, future, past, self_signed, today};
use rig::wire::{self, FromNode};
use rig::{HURRIED, PATIENCE, Rig, UNHURRIED, ends, last_words};
use rustls::{ServerConnection, StreamOwned};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

/// Tries to attach with this pair. Returns the node's answer, or TLS's message instead of one.
fn answer_to(papers: &Papers, rig: &Rig, pair: Option<Pair>) -> Result<FromNode, String> {
    let mut stream = papers.call(rig.address, pair);
    let said = stream.write_all(&wire::frame(&wire::hello())).and_then(|()| {
        let mut length = [0; 2];
        stream.read_exact(&mut length)?;
        let mut body = vec![0; usize::from(u16::from_le_bytes(length))];
        stream.read_exact(&mut body).map(|()| body)
    });
    said.map(|body| postcard::from_bytes(&body).expect("of the node")).map_err(|error| error.to_string())
}

fn assert_not_believed(papers: &Papers, rig: &Rig, what: &str, pair: Option<Pair>) {
    let answer = answer_to(papers, rig, pair);
    assert!(matches!(&answer, Err(error) if error.contains("alert")), "{what}: {answer:?}");
    assert_eq!(rig.admissions.admitted(), 0, "{what}");
}

#[test]
fn a_tenants_certificate_is_believed_without_this_crates_client_too() {
    let papers = Papers::new();
    let rig = Rig::secured(&papers, UNHURRIED);
    papers.make_tenant("blue", today(1));
    assert_eq!(answer_to(&papers, &rig, Some(papers.pair("tenant-blue"))), Ok(wire::terms()));
    assert_eq!(answer_to(&papers, &rig, Some(papers.forge(&["blue"], &[ClientAuth]))), Ok(wire::terms()));
    rig.assert_untouched();
}

#[test]
fn nobody_else_is_let_in() {
    let (papers, others) = (Papers::new(), Papers::new());
    let rig = Rig::secured(&papers, UNHURRIED);
    papers.make_tenant("late", past(50, 10));
    papers.make_tenant("early", future(50, 10));
    others.make_tenant("orange", today(10));
    let cases = [
        ("none", None),
        ("an expired one", Some(papers.pair("tenant-late"))),
        ("one that is not valid yet", Some(papers.pair("tenant-early"))),
        ("one of another authority", Some(others.pair("tenant-orange"))),
        ("one that vouches for itself", Some(self_signed("orange"))),
        ("a node's", Some(papers.pair("node-one"))),
        ("one without a usage", Some(papers.forge(&["orange"], &[]))),
        ("one for both roles", Some(papers.forge(&["orange"], &[ClientAuth, ServerAuth]))),
        ("one for anything", Some(papers.forge(&["orange"], &[Any]))),
        ("the authority's own", Some(papers.pair("ca"))),
    ];
    for (what, pair) in cases {
        assert_not_believed(&papers, &rig, what, pair);
    }
    rig.assert_untouched();
}

#[test]
fn a_certificate_without_its_key_is_worth_nothing() {
    let papers = Papers::new();
    let rig = Rig::secured(&papers, UNHURRIED);
    papers.make_tenant("blue", today(10));
    // The chain is public, but the key belongs to another chain.
    let (chain, key) = (papers.pair("tenant-blue").chain, papers.forge(&["x"], &[ClientAuth]).key);
    assert_not_believed(&papers, &rig, "one without its key", Some(Pair { chain, key }));
    rig.assert_untouched();
}

#[test]
fn names_that_no_tenant_may_have_are_refused_with_the_reason() {
    let papers = Papers::new();
    let rig = Rig::secured(&papers, UNHURRIED);
    let long = "n".repeat(65);
    let cases: [&[&str]; 10] = [
        &["uid:0"],
        &["address:10.0.0.1"],
        &["two\nlines"],
        &["\u{202e}egnaro"],
        &["größe"],
        &[" orange"],
        &[""],
        &[&long],
        &[],
        &["orange", "blue"],
    ];
    for names in cases {
        let answer = answer_to(&papers, &rig, Some(papers.forge(names, &[ClientAuth])));
        assert!(
            matches!(&answer, Ok(FromNode::Refused(reason)) if reason.contains("tenant")),
            "{names:?}: {answer:?}"
        );
    }
    assert_eq!(rig.admissions.admitted(), 0);
    rig.assert_untouched();
}

#[test]
fn whoever_does_not_speak_tls_is_shown_out_at_once() {
    let papers = Papers::new();
    let rig = Rig::secured(&papers, UNHURRIED);
    for bytes in [
        &wire::frame(&wire::hello())[..],
        b"GET / HTTP/1.1\r\nHost: node\r\n\r\n",
        &[0xff; 5000],
        &[0x16, 0x03, 0x01, 0xff, 0xff, 0x01],
        &[0x16, 0x03, 0x01, 0x00, 0x04, 0x01, 0xff, 0xff, 0xff],
    ] {
        let mut stream = rig.call_and_say(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let said = last_words(&mut stream);
        assert!(said.is_empty() || said[0] == 0x15, "more than an alert: {said:?}");
    }
    assert_eq!(rig.admissions.admitted(), 0);
    rig.assert_untouched();
}

#[test]
fn garbage_after_the_handshake_ends_it() {
    let papers = Papers::new();
    let rig = Rig::secured(&papers, UNHURRIED);
    papers.make_tenant("blue", today(10));
    // First outside of TLS, then inside.
    for within in [false, true] {
        let mut stream = papers.call(rig.address, Some(papers.pair("tenant-blue")));
        stream.write_all(&wire::frame(&wire::hello())).expect("sent");
        assert_eq!(wire::read(&mut stream), wire::terms());
        if within {
            stream.write_all(&[0, 0]).expect("sent");
        } else {
            stream.sock.write_all(&[0x17, 0x03, 0x03, 0x00, 0x20]).expect("sent");
            stream.sock.write_all(&[0x55; 32]).expect("sent");
        }
        let _ = last_words(&mut stream.sock);
    }
    assert_eq!(rig.admissions.admitted(), 0);
    rig.assert_untouched();
}

#[test]
fn a_byte_after_the_welcome_ends_the_client_with_tls_too() {
    let papers = Papers::new();
    let rig = Rig::secured(&papers, UNHURRIED);
    papers.make_tenant("blue", today(10));
    for polite in [false, true] {
        let mut stream = papers.call(rig.address, Some(papers.pair("tenant-blue")));
        stream.write_all(&wire::frame(&wire::hello())).expect("sent");
        assert_eq!(wire::read(&mut stream), wire::terms());
        stream.write_all(&wire::frame(&wire::of_ends(&ends(1)))).expect("sent");
        assert!(matches!(wire::read(&mut stream), FromNode::Welcome { .. }));
        rig.admissions.wait_until_present(1);
        if polite {
            stream.write_all(b"hello?").expect("sent");
        } else {
            stream.sock.write_all(&[0]).expect("sent");
        }
        assert!(last_words(&mut stream.sock).is_empty());
        rig.admissions.wait_until_empty();
    }
    rig.assert_untouched();
}

#[test]
fn whoever_says_goodbye_within_tls_is_gone_without_closing_its_socket() {
    let papers = Papers::new();
    let rig = Rig::secured(&papers, UNHURRIED);
    papers.make_tenant("blue", today(10));
    for ends_too in [false, true] {
        let mut stream = papers.call(rig.address, Some(papers.pair("tenant-blue")));
        stream.write_all(&wire::frame(&wire::hello())).expect("sent");
        assert_eq!(wire::read(&mut stream), wire::terms());
        if ends_too {
            stream.conn.writer().write_all(&wire::frame(&wire::of_ends(&ends(1)))).expect("written");
        }
        stream.conn.send_close_notify();
        while stream.conn.wants_write() {
            stream.conn.write_tls(&mut stream.sock).expect("sent");
        }
        last_words(&mut stream.sock);
        rig.admissions.wait_until_empty();
    }
    rig.assert_untouched();
}

#[test]
fn a_handshake_that_stops_halfway_is_dropped_when_its_time_is_up() {
    let papers = Papers::new();
    let rig = Rig::secured(&papers, HURRIED);
    let mut silent = rig.call();
    // The beginning of a TLS record whose rest never arrives.
    let mut half = rig.call_and_say(&[0x16, 0x03, 0x01, 0x01, 0x00, 0x01, 0x00]);
    // A complete handshake, and then nothing.
    papers.make_tenant("blue", today(10));
    let mut mute = papers.call(rig.address, Some(papers.pair("tenant-blue")));
    mute.flush().expect("a handshake");
    while mute.conn.is_handshaking() {
        mute.conn.complete_io(&mut mute.sock).expect("a handshake");
    }
    for stream in [&mut silent, &mut half, &mut mute.sock] {
        let _ = last_words(stream);
    }
    rig.assert_untouched();
}

#[test]
fn a_client_does_not_believe_a_node_of_another_authority() {
    let (papers, others) = (Papers::new(), Papers::new());
    let rig = Rig::secured(&papers, UNHURRIED);
    let other = ClientSecurity::Tls(others.tenant("orange"));
    let stranger = rig.attach_as(&other, &rig.address.to_string());
    assert!(
        matches!(&stranger, Err(AttachError::NotTheNode { reason, .. }) if reason.contains("another authority"))
    );
    assert_eq!(rig.admissions.admitted(), 0);
    rig.assert_untouched();
}

/// A node that accepts every client, has this certificate, and answers one client with these bytes.
fn pretender(papers: &Papers, pair: Pair, answer: Vec<u8>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let config = papers.server_config(pair);
    std::thread::spawn(move || {
        let (stream, _) = listener.accept().expect("a client");
        let mut stream = StreamOwned::new(ServerConnection::new(Arc::clone(&config)).expect("one"), stream);
        let _ = stream.write_all(&answer).and_then(|()| stream.flush());
        let _ = stream.read_to_end(&mut Vec::new());
    });
    address
}

#[test]
fn who_has_no_nodes_certificate_for_the_host_is_no_node() {
    let papers = Papers::new();
    papers.make_tenant("blue", today(10));
    let folder = papers.0.path();
    use portcullis_attach::tls::certificates::make_node;
    make_node(folder, "far", &["far.example".to_owned(), "10.9.9.9".to_owned()], today(10)).expect("made");
    make_node(folder, "late", &["127.0.0.1".to_owned()], past(50, 10)).expect("made");
    make_node(folder, "early", &["127.0.0.1".to_owned()], future(50, 10)).expect("made");
    let orange = ClientSecurity::Tls(papers.tenant("orange"));
    for (what, pair) in [
        ("of another host", papers.pair("node-far")),
        ("expired", papers.pair("node-late")),
        ("not valid yet", papers.pair("node-early")),
        ("a tenant's", papers.pair("tenant-blue")),
        ("a tenant's with the address", papers.forge(&["blue"], &[ClientAuth])),
        ("without a usage", papers.forge(&["one"], &[])),
        ("of both roles", papers.forge(&["one"], &[ServerAuth, ClientAuth])),
        ("its own", self_signed("one")),
    ] {
        let address = pretender(&papers, pair, wire::frame(&wire::terms())).to_string();
        let attached = attach(&address, &orange, PATIENCE, |_| -> Result<(_, ()), _> {
            panic!("a certificate {what} was believed")
        });
        assert!(matches!(attached, Err(AttachError::NotTheNode { .. })), "{what}: {attached:?}");
    }
    let address =
        pretender(&papers, papers.forge(&["one"], &[ServerAuth]), wire::frame(&wire::terms())).to_string();
    let mut asked = false;
    let attached = attach(&address, &orange, Duration::from_secs(2), |_| -> Result<(_, ()), Reason> {
        asked = true;
        Err("enough".into())
    });
    assert!(asked, "the same with a node's certificate is believed: {attached:?}");
}

#[test]
fn a_client_hears_why_its_certificate_is_not_accepted() {
    let (papers, others) = (Papers::new(), Papers::new());
    let rig = Rig::secured(&papers, UNHURRIED);
    // This tenant trusts the node's authority, but its certificate is from another one.
    others.make_tenant("orange", today(10));
    let mixed = portcullis_attach::tls::ClientIdentity::load(
        &join(&papers, &others),
        &others.path("tenant-orange.pem"),
        &others.path("tenant-orange-key.pem"),
    );
    let attached = rig.attach_as(&ClientSecurity::Tls(mixed.expect("an identity")), &rig.address.to_string());
    assert!(matches!(&attached, Err(AttachError::NotAccepted { .. })), "{attached:?}");
    rig.assert_untouched();
}

/// Writes both authorities' certificates to one file.
fn join(one: &Papers, other: &Papers) -> std::path::PathBuf {
    let both = one.path("both.pem");
    let texts = [one, other].map(|papers| std::fs::read_to_string(papers.path("ca.pem")).expect("read"));
    std::fs::write(&both, texts.concat()).expect("written");
    both
}
