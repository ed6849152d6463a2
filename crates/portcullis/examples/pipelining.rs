//! Reads that overlap: as many as the queue holds are under way, and the program reads each result in place when it
//! arrives.
//!
//! ```text
//! cargo run --release --example pipelining                               a node of its own
//! cargo run --release --example pipelining -- shm:portcullis.sock       a node that runs
//! ```

mod place;

use portcullis::{Access, Allocate, Error, Lifetime};
use std::time::Instant;

const READ_BYTES: u32 = 4096;
const OBJECT_BYTES: u64 = 16 << 20;
/// Reads that are under way at once.
const DEPTH: usize = 32;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut session, _node) = place::session()?;
    let object = session.allocate(Allocate::bytes(OBJECT_BYTES).lifetime(Lifetime::seconds(5)))?;
    session.write(&object, 0, &vec![1; usize::try_from(OBJECT_BYTES)?])?;

    let started = Instant::now();
    let mut buffers = (0..DEPTH).map(|_| session.buffer(READ_BYTES)).collect::<Result<Vec<_>, Error>>()?;
    let mut next = (0..OBJECT_BYTES).step_by(READ_BYTES as usize);
    let (mut ended, mut under_way, mut sum) = (Vec::new(), 0, 0u64);
    loop {
        let now = session.now();
        while let Some(buffer) = buffers.pop() {
            let Some(offset) = next.next() else { break };
            session.client().access(now, Access::read(&object, offset, buffer)).map_err(Error::from)?;
            under_way += 1;
        }
        if under_way == 0 {
            break;
        }
        // Waits for at least one result and takes all that have arrived.
        session.wait_until(|client| {
            client.drain(&mut ended);
            (!ended.is_empty()).then_some(())
        })?;
        for (_, outcome) in ended.drain(..) {
            outcome.result?;
            under_way -= 1;
            if let Some(buffer) = outcome.buffer {
                sum += buffer.bytes().iter().map(|&byte| u64::from(byte)).sum::<u64>();
                buffers.push(buffer);
            }
        }
    }
    assert_eq!(sum, OBJECT_BYTES);
    let gigabytes = OBJECT_BYTES as f64 / 1e9;
    println!(
        "{OBJECT_BYTES} bytes, {DEPTH} reads at a time: {:.2} GB/s",
        gigabytes / started.elapsed().as_secs_f64()
    );
    Ok(())
}
