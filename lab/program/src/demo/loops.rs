//! The loops that client processes of the demo run.

use super::actor::{Failure, LIFETIME};
use super::figures::{Guilt, Latency, Traffic};
use crate::samples::Samples;
use portcullis::{Access, Allocate, Error, Permission, RemoteAddress, Session, Unchecked, VerbsEndpoint};
use std::time::{Duration, Instant};

const TRAFFIC_BYTES: usize = 256;
/// Operations between two looks for the order to halt.
const TRAFFIC_ROUND: u64 = 16;
/// Traffic ends by itself after this time: the permission's lifetime less a margin.
const TRAFFIC_MOST: Duration = Duration::from_secs(8);
/// Reads before the measurement, to warm up.
const WARM_UP: u32 = 2_000;
/// The longest time that a measurement may take.
const MEASURE_MOST: Duration = Duration::from_secs(5);
/// The longest time that the rebuild of a queue pair may take.
const REBUILD_MOST: Duration = Duration::from_secs(2);
/// Reads that measure the time of a read without violations.
const PLAIN_READS: u32 = 500;

/// Writes and reads back, and checks every byte, until `halt` returns true, or for `TRAFFIC_MOST` at most.
pub fn traffic(session: &mut Session, mut halt: impl FnMut() -> bool) -> Result<Traffic, Failure> {
    let block = session.allocate(Allocate::bytes(TRAFFIC_BYTES as u64).lifetime(LIFETIME))?;
    let mut times = Samples::new();
    let (mut operations, mut errors, mut wrong) = (0, 0, 0);
    let until = Instant::now() + TRAFFIC_MOST;
    let mut read = [0; TRAFFIC_BYTES];
    while !(operations % TRAFFIC_ROUND == 0 && (halt() || Instant::now() > until)) {
        let written = pattern(operations);
        let result = session.write(&block, 0, &written).and_then(|()| {
            let before = Instant::now();
            session.read(&block, 0, &mut read)?;
            times.add(before.elapsed());
            Ok(())
        });
        operations += 1;
        errors += u64::from(result.is_err());
        wrong += u64::from(result.is_ok() && read != written);
    }
    session.revoke_and_free(block)?;
    Ok(Traffic { operations, errors, wrong, typical_us: times.quantile(0.5), p99_us: times.quantile(0.99) })
}

fn pattern(operation: u64) -> [u8; TRAFFIC_BYTES] {
    let mut bytes = [0; TRAFFIC_BYTES];
    for (word, piece) in (0..).zip(bytes.chunks_exact_mut(8)) {
        piece.copy_from_slice(&operation.wrapping_mul(31).wrapping_add(word).to_le_bytes());
    }
    bytes
}

/// Reads beyond a permission, each time with a valid read right behind. The first read is refused and breaks the queue
/// pair; the second is executed on a spare.
pub fn offend(session: &mut Session, rounds: u32) -> Result<Guilt, Failure> {
    let block = session.allocate(Allocate::bytes(64).lifetime(LIFETIME))?;
    let mut plain = Samples::new();
    for _ in 0..PLAIN_READS {
        plain.add(timed_read(session, &block, 64)?);
    }
    let mut times = Samples::new();
    let mut guilt = Guilt {
        refused: 0,
        tried: rounds,
        replayed: 0,
        breaks: session.client().endpoint().size().data_queue_pairs > 0,
        switches: 0,
        recoveries: 0,
        interrupted_us: 0.0,
        interrupted_most_us: 0.0,
        read_us: plain.quantile(0.5),
    };
    for _ in 0..rounds {
        let (refused, interrupted) = offend_once(session, &block)?;
        guilt.refused += u32::from(refused);
        if let Some(interrupted) = interrupted {
            guilt.replayed += 1;
            times.add(interrupted);
        }
        if guilt.breaks {
            await_recoveries(session, guilt.refused.into())?;
        }
    }
    let counters = session.client().counters();
    (guilt.switches, guilt.recoveries) = (counters.switches, counters.recoveries);
    (guilt.interrupted_us, guilt.interrupted_most_us) = (times.quantile(0.5), times.quantile(1.0));
    Ok(guilt)
}

/// Returns whether the guilty read was refused, and the time from the refusal until the valid read succeeded.
fn offend_once(session: &mut Session, block: &Permission) -> Result<(bool, Option<Duration>), Failure> {
    let beyond = RemoteAddress(block.address().0 + block.length());
    let (bad, good) = (session.buffer(64)?, session.buffer(64)?);
    let now = session.now();
    let outside = Access::read(Unchecked::new(beyond, block.credential()), 0, bad);
    let begun = session.client().dangerous_access(outside);
    let guilty = begun.map_err(|rejected| rejected.error)?;
    let honest = session.client().access(now, Access::read(block, 0, good)).map_err(Error::from)?;
    let refused = session.wait(guilty)?.result == Err(Error::Violation);
    let before = Instant::now();
    let success = session.wait(honest)?.result.is_ok();
    Ok((refused, success.then(|| before.elapsed())))
}

/// Waits until the node has rebuilt this many queue pairs, so that a spare is ready again.
fn await_recoveries(session: &mut Session, recoveries: u64) -> Result<(), Failure> {
    let until = Instant::now() + REBUILD_MOST;
    while session.client().counters().recoveries < recoveries {
        if Instant::now() > until {
            return Err(Failure::Order(format!("a queue pair was not rebuilt within {REBUILD_MOST:?}")));
        }
        session.poll();
        std::thread::yield_now();
    }
    Ok(())
}

fn timed_read(session: &mut Session, block: &Permission, bytes: u32) -> Result<Duration, Failure> {
    let buffer = session.buffer(bytes)?;
    let now = session.now();
    let before = Instant::now();
    let begun = session.client().access(now, Access::read(block, 0, buffer)).map_err(Error::from)?;
    session.wait(begun)?.result?;
    Ok(before.elapsed())
}

/// Measures the latency of reads, one at a time.
pub fn measure(session: &mut Session, bytes: u32, reads: u32) -> Result<Latency, Failure> {
    let block = session.allocate(Allocate::bytes(bytes.into()).lifetime(LIFETIME))?;
    for _ in 0..WARM_UP {
        timed_read(session, &block, bytes)?;
    }
    let mut times = Samples::new();
    let mut done = 0;
    let until = Instant::now() + MEASURE_MOST;
    while done < reads && Instant::now() < until {
        times.add(timed_read(session, &block, bytes)?);
        done += 1;
    }
    session.revoke_and_free(block)?;
    let (typical_us, p99_us) = (times.quantile(0.5), times.quantile(0.99));
    Ok(Latency { bytes, reads: done, typical_us, p99_us })
}
