//! Attacks on the control queue pair: messages that are none, that are too long, that never end.

use crate::attacker::{Attacker, DATA};
use crate::canary::Canary;
use crate::stage::{BLUE, Stage, random, wait_for};
use portcullis::{Lifetime, Refusal, RemoteAddress, Rights, Sharing};
use portcullis_nic::Operation;
use portcullis_protocol::{Keep, MESSAGE_BYTES, ObjectName, ReplyBody, Request, RequestBody};
use rand::Rng;

#[test]
#[ignore = "needs an RDMA device"]
fn cut_messages_are_refused_and_longer_ones_end_their_sender() {
    let stage = Stage::set();
    let mut attacker = stage.attacker();
    let whole =
        Request { sequence: 7, body: RequestBody::Free { object: ObjectName::Address(RemoteAddress(0)) } }
            .encode();
    for length in [0, 1, 2, 8, 63, 64, MESSAGE_BYTES - 1] {
        assert!(attacker.say(&whole[..length], true));
        assert_eq!(attacker.answer().body, ReplyBody::Refused(Refusal::Malformed), "{length} bytes");
    }
    stage.assert_charged(0);
    drop(attacker);
    for length in [129, 256, 5000, 1 << 20] {
        let mut attacker = stage.attacker();
        assert!(attacker.terms.message_bytes < length);
        let operation = Operation::Send { local: attacker.local(DATA, length) };
        assert_eq!(attacker.post_control(operation), Ok(1));
        wait_for("the node to show it out", || attacker.is_out());
        stage.others_go_on(5);
    }
    stage.clear();
}

#[test]
#[ignore = "needs an RDMA device"]
fn random_messages_are_answered_or_refused() {
    let stage = Stage::set();
    let mut random = random();
    let mut canary = Canary::new(stage.session(BLUE), 4096);
    let mut attacker = stage.attacker();
    for _ in 0..300 {
        let mut bytes = [0; MESSAGE_BYTES];
        random.fill_bytes(&mut bytes);
        // Half of them get past the first byte.
        if bytes[63] < 128 {
            (bytes[0], bytes[1], bytes[2]) = (bytes[0] % 12, bytes[1] & 7, bytes[2] & 15);
        }
        assert!(attacker.say(&bytes, true));
        attacker.answer();
    }
    // Sound, but about another's.
    let end = RequestBody::Revoke { permission: canary.object().id(), free: true };
    assert_eq!(attacker.ask(end), ReplyBody::Refused(Refusal::NotLive));
    canary.assert_untouched();
    stage.others_go_on(5);
    drop((canary, attacker));
    stage.clear();
}

/// Sends one request after the other and takes no answer, until it is shown out.
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
    let stage = Stage::set();
    let (lifetime, rights, sharing) = (Lifetime::seconds(10), Rights::all(), Sharing::Exclusive);
    let floods = [
        RequestBody::Free { object: ObjectName::Address(RemoteAddress(0)) },
        RequestBody::Recover { queue_pair: 0 },
        RequestBody::Allocate { size: 64, alignment: 0, lifetime, rights, sharing, keep: Keep::Attached },
    ];
    for body in floods {
        let mut attacker = stage.attacker();
        flood(&mut attacker, body);
        stage.others_go_on(5);
    }
    stage.clear();
}
