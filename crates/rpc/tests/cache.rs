//! The example `cache`, used by honest clients and by hostile ones.

#[path = "../examples/cache/cache.rs"]
mod cache;
#[path = "../examples/cache/client.rs"]
mod client;
#[path = "../../../lab/program/src/bench/ycsb/workload.rs"]
mod workload;
#[path = "../examples/cache/ycsb.rs"]
mod ycsb;

use cache::{GET, KEY_BYTES_MAX, SET, TOO_LONG, VALUE_BYTES_MAX};
use clap::ValueEnum;
use client::Client;
use portcullis_rpc::Boxed;
use portcullis_rpc::channel::{CallError, Connection, Server, ServerOptions};
use std::path::PathBuf;
use workload::Workload;
use ycsb::{BoxError, Cache, Loaded};

struct Rig {
    path: PathBuf,
    _server: Server,
    _folder: tempfile::TempDir,
}

impl Rig {
    fn new(bytes_max: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cache.sock");
        let _server = cache::start(&path, bytes_max, ServerOptions::default()).unwrap();
        Self { path, _server, _folder: folder }
    }

    fn client(&self) -> Client {
        Client::open(&self.path).unwrap()
    }
}

#[test]
fn every_workload_reads_what_was_set_last() {
    let rig = Rig::new(1 << 30);
    let mut client = rig.client();
    let (mut keys, mut operations) = (0, 0);
    let mut loaded = Loaded::new(&mut client, 500, |more| keys += more).unwrap();
    for workload in Workload::value_variants() {
        let report = loaded.run(&mut client, *workload, 1000, |more| operations += more).unwrap();
        assert_eq!((report.operations, report.workload), (1000, workload.text()));
    }
    assert_eq!((keys, operations), (500, 1000 * Workload::value_variants().len() as u64));
    loaded.delete(&mut client).unwrap();
}

#[test]
fn what_was_not_used_for_longest_goes_first() {
    let rig = Rig::new(100 << 10);
    let mut client = rig.client();
    client.set(b"used", b"often").unwrap();
    for number in 0..1000_u32 {
        client.set(&number.to_le_bytes(), &[7; 1000]).unwrap();
        assert_eq!(client.get(b"used").unwrap().as_deref(), Some(&b"often"[..]));
    }
    let kept = (0..1000_u32).filter(|number| client.get(&number.to_le_bytes()).unwrap().is_some());
    let kept: Vec<u32> = kept.collect();
    // The newest values are kept, as many as there is room for.
    assert_eq!(kept, (1000 - u32::try_from(kept.len()).unwrap()..1000).collect::<Vec<_>>());
    assert!((80..=100).contains(&kept.len()), "{}", kept.len());
}

fn number(error: &BoxError) -> Option<u32> {
    match error.downcast_ref::<CallError>()? {
        CallError::Failed { number, .. } => Some(*number),
        _ => None,
    }
}

#[test]
fn what_is_too_long_or_leads_nowhere_is_refused_and_nothing_else_is_harmed() {
    let rig = Rig::new(1 << 30);
    let mut honest = rig.client();
    honest.set(b"key", b"value").unwrap();
    let length = |bytes: u64| vec![1; usize::try_from(bytes).unwrap()];
    let (longest_key, longest_value) = (length(KEY_BYTES_MAX), length(VALUE_BYTES_MAX));
    honest.set(&longest_key, &longest_value).unwrap();
    assert_eq!(honest.get(&longest_key).unwrap(), Some(longest_value));
    for (key, value) in [(KEY_BYTES_MAX + 1, 1), (1, VALUE_BYTES_MAX + 1)] {
        let error = honest.set(&length(key), &length(value)).unwrap_err();
        assert_eq!(number(&error), Some(TOO_LONG), "{error}");
    }
    let mut connection = Connection::open(&rig.path).unwrap();
    let scope = connection.scope(4096).unwrap();
    // The words are a key and a value, each with its length and a capacity.
    for words in [[8, 1, 1, 0, 0, 0], [scope.address(), u64::MAX, 1, 0, 0, 0], [0, 0, 0, u64::MAX, 8, 8]] {
        let entry = Boxed::new(&scope, words).unwrap();
        let set = connection.call(SET, &scope, entry);
        assert!(matches!(set, Err(CallError::WildPointer(_))), "{words:x?}: {set:?}");
    }
    let wild = connection.call(GET, &scope, Boxed::<u64>::at(scope.address() + 4096));
    assert!(matches!(wild, Err(CallError::WildPointer(_))));
    assert_eq!(honest.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
}
