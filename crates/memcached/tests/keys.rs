//! Keys that contain the ends of words or lines: each answer is one answer.

use crate::rig::{Client, Node};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Keys whose bytes would be answers, commands, or ends of lines.
const HOSTILE: [&[u8]; 7] =
    [b"\r\n", b"a\r\nHD\r\n", b"x\r\nVALUE stolen 0 1\r\n1\r\nEND\r\n", b"\n", b" ", b"\0", b"k O1 t-1"];

#[test]
fn no_meta_command_writes_a_key_that_splits_its_answer() {
    let node = Node::new();
    let gateway = node.gateway();
    let mut client = Client::new(&gateway);
    for key in HOSTILE {
        let text = STANDARD.encode(key);
        for (line, answer) in [
            ("mg KEY b k O7", "EN kKEY b O7"),
            ("ms KEY 1 b k O7\r\n1", "HD kKEY b O7"),
            ("ms KEY 1 b k ME\r\n1", "NS kKEY b"),
            ("ms KEY 1 b k C1\r\n1", "EX kKEY b"),
            ("mg KEY b k v O7", "VA 1 kKEY b O7\r\n1"),
            ("ma KEY b k v O7", "VA 1 kKEY b O7\r\n2"),
            ("ma KEY b k C1", "EX kKEY b"),
            ("md KEY b k I O7", "HD kKEY b O7"),
            ("mg KEY b k", "HD kKEY b X W"),
            ("md KEY b k O7", "HD kKEY b O7"),
            ("md KEY b k", "NF kKEY b"),
            ("ma KEY b k", "NF kKEY b"),
            ("mg KEY b k N30", "HD kKEY b W"),
            ("me NONE b", "EN"),
        ] {
            client.ask(&line.replace("KEY", &text), &answer.replace("KEY", &text));
        }
        client.send(format!("me {text} b\r\nmn\r\n"));
        let line = client.line();
        assert!(line.starts_with(&format!("ME {text} exp=")) && line.contains(" cls="), "{line}");
        assert_eq!(client.line(), "MN", "one line is the whole answer");
    }
}

#[test]
fn a_key_with_a_carriage_return_in_it_is_a_word_as_in_memcached() {
    let node = Node::new();
    let gateway = node.gateway();
    let mut client = Client::new(&gateway);
    client.ask("set a\rb 0 0 1\r\n1", "STORED");
    client.ask("get a\rb", "VALUE a\rb 0 1\r\n1\r\nEND");
    client.ask("mg a\rb k v", "VA 1 ka\rb\r\n1");
}
