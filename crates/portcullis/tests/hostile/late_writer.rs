//! A client that goes on with long writes after its permission has been withdrawn, while other threads than the node's move
//! their bytes: copy units, or engines.

use crate::late_writes::{Stop, write_late};
use portcullis::host::{Host, HostConfig, ThreadCount};
use portcullis::{Acquire, Allocate, Lifetime, Mechanism, NodeConfig, SessionOptions};
use std::sync::atomic::AtomicBool;

/// Bytes of the object: a write of all of them has many pieces.
const BYTES: u32 = 512 << 10;
/// Number of times that the object gets its next owner.
const ROUNDS: u8 = 60;
/// Number of times that an owner reads what it wrote.
const LOOKS: usize = 3;

fn node(mechanism: Mechanism, [copy_units, engines]: [ThreadCount; 2]) -> Host {
    let mut node = NodeConfig { mechanism, pool_bytes: 16 << 20, ..NodeConfig::default() };
    // The late writer is refused all the time. It is not to be barred for that.
    node.violations.late_grace = Lifetime::seconds(3600);
    Host::start(HostConfig { node, copy_units, engines, ..HostConfig::default() }).expect("a node starts")
}

fn options() -> SessionOptions {
    SessionOptions { arena_bytes: 4 << 20, ..SessionOptions::default() }
}

#[test]
fn no_byte_of_a_late_writer_arrives_in_memory_of_the_next_owner() {
    hand_on_beside_a_late_writer([ThreadCount::Fixed(2), ThreadCount::Fixed(0)]);
}

#[test]
fn no_byte_of_a_late_writer_that_an_engine_serves_arrives_in_memory_of_the_next_owner() {
    hand_on_beside_a_late_writer([ThreadCount::Fixed(0), ThreadCount::Fixed(2)]);
}

fn hand_on_beside_a_late_writer(threads: [ThreadCount; 2]) {
    for mechanism in
        [Mechanism::MemoryWindow, Mechanism::WindowGroup, Mechanism::QueuePair, Mechanism::MemoryRegion]
    {
        let host = node(mechanism, threads);
        let mut owner = host.connect("red", options()).expect("a session");
        let first = owner.allocate(Allocate::bytes(BYTES.into()).keep()).expect("memory");
        let object = first.object();
        owner.revoke(first).expect("it has not ended");
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let session = host.connect("red", options()).expect("a session");
                write_late(session, (object, BYTES), Lifetime::millis(1), &stop);
            });
            let _stop = Stop(&stop);
            let mut bytes = vec![0; BYTES as usize];
            for round in 0..ROUNDS {
                let ask = Acquire::object(object).lifetime(Lifetime::seconds(9)).wait(Lifetime::seconds(9));
                let held = owner.acquire(ask).expect("the late writer's time ends");
                owner.write(&held, 0, &vec![round; BYTES as usize]).expect("written");
                for _ in 0..LOOKS {
                    owner.read(&held, 0, &mut bytes).expect("read");
                    assert!(
                        bytes.iter().all(|&byte| byte == round),
                        "{mechanism:?}: round {round}: another's byte"
                    );
                }
                owner.revoke(held).expect("it has not ended");
            }
        });
        drop(owner);
        let engines = host.admin().counted().expect("the node is there").engines;
        let is_one_at_work = engines.is_empty() || engines.iter().any(|engine| engine.requests > 0);
        assert!(is_one_at_work, "{mechanism:?}: no engine has served a client: {engines:?}");
    }
}
