//! Names of objects: which clients may give, find and remove them, and when they go.

use crate::rig::{
    Rig, acquire, entry, free, granted, lookup, name, publish, refused, share, tenant, unpublish, unshare,
};
use portcullis_node::{AuditEvent, AuditRecord, AuditedName, NodeConfig, Quota};
use portcullis_protocol::{
    Acquire, Entry, GrantRequest, Granted, Keep, Lifetime, NamedRequest, Refusal, ReplyBody, RequestBody,
    Rights, Sharing,
};

const NOW: Lifetime = Lifetime(0);

fn rig() -> Rig {
    Rig::new(NodeConfig { audit: true, ..crate::rig::config() })
}

/// Returns the name that an audit record is about.
fn named(record: &AuditRecord) -> AuditedName {
    *record.name.clone().expect("the record is about a name")
}

fn list(rig: &mut Rig, client: usize, owner: Option<&str>) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    loop {
        let after = entries.last().map(|last| last.name);
        match rig.ask(client, RequestBody::Named(NamedRequest::List { owner: owner.map(tenant), after })) {
            ReplyBody::Entry(entry) => entries.push(entry),
            ReplyBody::EndOfList => return entries,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_named_object_is_found_by_its_tenant() {
    let mut rig = rig();
    let (one, sibling) = (rig.attach("a"), rig.attach("a"));
    let it = rig.keep(one);
    assert_eq!(rig.ask(one, publish("table", it.object)), ReplyBody::Done);
    let found = entry(rig.ask(sibling, lookup(None, "table")));
    assert_eq!(found, Entry { name: name("table"), object: it.object, size: 64, rights: Rights::all() });
    assert_eq!(entry(rig.ask(sibling, lookup(Some("a"), "table"))), found, "it may say its own name");
    granted(rig.ask(sibling, acquire(found.object, Sharing::Shared, NOW)));
    assert_eq!(refused(rig.ask(sibling, lookup(None, "chair"))), Refusal::NoSuchName);
    assert_eq!(rig.ask(sibling, unpublish("table")), ReplyBody::Done);
    assert_eq!(refused(rig.ask(one, lookup(None, "table"))), Refusal::NoSuchName);
    assert_eq!(refused(rig.ask(one, unpublish("table"))), Refusal::NoSuchName);
    rig.end();
}

/// Two clients that make a table each agree on one of them.
#[test]
fn of_two_objects_one_gets_the_name() {
    let mut rig = rig();
    let (one, two) = (rig.attach("a"), rig.attach("a"));
    let (first, second) = (rig.keep(one), rig.keep(two));
    let asked =
        [rig.send(one, publish("table", first.object)), rig.send(two, publish("table", second.object))];
    rig.settle();
    let answers =
        [rig.reply(one, asked[0]), rig.reply(two, asked[1])].map(|answer| answer.expect("answered"));
    let taken = ReplyBody::Refused(Refusal::NameTaken);
    assert!(answers == [ReplyBody::Done, taken] || answers == [taken, ReplyBody::Done], "{answers:?}");
    let other = if answers[0] == taken { first } else { second };
    assert_eq!(rig.ask(one, publish("chair", other.object)), ReplyBody::Done, "the other is free for a name");
    assert_eq!(refused(rig.ask(one, publish("bench", other.object))), Refusal::AlreadyNamed);
    rig.end();
}

#[test]
fn only_a_tenants_own_objects_get_names_and_its_names_are_its_own() {
    let mut rig = rig();
    let (one, other) = (rig.attach("a"), rig.attach("b"));
    let (its, others) = (rig.keep(one), rig.keep(other));
    assert_eq!(refused(rig.ask(other, publish("table", its.object))), Refusal::Gone);
    for (client, object) in [(one, its.object), (other, others.object)] {
        assert_eq!(rig.ask(client, publish("table", object)), ReplyBody::Done);
    }
    assert_eq!(entry(rig.ask(other, lookup(None, "table"))).object, others.object);
    for (client, owner) in [(other, "a"), (one, "b"), (one, "nobody")] {
        assert_eq!(refused(rig.ask(client, lookup(Some(owner), "table"))), Refusal::NoSuchName);
        assert_eq!(list(&mut rig, client, Some(owner)), []);
    }
    assert_eq!(refused(rig.ask(one, share("chair", "b", Rights::READ))), Refusal::NoSuchName);
    rig.end();
}

#[test]
fn a_list_has_each_name_once_in_order_and_another_tenants_list_what_is_shared() {
    let mut rig = rig();
    let (one, other) = (rig.attach("a"), rig.attach("b"));
    for text in ["e", "b", "d", "a", "c"] {
        let it = rig.keep(one);
        assert_eq!(rig.ask(one, publish(text, it.object)), ReplyBody::Done);
    }
    for text in ["d", "a"] {
        assert_eq!(rig.ask(one, share(text, "b", Rights::READ)), ReplyBody::Done);
    }
    let names = |entries: Vec<Entry>| entries.iter().map(|entry| entry.name.to_string()).collect::<String>();
    assert_eq!(names(list(&mut rig, one, None)), "abcde");
    let seen = list(&mut rig, other, Some("a"));
    assert!(seen.iter().all(|entry| entry.rights == Rights::READ), "{seen:?}");
    assert_eq!(names(seen), "ad");
    assert_eq!(names(list(&mut rig, other, None)), "");
    assert_eq!(rig.ask(one, unshare("a", "b")), ReplyBody::Done);
    assert_eq!(names(list(&mut rig, other, Some("a"))), "d");
    rig.end();
}

/// A name does not keep its object: the name goes with the object, and is free again.
#[test]
fn a_name_goes_with_its_object() {
    let mut rig = rig();
    let client = rig.attach("a");
    let (freed, held) = (rig.keep(client), rig.allocate(client, 64, false));
    for (text, object) in [("freed", freed.object), ("held", held.object)] {
        assert_eq!(rig.ask(client, publish(text, object)), ReplyBody::Done);
    }
    assert_eq!(rig.ask(client, free(freed.object)), ReplyBody::Done);
    assert_eq!(refused(rig.ask(client, lookup(None, "freed"))), Refusal::NoSuchName);
    entry(rig.ask(client, lookup(None, "held")));
    rig.pass(Lifetime::millis(200));
    assert_eq!(refused(rig.ask(client, lookup(None, "held"))), Refusal::NoSuchName, "its lease has ended");
    rig.pass(Lifetime::millis(5));
    assert_eq!((rig.node.counters().names, rig.node.counters().objects), (0, 0));
    rig.end();
}

#[test]
fn names_stay_for_as_long_as_their_tenants_objects_are_kept() {
    let mut rig = rig();
    let client = rig.attach("a");
    for (text, time) in [("longer", 50), ("shorter", 5)] {
        let it = rig.allocate(client, 64, false);
        let keep = Keep::For(Lifetime::millis(time));
        assert_eq!(
            rig.ask(client, RequestBody::Grant(GrantRequest::Keep { object: it.object.into(), keep })),
            ReplyBody::Done
        );
        assert_eq!(rig.ask(client, publish(text, it.object)), ReplyBody::Done);
    }
    rig.detach(client);
    rig.pass(Lifetime::millis(20));
    let later = rig.attach("a");
    entry(rig.ask(later, lookup(None, "longer")));
    assert_eq!(refused(rig.ask(later, lookup(None, "shorter"))), Refusal::NoSuchName);
    rig.detach(later);
    rig.pass(Lifetime::millis(100));
    assert_eq!((rig.node.counters().names, rig.node.counters().tenants), (0, 0));
    rig.end();
}

#[test]
fn a_tenant_has_as_many_names_as_its_quota_and_shares_each_with_as_many_tenants() {
    let quota = Quota { names_max: 2, shares_max: 2, ..Quota::default() };
    let mut rig = Rig::new(NodeConfig { quota, ..crate::rig::config() });
    let client = rig.attach("a");
    let objects: Vec<Granted> = (0..3).map(|_| rig.keep(client)).collect();
    assert_eq!(rig.ask(client, publish("0", objects[0].object)), ReplyBody::Done);
    assert_eq!(rig.ask(client, publish("1", objects[1].object)), ReplyBody::Done);
    let full = Refusal::Quota { used: 2, limit: 2 };
    assert_eq!(refused(rig.ask(client, publish("2", objects[2].object))), full);
    for other in ["b", "c"] {
        assert_eq!(rig.ask(client, share("0", other, Rights::READ)), ReplyBody::Done);
    }
    assert_eq!(refused(rig.ask(client, share("0", "d", Rights::READ))), full);
    assert_eq!(rig.ask(client, share("1", "d", Rights::READ)), ReplyBody::Done);
    assert_eq!(rig.ask(client, free(objects[1].object)), ReplyBody::Done);
    assert_eq!(rig.ask(client, publish("2", objects[2].object)), ReplyBody::Done);
    rig.end();
}

#[test]
fn the_audit_log_has_names_and_with_whom_they_are_shared() {
    let mut rig = rig();
    let (client, other) = (rig.attach("a"), rig.attach("b"));
    let it = rig.keep(client);
    let asked = [
        publish("table", it.object),
        share("table", "b", Rights::READ | Rights::WRITE),
        unshare("table", "b"),
        share("table", "b", Rights::READ),
    ];
    for request in asked {
        assert_eq!(rig.ask(client, request), ReplyBody::Done);
    }
    let read = RequestBody::Grant(GrantRequest::Acquire(Acquire {
        object: it.object.into(),
        part: portcullis_protocol::Part::WHOLE,
        lifetime: Lifetime::millis(1),
        rights: Rights::READ,
        sharing: Sharing::Shared,
        wait: NOW,
    }));
    granted(rig.ask(other, read));
    assert_eq!(rig.ask(client, free(it.object)), ReplyBody::Done);
    rig.settle();
    let records: Vec<_> = std::iter::from_fn(|| rig.node.poll_audit()).collect();
    let of = |event| records.iter().filter(move |record| record.event == event);
    let publish = of(AuditEvent::Publish).next().expect("published");
    assert_eq!((publish.tenant.as_deref(), named(publish).object), (Some("a"), Some(it.object)));
    let shares: Vec<_> =
        of(AuditEvent::Share).map(|it| (named(it).name, named(it).with, named(it).rights)).collect();
    let with = (name("table"), Some(tenant("b")));
    let expected = [Rights::READ | Rights::WRITE, Rights::READ].map(|rights| (with.0, with.1, Some(rights)));
    assert_eq!(shares, expected);
    assert_eq!(of(AuditEvent::Unshare).map(|it| named(it).with).collect::<Vec<_>>(), [with.1]);
    let reasons: Vec<_> = of(AuditEvent::Unpublish).map(|it| it.reason).collect();
    assert_eq!(reasons, [Some("its object goes")]);
    let grant = of(AuditEvent::Grant).next_back().expect("granted");
    assert_eq!((grant.tenant.as_deref(), grant.owner.as_deref()), (Some("b"), Some("a")));
    let end = of(AuditEvent::Revoke).next_back().expect("it ended");
    assert_eq!((end.owner.as_deref(), end.reason), (Some("a"), Some("its object is not shared any more")));
    assert_eq!(of(AuditEvent::Grant).next().expect("granted").owner, None, "its own");
    rig.end();
}
