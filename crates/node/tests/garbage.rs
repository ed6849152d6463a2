//! Clients that send anything and leave at any time: they get an error at most, and leave nothing behind.

use crate::rig::{Rig, acquire, allocate, granted, keys};
use portcullis_nic::Status;
use portcullis_node::{NodeConfig, Reductions};
use portcullis_protocol::{
    Acquire, Allocate, CopyRequest, GrantRequest, Holders, Incarnation, Keep, Lifetime, MESSAGE_BYTES,
    Mechanism, Moment, NamedRequest, ObjectName, ObjectRef, Part, PermissionId, QueuePairRequest, Refusal,
    RemoteAddress, ReplyBody, Request, RequestBody, Rights, Sharing,
};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

/// A message of random bytes, or a request that is changed in some bytes and truncated.
fn message() -> impl Strategy<Value = Vec<u8>> {
    let any_bytes = prop::collection::vec(any::<u8>(), 0..200);
    let changes = prop::collection::vec((0..MESSAGE_BYTES, any::<u8>()), 0..4);
    let changed = (request(), changes, 0usize..=MESSAGE_BYTES + 16, any::<bool>());
    let changed = changed.prop_map(|(body, changes, length, is_cut)| {
        let mut bytes = Request { sequence: 1, body }.encode().to_vec();
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        bytes.resize(if is_cut { length } else { MESSAGE_BYTES }, 0xaa);
        bytes
    });
    prop_oneof![1 => any_bytes, 4 => changed]
}

fn keep() -> impl Strategy<Value = Keep> {
    let time = prop_oneof![Just(0u64), Just(u64::MAX), 0u64..100_000, any::<u64>()];
    prop_oneof![
        Just(Keep::No),
        Just(Keep::Attached),
        time.prop_map(|time| Keep::For(Lifetime(time))),
        Just(Keep::Pinned),
    ]
}

fn about_a_name() -> impl Strategy<Value = RequestBody> {
    // Names that occur more than once, and the tenants of the test and another.
    let name = || (0u8..3).prop_map(|number| crate::rig::name(&format!("name {number}")));
    let tenant = || (0u8..3).prop_map(|number| crate::rig::tenant(["a", "b", "c"][usize::from(number)]));
    let address = (0u64..2000).prop_map(|at| RemoteAddress(0x1000_0000_0000 + at * 8));
    let reference = (address, 0u64..10).prop_map(|(address, birth)| ObjectRef {
        incarnation: crate::rig::INCARNATION,
        address,
        birth,
    });
    prop_oneof![
        (reference.clone(), reference.clone())
            .prop_map(|(member, head)| RequestBody::Grant(GrantRequest::Include { member, head })),
        (name(), reference)
            .prop_map(|(name, object)| RequestBody::Named(NamedRequest::Publish { name, object })),
        name().prop_map(|name| RequestBody::Named(NamedRequest::Unpublish { name })),
        (prop::option::of(tenant()), name())
            .prop_map(|(owner, name)| RequestBody::Named(NamedRequest::Lookup { owner, name })),
        (prop::option::of(tenant()), prop::option::of(name()))
            .prop_map(|(owner, after)| RequestBody::Named(NamedRequest::List { owner, after })),
        (name(), tenant(), (0u8..8).prop_map(Rights::from_bits_truncate)).prop_map(
            |(name, tenant, rights)| RequestBody::Named(NamedRequest::Share { name, tenant, rights })
        ),
        (name(), tenant())
            .prop_map(|(name, tenant)| RequestBody::Named(NamedRequest::Unshare { name, tenant })),
    ]
}

fn request() -> impl Strategy<Value = RequestBody> {
    let number = || prop_oneof![Just(0u64), Just(1), Just(u64::MAX), 0u64..100_000, any::<u64>()];
    // Addresses of headers and objects, or close to them.
    let address = || {
        prop_oneof![(0u64..2000).prop_map(|at| 0x1000_0000_0000 + at * 8), number()].prop_map(RemoteAddress)
    };
    let start = prop_oneof![Just(crate::rig::START.0), number()].prop_map(Moment);
    let permission = (address(), start).prop_map(|(header, start)| PermissionId { header, start }).boxed();
    let rights = (0u8..8).prop_map(Rights::from_bits_truncate).boxed();
    let sharing = || prop_oneof![Just(Sharing::Exclusive), Just(Sharing::Shared)];
    let lifetime = || number().prop_map(Lifetime);
    let keep = keep().boxed();
    let alignment = prop_oneof![number(), (0u32..64).prop_map(|power| 1 << power)];
    let part = (number(), number()).prop_map(|(offset, length)| Part { offset, length });
    let incarnation = prop_oneof![Just(crate::rig::INCARNATION), any::<u64>().prop_map(Incarnation)].boxed();
    let object = || {
        let reference = (incarnation.clone(), address(), prop_oneof![0u64..10, number()]);
        prop_oneof![
            address().prop_map(ObjectName::Address),
            reference.prop_map(|(incarnation, address, birth)| ObjectName::Reference(ObjectRef {
                incarnation,
                address,
                birth
            })),
        ]
    };
    prop_oneof![
        about_a_name(),
        (number(), alignment, lifetime(), rights.clone(), sharing(), keep.clone()).prop_map(
            |(size, alignment, lifetime, rights, sharing, keep)| RequestBody::Grant(GrantRequest::Allocate(
                Allocate { size, alignment, lifetime, rights, sharing, keep }
            ))
        ),
        (object(), part, lifetime(), rights, sharing(), lifetime()).prop_map(
            |(object, part, lifetime, rights, sharing, wait)| RequestBody::Grant(GrantRequest::Acquire(
                Acquire { object, part, lifetime, rights, sharing, wait }
            ))
        ),
        (permission.clone(), lifetime()).prop_map(|(permission, lifetime)| RequestBody::Grant(
            GrantRequest::Extend { permission, lifetime }
        )),
        (permission.clone(), any::<bool>())
            .prop_map(|(permission, free)| RequestBody::Grant(GrantRequest::Revoke { permission, free })),
        (object(), prop::sample::select(vec![Holders::Stay, Holders::End, Holders::Await]))
            .prop_map(|(object, holders)| RequestBody::Grant(GrantRequest::Free { object, holders })),
        (object(), keep.clone())
            .prop_map(|(object, keep)| RequestBody::Grant(GrantRequest::Keep { object, keep })),
        any::<u32>().prop_map(|queue_pair| RequestBody::QueuePair(QueuePairRequest::Recover { queue_pair })),
        (permission.clone(), number(), number()).prop_map(|(permission, offset, length)| RequestBody::Copy(
            CopyRequest::Read { permission, offset, length }
        )),
        (permission.clone(), number(), number()).prop_map(|(permission, offset, length)| RequestBody::Copy(
            CopyRequest::Write { permission, offset, length }
        )),
        (permission, number(), number()).prop_map(|(permission, offset, add)| RequestBody::Copy(
            CopyRequest::FetchAndAdd { permission, offset, add }
        )),
    ]
}

fn mechanism() -> impl Strategy<Value = Mechanism> {
    (0..Mechanism::ALL.len()).prop_map(|at| Mechanism::ALL[at])
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 256,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn garbage_harms_nobody_else(
        mechanism in mechanism(),
        messages in prop::collection::vec((message(), 0u64..3000), 1..60),
    ) {
        let mut rig = Rig::new(NodeConfig { mechanism, pool_bytes: 1 << 20, headers: 16, ..crate::rig::config() });
        let (hostile, honest) = (rig.attach("a"), rig.attach("b"));
        let body = RequestBody::Grant(GrantRequest::Allocate(Allocate {
            size: 64,
            alignment: 0,
            lifetime: Lifetime::seconds(10),
            rights: Rights::all(),
            sharing: Sharing::Exclusive,
            keep: Keep::Attached,
        }));
        let it = granted(rig.ask(honest, body));
        rig.allocate(hostile, 64, true);
        for (bytes, micros) in &messages {
            rig.seat(hostile).forget_replies();
            rig.seat(hostile).send_raw(bytes);
            rig.pass(Lifetime(*micros));
        }
        if mechanism != Mechanism::NodeCopy {
            let (status, _) = rig.read(honest, keys(&it).0, it.address().0, 8);
            prop_assert_eq!(status, Status::Success);
        }
        rig.revoke(honest, it.permission);
        rig.end();
    }

    /// A client leaves after any number of turns while any requests are on their way, and other clients take its place.
    #[test]
    fn a_client_may_leave_at_any_moment(
        mechanism in mechanism(),
        reductions in (any::<bool>(), any::<bool>(), any::<bool>()),
        rounds in prop::collection::vec((0usize..6, 0usize..5, any::<bool>(), 0u64..1500), 1..20),
    ) {
        let reductions = Reductions {
            delayed_unbinding: reductions.0, contiguity: reductions.1, handover: reductions.2,
        };
        let config = NodeConfig { mechanism, reductions, pool_bytes: 1 << 20, headers: 16, windows_max: 24, ..crate::rig::config() };
        let mut rig = Rig::new(config);
        let stays = rig.attach("b");
        let shared = rig.allocate(stays, 300_000, true);
        for (requests, turns, is_sibling, micros) in rounds {
            let goes = rig.attach(if is_sibling { "b" } else { "a" });
            for request in 0..requests {
                let body = match request {
                    0 => allocate(64, true),
                    1 => acquire(shared.object, Sharing::Shared, Lifetime::millis(3)),
                    2 => allocate(400_000, false),
                    3 => allocate(200_000, true),
                    4 => crate::rig::free(shared.object),
                    _ => allocate(1000, false),
                };
                rig.send(goes, body);
            }
            for _ in 0..turns {
                rig.turn();
            }
            rig.detach(goes);
            if turns % 2 == 0 {
                rig.pass(Lifetime(micros));
            }
        }
        rig.end();
    }
}

#[test]
fn a_message_that_means_nothing_is_answered_with_its_number() {
    let mut rig = Rig::new(crate::rig::config());
    let client = rig.attach("a");
    let sequence = rig.send(client, allocate(64, false));
    rig.settle();
    rig.reply(client, sequence);
    let mut bytes = Request { sequence, body: allocate(64, false) }.encode();
    bytes[0] = 0x77;
    rig.seat(client).send_raw(&bytes);
    rig.settle();
    assert_eq!(rig.reply(client, sequence), Some(ReplyBody::Refused(Refusal::Malformed)));
    // A truncated message has no number, and must not get the number of an earlier message in the same slot.
    rig.seat(client).send_raw(&bytes[..63]);
    rig.settle();
    assert_eq!(rig.unmatched(client).map(|reply| reply.body), Some(ReplyBody::Refused(Refusal::Malformed)));
    rig.end();
}

#[test]
fn a_tenant_that_comes_and_goes_leaves_no_domain_behind() {
    let mut rig = Rig::new(crate::rig::config());
    let before = rig.nic.nic.core().objects().domains;
    for _ in 0..50 {
        let admission = rig.node.admit(&mut rig.nic, "a", rig.now).expect("it may come");
        let client = rig.attach("a");
        rig.node.abandon(&mut rig.nic, admission.tenant, rig.now);
        rig.allocate(client, 64, true);
        rig.detach(client);
        rig.settle();
        assert_eq!(rig.nic.nic.core().objects().domains, before, "for one tenant at a time");
    }
    rig.end();
}

#[test]
fn who_is_admitted_and_does_not_come_leaves_nothing() {
    let mut rig = Rig::new(crate::rig::config());
    let admission = rig.node.admit(&mut rig.nic, "a", rig.now).expect("it may come");
    rig.settle();
    rig.node.abandon(&mut rig.nic, admission.tenant, rig.now);
    rig.end();
}

/// The client sends requests and never posts a receive for a reply.
#[test]
fn a_client_that_takes_no_answers_is_shown_out_and_harms_nobody() {
    let mut rig = Rig::new(crate::rig::config());
    let (deaf, honest) = (rig.attach("a"), rig.attach("b"));
    rig.seat(deaf).is_deaf = true;
    let mut evicted = false;
    for _ in 0..400 {
        rig.send(
            deaf,
            RequestBody::Grant(GrantRequest::Free {
                object: ObjectName::Address(RemoteAddress(0)),
                holders: Holders::Stay,
            }),
        );
        for _ in 0..3 {
            rig.turn();
        }
        while let Some(client) = rig.node.poll_evicted() {
            assert_eq!(client, rig.seat(deaf).id);
            evicted = true;
        }
        if evicted {
            break;
        }
    }
    assert!(evicted, "a backlog has an end");
    rig.detach(deaf);
    rig.allocate(honest, 64, false);
    rig.end();
}
