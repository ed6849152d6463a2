//! Accesses to bytes beside a permission's. Regions stop them; windows stop them only on a device that checks their
//! range.

use crate::attacker::{Attacker, DATA, key};
use crate::canary::Canary;
use crate::rig::{BLUE, RED, Rig, lenient, windows};
use portcullis::{Guarantee, RemoteAddress, Rkey};
use portcullis_nic::{Endpoint, Operation, RemoteSpan, Status};

/// Bytes of the attacker's own object and of the objects beside it.
const BYTES: u32 = 4096;

/// Tries accesses that begin or end outside the attacker's own object. Returns how many were tried.
fn stray(attacker: &mut Attacker, at: u64, rkey: u32) -> u64 {
    let length = u64::from(BYTES);
    let spans = [(at - 64, 8), (at + length, 1), (at + length - 4, 8), (at, BYTES + 1), (at, 1 << 20)];
    let spans = spans.into_iter().chain([(0, 8), (u64::MAX - 7, 8), (at - length, BYTES)]);
    let mut tried = 0;
    for (address, length) in spans {
        let remote = RemoteSpan { address: RemoteAddress(address), rkey: Rkey(rkey) };
        attacker.assert_refused(Operation::Read { local: attacker.local(DATA, length), remote });
        attacker.assert_refused(Operation::Write { local: attacker.local(DATA, length), remote });
        tried += 2;
    }
    tried
}

#[test]
#[ignore = "needs an RDMA device"]
fn memory_region_stops_what_soft_roce_windows_do_not() {
    let rig = Rig::with(lenient(), &[RED, BLUE]);
    assert_eq!(rig.host.unenforced(), [], "regions rest on nothing that is broken");
    let mut canaries = [RED, BLUE].map(|tenant| Canary::new(rig.session(tenant), BYTES as usize));
    let mut attacker = rig.attacker();
    let own = attacker.allocate(BYTES.into());
    let (at, rkey) = (own.address().0, key(own.credential));
    let mut tried = stray(&mut attacker, at, rkey);
    for canary in &mut canaries {
        tried += attacker.try_all(canary.address(), rkey);
        canary.assert_untouched();
    }
    rig.others_go_on(5);
    rig.assert_charged(tried);
    assert_eq!(attacker.try_read(0, at, rkey, BYTES), Status::Success);
    assert!(!Canary::is_in(attacker.endpoint.arena(), DATA, 1 << 20));
    drop((canaries, attacker));
    rig.clear();
}

/// Documents a defect of Soft-RoCE, which checks an access against the region under the window, which is the whole
/// pool, and not against the window's range. A node on such a device therefore refuses `memory-window` unless its
/// configuration allows it to run without the range check. This test fails when a kernel fixes the defect.
#[test]
#[ignore = "needs an RDMA device"]
fn a_deviation_soft_roce_windows_open_the_whole_pool_and_nobody_is_charged() {
    let rig = Rig::with(windows(), &[RED, BLUE]);
    assert_eq!(rig.host.unenforced(), [Guarantee::WindowRange], "this device holds windows to their range");
    let mut canary = Canary::new(rig.session(BLUE), BYTES as usize);
    let mut attacker = rig.attacker();
    let own = attacker.allocate(64);
    let rkey = key(own.credential);
    // Another tenant's bytes, read with the attacker's own key.
    assert_eq!(attacker.try_read(0, canary.address(), rkey, BYTES), Status::Success);
    assert!(Canary::is_in(attacker.endpoint.arena(), DATA, BYTES as usize), "the range is kept after all");
    let remote = RemoteSpan { address: RemoteAddress(canary.address()), rkey: Rkey(rkey) };
    let write = Operation::Write { local: attacker.local(DATA, BYTES), remote };
    assert_eq!(attacker.try_operation(0, write), Status::Success);
    rig.assert_charged(0);
    // The attacker wrote back the same bytes that it had read.
    canary.assert_untouched();
    // The end of the permission is still enforced.
    attacker.revoke(own.permission);
    rig.others_go_on(5);
    drop((canary, attacker));
    rig.clear();
}
