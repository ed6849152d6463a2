//! Two gateways over one table.

use crate::rig::{Client, Node, counter, until};
use portcullis::{DirectoryName, Keep, Lifetime, NodeConfig, SessionOptions};
use portcullis_memcached::{Gateway, GatewayOptions};
use portcullis_structures::Pipeline;
use portcullis_structures::table::{Access, Table};
use std::rc::Rc;
use std::time::{Duration, Instant};

#[test]
fn what_one_gateway_stores_the_other_has() {
    let node = Node::new();
    let (one, two) = (node.gateway(), node.gateway());
    let (mut first, mut second) = (Client::new(&one), Client::new(&two));
    first.set("a", b"1");
    second.expect_value("a", b"1");
    second.ask("incr a 4", "5");
    first.expect_value("a", b"5");
    first.ask("delete a", "DELETED");
    second.ask("get a", "END");
    second.ask("add a 0 0 1\r\n1", "STORED");
    first.ask("add a 0 0 1\r\n2", "NOT_STORED");
}

/// The gateway has used its table before, and has read the flushes of other gateways.
#[test]
fn a_gateway_without_clients_asks_nothing_of_its_node() {
    let node = Node::new();
    let gateway = node.gateway();
    let mut client = Client::new(&gateway);
    client.set("a", b"1");
    drop(client);
    let asked = || {
        let counters = node.host.counters();
        (counters.control_messages, counters.grants, counters.extensions)
    };
    // The time in which a gateway that reads the flushes every tenth of a second would have read them thirty times.
    let quiet = Duration::from_secs(3);
    let mut before = (asked(), Instant::now());
    until("the gateway asks nothing", || {
        let now = asked();
        if now != before.0 {
            before = (now, Instant::now());
        }
        before.1.elapsed() > quiet
    });
}

#[test]
fn a_flush_reaches_the_other_gateway() {
    let node = Node::new();
    let (one, two) = (node.gateway(), node.gateway());
    let (mut first, mut second) = (Client::new(&one), Client::new(&two));
    first.set("a", b"1");
    second.expect_value("a", b"1");
    first.ask("flush_all", "OK");
    until("the other gateway hears of it", || !second.has("a"));
}

#[test]
fn what_was_flushed_before_a_gateway_started_is_not_there_in_it() {
    let node = Node::new();
    let one = node.gateway();
    let mut first = Client::new(&one);
    first.set("a", b"1");
    first.ask("flush_all", "OK");
    let two = node.gateway();
    let mut second = Client::new(&two);
    second.ask("get a", "END");
    second.ask("add a 0 0 1\r\n2", "STORED");
}

#[test]
fn flushes_of_several_gateways_are_all_heard() {
    let node = Node::new();
    let gateways = [node.gateway(), node.gateway(), node.gateway()];
    let mut clients = [0, 1, 2].map(|number| Client::new(&gateways[number]));
    for round in 0..5 {
        clients[2].set("a", round.to_string().as_bytes());
        clients[0].ask("flush_all", "OK");
        // The second gateway may not have read the first flush.
        clients[1].ask("flush_all 1000", "OK");
        for client in &mut clients {
            until("all gateways have heard of the first one", || !client.has("a"));
        }
    }
}

/// A gateway knows only the age of items that it has used, until it finds no room.
#[test]
fn a_gateway_finds_room_that_another_one_has_filled() {
    let node = Node::with_quota(portcullis::Quota { bytes_max: 4 << 20, ..portcullis::Quota::default() });
    let (one, two) = (node.gateway(), node.gateway());
    let (mut first, mut second) = (Client::new(&one), Client::new(&two));
    let value = [b'v'; 4000];
    for number in 0..1_000 {
        first.set(&format!("k{number}"), &value);
    }
    until("the other gateway finds room", || {
        second.store("mine", &value);
        second.line() == "STORED"
    });
    second.expect_value("mine", &value);
}

#[test]
fn gateways_count_together() {
    const EACH: usize = 200;
    let node = Node::new();
    let gateways = [node.gateway(), node.gateway()];
    Client::new(&gateways[0]).set("n", b"0");
    std::thread::scope(|scope| {
        for gateway in &gateways {
            scope.spawn(move || {
                let mut client = Client::new(gateway);
                client.send("incr n 1\r\n".repeat(EACH));
                (0..EACH).for_each(|_| assert!(client.line().parse::<u64>().is_ok()));
            });
        }
    });
    let total = (EACH * gateways.len()).to_string();
    Client::new(&gateways[1]).expect_value("n", total.as_bytes());
}

#[test]
fn tables_of_two_names_are_two_caches() {
    let node = Node::new();
    let table = DirectoryName::new("sessions").expect("a name");
    let other = Gateway::start(GatewayOptions { table, ..node.options("orange") }).expect("a gateway");
    let gateway = node.gateway();
    Client::new(&gateway).set("a", b"1");
    Client::new(&other).ask("get a", "END");
}

#[test]
fn a_kept_table_is_there_for_the_next_gateway_which_knows_its_keys() {
    let longest_keep = Lifetime::seconds(60);
    let node = Node::with(NodeConfig { pool_bytes: 96 << 20, longest_keep, ..NodeConfig::default() });
    let options = GatewayOptions { keep: Keep::For(longest_keep), ..node.options("orange") };
    let first = Gateway::start(options.clone()).expect("a gateway");
    Client::new(&first).set("a", b"1");
    first.stop();
    let second = Gateway::start(options).expect("a gateway");
    Client::new(&second).expect_value("a", b"1");
    until("the keys are known", || counter(&second, "curr_items") == 1);
}

/// The next gateway knows none of those items, so it would never evict them.
#[test]
fn what_expires_while_no_gateway_runs_takes_no_room_from_the_next() {
    let node = Node::new();
    // The session keeps the table while no gateway does.
    let session = node.host.connect("orange", SessionOptions::default()).expect("a session");
    let pipeline = Rc::new(Pipeline::new(session));
    let first = node.gateway();
    let mut client = Client::new(&first);
    for number in 0..50 {
        client.send(format!("set k{number} 0 1 1\r\nx\r\n"));
        client.expect("STORED\r\n");
    }
    client.set("kept", b"1");
    first.stop();
    let name = DirectoryName::new("memcached").expect("a name");
    let table = pipeline.block_on(Table::open_named(&pipeline, name, Access::Read)).expect("the table");
    let stored = Instant::now();
    until("the items expire", || pipeline.block_on(table.length()) == Ok(1));
    // The clocks of two handles differ by the transfer time of a permission, which is less than a permission's
    // lifetime.
    until("they have expired for everybody", || stored.elapsed() > Duration::from_secs(2));
    let second = node.gateway();
    until("their blocks are free", || {
        pipeline.block_on(table.statistics()).is_ok_and(|found| found.keys == 1)
    });
    Client::new(&second).expect_value("kept", b"1");
}
