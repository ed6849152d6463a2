//! The parser alone: no bytes make it panic, and its result does not depend on the pieces in which they arrive.

use portcullis_memcached::protocol::{Command, Limits, Need, Parser, Reply, Request};
use proptest::prelude::*;

const LIMITS: Limits = Limits { item_bytes: 4096, get_bytes: 8192, headroom: 32 };

/// All commands in bytes that arrive in these pieces, with all keys of a `get` at once.
fn commands<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<Command> {
    commands_of(pieces, usize::MAX)
}

/// All commands in bytes that arrive in these pieces, with up to `keys_max` keys of a `get` at a time.
fn commands_of<'a>(pieces: impl IntoIterator<Item = &'a [u8]>, keys_max: usize) -> Vec<Command> {
    let mut parser = Parser::new(LIMITS);
    let mut commands = Vec::new();
    for mut piece in pieces {
        while let Some(command) = parser.take(&mut piece, keys_max) {
            let ends = command == Command::Quit;
            commands.push(command);
            if ends {
                return commands;
            }
        }
        assert!(piece.is_empty(), "a parser that waits has taken all");
    }
    commands
}

fn line() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![
        prop::sample::select(vec![
            "get",
            "gets",
            "gat",
            "set",
            "add",
            "cas",
            "incr",
            "delete",
            "touch",
            "mg",
            "ms",
            "md",
            "ma",
            "me",
            "flush_all",
            "stats",
            "noreply",
            "a",
            "b",
            "0",
            "3",
            "-1",
            "2592001",
            "v",
            "q",
            "T30",
            "C7",
            "ME",
        ])
        .prop_map(|word| word.as_bytes().to_vec()),
        prop::collection::vec(any::<u8>(), 1..300),
    ];
    prop::collection::vec(word, 1..9).prop_map(|words| [&words.join(&b' ')[..], b"\r\n"].concat())
}

fn stream() -> impl Strategy<Value = Vec<u8>> {
    let stored = ("[a-z]{1,8}", prop::collection::vec(any::<u8>(), 0..200), any::<bool>()).prop_map(
        |(key, value, is_meta)| {
            let head = match is_meta {
                true => format!("ms {key} {} T30\r\n", value.len()),
                false => format!("set {key} 5 0 {}\r\n", value.len()),
            };
            [head.as_bytes(), &value, b"\r\n"].concat()
        },
    );
    let part = prop_oneof![line(), stored, prop::collection::vec(any::<u8>(), 0..60)];
    prop::collection::vec(part, 0..8).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn the_pieces_in_which_bytes_come_make_no_difference(
        bytes in stream(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let pieces = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]);
        let whole = commands([&bytes[..]]);
        prop_assert_eq!(&commands(pieces), &whole);
        prop_assert_eq!(commands(bytes.chunks(1)), whole);
    }

    #[test]
    fn every_command_is_answered_without_a_panic(bytes in stream()) {
        for command in commands([&bytes[..]]) {
            if let Command::Say(reply) = command {
                let mut out = Vec::new();
                reply.encode(&mut out);
                prop_assert!(out.is_empty() || out.ends_with(b"\r\n"));
            }
        }
    }

    #[test]
    fn a_value_reaches_its_command_as_it_is(value in prop::collection::vec(any::<u8>(), 0..2000)) {
        let bytes = [format!("set k 7 60 {}\r\n", value.len()).as_bytes(), &value, b"\r\n"].concat();
        let [Command::Request(Request::Store(store))] = &commands([&bytes[..]])[..] else {
            panic!("a store");
        };
        prop_assert_eq!(store.data.value(), &value[..]);
        prop_assert_eq!(store.data.headroom, LIMITS.headroom);
        prop_assert_eq!((store.flags, store.expiry.0), (7, 60));
    }
}

#[test]
fn a_line_without_end_ends_the_connection_unless_it_is_a_get() {
    assert_eq!(commands([&[b'x'; 3000][..]]), [Command::Quit]);
    let long = [b"get ".to_vec(), b"a ".repeat(2000)].concat();
    assert_eq!(commands([&long[..]]), []);
    let longer = [b"get ".to_vec(), b"a ".repeat(6000)].concat();
    assert_eq!(commands([&longer[..]]), [Command::Quit]);
}

#[test]
fn the_value_of_a_wrong_command_is_no_command() {
    let bytes = [b"set k 0 0 5000\r\n", &[b'x'; 5000][..], b"\r\nmn\r\n"].concat();
    let [Command::Say(said), Command::Request(Request::Discard(key)), Command::Say(Reply::Text("MN"))] =
        &commands([&bytes[..]])[..]
    else {
        panic!("three commands");
    };
    assert_eq!(*said, Reply::Text("SERVER_ERROR object too large for cache"));
    assert_eq!(&key[..], b"k");
}

/// Separate keys would take many times the bytes of a line of short ones.
#[test]
fn the_keys_of_a_line_are_cut_off_as_they_are_asked_for_and_take_no_more_than_the_line() {
    const LINE: usize = 1 << 20;
    let limits = Limits { get_bytes: LINE, ..LIMITS };
    let mut parser = Parser::new(limits);
    let line = [b"get ".to_vec(), b"k ".repeat((LINE - 8) / 2), b"\r\n".to_vec()].concat();
    let mut taken = 0;
    for piece in line.chunks(50_000) {
        let mut input = piece;
        while let Some(command) = parser.take(&mut input, 20) {
            let Command::Request(Request::Get(get)) = command else { panic!("a part of a get") };
            assert!((1..=20).contains(&get.keys.len()));
            taken += get.keys.len();
            assert_eq!(get.ends, taken == (LINE - 8) / 2);
            assert_eq!(parser.has_command(), !get.ends);
        }
        if let Need::Line(bytes) = parser.need() {
            assert!(bytes <= LINE + LINE / 8, "{bytes} bytes for a line of {LINE}");
        }
    }
    assert_eq!((taken, parser.need()), ((LINE - 8) / 2, Need::Little));
}

proptest! {
    #[test]
    fn the_parts_of_a_get_have_its_keys_in_their_order(
        keys in prop::collection::vec("[a-z]{1,5}", 1..50),
        spaces in 1usize..4,
        most in 1usize..60,
    ) {
        let line = format!("get {}{}\r\nmn\r\n", keys.join(&" ".repeat(spaces)), " ".repeat(spaces - 1));
        let mut parts = commands_of([line.as_bytes()], most);
        prop_assert_eq!(parts.pop(), Some(Command::Say(Reply::Text("MN"))));
        let mut cut = Vec::new();
        let count = parts.len();
        for (number, part) in parts.into_iter().enumerate() {
            let Command::Request(Request::Get(get)) = part else { panic!("a part of a get") };
            prop_assert_eq!(get.ends, number + 1 == count);
            prop_assert!(get.keys.len() <= most);
            cut.extend(get.keys.into_iter().map(|key| String::from_utf8(key.into_vec()).expect("letters")));
        }
        prop_assert_eq!(cut, keys);
    }
}
