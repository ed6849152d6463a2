//! The meta commands over sockets.

use crate::rig::{Client, Node};

#[test]
fn meta_commands_answer_with_what_their_flags_ask_for() {
    let node = Node::new();
    let gateway = node.gateway();
    let mut client = Client::new(&gateway);
    for (line, answer) in [
        ("mn", "MN"),
        ("mg a v", "EN"),
        ("mg a v k O12", "EN ka O12"),
        ("mg a v q\r\nmn", "MN"),
        ("ms a 5 F7 T100 k O1\r\nhello", "HD ka O1"),
        ("mg a s v f k O3", "VA 5 s5 f7 ka O3\r\nhello"),
        ("mg a T0 t", "HD t-1"),
        ("mg a t T100", "HD t-1"),
        ("md a q\r\nmn", "MN"),
        ("md a k", "NF ka"),
        ("mg", "ERROR"),
        ("ms a", "CLIENT_ERROR bad command line format"),
        ("mg a v v", "CLIENT_ERROR duplicate flag"),
        ("mg a !", "CLIENT_ERROR invalid flag"),
    ] {
        client.ask(line, answer);
    }
}

#[test]
fn an_item_tells_the_time_that_it_has_left() {
    let node = Node::new();
    let gateway = node.gateway();
    let mut client = Client::new(&gateway);
    client.ask("ms a 1 T100\r\n1", "HD");
    client.send("mg a t\r\n");
    let line = client.line();
    let left = line.strip_prefix("HD t").and_then(|left| left.parse::<u32>().ok()).expect("a time");
    assert!((1..=100).contains(&left), "{line}");
}

#[test]
fn modes_of_ms_are_the_ways_of_storing() {
    let node = Node::new();
    let gateway = node.gateway();
    let mut client = Client::new(&gateway);
    for (line, answer) in [
        ("ms a 1 MR\r\n1", "NS"),
        ("ms a 1 MA\r\n1", "NS"),
        ("ms a 2 ME\r\nbc", "HD"),
        ("ms a 1 ME\r\n1", "NS"),
        ("ms a 1 MA\r\nd", "HD"),
        ("ms a 1 MP\r\na", "HD"),
        ("mg a v", "VA 4\r\nabcd"),
        ("ms a 1 C1\r\n1", "EX"),
        ("ms b 1 C1\r\n1", "NF"),
        ("ms a 2 MX\r\nhi", "CLIENT_ERROR invalid mode for ms M token"),
        ("ms a 2\r\nhello", "CLIENT_ERROR bad data chunk\r\nERROR"),
    ] {
        client.ask(line, answer);
    }
}

#[test]
fn keys_may_be_any_bytes_in_base64() {
    let node = Node::new();
    let gateway = node.gateway();
    let mut client = Client::new(&gateway);
    client.ask("ms AAEgCg== 2 b k\r\nhi", "HD kAAEgCg== b");
    client.ask("mg AAEgCg== b v k", "VA 2 kAAEgCg== b\r\nhi");
    client.ask("mg *** b", "CLIENT_ERROR error decoding key");
}

#[test]
fn one_client_is_told_to_make_a_stale_item_anew() {
    let node = Node::new();
    let gateway = node.gateway();
    let mut client = Client::new(&gateway);
    for (line, answer) in [
        ("ms a 1 T100\r\n1", "HD"),
        ("md a I T0", "HD"),
        ("mg a v t", "VA 1 t-1 X W\r\n1"),
        ("mg a v", "VA 1 Z X\r\n1"),
        ("ms a 1\r\n2", "HD"),
        ("mg a v", "VA 1\r\n2"),
        ("md a I", "HD"),
        ("ms a 1 MA\r\n9", "HD"),
        ("mg a v", "VA 2\r\n29"),
        ("md a I", "HD"),
        ("incr a 1", "30"),
        ("mg a v", "VA 2 X W\r\n30"),
        ("incr a 70", "100"),
        ("mg a v", "VA 3\r\n100"),
        ("mg b N30 s", "HD s0 W"),
        ("mg b s", "HD s0 Z"),
        ("ms c 1 T20\r\n1", "HD"),
        ("mg c R10", "HD"),
        ("mg c R60", "HD W"),
        ("mg c R60", "HD Z"),
    ] {
        client.ask(line, answer);
    }
}

#[test]
fn an_item_knows_whether_it_was_asked_for() {
    let node = Node::new();
    let gateway = node.gateway();
    let mut client = Client::new(&gateway);
    client.set("a", b"1");
    for answer in ["HD h0 l0", "HD h1 l0"] {
        client.ask("mg a h l", answer);
    }
    client.send("me a\r\n");
    let line = client.line();
    assert!(line.starts_with("ME a exp=-1 la=0 cas=") && line.contains("fetch=yes"), "{line}");
    client.ask("me b", "EN");
}

#[test]
fn ma_counts_and_makes_numbers() {
    let node = Node::new();
    let gateway = node.gateway();
    let mut client = Client::new(&gateway);
    for (line, answer) in [
        ("ma n", "NF"),
        ("ma n N0 J13 v", "VA 2\r\n13"),
        ("ma n v D7", "VA 2\r\n20"),
        ("ma n MD v D30", "VA 1\r\n0"),
        ("ma n q k\r\nmn", "MN"),
        ("ma made N30 q", "HD"),
        ("ma made N30 q\r\nmn", "MN"),
        ("ma n C1", "EX"),
        ("ma n MX", "CLIENT_ERROR invalid mode for ma M token"),
        ("ma n T0 t v", "VA 1 t-1\r\n2"),
    ] {
        client.ask(line, answer);
    }
}
