//! Attacks that guess keys, addresses and ranges.

use crate::attacker::{Attacker, DATA, key};
use crate::canary::Canary;
use crate::rig::{BLUE, RED, Rig, random};
use portcullis::{Refusal, RemoteAddress, Rkey, SessionOptions, Sharing};
use portcullis_nic::{Endpoint, Lkey, LocalSpan, Operation, RemoteSpan, Status, VerbsEndpoint};
use portcullis_protocol::ReplyBody;
use rand::RngExt;

/// Number of indices for which the tests try keys: all that a node with a few tenants has assigned.
const INDICES: u32 = 4096;

/// Tries a read that must not succeed, and rebuilds the queue pair.
fn guess(attacker: &mut Attacker, address: u64, rkey: u32) {
    let status = attacker.try_read(0, address, rkey, 8);
    assert_eq!(status, Status::RemoteAccessError, "key {rkey:#x} at {address:#x}");
    attacker.recover(0).expect("a lenient node");
}

#[test]
fn no_key_opens_another_tenants_bytes() {
    let rig = Rig::new();
    let mut random = random();
    let mut canary = Canary::new(rig.host.connect(BLUE, SessionOptions::default()).expect("a session"), 4096);
    let mut attacker = rig.attacker();
    for low in 0..=255 {
        guess(&mut attacker, canary.address(), canary.key() & !0xff | low);
    }
    for index in 0..INDICES {
        guess(&mut attacker, canary.address(), index << 8 | random.random_range(0..256));
    }
    assert!(!Canary::is_in(attacker.endpoint.arena(), DATA, 4096));
    canary.assert_untouched();
    drop((canary, attacker));
    rig.clear();
}

#[test]
fn a_key_opens_no_byte_before_or_behind_its_own() {
    let rig = Rig::new();
    let mut siblings = [(); 2]
        .map(|()| Canary::new(rig.host.connect(RED, SessionOptions::default()).expect("a session"), 4096));
    let mut attacker = rig.attacker();
    let own = attacker.allocate(4096, Sharing::Exclusive);
    let (at, rkey) = (own.address().0, key(own.credential));
    let reach = 1 << 20;
    // The eight bytes before the buffer are the attacker's own lifetime word. One window may expose both.
    for (address, length) in [
        (at - 9, 8),
        (at - 16, 8),
        (at + 4089, 8),
        (at + 4096, 1),
        (at, 4097),
        (at, reach),
        (at - 4096, 4096),
        (0, 8),
        (u64::MAX, 1),
        (u64::MAX - 7, 8),
        (u64::MAX - 3, 8),
        (at.wrapping_sub(1 << 63), 8),
        (at | 1 << 63, 8),
        (u64::MAX - 4095, reach),
    ] {
        assert_eq!(
            attacker.try_read(0, address, rkey, length),
            Status::RemoteAccessError,
            "{length} at {address:#x}"
        );
        attacker.recover(0).expect("a lenient node");
    }
    for sibling in &mut siblings {
        guess(&mut attacker, sibling.address(), rkey);
        sibling.assert_untouched();
    }
    assert_eq!(attacker.try_read(0, at, rkey, 4096), Status::Success);
    assert!(!Canary::is_in(attacker.endpoint.arena(), DATA, reach as usize));
    drop((siblings, attacker));
    rig.clear();
}

#[test]
fn no_local_key_but_its_own_names_anything() {
    let rig = Rig::new();
    let mut attacker = None;
    for lkey in (0..300).flat_map(|index| [index << 8, index << 8 | 1]) {
        // A queue pair with a local error cannot be rebuilt. After three such queue pairs a new attacker takes over.
        let (it, own, number) = match attacker.take() {
            Some((it, own, number)) if number < 3 => (it, own, number),
            _ => {
                let mut it = rig.attacker();
                let own = it.allocate(64, Sharing::Exclusive);
                (it, own, 0)
            }
        };
        let mut it: Attacker = it;
        let remote = RemoteSpan { address: own.address(), rkey: Rkey(key(own.credential)) };
        if lkey == it.endpoint.arena_key().0 {
            attacker = Some((it, own, number));
            continue;
        }
        // Writing from this key's memory would put other clients' bytes where the attacker can read them.
        let local = LocalSpan { address: 0, length: 8, lkey: Lkey(lkey) };
        let status = it.try_operation(number, Operation::Write { local, remote });
        assert_eq!(status, Status::LocalProtectionError, "lkey {lkey:#x}");
        attacker = Some((it, own, number + 1));
    }
    let mut it = rig.attacker();
    let own = it.allocate(64, Sharing::Exclusive);
    let remote = RemoteSpan { address: own.address(), rkey: Rkey(key(own.credential)) };
    for (number, (address, length)) in
        (0..).zip([(u64::MAX - 3, 8), (it.size.arena_bytes - 7, 8), (0, u32::MAX)])
    {
        let status = it.try_operation(number, Operation::Write { local: it.local(address, length), remote });
        assert_eq!(status, Status::LocalProtectionError, "{length} at {address:#x}");
    }
    drop((attacker, it));
    rig.clear();
}

#[test]
fn an_ended_permissions_key_opens_nothing_at_any_later_time() {
    let rig = Rig::new();
    let mut attacker = rig.attacker();
    let mut ended: Vec<(RemoteAddress, u32)> = Vec::new();
    for _ in 0..300 {
        let own = attacker.allocate(64, Sharing::Exclusive);
        assert!(!ended.contains(&(own.address(), key(own.credential))), "a key came back");
        assert_eq!(attacker.revoke(own.permission), ReplyBody::Done);
        assert_eq!(attacker.revoke(own.permission), ReplyBody::Refused(Refusal::NotLive));
        ended.push((own.address(), key(own.credential)));
    }
    // Old windows may stay over memory that no other client has got, but never over memory that a client holds.
    let mut others = Canary::new(rig.host.connect(RED, SessionOptions::default()).expect("a session"), 64);
    for &(_, rkey) in &ended {
        let status = attacker.try_read(0, others.address(), rkey, 8);
        if status != Status::Success {
            attacker.recover(0).expect("a lenient node");
        }
        assert!(!Canary::is_in(attacker.endpoint.arena(), DATA, 64), "key {rkey:#x}");
    }
    others.assert_untouched();
    drop((others, attacker));
    rig.clear();
}
