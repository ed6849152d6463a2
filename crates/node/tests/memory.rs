//! Memory: the sizes that fit, the numbers in refusals, the bytes that are visible, and the ends of objects.

use crate::rig::{Rig, acquire, allocate, free, granted, keys, refused};
use portcullis_nic::Status;
use portcullis_node::{NodeConfig, Quota, Reductions};
use portcullis_protocol::{
    Acquire, Allocate, GrantRequest, Granted, Keep, Lifetime, Mechanism, ObjectName, Part, Refusal,
    ReplyBody, RequestBody, Rights, Sharing,
};

const PAGE: u64 = 64 << 10;
const POOL: u64 = 4 << 20;
/// An object, with its header, that has its own pages.
const LARGE: u64 = 2 << 20;

fn quota(bytes_max: u64, permissions_max: u64) -> NodeConfig {
    NodeConfig { quota: Quota { bytes_max, permissions_max, ..Quota::default() }, ..crate::rig::config() }
}

#[test]
fn a_quota_counts_what_objects_really_take_to_the_byte_and_is_named() {
    // Buffers of 768 and 384 bytes, each with a header of 32.
    let mut rig = Rig::new(quota(800 + 416, 100));
    let (one, two, other) = (rig.attach("a"), rig.attach("a"), rig.attach("b"));
    rig.allocate(one, 600, true);
    let full = Refusal::Quota { used: 800, limit: 1216 };
    assert_eq!(refused(rig.ask(two, allocate(385, false))), full, "it is the tenant's, not the client's");
    assert_eq!(refused(rig.ask(one, allocate(u64::MAX / 2, false))), full);
    let last = rig.allocate(two, 384, false);
    rig.allocate(other, 1024, false);
    rig.revoke(two, last.permission);
    rig.pass(Lifetime::millis(5));
    rig.allocate(one, 300, false);
    assert_eq!(refused(rig.ask(one, allocate(1, false))), Refusal::Quota { used: 1216, limit: 1216 });
    rig.end();
}

#[test]
fn the_tiniest_objects_take_no_more_of_the_pool_than_the_quota_says() {
    let mut rig = Rig::new(quota(96 * 50, 100));
    let client = rig.attach("a");
    for _ in 0..50 {
        rig.allocate(client, 1, true);
    }
    assert_eq!(rig.node.counters().bytes_used, 96 * 50);
    let full = Refusal::Quota { used: 96 * 50, limit: 96 * 50 };
    assert_eq!(refused(rig.ask(client, allocate(1, true))), full);
    rig.end();
}

#[test]
fn objects_are_limited_for_each_tenant_and_in_all() {
    let quota = Quota { objects_max: 4, ..Quota::default() };
    let mut rig = Rig::new(NodeConfig { quota, objects_max: 6, ..crate::rig::config() });
    let (one, other) = (rig.attach("a"), rig.attach("b"));
    let held: Vec<Granted> = (0..4).map(|_| rig.allocate(one, 64, true)).collect();
    assert_eq!(refused(rig.ask(one, allocate(64, true))), Refusal::Quota { used: 4, limit: 4 });
    for _ in 0..2 {
        rig.allocate(other, 64, true);
    }
    assert_eq!(refused(rig.ask(other, allocate(64, true))), Refusal::NodeFull { limit: 6 });
    assert_eq!(rig.node.counters().objects, 6);
    rig.ask(one, free(held[0].object));
    rig.revoke(one, held[0].permission);
    rig.pass(Lifetime::millis(5));
    rig.allocate(other, 64, true);
    rig.end();
}

#[test]
fn permissions_are_counted_too() {
    let mut rig = Rig::new(quota(u64::MAX, 2));
    let client = rig.attach("a");
    let held = [(); 2].map(|()| rig.allocate(client, 64, true));
    let full = Refusal::Quota { used: 2, limit: 2 };
    let before = rig.node.counters();
    assert_eq!(refused(rig.ask(client, allocate(64, true))), full);
    assert_eq!(rig.node.counters().objects, before.objects, "nothing is left of what was refused");
    assert_eq!(rig.node.counters().bytes_used, before.bytes_used);
    rig.revoke(client, held[0].permission);
    rig.acquire(client, held[0].object);
    assert_eq!(
        refused(rig.ask(client, acquire(held[0].object, Sharing::Shared, Lifetime(0)))),
        Refusal::Conflict
    );
    rig.end();
}

/// Delayed unbinding must not be visible: a client that got the reply to its revoke may use its quota again.
#[test]
fn a_quota_is_free_as_soon_as_the_revoke_is_answered() {
    let mut rig = Rig::new(quota((1 << 20) + 32, 100));
    let client = rig.attach("a");
    for _ in 0..10 {
        let it = rig.allocate(client, 1 << 20, false);
        rig.revoke(client, it.permission);
    }
    rig.end();
}

#[test]
fn requests_for_nothing_and_for_too_much_are_refused_by_name() {
    let longest = Lifetime::seconds(1);
    let mut rig = Rig::new(NodeConfig { longest_lifetime: longest, ..crate::rig::config() });
    let client = rig.attach("a");
    let it = rig.allocate(client, 64, true);
    let rights = Rights::all();
    let sharing = Sharing::Shared;
    for (size, lifetime, rights, refusal) in [
        (0, Lifetime(1), rights, Refusal::Nothing),
        (64, Lifetime(0), rights, Refusal::Nothing),
        (64, Lifetime(1), Rights::empty(), Refusal::Nothing),
        (64, Lifetime(1_000_001), rights, Refusal::LifetimeTooLong { longest }),
        (64, Lifetime(u64::MAX), rights, Refusal::LifetimeTooLong { longest }),
        (POOL + 1, Lifetime(1), rights, Refusal::OutOfMemory { size: POOL + 1 }),
        (POOL, Lifetime(1), rights, Refusal::OutOfMemory { size: POOL }),
        (u64::MAX, Lifetime(1), rights, Refusal::OutOfMemory { size: u64::MAX }),
        (u64::MAX - 31, Lifetime(1), rights, Refusal::OutOfMemory { size: u64::MAX - 31 }),
    ] {
        let body = RequestBody::Grant(GrantRequest::Allocate(Allocate {
            size,
            alignment: 0,
            lifetime,
            rights,
            sharing,
            keep: Keep::No,
        }));
        assert_eq!(refused(rig.ask(client, body)), refusal, "{body:?}");
        let (object, part, wait) = (it.object.into(), Part::WHOLE, Lifetime(0));
        let body = RequestBody::Grant(GrantRequest::Acquire(Acquire {
            object,
            part,
            lifetime,
            rights,
            sharing,
            wait,
        }));
        if matches!(refusal, Refusal::Nothing | Refusal::LifetimeTooLong { .. }) && size == 64 {
            assert_eq!(refused(rig.ask(client, body)), refusal, "{body:?}");
        }
    }
    assert_eq!(rig.node.counters().objects, 1);
    rig.end();
}

#[test]
fn the_whole_pool_can_be_one_object_and_again_many() {
    let mut rig = Rig::new(crate::rig::config());
    let client = rig.attach("a");
    for _ in 0..3 {
        let it = rig.allocate(client, POOL - 32, false);
        assert_eq!(refused(rig.ask(client, allocate(1, false))), Refusal::OutOfMemory { size: 1 });
        assert_eq!(rig.node.counters().bytes_used, POOL);
        assert_eq!(rig.write(client, keys(&it).0, it.address().0 + POOL - 33, &[9]), Status::Success);
        rig.revoke(client, it.permission);
        // The window lingers, so the next request waits for the unbind, but not for time to pass.
        let many: Vec<Granted> = (0..POOL / LARGE).map(|_| rig.allocate(client, LARGE - 32, false)).collect();
        for it in many {
            rig.revoke(client, it.permission);
        }
    }
    rig.end();
}

#[test]
fn requests_that_wait_for_memory_end_with_their_client() {
    let mut rig = Rig::new(crate::rig::config());
    let (one, two) = (rig.attach("a"), rig.attach("b"));
    let it = rig.allocate(one, POOL - 32, false);
    rig.send(one, RequestBody::Grant(GrantRequest::Revoke { permission: it.permission, free: false }));
    rig.send(two, allocate(POOL - 32, false));
    rig.turn();
    rig.turn();
    rig.detach(two);
    rig.settle();
    assert_eq!(rig.node.counters().postponed, 0);
    let two = rig.attach("b");
    let again = rig.allocate(two, POOL - 32, false);
    assert_eq!(rig.read(two, keys(&again).0, again.address().0, 4096), (Status::Success, vec![0; 4096]));
    rig.end();
}

/// Fills an object and frees it. Another tenant then gets the same bytes.
fn scrubbed(mechanism: Mechanism, size: u64) {
    let config =
        NodeConfig { mechanism, pool_bytes: size.next_multiple_of(PAGE) + PAGE, ..crate::rig::config() };
    let mut rig = Rig::new(config);
    let (one, two) = (rig.attach("a"), rig.attach("b"));
    let it = rig.allocate(one, size, false);
    for at in (0..size).step_by(1 << 16) {
        let length = usize::try_from((size - at).min(1 << 16)).expect("small");
        assert_eq!(rig.write(one, keys(&it).0, it.address().0 + at, &vec![0xa5; length]), Status::Success);
    }
    rig.revoke(one, it.permission);
    loop {
        let mine = rig.allocate(two, size, false);
        for at in (0..size).step_by(1 << 16) {
            let length = u32::try_from((size - at).min(1 << 16)).expect("small");
            let (status, bytes) = rig.read(two, keys(&mine).0, mine.address().0 + at, length);
            assert_eq!(status, Status::Success);
            assert!(bytes.iter().all(|&byte| byte == 0), "{size} bytes, at {at}: another tenant's");
        }
        if mine.address() == it.address() {
            break;
        }
    }
    rig.end();
}

#[test]
fn nobody_sees_another_tenants_bytes() {
    for mechanism in [Mechanism::MemoryWindow, Mechanism::WindowGroup, Mechanism::MemoryRegion] {
        for size in [1, 8, 64, 1000, 5000, 128 << 10, (128 << 10) + 8, 1 << 20, (1 << 20) + 12_345] {
            scrubbed(mechanism, size);
        }
    }
}

/// A pool of one object of 2 MiB, to which a tenant has written and which it has freed. A client of tenant «b» has
/// requested to share the memory: the scrub has begun and takes many turns.
fn being_scrubbed() -> (Rig, usize, ObjectName, u32) {
    let mut rig = Rig::new(NodeConfig { pool_bytes: LARGE + PAGE, ..crate::rig::config() });
    let (one, two) = (rig.attach("a"), rig.attach("b"));
    let it = rig.allocate(one, LARGE, false);
    let last = it.address().0 + LARGE - 64;
    assert_eq!(rig.write(one, keys(&it).0, last, &[0xa5; 64]), Status::Success);
    rig.revoke(one, it.permission);
    rig.pass(Lifetime::millis(5));
    let first = rig.send(
        two,
        RequestBody::Grant(GrantRequest::Allocate(Allocate {
            size: LARGE,
            alignment: 0,
            lifetime: Lifetime::millis(3),
            rights: Rights::all(),
            sharing: Sharing::Shared,
            keep: Keep::No,
        })),
    );
    rig.turn();
    (rig, two, ObjectName::Address(it.address()), first)
}

#[test]
fn nobody_is_let_in_while_another_tenants_bytes_are_scrubbed() {
    let (mut rig, two, address, first) = being_scrubbed();
    let waiter = rig.send(two, acquire(address, Sharing::Shared, Lifetime::seconds(1)));
    let gives_up = rig.send(two, acquire(address, Sharing::Shared, Lifetime::micros(1)));
    rig.turn();
    rig.now = rig.now.after(Lifetime::micros(2));
    for _ in 0..200 {
        rig.turn();
        if let Some(reply) = rig.reply(two, waiter) {
            let held = granted(reply);
            let (status, bytes) = rig.read(two, keys(&held).0, address.address().0 + LARGE - 64, 64);
            assert_eq!(status, Status::Success);
            assert_eq!(bytes, vec![0; 64], "another tenant's");
            break;
        }
    }
    assert_eq!(rig.reply(two, gives_up).map(refused), Some(Refusal::Conflict));
    assert!(rig.reply(two, first).is_some());
    rig.end();
}

#[test]
fn those_who_may_share_a_scrubbed_object_get_it_with_its_first_holder() {
    let (mut rig, two, address, first) = being_scrubbed();
    let waiter = rig.send(two, acquire(address, Sharing::Shared, Lifetime::seconds(1)));
    rig.settle();
    assert!(rig.reply(two, first).is_some_and(|reply| granted(reply).address() == address.address()));
    assert!(rig.reply(two, waiter).is_some_and(|reply| granted(reply).address() == address.address()));
    rig.end();
}

#[test]
fn a_lease_does_not_run_while_its_memory_is_scrubbed() {
    let (mut rig, two, address, first) = being_scrubbed();
    rig.turn();
    // The machine is slow: in this time the lease of 3 ms would have ended twice.
    rig.now = rig.now.after(Lifetime::millis(6));
    rig.settle();
    let held = granted(rig.reply(two, first).expect("a grant"));
    assert_eq!(held.waited, Lifetime::millis(6));
    assert_eq!(rig.read(two, keys(&held).0, address.address().0, 8).0, Status::Success);
    rig.pass(Lifetime::millis(3));
    assert_eq!(rig.read(two, keys(&held).0, address.address().0, 8).0, Status::RemoteAccessError);
    rig.end();
}

#[test]
fn a_scrub_touches_no_neighbour() {
    let mut rig = Rig::new(NodeConfig { pool_bytes: 2 * PAGE, ..crate::rig::config() });
    let (one, two) = (rig.attach("a"), rig.attach("b"));
    // Objects of two tenants are allocated and freed side by side in one page.
    let stays: Vec<Granted> = (0..8).map(|_| rig.allocate(one, 200, true)).collect();
    for it in &stays {
        rig.write(one, keys(it).0, it.address().0, &[0x11; 200]);
    }
    for _ in 0..40 {
        let comes = rig.allocate(two, 200, false);
        assert_eq!(rig.read(two, keys(&comes).0, comes.address().0, 200).1, vec![0; 200]);
        rig.write(two, keys(&comes).0, comes.address().0, &[0x22; 200]);
        rig.revoke(two, comes.permission);
        let other = rig.allocate(one, 200, false);
        let seen = rig.read(one, keys(&other).0, other.address().0, 200).1;
        assert!(!seen.contains(&0x22));
        rig.revoke(one, other.permission);
        for it in &stays {
            assert_eq!(rig.read(one, keys(it).0, it.address().0, 200).1, vec![0x11; 200]);
        }
    }
    rig.end();
}

#[test]
fn a_tenant_that_comes_again_is_another_one() {
    let mut rig = Rig::new(NodeConfig { pool_bytes: PAGE, ..crate::rig::config() });
    let one = rig.attach("a");
    let it = rig.allocate(one, 4096, true);
    rig.write(one, keys(&it).0, it.address().0, &[7; 4096]);
    rig.detach(one);
    let two = rig.attach("b");
    for _ in 0..10 {
        let fresh = rig.allocate(two, 4096, false);
        assert_eq!(rig.read(two, keys(&fresh).0, fresh.address().0, 4096).1, vec![0; 4096]);
    }
    rig.end();
}

#[test]
fn a_kept_object_stays_until_it_is_freed() {
    for (held, at_once) in [(false, false), (true, false), (true, true)] {
        let mut rig = Rig::new(crate::rig::config());
        let client = rig.attach("a");
        let it = rig.allocate(client, 64, true);
        rig.write(client, keys(&it).0, it.address().0, b"kept for ever");
        rig.revoke(client, it.permission);
        rig.pass(Lifetime::seconds(1));
        let it = rig.acquire(client, it.object);
        assert_eq!(rig.read(client, keys(&it).0, it.address().0, 13).1, b"kept for ever");
        let revoke = RequestBody::Grant(GrantRequest::Revoke { permission: it.permission, free: false });
        let free = free(it.object);
        match (held, at_once) {
            (false, _) => {
                rig.ask(client, revoke);
                assert_eq!(rig.ask(client, free), ReplyBody::Done);
            }
            (true, false) => {
                assert_eq!(rig.ask(client, free), ReplyBody::Done);
                assert_eq!(
                    rig.read(client, keys(&it).0, it.address().0, 13).1,
                    b"kept for ever",
                    "still held"
                );
                assert_eq!(rig.node.counters().objects, 1);
                rig.ask(client, revoke);
            }
            (true, true) => {
                let sent = [rig.send(client, revoke), rig.send(client, free)];
                rig.settle();
                assert_eq!(sent.map(|it| rig.reply(client, it)), [Some(ReplyBody::Done); 2]);
            }
        }
        assert_eq!(refused(rig.ask(client, acquire(it.object, Sharing::Shared, Lifetime(0)))), Refusal::Gone);
        assert_eq!(refused(rig.ask(client, free)), Refusal::Gone);
        rig.pass(Lifetime::millis(5));
        assert_eq!(rig.node.counters().objects, 0);
        rig.end();
    }
}

#[test]
fn a_revoke_that_frees_frees_after_the_last_holder() {
    let mut rig = Rig::new(crate::rig::config());
    let (one, two) = (rig.attach("a"), rig.attach("a"));
    let it = rig.allocate(one, 64, true);
    rig.revoke(one, it.permission);
    let [first, second] =
        [one, two].map(|client| granted(rig.ask(client, acquire(it.object, Sharing::Shared, Lifetime(0)))));
    let free = RequestBody::Grant(GrantRequest::Revoke { permission: first.permission, free: true });
    assert_eq!(rig.ask(one, free), ReplyBody::Done);
    assert_eq!(rig.read(two, keys(&second).0, it.address().0, 8).0, Status::Success);
    rig.revoke(two, second.permission);
    rig.pass(Lifetime::millis(5));
    assert_eq!(rig.node.counters().objects, 0);
    rig.end();
}

#[test]
fn kept_objects_go_with_their_tenants_last_client() {
    for reductions in [Reductions::default(), Reductions::none()] {
        let mut rig = Rig::new(NodeConfig { reductions, ..crate::rig::config() });
        let (one, two, other) = (rig.attach("a"), rig.attach("a"), rig.attach("b"));
        let it = rig.allocate(one, 64, true);
        rig.allocate(other, 64, true);
        rig.detach(one);
        rig.settle();
        rig.acquire(two, it.object);
        rig.detach(two);
        rig.settle();
        let left = rig.node.counters();
        assert_eq!((left.objects, left.tenants, left.permissions), (1, 1, 1));
        rig.end();
    }
}

/// Headers are few, and lingering windows must not keep them from new requests.
#[test]
fn a_node_without_headers_left_says_so() {
    let mut rig = Rig::new(NodeConfig { headers: 4, reductions: Reductions::none(), ..crate::rig::config() });
    let client = rig.attach("a");
    let held = [(); 4].map(|()| rig.allocate(client, 64, false));
    let before = rig.node.counters();
    assert_eq!(refused(rig.ask(client, allocate(64, false))), Refusal::NodeFull { limit: 4 });
    assert_eq!(rig.node.counters().bytes_used, before.bytes_used);
    for it in held {
        rig.revoke(client, it.permission);
    }
    rig.allocate(client, 64, false);
    rig.end();
}

#[test]
fn a_turn_zeroes_no_more_than_a_little() {
    const OBJECT: u64 = 4000;
    const OBJECTS: u64 = 64;
    let mut rig = Rig::new(NodeConfig { pool_bytes: 1 << 20, ..crate::rig::config() });
    let (one, two) = (rig.attach("a"), rig.attach("b"));
    let dirty = rig.allocate(one, 768 << 10, false);
    rig.revoke(one, dirty.permission);
    rig.pass(Lifetime::millis(5));
    let asks: Vec<u32> = (0..8).map(|_| rig.send(two, allocate(OBJECT, false))).collect();
    let mut turns = 0;
    let mut granted: Vec<Granted> = Vec::new();
    let mut waiting = asks;
    while (granted.len() as u64) < OBJECTS {
        rig.turn();
        turns += 1;
        let mut left = Vec::new();
        for ask in waiting {
            match rig.reply(two, ask) {
                Some(reply) => {
                    granted.push(crate::rig::granted(reply));
                    left.push(rig.send(two, allocate(OBJECT, false)));
                }
                None => left.push(ask),
            }
        }
        waiting = left;
        assert!(turns < 10_000, "{} are granted", granted.len());
    }
    assert!(turns >= OBJECTS * OBJECT / (16 << 10), "{OBJECTS} objects of {OBJECT} bytes in {turns} turns");
    for it in granted {
        let (status, bytes) = rig.read(two, keys(&it).0, it.address().0, 4000);
        assert!(status == Status::Success && bytes.iter().all(|&byte| byte == 0));
    }
}
