//! The ends of permissions and their consequences: lifetimes, extensions, waiting, ids that are used again.

use crate::rig::{Rig, acquire, allocate, granted, keys, refused, word};
use portcullis_nic::Status;
use portcullis_node::NodeConfig;
use portcullis_protocol::{
    Allocate, GrantRequest, Granted, Lifetime, Moment, PermissionId, Refusal, RemoteAddress, ReplyBody,
    RequestBody, Rights, Sharing,
};

const LIFETIME: Lifetime = Lifetime::millis(100);
const LONGEST: Lifetime = Lifetime::millis(500);

fn rig() -> Rig {
    Rig::new(NodeConfig { longest_lifetime: LONGEST, ..crate::rig::config() })
}

fn is_live(rig: &mut Rig, client: usize, it: &Granted) -> bool {
    // A request for a shorter lifetime than the permission has gets a reply and changes nothing.
    match rig.ask(
        client,
        RequestBody::Grant(GrantRequest::Extend { permission: it.permission, lifetime: Lifetime(1) }),
    ) {
        ReplyBody::Extended(_) | ReplyBody::Refused(Refusal::NotExtendable) => true,
        ReplyBody::Refused(Refusal::NotLive) => false,
        other => panic!("{other:?}"),
    }
}

fn until(rig: &mut Rig, moment: Moment) {
    rig.now = moment;
    rig.settle();
}

fn extend_word(rig: &mut Rig, client: usize, it: &Granted, from: Lifetime, to: u64) {
    let swapped = rig.swap(client, keys(it).1, word(it), from.0, to);
    assert_eq!(swapped, (Status::Success, from.0), "the word holds the lifetime");
}

#[test]
fn a_permission_lives_until_its_lifetime_is_over_and_no_longer() {
    let mut rig = rig();
    let client = rig.attach("a");
    let it = rig.allocate(client, 64, false);
    let end = it.permission.start.after(LIFETIME);
    until(&mut rig, Moment(end.0 - 1));
    assert_eq!(rig.read(client, keys(&it).0, it.address().0, 8).0, Status::Success);
    assert_eq!(rig.node.counters().permissions, 1);
    until(&mut rig, end);
    assert_eq!((rig.node.counters().permissions, rig.node.counters().expiries), (0, 1));
    until(&mut rig, end.after(Lifetime::millis(2)));
    assert_eq!(rig.read(client, keys(&it).0, it.address().0, 8).0, Status::RemoteAccessError);
    rig.end();
}

#[test]
fn a_node_that_looks_late_still_ends_what_is_over() {
    let mut rig = rig();
    let client = rig.attach("a");
    let held: Vec<_> = (0..50).map(|_| rig.allocate(client, 64, true)).collect();
    rig.pass(Lifetime::seconds(60));
    assert_eq!((rig.node.counters().permissions, rig.node.counters().expiries), (0, 50));
    for it in held {
        assert_eq!(rig.read(client, keys(&it).0, it.address().0, 1).0, Status::RemoteAccessError);
        rig.settle();
        rig.pass(Lifetime::millis(100));
        rig.recover(client);
    }
    rig.end();
}

#[test]
fn a_swap_of_the_lifetime_word_extends() {
    let mut rig = rig();
    let client = rig.attach("a");
    let it = rig.allocate(client, 64, false);
    extend_word(&mut rig, client, &it, LIFETIME, 250_000);
    until(&mut rig, it.permission.start.after(Lifetime(249_999)));
    assert!(is_live(&mut rig, client, &it));
    assert_eq!(rig.node.counters().extensions, 1);
    until(&mut rig, it.permission.start.after(Lifetime(250_000)));
    assert!(!is_live(&mut rig, client, &it));
    rig.end();
}

#[test]
fn no_extension_reaches_beyond_the_longest_lifetime() {
    let mut rig = rig();
    let client = rig.attach("a");
    let it = rig.allocate(client, 64, false);
    extend_word(&mut rig, client, &it, LIFETIME, u64::MAX);
    until(&mut rig, it.permission.start.after(Lifetime(LONGEST.0 - 1)));
    assert!(is_live(&mut rig, client, &it));
    until(&mut rig, it.permission.start.after(LONGEST));
    assert!(!is_live(&mut rig, client, &it));
    let it = rig.allocate(client, 64, false);
    let far = RequestBody::Grant(GrantRequest::Extend {
        permission: it.permission,
        lifetime: Lifetime(LONGEST.0 + 1),
    });
    assert_eq!(refused(rig.ask(client, far)), Refusal::LifetimeTooLong { longest: LONGEST });
    let most = RequestBody::Grant(GrantRequest::Extend { permission: it.permission, lifetime: LONGEST });
    assert_eq!(rig.ask(client, most), ReplyBody::Extended(LONGEST));
    rig.end();
}

#[test]
fn a_shorter_lifetime_in_the_word_changes_nothing() {
    let mut rig = rig();
    let client = rig.attach("a");
    let it = rig.allocate(client, 64, false);
    extend_word(&mut rig, client, &it, LIFETIME, 1);
    until(&mut rig, it.permission.start.after(Lifetime(LIFETIME.0 - 1)));
    assert!(is_live(&mut rig, client, &it));
    until(&mut rig, it.permission.start.after(LIFETIME));
    assert!(!is_live(&mut rig, client, &it));
    rig.end();
}

#[test]
fn who_holds_what_another_waits_for_cannot_extend_any_more() {
    let mut rig = rig();
    let (holder, waiter) = (rig.attach("a"), rig.attach("a"));
    let it = rig.allocate(holder, 64, true);
    let waits = rig.send(waiter, acquire(it.object, Sharing::Exclusive, Lifetime::seconds(1)));
    rig.settle();
    assert_eq!(
        rig.swap(holder, keys(&it).1, word(&it), LIFETIME.0, 400_000),
        (Status::Success, 0),
        "the notice"
    );
    let more =
        RequestBody::Grant(GrantRequest::Extend { permission: it.permission, lifetime: Lifetime(400_000) });
    assert_eq!(refused(rig.ask(holder, more)), Refusal::NotExtendable);
    // A holder that ignores the notice gains nothing.
    assert_eq!(rig.swap(holder, keys(&it).1, word(&it), 0, 400_000).0, Status::Success);
    until(&mut rig, it.permission.start.after(LIFETIME));
    granted(rig.reply(waiter, waits).expect("the holder's time was over"));
    rig.end();
}

#[test]
fn an_extension_before_the_notice_counts() {
    let mut rig = rig();
    let (holder, waiter) = (rig.attach("a"), rig.attach("a"));
    let it = rig.allocate(holder, 64, true);
    extend_word(&mut rig, holder, &it, LIFETIME, 300_000);
    let waits = rig.send(waiter, acquire(it.object, Sharing::Exclusive, Lifetime::seconds(1)));
    until(&mut rig, it.permission.start.after(Lifetime(299_999)));
    assert_eq!(rig.reply(waiter, waits), None);
    until(&mut rig, it.permission.start.after(Lifetime(300_000)));
    granted(rig.reply(waiter, waits).expect("the holder's time was over"));
    rig.end();
}

/// While a new permission is set up, the word still holds the value of the header's last holder.
#[test]
fn what_a_former_holder_left_in_the_word_extends_nobody() {
    let mut rig = rig();
    let (holder, waiter) = (rig.attach("a"), rig.attach("a"));
    let first = rig.allocate(holder, 64, true);
    rig.swap(holder, keys(&first).1, word(&first), LIFETIME.0, u64::MAX);
    rig.revoke(holder, first.permission);
    let second = rig.send(holder, acquire(first.object, Sharing::Exclusive, Lifetime(0)));
    let waits = rig.send(waiter, acquire(first.object, Sharing::Exclusive, Lifetime::seconds(1)));
    rig.settle();
    let second = granted(rig.reply(holder, second).expect("a reply"));
    assert_eq!(word(&second), word(&first), "the hole was used again");
    assert_eq!(second.lifetime, LIFETIME);
    until(&mut rig, second.permission.start.after(LIFETIME));
    granted(rig.reply(waiter, waits).expect("the holder's time was over"));
    rig.end();
}

#[test]
fn exclusive_holders_are_alone_and_shared_ones_are_not() {
    let mut rig = rig();
    let (one, two) = (rig.attach("a"), rig.attach("a"));
    let it = rig.allocate(one, 64, true);
    for sharing in [Sharing::Exclusive, Sharing::Shared] {
        assert_eq!(refused(rig.ask(two, acquire(it.object, sharing, Lifetime(0)))), Refusal::Conflict);
    }
    rig.revoke(one, it.permission);
    let first = granted(rig.ask(one, acquire(it.object, Sharing::Shared, Lifetime(0))));
    let second = granted(rig.ask(two, acquire(it.object, Sharing::Shared, Lifetime(0))));
    assert_ne!(first.permission, second.permission);
    let alone = acquire(it.object, Sharing::Exclusive, Lifetime(0));
    assert_eq!(refused(rig.ask(two, alone)), Refusal::Conflict);
    rig.revoke(one, first.permission);
    assert_eq!(rig.read(two, keys(&second).0, it.address().0, 8).0, Status::Success);
    assert_eq!(refused(rig.ask(one, alone)), Refusal::Conflict);
    rig.revoke(two, second.permission);
    granted(rig.ask(one, alone));
    rig.end();
}

#[test]
fn nobody_overtakes_those_who_wait() {
    let mut rig = rig();
    let clients: Vec<usize> = (0..4).map(|_| rig.attach("a")).collect();
    let it = rig.allocate(clients[0], 64, true);
    rig.revoke(clients[0], it.permission);
    let wait = Lifetime::seconds(1);
    let reader = granted(rig.ask(clients[0], acquire(it.object, Sharing::Shared, Lifetime(0))));
    let writer = rig.send(clients[1], acquire(it.object, Sharing::Exclusive, wait));
    rig.settle();
    // The request could share with the reader, but the writer was first.
    assert_eq!(
        refused(rig.ask(clients[2], acquire(it.object, Sharing::Shared, Lifetime(0)))),
        Refusal::Conflict
    );
    let late =
        [clients[2], clients[3]].map(|it_| (it_, rig.send(it_, acquire(it.object, Sharing::Shared, wait))));
    rig.settle();
    assert!(late.iter().all(|&(client, sequence)| rig.reply(client, sequence).is_none()));
    rig.revoke(clients[0], reader.permission);
    let writer = granted(rig.reply(clients[1], writer).expect("its turn"));
    assert!(late.iter().all(|&(client, sequence)| rig.reply(client, sequence).is_none()));
    rig.revoke(clients[1], writer.permission);
    for (client, sequence) in late {
        granted(rig.reply(client, sequence).expect("both together"));
    }
    rig.end();
}

#[test]
fn who_waits_in_vain_hears_so_when_the_wait_is_over() {
    let mut rig = rig();
    let (holder, waiter) = (rig.attach("a"), rig.attach("a"));
    let it = rig.allocate(holder, 64, true);
    let waits = rig.send(waiter, acquire(it.object, Sharing::Exclusive, Lifetime::millis(5)));
    rig.settle();
    let asked = rig.now;
    until(&mut rig, Moment(asked.0 + 4_999));
    assert_eq!(rig.reply(waiter, waits), None);
    until(&mut rig, Moment(asked.0 + 5_000));
    assert_eq!(rig.reply(waiter, waits).map(refused), Some(Refusal::Conflict));
    assert_eq!(rig.node.counters().postponed, 0);
    rig.end();
}

/// Two waits begin in the same microsecond, the second in the place of the first.
#[test]
fn a_wait_is_not_cut_short_by_an_earlier_one() {
    let mut rig = rig();
    let (holder, waiter) = (rig.attach("a"), rig.attach("a"));
    let it = rig.allocate(holder, 64, true);
    let first = rig.send(waiter, acquire(it.object, Sharing::Exclusive, Lifetime::millis(5)));
    rig.settle();
    rig.revoke(holder, it.permission);
    granted(rig.reply(waiter, first).expect("its turn"));
    let second = rig.send(holder, acquire(it.object, Sharing::Exclusive, Lifetime::millis(50)));
    rig.settle();
    rig.pass(Lifetime::millis(10));
    assert_eq!(rig.reply(holder, second), None, "it was ready to wait for longer");
    rig.pass(Lifetime::millis(40));
    assert_eq!(rig.reply(holder, second).map(refused), Some(Refusal::Conflict));
    rig.end();
}

#[test]
fn those_behind_one_that_gave_up_come_in() {
    for gives_up in ["in time", "by leaving"] {
        let mut rig = rig();
        let (reader, writer, late) = (rig.attach("a"), rig.attach("a"), rig.attach("a"));
        let it = rig.allocate(reader, 64, true);
        rig.revoke(reader, it.permission);
        granted(rig.ask(reader, acquire(it.object, Sharing::Shared, Lifetime(0))));
        rig.send(writer, acquire(it.object, Sharing::Exclusive, Lifetime::millis(5)));
        rig.settle();
        let waits = rig.send(late, acquire(it.object, Sharing::Shared, Lifetime::millis(50)));
        rig.settle();
        if gives_up == "in time" {
            rig.pass(Lifetime::millis(5));
        } else {
            rig.detach(writer);
            rig.settle();
        }
        granted(
            rig.reply(late, waits).unwrap_or_else(|| panic!("nobody is before it any more ({gives_up})")),
        );
        rig.end();
    }
}

#[test]
fn a_holder_that_leaves_lets_the_next_in() {
    let mut rig = rig();
    let (holder, waiter) = (rig.attach("a"), rig.attach("a"));
    let it = rig.allocate(holder, 64, false);
    let waits = rig.send(waiter, acquire(it.object, Sharing::Exclusive, Lifetime::seconds(1)));
    rig.settle();
    rig.detach(holder);
    rig.settle();
    let next = granted(rig.reply(waiter, waits).expect("its turn"));
    assert_eq!(rig.write(waiter, keys(&next).0, next.address().0, b"mine"), Status::Success);
    rig.end();
}

#[test]
fn a_name_that_was_used_before_ends_nothing() {
    let mut rig = rig();
    let (client, sibling) = (rig.attach("a"), rig.attach("a"));
    let first = rig.allocate(client, 64, true);
    rig.revoke(client, first.permission);
    let second = rig.acquire(client, first.object);
    assert_eq!(second.permission.header, first.permission.header, "the header was used again");
    assert_ne!(second.permission.start, first.permission.start, "even in the same microsecond");
    let stale = RequestBody::Grant(GrantRequest::Revoke { permission: first.permission, free: true });
    assert_eq!(refused(rig.ask(client, stale)), Refusal::NotLive);
    let stale = RequestBody::Grant(GrantRequest::Extend { permission: first.permission, lifetime: LIFETIME });
    assert_eq!(refused(rig.ask(client, stale)), Refusal::NotLive);
    for free in [false, true] {
        let foreign = RequestBody::Grant(GrantRequest::Revoke { permission: second.permission, free });
        assert_eq!(refused(rig.ask(sibling, foreign)), Refusal::NotLive);
    }
    for header in [0, 1, u64::MAX, u64::MAX - 31, second.permission.header.0 + 8, second.address().0] {
        let forged = PermissionId { header: RemoteAddress(header), start: second.permission.start };
        let forged = RequestBody::Grant(GrantRequest::Revoke { permission: forged, free: true });
        assert_eq!(refused(rig.ask(client, forged)), Refusal::NotLive);
    }
    assert!(is_live(&mut rig, client, &second));
    rig.revoke(client, second.permission);
    rig.acquire(client, first.object);
    rig.end();
}

#[test]
fn two_revokes_in_one_turn_end_one_permission() {
    let mut rig = rig();
    let client = rig.attach("a");
    let it = rig.allocate(client, 64, false);
    let twice = [(); 2].map(|()| {
        rig.send(client, RequestBody::Grant(GrantRequest::Revoke { permission: it.permission, free: false }))
    });
    rig.settle();
    assert_eq!(rig.reply(client, twice[0]), Some(ReplyBody::Done));
    assert_eq!(rig.reply(client, twice[1]).map(refused), Some(Refusal::NotLive));
    rig.end();
}

#[test]
fn a_permission_over_less_than_all_rights_extends_too() {
    let mut rig = rig();
    let client = rig.attach("a");
    let RequestBody::Grant(GrantRequest::Allocate(Allocate { size, lifetime, sharing, keep, .. })) =
        allocate(64, false)
    else {
        unreachable!()
    };
    let it = granted(rig.ask(
        client,
        RequestBody::Grant(GrantRequest::Allocate(Allocate {
            size,
            alignment: 0,
            lifetime,
            sharing,
            keep,
            rights: Rights::READ,
        })),
    ));
    extend_word(&mut rig, client, &it, LIFETIME, 200_000);
    rig.pass(Lifetime::millis(150));
    assert!(is_live(&mut rig, client, &it));
    rig.end();
}

#[test]
fn a_node_asks_to_be_woken_when_something_ends() {
    let mut rig = rig();
    let client = rig.attach("a");
    let it = rig.allocate(client, 64, false);
    for _ in 0..1000 {
        let Some(next) = rig.node.next_wake().filter(|_| rig.node.counters().objects > 0) else { break };
        assert!(next <= it.permission.start.after(Lifetime::millis(110)));
        rig.now = rig.now.max(next);
        rig.settle();
    }
    assert_eq!(rig.node.counters().objects, 0, "waking when told was enough");
    rig.end();
}

#[test]
fn a_sibling_that_knows_a_permission_may_keep_it_alive_and_no_other_tenant_may() {
    let mut rig = rig();
    let (holder, keeper, other) = (rig.attach("a"), rig.attach("a"), rig.attach("b"));
    let it = rig.allocate(holder, 64, false);
    let longer = RequestBody::Grant(GrantRequest::Extend {
        permission: it.permission,
        lifetime: Lifetime::millis(300),
    });
    assert_eq!(refused(rig.ask(other, longer)), Refusal::NotLive);
    assert_eq!(rig.ask(keeper, longer), ReplyBody::Extended(Lifetime::millis(300)));
    until(&mut rig, it.permission.start.after(Lifetime::millis(299)));
    assert!(is_live(&mut rig, holder, &it));
    let end = RequestBody::Grant(GrantRequest::Revoke { permission: it.permission, free: false });
    assert_eq!(refused(rig.ask(keeper, end)), Refusal::NotLive, "it may not end it");
}
