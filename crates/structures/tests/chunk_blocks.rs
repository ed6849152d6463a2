//! A table whose blocks lie in chunks of the session that made it (OneSidedMW): it is a map, it needs no message for a
//! block, its memory goes back to the node, and no other client has its values, also when the session dies.

use crate::rig::{Map, User, pipeline, run};
use portcullis::host::{Host, HostConfig, NodeCounters};
use portcullis::{ChunkLimits, DirectoryName, Error, Lifetime, NodeConfig, Quota, Refusal, SessionOptions};
use portcullis_structures::Pipeline;
use portcullis_structures::table::{Access, BlockMemory, Statistics, Swept, Table, TableError, TableOptions};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeSet;
use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

const TENANT: &str = "red";
const CHUNK_BYTES: u64 = 1024;
const CHUNKS: u64 = 1024;
/// Number of chunks without blocks that a handle keeps.
const KEPT: u64 = 4;

fn node_with(chunks: Option<u64>) -> Host {
    let limits = |chunks| ChunkLimits { chunks, chunk_bytes: CHUNK_BYTES, client_max: chunks };
    let node = NodeConfig { pool_bytes: 64 << 20, chunks: chunks.map(limits), ..NodeConfig::default() };
    Host::start(HostConfig { node, ..HostConfig::default() }).expect("a node starts")
}

fn node() -> Host {
    node_with(Some(CHUNKS))
}

/// Options of a small table, which is split often.
fn in_chunks() -> TableOptions {
    TableOptions {
        blocks: BlockMemory::Chunks,
        lease: Lifetime::millis(200),
        groups: 2,
        depth_max: 10,
        seed: Some(0),
        ..TableOptions::default()
    }
}

/// Options of a table that is never split, and whose permissions outlive a test's part.
fn wide() -> TableOptions {
    TableOptions { lease: Lifetime::seconds(10), groups: 256, ..in_chunks() }
}

fn wait_for(host: &Host, what: &str, wanted: impl Fn(&NodeCounters) -> bool) {
    let within = Instant::now() + Duration::from_secs(10);
    while !wanted(&host.counters()) {
        assert!(Instant::now() < within, "{what}: {:?}", host.counters());
        std::thread::yield_now();
    }
}

fn key(number: u32) -> [u8; 4] {
    number.to_le_bytes()
}

/// Returns a value of a key: its length and its bytes belong to this key and version.
fn value(number: u32, version: u32) -> Vec<u8> {
    let length = 8 + (number * 37 + version * 11) % 400;
    let words = [key(number), version.to_le_bytes()].concat();
    words.into_iter().cycle().take(length as usize).collect()
}

fn insert_all(user: &User, numbers: impl Iterator<Item = u32>) {
    let insert = async |number: u32| user.table.insert(&key(number), &value(number, 0)).await;
    user.pipeline.run(32, numbers.map(insert), |done| assert_eq!(done, Ok(true)));
}

fn statistics(user: &User) -> Statistics {
    user.run(user.table.statistics())
}

#[test]
fn it_is_a_map_through_splits_and_with_many_operations_at_once() {
    let node = node();
    for seed in 0..4u64 {
        let mut random = StdRng::seed_from_u64(seed);
        let user = User::create(&node, TENANT, &in_chunks());
        let mut model = Map::new();
        for round in 0..12u32 {
            // Each key occurs once in a round, so that the order of a round's operations does not matter.
            let keys: BTreeSet<u32> = (0..120).map(|_| random.random_range(0..400)).collect();
            let removes: BTreeSet<u32> = keys.iter().copied().filter(|_| random.random_bool(0.45)).collect();
            let change = async |number: u32| {
                if removes.contains(&number) {
                    user.table.remove(&key(number)).await.map(|removed| (number, removed))
                } else {
                    let stored = user.table.upsert(&key(number), &value(number, round)).await;
                    stored.map(|_| (number, false))
                }
            };
            user.pipeline.run(32, keys.iter().copied().map(change), |done| {
                let (number, removed) = done.expect("the table is whole");
                if removes.contains(&number) {
                    assert_eq!(
                        removed,
                        model.remove(&key(number)[..]).is_some(),
                        "seed {seed}, key {number}"
                    );
                } else {
                    model.insert(key(number).to_vec(), value(number, round));
                }
            });
            assert_eq!(user.all(), model, "seed {seed}, round {round}");
        }
        let found = statistics(&user);
        assert_eq!((found.keys, found.dangling), (model.len() as u64, 0), "seed {seed}");
        let numbers: Vec<[u8; 4]> = (0..400).map(key).collect();
        let keys: Vec<&[u8]> = numbers.iter().map(|key| &key[..]).collect();
        let values = user.run(user.table.get_many(&keys));
        assert!(keys.iter().zip(values).all(|(key, value)| model.get(*key) == value.as_ref()), "seed {seed}");
        user.pipeline.block_on(user.table.close()).expect("it is closed");
        wait_for(&node, "all chunks are back", |it| it.chunks_held == 0);
    }
}

/// Counts the messages that a table's client sends to the node while it inserts, updates and removes a thousand keys.
fn messages_for_a_thousand_keys(blocks: BlockMemory) -> u64 {
    let node = node();
    let user = User::create(&node, TENANT, &TableOptions { blocks, ..wide() });
    insert_all(&user, 0..100);
    let before = node.counters().control_messages;
    insert_all(&user, 100..1_100);
    let update = async |number: u32| user.table.update(&key(number), &value(number, 1)).await;
    user.pipeline.run(32, (100..1_100).map(update), |done| assert_eq!(done, Ok(true)));
    let remove = async |number: u32| user.table.remove(&key(number)).await;
    user.pipeline.run(32, (100..1_100).map(remove), |done| assert_eq!(done, Ok(true)));
    node.counters().control_messages - before
}

#[test]
fn a_block_takes_no_message() {
    // The remaining messages are for permissions on the index, which are renewed from time to time. Operations that are
    // under way together share messages of at most 32 requests.
    let (chunks, objects) = (
        messages_for_a_thousand_keys(BlockMemory::Chunks),
        messages_for_a_thousand_keys(BlockMemory::Objects),
    );
    assert!(objects >= 4_000 / 32, "a permission to write for each block, and its end: {objects}");
    assert!(chunks <= 20, "{chunks}");
}

#[test]
fn the_memory_of_removed_keys_goes_back_to_the_node() {
    let node = node();
    let user = User::create(&node, TENANT, &wide());
    let large = vec![7; 900];
    let insert = async |number: u32| user.table.insert(&key(number), &large).await;
    user.pipeline.run(32, (0..500).map(insert), |done| assert_eq!(done, Ok(true)));
    wait_for(&node, "a chunk for each value", |it| it.chunks_held == 500);
    let whole = statistics(&user).bytes;
    let remove = async |number: u32| user.table.remove(&key(number)).await;
    user.pipeline.run(32, (0..450).map(remove), |done| assert_eq!(done, Ok(true)));
    wait_for(&node, "nine of ten are back", |it| it.chunks_held == 50 + KEPT);
    assert_eq!(whole - statistics(&user).bytes, (450 - KEPT) * CHUNK_BYTES);
    assert_eq!(user.run(user.table.length()), 50);
}

#[test]
fn reads_that_are_under_way_when_a_chunk_goes_are_never_refused() {
    let node = node();
    let user = User::create(&node, TENANT, &wide());
    // A value fills a chunk, so each replacement gives one chunk back, while readers read the old one.
    let filled = |byte: u8| vec![byte; 900];
    assert!(user.run(user.table.insert(b"key", &filled(0))));
    let act = async |number: u32| {
        if number.is_multiple_of(3) {
            let byte = u8::try_from(number % 251).expect("small");
            user.table.update(b"key", &filled(byte)).await.map(|_| None)
        } else {
            user.table.get(b"key").await
        }
    };
    let mut seen = 0;
    user.pipeline.run(48, (0..6_000).map(act), |done| {
        let Some(value) = done.expect("it is served") else { return };
        assert!(value.len() == 900 && value.iter().all(|byte| *byte == value[0]), "a torn value");
        seen += 1;
    });
    assert_eq!(seen, 4_000);
    assert_eq!(node.counters().violations, 0);
    // If a permission on the index ended in the middle of an update, the update's block waits for a sweep.
    let left = statistics(&user).unlinked;
    wait_for(&node, "only what is kept is held", |it| it.chunks_held <= 1 + KEPT + left);
}

#[test]
fn nobody_else_opens_it_and_the_refusal_says_why() {
    let node = node();
    let owner = User::create(&node, TENANT, &in_chunks());
    assert!(owner.run(owner.table.insert(b"key", b"value")));
    let name = DirectoryName::new("values").expect("a name");
    owner.run(owner.table.publish(name));
    let sibling = pipeline(&node, TENANT);
    for pipeline in [&owner.pipeline, &sibling] {
        for access in [Access::Read, Access::Write] {
            let told = run(pipeline, Table::open_named(pipeline, name, access)).map(drop);
            assert_eq!(told, Err(TableError::OfOneHandle));
            assert!(
                told.unwrap_err().to_string().contains("only the handle that made the table"),
                "it says why"
            );
        }
    }
    assert_eq!(owner.get(b"key").as_deref(), Some(&b"value"[..]));
}

#[test]
fn a_node_without_chunks_refuses_it_and_says_which_option_gives_it_some() {
    let node = node_with(None);
    let pipeline = pipeline(&node, TENANT);
    let told = run(&pipeline, Table::create(&pipeline, &in_chunks())).map(drop).expect_err("there are none");
    assert_eq!(told, TableError::Session(Error::Refused(Refusal::NoChunks)));
    assert!(told.to_string().contains("--chunks"), "{told}");
    wait_for(&node, "nothing is left", |it| it.objects == 0);
}

#[test]
fn when_its_session_dies_its_values_are_nobodys_and_the_rest_can_be_freed() {
    let node = node();
    // Another client keeps the tenant, so the table's objects stay.
    let sibling = pipeline(&node, TENANT);
    let owner = User::create(&node, TENANT, &in_chunks());
    insert_all(&owner, 0..300);
    let name = DirectoryName::new("values").expect("a name");
    owner.run(owner.table.publish(name));
    let head = owner.table.head();
    // The owner dies in the middle of inserts.
    owner.pipeline.halt_after(Some(100));
    let insert = async |number: u32| owner.table.insert(&key(number), &value(number, 0)).await;
    owner.pipeline.run(16, (300..400).map(insert), |_| ());
    drop(owner);
    wait_for(&node, "its chunks are free", |it| it.chunks_held == 0);
    assert!(node.counters().objects > 0, "the index is still there");
    // The chunks now belong to another client, with the same addresses, and the index leads no client there.
    let next = User::create(&node, "blue", &in_chunks());
    insert_all(&next, 0..300);
    let told = run(&sibling, Table::open(&sibling, head, Access::Read)).map(drop);
    assert_eq!(told, Err(TableError::OfOneHandle));
    run(&sibling, Table::discard(&sibling, head, Some(name))).expect("it is freed");
    let told = run(&sibling, Table::open_named(&sibling, name, Access::Read)).map(drop);
    assert_eq!(told, Err(TableError::Session(Error::Refused(Refusal::NoSuchName))));
    for number in 0..300 {
        assert_eq!(next.get(&key(number)), Some(value(number, 0)));
    }
    // The name is free for a new table, which is empty.
    let again = run(&sibling, Table::create(&sibling, &in_chunks())).expect("a table");
    run(&sibling, again.publish(name)).expect("the name is free");
    assert_eq!(run(&sibling, again.get(&key(7))), Ok(None));
    drop(next);
    wait_for(&node, "the other's chunks are free", |it| it.chunks_held == 0);
}

#[test]
fn a_session_that_is_over_says_so_and_gives_no_value() {
    let node = node();
    let user = User::create(&node, TENANT, &wide());
    insert_all(&user, 0..50);
    drop(node);
    let gone = TableError::Session(Error::NodeGone);
    for number in 0..50 {
        assert_eq!(user.pipeline.block_on(user.table.get(&key(number))), Err(gone));
    }
    assert_eq!(user.pipeline.block_on(user.table.insert(b"new", b"")), Err(gone));
}

#[test]
fn when_chunks_run_out_in_the_middle_the_table_stays_whole_and_goes_on_when_there_are_some() {
    let quota = Quota { chunks_max: 20, ..Quota::default() };
    let limits = ChunkLimits { chunks: 64, chunk_bytes: CHUNK_BYTES, client_max: 64 };
    let config = NodeConfig { pool_bytes: 64 << 20, chunks: Some(limits), quota, ..NodeConfig::default() };
    let node = Host::start(HostConfig { node: config, ..HostConfig::default() }).expect("a node starts");
    let user = User::create(&node, TENANT, &wide());
    let large = vec![7; 400];
    let insert = async |number: u32| (number, user.table.insert(&key(number), &large).await);
    let mut there = BTreeSet::new();
    user.pipeline.run(32, (0..100).map(insert), |(number, done)| match done {
        Ok(inserted) => assert!(inserted && there.insert(number)),
        Err(error) => assert_eq!(error, TableError::Session(Error::Quota { used: 20, limit: 20 })),
    });
    assert_eq!(there.len(), 40, "two blocks fit into a chunk");
    assert_eq!(user.all().len(), 40);
    for number in there.iter().take(10) {
        assert!(user.run(user.table.remove(&key(*number))));
    }
    for number in 1_000..1_010 {
        assert!(user.run(user.table.insert(&key(number), &large)));
    }
    assert_eq!((user.run(user.table.length()), statistics(&user).dangling), (40, 0));
}

#[test]
fn a_sweep_frees_blocks_that_an_operation_has_left_and_no_others() {
    let node = node();
    let user = User::create(&node, TENANT, &TableOptions { lease: Lifetime::millis(50), ..wide() });
    insert_all(&user, 0..100);
    // Operations that are given up at some step leave the blocks that they have claimed. If leases end in between,
    // these steps are different ones.
    let (mut blocks, mut pending, mut number) = (0, 0, 1_000);
    while blocks == 0 || pending == 0 {
        for posts in 1..40 {
            user.pipeline.halt_after(Some(posts));
            number += 1;
            let (key, value) = (key(number), value(number, 0));
            let _ = user.pipeline.drive(pin!(user.table.insert(&key, &value)));
            user.pipeline.halt_after(None);
        }
        let before = statistics(&user);
        assert!(before.unlinked > 0, "{before:?}");
        let swept: Swept = user.run(user.table.sweep());
        (blocks, pending) = (blocks + swept.blocks, pending + swept.pending);
        assert!(number < 10_000, "sweeps find {blocks} blocks and {pending} pending slots");
    }
    // The blocks of pending slots are orphans since the sweep that removed these slots.
    let swept = user.run(user.table.sweep());
    let after = statistics(&user);
    assert_eq!((after.unlinked, after.dangling), (0, 0), "{swept:?}");
    for number in 0..100 {
        assert_eq!(user.get(&key(number)), Some(value(number, 0)));
    }
}

#[test]
fn two_tables_of_one_session_have_chunks_of_their_own() {
    let node = node();
    let session = node.connect(TENANT, SessionOptions::default()).expect("a session");
    let pipeline = Rc::new(Pipeline::new(session));
    let one = run(&pipeline, Table::create(&pipeline, &wide())).expect("a table");
    let two = run(&pipeline, Table::create(&pipeline, &wide())).expect("a table");
    for number in 0..200 {
        assert_eq!(run(&pipeline, one.insert(&key(number), &value(number, 1))), Ok(true));
        assert_eq!(run(&pipeline, two.insert(&key(number), &value(number, 2))), Ok(true));
    }
    run(&pipeline, one.destroy(None)).expect("it is freed");
    for number in 0..200 {
        assert_eq!(run(&pipeline, two.get(&key(number))), Ok(Some(value(number, 2))));
    }
    run(&pipeline, two.destroy(None)).expect("it is freed");
    wait_for(&node, "everything is back", |it| it.chunks_held == 0 && it.objects == 0);
}
