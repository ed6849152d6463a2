//! The effect of attacks by another tenant on an honest client: the latency and rate of its reads beside each attack,
//! and beside as many honest clients.

mod attacks;
mod raider;
mod raw_connection;

use super::course::Course;
use super::latency::{hold_objects, renewed};
use super::node_process::{NodeProcess, Setup, TurnsCounted};
use super::report::{Setting, print_json};
use super::{BenchError, BenchOptions, pingpong};
use crate::output::say;
use crate::samples::{Samples, micros};
pub use attacks::Attack;
use attacks::AttackStep;
use clap::ValueEnum;
use comfy_table::{Table, presets};
use portcullis::Session;
use serde::Serialize;
use std::path::Path;
use std::time::{Duration, Instant};

/// The attacking tenant and the honest tenant. Each has a socket.
const TENANTS: [&str; 2] = ["red", "blue"];
/// Room for a thousand attackers' ports, and a pool whose pages are all touched: attacks must not succeed by numbers,
/// or by using pages first.
const ROOM: [&str; 5] = ["--ports-memory", "4GiB", "--clients-max", "4096", "--fill-memory"];
/// Reads of the honest client after each step of the attack.
const READS: usize = 8;
/// Duration of a step after which the node's thread may be asleep, whatever the step was. After a longer step, a read
/// that is not counted wakes the thread.
const AWAKE: Duration = Duration::from_micros(300);
/// Objects that the honest client reads in turn.
const OBJECTS: usize = 16;

struct Seen {
    times: Samples,
    turns: TurnsCounted,
    reads: u64,
}

/// A row: microseconds, and millions per second of the honest client's own time.
#[derive(Debug, Serialize)]
struct Row {
    attack: String,
    /// Attacking clients or connections, or honest ones in their place.
    clients: usize,
    honest_p50: f64,
    honest_p99: f64,
    honest_max: f64,
    honest_rate: f64,
    beside_p50: f64,
    beside_p99: f64,
    beside_max: f64,
    beside_rate: f64,
    /// Longest turn of the node's thread, from the node's start to the end of the attack.
    longest_turn: f64,
    /// Longest turn in processor time, which excludes the time that other threads took.
    longest_turn_of_processor: f64,
}

#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    setting: Setting,
    rows: Vec<Row>,
}

/// Runs the attacks, each on a node of its own.
pub fn run(options: &BenchOptions) -> Result<(), BenchError> {
    let pingpong_rtt = pingpong::round_trip();
    let chosen = if options.attack.is_empty() { Attack::value_variants() } else { &options.attack[..] };
    let (mut rows, mut iterations) = (Vec::new(), u64::MAX);
    for &attack in chosen {
        let name = attack.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
        let honest = watch(options, &format!("{name}: honest clients"), |path| attack.honest(path))?;
        let beside = watch(options, &name, |path| attack.begin(path))?;
        iterations = iterations.min(honest.reads).min(beside.reads);
        rows.push(Row::new(name, attack.clients(), &honest, &beside));
    }
    let report = Report { setting: Setting::new(options, iterations, pingpong_rtt), rows };
    if options.json {
        print_json(&report);
    } else {
        print_table(&report);
    }
    Ok(())
}

impl Row {
    fn new(attack: String, clients: usize, honest: &Seen, beside: &Seen) -> Self {
        let (there, here) = (honest.times.summary(), beside.times.summary());
        Self {
            attack,
            clients,
            honest_p50: there.t_typical,
            honest_p99: there.p99,
            honest_max: there.t_max,
            honest_rate: 1.0 / there.t_avg,
            beside_p50: here.t_typical,
            beside_p99: here.p99,
            beside_max: here.t_max,
            beside_rate: 1.0 / here.t_avg,
            longest_turn: micros(beside.turns.longest_us * 1_000),
            longest_turn_of_processor: micros(beside.turns.longest_of_processor_us * 1_000),
        }
    }
}

/// Lets other clients work at the attackers' socket, and reads beside them.
fn watch(
    options: &BenchOptions,
    what: &str,
    others: impl FnOnce(&Path) -> Result<AttackStep, BenchError>,
) -> Result<Seen, BenchError> {
    let mut node = NodeProcess::start(&Setup {
        tenants: &TENANTS,
        more: ROOM.map(str::to_owned).to_vec(),
        ..options.setup()
    })?;
    let [red, blue] = node.addresses() else { return Err(BenchError::NoCounters) };
    let mut session = options.connect(blue)?;
    let mut step = others(Path::new(red.trim_start_matches("shm:")))?;
    let mut objects = hold_objects(&mut session, OBJECTS, options.size)?;
    let mut warm_up = Course::warm_up(options, 10_000);
    let (mut times, mut reads, mut turns) = (Samples::new(), 0, 0);
    let mut course = None;
    while !course.as_mut().is_some_and(|course: &mut Course| course.over(reads)) {
        turns += 1;
        let before = Instant::now();
        step()?;
        if before.elapsed() > AWAKE {
            read_once(&mut session, &mut objects, 0, options.size)?;
        }
        for read in 0..READS {
            let time = read_once(&mut session, &mut objects, read, options.size)?;
            if course.is_some() {
                times.add(time);
                reads += 1;
            }
        }
        if course.is_none() && warm_up.over(turns) {
            course = Some(Course::new(options, what));
        }
    }
    drop(course);
    Ok(Seen { times, turns: node.turns()?, reads })
}

fn read_once(
    session: &mut Session,
    objects: &mut [portcullis::Permission],
    number: usize,
    size: u64,
) -> Result<Duration, BenchError> {
    let object = renewed(session, objects, number % OBJECTS, size)?;
    let mut buffer = session.buffer(u32::try_from(size).unwrap_or(u32::MAX))?;
    let before = Instant::now();
    buffer = session.read_buffer(object, 0, buffer)?;
    let time = before.elapsed();
    drop(buffer);
    Ok(time)
}

fn print_table(report: &Report) {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header([
        "attack",
        "clients",
        "honest p50",
        "p99",
        "max",
        "Mops",
        "beside p50",
        "p99",
        "max",
        "Mops",
        "longest turn",
        "of processor",
    ]);
    for row in &report.rows {
        let mut cells = vec![row.attack.clone(), row.clients.to_string()];
        let figures = [
            row.honest_p50,
            row.honest_p99,
            row.honest_max,
            row.honest_rate,
            row.beside_p50,
            row.beside_p99,
            row.beside_max,
            row.beside_rate,
        ];
        cells.extend(figures.map(|figure| format!("{figure:.3}")));
        cells.extend([row.longest_turn, row.longest_turn_of_processor].map(|time| format!("{time:.0}")));
        table.add_row(cells);
    }
    let Setting { size, pingpong_rtt, .. } = report.setting;
    say(format_args!(
        "Reads of {size} bytes by an honest client, in usec, beside as many honest clients of another tenant and beside \
         an attack; pingpong RTT {pingpong_rtt}\n{table}"
    ));
}
