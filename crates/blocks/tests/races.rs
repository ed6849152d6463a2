//! Clients on threads of their own put, get, remove and evict the same blocks.

use crate::rig::{User, content, key, node_with_quota};
use portcullis::{DirectoryName, Lifetime};
use portcullis_blocks::{BlockError, StoreOptions};
use portcullis_errors::Coded;
use portcullis_structures::table::{Access, Table};
use std::time::{Duration, Instant};

const KEYS: u32 = 40;
const CLIENTS: u32 = 3;
const FOR: Duration = Duration::from_secs(3);

fn length_of(number: u32) -> usize {
    1_000 + number as usize * 3_001
}

/// Works until the time is over. Returns the number of hits.
fn work(user: &User, seed: u32) -> u32 {
    let (begun, mut hits, mut draw) = (Instant::now(), 0, seed);
    while begun.elapsed() < FOR {
        draw = draw.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let number = (draw >> 8) % KEYS;
        let (key, bytes) = (key(number), content(number, length_of(number)));
        match (draw >> 28) % 8 {
            0 => {
                user.run(user.store.remove(&key));
            }
            1..4 => match user.pipeline.block_on(user.store.put(&key, &bytes)) {
                Ok(_) | Err(BlockError::NoRoom { .. }) => {}
                // Another client has removed the key before the block was kept.
                Err(error) => assert_eq!(error.code().name(), "object-gone", "a put fails: {error}"),
            },
            4 => {
                user.found(&[&key]);
            }
            _ => hits += u32::from(user.has(number, bytes.len())),
        }
    }
    hits
}

#[test]
fn blocks_that_race_are_whole_and_none_is_leaked() {
    let node = node_with_quota(3 << 20);
    let watcher = User::new(&node);
    std::thread::scope(|scope| {
        for seed in 0..CLIENTS {
            let node = &node;
            scope.spawn(move || {
                let options = StoreOptions { lease: Lifetime::millis(50), ..StoreOptions::default() };
                let user = User::with(node, &options).expect("a store");
                let hits = work(&user, seed);
                assert!(hits > 0, "no block is ever found: {:?}", user.store.counters());
                user.pipeline.block_on(user.store.close()).expect("the session lives");
            });
        }
    });
    let keys: Vec<_> = (0..KEYS).map(key).collect();
    let keys: Vec<_> = keys.iter().map(|key| &key[..]).collect();
    watcher.run(watcher.store.remove_many(&keys));
    let usage = watcher.run(watcher.store.usage());
    assert_eq!(usage.blocks, 0);
    let name = DirectoryName::new("blocks").expect("a name");
    let pipeline = &watcher.pipeline;
    let table =
        pipeline.block_on(Table::open_named(pipeline, name, Access::Write)).expect("the table of the keys");
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        // The objects of the table are left.
        let statistics = pipeline.block_on(table.statistics()).expect("the table is whole");
        let (objects, of_table) = (node.counters().objects, 1 + statistics.subtables + statistics.extents);
        if objects == of_table {
            return;
        }
        assert!(Instant::now() < until, "{objects} objects, and the table has {of_table}: {statistics:?}");
        std::thread::yield_now();
    }
}
