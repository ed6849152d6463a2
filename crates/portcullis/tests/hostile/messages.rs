//! Attacks on the control path: malformed messages, forged messages, endless messages.

use crate::attacker::Attacker;
use crate::canary::Canary;
use crate::rig::{BLUE, RED, Rig, random, wait_for};
use portcullis::{Lifetime, Moment, PermissionId, Refusal, RemoteAddress, Rights, SessionOptions, Sharing};
use portcullis_nic::{Operation, Status, VerbsEndpoint, WorkRequest};
use portcullis_protocol::{
    Allocate, CopyRequest, GrantRequest, Holders, Keep, MESSAGE_BYTES, ObjectName, QueuePairRequest,
    ReplyBody, Request, RequestBody,
};
use rand::{Rng, RngExt, rngs::StdRng};

/// A message of random bytes. Most of the messages are nearly valid.
fn odd_message(random: &mut StdRng, known: &[PermissionId]) -> [u8; MESSAGE_BYTES] {
    let mut bytes = [0; MESSAGE_BYTES];
    random.fill_bytes(&mut bytes);
    if random.random_range(0..8) == 0 {
        return bytes;
    }
    bytes[0] = random.random_range(0..12);
    bytes[1] &= 7;
    bytes[2] &= 3;
    let known = known[random.random_range(0..known.len())];
    for (at, one) in [(8, known.header.0), (16, known.start.0), (24, 4096), (32, 100), (40, 100)] {
        let word = match random.random_range(0..5) {
            0 => random.random(),
            1 => u64::MAX - random.random_range(0..64),
            2 => random.random_range(0..1 << 20),
            _ => one,
        };
        bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

#[test]
fn random_messages_are_answered_or_refused() {
    let rig = Rig::new();
    let mut random = random();
    let mut canary = Canary::new(rig.host.connect(BLUE, SessionOptions::default()).expect("a session"), 4096);
    let mut attacker = rig.attacker();
    let own = attacker.allocate(4096, Sharing::Shared).permission;
    let at_buffer = PermissionId { header: RemoteAddress(own.header.0 + 32), start: own.start };
    let known = [own, at_buffer, canary.object().id()];
    let mut answered = 0;
    for _ in 0..3000 {
        let message = odd_message(&mut random, &known);
        wait_for("room for a message", || {
            while attacker.hear().expect("messages of the right length break nothing").is_some() {
                answered += 1;
            }
            attacker.say(&message, true)
        });
    }
    assert!(answered > 2000, "{answered} answers");
    canary.assert_untouched();
    drop((canary, attacker));
    rig.clear();
}

#[test]
fn a_message_that_is_cut_is_refused_and_one_that_is_too_long_ends_its_sender() {
    let rig = Rig::new();
    let mut attacker = rig.attacker();
    let whole = Request {
        sequence: 7,
        body: RequestBody::Grant(GrantRequest::Free {
            object: ObjectName::Address(RemoteAddress(0)),
            holders: Holders::Stay,
        }),
    }
    .encode();
    // The first half alone is valid: it stands for a message whose second half is zero.
    for length in (0..MESSAGE_BYTES).filter(|&length| length != MESSAGE_BYTES / 2) {
        assert!(attacker.say(&whole[..length], true));
        let mut reply = None;
        wait_for("a refusal", || {
            reply = attacker.hear().expect("it is not broken");
            reply.is_some()
        });
        assert_eq!(
            reply.map(|reply| reply.body),
            Some(ReplyBody::Refused(Refusal::Malformed)),
            "{length} bytes"
        );
    }
    let most = attacker.size.message_bytes;
    for length in [most + 1, 2 * most, 64 << 10, 1 << 20, (1 << 20) + 1, u32::MAX] {
        let mut attacker = rig.attacker();
        let operation = Operation::Send { local: attacker.local(0, length) };
        attacker.endpoint.post_control(&[WorkRequest { id: 0, signalled: true, operation }]);
        wait_for("the end of the control queue pair", || attacker.hear().is_err());
    }
    drop(attacker);
    rig.clear();
}

#[test]
fn a_permission_answers_to_its_holder_under_its_own_name_only() {
    let rig = Rig::new();
    let session = |tenant| rig.host.connect(tenant, SessionOptions::default()).expect("a session");
    let mut others = [Canary::new(session(BLUE), 4096), Canary::new(session(RED), 4096)];
    let mut attacker = rig.attacker();
    let ended = attacker.allocate(64, Sharing::Exclusive).permission;
    assert_eq!(attacker.revoke(ended), ReplyBody::Done);
    let own = attacker.allocate(64, Sharing::Exclusive).permission;
    let with = |header: u64, start: u64| PermissionId { header: RemoteAddress(header), start: Moment(start) };
    let mut forged = vec![ended, with(own.header.0, own.start.0 - 1), with(own.header.0, own.start.0 + 1)];
    forged.extend([with(own.header.0, 0), with(own.header.0, u64::MAX), with(own.header.0 + 1, own.start.0)]);
    forged.extend([
        with(u64::MAX, 0),
        with(u64::MAX - 31, 0),
        with(0, 0),
        with(own.header.0 + 32, own.start.0),
    ]);
    forged.push(others[0].object().id());
    for permission in forged {
        let lifetime = Lifetime::seconds(1);
        for body in [
            RequestBody::Grant(GrantRequest::Revoke { permission, free: true }),
            RequestBody::Grant(GrantRequest::Extend { permission, lifetime }),
            RequestBody::Grant(GrantRequest::Extend { permission, lifetime: Lifetime(u64::MAX) }),
        ] {
            assert_eq!(attacker.ask(body), ReplyBody::Refused(Refusal::NotLive), "{body:?}");
        }
        // With windows no message accesses memory, not even the client's own.
        for body in [
            RequestBody::Copy(CopyRequest::Read { permission, offset: 0, length: 8 }),
            RequestBody::Copy(CopyRequest::Write { permission, offset: u64::MAX, length: u64::MAX }),
            RequestBody::Copy(CopyRequest::FetchAndAdd { permission, offset: u64::MAX - 7, add: 1 }),
        ] {
            assert_eq!(attacker.ask(body), ReplyBody::Refused(Refusal::Malformed), "{body:?}");
        }
    }
    // A client that knows the name of a sibling's permission may extend it, within the node's longest lifetime. The
    // client cannot revoke it.
    let permission = others[1].object().id();
    let end = RequestBody::Grant(GrantRequest::Revoke { permission, free: true });
    assert_eq!(attacker.ask(end), ReplyBody::Refused(Refusal::NotLive));
    let more = RequestBody::Grant(GrantRequest::Extend { permission, lifetime: Lifetime::millis(1) });
    assert!(matches!(attacker.ask(more), ReplyBody::Extended(_)));
    let most = RequestBody::Grant(GrantRequest::Extend { permission, lifetime: Lifetime(u64::MAX) });
    assert!(matches!(attacker.ask(most), ReplyBody::Refused(Refusal::LifetimeTooLong { .. })));
    let blue = RequestBody::Grant(GrantRequest::Free {
        object: others[0].object().object().into(),
        holders: Holders::Stay,
    });
    assert_eq!(attacker.ask(blue), ReplyBody::Refused(Refusal::Gone));
    for other in &mut others {
        other.assert_untouched();
    }
    drop((others, attacker));
    rig.clear();
}

#[test]
fn requests_for_impossible_amounts_are_refused_with_a_reason() {
    let rig = Rig::new();
    let mut attacker = rig.attacker();
    let (rights, sharing, keep) = (Rights::all(), Sharing::Exclusive, Keep::No);
    let second = Lifetime::seconds(1);
    for (size, lifetime, rights) in [
        (u64::MAX, second, rights),
        (u64::MAX - 31, second, rights),
        (1 << 63, second, rights),
        (1 << 40, second, rights),
        (0, second, rights),
        (64, Lifetime(0), rights),
        (64, Lifetime(u64::MAX), rights),
        (64, second, Rights::empty()),
    ] {
        let answer = attacker.ask(RequestBody::Grant(GrantRequest::Allocate(Allocate {
            size,
            alignment: 0,
            lifetime,
            rights,
            sharing,
            keep,
        })));
        assert!(
            matches!(answer, ReplyBody::Refused(_)),
            "{size} bytes for {lifetime} as {rights:?}: {answer:?}"
        );
    }
    let own = attacker.allocate(64, Sharing::Exclusive);
    for lifetime in [Lifetime(u64::MAX), Lifetime::seconds(61)] {
        let answer =
            attacker.ask(RequestBody::Grant(GrantRequest::Extend { permission: own.permission, lifetime }));
        assert!(matches!(answer, ReplyBody::Refused(Refusal::LifetimeTooLong { .. })), "{answer:?}");
    }
    for queue_pair in [0, 1, 2, 3, 1 << 20, u32::MAX] {
        let answer = attacker.ask(RequestBody::QueuePair(QueuePairRequest::Recover { queue_pair }));
        assert_eq!(
            answer,
            ReplyBody::Refused(Refusal::Malformed),
            "queue pair {queue_pair} is healthy, or not there"
        );
    }
    assert_eq!(
        attacker.try_read(0, own.address().0, crate::attacker::key(own.credential), 64),
        Status::Success
    );
    drop(attacker);
    rig.clear();
}

/// Sends requests and takes no answers, until the node evicts the attacker.
fn flood(attacker: &mut Attacker, body: RequestBody) {
    let message = Request { sequence: 0, body }.encode();
    wait_for("an end to its patience", || {
        while attacker.say(&message, false) {}
        while attacker.poll().is_some() {}
        attacker.is_out()
    });
}

#[test]
fn whoever_takes_no_answers_is_shown_out_and_nobody_else_notices() {
    let rig = Rig::new();
    let own = |attacker: &mut Attacker| attacker.allocate(64, Sharing::Exclusive).permission;
    for kind in 0..3 {
        let mut attacker = rig.attacker();
        let permission = own(&mut attacker);
        let (lifetime, rights, sharing) = (Lifetime::seconds(10), Rights::all(), Sharing::Exclusive);
        flood(
            &mut attacker,
            match kind {
                0 => RequestBody::Grant(GrantRequest::Extend { permission, lifetime }),
                1 => RequestBody::Grant(GrantRequest::Revoke { permission, free: true }),
                _ => RequestBody::Grant(GrantRequest::Allocate(Allocate {
                    size: 64,
                    alignment: 0,
                    lifetime,
                    rights,
                    sharing,
                    keep: Keep::Attached,
                })),
            },
        );
        rig.others_go_on(20);
    }
    rig.clear();
}
