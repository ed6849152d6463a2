//! Rebuilds of queue pairs: not requested, not needed, or done on one side only.

use crate::attacker::{Attacker, key};
use crate::rig::{Rig, wait_for};
use portcullis_nic::Status;
use portcullis_protocol::{Granted, QueuePairRequest, ReplyBody, RequestBody};

fn reads(attacker: &mut Attacker, queue_pair: u32, own: &Granted) -> Status {
    attacker.try_read(queue_pair, own.address().0, key(own.credential), 64)
}

#[test]
#[ignore = "needs an RDMA device"]
fn whoever_never_rebuilds_keeps_its_permissions_and_disturbs_nobody() {
    let rig = Rig::new();
    let mut attacker = rig.attacker();
    let own = attacker.allocate(64);
    let queue_pairs = attacker.terms.data_queue_pairs;
    for queue_pair in 0..queue_pairs {
        let status = attacker.try_read(queue_pair, own.address().0, key(own.credential) ^ 0x100, 8);
        assert_eq!(status, Status::RemoteAccessError);
    }
    rig.assert_charged(queue_pairs.into());
    for queue_pair in 0..queue_pairs {
        assert_eq!(reads(&mut attacker, queue_pair, &own), Status::FlushError);
    }
    // The control queue pair still works.
    let more = attacker.allocate(64);
    assert_eq!(attacker.revoke(more.permission), ReplyBody::Done);
    rig.others_go_on(10);
    drop(attacker);
    rig.clear();
}

#[test]
#[ignore = "needs an RDMA device"]
fn whole_queue_pairs_can_be_rebuilt_at_any_time_and_work_after_that() {
    let rig = Rig::new();
    let mut attacker = rig.attacker();
    let own = attacker.allocate(64);
    for round in 0..40 {
        let queue_pair = round % attacker.terms.data_queue_pairs;
        assert_eq!(attacker.ask_for_rebuild(queue_pair), Ok(()));
        assert_eq!(reads(&mut attacker, queue_pair, &own), Status::Success, "round {round}");
    }
    rig.assert_charged(0);
    rig.others_go_on(10);
    drop(attacker);
    rig.clear();
}

#[test]
#[ignore = "needs an RDMA device"]
fn whoever_only_says_that_it_rebuilt_is_not_served_there_and_disturbs_nobody() {
    let rig = Rig::new();
    let mut attacker = rig.attacker();
    let own = attacker.allocate(64);
    assert_eq!(reads(&mut attacker, 0, &own), Status::Success);
    let before = rig.host.counters().recoveries;
    assert_eq!(
        attacker.ask(RequestBody::QueuePair(QueuePairRequest::Recover { queue_pair: 0 })),
        ReplyBody::Done
    );
    wait_for("the node's end to be rebuilt", || rig.host.counters().recoveries > before);
    // The attacker's end continues with its old packet numbers.
    let status = reads(&mut attacker, 0, &own);
    assert!(status.breaks(), "{status}");
    rig.others_go_on(10);
    // The other queue pairs still work. The node charges nothing, because no access was refused.
    assert_eq!(reads(&mut attacker, 1, &own), Status::Success);
    rig.assert_charged(0);
    drop(attacker);
    rig.clear();
}
