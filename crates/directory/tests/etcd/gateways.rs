//! A peer that is not etcd, or data in etcd that this crate has not written: errors, in bounded time.

use crate::promises::{entry, lease, name, next, space, tenant};
use crate::rig::{self, Server};
use portcullis_directory::etcd::{Etcd, EtcdOptions};
use portcullis_directory::{Access, Directory};
use portcullis_errors::{Coded, ErrorCode};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;

/// Answers the first request with these bytes, and then sends the last of them as long as the client accepts them.
/// `None`: sends nothing more.
fn answer(mut client: TcpStream, first: &str, then: Option<&[u8]>) {
    let mut request = [0; 4096];
    let _ = client.read(&mut request);
    let _ = client.write_all(first.as_bytes());
    match then {
        Some([]) => {
            let _ = client.shutdown(Shutdown::Write);
        }
        Some(more) => while client.write_all(more).is_ok() {},
        None => {}
    }
    // Waits until the client closes the connection.
    while client.read(&mut request).is_ok_and(|bytes| bytes > 0) {}
}

#[test]
fn what_is_not_etcd_is_an_error_in_time() {
    let ok = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n";
    let with = |body: &str| format!("{ok}Content-Length: {}\r\n\r\n{body}", body.len());
    let away = ErrorCode::DirectoryAway;
    let nonsense = ErrorCode::DirectoryNonsense;
    let cases: [(String, Option<&[u8]>, ErrorCode); 11] = [
        (String::new(), Some(b""), away),
        (String::new(), None, away),
        ("SSH-2.0-OpenSSH_9.2\r\n".to_owned(), Some(b""), away),
        (format!("{ok}Content-Length: 100\r\n\r\n{{"), Some(b""), away),
        (format!("{ok}Content-Length: 100\r\n\r\n{{"), None, away),
        (format!("{ok}\r\n{{"), Some(&[b' '; 65536]), away),
        (with("hello"), Some(b""), nonsense),
        (with(r#"{"header":{"revision":"x"}}"#), Some(b""), nonsense),
        (with(r#"{"header":{"revision":"99999999999999999999"}}"#), Some(b""), nonsense),
        ("HTTP/1.1 502 Bad Gateway\r\nContent-Length: 2\r\n\r\nno".to_owned(), Some(b""), away),
        (
            "HTTP/1.1 403 Forbidden\r\nContent-Length: 40\r\n\r\n{\"code\":7,\"message\":\"permission denied\"} ".to_owned(),
            Some(b""),
            ErrorCode::DirectoryRefused,
        ),
    ];
    for (first, then, code) in cases {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("it is bound");
        let told = std::thread::scope(|scope| {
            scope.spawn(|| answer(listener.accept().expect("it comes").0, &first, then));
            let patience = Duration::from_millis(500);
            let options = EtcdOptions { patience, ..EtcdOptions::new(format!("http://{at}")) };
            Etcd::connect(&options, space()).expect_err("it is no etcd")
        });
        assert_eq!(told.code(), code, "{first:?}: {told}");
    }
}

/// Data stored in etcd was not always written by this crate.
#[test]
fn nonsense_in_etcd_is_an_error() {
    let Some(server) = rig::shared() else { return };
    let etcd = Etcd::connect(&server.options("nonsense"), space()).expect("etcd serves");
    let bank = lease(&etcd, "bank");
    let good = r#"{"tenant":"bank","target":{"channel":{"address":"a"}},"look_up":"everybody","register":"everybody"}"#;
    let entries = [
        "",
        "{",
        "[]",
        good,
        r#"{"tenant":"","target":{"channel":{"address":"a"}},"look_up":"everybody","register":"everybody"}"#,
        r#"{"tenant":"a","target":{"spoon":{}},"look_up":"everybody","register":"everybody"}"#,
        r#"{"tenant":"a","target":{"object":{"node":"a","object":"?"}},"look_up":"everybody","register":"everybody"}"#,
        r#"{"tenant":"a","target":{"node":{"address":""}},"look_up":{"tenants":["\n"]},"register":"everybody"}"#,
    ];
    etcd.register(&bank, &name("bank/sound"), &entry("b", Access::public())).expect("it is free");
    for stored in entries {
        put(&server, "/nonsense/names/bank/a", stored);
        for told in [
            etcd.look_up(&tenant("bank"), &name("bank/a")).map(|_| ()),
            etcd.register(&bank, &name("bank/a"), &entry("b", Access::public())),
            etcd.watch(&tenant("bank"), &name("bank/a")).map(|_| ()),
        ] {
            let told = told.expect_err("nonsense");
            // Even a valid entry is nonsense without a lease.
            assert_eq!(told.code(), ErrorCode::DirectoryNonsense, "{stored}: {told}");
            assert!(told.to_string().contains("/nonsense/names/bank/a"), "{told}");
        }
        // It hides no other name.
        let listed = etcd.list(&tenant("bank"), &name("bank")).expect("the others");
        assert_eq!(listed.into_keys().collect::<Vec<_>>(), [name("bank/sound")], "{stored}");
    }
    put(&server, "/nonsense/heaps/000000100000zzzz", "?");
    assert_eq!(etcd.reclaim().expect_err("nonsense").code(), ErrorCode::DirectoryNonsense);
    put(&server, "/nonsense/claims/bank/0000000000000001/lease", "");
    assert_eq!(etcd.usage(&bank).expect_err("a claim without a lease").code(), ErrorCode::DirectoryNonsense);
    put(&server, "/nonsense/quota", "{}");
    let told = etcd.open_lease(&tenant("shop"), Duration::from_secs(9)).expect_err("no quota");
    assert_eq!(told.code(), ErrorCode::DirectoryNonsense);
}

/// etcd drops revisions before a compaction: a watch that began before it reports the present value.
#[test]
fn a_watch_outlives_a_compaction() {
    let Some(server) = rig::shared() else { return };
    let etcd = Etcd::connect(&server.options("compaction"), space()).expect("etcd serves");
    let (bank, channel) = (lease(&etcd, "bank"), name("bank/a"));
    let mut watch = etcd.watch(&tenant("bank"), &channel).expect("anybody may look");
    etcd.register(&bank, &channel, &entry("a", Access::public())).expect("free");
    let registration = etcd.look_up(&tenant("bank"), &channel).expect("it is there").registration;
    etcd.withdraw(&bank, &channel).expect("its own");
    etcd.register(&bank, &channel, &entry("b", Access::public())).expect("free");
    let body = format!(r#"{{"revision":"{}"}}"#, registration + 1);
    ureq::post(format!("{}/v3/kv/compaction", server.address())).send(body).expect("etcd serves");
    let found = next(&mut *watch).expect("it is registered");
    assert!(found.registration > registration);
}

fn put(server: &Server, key: &str, value: &str) {
    use base64::Engine;
    let [key, value] = [key, value].map(|text| base64::prelude::BASE64_STANDARD.encode(text));
    let body = format!(r#"{{"key":"{key}","value":"{value}"}}"#);
    ureq::post(format!("{}/v3/kv/put", server.address())).send(body).expect("etcd serves");
}
