//! Lanes: threads of a node that carry out operations of clients over UDP beside each other.

use crate::late_writes::{Stop, write_late};
use crate::rig::{RED, Rig, config, wait_for};
use portcullis::host::ThreadCount;
use portcullis::{Access, Acquire, Allocate, Lifetime, Session, Unchecked};
use std::sync::Barrier;
use std::sync::atomic::AtomicBool;

/// Bytes of the object that owners hand to and fro: a write of all of them has many operations.
const BYTES: u32 = 64 << 10;
/// Number of times that an owner hands it to the next one.
const ROUNDS: u8 = 60;
/// Number of times that each client adds to a word.
const ADDITIONS: u64 = 300;

fn with_lanes(lanes: u32) -> Rig {
    let mut node = config();
    // Late writers are refused all the time. They are not to be barred for that.
    node.violations.late_grace = Lifetime::seconds(3600);
    Rig::with(node, |udp| udp.lanes = ThreadCount::Fixed(lanes))
}

/// Late writers over UDP in every lane, and owners over UDP and in shared memory by turns.
#[test]
fn no_byte_of_a_late_writer_arrives_in_memory_of_the_next_owner() {
    for lanes in [0, 3] {
        let rig = with_lanes(lanes);
        let mut owners = [rig.session(RED), rig.local_session(RED)];
        let first = owners[0].allocate(Allocate::bytes(BYTES.into()).keep()).expect("memory");
        let object = first.object();
        owners[0].revoke(first).expect("it has not ended");
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                let session = rig.session(RED);
                scope.spawn(|| write_late(session, (object, BYTES), Lifetime::millis(5), &stop));
            }
            let _stop = Stop(&stop);
            let mut bytes = vec![0; BYTES as usize];
            for round in 0..ROUNDS {
                let owner = &mut owners[usize::from(round % 2)];
                let ask = Acquire::object(object).lifetime(Lifetime::seconds(9)).wait(Lifetime::seconds(9));
                let held = owner.acquire(ask).expect("the late writers' time ends");
                owner.write(&held, 0, &vec![round; BYTES as usize]).expect("written");
                owner.read(&held, 0, &mut bytes).expect("read");
                assert!(
                    bytes.iter().all(|&byte| byte == round),
                    "{lanes} lanes, round {round}: another's byte"
                );
                owner.revoke(held).expect("it has not ended");
            }
        });
    }
}

/// Clients of several lanes and one in shared memory, whose atomics the node's NIC carries out.
#[test]
fn additions_of_all_lanes_and_of_the_nic_to_one_word_are_all_there() {
    let rig = with_lanes(3);
    let mut owner = rig.session(RED);
    let held = owner.allocate(Allocate::bytes(8).shared().lifetime(Lifetime::seconds(9))).expect("memory");
    let object = held.object();
    owner.write(&held, 0, &[0; 8]).expect("written");
    let mut sessions: Vec<Session> = (0..4).map(|_| rig.session(RED)).collect();
    sessions.push(rig.local_session(RED));
    let (clients, start) = (sessions.len() as u64, Barrier::new(sessions.len()));
    std::thread::scope(|scope| {
        for mut session in sessions {
            let start = &start;
            scope.spawn(move || {
                let ask = Acquire::object(object).shared().lifetime(Lifetime::seconds(9));
                let held = session.acquire(ask).expect("it is shared");
                start.wait();
                for _ in 0..ADDITIONS {
                    session.fetch_and_add(&held, 0, 1).expect("added");
                }
            });
        }
    });
    let mut word = [0; 8];
    owner.read(&held, 0, &mut word).expect("read");
    assert_eq!(u64::from_le_bytes(word), clients * ADDITIONS);
    let lanes = rig.host.admin().counted().expect("a node").udp_lanes;
    assert_eq!(lanes.len(), 3);
    assert!(
        lanes.iter().all(|lane| lane.operations >= ADDITIONS),
        "clients are steered to all lanes: {lanes:?}"
    );
}

/// Lanes refuse strays, and the node's thread charges them.
#[test]
fn a_stray_of_any_lane_is_charged_once() {
    let rig = with_lanes(3);
    let mut sessions: Vec<Session> = (0..3).map(|_| rig.session(RED)).collect();
    for session in &mut sessions {
        let held = session.allocate(Allocate::bytes(64)).expect("memory");
        let (address, credential) = (held.address(), held.credential());
        let write = Access::write(Unchecked::new(address, credential), 0, session.buffer(128).expect("room"));
        let operation = session.client().dangerous_access(write).expect("it begins");
        assert!(session.wait(operation).expect("an end").result.is_err());
    }
    wait_for("strays to be charged", || rig.host.counters().violations >= 3);
    rig.assert_charged(3);
    let lanes = rig.host.admin().counted().expect("a node").udp_lanes;
    assert!(lanes.iter().all(|lane| lane.refused > 0), "{lanes:?}");
}
