//! Many permissions that end at once: a turn takes only a few of them, and other clients are served meanwhile.

use crate::rig::{Rig, allocate, granted};
use portcullis_nic::Status;
use portcullis_node::{NodeConfig, ViolationLimits};
use portcullis_protocol::{
    Allocate, GrantRequest, Granted, Keep, Lifetime, Moment, ReplyBody, RequestBody, Rights, Rkey, Sharing,
};

/// The most that one turn takes apart.
const STEPS: u64 = 512;
/// Number of permissions. They take several turns to end.
const CROWD: u64 = 3000;
/// A lifetime that is longer than any test.
const LONG: Lifetime = Lifetime::seconds(9);

fn config() -> NodeConfig {
    let quota = portcullis_node::Quota::default();
    NodeConfig { pool_bytes: 64 << 20, headers: 8192, quota, longest_keep: LONG, ..crate::rig::config() }
}

fn request(lifetime: Lifetime, keep: Keep) -> RequestBody {
    let (rights, sharing) = (Rights::all(), Sharing::Exclusive);
    RequestBody::Grant(GrantRequest::Allocate(Allocate {
        size: 64,
        alignment: 0,
        lifetime,
        rights,
        sharing,
        keep,
    }))
}

fn hold_many(rig: &mut Rig, client: usize, lifetime: Lifetime, keep: Keep) -> Vec<Granted> {
    (0..CROWD).map(|_| granted(rig.ask(client, request(lifetime, keep)))).collect()
}

/// Takes turns until nearly nothing is held any more. Returns the most permissions and objects that ended in one turn.
/// Another tenant sends requests all the time, and must get replies soon.
fn watch_the_end(rig: &mut Rig, other: usize) -> (u64, u64) {
    let (mut permissions, mut objects) = (0, 0);
    let mut asked = None;
    let mut last = rig.node.counters();
    let mut waited = 0;
    while last.permissions > CROWD / 100 || last.objects > CROWD / 100 {
        if asked.is_none() {
            asked = Some(rig.send(
                other,
                RequestBody::Grant(GrantRequest::Free {
                    object: portcullis_protocol::ObjectName::Address(portcullis_protocol::RemoteAddress(1)),
                    holders: portcullis_protocol::Holders::Stay,
                }),
            ));
            waited = 0;
        }
        rig.turn();
        rig.now = Moment(rig.now.0 + 1);
        waited += 1;
        assert!(waited <= 4, "another tenant's request waits for the crowd to go");
        if asked.is_some_and(|sequence| rig.reply(other, sequence).is_some()) {
            asked = None;
        }
        let now = rig.node.counters();
        let ended = now.revokes + now.expiries - last.revokes - last.expiries;
        permissions = permissions.max(ended);
        objects = objects.max(last.objects.saturating_sub(now.objects));
        last = now;
    }
    rig.settle();
    (permissions, objects)
}

#[test]
fn a_client_that_leaves_much_behind_is_taken_apart_over_several_turns() {
    let mut rig = Rig::new(config());
    let (one, other) = (rig.attach("a"), rig.attach("b"));
    hold_many(&mut rig, one, LONG, Keep::No);
    let before = rig.node.counters().revokes;
    rig.detach(one);
    let at_once = rig.node.counters().revokes - before;
    assert!(at_once <= STEPS, "{at_once} permissions ended at once");
    assert_eq!(rig.node.counters().clients, 1, "it is out");
    let (permissions, objects) = watch_the_end(&mut rig, other);
    assert!(permissions > 100 && permissions <= STEPS, "{permissions} permissions ended in one turn");
    assert!(objects <= STEPS, "{objects} objects went in one turn");
    assert_eq!(rig.node.counters().revokes - before, CROWD, "each of them ended");
    rig.end();
}

#[test]
fn objects_that_a_tenant_kept_go_over_several_turns_and_when_they_are_due() {
    let mut rig = Rig::new(config());
    let (one, other) = (rig.attach("a"), rig.attach("b"));
    for held in hold_many(&mut rig, one, LONG, Keep::For(Lifetime::seconds(1))) {
        rig.revoke(one, held.permission);
    }
    let long = granted(rig.ask(one, request(LONG, Keep::For(Lifetime::seconds(2)))));
    let brief = granted(rig.ask(one, request(LONG, Keep::Attached)));
    rig.revoke(one, long.permission);
    rig.revoke(one, brief.permission);
    rig.detach(one);
    rig.settle();
    assert_eq!(rig.node.counters().objects, CROWD + 1, "what was kept only while clients are there has gone");
    rig.pass(Lifetime::millis(999));
    assert_eq!(rig.node.counters().objects, CROWD + 1);
    rig.now = rig.now.after(Lifetime::millis(1));
    let (_, objects) = watch_the_end(&mut rig, other);
    assert!(objects > 100 && objects <= STEPS, "{objects} objects went in one turn");
    assert_eq!((rig.node.counters().objects, rig.node.counters().tenants), (1, 2));
    let one = rig.attach("a");
    rig.acquire(one, long.object);
    rig.detach(one);
    rig.end();
}

#[test]
fn leases_that_end_at_the_same_moment_end_over_several_turns() {
    let mut rig = Rig::new(config());
    let (one, other) = (rig.attach("a"), rig.attach("b"));
    hold_many(&mut rig, one, LONG, Keep::No);
    rig.now = rig.now.after(LONG);
    let (permissions, _) = watch_the_end(&mut rig, other);
    assert!(permissions > 100 && permissions <= STEPS, "{permissions} leases ended in one turn");
    assert_eq!(rig.node.counters().expiries, CROWD);
    rig.end();
}

#[test]
fn a_tenant_whose_client_comes_back_while_it_is_taken_apart_stays_and_what_is_new_stays_with_it() {
    let mut rig = Rig::new(config());
    let one = rig.attach("a");
    hold_many(&mut rig, one, LONG, Keep::Attached);
    rig.detach(one);
    rig.turn();
    assert!(rig.node.counters().permissions > STEPS, "it takes a while");
    let again = rig.attach("a");
    let kept = granted(rig.ask(again, request(LONG, Keep::Attached)));
    rig.revoke(again, kept.permission);
    rig.pass(Lifetime::seconds(1));
    let left = rig.node.counters();
    assert_eq!((left.permissions, left.tenants, left.clients), (0, 1, 1));
    rig.acquire(again, kept.object);
    rig.end();
}

#[test]
fn requests_that_wait_in_a_crowd_go_with_their_client() {
    let mut rig = Rig::new(config());
    let (one, two) = (rig.attach("a"), rig.attach("a"));
    let held = granted(rig.ask(one, request(LONG, Keep::Attached)));
    for _ in 0..1500 {
        rig.send(two, crate::rig::acquire(held.object, Sharing::Exclusive, Lifetime::seconds(9)));
        rig.turn();
    }
    rig.settle();
    assert_eq!(rig.node.counters().postponed, 1500);
    rig.detach(two);
    assert!(rig.node.counters().postponed > 0, "not all at once");
    rig.settle();
    assert_eq!(rig.node.counters().postponed, 0);
    rig.revoke(one, held.permission);
    rig.ask(one, allocate(64, false));
    let again = rig.acquire(one, held.object);
    assert_eq!(
        rig.ask(one, RequestBody::Grant(GrantRequest::Revoke { permission: again.permission, free: false })),
        ReplyBody::Done
    );
    rig.end();
}

#[test]
fn a_crowd_that_waits_for_the_same_object_is_let_in_over_several_turns() {
    let mut rig = Rig::new(config());
    let (one, two) = (rig.attach("a"), rig.attach("a"));
    let held = granted(rig.ask(one, request(LONG, Keep::Attached)));
    for _ in 0..1500 {
        rig.send(two, crate::rig::acquire(held.object, Sharing::Shared, Lifetime::seconds(9)));
        rig.turn();
    }
    rig.settle();
    let before = rig.node.counters();
    assert_eq!(before.postponed, 1500);
    rig.send(one, RequestBody::Grant(GrantRequest::Revoke { permission: held.permission, free: false }));
    let (mut most, mut last) = (0, before.postponed);
    while last > 0 {
        rig.turn();
        let now = rig.node.counters().postponed;
        most = most.max(last - now);
        last = now;
    }
    assert!(most > 100 && most <= STEPS, "{most} were let in in one turn");
    rig.settle();
    assert_eq!(rig.node.counters().grants - before.grants, 1500, "each of them");
    rig.end();
}

#[test]
fn an_object_whose_waiting_crowd_has_gone_goes_as_well() {
    let mut rig = Rig::new(config());
    let (one, two) = (rig.attach("a"), rig.attach("a"));
    let held = granted(rig.ask(one, request(LONG, Keep::No)));
    for _ in 0..1500 {
        rig.send(two, crate::rig::acquire(held.object, Sharing::Exclusive, Lifetime::seconds(9)));
        rig.turn();
    }
    rig.settle();
    rig.send(one, RequestBody::Grant(GrantRequest::Revoke { permission: held.permission, free: false }));
    rig.turn();
    rig.detach(two);
    rig.pass(Lifetime::millis(5));
    let left = rig.node.counters();
    assert_eq!((left.postponed, left.permissions, left.objects), (0, 0, 0));
    rig.end();
}

#[test]
fn what_a_tenant_held_when_it_was_barred_ends_over_several_turns() {
    let violations = ViolationLimits { free_max: 0, bar_after: 1, ..ViolationLimits::default() };
    let mut rig = Rig::new(NodeConfig { violations, ..config() });
    let (one, guesser, other) = (rig.attach("a"), rig.attach("a"), rig.attach("b"));
    let held = hold_many(&mut rig, one, LONG, Keep::No);
    let last = held.last().expect("a crowd");
    let status = rig.read(guesser, Rkey(0x00ff_ff00), last.address().0, 8).0;
    assert_ne!(status, Status::Success);
    let (permissions, _) = watch_the_end(&mut rig, other);
    assert!(permissions > 100 && permissions <= STEPS, "{permissions} permissions ended in one turn");
    assert_eq!(rig.node.counters().permissions, 0);
    rig.end();
}

#[test]
fn a_turn_refuses_no_more_requests_whose_time_is_over_than_it_has_steps() {
    const WAITING: usize = 40;
    let mut rig = Rig::new(NodeConfig { steps_per_turn: 8, ..config() });
    let holder = rig.attach("red");
    let it = granted(rig.ask(holder, request(LONG, Keep::No)));
    let clients: Vec<usize> = (0..WAITING).map(|_| rig.attach("red")).collect();
    let wait = Lifetime::millis(50);
    let asked: Vec<(usize, u32)> = clients
        .iter()
        .map(|&client| (client, rig.send(client, crate::rig::acquire(it.object, Sharing::Exclusive, wait))))
        .collect();
    rig.settle();
    rig.now = rig.now.after(Lifetime::millis(60));
    let mut answered = 0;
    for _ in 0..WAITING {
        let before = answered;
        rig.turn();
        answered += asked.iter().filter(|&&(client, sequence)| rig.reply(client, sequence).is_some()).count();
        assert!(answered - before <= 8, "{} in one turn", answered - before);
    }
    assert_eq!(answered, WAITING);
    rig.end();
}
