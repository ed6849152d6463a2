//! A block that a look-up has found stays for the read that follows. A read that comes too late gets no other block's
//! bytes.

use crate::rig::{User, content, key, node};
use portcullis::Lifetime;
use portcullis_blocks::StoreOptions;
use std::time::{Duration, Instant};

/// Looks a block up, lets another client remove it and store others in its place, and reads it.
pub fn a_found_block_is_read() {
    let node = node();
    let (reader, other) = (User::new(&node), User::new(&node));
    other.run(other.store.put(&key(0), &content(0, 30_000)));
    let found = reader.found(&[&key(0), &key(1)]);
    assert_eq!(found, [true, false]);
    assert!(other.run(other.store.remove(&key(0))));
    for number in 1..60 {
        other.run(other.store.put(&key(number), &content(number, 30_000)));
    }
    let objects = node.counters().objects;
    assert!(reader.has(0, 30_000), "the block that was found is gone");
    let until = Instant::now() + Duration::from_secs(20);
    // The node unbinds the window a little later.
    while node.counters().objects >= objects {
        assert!(Instant::now() < until, "the block is not freed when its last reader is done");
        std::thread::yield_now();
    }
    assert!(!reader.has(0, 30_000), "the lease serves one read");
}

#[test]
fn a_block_that_was_found_is_read_whatever_others_do() {
    a_found_block_is_read();
}

#[test]
fn each_look_up_of_a_block_serves_one_read() {
    let node = node();
    let (reader, other) = (User::new(&node), User::new(&node));
    other.run(other.store.put(&key(0), &content(0, 100)));
    for _ in 0..2 {
        assert_eq!(reader.found(&[&key(0)]), [true]);
    }
    assert!(other.run(other.store.remove(&key(0))));
    assert!(reader.has(0, 100));
    let view = reader.run(reader.store.get_view(&key(0))).expect("the second look-up holds the block");
    assert!(*view.bytes() == *content(0, 100));
    assert!(reader.run(reader.store.get_view(&key(0))).is_none());
}

#[test]
fn a_read_after_the_lease_gets_the_block_or_a_miss_and_never_another_block() {
    let node = node();
    let lease = Lifetime::millis(40);
    let reader = User::with(&node, &StoreOptions { lease, ..StoreOptions::default() }).expect("a store");
    let other = User::new(&node);
    for round in 0..20 {
        other.run(other.store.put(&key(round), &content(round, 30_000)));
        reader.found(&[&key(round)]);
        if round % 2 == 0 {
            other.run(other.store.remove(&key(round)));
        }
        std::thread::sleep(Duration::from(lease) * 2);
        other.run(other.store.put(&key(1_000 + round), &content(1_000 + round, 30_000)));
        assert_eq!(reader.has(round, 30_000), round % 2 == 1);
    }
}

#[test]
fn a_look_up_that_finds_more_than_it_may_hold_reports_the_others_without_a_lease() {
    let node = node();
    let options = StoreOptions { leases_max: 2, ..StoreOptions::default() };
    let reader = User::with(&node, &options).expect("a store");
    let other = User::new(&node);
    for number in 0..4 {
        other.run(other.store.put(&key(number), &content(number, 100)));
    }
    let keys: Vec<_> = (0..4).map(key).collect();
    let keys: Vec<_> = keys.iter().map(|key| &key[..]).collect();
    assert_eq!(reader.found(&keys), [true; 4]);
    other.run(other.store.remove_many(&keys));
    let hits = (0..4).filter(|number| reader.has(*number, 100)).count();
    assert_eq!(hits, 2);
}
