//! Keys of other clients, keys that have ended, and keys for something else.

use crate::attacker::{Attacker, DATA, key};
use crate::canary::Canary;
use crate::rig::{BLUE, RED, Rig, lenient, wait_for, window_groups, windows};
use portcullis::{Lifetime, NodeConfig, RemoteAddress, Rights, Rkey};
use portcullis_nic::{Endpoint, Operation, RemoteSpan, Status};
use portcullis_protocol::{Granted, ReplyBody};

/// The mechanisms in which the NIC checks keys.
fn mechanisms() -> [NodeConfig; 3] {
    [lenient(), windows(), window_groups()]
}

#[test]
#[ignore = "needs an RDMA device"]
fn another_tenants_key_opens_nothing_and_each_try_is_charged_to_who_tried() {
    for config in mechanisms() {
        let rig = Rig::with(config, &[RED, BLUE]);
        let mut canary = Canary::new(rig.session(BLUE), 4096);
        let mut attacker = rig.attacker();
        let own = attacker.allocate(4096);
        let tried = attacker.try_all(canary.address(), canary.key());
        rig.others_go_on(5);
        rig.assert_charged(tried);
        assert!(!Canary::is_in(attacker.endpoint.arena(), DATA, 4096));
        canary.assert_untouched();
        // The attacker's own key still works.
        assert_eq!(attacker.try_read(0, own.address().0, key(own.credential), 4096), Status::Success);
        drop((canary, attacker));
        rig.clear();
    }
}

/// Reads until the NIC refuses the read, which must be soon, and rebuilds the queue pair.
fn wait_for_the_end(attacker: &mut Attacker, own: &Granted) {
    wait_for("an ended permission to be taken down", || {
        attacker.try_read(0, own.address().0, key(own.credential), 64) == Status::RemoteAccessError
    });
    attacker.recover(0).expect("a lenient node");
}

#[test]
#[ignore = "needs an RDMA device"]
fn an_ended_permissions_key_opens_nothing_at_any_later_time() {
    for config in mechanisms() {
        let rig = Rig::with(config, &[RED, BLUE]);
        let mut attacker = rig.attacker();
        let revoked = attacker.allocate(64);
        assert_eq!(attacker.revoke(revoked.permission), ReplyBody::Done);
        wait_for_the_end(&mut attacker, &revoked);
        let expired = attacker.allocate_for(64, Rights::all(), Lifetime::millis(20));
        wait_for_the_end(&mut attacker, &expired);
        let mut tried = 2;
        // The next holders of the memory are safe from both keys.
        let mut next = [(); 2].map(|()| Canary::new(rig.session(RED), 64));
        for ended in [revoked, expired] {
            for canary in &mut next {
                tried += attacker.try_all(canary.address(), key(ended.credential));
                canary.assert_untouched();
            }
            tried += attacker.try_all(ended.address().0, key(ended.credential));
        }
        rig.others_go_on(5);
        rig.assert_charged(tried);
        drop((next, attacker));
        rig.clear();
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_key_opens_nothing_for_which_its_permission_has_no_right() {
    for config in mechanisms() {
        let rig = Rig::with(config, &[RED, BLUE]);
        let mut attacker = rig.attacker();
        let mut tried = 0;
        for rights in [Rights::READ, Rights::WRITE, Rights::READ | Rights::WRITE] {
            let own = attacker.allocate_for(64, rights, Lifetime::seconds(10));
            let remote = RemoteSpan { address: own.address(), rkey: Rkey(key(own.credential)) };
            let local = attacker.local(DATA, 8);
            let cases = [
                (Rights::READ, Operation::Read { local, remote }),
                (Rights::WRITE, Operation::Write { local, remote }),
                (Rights::ATOMIC, Operation::FetchAndAdd { local, remote, add: 1 }),
                (Rights::ATOMIC, Operation::CompareAndSwap { local, remote, compare: 0, swap: 1 }),
            ];
            for (needed, operation) in cases {
                if rights.contains(needed) {
                    assert_eq!(attacker.try_operation(0, operation), Status::Success, "{operation:?}");
                } else {
                    attacker.assert_refused(operation);
                    tried += 1;
                }
            }
        }
        rig.others_go_on(5);
        rig.assert_charged(tried);
        drop(attacker);
        rig.clear();
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn keys_that_nobody_was_given_open_nothing() {
    let rig = Rig::with(windows(), &[RED, BLUE]);
    let mut canary = Canary::new(rig.session(BLUE), 64);
    let mut attacker = rig.attacker();
    let near = canary.key();
    let guesses = [0, 1, u32::MAX, near ^ 1, near ^ 0x80, near.wrapping_add(0x100), near.wrapping_sub(0x100)];
    for rkey in guesses {
        let remote = RemoteSpan { address: RemoteAddress(canary.address()), rkey: Rkey(rkey) };
        attacker.assert_refused(Operation::Write { local: attacker.local(DATA, 8), remote });
    }
    rig.assert_charged(guesses.len() as u64);
    canary.assert_untouched();
    drop((canary, attacker));
    rig.clear();
}

#[test]
#[ignore = "needs an RDMA device"]
fn within_a_tenant_a_stolen_key_of_a_window_group_opens_nothing() {
    let rig = Rig::with(window_groups(), &[RED, BLUE]);
    let mut sibling = Canary::new(rig.session(RED), 64);
    let mut attacker = rig.attacker();
    let tried = attacker.try_all(sibling.address(), sibling.key());
    rig.others_go_on(5);
    rig.assert_charged(tried);
    sibling.assert_untouched();
    drop((sibling, attacker));
    rig.clear();
}

/// Windows are bound on the node's ends of clients' queue pairs here, so their invalidations are flushed when a client
/// breaks them.
#[test]
#[ignore = "needs an RDMA device"]
fn who_breaks_the_queue_pair_of_a_window_group_keeps_nothing_and_harms_nobody() {
    let rig = Rig::with(window_groups(), &[RED, BLUE]);
    let mut attacker = rig.attacker();
    let mut tried = 0;
    for _ in 0..8 {
        let own = attacker.allocate(64);
        // The key belongs to no client: the read breaks the queue pair, which stays broken until the permission has
        // ended.
        let remote = RemoteSpan { address: RemoteAddress(0), rkey: Rkey(1) };
        let broken = attacker.try_operation(0, Operation::Read { local: attacker.local(DATA, 8), remote });
        assert_eq!(broken, Status::RemoteAccessError);
        assert_eq!(attacker.revoke(own.permission), ReplyBody::Done);
        let mut sibling = Canary::new(rig.session(RED), 64);
        attacker.recover(0).expect("a lenient node");
        tried += 1 + attacker.try_all(own.address().0, key(own.credential));
        sibling.assert_untouched();
    }
    rig.others_go_on(5);
    rig.assert_charged(tried);
    drop(attacker);
    rig.clear();
}
