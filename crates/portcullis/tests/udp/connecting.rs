//! Connections that fail: each returns its reason in time, and leaves nothing behind.

use crate::proxy::{Proxy, Sent, Way, pass};
use crate::rig::{BLUE, LONG, RED, Rig, config};
use portcullis::host::{Host, HostConfig, NetworkListen, UdpConfig};
use portcullis::{
    Allocate, ClientIdentity, ClientSecurity, Coded, ConnectError, ErrorCode, Lifetime, NodeConfig,
    NodeIdentity, NodeSecurity, SessionOptions, UdpOptions, connect, connect_with,
};
use portcullis_attach::tls::certificates::{Validity, make_authority, make_node, make_tenant};
use std::net::TcpListener;
use std::path::Path;
use std::time::{Instant, SystemTime};

/// Attempts a connection and returns its error, which must arrive in time.
fn refused(address: &str, options: SessionOptions) -> ConnectError {
    let began = Instant::now();
    let error = connect_with(address, options).expect_err("it cannot connect");
    assert!(began.elapsed() < LONG, "{error}");
    error
}

#[test]
fn a_udp_port_that_does_not_answer_is_told_from_a_node_that_is_not_there() {
    let rig = Rig::new();
    let proxy = Proxy::new(&rig.place(RED), 9, |_, _| Vec::new());
    let error = refused(&proxy.udp(), SessionOptions::default());
    assert_eq!(error.code(), ErrorCode::NoPath);
    assert!(error.to_string().contains("UDP port") && error.is_retryable(), "{error}");
    rig.assert_empty();
    let error = refused("udp:nowhere.invalid:7472", SessionOptions::default());
    assert_eq!(error.code(), ErrorCode::NoSuchHost);
    assert!(error.to_string().contains("the host in nowhere.invalid:7472 cannot be found"), "{error}");
    let nobody = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    let error = refused(&format!("udp:{nobody}"), SessionOptions::default());
    assert_eq!(error.code(), ErrorCode::NoNode);
    assert!(error.is_retryable(), "{error}");
}

#[test]
fn a_path_that_loses_large_datagrams_carries_everything_in_small_ones() {
    let rig = Rig::new();
    let drops_large = |way: Way, bytes: Vec<u8>| -> Vec<Sent> {
        if bytes.len() > 1300 { Vec::new() } else { pass(way, bytes) }
    };
    let proxy = Proxy::new(&rig.place(RED), 9, drops_large);
    let mut session = connect(&proxy.udp()).expect("a session");
    proxy.seen.lock().expect("not poisoned").clear();
    let block = session.allocate(Allocate::bytes(100_000).lifetime(Lifetime::seconds(9))).expect("memory");
    let bytes: Vec<u8> = (0..100_000u32).map(|at| u8::try_from(at % 251).expect("it is small")).collect();
    session.write(&block, 0, &bytes).expect("written");
    let mut there = vec![0; bytes.len()];
    session.read(&block, 0, &mut there).expect("read");
    assert!(there == bytes);
    assert_eq!(session.fetch_and_add(&block, 0, 0).map(|it| it.to_le_bytes()), Ok([0, 1, 2, 3, 4, 5, 6, 7]));
    assert!(proxy.seen.lock().expect("not poisoned").iter().all(|(_, bytes)| bytes.len() <= 1300));
}

#[test]
fn a_datagram_size_without_room_for_operations_is_said_to_be_too_short() {
    let rig = Rig::new();
    let udp = UdpOptions { datagram_max: Some(500), ..UdpOptions::default() };
    let error = refused(&rig.address(RED), SessionOptions { udp, ..SessionOptions::default() });
    assert_eq!(error.code(), ErrorCode::InvalidArgument);
    assert!(!error.is_retryable() && error.to_string().contains("500 bytes"), "{error}");
    rig.assert_empty();
}

#[test]
fn a_node_over_udp_says_so_to_clients_of_another_fabric() {
    let rig = Rig::new();
    let error = portcullis_attach::tls::attach::<()>(
        &rig.place(RED),
        &ClientSecurity::Plain { anywhere: false },
        LONG,
        |_| unreachable!("it offers no queue pairs"),
    );
    let error = error.expect_err("another fabric");
    assert!(error.to_string().contains("udp"), "{error}");
    rig.assert_empty();
}

#[test]
fn a_full_table_and_a_full_share_are_each_refused_by_name_and_no_place_is_lost() {
    let rig = Rig::with(config(), |udp| udp.regions_max = 2);
    let (mut red, mut blue) = (rig.session(RED), rig.session(BLUE));
    let ask = || Allocate::bytes(64).lifetime(Lifetime::seconds(9));
    for _ in 0..20 {
        let held = [red.allocate(ask()).expect("a place"), red.allocate(ask()).expect("a place")];
        let error = blue.allocate(ask()).expect_err("all places are taken");
        assert_eq!(error.code(), ErrorCode::NodeFull, "{error}");
        for it in held {
            red.revoke_and_free(it).expect("it has not ended");
        }
        let one = blue.allocate(ask()).expect("a place again");
        blue.revoke_and_free(one).expect("it has not ended");
    }
    drop((red, blue));
    rig.assert_empty();
    let rig = Rig::with(NodeConfig { tenant_regions_max: 2, ..config() }, |_| {});
    let (mut red, mut blue) = (rig.session(RED), rig.session(BLUE));
    let held = [red.allocate(ask()).expect("a place"), red.allocate(ask()).expect("a place")];
    let error = rig.session(RED).allocate(ask()).expect_err("its tenant's share");
    assert_eq!(error.code(), ErrorCode::Quota, "{error}");
    blue.allocate(ask()).expect("another tenant's share is its own");
    drop((held, red, blue));
    rig.assert_empty();
}

/// Makes an authority in a folder, with the identities of a node and a tenant.
fn papers(folder: &Path) -> (NodeIdentity, ClientIdentity) {
    let validity = Validity { now: SystemTime::now(), days: 10 };
    make_authority(folder, validity).expect("an authority");
    make_node(folder, "one", &["127.0.0.1".to_owned()], validity).expect("a node's certificate");
    make_tenant(folder, RED, validity).expect("a tenant's certificate");
    let path = |name: &str| folder.join(name);
    let node = NodeIdentity::load(&path("ca.pem"), &path("node-one.pem"), &path("node-one-key.pem"));
    let tenant = ClientIdentity::load(&path("ca.pem"), &path("tenant-red.pem"), &path("tenant-red-key.pem"));
    (node.expect("an identity"), tenant.expect("an identity"))
}

#[test]
fn certificates_are_asked_for_on_both_sides_and_name_the_tenant() {
    let folders = [tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder")];
    let [(node, tenant), (_, foreign)] = [0, 1].map(|it| papers(folders[it].path()));
    let listen = |security| NetworkListen {
        address: "127.0.0.1:0".to_owned(),
        security,
        plain_anywhere: false,
        tenant: None,
    };
    let listen = vec![listen(NodeSecurity::Tls(node)), listen(NodeSecurity::Plain)];
    let udp = Some(UdpConfig { listen, ..UdpConfig::default() });
    let host = Host::start(HostConfig { node: config(), udp, ..HostConfig::default() }).expect("a node");
    let [secured, plain] = [0, 1].map(|it| format!("udp:{}", host.network_addresses()[it]));
    let with = |security| SessionOptions {
        udp: UdpOptions { security, ..UdpOptions::default() },
        ..SessionOptions::default()
    };
    for (address, security) in [
        (&secured, ClientSecurity::Tls(foreign)),
        (&secured, ClientSecurity::Plain { anywhere: false }),
        (&plain, ClientSecurity::Tls(tenant.clone())),
    ] {
        let error = refused(address, with(security));
        assert!(matches!(error, ConnectError::Udp(_)), "{error}");
    }
    assert_eq!((host.counters().clients, host.counters().tenants), (0, 0));
    let mut session = connect_with(&secured, with(ClientSecurity::Tls(tenant))).expect("a session");
    let block = session.allocate(Allocate::bytes(64)).expect("memory");
    session.write(&block, 0, &[1; 64]).expect("written");
}
