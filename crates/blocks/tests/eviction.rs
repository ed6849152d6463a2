//! A full store evicts what was not used for longest, and nothing that is in use or pinned.

use crate::rig::{User, content, key, node_with, node_with_quota};
use portcullis::{NodeConfig, Quota};
use portcullis_blocks::{BlockError, Put, StoreOptions};

const LENGTH: usize = 256 << 10;
/// A quota for some thirty blocks and the table.
const QUOTA: u64 = 10 << 20;

fn put(user: &User, number: u32) {
    assert_eq!(user.run(user.store.put(&key(number), &content(number, LENGTH))), Put::Stored);
}

#[test]
fn the_block_that_was_not_used_for_longest_goes_first() {
    let node = node_with_quota(QUOTA);
    let user = User::new(&node);
    for number in 0..100 {
        put(&user, number);
        assert!(user.has(0, LENGTH), "the block was used just now: {number}");
    }
    let there: Vec<_> = (1..100).filter(|number| user.has(*number, LENGTH)).collect();
    assert!(there.len() > 20, "{there:?}");
    assert!(there.windows(2).all(|two| two[0] + 1 == two[1]) && there.last() == Some(&99), "{there:?}");
    let counters = user.store.counters();
    assert_eq!(counters.evicted + there.len() as u64 + 1, 100);
    assert_eq!(counters.evicted_bytes, counters.evicted * LENGTH as u64);
}

#[test]
fn blocks_of_others_are_evicted_in_the_order_of_their_birth() {
    let node = node_with_quota(QUOTA);
    let (first, second) = (User::new(&node), User::new(&node));
    for number in 0..30 {
        put(&first, number);
    }
    for number in 100..120 {
        put(&second, number);
    }
    let there: Vec<_> = (0..30).filter(|number| first.has(*number, LENGTH)).collect();
    let least = 30 - u32::try_from(there.len()).expect("they are few");
    assert!(there.iter().all(|number| *number >= least), "{there:?}");
    assert!((100..120).all(|number| second.has(number, LENGTH)));
}

#[test]
fn a_block_that_a_look_up_holds_is_not_evicted() {
    let node = node_with_quota(QUOTA);
    let (own, other) = (User::new(&node), User::new(&node));
    for number in 0..4 {
        put(&own, number);
    }
    assert_eq!(own.found(&[&key(0), &key(1)]), [true; 2]);
    assert_eq!(other.found(&[&key(2)]), [true]);
    for number in 10..80 {
        put(&own, number);
    }
    for (user, number) in [(&own, 0), (&own, 1), (&other, 2)] {
        assert!(user.has(number, LENGTH), "block {number} is evicted although a look-up holds it");
    }
    assert!(!own.has(3, LENGTH));
}

#[test]
fn a_pinned_block_is_not_evicted_by_any_client() {
    let node = node_with_quota(QUOTA);
    let (one, two) = (User::new(&node), User::new(&node));
    put(&one, 0);
    assert!(one.run(one.store.pin(&key(0), true)));
    assert!(!one.run(one.store.pin(&key(1), true)), "there is no such block");
    for number in 10..80 {
        put(if number % 2 == 0 { &one } else { &two }, number);
    }
    assert!(two.has(0, LENGTH));
    assert_eq!(two.run(two.store.usage()).pinned_bytes, LENGTH as u64);
    assert!(two.run(two.store.pin(&key(0), false)));
    for number in 100..180 {
        put(&two, number);
    }
    assert!(!two.has(0, LENGTH));
}

#[test]
fn many_puts_at_once_all_get_the_room_that_evictions_make() {
    let node = node_with_quota(QUOTA);
    let user = User::new(&node);
    for number in 0..60 {
        put(&user, number);
    }
    let contents: Vec<_> = (100..300).map(|number| (key(number), content(number, LENGTH))).collect();
    let puts = contents.iter().map(|(key, bytes)| user.store.put(key, bytes));
    user.pipeline.run(12, puts, |end| assert_eq!(end, Ok(Put::Stored)));
}

#[test]
fn a_quota_of_objects_costs_as_many_blocks_as_are_missing() {
    const OBJECTS: u64 = 40;
    let quota = Quota { objects_max: OBJECTS, ..Quota::default() };
    let node = node_with(NodeConfig { pool_bytes: 256 << 20, quota, ..NodeConfig::default() });
    let user = User::new(&node);
    for number in 0..60 {
        put(&user, number);
    }
    let before = user.run(user.store.usage()).blocks;
    let small: Vec<_> = (100..110).map(|number| (key(number), content(number, 100))).collect();
    let blocks: Vec<_> = small.iter().map(|(key, bytes)| (&key[..], &bytes[..])).collect();
    assert_eq!(user.run(user.store.put_many(&blocks)), [Ok(Put::Stored); 10]);
    let left = (0..60).filter(|number| user.has(*number, LENGTH)).count() as u64;
    // The table may want an object of its own.
    assert!(left + 10 + 2 >= before, "{left} of {before} blocks are left");
    // A long block among short ones costs one of them, not its bytes.
    for number in 200..300 {
        user.run(user.store.put(&key(number), &content(number, 100)));
    }
    let evicted = user.store.counters().evicted;
    put(&user, 400);
    let evicted = user.store.counters().evicted - evicted;
    assert!(evicted <= 4, "{evicted} blocks for one");
}

#[test]
fn a_block_fits_if_one_eviction_and_the_free_room_suffice() {
    let node = node_with_quota(QUOTA);
    let user = User::new(&node);
    user.run(user.store.put(b"first", &content(1, 3 << 20)));
    assert_eq!(user.run(user.store.put(b"second", &content(2, 7 << 20))), Put::Stored);
}

#[test]
fn a_store_without_room_refuses_with_a_reason_and_loses_nothing() {
    let node = node_with_quota(QUOTA);
    let user =
        User::with(&node, &StoreOptions { evicts: false, ..StoreOptions::default() }).expect("a store");
    let contents: Vec<_> = (0..60).map(|number| (key(number), content(number, LENGTH))).collect();
    let blocks: Vec<_> = contents.iter().map(|(key, bytes)| (&key[..], &bytes[..])).collect();
    let ends = user.run(user.store.put_many(&blocks));
    let stored: Vec<_> = (0..60).filter(|number| ends[*number as usize] == Ok(Put::Stored)).collect();
    assert!((20..60).contains(&stored.len()), "{stored:?}");
    assert!(stored.iter().all(|number| user.has(*number, LENGTH)));
    let refused = ends.iter().filter_map(|end| end.err());
    assert!(refused.clone().all(|error| matches!(error, BlockError::NoRoom { .. })), "{ends:?}");
    assert_eq!(refused.count() as u64, user.store.counters().refused);
    // A block that no store could ever have does not cost the others their place.
    let evicting = User::new(&node);
    let huge = vec![0; 11 << 20];
    let refused = evicting.pipeline.block_on(evicting.store.put(b"huge", &huge));
    assert!(matches!(refused, Err(BlockError::NoRoom { .. })), "{refused:?}");
    assert!(stored.iter().all(|number| user.has(*number, LENGTH)), "blocks are evicted in vain");
}
