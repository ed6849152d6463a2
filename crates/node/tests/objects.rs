//! Objects: their references, their lifetimes, the holders of their parts, and their alignment.

use crate::rig::{Rig, acquire, free, granted, keys, refused};
use portcullis_nic::Status;
use portcullis_node::NodeConfig;
use portcullis_protocol::{
    Acquire, Allocate, GrantRequest, Granted, Incarnation, Keep, Lifetime, ObjectName, ObjectRef, Part,
    Refusal, RemoteAddress, ReplyBody, RequestBody, Rights, Sharing,
};

const NOW: Lifetime = Lifetime(0);
const HOUR: Lifetime = Lifetime::seconds(3600);

fn rig() -> Rig {
    Rig::new(NodeConfig { longest_keep: HOUR, ..crate::rig::config() })
}

fn allocate(size: u64, alignment: u64, keep: Keep) -> RequestBody {
    RequestBody::Grant(GrantRequest::Allocate(Allocate {
        size,
        alignment,
        lifetime: Lifetime::millis(100),
        rights: Rights::all(),
        sharing: Sharing::Exclusive,
        keep,
    }))
}

fn part(object: ObjectRef, offset: u64, length: u64, sharing: Sharing, wait: Lifetime) -> RequestBody {
    RequestBody::Grant(GrantRequest::Acquire(Acquire {
        object: object.into(),
        part: Part { offset, length },
        lifetime: Lifetime::millis(100),
        rights: Rights::all(),
        sharing,
        wait,
    }))
}

/// An object of `size` bytes without holders.
fn kept(rig: &mut Rig, client: usize, size: u64, keep: Keep) -> Granted {
    let it = granted(rig.ask(client, allocate(size, 0, keep)));
    rig.revoke(client, it.permission);
    it
}

#[test]
fn an_old_reference_never_opens_a_new_object() {
    let mut rig = rig();
    let client = rig.attach("a");
    let old = kept(&mut rig, client, 100, Keep::Attached);
    assert_eq!(rig.ask(client, free(old.object)), ReplyBody::Done);
    // Repeats until another object lies at the same place.
    let new = (0..1000)
        .map(|_| kept(&mut rig, client, 100, Keep::Attached))
        .find(|it| it.object.address == old.object.address)
        .expect("the place is used again");
    assert_ne!(new.object, old.object);
    assert_eq!(refused(rig.ask(client, acquire(old.object, Sharing::Shared, NOW))), Refusal::Gone);
    assert_eq!(refused(rig.ask(client, free(old.object))), Refusal::Gone);
    granted(rig.ask(client, acquire(new.object, Sharing::Shared, NOW)));
    rig.end();
}

#[test]
fn a_reference_from_another_run_is_refused_as_such() {
    let mut rig = rig();
    let client = rig.attach("a");
    let it = kept(&mut rig, client, 100, Keep::Attached);
    assert_eq!(it.object.incarnation, crate::rig::INCARNATION);
    let before = ObjectRef { incarnation: Incarnation(crate::rig::INCARNATION.0 - 1), ..it.object };
    assert_eq!(refused(rig.ask(client, acquire(before, Sharing::Shared, NOW))), Refusal::AnotherNode);
    assert_eq!(refused(rig.ask(client, free(before))), Refusal::AnotherNode);
    rig.end();
}

#[test]
fn a_reference_that_was_made_up_names_nothing() {
    let mut rig = rig();
    let client = rig.attach("a");
    let it = kept(&mut rig, client, 100, Keep::Attached);
    let ObjectRef { address, birth, .. } = it.object;
    for (address, birth) in [
        (address.0, birth + 1),
        (address.0, birth - 1),
        (address.0, u64::MAX),
        (address.0 + 32, birth),
        (address.0 + 1, birth),
        (0, birth),
        (u64::MAX, birth),
    ] {
        let made_up = ObjectRef { address: RemoteAddress(address), birth, ..it.object };
        assert_eq!(refused(rig.ask(client, acquire(made_up, Sharing::Shared, NOW))), Refusal::Gone);
        assert_eq!(refused(rig.ask(client, free(made_up))), Refusal::Gone);
    }
    rig.end();
}

/// No tenant learns whether another tenant's object exists.
#[test]
fn another_tenants_reference_is_refused_as_one_to_nothing() {
    let mut rig = rig();
    let (one, other) = (rig.attach("a"), rig.attach("b"));
    let it = kept(&mut rig, one, 100, Keep::Attached);
    assert_eq!(refused(rig.ask(other, acquire(it.object, Sharing::Shared, NOW))), Refusal::Gone);
    assert_eq!(refused(rig.ask(other, free(it.object))), Refusal::Gone);
    let address = ObjectName::Address(it.object.address);
    assert_eq!(refused(rig.ask(other, acquire(address, Sharing::Shared, NOW))), Refusal::NoSuchObject);
    granted(rig.ask(one, acquire(address, Sharing::Shared, NOW)));
    rig.end();
}

#[test]
fn an_address_alone_means_whatever_starts_there() {
    let mut rig = rig();
    let client = rig.attach("a");
    let it = kept(&mut rig, client, 100, Keep::Attached);
    let at = it.object.address.0;
    for address in [0, 1, at - 32, at + 1, at + 8, at + 160, u64::MAX] {
        let name = ObjectName::Address(RemoteAddress(address));
        assert_eq!(refused(rig.ask(client, acquire(name, Sharing::Shared, NOW))), Refusal::NoSuchObject);
    }
    let name = ObjectName::Address(it.object.address);
    assert_eq!(granted(rig.ask(client, acquire(name, Sharing::Shared, NOW))).object, it.object);
    rig.end();
}

/// A producer dies and starts again. Its object is still there with its bytes, until its time is over.
#[test]
fn an_object_outlives_its_tenants_clients_for_as_long_as_it_was_asked_to() {
    let mut rig = rig();
    let first = rig.attach("producer");
    let it = granted(rig.ask(first, allocate(100, 0, Keep::For(Lifetime::seconds(5)))));
    let short = kept(&mut rig, first, 100, Keep::For(Lifetime::seconds(1)));
    let attached = kept(&mut rig, first, 100, Keep::Attached);
    assert_eq!(rig.write(first, keys(&it).0, it.address().0, b"still here"), Status::Success);
    rig.detach(first);
    rig.pass(Lifetime::seconds(4));

    let stranger = rig.attach("stranger");
    assert_eq!(refused(rig.ask(stranger, acquire(it.object, Sharing::Shared, NOW))), Refusal::Gone);
    let second = rig.attach("producer");
    for gone in [short, attached] {
        assert_eq!(refused(rig.ask(second, acquire(gone.object, Sharing::Shared, NOW))), Refusal::Gone);
    }
    let again = rig.acquire(second, it.object);
    assert_eq!(rig.read(second, keys(&again).0, again.address().0, 10).1, b"still here");
    // The time does not run while a client is attached.
    rig.revoke(second, again.permission);
    rig.pass(Lifetime::seconds(60));
    let again = rig.acquire(second, it.object);
    rig.revoke(second, again.permission);

    rig.detach(second);
    rig.pass(Lifetime::seconds(6));
    assert_eq!(rig.node.counters().objects, 0);
    let third = rig.attach("producer");
    assert_eq!(refused(rig.ask(third, acquire(it.object, Sharing::Shared, NOW))), Refusal::Gone);
    rig.end();
}

#[test]
fn a_tenant_without_clients_is_gone_with_the_last_object_that_it_left() {
    let mut rig = rig();
    let client = rig.attach("a");
    kept(&mut rig, client, 100, Keep::For(Lifetime::seconds(5)));
    kept(&mut rig, client, 100_000, Keep::For(Lifetime::seconds(7)));
    rig.detach(client);
    assert_eq!(rig.node.counters().tenants, 1);
    assert_eq!(rig.node.counters().objects, 2);
    let started = rig.now;
    for (objects, seconds) in [(1, 5), (0, 7)] {
        while rig.node.counters().objects > objects {
            rig.now = rig.node.next_wake().expect("the node wants to look at what is left");
            rig.settle();
        }
        assert_eq!(rig.now.since(started), Lifetime::seconds(seconds));
    }
    let left = rig.node.counters();
    assert_eq!((left.tenants, left.objects, left.windows), (0, 0, 0));
    rig.end();
}

#[test]
fn what_is_left_behind_counts_against_its_tenants_quota() {
    let quota = portcullis_node::Quota { bytes_max: 1300, ..Default::default() };
    let mut rig = Rig::new(NodeConfig { longest_keep: HOUR, quota, ..crate::rig::config() });
    let client = rig.attach("a");
    kept(&mut rig, client, 600, Keep::For(HOUR));
    rig.detach(client);
    let client = rig.attach("a");
    let refusal = refused(rig.ask(client, allocate(500, 0, Keep::No)));
    assert_eq!(refusal, Refusal::Quota { used: 800, limit: 1300 });
    rig.detach(client);
    rig.pass(HOUR);
    rig.end();
}

#[test]
fn pinned_objects_stay_where_the_node_allows_it() {
    let mut strict = rig();
    let client = strict.attach("a");
    let longest = HOUR;
    for keep in [Keep::Pinned, Keep::For(Lifetime(HOUR.0 + 1))] {
        let refusal = refused(strict.ask(client, allocate(100, 0, keep)));
        assert_eq!(refusal, Refusal::KeptTooLong { longest });
    }
    strict.end();

    let mut rig = Rig::new(NodeConfig { longest_keep: Lifetime(u64::MAX), ..crate::rig::config() });
    let client = rig.attach("a");
    let it = kept(&mut rig, client, 100, Keep::Pinned);
    rig.detach(client);
    rig.pass(Lifetime::seconds(1_000_000));
    let client = rig.attach("a");
    rig.acquire(client, it.object);
    assert_eq!(rig.ask(client, free(it.object)), ReplyBody::Done);
    rig.end();
}

#[test]
fn a_node_that_ends_leaves_nothing_of_tenants_without_clients() {
    let mut rig = Rig::new(NodeConfig { longest_keep: Lifetime(u64::MAX), ..crate::rig::config() });
    let client = rig.attach("a");
    kept(&mut rig, client, 100, Keep::Pinned);
    rig.detach(client);
    rig.node.end(&mut rig.nic, rig.now);
    let left = rig.node.counters();
    assert_eq!((left.tenants, left.objects, left.bytes_used, left.windows), (0, 0, 0, 0));
}

#[test]
fn a_part_of_an_object_is_all_that_its_holder_reaches() {
    let mut rig = rig();
    let client = rig.attach("a");
    let it = kept(&mut rig, client, 1000, Keep::Attached);
    let middle = granted(rig.ask(client, part(it.object, 100, 50, Sharing::Exclusive, NOW)));
    assert_eq!((middle.object, middle.offset, middle.length), (it.object, 100, 50));
    assert_eq!(middle.address().0, it.address().0 + 100);
    let (key, at) = (keys(&middle).0, middle.address().0);
    assert_eq!(rig.write(client, key, at, &[7; 50]), Status::Success);
    for (from, length) in [(at - 1, 1), (at + 50, 1), (at, 51), (it.address().0, 8)] {
        assert_eq!(rig.read(client, key, from, length).0, Status::RemoteAccessError);
        rig.recover(client);
    }
    rig.end();
}

#[test]
fn a_part_lies_within_its_object() {
    let mut rig = rig();
    let client = rig.attach("a");
    let it = kept(&mut rig, client, 1000, Keep::Attached);
    for (offset, length) in
        [(0, 1001), (1, 1000), (999, 2), (1000, 0), (1001, 0), (u64::MAX, 1), (1, u64::MAX)]
    {
        let refusal = refused(rig.ask(client, part(it.object, offset, length, Sharing::Shared, NOW)));
        assert_eq!(refusal, Refusal::OutsideObject { size: 1000 }, "{length} bytes at {offset}");
    }
    for (offset, length, got) in [(0, 0, 1000), (0, 1000, 1000), (999, 1, 1), (400, 0, 600)] {
        let part = granted(rig.ask(client, part(it.object, offset, length, Sharing::Shared, NOW)));
        assert_eq!((part.offset, part.length), (offset, got));
    }
    rig.end();
}

#[test]
fn parts_that_share_no_byte_are_held_beside_each_other() {
    let mut rig = rig();
    let (one, two) = (rig.attach("a"), rig.attach("a"));
    let it = kept(&mut rig, one, 1000, Keep::Attached);
    let left = granted(rig.ask(one, part(it.object, 0, 500, Sharing::Exclusive, NOW)));
    let right = granted(rig.ask(two, part(it.object, 500, 500, Sharing::Exclusive, NOW)));
    for (offset, length, sharing) in
        [(0, 0, Sharing::Shared), (499, 2, Sharing::Shared), (999, 1, Sharing::Exclusive)]
    {
        let refusal = refused(rig.ask(two, part(it.object, offset, length, sharing, NOW)));
        assert_eq!(refusal, Refusal::Conflict, "{length} bytes at {offset}");
    }
    rig.revoke(one, left.permission);
    granted(rig.ask(two, part(it.object, 0, 500, Sharing::Shared, NOW)));
    granted(rig.ask(one, part(it.object, 100, 100, Sharing::Shared, NOW)));
    rig.revoke(two, right.permission);
    rig.end();
}

/// A client that waits for a part sends notice to the holders for which it has to wait, and to no others.
#[test]
fn waiting_for_a_part_gives_notice_to_its_holders_alone() {
    let mut rig = rig();
    let (one, two, three) = (rig.attach("a"), rig.attach("a"), rig.attach("a"));
    let it = kept(&mut rig, one, 1000, Keep::Attached);
    let left = granted(rig.ask(one, part(it.object, 0, 500, Sharing::Exclusive, NOW)));
    let right = granted(rig.ask(two, part(it.object, 500, 500, Sharing::Exclusive, NOW)));
    let waiter = rig.send(three, part(it.object, 0, 10, Sharing::Exclusive, Lifetime::seconds(1)));
    rig.settle();
    let longer =
        |permission| RequestBody::Grant(GrantRequest::Extend { permission, lifetime: Lifetime::millis(300) });
    assert_eq!(refused(rig.ask(one, longer(left.permission))), Refusal::NotExtendable);
    assert!(matches!(rig.ask(two, longer(right.permission)), ReplyBody::Extended(_)));
    // A request that overlaps the waiting one comes after it. A request that does not overlap need not wait.
    let behind = rig.send(one, part(it.object, 5, 10, Sharing::Exclusive, Lifetime::seconds(1)));
    rig.settle();
    assert_eq!(rig.reply(one, behind), None);
    rig.revoke(one, left.permission);
    let first = granted(rig.reply(three, waiter).expect("its turn has come"));
    assert_eq!(rig.reply(one, behind), None);
    granted(rig.ask(two, part(it.object, 100, 10, Sharing::Exclusive, NOW)));
    rig.revoke(three, first.permission);
    granted(rig.reply(one, behind).expect("its turn has come"));
    rig.end();
}

#[test]
fn objects_are_aligned_as_asked_with_their_header_before_them() {
    let mut rig = rig();
    let client = rig.attach("a");
    for alignment in [1, 2, 32, 64, 512, 4096, 65_536, 1 << 20, 2 << 20] {
        for size in [1, 64, 4096, 5000, 70_000] {
            let it = granted(rig.ask(client, allocate(size, alignment, Keep::No)));
            assert_eq!(it.address().0 % alignment, 0, "{size} bytes aligned to {alignment}");
            assert_eq!(it.permission.header.0 + 32, it.address().0);
            let (key, last) = (keys(&it).0, it.address().0 + size - 1);
            assert_eq!(rig.write(client, key, last, &[1]), Status::Success);
            rig.revoke(client, it.permission);
            rig.pass(Lifetime::millis(5));
        }
    }
    for alignment in [3, 48, 4 << 20, u64::MAX] {
        let refusal = refused(rig.ask(client, allocate(64, alignment, Keep::No)));
        assert_eq!(refusal, Refusal::Alignment { most: 2 << 20 });
    }
    rig.end();
}

#[test]
fn aligned_blocks_waste_no_more_than_their_header_costs() {
    let mut rig = Rig::new(NodeConfig { pool_bytes: 64 << 20, ..crate::rig::config() });
    let client = rig.attach("a");
    let held = (0..1024).map(|_| rig.ask(client, allocate(65_536, 4096, Keep::No)));
    let count = held.filter(|reply| matches!(reply, ReplyBody::Granted(_))).count();
    // 68 KiB for each block, and some loss at the end of spans.
    assert!(count > 900, "{count} of 1024");
    rig.end();
}

#[test]
fn an_object_that_nobody_was_told_of_is_not_kept() {
    let mut rig = Rig::new(NodeConfig { windows_max: 2, windows_ready: 1, ..crate::rig::config() });
    let client = rig.attach("a");
    let held: Vec<_> = (0..2).map(|_| rig.allocate(client, 64, true)).collect();
    let before = rig.node.counters();
    for _ in 0..3 {
        let refused = refused(rig.ask(client, crate::rig::allocate(64, true)));
        assert!(matches!(refused, Refusal::NodeFull { .. }), "{refused:?}");
    }
    rig.pass(Lifetime::millis(5));
    let after = rig.node.counters();
    assert_eq!((after.objects, after.bytes_used), (before.objects, before.bytes_used));
    for it in held {
        rig.revoke(client, it.permission);
        rig.acquire(client, it.object);
    }
    rig.end();
}

fn set_keep(object: impl Into<ObjectName>, keep: Keep) -> RequestBody {
    RequestBody::Grant(GrantRequest::Keep { object: object.into(), keep })
}

/// A program can write a reference down before the object is kept: if it dies in between, nothing is left behind.
#[test]
fn an_object_can_be_kept_after_its_reference_was_written_down() {
    let mut rig = rig();
    let (client, sibling) = (rig.attach("a"), rig.attach("a"));
    let it = granted(rig.ask(client, allocate(64, 0, Keep::No)));
    assert_eq!(rig.ask(client, set_keep(it.object, Keep::Attached)), ReplyBody::Done);
    rig.detach(client);
    rig.settle();
    granted(rig.ask(sibling, acquire(it.object, Sharing::Shared, NOW)));
    let lost = granted(rig.ask(sibling, allocate(64, 0, Keep::No)));
    rig.detach(sibling);
    let later = rig.attach("a");
    assert_eq!(refused(rig.ask(later, acquire(lost.object, Sharing::Shared, NOW))), Refusal::Gone);
    rig.end();
}

#[test]
fn the_latest_time_to_keep_an_object_counts() {
    let mut rig = rig();
    let client = rig.attach("a");
    let (longer, shorter) =
        (kept(&mut rig, client, 64, Keep::Attached), kept(&mut rig, client, 64, Keep::For(HOUR)));
    assert_eq!(rig.ask(client, set_keep(longer.object, Keep::For(HOUR))), ReplyBody::Done);
    assert_eq!(rig.ask(client, set_keep(shorter.object, Keep::For(Lifetime::millis(5)))), ReplyBody::Done);
    rig.detach(client);
    rig.pass(Lifetime::millis(50));
    let later = rig.attach("a");
    granted(rig.ask(later, acquire(longer.object, Sharing::Shared, NOW)));
    assert_eq!(refused(rig.ask(later, acquire(shorter.object, Sharing::Shared, NOW))), Refusal::Gone);
    rig.end();
}

#[test]
fn an_object_that_is_kept_no_longer_goes_with_its_last_permission() {
    let mut rig = rig();
    let client = rig.attach("a");
    let held = granted(rig.ask(client, allocate(64, 0, Keep::Attached)));
    let free = kept(&mut rig, client, 64, Keep::For(HOUR));
    for object in [held.object, free.object] {
        assert_eq!(rig.ask(client, set_keep(object, Keep::No)), ReplyBody::Done);
    }
    assert_eq!(refused(rig.ask(client, acquire(free.object, Sharing::Shared, NOW))), Refusal::Gone);
    rig.revoke(client, held.permission);
    assert_eq!(refused(rig.ask(client, acquire(held.object, Sharing::Shared, NOW))), Refusal::Gone);
    rig.pass(Lifetime::millis(5));
    assert_eq!(rig.node.counters().objects, 0);
    rig.end();
}

#[test]
fn a_time_to_keep_an_object_is_checked_as_at_its_allocation_and_for_the_owner_alone() {
    let mut rig = rig();
    let (client, stranger) = (rig.attach("a"), rig.attach("b"));
    let it = kept(&mut rig, client, 64, Keep::Attached);
    for keep in [Keep::For(Lifetime(HOUR.0 + 1)), Keep::Pinned] {
        assert_eq!(
            refused(rig.ask(client, set_keep(it.object, keep))),
            Refusal::KeptTooLong { longest: HOUR }
        );
    }
    assert_eq!(refused(rig.ask(stranger, set_keep(it.object, Keep::No))), Refusal::Gone);
    let address = ObjectName::Address(it.object.address);
    assert_eq!(refused(rig.ask(stranger, set_keep(address, Keep::No))), Refusal::NoSuchObject);
    granted(rig.ask(client, acquire(it.object, Sharing::Shared, NOW)));
    rig.end();
}
