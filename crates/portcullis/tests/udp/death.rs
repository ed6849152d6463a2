//! Processes of clients that are killed.

use crate::child::{self, Child};
use crate::rig::{BLUE, RED, Rig, config, goes_on};
use portcullis::{Acquire, Allocate, Error, Lifetime, ObjectRef, connect};
use std::path::Path;

/// Not a test: the program of a child, which works until it is killed.
#[test]
fn a_child_that_works_until_it_is_killed() {
    let Some(address) = child::path() else { return };
    let mut session = connect(&address.to_string_lossy()).expect("a session");
    let ask = || Allocate::bytes(1 << 18).keep().lifetime(Lifetime::seconds(9));
    let kept = session.allocate(ask()).expect("memory");
    let more: Vec<_> =
        (0..8).map(|_| session.allocate(Allocate::bytes(64).lifetime(Lifetime::seconds(9)))).collect();
    child::say_ready(kept.object());
    loop {
        session.write(&kept, 0, &vec![7; 1 << 18]).expect("its own");
        assert!(more.iter().all(Result::is_ok));
    }
}

#[test]
fn a_killed_process_loses_what_it_held_at_once() {
    let rig = Rig::new();
    let mut honest = rig.honest(BLUE);
    for _ in 0..3 {
        let mut session = rig.session(RED);
        let address = rig.address(RED);
        let (child, object) =
            Child::start("death::a_child_that_works_until_it_is_killed", Path::new(&address));
        child.kill();
        let object: ObjectRef = object.parse().expect("a reference");
        let ask = Acquire::object(object).wait(Lifetime::seconds(5)).lifetime(Lifetime::seconds(9));
        let next = session.acquire(ask).expect("free long before its lease is over");
        session.write(&next, 0, &[9; 4096]).expect("exclusively");
        session.revoke_and_free(next).expect("it has not ended");
    }
    goes_on(&honest);
    honest.stop();
    drop(honest);
    rig.assert_empty();
}

/// The new node answers at the address of the former node, and knows none of the former node's permissions.
#[test]
fn a_node_that_has_started_anew_is_not_said_to_have_revoked_a_permission() {
    let rig = Rig::new();
    let place = rig.place(RED);
    let mut sessions: Vec<_> = (0..3).map(|_| rig.session(RED)).collect();
    let mut blocks = Vec::new();
    for session in &mut sessions {
        let ask = Allocate::bytes(64).lifetime(Lifetime::seconds(8));
        blocks.push(session.allocate(ask).expect("memory"));
    }
    drop(rig);
    let _again = Rig::with(config(), |udp| udp.listen[0].address = place.clone());
    let [reading, writing, extending] = &mut sessions[..] else { unreachable!("three") };
    assert_eq!(reading.read(&blocks[0], 0, &mut [0; 8]), Err(Error::NodeGone));
    assert_eq!(writing.write(&blocks[1], 0, &[1; 8]), Err(Error::NodeGone));
    assert_eq!(extending.extend(&blocks[2], Lifetime::seconds(9)), Err(Error::NodeGone));
    assert_eq!(reading.read(&blocks[0], 0, &mut [0; 8]), Err(Error::NodeGone), "the session is over");
    assert!(Error::NodeGone.to_string().contains("started anew"));
    connect(&format!("udp:{place}")).expect("a session with the new node");
}
