//! Permissions over UDP are like those over other fabrics.

use crate::rig::{BLUE, RED, Rig};
use portcullis::{Access, Acquire, Allocate, Error, Lifetime, Mechanism, SessionOptions, Unchecked};
use std::time::{Duration, Instant};

#[test]
fn what_is_written_is_read_back_in_any_length() {
    let rig = Rig::new();
    let mut session = rig.session(RED);
    let block = session.allocate(Allocate::bytes(1 << 20).lifetime(Lifetime::seconds(9))).expect("memory");
    assert_eq!(block.mechanism(), Mechanism::RegionKey);
    for (round, length) in (1u8..).zip([1usize, 7, 8, 64, 1231, 4096, 4097, 65_536, 1 << 20]) {
        let bytes: Vec<u8> =
            (0..length).map(|at| u8::try_from(at % 251).expect("it is small").wrapping_mul(round)).collect();
        let offset = ((1 << 20) - length) as u64 / 2;
        session.write(&block, offset, &bytes).expect("written");
        let mut there = vec![0; length];
        session.read(&block, offset, &mut there).expect("read");
        assert!(there == bytes, "{length} bytes");
    }
}

#[test]
fn atomics_tell_what_was_there_and_happen_once() {
    let rig = Rig::new();
    let mut session = rig.session(RED);
    let block = session.allocate(Allocate::bytes(64).lifetime(Lifetime::seconds(9))).expect("memory");
    for round in 0..100 {
        assert_eq!(session.fetch_and_add(&block, 8, 1), Ok(round));
    }
    assert_eq!(session.compare_and_swap(&block, 8, 99, 7), Ok(100));
    assert_eq!(session.compare_and_swap(&block, 8, 100, 7), Ok(100));
    assert_eq!(session.compare_and_swap(&block, 8, 7, 0), Ok(7));
}

#[test]
fn a_permission_ends_when_it_is_revoked_and_another_session_has_the_object() {
    let rig = Rig::new();
    let (mut one, mut other) = (rig.session(RED), rig.session(RED));
    let block = one.allocate(Allocate::bytes(4096).keep().lifetime(Lifetime::seconds(9))).expect("memory");
    one.write(&block, 0, b"for the other").expect("written");
    let object = block.object();
    one.revoke(block).expect("revoked");
    let held = other.acquire(Acquire::object(object)).expect("it is there");
    let mut bytes = [0; 13];
    other.read(&held, 0, &mut bytes).expect("read");
    assert_eq!(&bytes, b"for the other");
    let refused =
        one.acquire(Acquire::object(object).wait(Lifetime(0))).expect_err("another session holds it");
    assert!(refused.is_retryable(), "{refused}");
}

#[test]
fn a_lease_runs_out_unless_it_is_extended_and_its_extension_is_seen_by_the_node() {
    let rig = Rig::new();
    let mut session = rig.session(RED);
    let short = session.allocate(Allocate::bytes(64).keep().lifetime(Lifetime::millis(200))).expect("memory");
    let began = Instant::now();
    let until = session.extend(&short, Lifetime::millis(1500)).expect("extended");
    assert!(until > session.now());
    while began.elapsed() < Duration::from_millis(700) {
        session.write(&short, 0, &[1; 64]).expect("it was extended");
    }
    let object = short.object();
    let mut began_last = session.now();
    while session.write(&short, 0, &[2; 64]).is_ok() {
        assert!(began_last < until, "it was extended until then");
        began_last = session.now();
    }
    assert_eq!(session.write(&short, 0, &[2; 64]), Err(Error::Expired));
    let again = session.acquire(Acquire::object(object)).expect("it was kept");
    let mut bytes = [0; 64];
    session.read(&again, 0, &mut bytes).expect("read");
}

#[test]
fn a_key_is_of_no_use_beyond_its_session() {
    let rig = Rig::new();
    let (mut holder, mut sibling, mut stranger) = (rig.session(RED), rig.session(RED), rig.session(BLUE));
    let block = holder.allocate(Allocate::bytes(64).lifetime(Lifetime::seconds(9))).expect("memory");
    holder.write(&block, 0, &[7; 64]).expect("written");
    assert_eq!(sibling.write(&block, 0, &[9; 64]), Err(Error::ForeignPermission));
    for thief in [&mut sibling, &mut stranger] {
        let buffer = thief.buffer(64).expect("room");
        let target = Unchecked::new(block.address(), block.credential());
        let begun = thief.client().dangerous_access(Access::read(target, 0, buffer));
        let operation = begun.expect("it begins");
        assert_eq!(thief.wait(operation).expect("it ends").result, Err(Error::Violation));
    }
    let mut there = [0; 64];
    holder.read(&block, 0, &mut there).expect("nothing has changed for the holder");
    assert_eq!(there, [7; 64]);
}

#[test]
fn a_keeper_extends_from_a_session_of_its_own() {
    let rig = Rig::new();
    let mut session = rig.session_with(RED, SessionOptions::default());
    let block = session.allocate(Allocate::bytes(64).lifetime(Lifetime::millis(300))).expect("memory");
    let kept = session.keep(&block, Lifetime::millis(300)).expect("a keeper");
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(1200) {
        session.write(&block, 0, &[1; 64]).expect("it is kept alive");
    }
    drop(kept);
}
