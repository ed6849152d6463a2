//! Objects that are shared with other tenants: the permissions of those tenants, and their end.

use crate::rig::{
    Rig, acquire, entry, free, granted, keys, lookup, publish, refused, share, unpublish, unshare,
};
use portcullis_nic::Status;
use portcullis_node::{NodeConfig, Quota};
use portcullis_protocol::{
    Acquire, GrantRequest, Granted, Keep, Lifetime, Mechanism, ObjectName, ObjectRef, Part, Refusal,
    ReplyBody, RequestBody, Rights, Sharing,
};

const NOW: Lifetime = Lifetime(0);
const WHILE: Lifetime = Lifetime::seconds(5);
const READ: Rights = Rights::READ;
const BOTH: Rights = Rights::READ.union(Rights::WRITE);

fn config() -> NodeConfig {
    NodeConfig { longest_keep: Lifetime::seconds(60), ..crate::rig::config() }
}

fn ask(object: ObjectRef, rights: Rights, sharing: Sharing, wait: Lifetime) -> RequestBody {
    let (part, lifetime) = (Part::WHOLE, Lifetime::seconds(5));
    RequestBody::Grant(GrantRequest::Acquire(Acquire {
        object: object.into(),
        part,
        lifetime,
        rights,
        sharing,
        wait,
    }))
}

fn read(object: ObjectRef) -> RequestBody {
    ask(object, READ, Sharing::Shared, NOW)
}

/// Makes a kept object of `client` without holders, with a name that is shared with tenant `b`.
fn shared(rig: &mut Rig, client: usize, rights: Rights) -> ObjectRef {
    let it = rig.allocate(client, 1000, true);
    rig.revoke(client, it.permission);
    assert_eq!(rig.ask(client, publish("table", it.object)), ReplyBody::Done);
    assert_eq!(rig.ask(client, share("table", "b", rights)), ReplyBody::Done);
    it.object
}

/// A node with an object of tenant `a` that is shared with `b`, and a client of each.
fn world(rights: Rights) -> (Rig, usize, usize, ObjectRef) {
    let mut rig = Rig::new(config());
    let (owner, guest) = (rig.attach("a"), rig.attach("b"));
    let object = shared(&mut rig, owner, rights);
    (rig, owner, guest, object)
}

fn opens(rig: &mut Rig, client: usize, it: &Granted) -> bool {
    let (status, _) = rig.read(client, keys(it).0, it.address().0, 8);
    if status != Status::Success {
        rig.settle();
        rig.recover(client);
    }
    status == Status::Success
}

#[test]
fn another_tenant_reads_what_is_shared_with_it() {
    let (mut rig, owner, guest, object) = world(READ);
    let own = granted(rig.ask(owner, ask(object, Rights::all(), Sharing::Shared, NOW)));
    assert_eq!(rig.write(owner, keys(&own).0, own.address().0, b"shared"), Status::Success);
    let found = entry(rig.ask(guest, lookup(Some("a"), "table")));
    assert_eq!((found.object, found.size, found.rights), (object, 1000, READ));
    let it = granted(rig.ask(guest, read(found.object)));
    let (status, bytes) = rig.read(guest, keys(&it).0, it.address().0, 6);
    assert_eq!((status, &*bytes), (Status::Success, &b"shared"[..]));
    assert_eq!(rig.write(guest, keys(&it).0, it.address().0, b"x"), Status::RemoteAccessError);
    rig.settle();
    rig.end();
}

/// A key opens in the domain of the tenant that holds the permission, and in no other.
#[test]
fn a_permission_for_another_tenant_is_set_up_in_that_tenants_domain() {
    for mechanism in [Mechanism::MemoryWindow, Mechanism::MemoryRegion] {
        let mut rig = Rig::new(NodeConfig { mechanism, ..config() });
        let (owner, guest) = (rig.attach("a"), rig.attach("b"));
        let (sibling, third) = (rig.attach("b"), rig.attach("c"));
        let object = shared(&mut rig, owner, BOTH);
        let it = granted(rig.ask(guest, read(object)));
        assert!(opens(&mut rig, guest, &it) && opens(&mut rig, sibling, &it), "{mechanism}");
        assert!(!opens(&mut rig, owner, &it), "{mechanism}: the owner has keys of its own");
        assert!(!opens(&mut rig, third, &it), "{mechanism}");
        rig.end();
    }
}

#[test]
fn another_tenant_gets_no_right_that_is_not_shared() {
    let (mut rig, _, guest, object) = world(READ);
    for rights in [Rights::WRITE, Rights::ATOMIC, BOTH, Rights::all()] {
        let refusal = refused(rig.ask(guest, ask(object, rights, Sharing::Shared, WHILE)));
        assert_eq!(refusal, Refusal::BeyondShare { rights: READ }, "{rights:?}");
    }
    granted(rig.ask(guest, read(object)));
    rig.end();
}

/// A tenant that may only read must not be able to keep the owner from its own object.
#[test]
fn exclusive_use_needs_the_right_to_write() {
    let (mut rig, owner, guest, object) = world(READ);
    let exclusive = |rights| ask(object, rights, Sharing::Exclusive, NOW);
    assert_eq!(refused(rig.ask(guest, exclusive(READ))), Refusal::BeyondShare { rights: READ });
    assert_eq!(rig.ask(owner, share("table", "b", BOTH)), ReplyBody::Done);
    let it = granted(rig.ask(guest, exclusive(READ)));
    assert_eq!(refused(rig.ask(owner, read(object))), Refusal::Conflict);
    rig.revoke(guest, it.permission);
    granted(rig.ask(owner, exclusive(READ)));
    rig.end();
}

#[test]
fn nothing_but_permissions_comes_with_a_share() {
    let (mut rig, owner, guest, object) = world(Rights::all());
    let keep = RequestBody::Grant(GrantRequest::Keep { object: object.into(), keep: Keep::No });
    for request in [free(object), keep, publish("mine", object)] {
        assert_eq!(refused(rig.ask(guest, request)), Refusal::Gone, "{request:?}");
    }
    for request in [unpublish("table"), share("table", "c", READ), unshare("table", "b")] {
        assert_eq!(refused(rig.ask(guest, request)), Refusal::NoSuchName, "{request:?}");
    }
    let address = acquire(ObjectName::Address(object.address), Sharing::Shared, NOW);
    assert_eq!(refused(rig.ask(guest, address)), Refusal::NoSuchObject);
    let other = rig.allocate(owner, 64, true);
    assert_eq!(refused(rig.ask(guest, read(other.object))), Refusal::Gone, "another object of the owner");
    assert_eq!(refused(rig.ask(owner, share("table", "a", READ))), Refusal::SharedWithOwner);
    assert_eq!(refused(rig.ask(owner, share("table", "c", Rights::empty()))), Refusal::Nothing);
    rig.end();
}

#[test]
fn a_part_of_a_shared_object_opens_that_part() {
    let (mut rig, owner, guest, object) = world(BOTH);
    let part = Part { offset: 100, length: 50 };
    let lifetime = Lifetime::seconds(5);
    let request = |sharing| {
        RequestBody::Grant(GrantRequest::Acquire(Acquire {
            object: object.into(),
            part,
            lifetime,
            rights: BOTH,
            sharing,
            wait: NOW,
        }))
    };
    let it = granted(rig.ask(guest, request(Sharing::Exclusive)));
    let (key, at) = (keys(&it).0, it.address().0);
    assert_eq!(rig.write(guest, key, at, &[7; 50]), Status::Success);
    for (from, length) in [(at - 1, 1), (at + 50, 1), (at - 100, 8)] {
        assert_eq!(rig.read(guest, key, from, length).0, Status::RemoteAccessError);
        rig.settle();
        rig.recover(guest);
    }
    assert_eq!(refused(rig.ask(owner, request(Sharing::Shared))), Refusal::Conflict);
    rig.end();
}

#[test]
fn what_another_tenant_holds_ends_when_the_share_ends() {
    for mechanism in [Mechanism::MemoryWindow, Mechanism::MemoryRegion] {
        for end in [unshare("table", "b"), unpublish("table")] {
            let mut rig = Rig::new(NodeConfig { mechanism, ..config() });
            let (owner, guest) = (rig.attach("a"), rig.attach("b"));
            let object = shared(&mut rig, owner, BOTH);
            let own = granted(rig.ask(owner, read(object)));
            let it = granted(rig.ask(guest, ask(object, BOTH, Sharing::Shared, NOW)));
            let other = granted(rig.ask(guest, read(object)));
            assert_eq!(rig.ask_soon(owner, end), ReplyBody::Done);
            // This holds from the reply on, and without a further turn of the node.
            for it in [&it, &other] {
                assert_eq!(rig.read(guest, keys(it).0, it.address().0, 8).0, Status::RemoteAccessError);
                rig.settle();
                rig.recover(guest);
            }
            assert!(opens(&mut rig, owner, &own), "the owner's own permissions live on");
            let extend = RequestBody::Grant(GrantRequest::Extend {
                permission: it.permission,
                lifetime: Lifetime::seconds(9),
            });
            assert_eq!(refused(rig.ask(guest, extend)), Refusal::NotLive);
            assert_eq!(refused(rig.ask(guest, read(object))), Refusal::Gone);
            assert_eq!(refused(rig.ask(guest, lookup(Some("a"), "table"))), Refusal::NoSuchName);
            granted(rig.ask(owner, read(object)));
            rig.end();
        }
    }
}

#[test]
fn a_share_with_one_tenant_ends_and_another_goes_on() {
    let (mut rig, owner, guest, object) = world(READ);
    let third = rig.attach("c");
    assert_eq!(refused(rig.ask(owner, unshare("table", "c"))), Refusal::NotShared);
    assert_eq!(rig.ask(owner, share("table", "c", READ)), ReplyBody::Done);
    let [it, other] = [guest, third].map(|client| granted(rig.ask(client, read(object))));
    assert_eq!(rig.ask(owner, unshare("table", "b")), ReplyBody::Done);
    assert!(!opens(&mut rig, guest, &it) && opens(&mut rig, third, &other));
    assert_eq!(rig.ask(owner, share("table", "b", READ)), ReplyBody::Done);
    assert!(!opens(&mut rig, guest, &it), "what has ended stays so");
    let again = granted(rig.ask(guest, read(object)));
    assert!(opens(&mut rig, guest, &again));
    rig.end();
}

/// Requests that wait, and permissions that are being set up, are not forgotten when a share ends.
#[test]
fn what_is_under_way_ends_with_the_share_too() {
    let (mut rig, owner, guest, object) = world(BOTH);
    let own = granted(rig.ask(owner, ask(object, Rights::all(), Sharing::Exclusive, NOW)));
    let waiting = rig.send(guest, ask(object, READ, Sharing::Shared, WHILE));
    rig.settle();
    assert_eq!(rig.ask(owner, unshare("table", "b")), ReplyBody::Done);
    assert_eq!(rig.reply(guest, waiting).map(refused), Some(Refusal::Gone));
    rig.revoke(owner, own.permission);
    assert_eq!(rig.ask(owner, share("table", "b", BOTH)), ReplyBody::Done);
    // Both reach the node in one turn: the permission is not on the NIC yet when the share ends.
    let starting = rig.send(guest, read(object));
    let end = rig.send(owner, unshare("table", "b"));
    rig.settle();
    assert_eq!(rig.reply(owner, end), Some(ReplyBody::Done));
    assert_eq!(rig.reply(guest, starting).map(refused), Some(Refusal::Gone));
    assert_eq!(rig.node.counters().permissions, 0);
    rig.end();
}

/// An object lives for its own tenant: others cannot keep it alive, at that tenant's expense.
#[test]
fn other_tenants_do_not_keep_an_object() {
    let (mut rig, owner, guest, object) = world(READ);
    let it = granted(rig.ask(guest, read(object)));
    assert_eq!(rig.ask(owner, free(object)), ReplyBody::Done);
    rig.pass(Lifetime::millis(5));
    assert!(!opens(&mut rig, guest, &it));
    let left = rig.node.counters();
    assert_eq!((left.objects, left.names, left.permissions), (0, 0, 0));

    let held = rig.allocate(owner, 64, false);
    assert_eq!(rig.ask(owner, publish("held", held.object)), ReplyBody::Done);
    assert_eq!(rig.ask(owner, share("held", "b", READ)), ReplyBody::Done);
    rig.revoke(owner, held.permission);
    assert_eq!(refused(rig.ask(guest, read(held.object))), Refusal::Gone);
    assert_eq!(refused(rig.ask(guest, lookup(Some("a"), "held"))), Refusal::NoSuchName);
    rig.end();
}

#[test]
fn a_request_of_another_tenant_that_waits_does_not_keep_an_object_either() {
    let (mut rig, owner, guest, object) = world(BOTH);
    let own = granted(rig.ask(owner, ask(object, Rights::all(), Sharing::Exclusive, NOW)));
    let waiting = rig.send(guest, ask(object, READ, Sharing::Shared, WHILE));
    rig.settle();
    assert_eq!(rig.ask(owner, free(object)), ReplyBody::Done);
    assert_eq!(rig.reply(guest, waiting).map(refused), Some(Refusal::Gone));
    assert_eq!(rig.node.counters().objects, 1, "the owner still holds the object");
    rig.revoke(owner, own.permission);
    rig.pass(Lifetime::millis(5));
    assert_eq!(rig.node.counters().objects, 0);
    rig.end();
}

/// Tenants' windows are bound and unbound in orders of their own.
#[test]
fn nobody_gets_an_object_before_what_another_tenant_held_is_down() {
    let (mut rig, owner, guest, object) = world(Rights::all());
    for (first, second) in [(owner, guest), (guest, owner)] {
        let exclusive = |wait| ask(object, Rights::all(), Sharing::Exclusive, wait);
        let it = granted(rig.ask(first, exclusive(NOW)));
        let waiting = rig.send(second, exclusive(WHILE));
        rig.settle();
        rig.send(first, RequestBody::Grant(GrantRequest::Revoke { permission: it.permission, free: false }));
        let next = loop {
            rig.turn();
            if let Some(reply) = rig.reply(second, waiting) {
                break granted(reply);
            }
        };
        assert_eq!(rig.read(first, keys(&it).0, it.address().0, 8).0, Status::RemoteAccessError);
        rig.settle();
        rig.recover(first);
        assert!(opens(&mut rig, second, &next));
        rig.revoke(second, next.permission);
        rig.seat(first).forget_replies();
    }
    rig.end();
}

#[test]
fn a_permission_counts_for_its_holder_and_the_bytes_for_their_owner() {
    let quota = Quota { permissions_max: 2, ..Quota::default() };
    let mut rig = Rig::new(NodeConfig { quota, ..config() });
    let (owner, guest) = (rig.attach("a"), rig.attach("b"));
    let object = shared(&mut rig, owner, READ);
    for client in [guest, owner] {
        for _ in 0..2 {
            granted(rig.ask(client, read(object)));
        }
        assert_eq!(refused(rig.ask(client, read(object))), Refusal::Quota { used: 2, limit: 2 });
    }
    rig.end();
}

/// The bytes that another tenant wrote are scrubbed, for the object's own tenant too.
#[test]
fn the_owners_next_object_does_not_hold_what_another_tenant_wrote() {
    for rights in [BOTH, Rights::ATOMIC | Rights::READ] {
        let (mut rig, owner, guest, object) = world(rights);
        let it = granted(rig.ask(guest, ask(object, rights, Sharing::Shared, NOW)));
        let at = it.address().0;
        if rights.contains(Rights::WRITE) {
            assert_eq!(rig.write(guest, keys(&it).0, at, &[7; 1000]), Status::Success);
        } else {
            let at = at.next_multiple_of(8);
            assert_eq!(rig.swap(guest, keys(&it).0, at, 0, 0x0707_0707_0707_0707).0, Status::Success);
        }
        assert_eq!(rig.ask(owner, free(object)), ReplyBody::Done);
        rig.pass(Lifetime::millis(5));
        let next = (0..1000)
            .map(|_| rig.allocate(owner, 1000, false))
            .find(|it| it.object.address == object.address)
            .expect("the place is used again");
        let (status, bytes) = rig.read(owner, keys(&next).0, at, 1000);
        assert_eq!((status, bytes), (Status::Success, vec![0; 1000]));
        rig.end();
    }
}

#[test]
fn a_tenant_that_leaves_gives_back_what_it_held_of_others() {
    let (mut rig, owner, guest, object) = world(BOTH);
    granted(rig.ask(guest, ask(object, BOTH, Sharing::Exclusive, NOW)));
    rig.detach(guest);
    rig.settle();
    assert_eq!(rig.node.counters().tenants, 1);
    granted(rig.ask(owner, ask(object, BOTH, Sharing::Exclusive, NOW)));
    // The share belongs to the name, not to the client: it still exists when the tenant attaches again.
    let again = rig.attach("b");
    entry(rig.ask(again, lookup(Some("a"), "table")));
    rig.end();
}

#[test]
fn a_tenant_need_not_be_there_to_be_shared_with() {
    let mut rig = Rig::new(config());
    let owner = rig.attach("a");
    let object = shared(&mut rig, owner, READ);
    let guest = rig.attach("b");
    granted(rig.ask(guest, read(object)));
    rig.end();
}

/// The objects of a tenant without clients are shared for as long as they are kept.
#[test]
fn what_is_kept_without_its_tenants_clients_can_be_acquired_until_it_goes() {
    let (mut rig, owner, guest, object) = world(READ);
    let keep = RequestBody::Grant(GrantRequest::Keep {
        object: object.into(),
        keep: Keep::For(Lifetime::millis(50)),
    });
    assert_eq!(rig.ask(owner, keep), ReplyBody::Done);
    rig.detach(owner);
    rig.pass(Lifetime::millis(10));
    let it = granted(rig.ask(guest, read(object)));
    assert!(opens(&mut rig, guest, &it));
    rig.pass(Lifetime::millis(60));
    assert!(!opens(&mut rig, guest, &it), "what the owner kept has gone, and the share with it");
    let left = rig.node.counters();
    assert_eq!((left.tenants, left.objects, left.permissions, left.names), (1, 0, 0, 0));
    rig.end();
}

/// In whatever order the two tenants end, no memory is used again while a window of the other still opens it.
#[test]
fn an_owner_that_vanishes_while_others_hold_its_objects_takes_their_permissions_along() {
    for mechanism in [Mechanism::MemoryWindow, Mechanism::MemoryRegion] {
        let mut rig = Rig::new(NodeConfig { mechanism, ..config() });
        let (owner, guest) = (rig.attach("a"), rig.attach("b"));
        let object = shared(&mut rig, owner, READ);
        let it = granted(rig.ask(guest, read(object)));
        rig.detach(owner);
        rig.settle();
        assert!(!opens(&mut rig, guest, &it), "{mechanism}");
        let left = rig.node.counters();
        assert_eq!((left.tenants, left.objects, left.permissions), (1, 0, 0), "{mechanism}");
        let owner = rig.attach("a");
        assert_eq!(refused(rig.ask(guest, read(object))), Refusal::Gone);
        assert_eq!(refused(rig.ask(owner, lookup(None, "table"))), Refusal::NoSuchName);
        rig.end();
    }
}

#[test]
fn tenants_that_hold_each_others_objects_go_in_any_order() {
    for last in [0, 1] {
        let mut rig = Rig::new(config());
        let clients = [rig.attach("a"), rig.attach("b")];
        let objects = clients.map(|client| {
            let it = rig.allocate(client, 64, true);
            rig.revoke(client, it.permission);
            assert_eq!(rig.ask(client, publish("its", it.object)), ReplyBody::Done);
            it.object
        });
        for (client, with) in [(clients[0], "b"), (clients[1], "a")] {
            assert_eq!(rig.ask(client, share("its", with, Rights::all())), ReplyBody::Done);
        }
        granted(rig.ask(clients[0], ask(objects[1], Rights::all(), Sharing::Exclusive, NOW)));
        granted(rig.ask(clients[1], ask(objects[0], Rights::all(), Sharing::Exclusive, NOW)));
        rig.detach(clients[1 - last]);
        rig.detach(clients[last]);
        rig.settle();
        assert_eq!(rig.node.counters().tenants, 0);
        rig.end();
    }
}

/// A node that ends leaves nothing behind, whichever tenants hold permissions over whose objects.
#[test]
fn a_node_ends_while_objects_are_shared() {
    let (mut rig, owner, guest, object) = world(Rights::all());
    granted(rig.ask(guest, ask(object, BOTH, Sharing::Shared, NOW)));
    rig.send(guest, read(object));
    rig.send(owner, ask(object, BOTH, Sharing::Exclusive, WHILE));
    let now = rig.now;
    rig.node.end(&mut rig.nic, now);
    let left = rig.node.counters();
    assert_eq!((left.tenants, left.objects, left.permissions, left.names, left.windows), (0, 0, 0, 0, 0));
}

/// A crowd of permissions ends over several turns, and others are served meanwhile.
#[test]
fn the_end_of_a_share_with_a_crowd_holds_up_nobody() {
    const CROWD: u64 = 3000;
    let mut rig = Rig::new(NodeConfig { headers: 8192, ..config() });
    let (owner, guest, third) = (rig.attach("a"), rig.attach("b"), rig.attach("c"));
    let object = shared(&mut rig, owner, READ);
    for _ in 0..CROWD {
        granted(rig.ask(guest, read(object)));
    }
    let asked = rig.send(owner, unshare("table", "b"));
    let (mut most, mut turns) = (0, 0);
    while rig.node.counters().permissions > 0 {
        let before = rig.node.counters().revokes;
        let other = rig.send(third, lookup(None, "nothing"));
        assert!(turns == 0 || rig.reply(owner, asked).is_none(), "the crowd still holds");
        rig.turn();
        rig.turn();
        rig.turn();
        assert!(rig.reply(third, other).is_some(), "another tenant waits");
        most = most.max(rig.node.counters().revokes - before);
        turns += 1;
    }
    rig.settle();
    assert!(turns > 1 && most <= 3 * 512, "{most} ended in three turns");
    assert_eq!(rig.reply(owner, asked), Some(ReplyBody::Done));
    rig.end();
}

/// The owner's window is unbound behind a crowd of others. The other tenant's window is alone in its queue, and would
/// be bound first.
#[test]
fn a_permission_does_not_overtake_the_end_of_another_tenants_behind_a_crowd() {
    let (mut rig, owner, guest, object) = world(Rights::all());
    let crowd = rig.allocate(owner, 64, true);
    rig.revoke(owner, crowd.permission);
    for _ in 0..400 {
        granted(rig.ask(owner, acquire(crowd.object, Sharing::Shared, NOW)));
    }
    let it = granted(rig.ask(owner, acquire(object, Sharing::Exclusive, NOW)));
    let waiting = rig.send(guest, ask(object, Rights::all(), Sharing::Exclusive, WHILE));
    rig.settle();
    rig.now = rig.now.after(Lifetime::millis(200));
    for _ in 0..10_000 {
        rig.turn();
        if let Some(reply) = rig.reply(guest, waiting) {
            granted(reply);
            assert_eq!(rig.read(owner, keys(&it).0, it.address().0, 8).0, Status::RemoteAccessError);
            rig.settle();
            return rig.end();
        }
    }
    panic!("its turn does not come");
}
