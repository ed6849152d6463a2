//! Attacks on the control queue pair: malformed messages, messages that are too long, endless messages.

use crate::attacker::{Attacker, DATA};
use crate::canary::Canary;
use crate::rig::{BLUE, Rig, random, wait_for};
use portcullis::{Lifetime, Refusal, RemoteAddress, Rights, Sharing};
use portcullis_nic::Operation;
use portcullis_protocol::{
    Allocate, GrantRequest, Holders, Keep, MESSAGE_BYTES, ObjectName, QueuePairRequest, ReplyBody, Request,
    RequestBody,
};
use rand::Rng;

#[test]
#[ignore = "needs an RDMA device"]
fn cut_messages_are_refused_and_longer_ones_end_their_sender() {
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
    for length in [0, 1, 2, 8, 63, 65, MESSAGE_BYTES - 1] {
        assert!(attacker.say(&whole[..length], true));
        assert_eq!(attacker.answer().body, ReplyBody::Refused(Refusal::Malformed), "{length} bytes");
    }
    rig.assert_charged(0);
    let most = attacker.terms.message_bytes;
    drop(attacker);
    for length in [most + 1, 2 * most, 64 << 10, 1 << 20] {
        let mut attacker = rig.attacker();
        assert!(attacker.terms.message_bytes < length);
        let operation = Operation::Send { local: attacker.local(DATA, length) };
        assert_eq!(attacker.post_control(operation), Ok(1));
        wait_for("the node to show it out", || attacker.is_out());
        rig.others_go_on(5);
    }
    rig.clear();
}

#[test]
#[ignore = "needs an RDMA device"]
fn random_messages_are_answered_or_refused() {
    let rig = Rig::new();
    let mut random = random();
    let mut canary = Canary::new(rig.session(BLUE), 4096);
    let mut attacker = rig.attacker();
    for _ in 0..300 {
        let mut bytes = [0; MESSAGE_BYTES];
        random.fill_bytes(&mut bytes);
        // About half of the messages get past the check of the first byte.
        if bytes[63] < 128 {
            (bytes[0], bytes[1], bytes[2]) = (bytes[0] % 12, bytes[1] & 7, bytes[2] & 15);
        }
        assert!(attacker.say(&bytes, true));
        attacker.answer();
    }
    // This request is valid, but for another tenant's object.
    let end = RequestBody::Grant(GrantRequest::Revoke { permission: canary.object().id(), free: true });
    assert_eq!(attacker.ask(end), ReplyBody::Refused(Refusal::NotLive));
    canary.assert_untouched();
    rig.others_go_on(5);
    drop((canary, attacker));
    rig.clear();
}

/// Sends requests and takes no answers, until the node evicts the attacker.
fn flood(attacker: &mut Attacker, body: RequestBody) {
    let message = Request { sequence: 0, body }.encode();
    wait_for("an end to the node's patience", || {
        while attacker.say(&message, false) {}
        while attacker.poll().is_some() {}
        attacker.is_out()
    });
}

#[test]
#[ignore = "needs an RDMA device"]
fn whoever_takes_no_answers_is_shown_out_and_nobody_else_notices() {
    let rig = Rig::new();
    let (lifetime, rights, sharing) = (Lifetime::seconds(10), Rights::all(), Sharing::Exclusive);
    let floods = [
        RequestBody::Grant(GrantRequest::Free {
            object: ObjectName::Address(RemoteAddress(0)),
            holders: Holders::Stay,
        }),
        RequestBody::QueuePair(QueuePairRequest::Recover { queue_pair: 0 }),
        RequestBody::Grant(GrantRequest::Allocate(Allocate {
            size: 64,
            alignment: 0,
            lifetime,
            rights,
            sharing,
            keep: Keep::Attached,
        })),
    ];
    for body in floods {
        let mut attacker = rig.attacker();
        flood(&mut attacker, body);
        rig.others_go_on(5);
    }
    rig.clear();
}
