//! Clients and nodes that are killed. Their objects on the device must be gone soon after.

use crate::device::InUse;
use crate::process::{self, Child};
use crate::rig::{BLUE, PATIENCE, RED, Rig, alone, lenient, node, random, wait_for, windows};
use portcullis::{Acquire, Allocate, Error, Lifetime, ObjectRef, Session, SessionOptions, connect};
use rand::RngExt;
use std::time::{Duration, Instant};

const KILLS: usize = 3;
/// The longest that a client works before it is killed.
const WORKS_FOR: Duration = Duration::from_millis(60);
/// Time within which a client must notice that its node was killed.
const FOUND_OUT_WITHIN: Duration = Duration::from_secs(2);

/// Waits until the kernel counts as many objects in use as before.
fn assert_back_to(before: &InUse) {
    let started = Instant::now();
    loop {
        let now = InUse::now();
        if now == *before {
            return;
        }
        assert!(started.elapsed() < PATIENCE, "{now:?} in use, {before:?} before");
    }
}

/// Not a test: the program of a child, a client that works until it is killed.
#[test]
#[ignore = "what a child of other tests does; by itself it does nothing"]
fn a_client_that_works_until_it_is_killed() {
    let Some(address) = process::address() else { return };
    let mut session = connect(&address).expect("a session");
    let kept =
        session.allocate(Allocate::bytes(1 << 20).keep().lifetime(Lifetime::seconds(60))).expect("memory");
    process::say_ready(kept.object());
    let mut bytes = vec![7; 1 << 20];
    loop {
        session.write(&kept, 0, &bytes).expect("its own");
        session.read(&kept, 0, &mut bytes).expect("its own");
        let short = session.allocate(Allocate::bytes(64)).expect("memory");
        session.fetch_and_add(&short, 0, 1).expect("its own");
        session.revoke(short).expect("it has not ended");
    }
}

/// Not a test: the program of a child, a node that runs until it is killed or its standard input ends.
#[test]
#[ignore = "what a child of other tests does; by itself it does nothing"]
fn a_node_that_serves_until_it_is_killed() {
    if process::address().is_none() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let host = node(lenient(), folder.path());
    process::say_ready(host.network_addresses()[0]);
    process::until_asked_to_end();
    drop(host);
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_killed_client_loses_what_it_held_at_once_and_nothing_of_it_stays_on_the_device() {
    // The kernel does not count windows. So the counts stay the same while the other clients work.
    let rig = Rig::with(windows(), &[RED, BLUE]);
    let mut random = random();
    let mut session = rig.session(RED);
    let before = InUse::now();
    for _ in 0..KILLS {
        let address = format!("rdma:{}", rig.address());
        let (child, kept) = Child::start("death::a_client_that_works_until_it_is_killed", &address);
        let work = WORKS_FOR.mul_f64(random.random());
        let started = Instant::now();
        wait_for("a moment in the middle of its work", || started.elapsed() >= work);
        child.kill();
        let kept: ObjectRef = kept.parse().expect("a reference");
        let next = session.acquire(Acquire::object(kept).wait(Lifetime::seconds(5)));
        let next = next.expect("free long before its lease is over");
        session.write(&next, 0, &[9; 4096]).expect("exclusively");
        session.revoke_and_free(next).expect("it has not ended");
        assert_back_to(&before);
        rig.others_go_on(5);
    }
    drop(session);
    rig.clear();
}

/// Three clients of a node in another process, each with a session and a permission.
fn clients_of(address: &str) -> Vec<(Session, portcullis::Permission)> {
    let mut clients = Vec::new();
    for _ in 0..3 {
        let mut session = connect(&format!("rdma:{address}")).expect("a session");
        let ask = Allocate::bytes(1 << 20).lifetime(Lifetime::seconds(60));
        let object = session.allocate(ask).expect("memory");
        session.write(&object, 0, b"still here").expect("a write");
        clients.push((session, object));
    }
    clients
}

#[test]
#[ignore = "needs an RDMA device"]
fn clients_of_a_killed_node_find_out_and_nothing_of_it_stays_on_the_device() {
    let _floor = alone();
    let before = InUse::now();
    let (child, address) = Child::start("death::a_node_that_serves_until_it_is_killed", "");
    let mut clients = clients_of(&address);
    child.kill();
    let killed = Instant::now();
    for (session, object) in &mut clients {
        let mut bytes = vec![0; 1 << 20];
        let read = session.read(object, 0, &mut bytes);
        assert!(matches!(read, Err(Error::NodeGone | Error::SessionLost)), "{read:?}");
        let asked = session.allocate(Allocate::bytes(64)).map(|_| ());
        assert!(matches!(asked, Err(Error::NodeGone | Error::SessionLost)), "{asked:?}");
    }
    assert!(killed.elapsed() < FOUND_OUT_WITHIN, "{:?}", killed.elapsed());
    drop(clients);
    assert_back_to(&before);
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_client_in_the_middle_of_its_work_finds_out_that_its_node_was_killed() {
    let _floor = alone();
    let before = InUse::now();
    let mut random = random();
    let (child, address) = Child::start("death::a_node_that_serves_until_it_is_killed", "");
    let workers: Vec<_> = clients_of(&address)
        .into_iter()
        .map(|(mut session, object)| {
            std::thread::spawn(move || {
                let mut bytes = vec![0; 1 << 20];
                let error = loop {
                    if let Err(error) = session.read(&object, 0, &mut bytes) {
                        break error;
                    }
                };
                (error, Instant::now())
            })
        })
        .collect();
    let (started, work) = (Instant::now(), WORKS_FOR.mul_f64(random.random()));
    wait_for("a moment in the middle of their work", || started.elapsed() >= work);
    child.kill();
    let killed = Instant::now();
    for worker in workers {
        let (error, found_out) = worker.join().expect("no panic");
        assert!(matches!(error, Error::NodeGone | Error::SessionLost), "{error:?}");
        let after = found_out.saturating_duration_since(killed);
        assert!(after < FOUND_OUT_WITHIN, "{after:?}");
    }
    assert_back_to(&before);
}

#[test]
#[ignore = "needs an RDMA device"]
fn an_orderly_end_leaves_nothing_on_the_device() {
    let _floor = alone();
    let before = InUse::now();
    // Here a node in another process ends while its clients are still there.
    let (child, address) = Child::start("death::a_node_that_serves_until_it_is_killed", "");
    let clients = clients_of(&address);
    child.end();
    drop(clients);
    assert_back_to(&before);
    // Here the node is in this process, and either the clients or the node end first.
    for node_first in [false, true] {
        let folder = tempfile::tempdir().expect("a folder");
        let host = node(lenient(), folder.path());
        let clients = clients_of(&host.network_addresses()[0].to_string());
        let inside = host.connect("green", SessionOptions::default()).expect("a session");
        assert_ne!(InUse::now(), before);
        if node_first {
            drop(host);
            drop((clients, inside));
        } else {
            drop((clients, inside));
            drop(host);
        }
        assert_back_to(&before);
    }
}
