//! Latency benchmarks: one operation at a time.

use super::course::Course;
use super::node_process::named_or_own;
use super::report::Report;
use super::{BenchError, BenchOptions, Name, pingpong, processors};
use crate::samples::Samples;
use portcullis::{Access, Allocate, AtDrop, Buffer, Error, Lifetime, Permission, Session};
use std::time::Instant;

const WARM_UP: u64 = 20_000;
/// Objects that the accesses go round: too many for a processor's first cache.
const OBJECTS: u64 = 1024;
/// Bytes of all objects of a session: it has fewer objects if they are large.
const BYTES: u64 = 64 << 20;
/// The lease of the permissions. They are held for the whole run, and renewed if the node's longest lifetime requires
/// it.
pub const LIFETIME: Lifetime = Lifetime::seconds(10);

/// Runs `read_lat`, `write_lat` or `atomic_lat`.
pub fn run(options: &BenchOptions) -> Result<(), BenchError> {
    let (_own, address) = named_or_own(options)?;
    let pingpong_rtt = pingpong::round_trip();
    processors::pin_client();
    let mut session = options.connect(&address)?;
    let size = if options.name == Name::AtomicLat { 8 } else { options.size };
    let mut objects = hold_objects(&mut session, objects_of(size), size)?;
    let mut buffer = session.buffer(u32::try_from(size).unwrap_or(u32::MAX))?;

    let mut warm_up = Course::warm_up(options, WARM_UP);
    let (mut samples, mut counted, mut round) = (Samples::new(), 0, 0);
    let mut course = None;
    while !course.as_mut().is_some_and(|course: &mut Course| course.over(counted)) {
        let place = round % objects.len();
        let object = renewed(&mut session, &mut objects, place, size)?;
        let before = Instant::now();
        buffer = one(&mut session, options.name, (object, before), buffer)?;
        let time = before.elapsed();
        round += 1;
        if course.is_some() {
            samples.add(time);
            counted += 1;
        } else if warm_up.over(round as u64) {
            course = Some(Course::new(options, options.name.text()));
        }
    }
    let elapsed = course.map_or_else(Default::default, |course| course.elapsed());
    let mut report = Report::new(options, counted, pingpong_rtt);
    report.times = Some(samples.summary());
    report.set_rate(crate::samples::mops(counted, elapsed));
    report.print(options.json);
    Ok(())
}

type ArenaBuffer = Buffer<portcullis::ArenaMemory>;

/// Performs one operation on an object, from the moment `started` until its outcome arrives.
pub fn one(
    session: &mut Session,
    name: Name,
    (object, started): (&Permission, Instant),
    buffer: ArenaBuffer,
) -> Result<ArenaBuffer, BenchError> {
    let now = session.at(started);
    let client = session.client();
    let (access, spare) = match name {
        Name::WriteLat => (Access::write(object, 0, buffer), None),
        Name::AtomicLat => (Access::fetch_and_add(object, 0, 1), Some(buffer)),
        _ => (Access::read(object, 0, buffer), None),
    };
    let operation = client.access(now, access).map_err(Error::from)?;
    let outcome = session.wait(operation)?;
    outcome.result?;
    outcome.buffer.or(spare).ok_or(BenchError::Session(Error::SessionLost))
}

/// Reads all of an object once, from the moment `started` on.
pub fn read_once(
    session: &mut Session,
    (object, started): (&Permission, Instant),
    buffer: ArenaBuffer,
) -> Result<ArenaBuffer, BenchError> {
    one(session, Name::ReadLat, (object, started), buffer)
}

/// Number of objects of this size that a session uses in turn: a power of two, and never fewer than a batch.
pub fn objects_of(size: u64) -> usize {
    let count = (BYTES / size.next_power_of_two()).clamp(super::rate::BATCH as u64, OBJECTS);
    usize::try_from(count).expect("they are few")
}

/// Memory that a node needs for the objects of this many sessions, including replaced objects, which live on for a
/// while.
pub fn memory_for(sessions: usize, size: u64) -> u64 {
    4 * (sessions * objects_of(size)) as u64 * size
}

/// Allocates objects and holds them.
pub fn hold_objects(session: &mut Session, count: usize, size: u64) -> Result<Vec<Permission>, BenchError> {
    (0..count).map(|_| hold(session, size)).collect()
}

fn hold(session: &mut Session, size: u64) -> Result<Permission, BenchError> {
    Ok(session.allocate(Allocate::bytes(size).lifetime(LIFETIME))?.at_drop(AtDrop::Expire))
}

/// The object, with a permission that lives long enough.
pub fn renewed<'a>(
    session: &mut Session,
    objects: &'a mut [Permission],
    index: usize,
    size: u64,
) -> Result<&'a Permission, BenchError> {
    // Checked once in a round: reading the clock takes a good part of the measured time.
    if index == 0 && objects[0].lease().deadline().since(session.now()) < Lifetime(LIFETIME.0 / 2) {
        for object in objects.iter_mut() {
            *object = hold(session, size)?;
        }
    }
    Ok(&objects[index])
}
