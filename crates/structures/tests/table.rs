//! A table behaves like a plain map, whatever enforces its permissions and however finely reads are guarded.

use crate::rig::{Map, User, node, node_that_lends, node_with, run};
use portcullis::host::Host;
use portcullis::{
    DirectoryName, Error, Lifetime, Mechanism, Memory, NodeConfig, Quota, Refusal, RemoteAddress,
};
use portcullis_structures::table::{
    Access, Condition, Grain, KEY_BYTES_MAX, LONG_VALUE_BYTES_MAX, Stored, Table, TableError, TableOptions,
    VALUE_BYTES_MAX, Vacated,
};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::pin::pin;
use std::task::Poll;
use std::time::Instant;

const TENANT: &str = "red";

/// Options of a small table, which is split often.
fn small(grain: Grain) -> TableOptions {
    TableOptions {
        grain,
        lease: Lifetime::millis(100),
        groups: 2,
        depth_max: 10,
        seed: Some(0),
        ..TableOptions::default()
    }
}

#[test]
fn what_one_client_puts_into_a_table_another_finds_under_each_mechanism() {
    for mechanism in [
        Mechanism::MemoryWindow,
        Mechanism::MemoryRegion,
        Mechanism::QueuePair,
        Mechanism::NodeCopy,
        Mechanism::None,
    ] {
        for grain in [Grain::Extent, Grain::Block] {
            let node = node(mechanism);
            let one = User::create(&node, TENANT, &small(grain));
            let two = User::open(&node, TENANT, one.table.head(), Access::Write);
            assert_eq!(one.get(b"a"), None);
            assert!(one.run(one.table.insert(b"a", b"one")));
            assert!(!two.run(two.table.insert(b"a", b"two")));
            assert_eq!(two.get(b"a").as_deref(), Some(&b"one"[..]));
            assert!(two.run(two.table.update(b"a", b"two")));
            assert!(!two.run(two.table.update(b"b", b"two")));
            assert!(!one.run(one.table.compare_and_set(b"a", b"one", b"three")));
            assert!(one.run(one.table.compare_and_set(b"a", b"two", b"three")));
            assert_eq!(two.get(b"a").as_deref(), Some(&b"three"[..]));
            assert_eq!(two.run(two.table.upsert(b"b", b"")), Stored::Inserted);
            assert_eq!(one.get(b"b").as_deref(), Some(&b""[..]));
            assert_eq!(one.run(one.table.length()), 2);
            assert!(one.run(one.table.remove(b"a")));
            assert!(!two.run(two.table.remove(b"a")));
            assert_eq!(two.get(b"a"), None);
            assert_eq!(two.run(two.table.take(b"b")).as_deref(), Some(&b""[..]));
            assert_eq!(one.run(one.table.take(b"b")), None);
        }
    }
}

#[test]
fn of_those_who_take_a_key_one_gets_its_value() {
    let node = node(Mechanism::MemoryWindow);
    let users: Vec<_> = {
        let one = User::create(&node, TENANT, &small(Grain::Extent));
        let two = User::open(&node, TENANT, one.table.head(), Access::Write);
        vec![one, two]
    };
    for round in 0..100_u32 {
        users[0].run(users[0].table.upsert(b"job", &round.to_le_bytes()));
        let mut taken = Vec::new();
        for user in &users {
            user.pipeline.run(4, (0..4).map(|_| user.table.take(b"job")), |value| {
                taken.extend(value.expect("it works"))
            });
        }
        assert_eq!(taken, [round.to_le_bytes()]);
    }
}

#[test]
fn a_table_grows_with_its_keys_and_keeps_them_all() {
    let node = node(Mechanism::MemoryWindow);
    let one = User::create(&node, TENANT, &small(Grain::Extent));
    let keys: Vec<String> = (0..5_000).map(|number| format!("key {number}")).collect();
    let inserts = keys.iter().map(|key| one.table.insert(key.as_bytes(), key.as_bytes()));
    one.pipeline.run(16, inserts, |done| assert_eq!(done, Ok(true)));
    assert_eq!(one.run(one.table.length()), 5_000);
    let two = User::open(&node, TENANT, one.table.head(), Access::Read);
    for some in keys.chunks(16) {
        let mut some: Vec<&[u8]> = some.iter().map(String::as_bytes).collect();
        let values = two.run(two.table.get_many(&some));
        assert!(values.iter().zip(&some).all(|(value, key)| value.as_deref() == Some(*key)));
        some.insert(1, b"no such key");
        some.push(some[0]);
        let values = two.run(two.table.get_many(&some));
        assert_eq!((&values[1], &values[0]), (&None, values.last().expect("one for each key")));
    }
}

#[test]
fn a_client_that_others_have_overtaken_finds_a_free_block_at_once() {
    let node = node(Mechanism::MemoryWindow);
    let user = User::create(&node, TENANT, &TableOptions::default());
    let other = User::open(&node, TENANT, user.table.head(), Access::Write);
    let value = vec![7; 1_000];
    // From here on this client believes to know which blocks are free. The other client takes all of them.
    assert!(user.run(user.table.insert(b"first", &value)));
    for number in 0..2_000u32 {
        assert!(other.run(other.table.insert(&number.to_le_bytes(), &value)));
    }
    for number in 0..8u32 {
        user.pipeline.halt_after(Some(160));
        let key = [&b"later"[..], &number.to_le_bytes()].concat();
        let mut insert = pin!(user.table.insert(&key, &value));
        assert_eq!(user.pipeline.drive(insert.as_mut()), Some(Ok(true)), "it tries one after another");
        user.pipeline.halt_after(None);
    }
}

#[test]
fn a_handle_tells_how_far_its_own_split_has_come_and_another_tells_of_none() {
    let node = node(Mechanism::MemoryWindow);
    let options = TableOptions { groups: 16, ..small(Grain::Extent) };
    let user = User::create(&node, TENANT, &options);
    let other = User::open(&node, TENANT, user.table.head(), Access::Write);
    let mut seen = Vec::new();
    for number in 0..2_000u32 {
        let key = number.to_le_bytes();
        let mut insert = pin!(user.table.insert(&key, b"value"));
        let inserted = user.run(std::future::poll_fn(|context| {
            let polled = insert.as_mut().poll(context);
            seen.extend(user.table.split_under_way());
            assert_eq!(other.table.split_under_way(), None);
            polled
        }));
        assert!(inserted);
        assert_eq!(user.table.split_under_way(), None);
        if !seen.is_empty() {
            break;
        }
    }
    seen.dedup();
    let seen: Vec<(u32, u32)> = seen.into_iter().map(|split| (split.moved, split.buckets)).collect();
    assert_eq!(seen, [0, 8, 16, 24, 32, 40].map(|moved| (moved, 48)));
}

#[test]
fn more_blocks_of_one_extent_are_read_and_replaced_than_an_object_has_holders() {
    let node = node(Mechanism::MemoryWindow);
    // Permissions live for longer than the test reads, also on an emulated NIC, where a round trip takes up to 80 ms beside
    // other work: none of them ends by itself to make room, and no split has to be begun again.
    let options = TableOptions { lease: LONG, ..small(Grain::Block) };
    let one = User::create(&node, TENANT, &options);
    let two = User::open(&node, TENANT, one.table.head(), Access::Write);
    let keys: Vec<String> = (0..2_000).map(|number| format!("key {number}")).collect();
    let inserts = keys.iter().map(|key| one.table.insert(key.as_bytes(), key.as_bytes()));
    one.pipeline.run(16, inserts, |done| assert_eq!(done, Ok(true)));
    two.pipeline.run(16, keys.iter().map(|key| two.table.get(key.as_bytes())), |found| {
        assert!(matches!(found, Ok(Some(_))), "{found:?}");
    });
    let updates = keys.iter().map(|key| two.table.update(key.as_bytes(), b"new"));
    two.pipeline.run(16, updates, |done| assert_eq!(done, Ok(true)));
}

/// Permissions to read that no client ends live for seconds, and an extent has eight blocks for values of this length.
const LONG: Lifetime = Lifetime::seconds(10);
const LARGE: usize = 30 << 10;
const LARGE_BLOCKS: u64 = 8;

fn large(round: u64) -> Vec<u8> {
    vec![u8::try_from(round).expect("few rounds"); LARGE]
}

#[test]
fn a_client_is_not_held_up_by_its_own_permissions_to_read_what_it_replaces() {
    let node = node(Mechanism::MemoryWindow);
    let options = TableOptions { lease: LONG, ..small(Grain::Block) };
    let one = User::create(&node, TENANT, &options);
    for round in 0..10 * LARGE_BLOCKS {
        one.run(one.table.upsert(b"key", &large(round)));
        assert_eq!(one.get(b"key"), Some(large(round)));
    }
    let statistics = one.run(one.table.statistics());
    assert_eq!(statistics.extents, 1, "all blocks could be used again: {statistics:?}");
}

#[test]
fn a_client_takes_another_block_and_does_not_wait_where_late_readers_hold_one() {
    let node = node(Mechanism::MemoryWindow);
    let options = TableOptions { lease: LONG, ..small(Grain::Block) };
    let writer = User::create(&node, TENANT, &options);
    let reader = User::open(&node, TENANT, writer.table.head(), Access::Read);
    let rounds = 5 * LARGE_BLOCKS;
    for round in 0..rounds {
        writer.run(writer.table.upsert(b"key", &large(round)));
        assert_eq!(reader.get(b"key"), Some(large(round)));
    }
    let statistics = writer.run(writer.table.statistics());
    assert!(statistics.blocks >= rounds, "no block that was read was written again: {statistics:?}");
}

#[test]
fn a_client_waits_for_late_readers_where_there_is_no_memory_for_another_block() {
    // All values together do not fit into the node.
    const VALUE: usize = 1 << 20;
    const POOL: u64 = 48 << 20;
    let node = node_that_lends(Mechanism::MemoryWindow, POOL);
    let options = TableOptions { lease: Lifetime::seconds(1), ..small(Grain::Block) };
    let writer = User::create(&node, TENANT, &options);
    let reader = User::open(&node, TENANT, writer.table.head(), Access::Read);
    for round in 0..8 * LARGE_BLOCKS {
        let value = vec![u8::try_from(round).expect("few rounds"); VALUE];
        writer.run(writer.table.upsert(b"key", &value));
        assert!(reader.get(b"key") == Some(value), "round {round}");
    }
    let statistics = writer.run(writer.table.statistics());
    assert!(statistics.bytes <= POOL && statistics.keys == 1, "{statistics:?}");
}

#[test]
fn a_table_tells_each_handle_how_long_it_has_existed() {
    let node = node(Mechanism::MemoryWindow);
    let older = User::create(&node, TENANT, &small(Grain::Extent));
    while older.run(older.table.age()) < Lifetime::millis(20) {}
    let younger = User::create(&node, TENANT, &small(Grain::Extent));
    let other = User::open(&node, TENANT, older.table.head(), Access::Read);
    let (age, of_younger) = (other.run(other.table.age()), younger.run(younger.table.age()));
    assert!(age >= Lifetime::millis(20) && of_younger < age, "{age:?} and {of_younger:?}");
}

#[test]
fn a_client_that_knows_an_old_directory_finds_every_key() {
    let node = node(Mechanism::MemoryWindow);
    let one = User::create(&node, TENANT, &small(Grain::Extent));
    let two = User::open(&node, TENANT, one.table.head(), Access::Write);
    assert_eq!(two.get(&[0]), None);
    for number in 0..1_000u16 {
        assert!(one.run(one.table.insert(&number.to_le_bytes(), b"x")));
    }
    for number in 0..1_000u16 {
        assert!(two.run(two.table.update(&number.to_le_bytes(), b"y")));
    }
    assert!(one.all().values().all(|value| value == b"y"));
}

#[test]
fn many_requests_that_nobody_waits_for_hold_up_none_that_somebody_waits_for() {
    let node = node(Mechanism::MemoryWindow);
    let one = User::create(&node, TENANT, &small(Grain::Extent));
    let ask = portcullis::Allocate::bytes(64).lifetime(Lifetime::seconds(10));
    let allocate = || one.pipeline.block_on(one.pipeline.allocate(ask)).expect("a permission");
    let held: Vec<_> = std::iter::repeat_with(allocate).take(500).collect();
    // These are more requests than a queue takes.
    for permission in held {
        drop(one.pipeline.revoke(permission, false));
    }
    one.run(async { Ok(one.pipeline.allocate(ask).await?) });
}

#[test]
fn a_handle_that_is_closed_leaves_nothing_claimed() {
    let node = node(Mechanism::MemoryWindow);
    let one = User::create(&node, TENANT, &small(Grain::Extent));
    let two = User::open(&node, TENANT, one.table.head(), Access::Write);
    for round in 0..20u32 {
        assert!(two.run(two.table.insert(&round.to_le_bytes(), b"x")));
        two.run(two.table.upsert(&0u32.to_le_bytes(), &round.to_le_bytes()));
    }
    let User { pipeline, table } = two;
    pipeline.block_on(table.close()).expect("the node serves it");
    let statistics = one.run(one.table.statistics());
    assert_eq!((statistics.keys, statistics.unlinked, statistics.dangling), (20, 0, 0));
}

#[test]
fn a_table_that_is_destroyed_gives_all_its_memory_back_and_is_gone_for_others() {
    let node = node(Mechanism::MemoryWindow);
    let one = User::create(&node, TENANT, &small(Grain::Extent));
    let two = User::open(&node, TENANT, one.table.head(), Access::Read);
    for number in 0..500u32 {
        assert!(one.run(one.table.insert(&number.to_le_bytes(), &[7; 100])));
    }
    assert_eq!(two.run(two.table.length()), 500);
    let name = DirectoryName::new("t").expect("a name");
    one.run(one.table.publish(name));
    let User { pipeline, table } = one;
    let head = table.head();
    pipeline.block_on(table.destroy(Some(name))).expect("the node serves it");
    let again = pipeline.block_on(Table::create(&pipeline, &small(Grain::Extent))).expect("a table");
    pipeline.block_on(again.publish(name)).expect("the name is free");
    let opened = pipeline.block_on(Table::open(&pipeline, head, Access::Write)).map(drop);
    // The head of the table stays for as long as a client has a permission on it.
    let gone = TableError::Session(Error::Refused(Refusal::Gone));
    assert!([Err(gone), Err(TableError::NotATable)].contains(&opened), "{opened:?}");
    pipeline.block_on(again.destroy(None)).expect("the node serves it");
    // Memory on which both clients still have permissions is freed when those end.
    drop((pipeline, two));
    let until = Instant::now() + std::time::Duration::from_secs(60);
    while node.counters().bytes_used > 0 {
        assert!(Instant::now() < until, "{:?}", node.counters());
        std::thread::yield_now();
    }
}

#[test]
fn keys_and_values_have_any_bytes_up_to_their_limits() {
    let node = node_that_lends(Mechanism::MemoryWindow, 512 << 20);
    let one = User::create(&node, TENANT, &small(Grain::Extent));
    let (key, value) = (vec![0xFF; KEY_BYTES_MAX], vec![7; VALUE_BYTES_MAX]);
    for (key, value) in [(&key[..], &b""[..]), (&[], &value), (&key[1..], &value)] {
        assert!(one.run(one.table.insert(key, value)));
        assert_eq!(one.get(key).as_deref(), Some(value));
    }
    let long = [&key[..], &[1]].concat();
    let error = one.pipeline.block_on(one.table.insert(&long, b""));
    assert_eq!(error, Err(TableError::KeyTooLong { bytes: 65_536 }));
    let long = [&value[..], &[1]].concat();
    let error = one.pipeline.block_on(one.table.insert(b"", &long));
    assert_eq!(error, Err(TableError::ValueTooLong { bytes: (1 << 20) + 1, most: 1 << 20 }));
    assert_eq!(one.all().len(), 3);
    one.table.store_values_up_to(usize::MAX);
    let longest: Vec<u8> = (0..LONG_VALUE_BYTES_MAX).map(|at| (at / 1000 % 251).to_le_bytes()[0]).collect();
    assert!(one.run(one.table.insert(b"longest", &longest)));
    assert!(one.get(b"longest").as_ref() == Some(&longest), "128 MiB read back");
    assert_eq!(one.run(one.table.take(b"longest")).map(|value| value == longest), Some(true));
    let longer = vec![0; LONG_VALUE_BYTES_MAX + 1];
    let error = one.pipeline.block_on(one.table.insert(b"longer", &longer));
    assert!(matches!(error, Err(TableError::ValueTooLong { most: 0x800_0000, .. })), "{error:?}");
}

/// Fills the memory of a node with a table of values of one length. Returns the number of values.
fn filled(one: &User, length: usize) -> u32 {
    let value = vec![1; length];
    let full = |stored: &Result<bool, TableError>| match stored {
        Err(TableError::Session(Error::Quota { .. } | Error::Refused(Refusal::OutOfMemory { .. }))) => true,
        Ok(true) => false,
        other => panic!("{other:?}"),
    };
    let mut stores =
        (0..).map(|number: u32| one.pipeline.block_on(one.table.insert(&number.to_le_bytes(), &value)));
    u32::try_from(stores.position(|stored| full(&stored)).expect("it is full at some time")).expect("few")
}

#[test]
fn memory_of_removed_keys_serves_values_of_any_other_length() {
    const POOL: u64 = 8 << 20;
    let (any, few) = (Quota::default(), Quota { bytes_max: POOL, ..Quota::default() });
    // In the first two cases the node's memory is used up, in the third the tenant's quota.
    for (grain, pool_bytes, quota) in
        [(Grain::Extent, POOL, any), (Grain::Block, POOL, any), (Grain::Extent, 4 * POOL, few)]
    {
        let mechanism = Mechanism::MemoryWindow;
        let node = node_with(NodeConfig { mechanism, pool_bytes, quota, ..NodeConfig::default() });
        let options = TableOptions { grain, lease: Lifetime::millis(100), ..TableOptions::default() };
        let one = User::create(&node, TENANT, &options);
        let mut stored = Vec::new();
        for length in [4_000, 20_000, 1_000, 100_000, 900_000, 4_000] {
            let count = filled(&one, length);
            assert!(count > 0, "no value of {length} bytes fits, {grain:?}");
            stored.push((length, u64::from(count) * length as u64));
            for number in 0..count {
                assert!(one.run(one.table.remove(&number.to_le_bytes())));
            }
        }
        let (first, last) = (stored[0].1, stored[stored.len() - 1].1);
        assert!(last * 10 >= first * 9, "{stored:?}, {grain:?}");
        assert!(stored.iter().all(|(_, bytes)| *bytes * 10 >= POOL * 5), "{stored:?}");
    }
}

#[test]
fn memory_that_one_client_has_freed_serves_another_client_and_other_tables() {
    let node = node_that_lends(Mechanism::MemoryWindow, 16 << 20);
    // A read of 4 MiB takes 0.3 s on an emulated NIC.
    let options = TableOptions { lease: Lifetime::millis(500), ..small(Grain::Extent) };
    let one = User::create(&node, TENANT, &options);
    let two = User::open(&node, TENANT, one.table.head(), Access::Write);
    let count = filled(&one, 1_000);
    for number in 0..count {
        assert!(one.run(one.table.remove(&number.to_le_bytes())));
    }
    two.table.store_values_up_to(4 << 20);
    assert!(two.run(two.table.insert(b"large", &vec![7; 4 << 20])));
    assert_eq!(one.get(b"large"), Some(vec![7; 4 << 20]));
    one.run(one.table.sweep());
    let other = User::create(&node, TENANT, &options);
    other.table.store_values_up_to(4 << 20);
    let until = Instant::now() + std::time::Duration::from_secs(60);
    while other.pipeline.block_on(other.table.upsert(b"large", &vec![7; 4 << 20])).is_err() {
        assert!(Instant::now() < until, "a sweep gives back what nobody uses");
    }
}

#[test]
fn numbers_of_extents_are_used_again_and_old_slots_name_nothing_new() {
    let node = node_that_lends(Mechanism::MemoryWindow, 8 << 20);
    let one = User::create(&node, TENANT, &small(Grain::Extent));
    let two = User::open(&node, TENANT, one.table.head(), Access::Write);
    for round in 0..40u32 {
        let length = [900, 40_000, 300_000][round as usize % 3];
        let value = vec![u8::try_from(round).expect("few"); length];
        let keys: Vec<_> = (0..8u32).map(u32::to_le_bytes).collect();
        for key in &keys {
            assert!(one.run(one.table.insert(key, &value)));
            assert_eq!(two.get(key).as_ref(), Some(&value));
        }
        for key in &keys {
            assert!(two.run(two.table.remove(key)));
            assert_eq!(one.get(key), None);
        }
    }
    let statistics = one.run(one.table.statistics());
    assert!(statistics.extents <= 32 && statistics.dangling == 0, "{statistics:?}");
}

#[test]
fn an_extent_is_emptied_for_other_values_and_its_keys_are_told() {
    let node = node(Mechanism::MemoryWindow);
    let options = TableOptions { lease: Lifetime::seconds(1), ..small(Grain::Extent) };
    let one = User::create(&node, TENANT, &options);
    for number in 0..400u32 {
        assert!(one.run(one.table.insert(&number.to_le_bytes(), &[1; 1_000])));
    }
    assert!(one.run(one.table.insert(b"long", &vec![2; 400_000])));
    let before = one.run(one.table.statistics());
    for key in [&0u32.to_le_bytes()[..], b"long"] {
        let mut removed = BTreeSet::new();
        let vacated = one.run(one.table.vacate(key, |key| assert!(removed.insert(key.to_vec()))));
        assert!(matches!(vacated, Vacated::GivenBack { .. }), "{vacated:?}");
        assert!(removed.contains(key) && removed.iter().all(|key| one.get(key).is_none()), "{removed:?}");
        assert_eq!(one.run(one.table.vacate(key, |_| ())), Vacated::Missing);
    }
    one.run(one.table.sweep());
    let statistics = one.run(one.table.statistics());
    assert_eq!(statistics.keys, one.all().len() as u64);
    assert!(statistics.keys > 100 && statistics.extents < before.extents, "{statistics:?}");
    assert!((statistics.unlinked, statistics.dangling) <= (8, 0), "{statistics:?}");
}

#[test]
fn a_long_value_is_all_one_writers_or_anothers() {
    let node = node(Mechanism::MemoryWindow);
    // Long enough for a store with a look at each of its steps, on an emulated NIC too.
    let options = TableOptions { lease: Lifetime::seconds(2), ..small(Grain::Extent) };
    let one = User::create(&node, TENANT, &options);
    let two = User::open(&node, TENANT, one.table.head(), Access::Write);
    let length = 200_000;
    assert!(one.run(one.table.insert(b"key", &vec![0; length])));
    for round in 1..6u8 {
        let value = vec![round; length];
        let mut store = pin!(one.table.upsert(b"key", &value));
        let mut seen = BTreeSet::new();
        one.run(std::future::poll_fn(|context| {
            let polled = store.as_mut().poll(context);
            let found = two.get(b"key").expect("it is always there");
            assert!(found.len() == length && found.iter().all(|byte| *byte == found[0]), "a torn value");
            seen.insert(found[0]);
            polled
        }));
        assert!(seen.iter().all(|byte| [round - 1, round].contains(byte)), "{seen:?} in round {round}");
    }
    one.run(one.table.sweep());
    let statistics = one.run(one.table.statistics());
    assert!((statistics.keys, statistics.unlinked) <= (1, 8), "{statistics:?}");
}

#[test]
fn a_key_whose_time_has_come_is_gone_for_everybody() {
    let node = node(Mechanism::MemoryWindow);
    let one = User::create(&node, TENANT, &small(Grain::Extent));
    let live = Some(Lifetime::millis(150));
    assert_eq!(one.run(one.table.store(b"a", b"1", Condition::Always, live)), Stored::Inserted);
    assert_eq!(one.run(one.table.store(b"b", b"1", Condition::Always, None)), Stored::Inserted);
    let two = User::open(&node, TENANT, one.table.head(), Access::Write);
    assert_eq!(two.get(b"a").as_deref(), Some(&b"1"[..]));
    while two.get(b"a").is_some() {
        std::thread::yield_now();
    }
    // The clocks of two handles differ by the time that the grant of a permission took.
    let since = Instant::now();
    while one.get(b"a").is_some() {
        assert!(since.elapsed().as_secs() < 20, "the other handle still finds the key");
    }
    assert_eq!(one.run(one.table.length()), 1);
    assert!(!one.run(one.table.update(b"a", b"2")));
    assert!(two.run(two.table.insert(b"a", b"3")));
    assert_eq!(one.get(b"a").as_deref(), Some(&b"3"[..]));
    assert_eq!(two.run(two.table.remove_expired(|_| ())), 0, "what is stored again stays");
    assert_eq!(one.run(one.table.length()), 2);
}

#[test]
fn removing_what_has_expired_frees_its_blocks() {
    let node = node(Mechanism::MemoryWindow);
    let one = User::create(&node, TENANT, &small(Grain::Extent));
    let keys: Vec<String> = (0..500).map(|number| format!("key {number}")).collect();
    let live = Some(Lifetime::millis(1));
    let stores = keys.iter().map(|key| one.table.store(key.as_bytes(), b"1", Condition::Always, live));
    one.pipeline.run(16, stores, |done| assert_eq!(done, Ok(Stored::Inserted)));
    assert!(one.run(one.table.insert(b"kept", b"1")));
    while one.run(one.table.length()) > 1 {
        std::thread::yield_now();
    }
    // A sweep for what dead clients have left does not remove them.
    one.run(one.table.sweep());
    assert_eq!(one.run(one.table.statistics()).keys, 501);
    let other = User::open(&node, TENANT, one.table.head(), Access::Write);
    let mut removed = BTreeSet::new();
    let since = Instant::now();
    // The clocks of two handles differ by the time that the grant of a permission took.
    while removed.len() < 500 {
        assert!(since.elapsed().as_secs() < 20, "{} were removed", removed.len());
        let count = other.run(other.table.remove_expired(|key| assert!(removed.insert(key.to_vec()))));
        assert!(count <= 500);
    }
    assert!(keys.iter().all(|key| removed.contains(key.as_bytes())));
    let statistics = other.run(other.table.statistics());
    assert_eq!((statistics.keys, statistics.dangling), (1, 0), "{statistics:?}");
    // A few blocks are ready for the next values.
    assert!(statistics.unlinked < 64, "{statistics:?}");
    let reader = User::open(&node, TENANT, one.table.head(), Access::Read);
    assert_eq!(reader.pipeline.block_on(reader.table.remove_expired(|_| ())), Err(TableError::ReadOnly));
}

/// To remove a key, its block is read: an arena has room for some blocks.
#[test]
fn long_values_that_have_expired_go_however_small_the_arena_is() {
    let node = node(Mechanism::MemoryWindow);
    let one = User::create(&node, TENANT, &TableOptions::default());
    let value = vec![7; 300 << 10];
    for number in 0..40u32 {
        let key = number.to_le_bytes();
        let store = one.table.store(&key, &value, Condition::Always, Some(Lifetime(1)));
        assert_eq!(one.run(store), Stored::Inserted);
    }
    let (mut removed, since) = (0, Instant::now());
    while removed < 40 {
        assert!(since.elapsed().as_secs() < 20, "{removed} were removed");
        removed += one.run(one.table.remove_expired(|_| ()));
    }
    assert_eq!((removed, one.run(one.table.statistics()).keys), (40, 0));
}

#[test]
fn a_look_that_breaks_off_reads_no_more() {
    let node = node(Mechanism::MemoryWindow);
    let one = User::create(&node, TENANT, &small(Grain::Extent));
    let keys: Vec<String> = (0..2_000).map(|number| format!("key {number}")).collect();
    let inserts = keys.iter().map(|key| one.table.insert(key.as_bytes(), b"1"));
    one.pipeline.run(16, inserts, |done| assert_eq!(done, Ok(true)));
    let mut seen = 0;
    // Each key takes at least one read.
    one.pipeline.halt_after(Some(100));
    let look = one.table.try_for_each(|_, _| {
        seen += 1;
        if seen == 10 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert_eq!(one.pipeline.drive(pin!(look)), Some(Ok(())));
    assert_eq!(seen, 10);
}

#[test]
fn a_reader_cannot_change_a_table() {
    let node = node(Mechanism::MemoryWindow);
    let one = User::create(&node, TENANT, &small(Grain::Extent));
    let reader = User::open(&node, TENANT, one.table.head(), Access::Read);
    let refused = Err(TableError::ReadOnly);
    assert_eq!(reader.pipeline.block_on(reader.table.insert(b"a", b"")), refused);
    assert_eq!(reader.pipeline.block_on(reader.table.remove(b"a")), refused);
}

#[test]
fn a_table_that_cannot_grow_any_more_says_so_and_goes_on() {
    let node = node(Mechanism::MemoryWindow);
    let options = TableOptions { groups: 1, depth_max: 1, ..small(Grain::Extent) };
    let one = User::create(&node, TENANT, &options);
    let mut inserted = 0u32;
    let full = loop {
        match one.pipeline.block_on(one.table.insert(&inserted.to_le_bytes(), b"")) {
            Ok(true) => inserted += 1,
            other => break other,
        }
    };
    assert_eq!(full, Err(TableError::Full));
    assert!(inserted >= 16, "two subtables of 21 slots: {inserted}");
    assert!(one.run(one.table.remove(&0u32.to_le_bytes())));
    assert_eq!(one.run(one.table.length()), u64::from(inserted - 1));
}

#[test]
fn a_table_is_found_by_its_name() {
    let node = node(Mechanism::MemoryWindow);
    let one = User::create(&node, TENANT, &small(Grain::Extent));
    let name = DirectoryName::new("phone book").expect("a name");
    one.run(one.table.publish(name));
    assert!(one.run(one.table.insert(b"a", b"1")));
    let same = one.run(Table::open_named(&one.pipeline, name, Access::Read));
    assert_eq!(one.run(same.get(b"a")).as_deref(), Some(&b"1"[..]));
    let other = DirectoryName::new("telephone book").expect("a name");
    let missing = one.pipeline.block_on(Table::open_named(&one.pipeline, other, Access::Read));
    assert!(matches!(missing, Err(TableError::Session(Error::Refused(Refusal::NoSuchName)))));
}

#[test]
fn an_object_that_is_no_table_is_refused() {
    let node = node(Mechanism::MemoryWindow);
    let one = User::create(&node, TENANT, &small(Grain::Extent));
    let memory = portcullis::Allocate::bytes(4096).keep();
    let object = one.pipeline.block_on(one.pipeline.allocate(memory.shared())).expect("memory").object();
    let opened = Table::open(&one.pipeline, object, Access::Read);
    assert!(matches!(one.pipeline.block_on(opened), Err(TableError::NotATable)));
}

#[test]
fn an_operation_that_is_dropped_midway_leaves_nothing_that_others_wait_for() {
    let node = node(Mechanism::MemoryWindow);
    let one = User::create(&node, TENANT, &small(Grain::Extent));
    for number in 0..300u32 {
        // The operation is dropped after this many polls.
        let mut left = number % 12;
        let key = number.to_le_bytes();
        let mut insert = pin!(one.table.insert(&key, b"x"));
        one.pipeline.block_on(std::future::poll_fn(|context| {
            left = left.saturating_sub(1);
            if left == 0 { Poll::Ready(()) } else { insert.as_mut().poll(context).map(|_| ()) }
        }));
    }
    for number in 0..300u32 {
        one.run(one.table.upsert(&number.to_le_bytes(), b"y"));
    }
    assert_eq!(one.run(one.table.length()), 300);
}

#[test]
fn a_change_that_is_dropped_in_or_before_its_turn_holds_up_no_later_change_of_its_key() {
    let node = node(Mechanism::MemoryWindow);
    let one = User::create(&node, TENANT, &small(Grain::Extent));
    // The first change has its turn, and the second waits.
    for dropped in [[true, false], [false, true], [true, true]] {
        let mut changes = [b"1", b"2"].map(|value| Some(Box::pin(one.table.upsert(b"key", value))));
        let mut last = pin!(one.table.upsert(b"key", b"3"));
        let mut polls = 0;
        one.run(std::future::poll_fn(|context| {
            for change in &mut changes {
                if let Some(running) = change
                    && running.as_mut().poll(context).is_ready()
                {
                    *change = None;
                }
            }
            polls += 1;
            if polls == 2 {
                let _ = last.as_mut().poll(context);
                for (change, dropped) in changes.iter_mut().zip(dropped) {
                    change.take_if(|_| dropped);
                }
            }
            last.as_mut().poll(context)
        }));
        assert_eq!(one.get(b"key").as_deref(), Some(&b"3"[..]));
    }
}

/// One action of a random program.
#[derive(Clone, Debug)]
enum TableAction {
    Store(u8, usize),
    Insert(u8, usize),
    Update(u8, usize),
    Exchange(u8, usize),
    Remove(u8),
    Get(u8),
}

fn action() -> impl Strategy<Value = TableAction> {
    let (key, length) = (0u8..80, 0usize..300);
    prop_oneof![
        (key.clone(), length.clone()).prop_map(|(key, length)| TableAction::Store(key, length)),
        (key.clone(), length.clone()).prop_map(|(key, length)| TableAction::Insert(key, length)),
        (key.clone(), length.clone()).prop_map(|(key, length)| TableAction::Update(key, length)),
        (key.clone(), length).prop_map(|(key, length)| TableAction::Exchange(key, length)),
        key.clone().prop_map(TableAction::Remove),
        key.prop_map(TableAction::Get),
    ]
}

/// Performs one action, with a table and with a map.
fn take(user: &User, map: &mut Map, action: &TableAction, fill: u8) -> Result<(), TestCaseError> {
    let name = |key: u8| vec![key; usize::from(key % 5) + 1];
    let value = |length| vec![fill; length];
    match *action {
        TableAction::Store(key, length) => {
            user.run(user.table.upsert(&name(key), &value(length)));
            map.insert(name(key), value(length));
        }
        TableAction::Insert(key, length) => {
            let inserted = user.run(user.table.insert(&name(key), &value(length)));
            prop_assert_eq!(inserted, !map.contains_key(&name(key)));
            map.entry(name(key)).or_insert(value(length));
        }
        TableAction::Update(key, length) => {
            let updated = user.run(user.table.update(&name(key), &value(length)));
            prop_assert_eq!(updated, map.contains_key(&name(key)));
            map.entry(name(key)).and_modify(|old| *old = value(length));
        }
        TableAction::Exchange(key, length) => {
            let expected = map.get(&name(key)).cloned().unwrap_or_default();
            let done = user.run(user.table.compare_and_set(&name(key), &expected, &value(length)));
            prop_assert_eq!(done, map.contains_key(&name(key)));
            map.entry(name(key)).and_modify(|old| *old = value(length));
        }
        TableAction::Remove(key) => {
            let removed = user.run(user.table.remove(&name(key)));
            prop_assert_eq!(removed, map.remove(&name(key)).is_some());
        }
        TableAction::Get(key) => prop_assert_eq!(user.get(&name(key)), map.get(&name(key)).cloned()),
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn a_table_is_a_map(actions in prop::collection::vec(action(), 1..400), block: bool) {
        let node = node(Mechanism::MemoryWindow);
        let one = User::create(&node, TENANT, &small(if block { Grain::Block } else { Grain::Extent }));
        let two = User::open(&node, TENANT, one.table.head(), Access::Write);
        let mut map = Map::new();
        for (fill, action) in (0u8..=255).cycle().zip(&actions) {
            take(if fill % 2 == 0 { &one } else { &two }, &mut map, action, fill)?;
        }
        prop_assert_eq!(one.all(), map);
    }
}

/// Overwrites a place in the node's memory that has these bytes.
fn write_over(node: &Host, near: RemoteAddress, bytes: &[u8]) {
    let lent = node.lent_memory().expect("the node runs");
    let page = |at: u64| lent.bytes(RemoteAddress(at), 8192);
    let mut at = near.0 / 4096 * 4096;
    while page(at - 4096).is_some() {
        at -= 4096;
    }
    while let Some(memory) = page(at) {
        let mut there = [0; 8192];
        memory.read(0, &mut there);
        if let Some(place) = there.windows(bytes.len()).position(|some| some == bytes) {
            memory.write(place as u64, &vec![0xEE; bytes.len()]);
            return;
        }
        at += 4096;
    }
    panic!("the bytes are nowhere");
}

#[test]
fn a_look_at_a_whole_table_ends_where_a_slot_names_a_block_that_was_written_over() {
    let node = node_that_lends(Mechanism::MemoryWindow, 32 << 20);
    let user = User::create(&node, TENANT, &small(Grain::Extent));
    let value: Vec<u8> = (0..64u8).map(|number| number.wrapping_mul(37) ^ 0xA5).collect();
    assert!(user.run(user.table.insert(b"whole", b"value")));
    assert!(user.run(user.table.insert(b"spoilt", &value)));
    write_over(&node, user.table.head().address, &value);
    let looked = run(&user.pipeline, user.table.for_each(|_, _| ()));
    assert!(matches!(looked, Err(TableError::Damaged { .. })), "{looked:?}");
    assert_eq!(user.get(b"whole").as_deref(), Some(&b"value"[..]));
}

#[test]
fn a_value_with_a_piece_that_was_written_over_is_said_to_be_damaged_and_can_be_removed() {
    let node = node_that_lends(Mechanism::MemoryWindow, 32 << 20);
    let user = User::create(&node, TENANT, &small(Grain::Extent));
    let mark: Vec<u8> = (0..64u8).map(|number| number.wrapping_mul(37) ^ 0xA5).collect();
    let mut long = vec![9; 200_000];
    long[60_000..60_064].copy_from_slice(&mark);
    assert!(user.run(user.table.insert(b"whole", b"value")));
    assert!(user.run(user.table.insert(b"spoilt", &long)));
    write_over(&node, user.table.head().address, &mark);
    let ends = [
        run(&user.pipeline, user.table.get(b"spoilt")).map(|_| ()),
        run(&user.pipeline, user.table.take(b"spoilt")).map(|_| ()),
        run(&user.pipeline, user.table.compare_and_set(b"spoilt", &long, b"new")).map(|_| ()),
        run(&user.pipeline, user.table.for_each(|_, _| ())),
    ];
    for end in ends {
        assert!(matches!(end, Err(TableError::Damaged { .. })), "{end:?}");
    }
    assert_eq!(user.get(b"whole").as_deref(), Some(&b"value"[..]));
    assert!(user.run(user.table.remove(b"spoilt")));
    assert_eq!(user.get(b"spoilt"), None);
}
