//! Ends of accesses that are not requests: a call of the NIC's owner, and a queue pair that fails.

use super::{BYTES, Rig, Status};
use portcullis_nic::{Access, LocalSpan, Nic, Operation, QpChange, RemoteAddress, RemoteSpan};

#[test]
fn what_has_no_completion_waits_itself() {
    let ends: [fn(&mut Rig); 4] = [
        |rig| {
            rig.nic
                .modify_qp(rig.node, QpChange::Access { access: Access::REMOTE_READ })
                .expect("fewer rights")
        },
        |rig| rig.nic.modify_qp(rig.node, QpChange::Error).expect("ERR"),
        |rig| rig.nic.modify_qp(rig.client, QpChange::Reset).expect("RESET"),
        |rig| rig.nic.deallocate_window(rig.window.id).expect("it is freed"),
    ];
    for end in ends {
        let mut rig = Rig::new();
        rig.write(1, 0, 4096);
        assert_eq!(rig.turn(), []);
        end(&mut rig);
        assert!(!rig.queues.iter().any(|queue| queue.is_waiting()));
    }
}

type Fail = fn(&mut Rig);

/// A peer of a queue pair that fails: its write of many pieces is under way, into memory of the one that fails.
fn with_peer_that_writes() -> Rig {
    let mut rig = Rig::new();
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let theirs = rig.nic.register_region(rig.pd, &rig.client_memory, 0..BYTES, RemoteAddress(0), rights);
    let local = LocalSpan { address: 0, length: 4096, lkey: rig.node_region.lkey };
    let remote = RemoteSpan { address: RemoteAddress(0), rkey: theirs.expect("a region").rkey };
    rig.post(rig.node, 1, Operation::Write { local, remote });
    assert_eq!(rig.turn(), []);
    assert!(rig.queues.iter().any(|queue| queue.is_waiting()));
    rig
}

#[test]
fn nothing_moves_through_a_queue_pair_that_has_failed() {
    let fails: [(Status, Fail); 2] = [
        (Status::LocalProtectionError, |rig| {
            rig.client_region.lkey = portcullis_nic::Lkey(rig.key.0);
            rig.read(2, 0, 8);
        }),
        (Status::RemoteAccessError, |rig| {
            rig.key = rig.key.advanced();
            rig.read(2, 0, 8);
        }),
    ];
    for (status, fail) in fails {
        let mut rig = with_peer_that_writes();
        fail(&mut rig);
        rig.nic.turn();
        assert_eq!(rig.nic.qp_state(rig.client), Ok(portcullis_nic::QpState::Error));
        assert!(!rig.queues.iter().any(|queue| queue.is_waiting()), "{status}");
        assert!(rig.finish().contains(&(2, status)));
    }
}

#[test]
fn a_window_whose_invalidation_is_held_is_not_deallocated_before_its_accesses_have_ended() {
    let mut rig = Rig::new();
    rig.write(1, 0, 256);
    assert_eq!(rig.turn(), []);
    rig.invalidate(2);
    assert_eq!(rig.turn(), [], "it is held");
    rig.nic.deallocate_window(rig.window.id).expect("it is freed");
    assert!(!rig.queues.iter().any(|queue| queue.is_waiting()));
}
