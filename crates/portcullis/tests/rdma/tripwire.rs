//! Messages to data queue pairs, which expect none. The node keeps one empty receive on each of them; by this receive
//! the node notices that the queue pair broke.

use crate::attacker::{DATA, key};
use crate::rig::{Rig, wait_for};
use portcullis::Rkey;
use portcullis_nic::{Operation, RemoteSpan, Status};

#[test]
#[ignore = "needs an RDMA device"]
fn empty_messages_do_not_keep_a_violation_from_being_noticed() {
    let rig = Rig::new();
    let mut attacker = rig.attacker();
    let own = attacker.allocate(64);
    let empty = Operation::Send { local: attacker.local(DATA, 0) };
    let mut charged = 0;
    for _ in 0..2 {
        // The messages come one at a time first, then as many at once as the queue holds.
        for _ in 0..10 {
            assert_eq!(attacker.try_operation(0, empty), Status::Success);
        }
        let (mut posted, mut done) = (0, 0);
        while attacker.post(0, 0, empty) {
            posted += 1;
        }
        wait_for("all of them to be taken", || {
            if let Some(completion) = attacker.poll() {
                assert_eq!(completion.status, Status::Success);
                done += 1;
            }
            done == posted
        });
        assert_eq!(
            attacker.try_read(0, own.address().0, key(own.credential) ^ 0x100, 8),
            Status::RemoteAccessError
        );
        charged += 1;
        rig.assert_charged(charged);
        attacker.recover(0).expect("a lenient node");
        assert_eq!(attacker.try_read(0, own.address().0, key(own.credential), 8), Status::Success);
    }
    // The stray access is right behind a message that has just consumed the receive.
    let remote = RemoteSpan { address: own.address(), rkey: Rkey(key(own.credential) ^ 0x100) };
    let stray = Operation::Read { local: attacker.local(DATA, 8), remote };
    for _ in 0..10 {
        assert!(attacker.post(0, 0, empty));
        assert_eq!(attacker.try_operation(0, stray), Status::RemoteAccessError);
        charged += 1;
        rig.assert_charged(charged);
        attacker.recover(0).expect("a lenient node");
    }
    rig.others_go_on(5);
    drop(attacker);
    rig.clear();
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_message_to_a_data_queue_pair_breaks_it_and_is_a_violation() {
    let rig = Rig::new();
    let mut attacker = rig.attacker();
    let own = attacker.allocate(64);
    for (charged, length) in (1..).zip([1, 8, 64, 65, 4096, 1 << 20]) {
        let status = attacker.try_operation(0, Operation::Send { local: attacker.local(DATA, length) });
        assert!(status.breaks(), "{length} bytes: {status}");
        rig.assert_charged(charged);
        attacker.recover(0).expect("a lenient node");
        assert_eq!(attacker.try_read(0, own.address().0, key(own.credential), 8), Status::Success);
    }
    rig.others_go_on(5);
    drop(attacker);
    rig.clear();
}
