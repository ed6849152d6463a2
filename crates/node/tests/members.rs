//! Objects that belong to another one, their head: they are shared in the same way as the head, and no further.

use crate::rig::{Rig, free, granted, publish, refused, share, unpublish, unshare};
use portcullis_node::{AuditEvent, AuditedMember, NodeConfig};
use portcullis_protocol::{
    Acquire, GrantRequest, Lifetime, ObjectRef, Part, Refusal, ReplyBody, RequestBody, Rights, Sharing,
};

fn rig() -> Rig {
    Rig::new(NodeConfig { audit: true, ..crate::rig::config() })
}

fn include(member: ObjectRef, head: ObjectRef) -> RequestBody {
    RequestBody::Grant(GrantRequest::Include { member, head })
}

fn read(object: ObjectRef) -> RequestBody {
    RequestBody::Grant(GrantRequest::Acquire(Acquire {
        object: object.into(),
        part: Part::WHOLE,
        lifetime: Lifetime::millis(50),
        rights: Rights::READ,
        sharing: Sharing::Shared,
        wait: Lifetime(0),
    }))
}

/// A named head with members, shared with tenant `b` for reading.
fn shared(rig: &mut Rig, client: usize, members: usize) -> (ObjectRef, Vec<ObjectRef>) {
    let head = rig.keep(client).object;
    let members: Vec<_> = (0..members).map(|_| rig.keep(client).object).collect();
    for &member in &members {
        assert_eq!(rig.ask(client, include(member, head)), ReplyBody::Done);
    }
    assert_eq!(rig.ask(client, publish("table", head)), ReplyBody::Done);
    assert_eq!(rig.ask(client, share("table", "b", Rights::READ)), ReplyBody::Done);
    (head, members)
}

#[test]
fn a_member_is_shared_as_its_head_is_and_no_further() {
    let mut rig = rig();
    let (one, two, three) = (rig.attach("a"), rig.attach("b"), rig.attach("c"));
    let (head, members) = shared(&mut rig, one, 2);
    let late = rig.keep(one).object;
    assert_eq!(refused(rig.ask(two, read(late))), Refusal::Gone);
    assert_eq!(rig.ask(one, include(late, head)), ReplyBody::Done);
    for object in [head, members[0], members[1], late] {
        granted(rig.ask(two, read(object)));
        assert_eq!(refused(rig.ask(three, read(object))), Refusal::Gone, "it is not shared with this tenant");
        let RequestBody::Grant(GrantRequest::Acquire(Acquire { object, part, lifetime, wait, .. })) =
            read(object)
        else {
            unreachable!()
        };
        let rights = Rights::READ | Rights::WRITE;
        let write = RequestBody::Grant(GrantRequest::Acquire(Acquire {
            object,
            part,
            lifetime,
            rights,
            sharing: Sharing::Shared,
            wait,
        }));
        assert_eq!(refused(rig.ask(two, write)), Refusal::BeyondShare { rights: Rights::READ });
    }
    rig.end();
}

#[test]
fn what_others_hold_of_members_ends_with_the_share_and_with_the_name() {
    for ending in [unshare("table", "b"), unpublish("table")] {
        let mut rig = rig();
        let (one, two) = (rig.attach("a"), rig.attach("b"));
        let (head, members) = shared(&mut rig, one, 3);
        for &object in members.iter().chain([&head]) {
            granted(rig.ask(two, read(object)));
        }
        assert_eq!(rig.node.counters().permissions, 4);
        assert_eq!(rig.ask(one, ending), ReplyBody::Done);
        assert_eq!(rig.node.counters().permissions, 0, "the answer says that all of it is over");
        for &object in members.iter().chain([&head]) {
            assert_eq!(refused(rig.ask(two, read(object))), Refusal::Gone);
        }
        rig.end();
    }
}

#[test]
fn a_member_that_goes_leaves_its_head_and_a_head_takes_its_members_with_it() {
    let mut rig = rig();
    let (one, two) = (rig.attach("a"), rig.attach("b"));
    let (head, members) = shared(&mut rig, one, 3);
    granted(rig.ask(two, read(members[0])));
    granted(rig.ask(two, read(members[2])));
    assert_eq!(rig.ask(one, free(members[0])), ReplyBody::Done);
    rig.settle();
    assert_eq!(rig.node.counters().permissions, 1, "another tenant keeps no object");
    granted(rig.ask(two, read(members[1])));
    assert_eq!(rig.ask(one, free(head)), ReplyBody::Done);
    rig.settle();
    assert_eq!(rig.node.counters().permissions, 0);
    for &member in &members[1..] {
        assert_eq!(refused(rig.ask(two, read(member))), Refusal::Gone);
        assert_eq!(refused(rig.ask(one, read(member))), Refusal::Gone);
    }
    assert_eq!(rig.node.counters().objects, 0);
    rig.end();
}

#[test]
fn a_tenant_ends_with_heads_and_members_in_any_order() {
    for head_first in [true, false] {
        let mut rig = rig();
        let (one, two) = (rig.attach("a"), rig.attach("b"));
        let (first, second) = (rig.keep(one).object, rig.keep(one).object);
        let (head, member) = if head_first { (first, second) } else { (second, first) };
        assert_eq!(rig.ask(one, include(member, head)), ReplyBody::Done);
        assert_eq!(rig.ask(one, publish("table", head)), ReplyBody::Done);
        assert_eq!(rig.ask(one, share("table", "b", Rights::READ)), ReplyBody::Done);
        granted(rig.ask(two, read(member)));
        rig.detach(one);
        rig.pass(Lifetime::millis(100));
        assert_eq!((rig.node.counters().objects, rig.node.counters().permissions), (0, 0));
        rig.end();
    }
}

#[test]
fn only_own_objects_that_are_free_for_it_belong_to_a_head() {
    let mut rig = rig();
    let (one, other) = (rig.attach("a"), rig.attach("b"));
    let (head, members) = shared(&mut rig, one, 1);
    let (free, named) = (rig.keep(one).object, rig.keep(one).object);
    assert_eq!(rig.ask(one, publish("named", named)), ReplyBody::Done);
    assert_eq!(rig.ask(one, include(members[0], head)), ReplyBody::Done, "it belongs there already");
    for (member, head) in [(free, free), (named, head), (members[0], free), (free, members[0]), (head, free)]
    {
        assert_eq!(refused(rig.ask(one, include(member, head))), Refusal::CannotInclude);
    }
    assert_eq!(refused(rig.ask(one, publish("member", members[0]))), Refusal::AlreadyNamed);
    let foreign = rig.keep(other).object;
    assert_eq!(refused(rig.ask(one, include(foreign, head))), Refusal::Gone);
    assert_eq!(refused(rig.ask(other, include(foreign, head))), Refusal::Gone, "not even with a shared head");
    let gone = ObjectRef { birth: 1000, ..free };
    assert_eq!(refused(rig.ask(one, include(gone, head))), Refusal::Gone);
    rig.end();
}

#[test]
fn the_audit_log_has_what_belongs_to_what() {
    let mut rig = rig();
    let one = rig.attach("a");
    let (head, members) = shared(&mut rig, one, 1);
    let records: Vec<_> = std::iter::from_fn(|| rig.node.poll_audit()).collect();
    let included: Vec<_> = records.iter().filter(|record| record.event == AuditEvent::Include).collect();
    let member = AuditedMember { object: members[0], head };
    assert_eq!(included.len(), 1);
    assert_eq!(included[0].member.as_deref(), Some(&member));
    rig.end();
}
