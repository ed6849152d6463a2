//! Rate benchmarks: many operations in flight at once.

use super::course::Course;
use super::latency::{hold_objects, objects_of, renewed};
use super::node_process::named_or_own;
use super::pause::give_way;
use super::report::Report;
use super::{BenchError, BenchOptions, Look, Name, pingpong, processors};
use crate::samples::Samples;
use portcullis::{
    Access, ArenaMemory, Buffer, ClientConfig, Operation, Outcome, Permission, Session, SessionOptions,
};
use std::collections::VecDeque;
use std::time::Instant;

const WARM_UP: u64 = 200_000;
/// Operations that share a doorbell and a completion.
pub const BATCH: usize = 32;

/// A session with operations in flight.
struct LoadedSession {
    session: Session,
    objects: Vec<Permission>,
    next: usize,
    buffers: Vec<Buffer<ArenaMemory>>,
    /// Time at which each batch was posted.
    batches: VecDeque<Instant>,
    finished: Vec<(Operation, Outcome<ArenaMemory>)>,
    outstanding: usize,
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
        sessions.iter_mut().map(|session| session.turn(options, samples)).sum()
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

impl LoadedSession {
    fn new(address: &str, options: &BenchOptions) -> Result<Self, BenchError> {
        let room = options.size.next_power_of_two().max(64) * options.outstanding() as u64;
        let wanted = SessionOptions {
            arena_bytes: (4 << 20) + 2 * room,
            client: ClientConfig { operations_max: 4096, ..ClientConfig::default() },
            ..options.session_options()?
        };
        let mut session = portcullis::connect_with(address, wanted)?;
        let objects = hold_objects(&mut session, objects_of(options.size), options.size)?;
        let length = u32::try_from(options.size).unwrap_or(u32::MAX);
        let buffers =
            (0..options.outstanding()).map(|_| session.buffer(length)).collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            session,
            objects,
            next: 0,
            buffers,
            batches: VecDeque::new(),
            finished: Vec::with_capacity(options.outstanding()),
            outstanding: 0,
            copy: vec![0; length as usize],
        })
    }

    /// Takes the operations that have ended and posts as many again. Returns how many have ended.
    fn turn(&mut self, options: &BenchOptions, samples: &mut Samples) -> Result<u64, BenchError> {
        if self.session.poll() == 0 {
            give_way();
        }
        self.session.client().drain(&mut self.finished);
        let ended = self.finished.len();
        for (_, outcome) in self.finished.drain(..) {
            outcome.result?;
            if let (Some(look), Some(buffer)) = (options.look, &outcome.buffer) {
                look_at(look, buffer, &mut self.copy);
            }
            self.buffers.extend(outcome.buffer);
        }
        self.outstanding -= ended;
        let batch = BATCH.min(options.outstanding());
        for _ in 0..ended / batch {
            if let Some(posted) = self.batches.pop_front() {
                samples.add(posted.elapsed());
            }
        }
        while self.buffers.len() >= batch {
            self.post(options, batch)?;
        }
        Ok(ended as u64)
    }

    fn post(&mut self, options: &BenchOptions, count: usize) -> Result<(), BenchError> {
        let now = self.session.now();
        self.next = (self.next + count) % self.objects.len();
        // One renewal per turn is enough: permissions live for seconds.
        renewed(&mut self.session, &mut self.objects, self.next - self.next % count, options.size)?;
        let mut batch = self.session.client().batch();
        for index in 0..count {
            let Some(buffer) = self.buffers.pop() else { break };
            let object = &self.objects[(self.next + index) % self.objects.len()];
            let added = match options.name {
                Name::WriteRate => batch.access(now, Access::write(object, 0, buffer)),
                _ => batch.access(now, Access::read(object, 0, buffer)),
            };
            added.map_err(|rejected| rejected.error)?;
        }
        self.outstanding += batch.post();
        self.batches.push_back(Instant::now());
        Ok(())
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
