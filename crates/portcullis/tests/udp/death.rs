//! Processes of clients that are killed.

use crate::child::{self, Child};
use crate::rig::{BLUE, RED, Rig, goes_on};
use portcullis::{Acquire, Allocate, Lifetime, ObjectRef, connect};
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
