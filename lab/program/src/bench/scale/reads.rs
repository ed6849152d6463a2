//! Reads of random places: each client has a session and an object of its own, and many reads in flight.

use super::super::course::{Course, Length};
use super::super::ends::Ends;
use super::super::node_process::{NodeProcess, Setup};
use super::super::overlapped::{Accesses, Overlapped};
use super::super::rivals::{Measured, ROOM};
use super::super::side_by_side::{self, Clients};
use super::super::{BenchError, processors, rate, usual_outstanding};
use super::PROTECTION;
use crate::network::NicKind;
use crate::samples::Samples;
use portcullis::host::ThreadCount;
use portcullis::{Access, Allocate, ArenaMemory, Buffer, Lifetime, Permission, Session};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// Operations of a client before the measurement.
const WARM_UP: u64 = 200_000;
/// The lease of the objects. It outlasts any row, so that no renewal is measured.
const LEASE: Lifetime = Lifetime::seconds(12 * 60 * 60);
/// Bytes of one write while an object is filled.
const FILLED_AT_ONCE: usize = 1 << 20;
/// Bytes that a node lends in addition to twice the objects: size classes round up.
const MEMORY_BESIDE: u64 = 64 << 20;

/// The threads of a node beside its own.
#[derive(Clone, Copy)]
pub struct NodeThreads {
    pub copy_units: ThreadCount,
    pub engines: ThreadCount,
    pub udp_lanes: ThreadCount,
}

impl NodeThreads {
    /// Returns the options of `portcullis serve`.
    pub fn options(self) -> [String; 3] {
        [
            format!("--copy-units={}", self.copy_units),
            format!("--engines={}", self.engines),
            format!("--udp-lanes={}", self.udp_lanes),
        ]
    }
}

/// The reads of a row.
#[derive(Clone, Copy)]
pub struct Reads {
    pub nic: NicKind,
    pub threads: NodeThreads,
    pub size: u32,
    pub object_bytes: u64,
    pub length: Length,
}

impl Reads {
    /// Bytes of the arena of a client's session.
    pub fn arena_bytes(size: u64) -> u64 {
        rate::arena_bytes(size, usual_outstanding(size))
    }

    /// Measures this many clients of a node of their own.
    pub fn measure(self, clients: usize, name: &str) -> Result<Measured, BenchError> {
        let ends = Ends::on(self.nic);
        let lease = ["--longest-lifetime".to_owned(), format!("{}us", LEASE.0)];
        let more = ROOM.iter().map(|&option| option.to_owned());
        let more = more.chain(lease).chain(self.threads.options()).collect();
        let memory = MEMORY_BESIDE + 2 * clients as u64 * self.object_bytes;
        let node = NodeProcess::start(&Setup { memory: Some(memory), more, ..ends.setup(PROTECTION) })?;
        let readers = Readers { reads: self, address: node.address(), ends: &ends };
        side_by_side::run(&readers, clients, self.length, name)
    }
}

/// The clients of a row.
struct Readers<'a> {
    reads: Reads,
    address: &'a str,
    ends: &'a Ends,
}

impl Clients for Readers<'_> {
    type Ready = (Overlapped, Places);

    fn prepare(&self, number: usize) -> Result<Self::Ready, BenchError> {
        processors::pin_one_of_clients(number);
        let Reads { size, object_bytes, length, .. } = self.reads;
        let outstanding = usual_outstanding(size.into());
        let options = self.ends.session_options()?;
        let mut session = rate::session(self.address, (size.into(), outstanding), options)?;
        let object = session.allocate(Allocate::bytes(object_bytes).lifetime(LEASE))?;
        fill(&mut session, &object, object_bytes)?;
        let blocks = (object_bytes / u64::from(size)).max(1);
        let random = Pcg64Mcg::seed_from_u64(number as u64);
        let mut places = Places { object, blocks, size: size.into(), random };
        // Smaller batches than for a rate alone: while one is refilled, the others are under way.
        let mut overlapped = Overlapped::new(session, size, outstanding, (outstanding / 4).max(1))?;
        run(&mut overlapped, &mut places, &mut Course::warm_up_for(length, WARM_UP))?;
        // The row begins when all clients are ready, and counts no access that began before.
        overlapped.drain(&mut places, &mut Samples::new())?;
        Ok((overlapped, places))
    }

    fn measure(
        &self,
        (mut overlapped, mut places): Self::Ready,
        mut course: Course,
    ) -> Result<Measured, BenchError> {
        let (done, mut samples) = run(&mut overlapped, &mut places, &mut course)?;
        let done = done + overlapped.drain(&mut places, &mut samples)?;
        Ok(Measured::new(done, course.elapsed(), samples))
    }
}

fn run(
    overlapped: &mut Overlapped,
    places: &mut Places,
    course: &mut Course,
) -> Result<(u64, Samples), BenchError> {
    let (mut done, mut samples) = (0, Samples::new());
    while !course.over(done) {
        done += overlapped.turn(places, &mut samples)?;
    }
    Ok((done, samples))
}

/// Writes every byte of an object, so that all its pages exist.
fn fill(session: &mut Session, object: &Permission, bytes: u64) -> Result<(), BenchError> {
    let content = vec![0x5A; FILLED_AT_ONCE];
    for at in (0..bytes).step_by(FILLED_AT_ONCE) {
        let rest = usize::try_from(bytes - at).unwrap_or(usize::MAX).min(FILLED_AT_ONCE);
        session.write(object, at, &content[..rest])?;
    }
    Ok(())
}

/// Random blocks of an object.
struct Places {
    object: Permission,
    blocks: u64,
    size: u64,
    random: Pcg64Mcg,
}

impl Accesses for Places {
    fn prepare(&mut self, _: &mut Session, _: usize) -> Result<(), BenchError> {
        Ok(())
    }

    fn access(&mut self, _: usize, buffer: Buffer<ArenaMemory>) -> Access<&Permission, ArenaMemory> {
        Access::read(&self.object, self.random.random_range(0..self.blocks) * self.size, buffer)
    }
}
