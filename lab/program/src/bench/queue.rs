//! `portcullis-lab bench queue`: pushes and pops of a queue, with each protection mechanism in turns (Patronus §7.3.2).

use super::course::{Course, Length};
use super::pingpong::RoundTrip;
use super::report::print_json;
use super::rivals::{Comparison, Figures, Measured, Rival, compare};
use super::side_by_side::{self, Clients};
use super::{BenchError, pingpong, processors};
use crate::output::say;
use crate::samples::Samples;
use clap::Args;
use portcullis::{Lifetime, ObjectRef, Session, SessionOptions, connect_with};
use portcullis_structures::Pipeline;
use portcullis_structures::queue::{ENTRY_BYTES_MAX, Queue, QueueOptions};
use serde::Serialize;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Instant;

const EXAMPLES: &str = "\
Examples:
  portcullis-lab bench queue            # 64-byte entries, one client
  portcullis-lab bench queue --clients 4 --depth 16
  portcullis-lab bench queue --entry-bytes 64,4KiB -D 10 --json
  portcullis-lab bench queue --depth 1  # latency, one at a time
  portcullis-lab bench queue --claims   # claims beside pops

Each client pushes an entry and pops one, again and again. With --claims there
are rows for a queue whose entries are claimed and acknowledged, both of which
count as one operation, as a pop does. Each mechanism has a node of its own and
takes turns with the others. Rates, times and ratios are medians of the rounds;
ratios are to the first mechanism in the same round.";

/// The session's arena: room for the buffers of all operations in flight.
const ARENA_BYTES: u64 = 64 << 20;
/// Bytes that a node lends. Consumed segments are freed when the last lease over them has ended.
const NODE_MEMORY: u64 = 2 << 30;
/// Operations that a client has under way at once, by default.
const DEPTH: u32 = 16;
/// Entries of a segment.
const SEGMENT_SLOTS: u32 = 1024;
/// Operations of a client before the measurement.
const WARM_UP: u64 = 50_000;
/// One in this many overlapping operations is timed: two readings of the clock take a while.
const TIMED_ONE_IN: u64 = 16;
/// The lease of a claim: no claim of a benchmark ends by itself.
const CLAIMED_FOR: Lifetime = Lifetime::seconds(60);
/// The unit of memory over which readers and writers hold permissions.
const GRAIN: &str = "segment";

/// The measurement, and how it is done.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct BenchQueueOptions {
    /// Bytes of an entry.
    #[arg(long, value_delimiter = ',', default_value = "64", value_name = "SIZES", value_parser = entry_bytes)]
    entry_bytes: Vec<u32>,
    /// Clients, each with a session and a thread of its own.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    clients: u32,
    /// Operations that a client has under way at once.
    #[arg(long, default_value_t = DEPTH, value_parser = clap::value_parser!(u32).range(1..=256))]
    depth: u32,
    /// Measure a queue of claims, too.
    #[arg(long)]
    claims: bool,
    #[command(flatten)]
    comparison: Comparison,
}

/// The way in which entries are consumed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Workload {
    PushPop,
    PushClaim,
}

impl Workload {
    fn name(self) -> &'static str {
        match self {
            Self::PushPop => "push-pop",
            Self::PushClaim => "push-claim",
        }
    }
}

fn entry_bytes(text: &str) -> Result<u32, String> {
    let bytes = crate::size::parse(text)?;
    let bytes = u32::try_from(bytes).ok().filter(|bytes| (8..=ENTRY_BYTES_MAX).contains(&(*bytes as usize)));
    bytes.ok_or_else(|| "an entry has 8 bytes to 64KiB: it begins with its number".to_owned())
}

/// The queue under one mechanism.
#[derive(Debug, Serialize)]
struct Row {
    workload: &'static str,
    value_bytes: u32,
    grain: &'static str,
    clients: u32,
    depth: u32,
    #[serde(flatten)]
    figures: Figures,
}

#[derive(Debug, Serialize)]
struct Report {
    benchmark: &'static str,
    nic: &'static str,
    rounds: usize,
    pingpong_rtt: RoundTrip,
    rows: Vec<Row>,
}

/// A queue on a node. The session that made it keeps its memory.
struct Made {
    head: ObjectRef,
    entry_bytes: u32,
    workload: Workload,
    _keeper: Session,
}

/// Runs `queue`.
pub fn run(options: &BenchQueueOptions) -> Result<(), BenchError> {
    let BenchQueueOptions { clients, depth, comparison, .. } = options;
    comparison.check()?;
    let mut report = Report {
        benchmark: "queue",
        nic: comparison.ends.nic.name(),
        rounds: comparison.rounds,
        pingpong_rtt: pingpong::round_trip(),
        rows: Vec::new(),
    };
    let workloads = [Workload::PushPop].into_iter().chain(options.claims.then_some(Workload::PushClaim));
    for (&value_bytes, workload) in
        options.entry_bytes.iter().flat_map(|bytes| workloads.clone().map(move |workload| (bytes, workload)))
    {
        let make = |address: &str, _| options.make(address, value_bytes, workload);
        let mut rivals = comparison.rivals(NODE_MEMORY, make)?;
        let figures = compare(&mut rivals, comparison.rounds, |rival: &mut Rival<Made>, round| {
            let name = format!("{round}: {}, {value_bytes} B, {}", workload.name(), rival.mechanism);
            options.measure(rival, &name)
        })?;
        report.rows.extend(figures.into_iter().map(|figures| Row {
            workload: workload.name(),
            value_bytes,
            grain: GRAIN,
            clients: *clients,
            depth: *depth,
            figures,
        }));
    }
    if comparison.json {
        print_json(&report);
        return Ok(());
    }
    say(format_args!(
        "Queue: {clients} clients with {depth} operations under way each, medians of {} rounds; pingpong RTT {}",
        report.rounds, report.pingpong_rtt
    ));
    let rows =
        report.rows.iter().map(|row| ([row.workload.to_owned(), row.value_bytes.to_string()], &row.figures));
    say(Figures::table(["workload", "entry [B]"], rows));
    Ok(())
}

impl BenchQueueOptions {
    fn session(&self, address: &str) -> Result<Session, BenchError> {
        let wanted = SessionOptions { arena_bytes: ARENA_BYTES, ..self.comparison.ends.session_options()? };
        Ok(connect_with(address, wanted)?)
    }

    fn make(&self, address: &str, entry_bytes: u32, workload: Workload) -> Result<Made, BenchError> {
        let pipeline = Rc::new(Pipeline::new(self.session(address)?));
        let wanted = QueueOptions {
            segment_slots: SEGMENT_SLOTS,
            cell_bytes: entry_bytes.next_multiple_of(8),
            claims: workload == Workload::PushClaim,
            ..QueueOptions::default()
        };
        let queue = pipeline.block_on(Queue::create(&pipeline, &wanted))?;
        let head = queue.head();
        drop(queue);
        let keeper = Rc::into_inner(pipeline).map(Pipeline::into_session);
        let keeper = keeper.expect("the queue was the only other user of the pipeline");
        Ok(Made { head, entry_bytes, workload, _keeper: keeper })
    }

    /// Runs all clients side by side.
    fn measure(&self, rival: &Rival<Made>, name: &str) -> Result<Measured, BenchError> {
        let (address, Made { head, entry_bytes, workload, .. }) = (rival.address(), &rival.state);
        let clients = self.clients as usize;
        let length = self.comparison.turn();
        let bytes = *entry_bytes as usize;
        let share = length.share(clients);
        let client =
            Client { options: self, address, head: *head, bytes, workload: *workload, length: share };
        side_by_side::run(&client, clients, length, name)
    }
}

/// A queue on a node of its own, under one mechanism, which several numbers of clients use one after another.
pub struct QueueAlone {
    options: BenchQueueOptions,
    rival: Rival<Made>,
}

impl QueueAlone {
    /// Entries of a segment of the queue.
    pub const SEGMENT_SLOTS: u32 = SEGMENT_SLOTS;

    /// Starts the node and makes the queue.
    pub fn start(comparison: Comparison, entry_bytes: u32) -> Result<Self, BenchError> {
        let options = BenchQueueOptions {
            entry_bytes: vec![entry_bytes],
            clients: 1,
            depth: DEPTH,
            claims: false,
            comparison,
        };
        let make = |address: &str, _| options.make(address, entry_bytes, Workload::PushPop);
        let mut rivals = options.comparison.rivals(NODE_MEMORY, make)?;
        let rival = rivals.pop().expect("there is one mechanism");
        Ok(Self { options, rival })
    }

    /// Measures pushes and pops of this many clients.
    pub fn measure(&mut self, clients: u32, name: &str) -> Result<Measured, BenchError> {
        self.options.clients = clients;
        self.options.measure(&self.rival, name)
    }
}

/// The clients of one turn, each of which pushes and pops.
#[derive(Clone, Copy)]
struct Client<'a> {
    options: &'a BenchQueueOptions,
    address: &'a str,
    head: ObjectRef,
    bytes: usize,
    workload: Workload,
    /// The length of one client's share.
    length: Length,
}

impl Clients for Client<'_> {
    type Ready = (Rc<Pipeline>, Queue);

    fn prepare(&self, number: usize) -> Result<Self::Ready, BenchError> {
        processors::pin_one_of_clients(number);
        let pipeline = Rc::new(Pipeline::new(self.options.session(self.address)?));
        let queue = pipeline.block_on(Queue::open(&pipeline, self.head))?;
        Work::new(*self, &queue, Course::warm_up_for(self.length, WARM_UP)).run(&pipeline)?;
        Ok((pipeline, queue))
    }

    fn measure(&self, (pipeline, queue): Self::Ready, course: Course) -> Result<Measured, BenchError> {
        let work = Work::new(*self, &queue, course);
        work.run(&pipeline)?;
        let elapsed = work.course.borrow().elapsed();
        Ok(Measured::new(work.done.get(), elapsed, work.times.into_inner()))
    }
}

/// The operations of one client, several of them in flight at once.
struct Work<'a> {
    client: Client<'a>,
    queue: &'a Queue,
    course: RefCell<Course>,
    begun: Cell<u64>,
    done: Cell<u64>,
    times: RefCell<Samples>,
}

impl<'a> Work<'a> {
    fn new(client: Client<'a>, queue: &'a Queue, course: Course) -> Self {
        let (begun, done, times) = (Cell::new(0), Cell::new(0), RefCell::new(Samples::new()));
        Self { client, queue, course: RefCell::new(course), begun, done, times }
    }

    fn run(&self, pipeline: &Pipeline) -> Result<(), BenchError> {
        let depth = self.client.options.depth as usize;
        let mut failed = None;
        pipeline.run(depth, (0..depth).map(|_| self.task()), |result: Result<(), BenchError>| {
            failed = failed.take().or(result.err());
        });
        failed.map_or(Ok(()), Err)
    }

    /// Pushes and pops in turn. A popped entry must be whole; any client may have pushed it.
    async fn task(&self) -> Result<(), BenchError> {
        let mut entry = vec![0x5A; self.client.bytes];
        while let Some(number) = self.next() {
            entry[..8].copy_from_slice(&number.to_le_bytes());
            self.timed(number, async || Ok(self.queue.push(&entry).await?)).await?;
            let Some(number) = self.next() else { return Ok(()) };
            self.timed(number, async || {
                let popped = match self.client.workload {
                    Workload::PushPop => self.queue.pop().await?,
                    Workload::PushClaim => self.claimed().await?,
                };
                let wrong =
                    popped.is_some_and(|popped| popped.len() != entry.len() || popped[8..] != entry[8..]);
                if wrong { Err(BenchError::WrongEntry) } else { Ok(()) }
            })
            .await?;
        }
        Ok(())
    }

    /// Claims an entry, acknowledges it, and returns it.
    async fn claimed(&self) -> Result<Option<Vec<u8>>, BenchError> {
        let Some(claim) = self.queue.claim(CLAIMED_FOR).await? else { return Ok(None) };
        self.queue.acknowledge(claim.id).await?;
        Ok(Some(claim.entry))
    }

    fn next(&self) -> Option<u64> {
        let number = self.begun.get();
        if self.course.borrow_mut().over(number) {
            return None;
        }
        self.begun.set(number + 1);
        Some(number)
    }

    async fn timed(
        &self,
        number: u64,
        act: impl AsyncFnOnce() -> Result<(), BenchError>,
    ) -> Result<(), BenchError> {
        let timed_one_in = if self.client.options.depth == 1 { 1 } else { TIMED_ONE_IN };
        // Pushes have even numbers in a task that is alone: both kinds are timed.
        let before = (number % timed_one_in < 2).then(Instant::now);
        act().await?;
        if let Some(before) = before {
            self.times.borrow_mut().add(before.elapsed());
        }
        self.done.set(self.done.get() + 1);
        Ok(())
    }
}
