//! Rate benchmarks: many operations in flight at once.

use super::course::Course;
use super::latency::{hold_objects, objects_of, renewed};
use super::node_process::named_or_own;
use super::overlapped::{Accesses, Overlapped};
use super::report::Report;
use super::{BenchError, BenchOptions, Look, Name, pingpong, processors};
use crate::samples::Samples;
use portcullis::{Access, ArenaMemory, Buffer, ClientConfig, Permission, Session, SessionOptions};

const WARM_UP: u64 = 200_000;
/// Operations that share a doorbell and a completion.
pub const BATCH: usize = 32;

/// A session with operations in flight.
struct LoadedSession<'a> {
    accesses: Objects<'a>,
    overlapped: Overlapped,
}

/// Accesses to a session's objects in turn.
struct Objects<'a> {
    options: &'a BenchOptions,
    objects: Vec<Permission>,
    next: usize,
    /// Destination to which fetched bytes are copied.
    copy: Vec<u8>,
}

/// Runs `read_rate` or `write_rate`.
pub fn run(options: &BenchOptions) -> Result<(), BenchError> {
    let (_own, address) = named_or_own(options)?;
    let pingpong_rtt = pingpong::round_trip();
    processors::pin_client();
    let mut sessions = (0..options.queue_pairs)
        .map(|_| LoadedSession::new(&address, options))
        .collect::<Result<Vec<_>, _>>()?;
    let mut samples = Samples::new();
    let mut turn = |samples: &mut Samples| -> Result<u64, BenchError> {
        sessions.iter_mut().map(|session| session.turn(samples)).sum()
    };
    let mut warm_up = Course::warm_up(options, WARM_UP);
    let mut done = 0;
    while !warm_up.over(done) {
        done += turn(&mut samples)?;
    }
    samples = Samples::new();
    let mut course = Course::new(options, options.name.text());
    let mut counted = 0;
    while !course.over(counted) {
        counted += turn(&mut samples)?;
    }
    let elapsed = course.elapsed();
    let mut report = Report::new(options, counted, pingpong_rtt);
    report.set_rate(crate::samples::mops(counted, elapsed));
    report.times = Some(samples.summary());
    report.outstanding = options.outstanding();
    report.queue_pairs = options.queue_pairs;
    report.print(options.json);
    Ok(())
}

impl<'a> LoadedSession<'a> {
    fn new(address: &str, options: &'a BenchOptions) -> Result<Self, BenchError> {
        let outstanding = options.outstanding();
        let mut session = session(address, (options.size, outstanding), options.session_options()?)?;
        let objects = hold_objects(&mut session, objects_of(options.size), options.size)?;
        let length = u32::try_from(options.size).unwrap_or(u32::MAX);
        let overlapped = Overlapped::new(session, length, outstanding, BATCH.min(outstanding))?;
        Ok(Self {
            accesses: Objects { options, objects, next: 0, copy: vec![0; length as usize] },
            overlapped,
        })
    }

    fn turn(&mut self, samples: &mut Samples) -> Result<u64, BenchError> {
        self.overlapped.turn(&mut self.accesses, samples)
    }
}

/// Opens a session with room for this many accesses of `size` bytes at once.
pub fn session(
    address: &str,
    (size, outstanding): (u64, usize),
    options: SessionOptions,
) -> Result<Session, BenchError> {
    let wanted = SessionOptions {
        arena_bytes: arena_bytes(size, outstanding),
        client: ClientConfig { operations_max: 4096, ..ClientConfig::default() },
        ..options
    };
    Ok(portcullis::connect_with(address, wanted)?)
}

/// Bytes of the arena of such a session.
pub fn arena_bytes(size: u64, outstanding: usize) -> u64 {
    (4 << 20) + 2 * size.next_power_of_two().max(64) * outstanding as u64
}

impl Accesses for Objects<'_> {
    fn prepare(&mut self, session: &mut Session, count: usize) -> Result<(), BenchError> {
        self.next = (self.next + count) % self.objects.len();
        // One renewal per turn is enough: permissions live for seconds.
        renewed(session, &mut self.objects, self.next - self.next % count, self.options.size)?;
        Ok(())
    }

    fn access(&mut self, index: usize, buffer: Buffer<ArenaMemory>) -> Access<&Permission, ArenaMemory> {
        let object = &self.objects[(self.next + index) % self.objects.len()];
        match self.options.name {
            Name::WriteRate => Access::write(object, 0, buffer),
            _ => Access::read(object, 0, buffer),
        }
    }

    fn ended(&mut self, buffer: &Buffer<ArenaMemory>) {
        if let Some(look) = self.options.look {
            look_at(look, buffer, &mut self.copy);
        }
    }
}

fn look_at(look: Look, buffer: &Buffer<ArenaMemory>, copy: &mut [u8]) {
    let sum = |bytes: &[u8]| {
        let (words, rest) = bytes.as_chunks::<8>();
        let words = words.iter().fold(0u64, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)));
        rest.iter().fold(words, |sum, &byte| sum.wrapping_add(byte.into()))
    };
    std::hint::black_box(match look {
        Look::InPlace => sum(&buffer.bytes()),
        Look::Copied => {
            buffer.read(0, copy);
            sum(copy)
        }
    });
}
