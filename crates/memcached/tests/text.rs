//! The text protocol over sockets.

use crate::rig::{Client, Node, counter, until};

#[test]
fn a_value_is_stored_and_got_with_its_flags() {
    let node = Node::new();
    let gateway = node.gateway();
    let mut client = Client::new(&gateway);
    client.ask("get a", "END");
    client.send("set a 4294967295 0 5\r\nhello\r\n");
    client.expect("STORED\r\n");
    client.ask("get a b", "VALUE a 4294967295 5\r\nhello\r\nEND");
    client.send("set b 0 0 0\r\n\r\n");
    client.expect("STORED\r\n");
    client.ask("get b missing a", "VALUE b 0 0\r\n\r\nVALUE a 4294967295 5\r\nhello\r\nEND");
    client.ask("delete a", "DELETED");
    client.ask("delete a", "NOT_FOUND");
    client.ask("get a", "END");
    assert_eq!(counter(&gateway, "curr_items"), 1);
}

#[test]
fn each_way_of_storing_keeps_its_condition() {
    let node = Node::new();
    let gateway = node.gateway();
    let mut client = Client::new(&gateway);
    for (line, answer) in [
        ("replace a 0 0 1\r\n1", "NOT_STORED"),
        ("append a 0 0 1\r\n1", "NOT_STORED"),
        ("prepend a 0 0 1\r\n1", "NOT_STORED"),
        ("cas a 0 0 1 5\r\n1", "NOT_FOUND"),
        ("add a 3 0 2\r\nbc", "STORED"),
        ("add a 0 0 1\r\n1", "NOT_STORED"),
        ("append a 0 0 2\r\nde", "STORED"),
        ("prepend a 0 0 1\r\na", "STORED"),
        ("get a", "VALUE a 3 5\r\nabcde\r\nEND"),
        ("replace a 0 0 1\r\n1", "STORED"),
        ("cas a 0 0 1 5\r\n2", "EXISTS"),
        ("get a", "VALUE a 0 1\r\n1\r\nEND"),
    ] {
        client.ask(line, answer);
    }
}

#[test]
fn a_unique_number_lets_one_change_through() {
    let node = Node::new();
    let gateway = node.gateway();
    let mut client = Client::new(&gateway);
    client.set("a", b"1");
    let number = |client: &mut Client| {
        client.send("gets a\r\n");
        let line = client.line();
        let number = line.rsplit(' ').next().expect("a word").to_owned();
        client.line();
        client.line();
        number
    };
    let first = number(&mut client);
    assert_eq!(number(&mut client), first, "a look changes nothing");
    client.ask(&format!("cas a 0 0 1 {first}\r\n2"), "STORED");
    client.ask(&format!("cas a 0 0 1 {first}\r\n3"), "EXISTS");
    assert_ne!(number(&mut client), first);
    client.ask("get a", "VALUE a 0 1\r\n2\r\nEND");
    assert_eq!((counter(&gateway, "cas_hits"), counter(&gateway, "cas_badval")), (1, 1));
}

#[test]
fn numbers_go_up_and_down() {
    let node = Node::new();
    let gateway = node.gateway();
    let mut client = Client::new(&gateway);
    client.ask("incr n 1", "NOT_FOUND");
    client.set("n", b"10");
    client.ask("incr n 5", "15");
    client.ask("decr n 6", "9");
    client.ask("get n", "VALUE n 0 2\r\n9 \r\nEND");
    client.ask("decr n 100", "0");
    client.set("n", b"18446744073709551615");
    client.ask("incr n 2", "1");
    client.ask("incr n x", "CLIENT_ERROR invalid numeric delta argument");
    client.set("n", b"ten");
    client.ask("incr n 1", "CLIENT_ERROR cannot increment or decrement non-numeric value");
}

#[test]
fn many_clients_count_together_without_losing_one() {
    const EACH: usize = 100;
    const CLIENTS: usize = 8;
    let node = Node::new();
    let gateway = node.gateway();
    Client::new(&gateway).set("n", b"0");
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut client = Client::new(&gateway);
                client.send("incr n 1\r\n".repeat(EACH));
                (0..EACH).for_each(|_| assert!(client.line().parse::<u64>().is_ok()));
            });
        }
    });
    let total = (EACH * CLIENTS).to_string();
    Client::new(&gateway).expect_value("n", total.as_bytes());
}

#[test]
fn items_go_when_their_time_has_come() {
    let node = Node::new();
    let gateway = node.gateway();
    let mut client = Client::new(&gateway);
    client.ask("set short 0 1 1\r\n1", "STORED");
    client.ask("set gone 0 -1 1\r\n1", "STORED");
    client.ask("set past 0 2592001 1\r\n1", "STORED");
    client.ask("set long 0 100 1\r\n1", "STORED");
    client.ask("set touched 0 1 1\r\n1", "STORED");
    client.ask("set got 0 1 1\r\n1", "STORED");
    client.ask("touch touched 100", "TOUCHED");
    client.ask("touch missing 100", "NOT_FOUND");
    client.ask("gat 100 got missing", "VALUE got 0 1\r\n1\r\nEND");
    client.ask("get gone past", "END");
    until("the end of a second", || !client.has("short"));
    client.ask("add short 0 0 1\r\n2", "STORED");
    client.ask(
        "get long touched got",
        "VALUE long 0 1\r\n1\r\nVALUE touched 0 1\r\n1\r\nVALUE got 0 1\r\n1\r\nEND",
    );
}

/// Clients write -1 as 4294967295, and dates after 2038 are as large. Memcached reads times into 32 bits with a sign.
#[test]
fn times_of_any_size_are_read_as_memcached_reads_them() {
    let node = Node::new();
    let gateway = node.gateway();
    let mut client = Client::new(&gateway);
    let over = ["-1", "-2147483648", "2147483648", "4294967295", "9223372036854775807"];
    let live =
        ["0", "+5", "100", "007", "2147483647", "-2147483649", "4294967296", "-9223372036854775808", "9\tx"];
    for (time, lives) in over.map(|time| (time, false)).into_iter().chain(live.map(|time| (time, true))) {
        let here = |there| if lives { there } else { "END" };
        let meta = |there: &'static str| if lives { there } else { "EN" };
        client.ask(&format!("set a 0 {time} 1\r\n1"), "STORED");
        client.ask("get a", here("VALUE a 0 1\r\n1\r\nEND"));
        client.ask("md a q\r\nmn", if lives { "MN" } else { "NF\r\nMN" });
        client.ask(&format!("add a 0 {time} 1\r\n1"), "STORED");
        client.ask(&format!("replace a 0 {time} 1\r\n2"), if lives { "STORED" } else { "NOT_STORED" });
        client.ask("set a 0 0 1\r\n1", "STORED");
        client.ask(&format!("append a 0 {time} 1\r\n2"), "STORED");
        client.ask(&format!("touch a {time}"), "TOUCHED");
        client.ask("mg a v", meta("VA 2\r\n12"));
        client.ask("set a 0 0 1\r\n1", "STORED");
        client.ask(&format!("gat {time} a"), "VALUE a 0 1\r\n1\r\nEND");
        client.ask("get a", here("VALUE a 0 1\r\n1\r\nEND"));
        client.ask(&format!("ms a 1 T{time}\r\n1"), "HD");
        client.ask("mg a v", meta("VA 1\r\n1"));
        client.ask("ms a 1\r\n1", "HD");
        client.ask(&format!("mg a T{time}"), "HD");
        client.ask("mg a", meta("HD"));
        client.ask("ms a 1\r\n1", "HD");
        client.ask(&format!("ma a T{time}"), "HD");
        client.ask("mg a", meta("HD"));
        client.ask(&format!("mg n N{time}"), "HD W");
        client.ask("md n", if lives { "HD" } else { "NF" });
        client.ask("ms a 1 T100\r\n1", "HD");
        client.ask(
            &format!("mg a R{time}"),
            if time == "2147483647" || time == "-2147483649" { "HD W" } else { "HD" },
        );
    }
}

#[test]
fn what_is_no_time_is_refused_as_memcached_refuses_it() {
    let node = Node::new();
    let gateway = node.gateway();
    let mut client = Client::new(&gateway);
    let (bad_line, bad_time) =
        ("CLIENT_ERROR bad command line format", "CLIENT_ERROR invalid exptime argument");
    for wrong in [
        "x",
        "1x",
        "--1",
        "0x10",
        "1e5",
        "9223372036854775808",
        "-9223372036854775809",
        "99999999999999999999",
    ] {
        // Memcached interprets the value as a command of its own.
        for store in ["set", "add", "replace", "append", "prepend"] {
            client.ask(&format!("{store} a 0 {wrong} 2\r\nmn"), &format!("{bad_line}\r\nMN"));
        }
        client.ask(&format!("cas a 0 {wrong} 2 5\r\nmn"), &format!("{bad_line}\r\nMN"));
        client.ask(&format!("touch a {wrong}"), bad_time);
        client.ask(&format!("gat {wrong} a"), bad_time);
        client.ask(&format!("gats {wrong} a"), bad_time);
        client.ask(&format!("flush_all {wrong}"), bad_time);
        // The value of a meta command is skipped.
        client.ask(&format!("ms a 2 T{wrong}\r\nmn"), "CLIENT_ERROR bad token in command line format");
        client.ask(&format!("mg a T{wrong}"), "CLIENT_ERROR bad token in command line format");
        client.ask(&format!("mg a N{wrong}"), "CLIENT_ERROR bad token in command line format");
        client.ask(&format!("mg a R{wrong}"), "CLIENT_ERROR bad token in command line format");
        client.ask(&format!("ma a T{wrong}"), "CLIENT_ERROR invalid or duplicate flag");
        client.ask("mn", "MN");
    }
}

#[test]
fn a_flush_takes_what_was_there_and_nothing_that_comes_after() {
    let node = Node::new();
    let gateway = node.gateway();
    let mut client = Client::new(&gateway);
    client.send("set a 0 0 1\r\n1\r\nset b 0 0 1\r\n1\r\nflush_all\r\nset b 0 0 1\r\n2\r\nget a b\r\n");
    client.expect("STORED\r\nSTORED\r\nOK\r\nSTORED\r\nVALUE b 0 1\r\n2\r\nEND\r\n");
    for (line, answer) in [
        ("touch a 10", "NOT_FOUND"),
        ("incr a 1", "NOT_FOUND"),
        ("append a 0 0 1\r\n1", "NOT_STORED"),
        ("replace a 0 0 1\r\n1", "NOT_STORED"),
        ("delete a", "NOT_FOUND"),
        ("add a 0 0 1\r\n3", "STORED"),
        ("get a", "VALUE a 0 1\r\n3\r\nEND"),
    ] {
        client.ask(line, answer);
    }
}

#[test]
fn a_delayed_flush_counts_whole_seconds() {
    let node = Node::new();
    let gateway = node.gateway();
    let mut client = Client::new(&gateway);
    client.set("a", b"1");
    client.send("flush_all 1\r\nget a\r\n");
    client.expect("OK\r\nEND\r\n");
    until("what is stored in a later second stays", || {
        client.set("a", b"2");
        client.has("a")
    });
    client.ask("flush_all 2", "OK");
    until("the second before the flush begins", || !client.has("a"));
    client.send("flush_all 100\r\nflush_all\r\nset a 0 0 1\r\n3\r\nget a\r\n");
    client.expect("OK\r\nOK\r\nSTORED\r\nVALUE a 0 1\r\n3\r\nEND\r\n");
}

#[test]
fn who_wants_no_answer_gets_none() {
    let node = Node::new();
    let gateway = node.gateway();
    let mut client = Client::new(&gateway);
    client.send(
        "set a 0 0 1 noreply\r\n1\r\nadd a 0 0 1 noreply\r\n2\r\nincr a 4 noreply\r\nappend a 0 0 1 noreply\r\n7\r\n\
         touch a 10 noreply\r\nreplace b 0 0 1 noreply\r\n1\r\ndelete b noreply\r\nverbosity 1 noreply\r\n\
         flush_all 100 noreply\r\nget a\r\n",
    );
    client.expect("VALUE a 0 2\r\n57\r\nEND\r\n");
}

#[test]
fn answers_come_in_the_order_of_the_commands() {
    let node = Node::new();
    let gateway = node.gateway();
    let mut client = Client::new(&gateway);
    let (mut sent, mut expected) = (String::new(), String::new());
    for number in 0..200 {
        let key = number % 7;
        sent += &format!("set k{key} 0 0 3\r\n{number:03}\r\nget k{key} none\r\nbad\r\n");
        expected += &format!("STORED\r\nVALUE k{key} 0 3\r\n{number:03}\r\nEND\r\nERROR\r\n");
    }
    client.send(sent);
    client.expect(expected);
}

#[test]
fn a_get_may_have_more_keys_than_one_round_takes() {
    let node = Node::new();
    let gateway = node.gateway();
    let mut client = Client::new(&gateway);
    let (mut sent, mut expected) = ("get".to_owned(), String::new());
    for number in 0..500 {
        if number % 2 == 0 {
            client.set(&format!("k{number}"), number.to_string().as_bytes());
            let text = number.to_string();
            expected += &format!("VALUE k{number} 0 {}\r\n{text}\r\n", text.len());
        }
        sent += &format!(" k{number}");
    }
    client.send(format!("{sent}\r\nmn\r\n"));
    client.expect(format!("{expected}END\r\nMN\r\n"));
}

#[test]
fn bad_lines_get_memcacheds_answers() {
    let node = Node::new();
    let gateway = node.gateway();
    let mut client = Client::new(&gateway);
    let bad_line = "CLIENT_ERROR bad command line format";
    for (line, answer) in [
        ("", "ERROR"),
        ("nonsense", "ERROR"),
        ("get", "ERROR"),
        ("set a 0 0", "ERROR"),
        ("set a x 0 1", bad_line),
        ("set a 0 0 -1", bad_line),
        ("set a 0 0 2147483647", bad_line),
        ("touch a x", "CLIENT_ERROR invalid exptime argument"),
        ("gat x a", "CLIENT_ERROR invalid exptime argument"),
        ("delete a 5", "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]"),
        ("flush_all x", "CLIENT_ERROR invalid exptime argument"),
        ("shutdown", "ERROR: shutdown not enabled"),
        ("verbosity 1", "OK"),
        ("set a 0 0 3\r\nabcd", "CLIENT_ERROR bad data chunk\r\nERROR"),
        ("mn", "MN"),
    ] {
        client.ask(line, answer);
    }
    client.send("version\r\n");
    assert!(client.line().starts_with("VERSION 1."));
}

#[test]
fn statistics_count_what_was_done() {
    let node = Node::new();
    let gateway = node.gateway();
    let mut client = Client::new(&gateway);
    client.set("a", b"1");
    client.ask("get a b", "VALUE a 0 1\r\n1\r\nEND");
    client.send("stats\r\n");
    let mut rows = Vec::new();
    while rows.last().is_none_or(|row| row != "END") {
        rows.push(client.line());
    }
    for row in ["cmd_get 2", "get_hits 1", "get_misses 1", "cmd_set 1", "curr_items 1", "curr_connections 1"]
    {
        assert!(rows.contains(&format!("STAT {row}")), "{row} in {rows:?}");
    }
    client.ask("stats reset", "RESET");
    assert_eq!(counter(&gateway, "cmd_get"), 0);
    client.ask("stats nonsense", "ERROR");
}

#[test]
fn quit_ends_the_connection_and_so_does_a_browser() {
    let node = Node::new();
    let gateway = node.gateway();
    for last in ["quit\r\nget a\r\n", "GET / HTTP/1.1\r\n", "\u{80}binary"] {
        let mut client = Client::new(&gateway);
        client.ask("mn", "MN");
        client.send(last.replace('\u{80}', ""));
        if last.starts_with('\u{80}') {
            drop(client);
            client = Client::new(&gateway);
            client.send(b"\x80\x00\x00\x00");
        }
        client.expect_end("");
    }
}

fn rows(client: &mut Client, command: &str) -> Vec<String> {
    client.send(format!("{command}\r\n"));
    let mut rows = Vec::new();
    while rows.last().is_none_or(|row| row != "END") {
        rows.push(client.line());
    }
    rows
}

#[test]
fn statistics_have_what_exporters_read() {
    let node = Node::new();
    let gateway = node.gateway();
    let mut client = Client::new(&gateway);
    client.ask("stats items", "END");
    for number in 0..5 {
        client.set(&format!("small{number}"), b"1");
    }
    client.set("large", &[b'x'; 100_000]);
    client.expect_value("large", &[b'x'; 100_000]);
    let items = rows(&mut client, "stats items");
    let numbers: Vec<_> = items.iter().filter(|row| row.contains(":number ")).collect();
    assert!(numbers.len() == 2 && numbers[0].ends_with(" 5") && numbers[1].ends_with(" 1"), "{items:?}");
    let slabs = rows(&mut client, "stats slabs");
    for name in ["chunk_size", "total_pages", "used_chunks", "cmd_set", "cas_hits", "cas_badval", "get_hits"]
    {
        assert_eq!(slabs.iter().filter(|row| row.contains(&format!(":{name} "))).count(), 2, "{name}");
    }
    assert!(slabs.iter().any(|row| row.ends_with(":cmd_set 5")), "{slabs:?}");
    assert!(slabs.iter().any(|row| row.ends_with(":get_hits 1")), "{slabs:?}");
    assert!(slabs.contains(&"STAT active_slabs 2".to_owned()));
    let general = rows(&mut client, "stats");
    assert!(general.contains(&"STAT limit_maxbytes 0".to_owned()), "no limit is met yet");
    let settings = rows(&mut client, "stats settings");
    for name in ["maxbytes", "maxconns", "tcpport", "domain_socket", "item_size_max", "request_bytes_max"] {
        assert!(settings.iter().any(|row| row.starts_with(&format!("STAT {name} "))), "{name}");
    }
    client.ask("stats sizes", "STAT sizes_status disabled\r\nEND");
}

#[test]
fn a_dump_has_each_item_once_in_a_line_whatever_its_key_is() {
    const ITEMS: usize = 500;
    let node = Node::new();
    let gateway = node.gateway();
    let mut client = Client::new(&gateway);
    for number in 0..ITEMS {
        client.set(&format!("k{number}"), b"1");
    }
    client.ask("ms AAEgCg== 2 b T100\r\nhi", "HD");
    client.ask("set gone 0 -1 1\r\n1", "STORED");
    client.send("lru_crawler metadump all\r\nmn\r\n");
    let mut dumped = String::new();
    while !dumped.ends_with("END\r\n") {
        dumped += &client.line_to(b'\n');
    }
    let mut keys: Vec<&str> = dumped.lines().filter_map(|line| line.strip_prefix("key=")).collect();
    assert!(
        keys.iter().all(|line| line.contains(" exp=") && line.contains(" la=") && line.contains(" cls="))
    );
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), ITEMS + 1, "{dumped}");
    assert!(
        keys.iter()
            .any(|line| line.starts_with("%00%01%20%0A exp=1") || line.starts_with("%00%01%20%0A exp=2"))
    );
    client.expect("MN\r\n");
    client.send("lru_crawler mgdump hash\r\n");
    let mut commands = Vec::new();
    while commands.last().is_none_or(|line| line != "EN") {
        commands.push(client.line());
    }
    assert!(commands.len() == ITEMS + 2 && commands.contains(&"mg AAEgCg== b".to_owned()));
    client.ask("lru_crawler metadump x", "BADCLASS invalid class id");
    client.ask("lru_crawler", "ERROR");
}
