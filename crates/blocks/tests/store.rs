//! All clients of a tenant get the blocks that one of them puts.

use crate::rig::{User, content, key, node, node_with, node_with_quota};
use portcullis::{Allocate, DirectoryName, Incarnation, Keep, Lifetime, NodeConfig, ObjectRef};
use portcullis_blocks::{BlockError, Got, Put, StoreOptions};
use portcullis_errors::Coded;
use portcullis_structures::table::{Access, Table};
use std::rc::Rc;
use std::time::{Duration, Instant};

#[test]
fn another_client_gets_blocks_of_all_lengths() {
    let node = node();
    let (writer, reader) = (User::new(&node), User::new(&node));
    let lengths = [1, 7, 8, 4096, 100_001, 256 << 10, (256 << 10) + 1, 3 << 20];
    let contents: Vec<_> =
        (0..).zip(lengths).map(|(number, length)| (key(number), content(number, length))).collect();
    let blocks: Vec<_> = contents.iter().map(|(key, bytes)| (&key[..], &bytes[..])).collect();
    let stored = writer.run(writer.store.put_many(&blocks));
    assert!(stored.iter().all(|put| *put == Ok(Put::Stored)), "{stored:?}");
    let mut buffers: Vec<_> = lengths.map(|length| vec![0; length]).into();
    let mut wanted: Vec<_> =
        blocks.iter().zip(&mut buffers).map(|((key, _), buffer)| (*key, &mut buffer[..])).collect();
    assert!(reader.run(reader.store.get_many(&mut wanted)).into_iter().all(Got::is_hit));
    for ((_, bytes), buffer) in contents.iter().zip(&buffers) {
        assert!(bytes == buffer, "a block of {} bytes", bytes.len());
    }
    for (key, bytes) in &blocks {
        let view = reader.run(reader.store.get_view(key)).expect("a block");
        assert_eq!(view.length(), bytes.len() as u64);
        assert!(*view.bytes() == **bytes, "a view of {} bytes", bytes.len());
    }
    let usage = reader.run(reader.store.usage());
    assert_eq!((usage.blocks, usage.bytes), (8, lengths.iter().sum::<usize>() as u64));
    assert_eq!(writer.store.counters().stored, 8);
    assert_eq!(reader.store.counters().hits, 16);
}

#[test]
fn a_block_is_stored_once() {
    let node = node();
    let (one, two) = (User::new(&node), User::new(&node));
    let (key, bytes) = (key(1), content(1, 10_000));
    let blocks = [(&key[..], &bytes[..]), (&key[..], &bytes[..])];
    let stored = one.run(one.store.put_many(&blocks));
    assert_eq!(stored, [Ok(Put::Stored), Ok(Put::Stored)]);
    let objects = node.counters().objects;
    assert_eq!(two.run(two.store.put(&key, &bytes)), Put::ThereAlready);
    assert_eq!(node.counters().objects, objects);
}

#[test]
fn a_block_of_another_length_takes_the_place_of_the_old_one() {
    let node = node();
    let user = User::new(&node);
    user.run(user.store.put(&key(1), &content(1, 100)));
    let objects = node.counters().objects;
    user.found(&[&key(1)]);
    assert_eq!(user.run(user.store.put(&key(1), &content(1, 200))), Put::Stored);
    let until = Instant::now() + Duration::from_secs(20);
    // The node unbinds the window of the look-up a little later.
    while node.counters().objects > objects {
        assert!(Instant::now() < until, "the old block is not freed");
        std::thread::yield_now();
    }
    let mut short = vec![0; 100];
    assert_eq!(user.run(user.store.get(&key(1), &mut short)), Got::OtherLength(200));
    assert!(user.has(1, 200));
}

#[test]
fn a_removed_block_is_a_miss_and_its_memory_is_free() {
    let node = node();
    let (one, two) = (User::new(&node), User::new(&node));
    one.run(one.store.put(&key(0), &content(0, 5_000)));
    let objects = node.counters().objects;
    for number in 1..40 {
        one.run(one.store.put(&key(number), &content(number, 5_000)));
    }
    let keys: Vec<_> = (1..41).map(key).collect();
    let keys: Vec<_> = keys.iter().map(|key| &key[..]).collect();
    let removed = two.run(two.store.remove_many(&keys));
    assert_eq!(removed.iter().filter(|removed| **removed).count(), 39);
    assert_eq!(node.counters().objects, objects);
    assert!(!one.has(1, 5_000));
    assert!(one.has(0, 5_000));
    assert_eq!(one.found(&keys), [false; 40]);
    assert_eq!(one.run(one.store.put(&key(1), &content(1, 5_000))), Put::Stored);
}

#[test]
fn an_empty_block_and_a_key_that_is_too_long_are_the_callers_mistake() {
    let node = node();
    let user = User::new(&node);
    let put = user.run(user.store.put_many(&[(b"key", b""), (b"other", b"bytes")]));
    assert_eq!(put, [Err(BlockError::Empty), Ok(Put::Stored)]);
    let put = user.run(user.store.put_many(&[(b"twice", b""), (b"twice", b"bytes"), (b"twice", b"")]));
    assert_eq!(put, [Err(BlockError::Empty), Ok(Put::Stored), Err(BlockError::Empty)]);
    let long = vec![0; 70_000];
    let refused = user.pipeline.block_on(user.store.put(&long, b"bytes"));
    assert!(refused.is_err_and(|error| error.to_string().contains("key")));
    assert!(user.has(0, 10) || user.get(b"other", 5).is_some_and(|bytes| bytes == b"bytes"));
}

#[test]
fn a_node_that_keeps_nothing_or_grants_short_leases_says_so_when_the_store_is_opened() {
    let limits = NodeConfig {
        longest_keep: Lifetime(0),
        longest_lifetime: Lifetime::seconds(1),
        pool_bytes: 64 << 20,
        ..NodeConfig::default()
    };
    let node = node_with(limits);
    let kept = StoreOptions { keep: Keep::Pinned, lease: Lifetime::millis(500), ..StoreOptions::default() };
    let refused = User::with(&node, &kept).err().expect("the node keeps nothing");
    assert_eq!(refused.code().name(), "kept-too-long");
    let refused = User::with(&node, &StoreOptions::default()).err().expect("the lease is too long");
    assert_eq!(refused.code().name(), "lifetime-too-long");
    let short = StoreOptions { lease: Lifetime::millis(500), ..StoreOptions::default() };
    let user = User::with(&node, &short).expect("a store");
    user.run(user.store.put(&key(1), &content(1, 1 << 20)));
    assert!(user.has(1, 1 << 20));
}

/// The entry of a block, as another program of the tenant writes it.
fn entry(length: u64, object: ObjectRef) -> Vec<u8> {
    [&b"PCBLOCK2"[..], &length.to_le_bytes(), &[0; 8], &object.to_bytes()].concat()
}

#[test]
fn entries_that_another_program_writes_cost_no_more_than_their_keys() {
    let node = node_with_quota(10 << 20);
    let user = User::new(&node);
    let pipeline = Rc::clone(&user.pipeline);
    let table = pipeline
        .block_on(Table::open_named(&pipeline, DirectoryName::new("blocks").expect("a name"), Access::Write))
        .expect("the table of the keys");
    let ask = Allocate::bytes(5_000).keep();
    let permission = pipeline.block_on(pipeline.allocate(ask)).expect("an object");
    let object = permission.object();
    pipeline.block_on(pipeline.revoke(permission, false)).expect("it lives");
    let stranger = ObjectRef { birth: object.birth + 1_000, ..object };
    let entries = [
        entry(1 << 63, object),
        entry(u64::MAX, object),
        entry(4_999, object),
        entry(0, object),
        entry(5_000, stranger),
        entry(5_000, ObjectRef { incarnation: Incarnation(7), ..object }),
        // A flag that this version does not know.
        [&b"PCBLOCK2"[..], &5_000_u64.to_le_bytes(), &2_u64.to_le_bytes(), &object.to_bytes()].concat(),
        entry(5_000, object)[..30].to_vec(),
        b"no entry".to_vec(),
        Vec::new(),
    ];
    for (number, entry) in (1_000..).zip(&entries) {
        pipeline.block_on(table.upsert(&key(number), entry)).expect("any bytes");
    }
    let strange: Vec<_> = (1_000..1_000 + u32::try_from(entries.len()).expect("they are few")).collect();
    for number in &strange {
        assert_eq!(user.found(&[&key(*number)]), [false], "{number}");
        for length in [0, 4_999, 5_000] {
            assert_eq!(user.get(&key(*number), length), None, "{number}");
        }
        assert!(user.run(user.store.get_view(&key(*number))).is_none(), "{number}");
        assert!(!user.run(user.store.pin(&key(*number), true)), "{number}");
    }
    let usage = user.run(user.store.usage());
    assert_eq!(usage.bytes, u64::MAX);
    // The store is full several times, and evicts among these entries.
    for number in 0..60 {
        user.run(user.store.put(&key(number), &content(number, 400_000)));
        assert!(user.has(number, 400_000));
    }
    for number in strange {
        user.run(user.store.remove(&key(number)));
        assert_eq!(user.run(user.store.put(&key(number), &content(number, 100))), Put::Stored);
        assert!(user.has(number, 100));
    }
}

#[test]
fn a_full_node_opens_its_store() {
    let node = node_with_quota(4 << 20);
    let first =
        User::with(&node, &StoreOptions { evicts: false, ..StoreOptions::default() }).expect("a store");
    for length in [1 << 20, 1 << 16, 1 << 12, 64, 8, 1] {
        for number in 0..70 {
            let put =
                first.pipeline.block_on(first.store.put(&key(number ^ length), &content(1, length as usize)));
            if put.is_err() {
                break;
            }
        }
    }
    let second = User::new(&node);
    assert_eq!(second.run(second.store.put(b"another", &content(2, 1 << 20))), Put::Stored);
}
