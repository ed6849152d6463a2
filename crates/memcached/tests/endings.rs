//! The end of a gateway, and of its node.

use crate::rig::{Client, LATE_AFTER, Node, counter, until};
use portcullis_memcached::{Gateway, GatewayError, GatewayOptions, Listen};
use std::time::Instant;

#[test]
fn a_stop_ends_open_connections_and_leaves_nothing_on_the_node() {
    let node = Node::new();
    let gateway = node.gateway();
    let mut clients: Vec<_> = (0..5).map(|_| Client::new(&gateway)).collect();
    clients.iter_mut().for_each(|client| client.set("a", b"1"));
    clients[0].send("set half 0 0 100\r\nabc");
    let began = Instant::now();
    gateway.stop();
    assert!(began.elapsed() < LATE_AFTER);
    clients.iter_mut().for_each(|client| client.expect_end(""));
    until("the node has let go of the gateway", || node.host.counters().clients == 0);
}

#[test]
fn when_the_node_goes_clients_are_told_and_when_it_is_back_they_are_served() {
    let node = Node::new();
    let gateway = node.gateway();
    let mut client = Client::new(&gateway);
    client.set("a", b"1");
    let node = node.start_anew();
    let mut answers = Vec::new();
    until("the gateway has reached the new node", || {
        client.send("get a\r\n");
        answers.push(client.line());
        answers.last().is_some_and(|answer| answer == "END")
    });
    assert!(answers.iter().any(|answer| answer.starts_with("SERVER_ERROR ")), "{answers:?}");
    client.set("a", b"2");
    client.expect_value("a", b"2");
    assert!(counter(&gateway, "node_failures") > 0);
    drop((gateway, node));
}

/// No command fails meanwhile that would show the gateway that its node is lost.
#[test]
fn a_gateway_without_clients_finds_a_node_that_has_started_anew() {
    let node = Node::new();
    let gateway = node.gateway();
    let node = node.start_anew();
    until("the gateway's keeper has reached the new node", || node.host.counters().clients > 0);
    drop((gateway, node));
}

/// A client that reads no answer would take one for the answer to its next command.
#[test]
fn who_wants_no_answer_gets_none_where_the_node_is_gone() {
    let mut node = Node::new();
    let gateway = node.gateway();
    let mut client = Client::new(&gateway);
    node.host.stop();
    until("the gateway knows it", || {
        client.send("get a\r\n");
        client.line() != "END"
    });
    client.send("set a 0 0 1 noreply\r\nx\r\ndelete a noreply\r\nincr a 1 noreply\r\ntouch a 9 noreply\r\n");
    client.send("flush_all noreply\r\n");
    client.ask("mn", "MN");
    // The old value is to be removed. The failure of that, because the node is lost, is not reported in addition.
    client.store("a", &vec![b'x'; 2 << 20]);
    client.expect("SERVER_ERROR object too large for cache\r\n");
    client.ask("mn", "MN");
    assert!(counter(&gateway, "node_failures") > 1);
}

#[test]
fn a_gateway_without_a_node_or_a_place_to_listen_says_so() {
    let node = Node::new();
    let gateway = node.gateway();
    let listen = vec![Listen::Tcp(gateway.addresses()[0].to_string())];
    let taken = Gateway::start(GatewayOptions { listen, ..node.options("orange") });
    assert!(matches!(taken, Err(GatewayError::Listen { .. })), "{taken:?}");
    let nowhere = Gateway::start(node.options("nobody"));
    assert!(matches!(nowhere, Err(GatewayError::Connect(_))), "{nowhere:?}");
}
