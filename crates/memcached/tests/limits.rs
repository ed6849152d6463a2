//! Huge keys and values, slow clients, floods.

use crate::rig::{Client, LATE_AFTER, Node, counter, until};
use portcullis_memcached::{Gateway, GatewayOptions};
use std::time::{Duration, Instant};

#[test]
fn keys_have_250_bytes_at_most() {
    let node = Node::new();
    let gateway = node.gateway();
    let mut client = Client::new(&gateway);
    let (longest, longer) = ("k".repeat(250), "k".repeat(251));
    client.set(&longest, b"1");
    client.expect_value(&longest, b"1");
    let bad = "CLIENT_ERROR bad command line format";
    client.ask(&format!("get a {longer}"), bad);
    client.ask(&format!("set {longer} 0 0 2\r\nmn"), &format!("{bad}\r\nMN"));
    client.ask(&format!("mg {longer} v"), bad);
    client.ask(&format!("delete {longer}"), bad);
}

#[test]
fn a_value_that_is_too_large_is_swallowed_and_what_was_there_goes() {
    let node = Node::new();
    let gateway = node.gateway();
    let mut client = Client::new(&gateway);
    client.set("a", b"1");
    client.store("a", &vec![b'x'; 1 << 20]);
    client.expect("SERVER_ERROR object too large for cache\r\n");
    client.ask("get a", "END");
    let largest = vec![b'y'; (1 << 20) - 60];
    client.set("a", &largest);
    client.expect_value("a", &largest);
    client.store("b", &vec![b'x'; 8 << 20]);
    client.expect("SERVER_ERROR object too large for cache\r\n");
    client.ask("mn", "MN");
}

#[test]
fn a_client_may_send_byte_by_byte() {
    let node = Node::new();
    let gateway = node.gateway();
    let mut client = Client::new(&gateway);
    for byte in b"set a 0 0 5\r\nhello\r\nget a\r\nms b 2 T0\r\nhi\r\nmg b v\r\n" {
        client.send([*byte]);
    }
    client.expect("STORED\r\nVALUE a 0 5\r\nhello\r\nEND\r\nHD\r\nVA 2\r\nhi\r\n");
}

#[test]
fn a_client_that_takes_no_answers_is_read_no_more_and_disturbs_nobody() {
    const ASKED: usize = 800;
    let node = Node::new();
    let gateway = node.gateway();
    let mut slow = Client::new(&gateway);
    let value = vec![b'x'; 100_000];
    slow.set("large", &value);
    let mut sender = slow.0.try_clone().expect("a second handle");
    let asked = std::thread::spawn(move || {
        use std::io::Write;
        // The gateway does not read further until the client reads the answers.
        sender.write_all("get large\r\n".repeat(ASKED).as_bytes()).expect("the gateway reads in the end");
    });
    let mut honest = [Client::new(&gateway), Client::new(&gateway)];
    for number in 0..100 {
        for client in &mut honest {
            client.set("small", number.to_string().as_bytes());
        }
    }
    let written = counter(&gateway, "bytes_written");
    assert!(written < (ASKED * value.len() / 4) as u64, "{written} bytes wait in the gateway or its sockets");
    let answer = [b"VALUE large 0 100000\r\n", &value[..], b"\r\nEND\r\n"].concat();
    for _ in 0..ASKED / 4 {
        slow.expect(&answer);
    }
    drop(slow);
    let _ = asked.join();
    until("the slow client's end", || counter(&gateway, "curr_connections") == 2);
}

/// Each client requests more than the gateway may keep for all of them.
#[test]
fn what_many_slow_clients_ask_for_and_do_not_take_is_bounded() {
    const CLIENTS: u64 = 24;
    const ITEM: u64 = 1_000_000;
    const MAX: u64 = 8 << 20;
    let node = Node::new();
    let options = GatewayOptions { threads: 1, answer_bytes_max: MAX, ..node.options("orange") };
    let gateway = Gateway::start(options).expect("a gateway");
    let mut honest = Client::new(&gateway);
    honest.set("large", &vec![b'x'; usize::try_from(ITEM).expect("it is small")]);
    let slow: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let mut client = Client::new(&gateway);
            client.send(format!("get{}\r\n", " large".repeat(40)));
            client
        })
        .collect();
    let waiting = || counter(&gateway, "answer_bytes_waiting");
    // All clients have sent their requests, and none reads its answers.
    for client in &slow {
        assert_eq!(client.0.peek(&mut [0]).expect("an answer"), 1);
    }
    assert!(waiting() >= MAX);
    for number in 0..100 {
        honest.set("small", number.to_string().as_bytes());
        honest.expect_value("small", number.to_string().as_bytes());
    }
    // Above the bound there are the rounds that were in progress when it was reached, and a value for each client.
    let (rounds, found) = (2 * (64 + 19) * ITEM, waiting());
    assert!(found < MAX + rounds + CLIENTS * ITEM, "{found} bytes wait");
    drop(slow);
    until("nothing waits any more", || waiting() == 0);
}

#[test]
fn who_takes_nothing_while_too_much_waits_is_shown_out() {
    let node = Node::new();
    let stalled_timeout = Duration::from_millis(300);
    let options =
        GatewayOptions { threads: 1, answer_bytes_max: 1 << 20, stalled_timeout, ..node.options("orange") };
    let gateway = Gateway::start(options).expect("a gateway");
    let mut honest = Client::new(&gateway);
    honest.set("large", &vec![b'x'; 1_000_000]);
    let mut slow = Client::new(&gateway);
    slow.send(format!("get{}\r\n", " large".repeat(20)));
    until("too much waits", || counter(&gateway, "answer_bytes_waiting") > 1 << 20);
    until("it is shown out", || {
        honest.ask("mn", "MN");
        counter(&gateway, "stalled_kicks") == 1
    });
    until("nothing waits any more", || counter(&gateway, "answer_bytes_waiting") == 0);
    assert_eq!(counter(&gateway, "curr_connections"), 1);
}

/// A round has fewer keys than there are clients here.
#[test]
fn of_many_clients_that_never_pause_each_is_heard() {
    const CLIENTS: usize = 400;
    let node = Node::new();
    let options = GatewayOptions { threads: 1, ..node.options("orange") };
    let gateway = Gateway::start(options).expect("a gateway");
    let mut first = Client::new(&gateway);
    first.set("a", b"1");
    let mut busy: Vec<_> = (0..CLIENTS).map(|_| Client::new(&gateway)).collect();
    for round in 0..20 {
        busy.iter_mut().for_each(|client| client.send("get a\r\nget a\r\n"));
        let mut late = Client::new(&gateway);
        late.expect_value("a", b"1");
        for client in &mut busy {
            client.expect("VALUE a 0 1\r\n1\r\nEND\r\nVALUE a 0 1\r\n1\r\nEND\r\n");
        }
        first.set("a", b"1");
        assert!(counter(&gateway, "get_hits") >= (round + 1) * 2 * CLIENTS as u64);
    }
}

#[test]
fn there_are_as_many_connections_as_are_allowed() {
    let node = Node::new();
    let options = GatewayOptions { connections_max: 3, ..node.options("orange") };
    let gateway = Gateway::start(options).expect("a gateway");
    let mut clients: Vec<_> = (0..3).map(|_| Client::new(&gateway)).collect();
    clients.iter_mut().for_each(|client| client.ask("mn", "MN"));
    Client::new(&gateway).expect_end("ERROR Too many open connections\r\n");
    assert_eq!(counter(&gateway, "rejected_connections"), 1);
    clients.pop();
    until("a free place", || counter(&gateway, "curr_connections") == 2);
    Client::new(&gateway).ask("mn", "MN");
}

#[test]
fn who_says_nothing_is_shown_out() {
    let node = Node::new();
    let idle_timeout = Some(Duration::from_millis(300));
    let options = GatewayOptions { idle_timeout, ..node.options("orange") };
    let gateway = Gateway::start(options).expect("a gateway");
    let mut client = Client::new(&gateway);
    client.ask("mn", "MN");
    client.expect_end("");
    assert_eq!(counter(&gateway, "idle_kicks"), 1);
}

#[test]
fn a_flood_leaves_an_honest_client_its_turns() {
    let node = Node::new();
    let options = GatewayOptions { threads: 1, ..node.options("orange") };
    let gateway = Gateway::start(options).expect("a gateway");
    Client::new(&gateway).set("a", b"1");
    let flood = Client::new(&gateway);
    let (mut sender, mut taker) = (flood.0.try_clone().expect("a handle"), flood.0);
    let sends = std::thread::spawn(move || {
        use std::io::Write;
        let many = "get a\r\n".repeat(10_000);
        while sender.write_all(many.as_bytes()).is_ok() {}
    });
    let takes = std::thread::spawn(move || {
        use std::io::Read;
        let mut bytes = vec![0; 1 << 16];
        let until = Instant::now() + LATE_AFTER;
        while taker.read(&mut bytes).is_ok_and(|bytes| bytes > 0) && Instant::now() < until {}
    });
    until("the flood", || counter(&gateway, "cmd_get") > 10_000);
    let mut honest = Client::new(&gateway);
    let (asked, before) = (200, counter(&gateway, "cmd_get"));
    for _ in 0..asked {
        honest.expect_value("a", b"1");
    }
    // In each round the flood has its 20 commands, and the honest client its own.
    let meanwhile = counter(&gateway, "cmd_get") - before;
    assert!(counter(&gateway, "conn_yields") > 0);
    assert!(meanwhile > asked, "the flood goes on");
    gateway.stop();
    sends.join().expect("the flood ends");
    takes.join().expect("the flood ends");
}

/// Each value fits the gateway's buffers, but all together do not.
#[test]
fn large_values_of_many_clients_find_buffers_one_after_another() {
    const CLIENTS: usize = 16;
    const ROUNDS: usize = 4;
    let node = Node::new();
    let gateway = Gateway::start(GatewayOptions { threads: 1, ..node.options("orange") }).expect("a gateway");
    let (address, value) = (gateway.addresses()[0], vec![b'x'; 900_000]);
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let value = &value;
            scope.spawn(move || {
                let (mut client, key) = (Client::at(address), format!("k{number}"));
                for _ in 0..ROUNDS {
                    client.set(&key, value);
                    client.expect_value(&key, value);
                }
            });
        }
    });
}

#[test]
fn a_get_of_a_hundred_thousand_keys_is_answered_in_turns() {
    let node = Node::new();
    let gateway = node.gateway();
    let mut client = Client::new(&gateway);
    client.set("a", b"1");
    let mut sender = client.0.try_clone().expect("a second handle");
    let asked = std::thread::spawn(move || {
        use std::io::Write;
        sender
            .write_all(["get", &" b".repeat(100_000), " a\r\n"].concat().as_bytes())
            .expect("the gateway reads");
    });
    Client::new(&gateway).set("other", b"2");
    client.expect("VALUE a 0 1\r\n1\r\nEND\r\n");
    asked.join().expect("all was sent");
}
