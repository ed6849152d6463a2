//! An honest client and an honest node, and how each side notices the other's end.

use crate::rig;

use portcullis_attach::Limits;
use portcullis_attach::tls::{
    AttachError, ClientSecurity, ListenError, Listener, NodeSecurity, Terms, attach,
};
use rig::papers::Papers;
use rig::{PATIENCE, Rig, TERMS, UNHURRIED, end, ends, ends_of, node_alive_after_news, wire};
use std::io::{Read, Write};
use std::net::Ipv4Addr;

#[test]
fn both_sides_learn_where_the_other_can_be_reached() {
    let rig = Rig::plain(UNHURRIED);
    let attached =
        attach(&rig.address.to_string(), &ClientSecurity::Plain { anywhere: false }, PATIENCE, |terms| {
            assert_eq!(*terms, TERMS);
            Ok((ends(40), "queue pairs"))
        });
    let mut attached = attached.expect("attached");
    assert_eq!(attached.made, "queue pairs");
    assert_eq!(attached.node, ends_of(attached.client));
    let (peer, brought) = rig.admissions.peer(attached.client);
    assert_eq!(brought, ends(40));
    assert_eq!((peer.tenant, peer.listener), (None, 0));
    assert_eq!(peer.address.ip(), Ipv4Addr::LOCALHOST);
    assert!(attached.connection.node_alive());
}

#[test]
fn the_certificate_says_whom_a_client_acts_for() {
    let papers = Papers::new();
    let rig = Rig::secured(&papers, UNHURRIED);
    for tenant in ["orange", "team blue"] {
        let security = ClientSecurity::Tls(papers.tenant(tenant));
        for host in ["localhost", "127.0.0.1"] {
            let address = format!("{host}:{}", rig.address.port());
            let attached = rig.attach_as(&security, &address).expect("attached");
            assert_eq!(rig.admissions.peer(attached.client).0.tenant.as_deref(), Some(tenant));
        }
    }
    rig.assert_untouched();
}

#[test]
fn each_end_notices_the_hang_up_of_the_other() {
    let papers = Papers::new();
    for mut rig in [Rig::plain(UNHURRIED), Rig::secured(&papers, UNHURRIED)] {
        let (mut stays, goes) = (rig.attach().expect("attached"), rig.attach().expect("attached"));
        rig.admissions.wait_until_present(2);
        drop(goes);
        rig.admissions.wait_until_present(1);
        assert!(stays.connection.node_alive());
        drop(rig.server.take());
        assert!(!node_alive_after_news(&mut stays.connection));
        assert!(!stays.connection.node_alive(), "gone is gone");
    }
}

#[test]
fn the_end_of_the_server_closes_all_connections_and_all_have_departed() {
    let mut rig = Rig::plain(UNHURRIED);
    // The server has accepted this first connection when it admits the others. A connection that is still in the
    // kernel's queue when the server ends is reset without a reason.
    let mut silent = rig.call();
    let mut clients: Vec<_> = (0..20).map(|_| rig.attach().expect("attached")).collect();
    drop(rig.server.take());
    rig.admissions.wait_until_empty();
    for client in &mut clients {
        assert!(!node_alive_after_news(&mut client.connection));
    }
    let last = wire::parse(&rig::last_words(&mut silent));
    assert!(matches!(&last, wire::FromNode::Refused(why) if why.contains("stopping")), "{last:?}");
    assert!(matches!(rig.attach(), Err(AttachError::NoNode { .. })));
}

#[test]
fn an_evicted_client_is_hung_up_on_and_departs_once() {
    let rig = Rig::plain(UNHURRIED);
    let (mut evicted, mut other) = (rig.attach().expect("attached"), rig.attach().expect("attached"));
    let server = rig.server.as_ref().expect("running");
    server.evict(evicted.client);
    server.evict(evicted.client);
    server.evict(12_345);
    assert!(!node_alive_after_news(&mut evicted.connection));
    assert!(other.connection.node_alive());
    drop((evicted, other));
    rig.assert_untouched();
}

#[test]
fn a_refusal_arrives_with_its_reason() {
    let papers = Papers::new();
    for rig in [Rig::plain(UNHURRIED), Rig::secured(&papers, UNHURRIED)] {
        rig.admissions.refuse(Some("tenant orange is barred\u{1b}[2J"));
        let Err(AttachError::Refused(reason)) = rig.attach() else { panic!("not refused") };
        assert_eq!(reason, "tenant orange is barred [2J");
        rig.admissions.refuse(None);
        rig.assert_untouched();
    }
}

#[test]
fn nobody_gets_terms_or_ends_of_the_node_that_make_no_sense() {
    let rig = Rig::plain(UNHURRIED);
    rig.admissions.set_terms(Terms { send_depth: 3, ..TERMS });
    assert!(matches!(rig.attach(), Err(AttachError::Refused(_))));
    rig.admissions.set_terms(TERMS);
    rig.admissions.bring_unfit_ends(true);
    assert!(matches!(rig.attach(), Err(AttachError::Refused(_))));
    rig.admissions.bring_unfit_ends(false);
    rig.assert_untouched();
}

#[test]
fn a_client_that_cannot_meet_the_terms_leaves_nothing() {
    let rig = Rig::plain(UNHURRIED);
    let plain = ClientSecurity::Plain { anywhere: false };
    let address = rig.address.to_string();
    let unable = attach::<()>(&address, &plain, PATIENCE, |_| Err("no device".into()));
    assert!(matches!(unable, Err(AttachError::Unable(reason)) if reason.to_string() == "no device"));
    let unfit = attach(&address, &plain, PATIENCE, |_| {
        Ok((portcullis_attach::tls::Ends { data: vec![], ..ends(1) }, ()))
    });
    assert!(matches!(unfit, Err(AttachError::Unable(_))));
    assert_eq!(rig.admissions.admitted(), 0);
    rig.assert_untouched();
}

#[test]
fn whoever_holds_as_many_connections_as_are_free_gets_no_more() {
    let rig = Rig::plain(Limits { connections_max: 4, ..UNHURRIED });
    let held = [rig.attach().expect("attached"), rig.attach().expect("attached")];
    assert!(matches!(rig.attach(), Err(AttachError::Refused(reason)) if reason.contains("no room")));
    drop(held);
    rig.assert_untouched();
}

#[test]
fn the_format_on_the_wire_is_the_one_written_down() {
    let rig = Rig::plain(UNHURRIED);
    let mut stream = rig.call_and_say(&wire::frame(&wire::hello()));
    assert_eq!(wire::read(&mut stream), wire::terms());
    stream.write_all(&wire::frame(&wire::of_ends(&ends(5)))).expect("sent");
    assert_eq!(wire::read(&mut stream), wire::welcome(1, &ends(1003)));
    assert_eq!(rig.admissions.peer(1).1, ends(5));
    assert_eq!(rig.admissions.peer(1).1.control, end(5));
    stream.set_nonblocking(true).expect("set");
    assert!(stream.read(&mut [0]).is_err(), "nothing is said after the welcome");
}

#[test]
fn without_certificates_nobody_listens_to_other_machines_by_accident() {
    for address in ["0.0.0.0:0", "[::]:0"] {
        let refused = Listener::bind(address, NodeSecurity::Plain, false).expect_err("refused");
        assert!(matches!(refused, ListenError::PlainBeyondLoopback(_)), "{refused}");
        assert!(refused.to_string().contains("--dangerous-no-certificates"));
    }
    assert!(Listener::bind("0.0.0.0:0", NodeSecurity::Plain, true).is_ok());
    assert!(matches!(Listener::bind("nowhere", NodeSecurity::Plain, true), Err(ListenError::Address(_))));
    let papers = Papers::new();
    assert!(Listener::bind("0.0.0.0:0", NodeSecurity::Tls(papers.node()), false).is_ok());
}

#[test]
fn without_certificates_nobody_goes_to_other_machines_by_accident() {
    // A documentation address. The client refuses without contacting it.
    let refused =
        attach("192.0.2.1:7471", &ClientSecurity::Plain { anywhere: false }, PATIENCE, |_| Ok((ends(1), ())));
    assert!(matches!(refused, Err(AttachError::PlainBeyondLoopback(_))));
}

#[test]
fn a_node_is_served_by_all_its_listeners() {
    let listeners: Vec<_> =
        (0..3).map(|_| Listener::bind("localhost:0", NodeSecurity::Plain, false).expect("a port")).collect();
    let addresses: Vec<_> = listeners.iter().map(Listener::local_address).collect();
    let (server, admissions) = rig::serve(listeners, UNHURRIED);
    for (position, address) in addresses.iter().enumerate() {
        let plain = ClientSecurity::Plain { anywhere: false };
        let attached =
            attach(&address.to_string(), &plain, PATIENCE, |_| Ok((ends(1), ()))).expect("attached");
        assert_eq!(admissions.peer(attached.client).0.listener, position);
    }
    drop(server);
    admissions.wait_until_empty();
}
