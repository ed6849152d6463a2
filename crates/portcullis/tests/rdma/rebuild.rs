//! Rebuilds that are not asked for, not needed, or not done.

use crate::attacker::{Attacker, key};
use crate::stage::{Stage, wait_for};
use portcullis_nic::Status;
use portcullis_protocol::{Granted, ReplyBody, RequestBody};

fn reads(attacker: &mut Attacker, queue_pair: u32, own: &Granted) -> Status {
    attacker.try_read(queue_pair, own.address().0, key(own.credential), 64)
}

#[test]
#[ignore = "needs an RDMA device"]
fn whoever_never_rebuilds_keeps_its_permissions_and_disturbs_nobody() {
    let stage = Stage::set();
    let mut attacker = stage.attacker();
    let own = attacker.allocate(64);
    let queue_pairs = attacker.terms.data_queue_pairs;
    for queue_pair in 0..queue_pairs {
        let status = attacker.try_read(queue_pair, own.address().0, key(own.credential) ^ 0x100, 8);
        assert_eq!(status, Status::RemoteAccessError);
    }
    stage.assert_charged(queue_pairs.into());
    for queue_pair in 0..queue_pairs {
        assert_eq!(reads(&mut attacker, queue_pair, &own), Status::FlushError);
    }
    // It can still ask for things.
    let more = attacker.allocate(64);
    assert_eq!(attacker.revoke(more.permission), ReplyBody::Done);
    stage.others_go_on(10);
    drop(attacker);
    stage.clear();
}

#[test]
#[ignore = "needs an RDMA device"]
fn whole_queue_pairs_can_be_rebuilt_at_any_time_and_work_after_that() {
    let stage = Stage::set();
    let mut attacker = stage.attacker();
    let own = attacker.allocate(64);
    for round in 0..40 {
        let queue_pair = round % attacker.terms.data_queue_pairs;
        assert_eq!(attacker.ask_for_rebuild(queue_pair), Ok(()));
        assert_eq!(reads(&mut attacker, queue_pair, &own), Status::Success, "round {round}");
    }
    stage.assert_charged(0);
    stage.others_go_on(10);
    drop(attacker);
    stage.clear();
}

#[test]
#[ignore = "needs an RDMA device"]
fn whoever_only_says_that_it_rebuilt_is_not_served_there_and_disturbs_nobody() {
    let stage = Stage::set();
    let mut attacker = stage.attacker();
    let own = attacker.allocate(64);
    assert_eq!(reads(&mut attacker, 0, &own), Status::Success);
    let before = stage.host.counters().recoveries;
    assert_eq!(attacker.ask(RequestBody::Recover { queue_pair: 0 }), ReplyBody::Done);
    wait_for("the node's end to be rebuilt", || stage.host.counters().recoveries > before);
    // Its own end goes on counting packets where it was.
    let status = reads(&mut attacker, 0, &own);
    assert!(status.breaks(), "{status}");
    stage.others_go_on(10);
    // On the others it goes on as before, and the node charges nothing: no access was refused.
    assert_eq!(reads(&mut attacker, 1, &own), Status::Success);
    stage.assert_charged(0);
    drop(attacker);
    stage.clear();
}
