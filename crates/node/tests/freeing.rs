//! Freeing: after the reply nothing of an object is granted, and the memory goes with the last permission.

use crate::rig::{Rig, acquire, free, granted, keys, lookup, publish, refused, share};
use portcullis_nic::Status;
use portcullis_node::NodeConfig;
use portcullis_protocol::{
    GrantRequest, Granted, Holders, Lifetime, ObjectRef, Refusal, ReplyBody, RequestBody, Rights, Sharing,
};

const NOW: Lifetime = Lifetime(0);
const WHILE: Lifetime = Lifetime::millis(40);

fn shared(object: ObjectRef, wait: Lifetime) -> RequestBody {
    acquire(object, Sharing::Shared, wait)
}

fn free_with(object: ObjectRef, holders: Holders) -> RequestBody {
    RequestBody::Grant(GrantRequest::Free { object: object.into(), holders })
}

/// A kept object with a name, which is shared with tenant `b`.
fn lent(rig: &mut Rig, owner: usize) -> ObjectRef {
    let object = rig.keep(owner).object;
    assert_eq!(rig.ask(owner, publish("it", object)), ReplyBody::Done);
    assert_eq!(rig.ask(owner, share("it", "b", Rights::all())), ReplyBody::Done);
    object
}

fn reads(rig: &mut Rig, client: usize, it: &Granted) -> Status {
    rig.read(client, keys(it).0, it.address().0, 8).0
}

/// Two readers of one object overlap: neither gets the object once it is freed, however often they try.
#[test]
fn nobody_gets_an_object_that_was_freed_while_a_reader_holds_it() {
    let mut rig = Rig::new(crate::rig::config());
    let (owner, reader, other) = (rig.attach("a"), rig.attach("a"), rig.attach("a"));
    let object = rig.keep(owner).object;
    let it = granted(rig.ask(reader, shared(object, NOW)));
    assert_eq!(rig.ask(owner, free(object)), ReplyBody::Done);
    for client in [reader, other, owner] {
        assert_eq!(refused(rig.ask(client, shared(object, NOW))), Refusal::Gone);
        assert_eq!(refused(rig.ask(client, shared(object, WHILE))), Refusal::Gone);
        assert_eq!(refused(rig.ask(client, publish("it", object))), Refusal::Gone);
    }
    assert_eq!(reads(&mut rig, reader, &it), Status::Success, "what there is stays");
    assert_eq!(rig.node.counters().objects, 1);
    rig.revoke(reader, it.permission);
    rig.pass(Lifetime::millis(5));
    assert_eq!((rig.node.counters().objects, rig.node.counters().bytes_used), (0, 0));
    rig.end();
}

#[test]
fn requests_that_wait_for_a_freed_object_are_refused_and_its_name_goes() {
    let mut rig = Rig::new(crate::rig::config());
    let (owner, reader) = (rig.attach("a"), rig.attach("a"));
    let object = rig.keep(owner).object;
    assert_eq!(rig.ask(owner, publish("it", object)), ReplyBody::Done);
    let it = granted(rig.ask(owner, acquire(object, Sharing::Exclusive, NOW)));
    let waits = rig.send(reader, shared(object, WHILE));
    rig.settle();
    assert_eq!(rig.ask(owner, free(object)), ReplyBody::Done);
    rig.settle();
    assert_eq!(rig.reply(reader, waits).map(refused), Some(Refusal::Gone));
    assert_eq!(refused(rig.ask(reader, lookup(None, "it"))), Refusal::NoSuchName);
    assert_eq!(refused(rig.ask(owner, share("it", "b", Rights::READ))), Refusal::NoSuchName);
    rig.revoke(owner, it.permission);
    rig.end();
}

/// A permission is requested before the free, and would be granted after the free's reply.
#[test]
fn a_grant_that_is_under_way_does_not_come_after_the_answer() {
    let mut rig = Rig::new(crate::rig::config());
    let (owner, reader) = (rig.attach("a"), rig.attach("a"));
    let object = rig.keep(owner).object;
    let sent = (rig.send(reader, shared(object, NOW)), rig.send(owner, free(object)));
    let mut freed = false;
    for _ in 0..200 {
        rig.turn();
        let granted = matches!(rig.reply(reader, sent.0), Some(ReplyBody::Granted(_)));
        assert!(!(freed && granted), "the free was answered before");
        freed |= rig.reply(owner, sent.1) == Some(ReplyBody::Done);
    }
    assert!(freed);
    rig.pass(Lifetime::millis(200));
    assert_eq!(rig.node.counters().objects, 0);
    rig.end();
}

#[test]
fn a_free_that_ends_the_holders_is_answered_when_no_access_is_left() {
    let mut rig = Rig::new(crate::rig::config());
    let (owner, readers) = (rig.attach("a"), [rig.attach("a"), rig.attach("a"), rig.attach("b")]);
    let object = lent(&mut rig, owner);
    let held = readers.map(|reader| (reader, granted(rig.ask(reader, shared(object, NOW)))));
    assert_eq!(rig.ask(owner, free_with(object, Holders::End)), ReplyBody::Done);
    assert_eq!((rig.node.counters().objects, rig.node.counters().permissions), (0, 0));
    for (reader, it) in held {
        assert_eq!(reads(&mut rig, reader, &it), Status::RemoteAccessError);
        rig.recover(reader);
    }
    rig.end();
}

#[test]
fn a_free_that_waits_for_the_holders_is_answered_after_the_last_one() {
    let mut rig = Rig::new(crate::rig::config());
    let (owner, readers) = (rig.attach("a"), [rig.attach("a"), rig.attach("a")]);
    let object = rig.keep(owner).object;
    let held = readers.map(|reader| granted(rig.ask(reader, shared(object, NOW))));
    let first = rig.send(owner, free_with(object, Holders::Await));
    rig.settle();
    rig.revoke(readers[0], held[0].permission);
    // A second free waits as well, and a free that does not wait gets its reply.
    let second = rig.send(readers[0], free_with(object, Holders::Await));
    assert_eq!(rig.ask(owner, free(object)), ReplyBody::Done);
    rig.settle();
    assert_eq!(rig.reply(owner, first), None);
    assert_eq!(reads(&mut rig, readers[1], &held[1]), Status::Success);
    rig.revoke(readers[1], held[1].permission);
    rig.settle();
    assert_eq!(rig.reply(owner, first), Some(ReplyBody::Done));
    assert_eq!(rig.reply(readers[0], second), Some(ReplyBody::Done));
    assert_eq!(rig.node.counters().objects, 0);
    rig.end();
}

#[test]
fn a_free_that_waits_can_be_made_one_that_ends() {
    let mut rig = Rig::new(crate::rig::config());
    let (owner, reader) = (rig.attach("a"), rig.attach("a"));
    let object = rig.keep(owner).object;
    let it = granted(rig.ask(reader, shared(object, NOW)));
    let waits = rig.send(owner, free_with(object, Holders::Await));
    rig.settle();
    assert_eq!(rig.reply(owner, waits), None);
    assert_eq!(rig.ask(owner, free_with(object, Holders::End)), ReplyBody::Done);
    assert_eq!(rig.reply(owner, waits), Some(ReplyBody::Done));
    assert_eq!(reads(&mut rig, reader, &it), Status::RemoteAccessError);
    rig.recover(reader);
    rig.end();
}

/// The head has more members than a turn has steps.
#[test]
fn a_head_takes_a_crowd_of_members_with_it() {
    const MEMBERS: usize = 300;
    let config = NodeConfig { steps_per_turn: 64, ..crate::rig::config() };
    for holders in [Holders::Stay, Holders::End, Holders::Await] {
        let mut rig = Rig::new(config.clone());
        let (owner, reader) = (rig.attach("a"), rig.attach("a"));
        let head = rig.keep(owner).object;
        let members: Vec<_> = (0..MEMBERS).map(|_| rig.keep(owner).object).collect();
        for &member in &members {
            assert_eq!(
                rig.ask(owner, RequestBody::Grant(GrantRequest::Include { member, head })),
                ReplyBody::Done
            );
        }
        let it = granted(rig.ask(reader, shared(members[MEMBERS / 2], NOW)));
        let freed = rig.send(owner, free_with(head, holders));
        if holders == Holders::Stay {
            // In the turn in which the reply arrives, members still exist.
            while rig.reply(owner, freed).is_none() {
                rig.turn();
            }
            for &member in [&members[0], &members[MEMBERS - 1]] {
                assert_eq!(refused(rig.ask(reader, shared(member, NOW))), Refusal::Gone);
            }
        }
        rig.settle();
        if holders != Holders::End {
            assert_eq!(reads(&mut rig, reader, &it), Status::Success);
            assert_eq!(rig.node.counters().objects, 1, "the member that is held");
            rig.revoke(reader, it.permission);
            rig.pass(Lifetime::millis(5));
        }
        assert_eq!((rig.node.counters().objects, rig.node.counters().bytes_used), (0, 0), "{holders:?}");
        rig.end();
    }
}

/// Another tenant that may use an object cannot free it, by any request.
#[test]
fn an_object_is_not_its_guests_to_free() {
    let mut rig = Rig::new(crate::rig::config());
    let (owner, guest) = (rig.attach("a"), rig.attach("b"));
    let object = lent(&mut rig, owner);
    for holders in [Holders::Stay, Holders::End, Holders::Await] {
        assert_eq!(refused(rig.ask(guest, free_with(object, holders))), Refusal::Gone);
    }
    let it = granted(rig.ask(guest, shared(object, NOW)));
    let revoke = RequestBody::Grant(GrantRequest::Revoke { permission: it.permission, free: true });
    assert_eq!(rig.ask(guest, revoke), ReplyBody::Done);
    granted(rig.ask(owner, shared(object, NOW)));
    granted(rig.ask(guest, shared(object, NOW)));
    rig.end();
}

/// A client frees in one request an object that it holds.
#[test]
fn a_permission_that_ends_with_its_object_frees_it_for_all() {
    let mut rig = Rig::new(crate::rig::config());
    let (owner, reader) = (rig.attach("a"), rig.attach("a"));
    let object = rig.keep(owner).object;
    let held = [owner, reader].map(|client| granted(rig.ask(client, shared(object, NOW))));
    let revoke = RequestBody::Grant(GrantRequest::Revoke { permission: held[0].permission, free: true });
    assert_eq!(rig.ask(owner, revoke), ReplyBody::Done);
    assert_eq!(refused(rig.ask(owner, shared(object, NOW))), Refusal::Gone);
    assert_eq!(reads(&mut rig, reader, &held[1]), Status::Success);
    rig.end();
}
