//! `portcullis-lab bench chunks`: memory allocated and freed by chains on the NIC, and by messages to the node's CPU
//! (OneSidedMW).

use super::course::{Course, Length};
use super::latency::LIFETIME;
use super::pause::give_way;
use super::permissions::Lives;
use super::pingpong::RoundTrip;
use super::report::print_json;
use super::turns::Spread;
use super::{BenchError, pingpong, processors};
use crate::output::say;
use crate::samples::{Samples, mops};
use clap::Args;
use comfy_table::{Table, presets};
use portcullis::host::{Host, HostConfig, ProcessorList};
use portcullis::{
    Allocate, Answer, BarePermission, Call, ChunkLimits, ControlRequest, Error, NodeConfig, NotBegun, Quota,
    Session, SessionOptions,
};
use serde::Serialize;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  portcullis-lab bench chunks            # 4-KiB chunks, 16 requests under way
  portcullis-lab bench chunks --depth 1  # latency, one at a time
  portcullis-lab bench chunks --chunk-bytes 64KiB -D 10 --json

A round measures each row once; rates, times and ratios are medians of the
rounds. A busy node also serves --busy-clients others, each of which always has
48 requests for permissions under way: more than its processor can serve. An
allocation by message waits behind them. `node_turns` counts the turns of the
node's CPU while 100,000 chunks were allocated and freed with its turns held: 0.";

/// Allocations of a burst, before all of them are freed.
const BURST: usize = 1024;
/// Chunks allocated and freed while the node's own turns are held.
const HELD: usize = 100_000;
const ROUNDS: usize = 5;
/// Objects of the client that keeps the node busy.
const NOISE_BYTES: u64 = 64;
/// Polls of the measuring session between two polls of a busy session: the node has enough work meanwhile.
const POLLS_PER_NOISE: u32 = 2;

/// The measurement, and how it is done.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct BenchChunksOptions {
    /// Bytes of a chunk, and of an object.
    #[arg(long, default_value = "4KiB", value_name = "SIZE", value_parser = chunk_bytes)]
    chunk_bytes: u64,
    /// Requests that the client has under way at once.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=16))]
    depth: u32,
    /// Other clients of a busy node.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=64))]
    busy_clients: u32,
    /// Chunks to allocate and free, in all rounds of a row together.
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u64).range(1..))]
    iterations: Option<u64>,
    /// Run for this many seconds instead [default: one for each row].
    #[arg(short = 'D', long, conflicts_with = "iterations", value_parser = clap::value_parser!(u64).range(1..))]
    duration: Option<u64>,
    /// Print one JSON object instead of the table.
    #[arg(long)]
    json: bool,
}

fn chunk_bytes(text: &str) -> Result<u64, String> {
    let bytes = crate::size::parse(text)?;
    let is_sound = bytes.is_multiple_of(8) && (8..=1 << 20).contains(&bytes);
    is_sound.then_some(bytes).ok_or_else(|| "a chunk has 8 bytes to 1MiB, a multiple of 8".to_owned())
}

/// The way in which memory is allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Chain,
    Message,
}

impl Way {
    fn allocation(self, bytes: u64) -> ControlRequest {
        match self {
            Self::Chain => ControlRequest::AllocateChunk,
            Self::Message => Allocate::bytes(bytes).lifetime(LIFETIME).into(),
        }
    }

    fn end_of(self, permission: BarePermission) -> ControlRequest {
        match self {
            Self::Chain => ControlRequest::FreeChunk(permission),
            Self::Message => ControlRequest::Revoke { permission, free: true },
        }
    }
}

/// The requests of one kind in one setting.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    /// In millions a second.
    mops: f64,
    /// From the request to its answer, in microseconds.
    p50: f64,
    p99: f64,
}

#[derive(Debug, Serialize)]
struct Report {
    benchmark: &'static str,
    nic: &'static str,
    chunk_bytes: u64,
    depth: u32,
    rounds: usize,
    pingpong_rtt: RoundTrip,
    rows: Vec<Row>,
    busy_clients: u32,
    /// Control messages of all clients that the busy node served, in millions a second.
    busy_messages_mops: f64,
    /// Ratio of the rates of allocation by chain and by message, on an idle and on a busy node.
    chain_to_message_idle: f64,
    chain_to_message_busy: f64,
    /// Turns of the node's CPU while chunks were allocated and freed with its turns held.
    node_turns: u64,
    held_chunks: usize,
}

/// One kind of request in one round.
struct Half {
    count: u64,
    elapsed: Duration,
    samples: Samples,
}

impl Half {
    fn new() -> Self {
        Self { count: 0, elapsed: Duration::ZERO, samples: Samples::new() }
    }
}

/// The client that measures, and the clients that keep the node busy.
struct Bench {
    session: Session,
    bytes: u64,
    depth: usize,
    noise: Vec<(Session, Lives)>,
    next_noise: usize,
    is_busy: bool,
    polls: u32,
}

impl Bench {
    fn poll(&mut self) -> Result<(), BenchError> {
        if self.session.poll() == 0 {
            give_way();
        }
        self.polls += 1;
        if self.is_busy && self.polls.is_multiple_of(POLLS_PER_NOISE) {
            self.next_noise = (self.next_noise + 1) % self.noise.len();
            let (session, lives) = &mut self.noise[self.next_noise];
            lives.turn(session)?;
        }
        Ok(())
    }

    /// Begins requests while there is room, and takes answers, until all answers have arrived.
    fn burst<T>(
        &mut self,
        half: &mut Half,
        requests: impl ExactSizeIterator<Item = ControlRequest>,
        mut take: impl FnMut(Answer) -> T,
    ) -> Result<(), BenchError> {
        let started = Instant::now();
        let mut under_way: VecDeque<(Call, Instant)> = VecDeque::new();
        let (mut ended, count) = (0, requests.len());
        let (mut requests, mut next) = (requests, None);
        while ended < count {
            while under_way.len() < self.depth
                && let Some(request) = next.take().or_else(|| requests.next())
            {
                let at = Instant::now();
                let now = self.session.at(at);
                match self.session.client().call(now, request) {
                    Ok(call) => under_way.push_back((call, at)),
                    Err(NotBegun { ask, error: Error::QueueFull { .. } }) => {
                        next = Some(*ask);
                        break;
                    }
                    Err(refused) => return Err(refused.error.into()),
                }
            }
            self.poll()?;
            while let Some(&(call, asked)) = under_way.front() {
                let Some(answer) = self.session.client().take_call(call) else { break };
                under_way.pop_front();
                half.samples.add(asked.elapsed());
                take(answer?);
                ended += 1;
            }
        }
        half.count += count as u64;
        half.elapsed += started.elapsed();
        Ok(())
    }

    /// Allocates a burst and frees it.
    fn lives(&mut self, way: Way, halves: &mut [Half; 2], count: usize) -> Result<(), BenchError> {
        let bytes = self.bytes;
        let mut held = Vec::with_capacity(count);
        let [allocated, freed] = halves;
        let allocations = (0..count).map(|_| way.allocation(bytes));
        self.burst(allocated, allocations, |answer| {
            if let Answer::Granted(permission) = answer {
                held.push(permission);
            }
        })?;
        // The latest is freed first.
        self.burst(freed, held.into_iter().rev().map(|permission| way.end_of(permission)), drop)
    }

    fn measure(&mut self, way: Way, length: Length, what: &str) -> Result<[Half; 2], BenchError> {
        let mut halves = [Half::new(), Half::new()];
        let mut course = Course::of(length, what);
        while !course.over(halves[1].count) {
            self.lives(way, &mut halves, BURST)?;
        }
        Ok(halves)
    }

    /// Waits until the busy clients' requests have ended.
    fn quiet(&mut self) -> Result<(), BenchError> {
        self.is_busy = false;
        self.noise.iter_mut().try_for_each(|(session, lives)| lives.drain(session))
    }
}

/// Measures all rows.
pub fn run(options: &BenchChunksOptions) -> Result<(), BenchError> {
    let pingpong_rtt = pingpong::round_trip();
    let host = start(options)?;
    processors::pin_client();
    let connect = |tenant| host.connect(tenant, SessionOptions::default());
    let mut session = connect("orange")?;
    session.join_chunks()?;
    let mut noise = Vec::new();
    for _ in 0..options.busy_clients {
        let mut other = connect("blue")?;
        let lives = Lives::over_new_objects(&mut other, NOISE_BYTES)?;
        noise.push((other, lives));
    }
    let mut bench = Bench {
        session,
        bytes: options.chunk_bytes,
        depth: options.depth as usize,
        noise,
        next_noise: 0,
        is_busy: false,
        polls: 0,
    };
    let length = Length::new(options.iterations, options.duration).part(ROUNDS);
    let mut figures = Figures::default();
    for _ in 0..ROUNDS {
        for is_busy in [false, true] {
            bench.is_busy = is_busy;
            let (started, before) = (Instant::now(), host.counters().control_messages);
            for way in [Way::Chain, Way::Message] {
                let halves = bench.measure(way, length, &name("allocate", way, is_busy))?;
                figures.add(way, is_busy, &halves);
            }
            if is_busy {
                let served = host.counters().control_messages - before;
                figures.served.push(mops(served, started.elapsed()));
            }
        }
        bench.quiet()?;
    }
    let node_turns = without_cpu(&host, &mut bench)?;
    let report = figures.report(options, pingpong_rtt, node_turns);
    if options.json {
        print_json(&report)
    } else {
        print_table(&report)
    }
    Ok(())
}

/// Starts a node in this process, with its thread on the other processor.
fn start(options: &BenchChunksOptions) -> Result<Host, BenchError> {
    let count = 2 * BURST as u64;
    let chunks = ChunkLimits { chunks: count, chunk_bytes: options.chunk_bytes, client_max: count };
    // An object takes more bytes than a chunk: it has a header and a size class.
    let pool_bytes = (4 * count * (options.chunk_bytes + 64)).max(64 << 20);
    // The busy clients are of one tenant, and have many objects each.
    let quota = Quota { objects_max: u64::MAX, ..Quota::default() };
    let node = NodeConfig { pool_bytes, quota, chunks: Some(chunks), ..NodeConfig::default() };
    let processors = processors::pair().map_or_else(ProcessorList::default, |(node, _)| node.into());
    let host = Host::start(HostConfig { node, processors, ..HostConfig::default() });
    host.map_err(|error| BenchError::Options(error.to_string()))
}

/// Allocates and frees with the node's own turns held. Returns the number of turns that the node had.
fn without_cpu(host: &Host, bench: &mut Bench) -> Result<u64, BenchError> {
    host.hold_turns(true);
    let before = host.counters().turns;
    let mut halves = [Half::new(), Half::new()];
    let mut left = HELD;
    let mut done = Ok(());
    while left > 0 && done.is_ok() {
        let count = left.min(BURST);
        done = bench.lives(Way::Chain, &mut halves, count);
        left -= count;
    }
    let turns = host.counters().turns - before;
    host.hold_turns(false);
    done.map(|()| turns)
}

fn name(what: &str, way: Way, is_busy: bool) -> String {
    let way = match way {
        Way::Chain => "chain",
        Way::Message => "message",
    };
    format!("{what} by {way}, {}", if is_busy { "busy" } else { "idle" })
}

/// The rounds' figures of one row.
#[derive(Default)]
struct Rounds {
    mops: Vec<f64>,
    p50: Vec<f64>,
    p99: Vec<f64>,
}

impl Rounds {
    fn row(&self, name: String) -> Row {
        let median = |of: &[f64]| Spread::of(of.iter().copied()).median;
        Row { name, mops: median(&self.mops), p50: median(&self.p50), p99: median(&self.p99) }
    }
}

/// Rounds by the node's load, the way of allocation, and the kind of request.
#[derive(Default)]
struct Figures {
    rows: [[[Rounds; 2]; 2]; 2],
    /// Control messages of the busy node, in millions a second.
    served: Vec<f64>,
}

impl Figures {
    fn add(&mut self, way: Way, is_busy: bool, halves: &[Half; 2]) {
        for (half, rounds) in halves.iter().zip(&mut self.rows[usize::from(is_busy)][way as usize]) {
            rounds.mops.push(mops(half.count, half.elapsed));
            rounds.p50.push(half.samples.quantile(0.5));
            rounds.p99.push(half.samples.quantile(0.99));
        }
    }

    /// The median of the ratios of allocations within a round.
    fn ratio(&self, is_busy: bool) -> f64 {
        let [chain, message] = &self.rows[usize::from(is_busy)];
        let rounds = chain[0].mops.iter().copied().zip(message[0].mops.iter().copied());
        Spread::of_ratios(rounds).median
    }

    fn report(&self, options: &BenchChunksOptions, pingpong_rtt: RoundTrip, node_turns: u64) -> Report {
        let mut rows = Vec::new();
        for is_busy in [false, true] {
            for (at, what) in ["allocate", "free"].into_iter().enumerate() {
                for way in [Way::Chain, Way::Message] {
                    let rounds = &self.rows[usize::from(is_busy)][way as usize][at];
                    rows.push(rounds.row(name(what, way, is_busy)));
                }
            }
        }
        Report {
            benchmark: "chunks",
            nic: "software",
            chunk_bytes: options.chunk_bytes,
            depth: options.depth,
            rounds: ROUNDS,
            pingpong_rtt,
            rows,
            busy_clients: options.busy_clients,
            busy_messages_mops: Spread::of(self.served.iter().copied()).median,
            chain_to_message_idle: self.ratio(false),
            chain_to_message_busy: self.ratio(true),
            node_turns,
            held_chunks: HELD,
        }
    }
}

fn print_table(report: &Report) {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["", "Mops", "p50 [usec]", "p99 [usec]"]);
    for Row { name, mops, p50, p99 } in &report.rows {
        table.add_row([name.clone(), format!("{mops:.3}"), format!("{p50:.2}"), format!("{p99:.2}")]);
    }
    let Report { chunk_bytes, depth, pingpong_rtt, held_chunks, node_turns, .. } = report;
    say(format_args!(
        "Chunks of {chunk_bytes} bytes, {depth} requests under way; pingpong RTT {pingpong_rtt}\n{table}\n\
         A busy node served {:.2} M control messages a second.\n\
         Allocations by chain for each by message: {:.2} idle, {:.2} busy.\n\
         With the node's turns held, {held_chunks} chunks were allocated and freed in {node_turns} turns of its CPU.",
        report.busy_messages_mops, report.chain_to_message_idle, report.chain_to_message_busy,
    ));
}
