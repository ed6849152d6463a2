//! Hostile clients: they cause work and memory that cost the gateway more than the clients.

use crate::rig::{Client, LATE_AFTER, Node, counter, send_all, until};
use portcullis_memcached::{Gateway, GatewayOptions};
use std::io::{Read, Write};
use std::time::{Duration, Instant};

#[test]
fn the_memory_of_all_long_lines_together_is_bounded_and_others_are_served() {
    const MAX: u64 = 8 << 20;
    const CLIENTS: usize = 24;
    let node = Node::new();
    let options = GatewayOptions { threads: 1, request_bytes_max: MAX, ..node.options("orange") };
    let gateway = Gateway::start(options).expect("a gateway");
    let line = [b"get".to_vec(), b" q".repeat(500_000), b"\r\n".to_vec()].concat();
    let mut honest = Client::new(&gateway);
    let clients: Vec<_> = (0..CLIENTS).map(|_| Client::new(&gateway)).collect();
    std::thread::scope(|scope| {
        for client in &clients {
            scope.spawn(|| send_all(&client.0, &line));
        }
        until("all memory for lines is given", || {
            counter(&gateway, "request_bytes_granted") >= MAX / 2 - (1 << 20)
        });
        for number in 0..200 {
            honest.set("small", number.to_string().as_bytes());
            honest.expect_value("small", number.to_string().as_bytes());
            let granted = counter(&gateway, "request_bytes_granted");
            assert!(granted <= MAX / 2, "{granted} bytes are given to lines");
        }
        // A large value does not wait for lines.
        honest.set("large", &vec![b'x'; 1_000_000]);
        for client in &clients {
            client.0.shutdown(std::net::Shutdown::Both).expect("it can be");
        }
    });
    drop(clients);
    until("nothing is given any more", || counter(&gateway, "request_bytes_granted") == 0);
}

#[test]
fn who_announces_values_and_sends_none_is_shown_out_when_others_wait() {
    const MAX: u64 = 8 << 20;
    const CLIENTS: u64 = 8;
    let node = Node::new();
    let stalled_timeout = Duration::from_secs(1);
    let options =
        GatewayOptions { threads: 1, request_bytes_max: MAX, stalled_timeout, ..node.options("orange") };
    let gateway = Gateway::start(options).expect("a gateway");
    let mut idle: Vec<_> = (0..CLIENTS).map(|_| Client::new(&gateway)).collect();
    for client in &mut idle {
        client.send("set k 0 0 1000000\r\n");
    }
    until("all memory for values is given", || {
        idle.iter_mut().for_each(|client| client.send("x"));
        counter(&gateway, "request_bytes_granted") > 3 << 20
    });
    assert!(counter(&gateway, "request_bytes_granted") <= MAX / 2);
    let mut honest = Client::new(&gateway);
    honest.set("small", b"1");
    honest.set("large", &vec![b'y'; 1_000_000]);
    honest.expect_value("large", &vec![b'y'; 1_000_000]);
    assert!(counter(&gateway, "stalled_kicks") > 0);
    drop(idle);
    until("nothing is given any more", || counter(&gateway, "request_bytes_granted") == 0);
}

/// Each of the floods sends requests without a pause.
#[test]
fn an_honest_client_waits_for_a_few_rounds_of_fifty_floods_and_not_for_all_of_them() {
    const FLOODS: usize = 50;
    const ASKED: u64 = 100;
    let node = Node::new();
    let options = GatewayOptions { threads: 1, ..node.options("orange") };
    let gateway = Gateway::start(options).expect("a gateway");
    let mut honest = Client::new(&gateway);
    honest.set("n", b"1");
    let floods: Vec<_> = (0..FLOODS).map(|_| Client::new(&gateway)).collect();
    std::thread::scope(|scope| {
        for flood in &floods {
            scope.spawn(|| send_all(&flood.0, &b"incr n 1\r\n".repeat(200_000)));
            scope.spawn(|| {
                let late = Instant::now() + LATE_AFTER;
                let mut bytes = vec![0; 1 << 16];
                let mut stream = &flood.0;
                while stream.read(&mut bytes).is_ok_and(|bytes| bytes > 0) && Instant::now() < late {}
            });
        }
        until("the floods", || counter(&gateway, "incr_hits") > 5_000);
        let before = counter(&gateway, "incr_hits");
        for _ in 0..ASKED {
            honest.ask("mg none", "EN");
        }
        let each = (counter(&gateway, "incr_hits") - before) / ASKED;
        for flood in &floods {
            let _ = flood.0.shutdown(std::net::Shutdown::Both);
        }
        // A turn of each flood is twenty commands.
        assert!(each < FLOODS as u64 * 20 / 2, "{each} commands of the floods for each of the honest client");
    });
}

#[test]
fn a_connection_that_is_reset_under_its_work_is_dropped() {
    let node = Node::new();
    let gateway = node.gateway();
    let mut honest = Client::new(&gateway);
    honest.set("a", &[b'x'; 1000]);
    for _ in 0..20 {
        let client = Client::new(&gateway);
        send_all(&client.0, &[b"get".to_vec(), b" a".repeat(100_000), b"\r\n".to_vec()].concat());
        // Answers that the client has not read make this a reset.
        until("an answer", || client.0.peek(&mut [0]).is_ok_and(|bytes| bytes > 0));
        drop(client);
    }
    until("all are gone", || counter(&gateway, "curr_connections") == 1);
    honest.expect_value("a", &[b'x'; 1000]);
}

#[test]
fn a_large_value_that_comes_slowly_and_steadily_is_stored() {
    let node = Node::new();
    let gateway = node.gateway();
    let mut client = Client::new(&gateway);
    let value = vec![b'v'; 900_000];
    client.send(format!("set slow 0 0 {}\r\n", value.len()));
    for piece in value.chunks(50_000) {
        (&client.0).write_all(piece).expect("the gateway reads");
        Client::new(&gateway).ask("mn", "MN");
    }
    client.send("\r\n");
    client.expect("STORED\r\n");
    client.expect_value("slow", &value);
    assert_eq!(counter(&gateway, "request_bytes_granted"), 0);
}
