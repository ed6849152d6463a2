//! The example `documents`: a store of JSON documents, used by honest clients and by hostile ones.

#[path = "../examples/documents/client.rs"]
mod client;
#[path = "../examples/documents/course.rs"]
mod course;
#[path = "../examples/documents/nobench.rs"]
mod nobench;
#[path = "../examples/documents/query.rs"]
mod query;
#[path = "../examples/documents/store.rs"]
mod store;
#[path = "../examples/documents/value.rs"]
mod value;

use client::{Client, ClientError};
use nobench::Documents;
use portcullis_rpc::channel::{CallError, Connection, Server, ServerOptions};
use portcullis_rpc::{Boxed, Room, Scope};
use proptest::prelude::*;
use query::Query;
use serde_json::{Map, Value as Json, json};
use std::path::PathBuf;
use store::{BROKEN, FIND, NO_SEARCH, PUT};
use value::Value;

struct Rig {
    path: PathBuf,
    _server: Server,
    _folder: tempfile::TempDir,
}

impl Rig {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("documents.sock");
        let _server = store::start(&path, ServerOptions::default()).unwrap();
        Self { path, _server, _folder: folder }
    }

    fn client(&self) -> Client {
        Client::open(&self.path).unwrap()
    }
}

#[test]
fn every_search_finds_what_it_must() {
    let rig = Rig::new();
    let (mut stored, mut searched) = (0, 0);
    let report = course::run(&mut rig.client(), Documents::new(7, 2500), 200, |what, more| match what {
        "documents" => stored += more,
        _ => searched += more,
    });
    let report = report.unwrap();
    assert_eq!((stored, searched, report.documents, report.searches), (2500, 200, 2500, 200));
    // A hundred searches find one document each. The other hundred search for a range of two numbers, among as many
    // numbers as there are documents.
    // documents.
    assert!((200..500).contains(&report.found), "{report:?}");
}

#[test]
fn clients_share_a_store_and_a_document_is_replaced_everywhere() {
    let rig = Rig::new();
    let (mut one, mut other) = (rig.client(), rig.client());
    assert!(!one.put(5, &json!({ "str1": "a", "num": 1 })).unwrap());
    assert!(other.put(5, &json!({ "str1": "b", "num": 2 })).unwrap());
    let found = |client: &mut Client, query: Query| {
        let keys = |found: &client::FoundDocuments<'_>| Ok(found.iter().map(|it| it.unwrap().0).collect());
        let keys: Vec<u64> = client.find(&query, keys).unwrap();
        keys
    };
    assert!(found(&mut one, Query::Text("a".into())).is_empty());
    assert_eq!(found(&mut one, Query::Text("b".into())), [5]);
    assert!(found(&mut one, Query::Between(i64::MIN, 1)).is_empty());
    assert_eq!(found(&mut one, Query::Between(2, i64::MAX)), [5]);
    assert!(found(&mut one, Query::Between(i64::MAX, i64::MIN)).is_empty());
    assert!(one.remove(5).unwrap() && !other.remove(5).unwrap());
    assert!(found(&mut other, Query::Text("b".into())).is_empty());
    assert!(other.get(5).unwrap_err().is_no_document());
}

fn json() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::from),
        any::<i64>().prop_map(Json::from),
        any::<u64>().prop_map(Json::from),
        any::<f64>().prop_map(Json::from),
        any::<String>().prop_map(Json::from),
    ];
    leaf.prop_recursive(6, 200, 20, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..20).prop_map(Json::from),
            prop::collection::btree_map(any::<String>(), inner, 0..20)
                .prop_map(|fields| Json::Object(Map::from_iter(fields))),
        ]
    })
}

#[test]
fn any_document_comes_back_as_it_was() {
    let rig = Rig::new();
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(64));
    let stored = runner.run(&json(), |document| {
        client_round(&rig, &document);
        Ok(())
    });
    stored.unwrap();
    let mut client = rig.client();
    // The document is larger than the scope that a client begins with.
    let large = json!({ "text": "long ".repeat(100_000), "many": vec![json!({ "a": 1 }); 10_000] });
    client.put(1, &large).unwrap();
    assert_eq!(client.get(1).unwrap(), large);
}

fn client_round(rig: &Rig, document: &Json) {
    let mut client = rig.client();
    client.put(0, document).unwrap();
    assert_eq!(client.get(0).unwrap(), *document);
}

/// Writes a malformed document, of the given kind, as a hostile client can.
fn hostile(scope: &Scope, what: u64) -> Boxed<Value> {
    let put = |words: &[u64]| {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let at = scope.reserve(bytes.len() as u64, 8).unwrap();
        scope.put(at, &bytes);
        at
    };
    // The words are kind, number, text and its length, fields, their length and capacity.
    let value = |kind, text: [u64; 2], fields: [u64; 3]| {
        Boxed::at(put(&[kind, 0, text[0], text[1], fields[0], fields[1], fields[2]]))
    };
    let end = scope.address() + scope.length();
    match what {
        0 => value(8, [0; 2], [0; 3]),
        1 => value(u64::MAX, [0; 2], [0; 3]),
        // Texts and fields that lie elsewhere, or are longer than the scope.
        2 => value(5, [end, 1], [0; 3]),
        3 => value(5, [scope.address(), u64::MAX], [0; 3]),
        4 => value(6, [0; 2], [end - 8, 1, 1]),
        5 => value(7, [0; 2], [scope.address(), u64::MAX / 72, 0]),
        6 => value(7, [0; 2], [scope.address(), u64::MAX, u64::MAX]),
        7 => value(6, [0; 2], [scope.address() + 1, 1, 1]),
        // Bytes that are not UTF-8.
        8 => value(5, [put(&[u64::MAX]), 8], [0; 3]),
        // An array that contains itself.
        9 => {
            let item = scope.address() + scope.used();
            put(&[0, 0, 6, 0, 0, 0, item, 1, 1]);
            value(6, [0; 2], [item, 1, 1])
        }
        // Each of these arrays contains the next one twice: few bytes, and more values than any program can read.
        _ => {
            let mut next = [0; 3];
            for _ in 0..100 {
                let item = [0, 0, 6, 0, 0, 0, next[0], next[1], next[2]];
                next = [put(&[item, item].concat()), 2, 2];
            }
            value(6, [0; 2], next)
        }
    }
}

#[test]
fn what_is_no_document_is_refused_and_nothing_else_is_harmed() {
    let rig = Rig::new();
    let mut honest = rig.client();
    let kept = json!({ "str1": "honest", "num": 1 });
    honest.put(1, &kept).unwrap();
    let mut connection = Connection::open(&rig.path).unwrap();
    for what in 0..=10 {
        let scope = connection.scope(64 << 10).unwrap();
        let root = hostile(&scope, what);
        let call = connection.begin(PUT, scope.reference(), root, 1, None).unwrap();
        let error = connection.wait(call).unwrap_err();
        assert!(matches!(error, CallError::Failed { number: BROKEN, .. }), "{what}: {error:?}");
        assert_eq!(honest.get(1).unwrap(), kept);
    }
    // A root that leads nowhere, a search of an unknown kind, and one whose text lies elsewhere.
    let scope = connection.scope(4096).unwrap();
    let words = Boxed::new(&scope, [7_u64, 0, 0, scope.address() + 4096, 8]).unwrap();
    let nowhere = connection.begin(PUT, scope.reference(), Boxed::<Value>::at(8), 1, None).unwrap();
    assert!(matches!(connection.wait(nowhere), Err(CallError::WildPointer(_))));
    let error = connection.call(FIND, &scope, words).unwrap_err();
    assert!(matches!(error, CallError::Failed { number: NO_SEARCH, .. }), "{error:?}");
    connection.heap().set(Boxed::at(words.address()), 0_u64).unwrap();
    assert!(matches!(connection.call(FIND, &scope, words), Err(CallError::WildPointer(_))));
    assert!(matches!(honest.get(2), Err(ClientError::Call(_))));
    assert_eq!(honest.get(1).unwrap(), kept);
}
