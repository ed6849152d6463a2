//! Clients and servers that end: the other side detects it, and none of their resources stay.

use crate::child::{self, Child};
use crate::rig::{BLUE, CHANNEL, Fabric, LONG, RED, Rig, wait_for};
use crate::{ECHO, SUM, WAIT, check_calls, gated, grow, methods, on_each};
use portcullis_rpc::channel::{AtNode, CallError, Connection, ConnectionError, ConnectionOptions};
use portcullis_rpc::{Boxed, ScopeRef};
use std::time::{Duration, Instant};

/// Runs a child that calls until it is killed. This is not a test.
#[test]
fn a_child_that_calls_until_it_is_killed() {
    let Some(address) = child::word() else { return };
    let mut connection = Connection::open(&address).expect("a connection");
    let scope = connection.scope(64 << 10).expect("room");
    let tree = grow(&scope, 8, 1);
    for round in 0_u64.. {
        let calls: Vec<_> = (0..8)
            .map(|_| connection.begin(SUM, scope.reference(), tree, 0, None).expect("it begins"))
            .collect();
        if round == 0 {
            child::say_ready("");
        }
        calls.into_iter().for_each(|call| drop(connection.wait(call).expect("a sum")));
    }
}

#[test]
fn a_killed_client_leaves_nothing_and_an_honest_one_goes_on() {
    on_each(|fabric| {
        let rig = Rig::new(fabric, methods);
        let mut honest = rig.connect(BLUE);
        for _ in 0..3 {
            let (child, _) = Child::start("death::a_child_that_calls_until_it_is_killed", &rig.address(RED));
            check_calls(&mut honest, 5, 1);
            assert_eq!(rig.server.counters().connections, 2);
            child.kill();
            rig.wait_for_connections(1);
            check_calls(&mut honest, 5, 1);
        }
        drop(honest);
        rig.assert_empty();
    });
}

/// Runs a child that serves until it is killed. This is not a test.
#[test]
fn a_child_that_serves_until_it_is_killed() {
    let Some(fabric) = child::word() else { return };
    let fabric = match fabric.as_str() {
        "Shm" => Fabric::Shm,
        "Udp" => Fabric::Udp,
        "Rdma" => Fabric::Rdma,
        other => panic!("{other} is no fabric"),
    };
    let (method, gate) = gated();
    let rig = Rig::new(fabric, |channel| methods(channel).copied(WAIT, method));
    child::say_ready(rig.address(RED));
    gate.begins.recv().expect("a call");
    child::say_ready("a call has begun");
    child::wait_for_the_end();
}

#[test]
fn a_server_that_is_killed_in_a_call_is_missed_within_a_bound() {
    on_each(|fabric| {
        let name = "death::a_child_that_serves_until_it_is_killed";
        let (child, address) = Child::start(name, &format!("{fabric:?}"));
        let options = ConnectionOptions { within: LONG, ..ConnectionOptions::default() };
        let mut connection = Connection::open_with(&address, options).expect("a connection");
        assert_eq!(connection.call_with_word(ECHO, 3).expect("an answer").word(), 3);
        let call =
            connection.begin(WAIT, ScopeRef::default(), Boxed::<u64>::NULL, 1, None).expect("it begins");
        let more =
            connection.begin(WAIT, ScopeRef::default(), Boxed::<u64>::NULL, 2, None).expect("it begins");
        assert!(!connection.has_ended(call));
        child.kill();
        let killed = Instant::now();
        assert_eq!(connection.wait(call).expect_err("nobody answers"), CallError::ServerGone);
        assert!(killed.elapsed() < LONG, "it took {:?}", killed.elapsed());
        assert_eq!(connection.wait(more).expect_err("nobody answers"), CallError::ServerGone);
        assert_eq!(connection.call_with_word(ECHO, 3).expect_err("it is gone"), CallError::ServerGone);
    });
}

#[test]
fn clients_of_a_server_that_ends_learn_of_it_while_the_node_goes_on() {
    on_each(|fabric| {
        let rig = Rig::new(fabric, methods);
        let mut connection = rig.connect(RED);
        check_calls(&mut connection, 3, 1);
        let Rig { server, host, .. } = rig;
        drop(server);
        assert_eq!(connection.call_with_word(ECHO, 1).expect_err("it is gone"), CallError::ServerGone);
        drop(connection);
        wait_for("the node to be empty", || {
            let it = host.counters();
            (it.clients, it.permissions, it.objects) == (0, 0, 0)
        });
    });
}

#[test]
fn a_server_outlives_its_node_and_clients_learn_that_it_is_gone() {
    on_each(|fabric| {
        let rig = Rig::new(fabric, methods);
        let mut connection = rig.connect(RED);
        check_calls(&mut connection, 3, 1);
        let local = rig.local();
        let Rig { server, host, folder: _folder, .. } = rig;
        drop(host);
        assert_eq!(connection.call_with_word(ECHO, 1).expect_err("it is gone"), CallError::ServerGone);
        wait_for("the server to notice", || server.counters().connections == 0);
        // Clients of the server's own machine do not need the node.
        check_calls(&mut Connection::open(local).expect("a connection"), 3, 1);
    });
}

#[test]
fn a_connection_lives_on_when_its_permissions_have_ended_many_times() {
    on_each(|fabric| {
        let rig = Rig::with_lifetime(fabric, Duration::from_secs(1), methods);
        let (mut busy, mut idle) = (rig.connect(RED), rig.connect(BLUE));
        let began = Instant::now();
        // The test takes several times the lifetime of a permission.
        while began.elapsed() < Duration::from_millis(2500) {
            check_calls(&mut busy, 3, 1);
        }
        check_calls(&mut idle, 3, 1);
        assert_eq!(rig.server.counters().connections, 2);
    });
}

fn refused(rig: &Rig, tenant: &str, options: ConnectionOptions) -> ConnectionError {
    Connection::open_with(rig.address(tenant), options).expect_err("it is not let in")
}

#[test]
fn who_is_not_let_in_is_told_why_in_time() {
    on_each(|fabric| {
        let mut at = AtNode::channel(CHANNEL).admit(RED);
        (at.heap_bytes, at.heap_bytes_max, at.connections_max) = (1 << 20, 1 << 20, 2);
        let rig = Rig::with(fabric, at, methods);
        let soon = ConnectionOptions { within: Duration::from_millis(300), ..ConnectionOptions::default() };
        // A tenant that is not admitted cannot find the channel.
        let error = refused(&rig, BLUE, soon);
        assert!(matches!(error, ConnectionError::Silent { .. }), "{error}");
        let patient = ConnectionOptions { within: LONG, ..soon };
        let error = refused(&rig, RED, ConnectionOptions { heap_bytes: 2 << 20, ..patient });
        assert!(matches!(&error, ConnectionError::Refused(why) if why.contains("1048576")), "{error}");
        let mut held = [rig.connect(RED), rig.connect(RED)];
        let error = refused(&rig, RED, patient);
        assert!(
            matches!(&error, ConnectionError::Refused(why) if why.contains("connections_max")),
            "{error}"
        );
        held.iter_mut().for_each(|connection| check_calls(connection, 2, 1));
        drop(held);
        rig.wait_for_connections(0);
        check_calls(&mut rig.connect(RED), 2, 1);
        let error = Connection::open(format!("{}#nobody", rig.node(RED)));
        let error = error.expect_err("no such channel");
        assert!(matches!(error, ConnectionError::Silent { .. }), "{error}");
        let error = Connection::open(rig.node(RED)).expect_err("no channel's name");
        assert!(error.to_string().contains("names no channel"), "{error}");
    });
}
