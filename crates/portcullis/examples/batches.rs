//! Many small requests with few doorbells. Permissions are requested together, atomics are posted together, and the
//! outcomes are taken one by one.
//!
//! ```text
//! cargo run --release --example batches                                  a node of its own
//! cargo run --release --example batches -- shm:portcullis.sock          a node that runs
//! ```

mod place;

use portcullis::{Access, Acquire, Allocate, Error};

const COUNTERS: usize = 100;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut session, _node) = place::session()?;

    // A hundred objects, each holding one counter. After the loop no session holds a permission on them.
    let mut objects = Vec::new();
    for _ in 0..COUNTERS {
        let counter = session.allocate(Allocate::bytes(8).keep())?;
        session.write(&counter, 0, &0u64.to_le_bytes())?;
        objects.push(counter.object());
        session.revoke(counter)?;
    }

    // Each permission takes one message. One doorbell covers as many messages as the control queue holds.
    let asks: Vec<_> = objects.iter().map(|&object| Acquire::object(object).shared()).collect();
    let held = session.acquire_all(&asks)?.into_iter().collect::<Result<Vec<_>, Error>>()?;

    // All of these operations take one doorbell and one completion. Each operation has its own outcome.
    let now = session.now();
    let mut batch = session.client().batch();
    let mut operations = Vec::new();
    for (add, counter) in (1..).zip(&held) {
        operations.push(
            batch.access(now, Access::fetch_and_add(counter, 0, add)).map_err(|rejected| rejected.error)?,
        );
    }
    println!("posted {} operations with one doorbell", batch.post());
    for operation in operations {
        let before = session.wait(operation)?.result?;
        assert_eq!(before, 0);
    }

    // The revocations share one doorbell as well.
    session.revoke_all(held)?;
    for object in objects {
        session.free(object)?;
    }
    println!("{COUNTERS} counters, added to and let go");
    Ok(())
}
