//! Messages that request the node's NIC to invalidate a key. They must not invalidate any key of the node.

use crate::attacker::{DATA, key};
use crate::canary::Canary;
use crate::rig::{BLUE, RED, Rig, lenient, wait_for, windows};
use portcullis::Rkey;
use portcullis_nic::{Operation, Status};

#[test]
#[ignore = "needs an RDMA device"]
fn a_peers_message_invalidates_neither_windows_nor_regions() {
    for config in [lenient(), windows()] {
        let rig = Rig::with(config, &[RED, BLUE]);
        let mut canaries = [RED, BLUE].map(|tenant| Canary::new(rig.session(tenant), 64));
        let mut attacker = rig.attacker();
        let own = attacker.allocate(64);
        let known = key(own.credential);
        let keys = [canaries[0].key(), canaries[1].key(), known, known ^ 1, 0, u32::MAX];
        for rkey in keys.map(Rkey) {
            // Soft-RoCE acknowledges the message before it checks the key, so the status proves nothing here.
            attacker.try_operation(0, Operation::SendWithInvalidate { local: attacker.local(DATA, 0), rkey });
            for canary in &mut canaries {
                canary.assert_untouched();
            }
            attacker.recover(0).expect("a lenient node");
            let status = attacker.try_read(0, own.address().0, known, 8);
            assert_eq!(status, Status::Success, "after {rkey:?}");
        }
        rig.others_go_on(5);
        // On the control queue pair such a message ends the client.
        for rkey in [canaries[1].key(), known, 0].map(Rkey) {
            let mut attacker = rig.attacker();
            let local = attacker.local(DATA, 64);
            assert_eq!(attacker.post_control(Operation::SendWithInvalidate { local, rkey }), Ok(1));
            wait_for("the node to show it out", || attacker.is_out());
        }
        for canary in &mut canaries {
            canary.assert_untouched();
        }
        drop((canaries, attacker));
        rig.clear();
    }
}
