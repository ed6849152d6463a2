//! A client that goes on with long writes after its permission has been withdrawn, while copy units move their bytes.

use portcullis::host::{Host, HostConfig, ThreadCount};
use portcullis::{Access, Acquire, Allocate, Lifetime, Mechanism, NodeConfig, SessionOptions, Unchecked};
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of the object: a write of all of them has many pieces.
const BYTES: u32 = 512 << 10;
/// Number of times that the object gets its next owner.
const ROUNDS: u8 = 60;
/// Number of times that an owner reads what it wrote.
const LOOKS: usize = 3;

fn node(mechanism: Mechanism) -> Host {
    let mut node = NodeConfig { mechanism, pool_bytes: 16 << 20, ..NodeConfig::default() };
    // The late writer is refused all the time. It is not to be barred for that.
    node.violations.late_grace = Lifetime::seconds(3600);
    let copy_units = ThreadCount::Fixed(2);
    Host::start(HostConfig { node, copy_units, ..HostConfig::default() }).expect("a node starts")
}

/// Stops the late writer, also if the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Writes with each permission on and on, also when the permission has ended, until the next one is there.
fn write_late(host: &Host, object: portcullis::ObjectRef, stop: &AtomicBool) {
    let options = || SessionOptions { arena_bytes: 4 << 20, ..SessionOptions::default() };
    let mut session = host.connect("red", options()).expect("a session");
    while !stop.load(Ordering::Relaxed) {
        let ask = Acquire::object(object).lifetime(Lifetime::millis(1)).wait(Lifetime::seconds(5));
        let Ok(permission) = session.acquire(ask) else { continue };
        let (address, credential) = (permission.address(), permission.credential());
        loop {
            let mut buffer = session.buffer(BYTES).expect("room");
            buffer.write(0, &[0xee; BYTES as usize]);
            let write = Access::write(Unchecked::new(address, credential), 0, buffer);
            let begun = session.client().dangerous_access(write);
            let Ok(operation) = begun else { break };
            if session.wait(operation).map_or(true, |outcome| outcome.result.is_err()) {
                break;
            }
        }
    }
}

#[test]
fn no_byte_of_a_late_writer_arrives_in_memory_of_the_next_owner() {
    for mechanism in
        [Mechanism::MemoryWindow, Mechanism::WindowGroup, Mechanism::QueuePair, Mechanism::MemoryRegion]
    {
        let host = node(mechanism);
        let mut owner = host
            .connect("red", SessionOptions { arena_bytes: 4 << 20, ..SessionOptions::default() })
            .expect("a session");
        let first = owner.allocate(Allocate::bytes(BYTES.into()).keep()).expect("memory");
        let object = first.object();
        owner.revoke(first).expect("it has not ended");
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| write_late(&host, object, &stop));
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
    }
}
