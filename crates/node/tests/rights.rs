//! The accesses that a permission allows, and that it allows no other: bytes, rights, tenants, under each mechanism.

use crate::rig::{Rig, granted, keys, refused, word};
use portcullis_nic::{DataQueuePairs, Operation, RemoteSpan, Status};
use portcullis_node::{NodeConfig, Reductions};
use portcullis_protocol::{
    Allocate, CopyRequest, Credential, GrantRequest, Granted, Keep, Lifetime, Mechanism, PermissionId,
    QueuePairRequest, Refusal, RemoteAddress, ReplyBody, RequestBody, Rights, Rkey, Sharing,
};

const REFUSED: Status = Status::RemoteAccessError;
const SIZE: u64 = 256;
const FULL: [u8; 256] = [7; 256];

fn with(mechanism: Mechanism) -> NodeConfig {
    let mut config = NodeConfig { mechanism, ..crate::rig::config() };
    config.violations.free_max = u32::MAX;
    config
}

/// Runs a check with all mechanisms that enforce bytes on the NIC, with one window or region and with two.
fn each_exact_mechanism(check: impl Fn(&mut Rig, usize, &dyn Fn(&mut Rig, Rights) -> Granted)) {
    for mechanism in [Mechanism::MemoryWindow, Mechanism::WindowGroup, Mechanism::MemoryRegion] {
        for reductions in [Reductions::default(), Reductions::none()] {
            let mut rig = Rig::new(NodeConfig { reductions, ..with(mechanism) });
            let client = rig.attach("a");
            // With objects before and after it, the addresses around the tested object certainly lie in the pool.
            rig.allocate(client, SIZE, true);
            check(&mut rig, client, &|rig, rights| allocate(rig, client, rights));
            rig.end();
        }
    }
}

fn allocate(rig: &mut Rig, client: usize, rights: Rights) -> Granted {
    let (lifetime, sharing) = (Lifetime::millis(100), Sharing::Exclusive);
    granted(rig.ask(
        client,
        RequestBody::Grant(GrantRequest::Allocate(Allocate {
            size: SIZE,
            alignment: 0,
            lifetime,
            rights,
            sharing,
            keep: Keep::No,
        })),
    ))
}

fn must_refuse(rig: &mut Rig, client: usize, status: Status, what: &str) {
    assert_eq!(status, REFUSED, "{what}");
    rig.settle();
    rig.recover(client);
}

/// The books give a permission's slot to another tenant in the turn in which the first permission ends, before either
/// is carried out. The tenant that was busy first is carried out first.
#[test]
fn what_gets_a_place_in_the_books_in_the_same_turn_gets_nothing_else_with_it() {
    for mechanism in Mechanism::ALL {
        // Delayed unbinding is off: this test checks that an ended permission is closed at once.
        let reductions = Reductions { delayed_unbinding: false, ..Reductions::default() };
        let mut rig = Rig::new(NodeConfig { reductions, ..with(mechanism) });
        let [busy, ending, next] = ["blue", "red", "blue"].map(|tenant| rig.attach(tenant));
        let (lifetime, rights, sharing) = (Lifetime::millis(100), Rights::all(), Sharing::Exclusive);
        let ask = RequestBody::Grant(GrantRequest::Allocate(Allocate {
            size: SIZE,
            alignment: 0,
            lifetime,
            rights,
            sharing,
            keep: Keep::No,
        }));
        for round in 0..4 {
            let old = granted(rig.ask(ending, ask));
            let first = rig.send(busy, ask);
            rig.deliver();
            let end = rig.send(
                ending,
                RequestBody::Grant(GrantRequest::Revoke { permission: old.permission, free: false }),
            );
            rig.deliver();
            let second = rig.send(next, ask);
            rig.settle();
            assert_eq!(rig.reply(ending, end), Some(ReplyBody::Done), "{mechanism}, round {round}");
            let new = [(busy, first), (next, second)]
                .map(|(client, asked)| (client, granted(rig.reply(client, asked).expect("an answer"))));
            for (client, it) in &new {
                if let Credential::Keys { buffer, .. } = it.credential {
                    assert_eq!(rig.write(*client, buffer, it.address().0, &FULL), Status::Success);
                    assert_eq!(rig.read(*client, buffer, it.address().0, 256).1, FULL);
                }
            }
            if let (Credential::Keys { buffer, .. }, true) = (old.credential, mechanism.enforces_range()) {
                let status = rig.read(ending, buffer, old.address().0, 256).0;
                must_refuse(&mut rig, ending, status, "what has ended");
            }
            for (client, it) in new {
                rig.revoke(client, it.permission);
            }
        }
        rig.end();
    }
}

#[test]
fn a_holder_reaches_exactly_its_bytes() {
    each_exact_mechanism(|rig, client, allocate| {
        let it = allocate(rig, Rights::all());
        let (key, lifetime_key) = keys(&it);
        assert_eq!(it.length, SIZE);
        assert_eq!(rig.write(client, key, it.address().0, &FULL), Status::Success);
        assert_eq!(rig.read(client, key, it.address().0, 256), (Status::Success, vec![7; 256]));
        assert_eq!(rig.read(client, key, it.address().0 + SIZE - 1, 1), (Status::Success, vec![7]));
        let above = rig.read(client, key, it.address().0 + SIZE - 1, 2).0;
        must_refuse(rig, client, above, "a byte above");
        let above = rig.write(client, key, it.address().0 + SIZE, &[1]);
        must_refuse(rig, client, above, "a byte written above");
        // One window over both parts also opens the eight bytes of the lifetime word, but no byte before them.
        let first = if key == lifetime_key { word(&it) } else { it.address().0 };
        let below = rig.read(client, key, first - 1, 1).0;
        must_refuse(rig, client, below, "a byte below");
        let below = rig.write(client, key, first - 1, &[0; 2]);
        must_refuse(rig, client, below, "a byte written below");
        let (status, _) = rig.swap(client, lifetime_key, it.permission.header.0 + 16, 0, 1);
        must_refuse(rig, client, status, "the start in the header");
    });
}

#[test]
fn a_refused_operation_changes_nothing_and_brings_nothing() {
    each_exact_mechanism(|rig, client, allocate| {
        let it = allocate(rig, Rights::all());
        let (key, _) = keys(&it);
        rig.write(client, key, it.address().0, &FULL);
        let status = rig.write(client, key, it.address().0 + 1, &[8; 256]);
        must_refuse(rig, client, status, "a write that ends a byte too far");
        assert_eq!(rig.read(client, key, it.address().0, 256).1, vec![7; 256]);
        let (status, bytes) = rig.read(client, key, it.address().0 + 1, 256);
        must_refuse(rig, client, status, "a read that ends a byte too far");
        assert_eq!(bytes, vec![0xee; 256], "nothing came");
    });
}

#[test]
fn each_right_opens_its_operation_and_no_other() {
    for bits in 1..8 {
        let rights = Rights::from_bits(bits).expect("three rights");
        each_exact_mechanism(|rig, client, allocate| {
            let it = allocate(rig, rights);
            let (key, lifetime_key) = keys(&it);
            let tried = [
                (Rights::READ, rig.read(client, key, it.address().0, 8).0),
                (Rights::WRITE, {
                    back(rig, client);
                    rig.write(client, key, it.address().0, &[1; 8])
                }),
                (Rights::ATOMIC, {
                    back(rig, client);
                    rig.swap(client, key, it.address().0, 0, 1).0
                }),
            ];
            back(rig, client);
            for (right, status) in tried {
                let expected = if rights.contains(right) { Status::Success } else { REFUSED };
                assert_eq!(status, expected, "{right:?} with {rights:?}");
            }
            let live = rig.swap(client, lifetime_key, word(&it), 1, 1).0;
            assert_eq!(live, Status::Success, "the lifetime word is for atomics whatever the rights");
            if rights != Rights::all() {
                assert_ne!(key, lifetime_key, "one window would give it more than it was granted");
                let status = rig.read(client, lifetime_key, word(&it), 8).0;
                must_refuse(rig, client, status, "a read of the lifetime word");
                let status = rig.write(client, lifetime_key, word(&it), &[0; 8]);
                must_refuse(rig, client, status, "a write of the lifetime word");
                let status = rig.swap(client, lifetime_key, it.address().0, 0, 1).0;
                must_refuse(rig, client, status, "the buffer by the lifetime word's key");
                let status = rig.swap(client, key, word(&it), 0, 1).0;
                must_refuse(rig, client, status, "the lifetime word by the buffer's key");
            }
        });
    }
}

/// Gets the queue pair rebuilt if it broke.
fn back(rig: &mut Rig, client: usize) {
    rig.settle();
    if rig.ask(client, RequestBody::QueuePair(QueuePairRequest::Recover { queue_pair: 0 })) == ReplyBody::Done
    {
        rig.seat(client).endpoint.rebuilt(0);
    }
}

#[test]
fn a_key_means_nothing_to_another_tenant_and_works_for_a_sibling_unless_it_is_of_a_group() {
    each_exact_mechanism(|rig, client, allocate| {
        let (stranger, sibling) = (rig.attach("b"), rig.attach("a"));
        let it = allocate(rig, Rights::all());
        let (key, lifetime_key) = keys(&it);
        let status = rig.read(stranger, key, it.address().0, 8).0;
        must_refuse(rig, stranger, status, "a stranger's read");
        let status = rig.swap(stranger, lifetime_key, word(&it), 0, 0).0;
        must_refuse(rig, stranger, status, "a stranger's extension");
        let by_sibling = rig.read(sibling, key, it.address().0, 8).0;
        if it.mechanism == Mechanism::WindowGroup {
            must_refuse(rig, sibling, by_sibling, "a sibling's read");
        } else {
            assert_eq!(by_sibling, Status::Success, "documented: one domain a tenant");
        }
        assert_eq!(
            rig.read(client, key, it.address().0, 8).0,
            Status::Success,
            "another's violation is not ours"
        );
    });
}

#[test]
fn no_neighbouring_key_opens_anything_of_another_tenant() {
    each_exact_mechanism(|rig, _, allocate| {
        let stranger = rig.attach("b");
        let it = allocate(rig, Rights::all());
        for low in [0, 1, 2, 3, 127, 128, 255] {
            let key = Rkey::new(keys(&it).0.index(), low);
            let status = rig.read(stranger, key, it.address().0, 1).0;
            must_refuse(rig, stranger, status, "a guess");
        }
    });
}

#[test]
fn queue_pairs_open_what_their_client_holds_anywhere_and_close_with_it() {
    let mut rig = Rig::new(with(Mechanism::QueuePair));
    let (reader, other) = (rig.attach("a"), rig.attach("a"));
    let it = allocate(&mut rig, reader, Rights::READ);
    let (key, _) = keys(&it);
    assert_eq!(rig.read(reader, key, it.address().0, 8).0, Status::Success);
    let status = rig.write(reader, key, it.address().0, &[1]);
    must_refuse(&mut rig, reader, status, "a write without the right");
    let status = rig.read(other, key, it.address().0, 8).0;
    must_refuse(&mut rig, other, status, "a client that holds nothing");
    let second = allocate(&mut rig, reader, Rights::READ | Rights::WRITE);
    assert_eq!(rig.write(reader, key, second.address().0, &[1]), Status::Success);
    rig.revoke(reader, second.permission);
    assert_eq!(rig.read(reader, key, it.address().0, 8).0, Status::Success, "the first is still held");
    let status = rig.write(reader, key, second.address().0, &[1]);
    must_refuse(&mut rig, reader, status, "the only one with that right is gone");
    rig.revoke(reader, it.permission);
    let status = rig.read(reader, key, it.address().0, 8).0;
    must_refuse(&mut rig, reader, status, "none is held");
    rig.end();
}

/// A permission ends while its queue pair is being rebuilt, after every number of turns.
#[test]
fn a_right_that_ends_during_a_recovery_does_not_come_back_with_the_queue_pair() {
    for turns in 0..10 {
        let mut rig = Rig::new(with(Mechanism::QueuePair));
        let (client, other) = (rig.attach("a"), rig.attach("a"));
        let it = allocate(&mut rig, client, Rights::READ);
        let kept = allocate(&mut rig, other, Rights::READ);
        let (key, _) = keys(&it);
        let status = rig.write(client, key, it.address().0, &[1]);
        assert_eq!(status, REFUSED);
        rig.settle();
        let recovery = rig.send(client, RequestBody::QueuePair(QueuePairRequest::Recover { queue_pair: 0 }));
        for _ in 0..turns {
            rig.turn();
        }
        rig.revoke(client, it.permission);
        assert_eq!(rig.reply(client, recovery), Some(ReplyBody::Done));
        rig.seat(client).endpoint.rebuilt(0);
        let status = rig.read(client, key, kept.address().0, 8).0;
        must_refuse(&mut rig, client, status, &format!("after {turns} turns"));
        rig.end();
    }
}

fn ask(rig: &mut Rig, client: usize, body: RequestBody, data: &[u8]) -> (ReplyBody, Vec<u8>) {
    rig.ask_with(client, body, data)
}

#[test]
fn the_node_copies_within_a_permission_and_refuses_beyond_it() {
    let mut rig = Rig::new(with(Mechanism::NodeCopy));
    let (client, sibling) = (rig.attach("a"), rig.attach("a"));
    let it = allocate(&mut rig, client, Rights::READ | Rights::WRITE);
    assert_eq!(it.credential, Credential::Node);
    let permission = it.permission;
    let write = |offset, length| RequestBody::Copy(CopyRequest::Write { permission, offset, length });
    let read = |offset, length| RequestBody::Copy(CopyRequest::Read { permission, offset, length });
    assert_eq!(ask(&mut rig, client, write(0, SIZE), &FULL).0, ReplyBody::Done);
    assert_eq!(ask(&mut rig, client, read(SIZE - 3, 3), &[]), (ReplyBody::Data(3), vec![7; 3]));
    assert_eq!(ask(&mut rig, client, read(SIZE, 0), &[]), (ReplyBody::Data(0), vec![]));
    for (offset, length) in [(SIZE, 1), (0, SIZE + 1), (u64::MAX, 1), (1, u64::MAX), (u64::MAX, u64::MAX)] {
        assert_eq!(refused(ask(&mut rig, client, read(offset, length), &[]).0), Refusal::OutsideRange);
        assert_eq!(refused(ask(&mut rig, client, write(offset, length), &[]).0), Refusal::OutsideRange);
    }
    assert_eq!(
        refused(ask(&mut rig, client, write(0, 9), &[1; 8]).0),
        Refusal::Malformed,
        "less came than it says"
    );
    let swap = RequestBody::Copy(CopyRequest::CompareAndSwap { permission, offset: 0, compare: 0, swap: 1 });
    assert_eq!(refused(rig.ask(client, swap)), Refusal::WrongRight);
    assert_eq!(refused(rig.ask(sibling, read(0, 1))), Refusal::NotLive, "it is not the sibling's");
    let forged = PermissionId { header: RemoteAddress(permission.header.0 + 32), start: permission.start };
    let forged = RequestBody::Copy(CopyRequest::Read { permission: forged, offset: 0, length: 1 });
    assert_eq!(refused(rig.ask(client, forged)), Refusal::NotLive);
    rig.revoke(client, permission);
    assert_eq!(refused(rig.ask(client, read(0, 1))), Refusal::NotLive);
    rig.end();
}

#[test]
fn the_node_does_atomics_on_aligned_words_inside_alone() {
    let mut rig = Rig::new(with(Mechanism::NodeCopy));
    let client = rig.attach("a");
    let permission = allocate(&mut rig, client, Rights::ATOMIC).permission;
    let add = |offset| RequestBody::Copy(CopyRequest::FetchAndAdd { permission, offset, add: u64::MAX });
    assert_eq!(rig.ask(client, add(SIZE - 8)), ReplyBody::Value(0));
    assert_eq!(rig.ask(client, add(SIZE - 8)), ReplyBody::Value(u64::MAX));
    let swap = |compare, swap| {
        RequestBody::Copy(CopyRequest::CompareAndSwap { permission, offset: 0, compare, swap })
    };
    assert_eq!(rig.ask(client, swap(1, 5)), ReplyBody::Value(0));
    assert_eq!(rig.ask(client, swap(0, 5)), ReplyBody::Value(0));
    assert_eq!(rig.ask(client, swap(5, 6)), ReplyBody::Value(5));
    for offset in [SIZE - 7, SIZE, u64::MAX, u64::MAX - 7, 4] {
        assert_eq!(refused(rig.ask(client, add(offset))), Refusal::OutsideRange, "{offset}");
    }
    let read = RequestBody::Copy(CopyRequest::Read { permission, offset: 0, length: 1 });
    assert_eq!(refused(rig.ask(client, read)), Refusal::WrongRight);
    rig.end();
}

#[test]
fn without_protection_everything_is_open_and_with_rpc_no_key_opens_anything() {
    let mut rig = Rig::new(with(Mechanism::None));
    let (holder, other) = (rig.attach("a"), rig.attach("a"));
    let it = allocate(&mut rig, holder, Rights::READ);
    let (key, _) = keys(&it);
    assert_eq!(rig.write(other, key, it.address().0, &[1]), Status::Success);
    rig.revoke(holder, it.permission);
    assert_eq!(rig.read(holder, key, it.address().0, 1).0, Status::Success, "by name: none");
    rig.end();

    let mut rig = Rig::new(with(Mechanism::NodeCopy));
    let client = rig.attach("a");
    let it = allocate(&mut rig, client, Rights::all());
    for index in 0..16 {
        let local = portcullis_nic::LocalSpan { address: 0, length: 8, lkey: rig.seat(client).lkey() };
        let remote = RemoteSpan { address: it.address(), rkey: Rkey::new(index, 0) };
        let status = rig.operate(client, 0, Operation::Read { local, remote });
        must_refuse(&mut rig, client, status, "no queue pair lets anything in");
    }
    rig.end();
}
