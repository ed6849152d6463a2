//! Edge cases of the node's promises: the last byte, the last place, the exact moment.

use crate::rig::{Rig, acquire, allocate, granted, keys, refused, word};
use portcullis_nic::Status;
use portcullis_node::{AuditEvent, NodeConfig, Reductions, ViolationLimits};
use portcullis_protocol::{
    Acquire, Allocate, CopyRequest, DATA_BYTES_MAX, GrantRequest, Granted, Holders, Keep, Lifetime,
    Mechanism, Moment, ObjectName, Refusal, RemoteAddress, ReplyBody, RequestBody, Rights, Rkey, Sharing,
};

/// A request that is refused at once and costs nothing.
const IDLE: RequestBody = RequestBody::Grant(GrantRequest::Free {
    object: ObjectName::Address(RemoteAddress(0)),
    holders: Holders::Stay,
});

fn ask_for(size: u64, lifetime: Lifetime) -> RequestBody {
    let (rights, sharing, keep) = (Rights::all(), Sharing::Exclusive, Keep::No);
    RequestBody::Grant(GrantRequest::Allocate(Allocate {
        size,
        alignment: 0,
        lifetime,
        rights,
        sharing,
        keep,
    }))
}

#[test]
fn limits_may_be_equal() {
    let violations = ViolationLimits {
        pause_min: Lifetime::millis(5),
        pause_max: Lifetime::millis(5),
        ..ViolationLimits::default()
    };
    let config = NodeConfig { windows_ready: 64, windows_max: 64, violations, ..crate::rig::config() };
    assert_eq!(config.validate(), Ok(()));
    assert!(NodeConfig { windows_ready: 65, ..config }.validate().is_err());
}

/// The only header is used again within the same microsecond.
#[test]
fn permissions_of_one_moment_have_names_of_their_own() {
    let reductions = Reductions::none();
    let mut rig = Rig::new(NodeConfig { headers: 1, reductions, ..crate::rig::config() });
    let client = rig.attach("a");
    let mut last: Option<Granted> = None;
    for round in 0..5 {
        let it = rig.allocate(client, 64, false);
        assert!(it.permission.start >= rig.now);
        if let Some(last) = last {
            assert_eq!(it.permission.header, last.permission.header, "no time has passed");
            assert!(it.permission.start > last.permission.start, "round {round}");
            let stale = RequestBody::Grant(GrantRequest::Revoke { permission: last.permission, free: false });
            assert_eq!(refused(rig.ask(client, stale)), Refusal::NotLive);
        }
        rig.revoke(client, it.permission);
        last = Some(it);
    }
    rig.end();
}

#[test]
fn an_extension_that_is_seen_at_the_very_deadline_counts() {
    let mut rig = Rig::new(crate::rig::config());
    let client = rig.attach("a");
    let lifetime = Lifetime::millis(100);
    let it = rig.allocate(client, 64, false);
    let swapped = rig.swap(client, keys(&it).1, word(&it), lifetime.0, 2 * lifetime.0);
    assert_eq!(swapped, (Status::Success, lifetime.0));
    rig.now = it.permission.start.after(lifetime);
    rig.settle();
    assert_eq!(rig.node.counters().permissions, 1);
    rig.now = it.permission.start.after(Lifetime(2 * lifetime.0));
    rig.settle();
    assert_eq!((rig.node.counters().permissions, rig.node.counters().extensions), (0, 1));
    rig.end();
}

#[test]
fn what_was_being_set_up_for_a_client_that_left_ends_at_once() {
    let mut rig = Rig::new(crate::rig::config());
    let (client, _sibling) = (rig.attach("a"), rig.attach("a"));
    rig.settle();
    let taken_in = rig.node.counters().control_messages;
    rig.send(client, ask_for(64, Lifetime::seconds(10)));
    while rig.node.counters().control_messages == taken_in {
        rig.turn();
    }
    assert_eq!(
        (rig.node.counters().permissions, rig.node.counters().grants),
        (1, 0),
        "its bind is under way"
    );
    rig.detach(client);
    rig.settle();
    assert_eq!(rig.node.counters().permissions, 0, "without time");
    rig.end();
}

#[test]
fn all_that_a_barred_client_held_ends_however_few_steps_a_turn_has() {
    const MANY: usize = 100;
    let violations = ViolationLimits { free_max: 0, bar_after: 1, ..ViolationLimits::default() };
    let config = NodeConfig { steps_per_turn: 6, violations, ..crate::rig::config() };
    let mut rig = Rig::new(NodeConfig { longest_lifetime: Lifetime::seconds(100), ..config });
    let (one, guesser) = (rig.attach("a"), rig.attach("a"));
    for _ in 0..MANY {
        granted(rig.ask(one, ask_for(64, Lifetime::seconds(100))));
    }
    assert_ne!(rig.read(guesser, Rkey(0x00ff_ff00), 4096, 8).0, Status::Success);
    rig.settle();
    assert_eq!(rig.node.counters().permissions, 0, "without time");
    rig.end();
}

#[test]
fn one_tenants_end_leaves_anothers_scrub_alone() {
    const LARGE: u64 = 1 << 20;
    let mut rig = Rig::new(NodeConfig { pool_bytes: 8 * LARGE, ..crate::rig::config() });
    let first = rig.attach("first");
    let it = rig.allocate(first, 4 * LARGE, false);
    rig.revoke(first, it.permission);
    rig.pass(Lifetime::millis(5));
    let (leaves, stays) = (rig.attach("leaves"), rig.attach("stays"));
    rig.settle();
    let ask = ask_for(LARGE, Lifetime::seconds(1));
    rig.send(leaves, ask);
    let waits = rig.send(stays, ask);
    for _ in 0..10 {
        rig.turn();
    }
    assert_eq!(rig.node.counters().grants, 1, "both are being scrubbed");
    rig.detach(leaves);
    rig.settle();
    granted(rig.reply(stays, waits).expect("its scrub went on"));
    assert_eq!((rig.node.counters().permissions, rig.node.counters().grants), (1, 2));
    rig.end();
}

#[test]
fn a_turn_takes_in_no_more_requests_than_it_may() {
    const EACH: usize = 10;
    const AT_ONCE: u32 = 4;
    let mut rig = Rig::new(NodeConfig { requests_per_turn: AT_ONCE, ..crate::rig::config() });
    let clients: Vec<usize> = (0..4).map(|_| rig.attach("a")).collect();
    rig.settle();
    for &client in &clients {
        for _ in 0..EACH {
            rig.send(client, IDLE);
        }
    }
    let all = rig.node.counters().control_messages + (clients.len() * EACH) as u64;
    let mut turns = 0;
    while rig.node.counters().control_messages < all {
        let before = rig.node.counters().control_messages;
        rig.turn();
        assert!(rig.node.counters().control_messages - before <= AT_ONCE.into());
        turns += 1;
        assert!(turns < 1000);
    }
    rig.settle();
    rig.end();
}

/// Replies leave before the node reads the requests behind them.
#[test]
fn requests_that_arrive_together_are_answered_each_with_its_own() {
    const TOGETHER: u64 = 15;
    let mut rig = Rig::new(NodeConfig { requests_per_turn: 1, ..crate::rig::config() });
    let client = rig.attach("a");
    let asked: Vec<(u64, u32)> =
        (1..=TOGETHER).map(|number| (number * 8, rig.send(client, allocate(number * 8, false)))).collect();
    rig.settle();
    for (size, sequence) in asked {
        assert_eq!(granted(rig.reply(client, sequence).expect("a reply")).length, size);
    }
    rig.end();
}

#[test]
fn a_client_may_owe_four_queues_of_receives_before_it_is_shown_out() {
    const DEPTH: u32 = 16;
    let mut rig = Rig::new(crate::rig::config());
    let deaf = rig.attach("a");
    rig.seat(deaf).is_deaf = true;
    let mut asked = 0;
    let evicted = loop {
        rig.send(deaf, IDLE);
        asked += 1;
        rig.settle();
        match rig.node.poll_evicted() {
            None => assert!(asked < 400, "a backlog has an end"),
            Some(evicted) => break evicted,
        }
    };
    assert_eq!(evicted, rig.seat(deaf).id);
    assert!(asked > 4 * DEPTH, "{asked} requests");
    rig.detach(deaf);
    rig.end();
}

/// Some replies have a slot of the queue when they are made, and others wait for one: none is lost or written over.
#[test]
fn a_client_that_reads_again_has_every_reply_that_waited() {
    const DEPTH: u32 = 16;
    let mut rig = Rig::new(crate::rig::config());
    let client = rig.attach("a");
    let mut asked: Vec<(u64, u32)> = Vec::new();
    let mut ask = |rig: &mut Rig, count: u32| {
        for _ in 0..count {
            let size = 8 * (asked.len() as u64 + 1);
            asked.push((size, rig.send(client, allocate(size, false))));
            rig.settle();
        }
        asked.clone()
    };
    rig.seat(client).is_deaf = true;
    ask(&mut rig, 3 * DEPTH - 5);
    // A few slots become free. Some of the waiting replies get one, and the next replies wait behind the rest.
    rig.seat(client).post_receives(0..3);
    rig.deliver();
    rig.settle();
    ask(&mut rig, 4);
    // All waiting replies get a slot, and the next replies are written at once.
    rig.seat(client).post_receives(3..DEPTH);
    rig.deliver();
    rig.settle();
    let asked = ask(&mut rig, 3);
    rig.seat(client).is_deaf = false;
    rig.seat(client).post_receives(0..DEPTH);
    rig.deliver();
    rig.settle();
    for (size, sequence) in asked {
        assert_eq!(granted(rig.reply(client, sequence).expect("a reply")).length, size);
    }
    assert_eq!(rig.node.poll_evicted(), None);
    rig.end();
}

#[test]
fn a_message_carries_data_to_its_last_byte() {
    let mut rig = Rig::new(NodeConfig { mechanism: Mechanism::NodeCopy, ..crate::rig::config() });
    let client = rig.attach("a");
    let most = DATA_BYTES_MAX as u64;
    let permission = rig.allocate(client, 2 * most, false).permission;
    let bytes: Vec<u8> = (0..=250).cycle().take(DATA_BYTES_MAX).collect();
    let write = RequestBody::Copy(CopyRequest::Write { permission, offset: most, length: most });
    assert_eq!(rig.ask_with(client, write, &bytes).0, ReplyBody::Done);
    let read = |length| RequestBody::Copy(CopyRequest::Read { permission, offset: most, length });
    assert_eq!(rig.ask_with(client, read(most), &[]), (ReplyBody::Data(most), bytes));
    let more = RequestBody::Copy(CopyRequest::Read { permission, offset: 0, length: most + 1 });
    assert_eq!(refused(rig.ask(client, more)), Refusal::Malformed);
    rig.end();
}

#[test]
fn whoever_comes_and_goes_is_in_the_audit() {
    let mut rig = Rig::new(NodeConfig { audit: true, ..crate::rig::config() });
    let client = rig.attach("a");
    let id = rig.seat(client).id;
    rig.detach(client);
    let mut told = Vec::new();
    while let Some(record) = rig.node.poll_audit() {
        told.push((record.event, record.tenant.as_deref().map(str::to_owned), record.client, record.process));
    }
    let of = |event| (event, Some("a".to_owned()), Some(id), Some(1));
    assert_eq!(told, [AuditEvent::Attach, AuditEvent::Detach].map(of));
    rig.end();
}

#[test]
fn whoever_waited_in_vain_may_wait_again_and_again() {
    const PLACES: u32 = 8;
    let mut rig = Rig::new(NodeConfig { postponed_max: PLACES, ..crate::rig::config() });
    let (holder, client, other) = (rig.attach("a"), rig.attach("a"), rig.attach("b"));
    let longest = rig.node.config().longest_lifetime;
    let it = granted(rig.ask(holder, ask_for(64, longest)));
    let theirs = granted(rig.ask(other, ask_for(64, longest)));
    let wait = Lifetime::millis(1);
    for _ in 0..3 * PLACES {
        let asked: Vec<u32> =
            (0..PLACES).map(|_| rig.send(client, acquire(it.object, Sharing::Exclusive, wait))).collect();
        rig.settle();
        // Half of the places stay free for other tenants.
        assert_eq!(rig.node.counters().postponed, u64::from(PLACES / 2));
        let others = rig.send(other, acquire(theirs.object, Sharing::Exclusive, wait));
        rig.settle();
        assert_eq!(rig.node.counters().postponed, u64::from(PLACES / 2 + 1));
        rig.pass(wait);
        let refusals = asked.iter().map(|&it| refused(rig.reply(client, it).expect("an answer")));
        let conflicts = refusals.filter(|&it| it == Refusal::Conflict).count();
        assert_eq!(conflicts, (PLACES / 2) as usize);
        assert_eq!(refused(rig.reply(other, others).expect("an answer")), Refusal::Conflict);
        assert_eq!(rig.node.counters().postponed, 0);
    }
    rig.end();
}

#[test]
fn a_turn_in_which_a_refusal_is_taken_in_says_that_it_worked() {
    let mut rig = Rig::new(crate::rig::config());
    let client = rig.attach("a");
    let it = rig.allocate(client, 64, false);
    rig.pass(Lifetime::millis(20));
    assert!(!rig.turn(), "there is nothing to do");
    let before = rig.node.counters().violations;
    assert_ne!(rig.read(client, Rkey(keys(&it).0.0 ^ 0x55), it.address().0, 8).0, Status::Success);
    let now = rig.now;
    let worked = rig.node.turn(&mut rig.nic, now);
    assert_eq!((worked, rig.node.counters().violations), (true, before + 1));
    rig.end();
}

/// The node waits for the NIC to take down the permissions that a tenant left behind, and may sleep meanwhile.
#[test]
fn a_node_that_waits_for_its_nic_is_not_busy() {
    let mut rig = Rig::new(NodeConfig { steps_per_turn: 10, ..crate::rig::config() });
    let (client, _other) = (rig.attach("a"), rig.attach("b"));
    for _ in 0..100 {
        granted(rig.ask(client, ask_for(64, Lifetime::seconds(1))));
    }
    rig.pass(Lifetime::millis(20));
    rig.detach(client);
    let now = rig.now;
    let busy = (0..1000).take_while(|_| rig.node.turn(&mut rig.nic, now)).count();
    assert!(busy < 1000);
    assert!(rig.node.next_wake().is_some_and(|wake| wake > Moment(0)), "it looks again by itself");
    rig.settle();
    rig.pass(Lifetime::millis(20));
    assert_eq!(rig.node.counters().tenants, 1);
    rig.end();
}

#[test]
fn a_permission_may_live_for_the_longest_lifetime_and_no_longer() {
    let mut rig = Rig::new(crate::rig::config());
    let client = rig.attach("a");
    let longest = rig.node.config().longest_lifetime;
    assert_eq!(granted(rig.ask(client, ask_for(64, longest))).lifetime, longest);
    let longer = Lifetime(longest.0 + 1);
    assert_eq!(refused(rig.ask(client, ask_for(64, longer))), Refusal::LifetimeTooLong { longest });
    rig.end();
}

#[test]
fn no_object_of_many_shows_what_another_tenant_left_in_one() {
    const EACH: u64 = 64 << 10;
    let mut rig = Rig::new(crate::rig::config());
    let (one, two) = (rig.attach("a"), rig.attach("b"));
    let all = rig.allocate(one, 3 << 20, false);
    for at in (0..all.length).step_by(8 << 10) {
        assert_eq!(rig.write(one, keys(&all).0, all.address().0 + at, &[0xa5; 8 << 10]), Status::Success);
    }
    rig.revoke(one, all.permission);
    rig.pass(Lifetime::millis(5));
    for _ in 0..20 {
        let it = rig.allocate(two, EACH, false);
        for at in (0..EACH).step_by(8 << 10) {
            let (status, bytes) = rig.read(two, keys(&it).0, it.address().0 + at, 8 << 10);
            assert_eq!((status, bytes.iter().all(|&byte| byte == 0)), (Status::Success, true), "{at}");
        }
    }
    rig.end();
}

#[test]
fn a_tenants_own_memory_is_not_scrubbed_for_it() {
    const LARGE: u64 = 1 << 20;
    let mut rig = Rig::new(crate::rig::config());
    let client = rig.attach("a");
    for _ in 0..3 {
        let before = rig.node.counters().grants;
        let sequence = rig.send(client, ask_for(LARGE, Lifetime::seconds(1)));
        let turns = (0..1000).take_while(|_| {
            rig.turn();
            rig.node.counters().grants == before
        });
        assert!(turns.count() < 10, "a scrub would take many turns");
        rig.settle();
        let it = granted(rig.reply(client, sequence).expect("a reply"));
        rig.revoke(client, it.permission);
        rig.pass(Lifetime::millis(5));
    }
    rig.end();
}

/// With mechanism `queue-pair` an atomic extends the lifetime word. So a client with any permission may do atomics, and
/// a client with none may not.
#[test]
fn a_queue_pair_does_atomics_while_its_client_holds_something() {
    let mut rig = Rig::new(NodeConfig { mechanism: Mechanism::QueuePair, ..crate::rig::config() });
    let (client, sibling) = (rig.attach("a"), rig.attach("a"));
    let theirs = rig.allocate(sibling, 64, false);
    let lifetime = Lifetime::millis(100).0;
    for rights in [Rights::all(), Rights::READ] {
        let ask = RequestBody::Grant(GrantRequest::Allocate(Allocate {
            size: 64,
            alignment: 0,
            lifetime: Lifetime(lifetime),
            rights,
            sharing: Sharing::Exclusive,
            keep: Keep::No,
        }));
        let it = granted(rig.ask(client, ask));
        let swapped = rig.swap(client, keys(&it).1, word(&it), lifetime, lifetime);
        assert_eq!(swapped, (Status::Success, lifetime), "{rights:?}");
        rig.revoke(client, it.permission);
        rig.settle();
        let swapped = rig.swap(client, keys(&theirs).1, word(&theirs), lifetime, 1).0;
        assert_eq!(swapped, Status::RemoteAccessError, "after {rights:?}");
        rig.settle();
        rig.recover(client);
    }
    rig.end();
}

/// Zeroing takes time, and all other operations wait until the turn ends.
#[test]
fn small_objects_in_another_tenants_memory_are_scrubbed_over_several_turns_too() {
    const TOGETHER: u64 = 15;
    let mut rig = Rig::new(crate::rig::config());
    let (one, two) = (rig.attach("a"), rig.attach("b"));
    let all = rig.allocate(one, 3 << 20, false);
    rig.revoke(one, all.permission);
    rig.pass(Lifetime::millis(5));
    let before = rig.node.counters().grants;
    for _ in 0..TOGETHER {
        rig.send(two, ask_for(8 << 10, Lifetime::seconds(1)));
    }
    let mut most = 0;
    while rig.node.counters().grants < before + TOGETHER {
        let granted = rig.node.counters().grants;
        rig.turn();
        most = most.max(rig.node.counters().grants - granted);
    }
    assert!(most <= 3, "{most} objects of 8 KiB were zeroed in one turn");
    rig.settle();
    rig.end();
}

#[test]
fn more_may_wait_for_a_divided_object_than_hold_it() {
    let mut rig = Rig::new(crate::rig::config());
    let client = rig.attach("a");
    let it = rig.allocate(client, 64, true);
    let half = RequestBody::Grant(GrantRequest::Acquire(Acquire {
        object: it.object.into(),
        part: portcullis_protocol::Part { offset: 0, length: 32 },
        lifetime: Lifetime::millis(100),
        rights: Rights::all(),
        sharing: Sharing::Exclusive,
        wait: Lifetime::seconds(1),
    }));
    let asked: Vec<u32> = (0..5).map(|_| rig.send(client, half)).collect();
    rig.settle();
    assert_eq!(rig.node.counters().postponed, 5);
    rig.revoke(client, it.permission);
    for (number, sequence) in (1..).zip(asked) {
        let part = granted(rig.reply(client, sequence).expect("it is its turn"));
        assert_eq!(rig.node.counters().postponed, 5 - number);
        rig.revoke(client, part.permission);
    }
    rig.end();
}

#[test]
fn the_audit_says_whose_permission_it_was_and_over_which_bytes() {
    let mut rig = Rig::new(NodeConfig { audit: true, ..crate::rig::config() });
    let client = rig.attach("a");
    let id = rig.seat(client).id;
    let it = rig.allocate(client, 64, true);
    rig.revoke(client, it.permission);
    let part = portcullis_protocol::Part { offset: 16, length: 8 };
    let (lifetime, rights, sharing) = (Lifetime::millis(100), Rights::READ, Sharing::Shared);
    let (object, wait) = (it.object.into(), Lifetime(0));
    let held = granted(rig.ask(
        client,
        RequestBody::Grant(GrantRequest::Acquire(Acquire { object, part, lifetime, rights, sharing, wait })),
    ));
    rig.pass(Lifetime::millis(200));
    rig.detach(client);
    let mut told = Vec::new();
    while let Some(record) = rig.node.poll_audit() {
        let Some(permission) = record.permission else { continue };
        assert_eq!((record.tenant.as_deref(), record.client, record.process), (Some("a"), Some(id), Some(1)));
        let first = permission.address.0 - it.object.address.0;
        told.push((
            record.event,
            permission.id,
            first,
            permission.length,
            permission.rights,
            permission.sharing,
        ));
    }
    let whole = |event| (event, it.permission, 0, 64, Rights::all(), Sharing::Exclusive);
    let of_part = |event| (event, held.permission, 16, 8, rights, sharing);
    assert_eq!(
        told,
        [
            whole(AuditEvent::Grant),
            whole(AuditEvent::Revoke),
            of_part(AuditEvent::Grant),
            of_part(AuditEvent::Expiry)
        ]
    );
    rig.end();
}

#[test]
fn who_gets_fresh_memory_beside_another_tenants_waits_for_no_scrub() {
    const PAGES: u64 = 1 << 20;
    let mut rig = Rig::new(crate::rig::config());
    let (one, two) = (rig.attach("a"), rig.attach("b"));
    rig.settle();
    // With its header the object ends where its last page ends.
    rig.allocate(one, PAGES - 32, false);
    let before = rig.node.counters().grants;
    rig.send(two, ask_for(PAGES, Lifetime::seconds(1)));
    let turns = (0..1000).take_while(|_| {
        rig.turn();
        rig.node.counters().grants == before
    });
    assert!(turns.count() < 10, "a scrub would take many turns");
    rig.settle();
    rig.end();
}

#[test]
fn a_pause_began_with_the_first_violation_after_the_last_pause() {
    let pause = Lifetime::millis(4);
    let violations = ViolationLimits {
        free_max: 0,
        free_again: Lifetime::seconds(100),
        pause_min: pause,
        pause_max: pause,
        bar_after: 100,
        ..ViolationLimits::default()
    };
    let mut rig = Rig::new(NodeConfig { violations, ..crate::rig::config() });
    let clients: Vec<usize> = (0..3).map(|_| rig.attach("a")).collect();
    let mut began = Moment(0);
    for (client, later, anew) in [(0, 0, true), (1, 1000, false), (2, 10_000, true)] {
        rig.pass(Lifetime(later));
        if anew {
            began = rig.now;
        }
        assert_ne!(rig.read(clients[client], Rkey(0x00ff_ff00), 4096, 8).0, Status::Success);
        rig.settle();
        let bars = rig.node.bars(rig.now);
        let told: Vec<_> = bars.iter().map(|bar| (bar.barred, bar.since, bar.until)).collect();
        assert_eq!(told, [(false, began, rig.now.after(pause))], "violation {client}");
    }
    rig.end();
}

/// An object has at most 1,024 holders, even if more parts become free at once than there is room for.
#[test]
fn those_who_wait_for_parts_are_let_in_up_to_the_most_holders() {
    const MOST: u64 = 1024;
    let mut rig = Rig::new(NodeConfig { headers: 4096, ..crate::rig::config() });
    let client = rig.attach("a");
    let it = rig.allocate(client, 4096, true);
    rig.revoke(client, it.permission);
    let part = |offset, length, wait| {
        RequestBody::Grant(GrantRequest::Acquire(Acquire {
            object: it.object.into(),
            part: portcullis_protocol::Part { offset, length },
            lifetime: Lifetime::seconds(10),
            rights: Rights::READ,
            sharing: Sharing::Exclusive,
            wait,
        }))
    };
    let first = granted(rig.ask(client, part(0, 32, Lifetime(0))));
    let rest: Vec<Granted> =
        (1..MOST).map(|number| granted(rig.ask(client, part(32 + number, 1, Lifetime(0))))).collect();
    assert_eq!(rig.node.counters().permissions, MOST);
    let full = Refusal::NodeFull { limit: MOST };
    assert_eq!(refused(rig.ask(client, part(4000, 1, Lifetime(0)))), full);
    rig.revoke(client, rest[0].permission);
    let waiting = [0, 16].map(|offset| rig.send(client, part(offset, 16, Lifetime::seconds(1))));
    rig.settle();
    granted(rig.ask(client, part(4000, 1, Lifetime(0))));
    assert_eq!((rig.node.counters().permissions, rig.node.counters().postponed), (MOST, 2));
    rig.revoke(client, first.permission);
    assert_eq!((rig.node.counters().permissions, rig.node.counters().postponed), (MOST, 1));
    rig.revoke(client, rest[1].permission);
    assert_eq!((rig.node.counters().permissions, rig.node.counters().postponed), (MOST, 0));
    for sequence in waiting {
        granted(rig.reply(client, sequence).expect("a reply"));
    }
    rig.end();
}

#[test]
fn a_tenants_idle_windows_go_over_several_turns_too() {
    const STEPS: u32 = 10;
    const READY: u32 = 200;
    let mut rig =
        Rig::new(NodeConfig { steps_per_turn: STEPS, windows_ready: READY, ..crate::rig::config() });
    let client = rig.attach("a");
    rig.settle();
    assert_eq!(rig.node.counters().windows, u64::from(READY));
    // Detaching the client takes steps as well.
    rig.detach(client);
    assert!(rig.node.counters().windows >= u64::from(READY - STEPS));
    while rig.node.counters().windows > 0 {
        let before = rig.node.counters().windows;
        rig.turn();
        let ended = before - rig.node.counters().windows;
        assert!(ended <= u64::from(STEPS), "{ended} of {before} in one turn");
    }
    rig.end();
}

#[test]
fn who_is_let_in_while_another_waits_cannot_extend_from_the_start() {
    let mut rig = Rig::new(crate::rig::config());
    let (one, two, three) = (rig.attach("a"), rig.attach("a"), rig.attach("a"));
    let it = rig.allocate(one, 64, true);
    let wait = Lifetime::seconds(1);
    let second = rig.send(two, acquire(it.object, Sharing::Exclusive, wait));
    rig.settle();
    rig.send(three, acquire(it.object, Sharing::Exclusive, wait));
    rig.settle();
    rig.revoke(one, it.permission);
    let held = granted(rig.reply(two, second).expect("it is its turn"));
    let lifetime = held.lifetime.0;
    assert_eq!(rig.swap(two, keys(&held).1, word(&held), lifetime, 2 * lifetime), (Status::Success, 0));
    rig.end();
}
