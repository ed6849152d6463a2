//! Clients without queue pairs: the regions that the node opens and closes for their permissions, and when.

mod model;
mod world;

use crate::rig::{acquire, allocate, free, granted, refused};
use portcullis_node::{NodeConfig, Reductions};
use portcullis_protocol::{
    Acquire, Allocate, GrantRequest, Granted, Keep, LIFETIME_OFFSET, Lifetime, Mechanism, Part, Refusal,
    ReplyBody, RequestBody, Rights, Sharing,
};
use world::{HOST, NOW, PLACES, WHILE, World, name, revoke};

#[test]
fn a_permission_is_one_region_with_its_bytes_and_rights_from_grant_to_end() {
    let mut world = World::new(crate::rig::config(), PLACES);
    let guest = world.guest("a");
    let (lifetime, sharing) = (Lifetime::millis(100), Sharing::Exclusive);
    let rights = Rights::READ;
    let body = RequestBody::Grant(GrantRequest::Allocate(Allocate {
        size: 1000,
        alignment: 0,
        lifetime,
        rights,
        sharing,
        keep: Keep::Attached,
    }));
    let it = granted(world.ask(guest, body));
    assert_eq!(it.mechanism, Mechanism::RegionKey);
    let region = world.region(&it).expect("it is open");
    assert_eq!((region.client, region.host, region.rights), (guest, HOST, rights));
    assert_eq!((region.address, region.length), (it.address(), 1000));
    assert_eq!(region.lifetime_word.0, it.permission.header.0 + LIFETIME_OFFSET);
    let part = RequestBody::Grant(GrantRequest::Acquire(Acquire {
        object: it.object.into(),
        part: Part { offset: 100, length: 8 },
        lifetime,
        rights,
        sharing: Sharing::Shared,
        wait: NOW,
    }));
    world.revoke(guest, &it);
    assert_eq!(world.region(&it), None);
    let part = granted(world.ask(guest, part));
    let region = world.region(&part).expect("it is open");
    assert_eq!((region.address.0, region.length), (it.address().0 + 100, 8));
    assert!(name(&part) != name(&it));
    world.leave(guest);
    world.end();
}

#[test]
fn a_full_table_refuses_clearly_and_harms_no_other() {
    let mut world = World::new(crate::rig::config(), 3);
    let (one, other) = (world.guest("a"), world.guest("b"));
    let held: Vec<Granted> = (0..3).map(|_| world.hold(one)).collect();
    for guest in [one, other] {
        assert_eq!(refused(world.ask(guest, allocate(64, false))), Refusal::NodeFull { limit: 3 });
    }
    assert!(held.iter().all(|it| world.region(it).is_some()));
    let with_queue_pairs = world.rig.attach("b");
    world.rig.allocate(with_queue_pairs, 64, false);
    world.revoke(one, &held[1]);
    let next = world.hold(other);
    assert_eq!((name(&next).index, name(&next).generation), (name(&held[1]).index, 1));
    assert_eq!(world.rig.node.counters().permissions, 4, "what was refused has left nothing");
    world.leave(one);
    world.leave(other);
    world.end();
}

#[test]
fn a_tenant_has_its_share_of_the_table_and_leaves_the_rest_to_others() {
    let mut world = World::new(NodeConfig { tenant_regions_max: 2, ..crate::rig::config() }, PLACES);
    let (one, sibling, other) = (world.guest("a"), world.guest("a"), world.guest("b"));
    let (held, theirs) = (world.hold(one), world.hold(sibling));
    for guest in [one, sibling] {
        let refusal = refused(world.ask(guest, allocate(64, false)));
        assert_eq!(refusal, Refusal::Quota { used: 2, limit: 2 });
    }
    world.hold(other);
    world.hold(other);
    world.revoke(one, &held);
    world.hold(sibling);
    assert!(world.region(&theirs).is_some());
    for guest in [one, sibling, other] {
        world.leave(guest);
    }
    world.end();
}

/// A window over the object, which a client with queue pairs has just ended, is still bound.
#[test]
fn nothing_is_opened_over_an_object_before_the_nic_has_taken_down_what_has_ended_there() {
    for delayed_unbinding in [false, true] {
        let reductions = Reductions { delayed_unbinding, ..Reductions::default() };
        let mut world = World::new(NodeConfig { reductions, ..crate::rig::config() }, PLACES);
        let (client, guest) = (world.rig.attach("a"), world.guest("a"));
        let held = world.rig.allocate(client, 64, true);
        let waits = world.say(guest, acquire(held.object, Sharing::Exclusive, WHILE));
        let apart = world.say(guest, allocate(64, false));
        world.rig.send(client, revoke(&held, false));
        world.rig.deliver();
        for _ in 0..50 {
            world.turn_alone();
        }
        assert!(world.reply(guest, waits).is_none(), "the NIC has confirmed nothing");
        granted(world.reply(guest, apart).expect("another object is open at once"));
        assert_eq!(world.open(), 1);
        world.settle();
        let it = granted(world.reply(guest, waits).expect("an answer"));
        assert!(world.region(&it).is_some());
        world.leave(guest);
        world.end();
    }
}

/// Another thread carries out an operation under a permission at the moment at which the permission ends.
#[test]
fn what_an_operation_still_uses_is_handed_to_nobody_and_its_end_is_not_confirmed() {
    let mut world = World::new(crate::rig::config(), PLACES);
    let (one, other) = (world.guest("a"), world.guest("a"));
    let with_queue_pairs = world.rig.attach("a");
    let held = granted(world.ask(one, allocate(64, true)));
    let (second, apart) = (granted(world.ask(one, allocate(64, true))), world.hold(one));
    world.table.lock().expect("not poisoned").is_in_use = true;
    let ends = world.say(one, revoke(&held, false));
    let waits = world.say(other, acquire(held.object, Sharing::Exclusive, WHILE));
    world.say(one, revoke(&second, false));
    world.settle();
    let window = world.rig.send(with_queue_pairs, acquire(second.object, Sharing::Exclusive, WHILE));
    world.settle();
    assert_eq!((world.region(&held), world.region(&second)), (None, None), "no operation begins");
    assert_eq!(world.rig.reply(with_queue_pairs, window), None, "a window waits as a region does");
    assert!(world.rig.node.next_wake().is_some_and(|wake| wake.since(world.rig.now) < Lifetime::millis(1)));
    assert_eq!((world.reply(one, ends), world.reply(other, waits)), (None, None));
    world.table.lock().expect("not poisoned").is_in_use = false;
    world.revoke(one, &apart);
    world.table.lock().expect("not poisoned").in_use.clear();
    world.settle();
    assert_eq!(world.reply(one, ends), Some(ReplyBody::Done));
    granted(world.reply(other, waits).expect("an answer"));
    granted(world.rig.reply(with_queue_pairs, window).expect("an answer"));
    world.leave(one);
    world.leave(other);
    world.end();
}

/// The clients wait for the object before its holder's permission ends, so that both happen in one turn.
#[test]
fn a_client_that_waits_gets_nothing_before_the_operation_of_the_holder_has_ended() {
    for expires in [false, true] {
        let mut world = World::new(crate::rig::config(), PLACES);
        let (holder, guest) = (world.guest("a"), world.guest("a"));
        let with_queue_pairs = world.rig.attach("a");
        let held = [0, 1].map(|_| granted(world.ask(holder, allocate(64, true))));
        let window = world.rig.send(with_queue_pairs, acquire(held[0].object, Sharing::Exclusive, WHILE));
        let region = world.say(guest, acquire(held[1].object, Sharing::Exclusive, WHILE));
        world.settle();
        world.table.lock().expect("not poisoned").is_in_use = true;
        if expires {
            world.pass(Lifetime::millis(101));
        } else {
            for it in &held {
                world.say(holder, revoke(it, false));
            }
            world.settle();
        }
        assert_eq!(world.open(), 0);
        assert_eq!((world.rig.reply(with_queue_pairs, window), world.reply(guest, region)), (None, None));
        let mut table = world.table.lock().expect("not poisoned");
        (table.is_in_use, table.in_use) = (false, Default::default());
        drop(table);
        world.settle();
        granted(world.rig.reply(with_queue_pairs, window).expect("an answer"));
        granted(world.reply(guest, region).expect("an answer"));
        world.leave(holder);
        world.leave(guest);
        world.end();
    }
}

/// The operation ends between any two of the node's questions.
#[test]
fn an_end_is_reported_whenever_its_operation_ends() {
    for questions in 1..12 {
        let mut world = World::new(crate::rig::config(), PLACES);
        let (holder, guest) = (world.guest("a"), world.guest("a"));
        let held = granted(world.ask(holder, allocate(64, true)));
        let waits = world.say(guest, acquire(held.object, Sharing::Exclusive, WHILE));
        world.settle();
        let mut table = world.table.lock().expect("not poisoned");
        (table.is_in_use, table.ends_after) = (true, Some(questions));
        drop(table);
        let ends = world.say(holder, revoke(&held, false));
        for _ in 0..20 {
            world.pass(Lifetime::micros(100));
        }
        assert_eq!(world.reply(holder, ends), Some(ReplyBody::Done), "after {questions} questions");
        granted(world.reply(guest, waits).expect("an answer"));
        world.table.lock().expect("not poisoned").is_in_use = false;
        world.leave(holder);
        world.leave(guest);
        world.end();
    }
}

/// The last client of a tenant leaves while another thread carries out an operation under its permission.
#[test]
fn a_tenant_stays_for_as_long_as_an_operation_uses_its_memory() {
    let mut world = World::new(crate::rig::config(), PLACES);
    let guest = world.guest("a");
    world.hold(guest);
    world.table.lock().expect("not poisoned").is_in_use = true;
    world.leave(guest);
    for _ in 0..10 {
        world.pass(Lifetime::millis(10));
        assert_eq!(world.rig.node.counters().objects, 1, "its memory is not free");
    }
    world.table.lock().expect("not poisoned").in_use.clear();
    world.pass(Lifetime::millis(10));
    assert_eq!(world.rig.node.counters().objects, 0);
    world.end();
}

#[test]
fn who_leaves_while_its_permission_waits_for_the_nic_gets_nothing_and_leaves_nothing() {
    let mut world = World::new(crate::rig::config(), PLACES);
    let (client, guest) = (world.rig.attach("a"), world.guest("a"));
    let held = world.rig.allocate(client, 64, true);
    world.say(guest, acquire(held.object, Sharing::Exclusive, WHILE));
    world.rig.send(client, revoke(&held, false));
    world.rig.deliver();
    for _ in 0..50 {
        world.turn_alone();
    }
    world.leave(guest);
    world.settle();
    assert_eq!((world.open(), world.table.lock().expect("not poisoned").opened), (0, 0));
    world.rig.acquire(client, held.object);
    world.end();
}

#[test]
fn an_object_that_is_let_go_of_goes_with_its_last_region() {
    let mut world = World::new(crate::rig::config(), PLACES);
    let (one, other) = (world.guest("a"), world.guest("a"));
    let alone = world.hold(one);
    assert_eq!(world.ask(one, revoke(&alone, true)), ReplyBody::Done);
    assert_eq!((world.open(), world.rig.node.counters().objects), (0, 0));
    let (lifetime, rights, keep) = (Lifetime::millis(100), Rights::READ, Keep::Attached);
    let body = RequestBody::Grant(GrantRequest::Allocate(Allocate {
        size: 64,
        alignment: 0,
        lifetime,
        rights,
        sharing: Sharing::Shared,
        keep,
    }));
    let first = granted(world.ask(one, body));
    let second = granted(world.ask(other, acquire(first.object, Sharing::Shared, NOW)));
    // All in one turn: the object is freed, it loses its holders, and a client requests it again.
    let orders = [
        (one, free(first.object)),
        (one, revoke(&first, false)),
        (other, revoke(&second, false)),
        (other, revoke(&second, false)),
        (one, acquire(first.object, Sharing::Exclusive, WHILE)),
    ];
    let asked = orders.map(|(guest, body)| (guest, world.say(guest, body)));
    world.settle();
    let [freed, revoked, last, twice, late] =
        asked.map(|(guest, sequence)| world.reply(guest, sequence).expect("an answer"));
    assert_eq!([freed, revoked, last], [ReplyBody::Done; 3]);
    assert_eq!([refused(twice), refused(late)], [Refusal::NotLive, Refusal::Gone]);
    assert_eq!((world.open(), world.rig.node.counters().objects), (0, 0));
    world.leave(one);
    world.leave(other);
    world.end();
}

#[test]
fn whoever_leaves_has_nothing_open_from_that_moment_and_its_sibling_keeps_all() {
    let mut world = World::new(crate::rig::config(), PLACES);
    let (one, sibling) = (world.guest("a"), world.guest("a"));
    let held: Vec<Granted> = (0..5).map(|_| world.hold(one)).collect();
    assert!(held.iter().all(|it| world.region(it).is_some()));
    let kept = world.hold(sibling);
    // The request is sent, and not yet handled.
    world.say(one, allocate(64, false));
    world.leave(one);
    assert_eq!(world.open(), 1);
    world.settle();
    assert_eq!(world.open(), 1);
    assert!(world.region(&kept).is_some());
    assert_eq!(world.rig.node.counters().permissions, 1);
    world.leave(sibling);
    world.end();
}

/// The tenant ends with its last client. The permissions that have ended by then and that are not yet reported to the
/// books end with it, once.
#[test]
fn a_tenant_that_ends_with_many_permissions_goes_in_turns_and_others_are_served_meanwhile() {
    const HELD: usize = 300;
    let config = NodeConfig { steps_per_turn: 8, ..crate::rig::config() };
    let mut world = World::new(config, HELD + 1);
    let (one, other) = (world.guest("a"), world.guest("b"));
    let held: Vec<Granted> = (0..HELD).map(|_| world.hold(one)).collect();
    for it in &held[..10] {
        world.say(one, revoke(it, true));
    }
    world.turn_alone();
    world.leave(one);
    let mut open = world.open();
    assert!(open > HELD / 2, "most of it takes turns: {open}");
    let asked = world.say(other, allocate(64, false));
    let mut turns = 0;
    while open > 1 {
        world.turn_alone();
        assert!(open <= world.open() + 16, "a turn ends no more than its steps");
        open = world.open();
        turns += 1;
        assert!(turns < 1000, "{open} stay open");
    }
    granted(world.reply(other, asked).expect("it did not wait for all of that"));
    assert!(turns > HELD / 16);
    world.settle();
    let left = world.rig.node.counters();
    assert_eq!((left.permissions, left.objects, left.tenants), (1, 1, 1));
    world.leave(other);
    world.end();
}

#[test]
fn the_last_client_leaves_while_its_ended_permissions_are_on_their_way_to_the_books() {
    for revoked in 0..4 {
        for alone in 0..4 {
            let mut world = World::new(crate::rig::config(), PLACES);
            let guest = world.guest("a");
            let held: Vec<Granted> = (0..4).map(|_| world.hold(guest)).collect();
            for it in &held[..revoked] {
                world.say(guest, revoke(it, revoked % 2 == 0));
            }
            world.say(guest, allocate(64, true));
            for _ in 0..alone {
                world.turn_alone();
            }
            world.leave(guest);
            // Another tenant gets the memory, and the slots of the permissions that have gone.
            let next = world.guest("b");
            world.hold(next);
            world.settle();
            assert_eq!(world.open(), 1);
            world.leave(next);
            world.end();
        }
    }
}

#[test]
fn an_extension_keeps_the_region_open_and_the_end_of_its_time_closes_it() {
    let mut world = World::new(crate::rig::config(), PLACES);
    let guest = world.guest("a");
    let (by_message, by_word, not) = (world.hold(guest), world.hold(guest), world.hold(guest));
    let extended = Lifetime::millis(300);
    let body =
        RequestBody::Grant(GrantRequest::Extend { permission: by_message.permission, lifetime: extended });
    assert!(!matches!(world.ask(guest, body), ReplyBody::Refused(_)));
    // This is the effect of the client's atomic on the word that is open to it.
    let word = world.region(&by_word).expect("it is open").lifetime_word;
    let region = world.region(&by_word).expect("it is open");
    let at = word.0.wrapping_sub(region.address.0).wrapping_add(region.offset);
    portcullis_nic::Memory::store(&world.rig.node.memory(), at, extended.0);
    world.pass(Lifetime::millis(200));
    let is_open = |world: &World, it| world.region(it).is_some();
    assert!(is_open(&world, &by_message) && is_open(&world, &by_word) && !is_open(&world, &not));
    world.pass(Lifetime::millis(200));
    assert_eq!(world.open(), 0);
    world.leave(guest);
    world.end();
}
