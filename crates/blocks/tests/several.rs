//! Blocks on several nodes through a handle that threads share, with nodes that stop, start again, stand still, join
//! and leave.

use crate::rig::{content, key};
use portcullis::host::{Host, HostConfig, Listen};
use portcullis::names::{Directory, Embedded, Name, ScopedAddress, Space, node_holding};
use portcullis::{Lifetime, Names, NodeConfig, SessionOptions};
use portcullis_blocks::spread_store::{
    Bytes, BytesMut, Key, NodeSource, PutEnd, SpreadError, SpreadOptions, SpreadStore,
};
use portcullis_blocks::{BlockError, Got, StoreOptions};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const LENGTH: usize = 50_000;

/// Nodes of this process, each at a socket of its own.
pub struct Cluster {
    folder: TempDir,
    hosts: Vec<Option<Host>>,
}

impl Cluster {
    pub fn new(nodes: usize) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut cluster = Self { folder, hosts: (0..nodes).map(|_| None).collect() };
        (0..nodes).for_each(|node| cluster.start(node));
        cluster
    }

    fn path(&self, node: usize) -> PathBuf {
        self.folder.path().join(format!("node-{node}"))
    }

    fn addresses(&self) -> Vec<String> {
        (0..self.hosts.len()).map(|node| format!("shm:{}", self.path(node).display())).collect()
    }

    /// Starts a node, which has no blocks then.
    fn start(&mut self, node: usize) {
        let listen = vec![Listen { path: self.path(node), tenant: Some("red".to_owned()) }];
        let config = NodeConfig { pool_bytes: 64 << 20, ..NodeConfig::default() };
        let config = HostConfig { node: config, listen, overcommit: true, ..HostConfig::default() };
        self.hosts[node] = Some(Host::start(config).expect("a node starts"));
    }

    fn stop(&mut self, node: usize) {
        self.hosts[node].take().expect("it runs").stop();
    }

    fn host(&self, node: usize) -> &Host {
        self.hosts[node].as_ref().expect("it runs")
    }

    pub fn open(&self, copies: usize) -> SpreadStore {
        SpreadStore::open(NodeSource::Addresses(self.addresses()), options(copies)).expect("a store")
    }
}

fn options(copies: usize) -> SpreadOptions {
    let session = SessionOptions { arena_bytes: 16 << 20, ..SpreadOptions::default().session };
    // On a busy machine, shorter leases end between a look-up and a read.
    let store = StoreOptions { lease: Lifetime::seconds(10), ..StoreOptions::default() };
    SpreadOptions {
        copies,
        session,
        store,
        retried_every: Duration::from_millis(20),
        ..SpreadOptions::default()
    }
}

fn block(number: u32) -> (Key, Bytes) {
    (key(number).into(), Arc::new(content(number, LENGTH)))
}

fn put(store: &SpreadStore, numbers: impl Iterator<Item = u32>) -> Vec<PutEnd> {
    store.put(numbers.map(block).collect())
}

/// Returns for each number whether its block was read. The bytes are those of the block.
fn get(store: &SpreadStore, numbers: impl Iterator<Item = u32>) -> Vec<bool> {
    let numbers: Vec<_> = numbers.collect();
    let wanted = numbers.iter().map(|number| (key(*number).into(), LENGTH)).collect();
    let found = store.get(wanted);
    let is_found = |(number, found): (&u32, &Option<Vec<u8>>)| {
        assert!(found.as_ref().is_none_or(|bytes| *bytes == content(*number, LENGTH)), "other bytes");
        found.is_some()
    };
    numbers.iter().zip(&found).map(is_found).collect()
}

/// Waits until a condition holds.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(30), "{what} never happens");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn reached(store: &SpreadStore) -> usize {
    store.status().iter().filter(|node| node.lost.is_none()).count()
}

/// Returns on how many nodes a block is.
fn copies_of(store: &SpreadStore, number: u32) -> usize {
    let name = key(number);
    let lists = store.list().into_iter().map(|(_, list)| list.unwrap_or_default());
    lists.filter(|list| list.iter().any(|listed| *listed.key == *name)).count()
}

#[test]
fn a_block_with_two_copies_outlives_a_node_and_has_two_again_when_the_node_is_back() {
    let mut cluster = Cluster::new(3);
    let store = cluster.open(2);
    let ends = put(&store, 0..40);
    assert!(ends.iter().all(|end| *end == PutEnd { copies: 2, refusal: None }), "{ends:?}");
    assert!((0..40).all(|number| copies_of(&store, number) == 2));
    for node in 0..3 {
        cluster.stop(node);
        assert_eq!(get(&store, 0..40), [true; 40], "node {node} is lost");
        // Two of the nodes of each key are there.
        let late = put(&store, 100..110);
        assert!(late.iter().all(|end| end.copies == 2), "{late:?}");
        cluster.start(node);
        until("the node is reached again", || reached(&store) == 3);
        assert_eq!(get(&store, 0..40), [true; 40]);
        assert_eq!(get(&store, 100..110), [true; 10]);
        store.settle();
        // A block that was put while its node was lost may have three copies now.
        assert!((0..40).all(|number| copies_of(&store, number) >= 2), "a copy is missing");
        assert!(store.remove((100..110).map(|it| key(it).into()).collect()).iter().all(Result::is_ok));
    }
    store.close();
}

#[test]
fn a_look_up_tells_lengths_and_a_removal_removes_every_copy() {
    let cluster = Cluster::new(3);
    let store = cluster.open(2);
    put(&store, 0..10);
    let names = || (0..20).map(|number| key(number).into()).collect::<Vec<Key>>();
    let expected: Vec<_> = (0..20).map(|number| (number < 10).then_some(LENGTH as u64)).collect();
    assert_eq!(store.look_up(names()), expected);
    let removed = store.remove(names());
    let expected: Vec<_> = (0..20).map(|number| Ok(if number < 10 { 2 } else { 0 })).collect();
    assert_eq!(removed, expected);
    assert_eq!(store.look_up(names()), [None; 20]);
    assert!(store.list().iter().all(|(_, list)| list.as_ref().is_ok_and(Vec::is_empty)));
}

#[test]
fn a_buffer_of_another_length_and_a_key_without_a_block_are_told_apart() {
    // A node that does not have the block is asked as well.
    let cluster = Cluster::new(3);
    let store = cluster.open(1);
    put(&store, 0..1);
    let buffer = |length: usize| Box::new(vec![7_u8; length]) as Box<dyn BytesMut>;
    let wanted =
        vec![(key(0).into(), buffer(LENGTH)), (key(0).into(), buffer(9)), (key(1).into(), buffer(1))];
    let (sender, receiver) = channel();
    store.begin_get(wanted, move |ends| sender.send(ends).expect("the test waits"));
    let ends = receiver.recv().expect("each get ends");
    let got: Vec<_> = ends.iter().map(|end| end.got).collect();
    assert_eq!(got, [Got::Hit, Got::OtherLength(LENGTH as u64), Got::Absent]);
    assert!(ends.iter().all(|end| end.buffer.is_some()), "a buffer is lost");
    let empty = store.put(vec![(key(5).into(), Arc::new(Vec::new()))]);
    assert_eq!(empty, [PutEnd { copies: 0, refusal: Some(BlockError::Empty) }]);
}

#[test]
fn nothing_is_reported_as_stored_when_all_nodes_are_lost() {
    let mut cluster = Cluster::new(2);
    let store = cluster.open(2);
    put(&store, 0..5);
    cluster.stop(0);
    let ends = put(&store, 5..6);
    assert!(ends[0].copies == 1 && ends[0].refusal.is_some(), "{ends:?}");
    cluster.stop(1);
    assert_eq!(get(&store, 0..6), [false; 6]);
    let ends = put(&store, 0..1);
    assert!(ends[0].copies == 0 && ends[0].refusal.is_some(), "{ends:?}");
    until("both nodes are known to be lost", || reached(&store) == 0);
    assert_eq!(get(&store, 0..6), [false; 6]);
    assert_eq!(put(&store, 0..1), [PutEnd { copies: 0, refusal: Some(BlockError::TooFewNodes) }]);
    assert!(store.status().iter().all(|node| node.lost.as_ref().is_some_and(|why| !why.is_empty())));
}

/// Checks that a copy of a block that is on its way to another node does not arrive there after a removal.
pub fn a_removal_reaches_a_copy_that_is_under_way() {
    let mut cluster = Cluster::new(2);
    let store = cluster.open(1);
    // The block goes to the second node of its key, since the first one is lost.
    put(&store, 0..20);
    let names = |node: usize| store.list()[node].1.as_ref().expect("a list").clone();
    let home = |number: u32| names(0).iter().all(|listed| *listed.key != *key(number));
    let number = (0..20).find(|number| !home(*number)).expect("one of twenty keys is the first node's");
    let other = (0..20).filter(|other| *other != number && !home(*other)).map(|it| key(it).into()).collect();
    let _ = store.remove(vec![key(number).into()]);
    cluster.stop(0);
    until("the node is lost", || reached(&store) == 1);
    assert_eq!(put(&store, number..number + 1)[0].copies, 1);
    cluster.start(0);
    until("the node is back", || reached(&store) == 2);
    let other: Vec<Key> = other;
    assert!(!other.is_empty() && store.look_up(other).iter().all(Option::is_none));
    cluster.host(0).hold_turns(true);
    assert_eq!(get(&store, number..number + 1), [true]);
    let (sender, receiver) = channel();
    store.begin_remove(vec![key(number).into()], move |ends| drop(sender.send(ends)));
    // A removal that does not wait for the copy ends in this time.
    let early = receiver.recv_timeout(Duration::from_millis(300)).ok();
    cluster.host(0).hold_turns(false);
    let ends = early.unwrap_or_else(|| receiver.recv().expect("each removal ends"));
    assert!(ends.iter().all(Result::is_ok), "{ends:?}");
    store.settle();
    assert_eq!(get(&store, number..number + 1), [false], "a block is back after its removal");
}

#[test]
fn a_removal_waits_for_a_copy_that_is_on_its_way() {
    a_removal_reaches_a_copy_that_is_under_way();
}

#[test]
fn a_node_that_stands_still_holds_up_an_operation_for_its_limit_only() {
    let cluster = Cluster::new(3);
    let mut options = options(2);
    options.session.within = Lifetime::millis(500);
    let store = SpreadStore::open(NodeSource::Addresses(cluster.addresses()), options).expect("a store");
    put(&store, 0..20);
    cluster.host(1).hold_turns(true);
    // An operation ends by the limit, and goes on with the other nodes.
    let ends = put(&store, 20..40);
    assert!(ends.iter().all(|end| end.copies == 2), "{ends:?}");
    assert_eq!(reached(&store), 2, "a node that does not answer counts as reached");
    assert_eq!(get(&store, 0..20), [true; 20]);
    assert_eq!(get(&store, 20..40), [true; 20]);
    cluster.host(1).hold_turns(false);
    until("the node is reached again", || reached(&store) == 3);
    assert_eq!(get(&store, 0..40), [true; 40]);
}

#[test]
fn a_node_that_has_freed_its_memory_since_its_last_client_left_gets_its_blocks_back() {
    let cluster = Cluster::new(3);
    let mut options = options(2);
    options.session.within = Lifetime::millis(500);
    let store = SpreadStore::open(NodeSource::Addresses(cluster.addresses()), options).expect("a store");
    put(&store, 0..30);
    for node in 0..3 {
        // The client gives its session up, and was the last one of the tenant on this node.
        cluster.host(node).hold_turns(true);
        assert_eq!(get(&store, 0..30), [true; 30], "node {node} stands still");
        until("the node counts as lost", || {
            get(&store, 0..30);
            reached(&store) == 2
        });
        cluster.host(node).hold_turns(false);
        until("the node is reached again", || reached(&store) == 3);
        assert_eq!(get(&store, 0..30), [true; 30], "node {node} is back");
        store.settle();
        assert!((0..30).all(|number| copies_of(&store, number) == 2), "a copy is missing on node {node}");
    }
}

#[test]
fn threads_read_and_write_while_nodes_stop_and_start() {
    const BLOCKS: u32 = 60;
    let mut cluster = Cluster::new(3);
    let store = cluster.open(2);
    assert!(put(&store, 0..BLOCKS).iter().all(|end| end.copies == 2));
    let (stop, hits, stops) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (store, stop, hits, stops) = (&store, &stop, &hits, &stops);
            scope.spawn(move || {
                let mut round = 0;
                while !stop.load(Ordering::Relaxed) {
                    let first = (thread * 17 + round * 5) % (BLOCKS - 8);
                    // Each block has two copies, and one node at a time is lost. So each get is a hit, unless it has
                    // begun before a node was back, and goes on after the next one was stopped.
                    let before = stops.load(Ordering::SeqCst);
                    let found = get(store, first..first + 8);
                    let is_long = stops.load(Ordering::SeqCst) > before;
                    assert!(is_long || found == [true; 8], "a block is lost: {found:?}");
                    hits.fetch_add(8, Ordering::Relaxed);
                    let own = 1_000 * (thread + 1) + round % 20;
                    put(store, own..own + 1);
                    round += 1;
                }
            });
        }
        for round in 0..6 {
            let node = round % 3;
            let before = hits.load(Ordering::Relaxed);
            stops.fetch_add(1, Ordering::SeqCst);
            cluster.stop(node);
            until("blocks are read without the node", || hits.load(Ordering::Relaxed) > before + 50);
            cluster.start(node);
            until("the node is reached again", || reached(&store) == 3);
            // All blocks have two copies again before the next node goes.
            until("all blocks have two copies", || put(&store, 0..BLOCKS).iter().all(|end| end.copies == 2));
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn operations_that_are_under_way_end_when_the_handle_is_closed_or_dropped() {
    let cluster = Cluster::new(3);
    let begin = |store: &SpreadStore| {
        let (sender, receiver) = channel();
        for number in 0..50 {
            let sender = sender.clone();
            let done = move |ends: Vec<PutEnd>| sender.send(ends[0].copies).expect("the test counts");
            store.begin_put(vec![block(number)], done);
        }
        receiver
    };
    let store = cluster.open(2);
    let ends = begin(&store);
    store.close();
    assert_eq!(ends.iter().collect::<Vec<_>>(), [2; 50], "an operation that was under way was cut short");
    assert_eq!(put(&store, 0..1), [PutEnd { copies: 0, refusal: Some(BlockError::TooFewNodes) }]);
    let store = cluster.open(2);
    let ends = begin(&store);
    drop(store);
    assert_eq!(ends.iter().count(), 50, "an operation has no end");
}

#[test]
fn many_operations_at_once_have_room_in_a_small_arena() {
    let cluster = Cluster::new(1);
    for arena_bytes in [4 << 20, 16 << 20] {
        let mut options = options(1);
        options.session.arena_bytes = arena_bytes;
        let store = SpreadStore::open(NodeSource::Addresses(cluster.addresses()), options).expect("a store");
        // Each piece takes almost twice its bytes in the arena.
        let length = 800_000;
        std::thread::scope(|scope| {
            for thread in 0..20_u32 {
                let store = &store;
                scope.spawn(move || {
                    let name = || -> Key { key(thread).into() };
                    let put = store.put(vec![(name(), Arc::new(content(thread, length)))]);
                    assert_eq!(put[0].refusal, None);
                    for _ in 0..4 {
                        assert!(store.get(vec![(name(), length)])[0].is_some(), "a read has found no room");
                    }
                });
            }
        });
        store.remove((0..20).map(|number| key(number).into()).collect());
    }
}

#[test]
fn a_function_that_panics_ends_neither_the_handle_nor_other_operations() {
    let cluster = Cluster::new(2);
    let store = cluster.open(2);
    for number in 0..4 {
        store.begin_put(vec![block(number)], |_| panic!("on purpose"));
    }
    assert!(put(&store, 4..8).iter().all(|end| end.copies == 2));
    assert_eq!(get(&store, 0..8), [true; 8]);
    assert_eq!(reached(&store), 2);
}

#[test]
fn nodes_are_found_below_a_name_and_those_that_join_and_leave_are_noticed() {
    let cluster = Cluster::new(3);
    let directory = Embedded::new(Space::usual());
    let name = |node: usize| Name::new(&format!("bank/kv/node-{node}")).expect("a name");
    let lease = directory.open_lease(&name(0).tenant(), Duration::from_secs(3_600)).expect("a lease");
    let register = |node: usize| {
        let address = ScopedAddress::of_socket(&cluster.path(node)).expect("a socket");
        let memory_bytes = (node as u64 + 1) << 26;
        let holding = node_holding(name(node), &[address], memory_bytes, Duration::from_secs(60));
        let (name, entry) = holding.expect("an entry").entry.expect("a name");
        directory.register(&lease, &name, &entry).expect("it is free");
    };
    let below = || NodeSource::Below(Name::new("bank/kv").expect("a name"));
    let mut options = options(1);
    options.session.names = Names::In(Arc::new(directory.clone()));
    let none = SpreadStore::open(below(), options.clone()).expect_err("there is no node");
    assert!(matches!(none, SpreadError::NoneBelow(_)), "{none}");
    register(0);
    register(1);
    let store = SpreadStore::open(below(), options).expect("a store");
    let weights: Vec<_> = store.status().iter().map(|node| node.weight).collect();
    assert_eq!(weights, [64, 128]);
    assert!(store.status().iter().all(|node| node.is_near && node.name.starts_with("bank/kv/node-")));
    put(&store, 0..60);
    register(2);
    until("the third node is known", || reached(&store) == 3);
    assert_eq!(get(&store, 0..60), [true; 60], "a block is not found since a node has joined");
    store.settle();
    assert!(
        store.list()[2].1.as_ref().is_ok_and(|list| list.len() > 15),
        "no block was copied to the new node"
    );
    directory.withdraw(&lease, &name(0)).expect("it is registered");
    until("the first node is left out", || store.status().len() == 2);
    let found = get(&store, 0..60).iter().filter(|is_hit| **is_hit).count();
    assert!((40..60).contains(&found), "{found} of 60");
}

#[test]
fn a_store_without_nodes_is_refused_with_the_reason() {
    let cluster = Cluster::new(1);
    let open = |addresses: Vec<String>| {
        SpreadStore::open(NodeSource::Addresses(addresses), options(1)).expect_err("it is no store")
    };
    assert!(matches!(open(Vec::new()), SpreadError::NoNodes));
    let there = cluster.addresses().remove(0);
    assert!(matches!(open(vec![there.clone(), there.clone()]), SpreadError::Twice(name) if name == there));
    let nowhere = open(vec!["shm:/nowhere/a".to_owned(), "tcp:b".to_owned()]).to_string();
    assert!(nowhere.contains("\n  shm:/nowhere/a: ") && nowhere.contains("\n  tcp:b: "), "{nowhere}");
    // One node that can be reached is enough.
    let nodes = NodeSource::Addresses(vec!["shm:/nowhere/a".to_owned(), there]);
    let store = SpreadStore::open(nodes, options(1)).expect("a store");
    assert_eq!(reached(&store), 1);
}
