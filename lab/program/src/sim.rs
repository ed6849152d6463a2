//! `portcullis-lab sim`: a cluster in virtual time, from seeds.

mod explore;
mod model;
mod summary;

use crate::output::{complain, say};
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use portcullis_protocol::Lifetime;
use portcullis_sim::{FaultKind, Plan, Programs, Report, campaign, run, shrink};
use portcullis_structures::table::VALUE_BYTES_MAX;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use summary::Summary;

const EXAMPLES: &str = "\
Examples:
  portcullis-lab sim                    # a thousand seeds, each a cluster
  portcullis-lab sim --seed 42 --json   # one run, as a JSON object
  portcullis-lab sim --seed 42 --trace  # one run, with its events
  portcullis-lab sim --seed 7 --clients 40 --nodes 4 --minutes 0.01
  portcullis-lab sim --udp 100          # all clients over UDP
  portcullis-lab sim --programs tables  # users of a hash table that die
  portcullis-lab sim --programs tables --values-max 96KiB  # … in pieces
  portcullis-lab sim --programs queues  # users of a queue that die
  portcullis-lab sim --programs chunks  # clients of chunks that die
  portcullis-lab sim --programs calls   # callers and servers that die
  portcullis-lab sim --seeds 100000 --seed 1000000  # seeds from there on
  portcullis-lab sim --hours 8          # seed after seed, for that long
  portcullis-lab sim --model connectx5  # published results, from unit costs
  portcullis-lab sim --model 1rma       # the same of 1RMA, from its own code
  portcullis-lab sim --explore chains   # the NIC's chains, in every state

A run is its seed, the options given here, and the commit: the same again gives
the same events and the same trace_hash. A failing run is cut down to fewer
clients, faults and events, and the command that replays it is printed.

Exit codes: 0 no promise was broken; 1 a promise was broken; 2 the call was
wrong.";

const SEEDS: u64 = 1_000;
/// The most runs for shrinking a failing plan.
const SHRINK_TRIES: u32 = 300;
const TRACE_LINES: usize = 200;

/// The clusters to simulate.
#[derive(Args, Clone)]
#[command(after_help = EXAMPLES)]
pub struct SimOptions {
    /// The seed, or the first of several.
    #[arg(long)]
    seed: Option<u64>,
    /// Number of seeds [default: one with --seed, else 1000].
    #[arg(long)]
    seeds: Option<u64>,
    /// Run seeds for this many hours instead.
    #[arg(long, conflicts_with = "seeds")]
    hours: Option<f64>,
    /// Nodes; without this, and without each of the following, every seed draws its own.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    nodes: Option<u32>,
    /// Clients, including hostile ones.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    clients: Option<u32>,
    /// Number of the clients that are hostile.
    #[arg(long)]
    hostile: Option<u32>,
    /// Number of clients in a hundred that are over UDP. Honest clients of chunks are not.
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(0..=100))]
    udp: Option<u32>,
    /// Tenants.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    tenants: Option<u32>,
    /// Roughly how many permissions each client holds at a time.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    held: Option<u32>,
    /// Each client first takes all that --held allows, with leases that outlast the run.
    #[arg(long)]
    fill: bool,
    /// The kind of honest clients: workers, which never wait; programs with sessions, whose calls wait, and with keepers; or
    /// programs that work on one hash table (tables), queue (queues, claims) or store of blocks (blocks), or allocate chunks (chunks), and
    /// die in the middle of it; or, without a cluster, processes that call each other through shared memory (calls), where --nodes are servers
    /// and --held are calls under way.
    #[arg(long, value_name = "WHAT", default_value = "workers", value_parser = programs)]
    programs: Programs,
    /// Virtual minutes of work.
    #[arg(long)]
    minutes: Option<f64>,
    /// The same in virtual microseconds, with up to three decimals: 75.298.
    #[arg(long, conflicts_with = "minutes", value_name = "MICROSECONDS", value_parser = nanos)]
    microseconds: Option<u64>,
    /// Roughly how long a client pauses between two actions, in virtual microseconds.
    #[arg(long, value_name = "MICROSECONDS", value_parser = nanos)]
    think: Option<u64>,
    /// The longest wait of operations of programs with sessions for their node, in virtual time [default: unlimited].
    /// With --faults node-freeze, nodes stand still for longer.
    #[arg(long, value_name = "TIME")]
    within: Option<Lifetime>,
    /// The most bytes of values, with --programs tables: `96KiB`. Values beyond 32 KiB lie in pieces [default: 30 KiB].
    #[arg(long, value_name = "SIZE", value_parser = values_max)]
    values_max: Option<usize>,
    /// Kinds of faults that may happen, separated by commas, or `none`.
    #[arg(long, value_delimiter = ',')]
    faults: Option<Vec<String>>,
    /// Print the trace of a run of one seed.
    #[arg(long)]
    trace: bool,
    /// Run a cost model instead.
    #[arg(long, value_enum, conflicts_with_all = ["seed", "seeds", "hours", "trace"])]
    model: Option<Model>,
    /// Search every state of small cases instead. It takes minutes, and up to some gigabytes.
    #[arg(long, value_enum, conflicts_with_all = ["model", "seed", "seeds", "hours", "trace"])]
    explore: Option<Explored>,
    /// Give a search of --explore up after this many states [default: 20 million].
    #[arg(long, value_name = "STATES", requires = "explore")]
    states_max: Option<usize>,
    /// Threads [default: all processors].
    #[arg(long)]
    jobs: Option<usize>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

/// Cost models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Model {
    /// Clusters of ConnectX-5 NICs: Patronus's, with a memory node of four cores and 3 × 32 clients; and OneSidedMW's, whose
    /// NIC allocates memory alone, with one core and six clients.
    Connectx5,
    /// 1RMA's testbed and simulations: encrypted operations without connections, their congestion control, and NICs of
    /// 100 Gb/s.
    #[value(name = "1rma")]
    OneShot,
}

/// The subject of a search through every state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Explored {
    /// The chains with which a NIC allocates and frees chunks, and designs of them that must break.
    Chains,
}

/// Runs `portcullis-lab sim`.
pub fn run_command(options: &SimOptions) -> ExitCode {
    match options.model {
        Some(Model::Connectx5) => return model::connectx5(options.json),
        Some(Model::OneShot) => return model::one_shot(options.json),
        None => {}
    }
    if options.explore == Some(Explored::Chains) {
        return explore::chains(options.json, options.states_max);
    }
    let faults = match options.faults() {
        Ok(faults) => faults,
        Err(error) => {
            complain(format_args!("portcullis-lab sim: {error}"));
            return ExitCode::from(2);
        }
    };
    let plan_of = |seed| options.plan(seed, faults.as_deref());
    if let Err(error) = check(&plan_of(options.seed.unwrap_or(0))) {
        complain(format_args!("portcullis-lab sim: {error}"));
        return ExitCode::from(2);
    }
    if options.seed.is_some() && options.seeds.is_none() && options.hours.is_none() {
        return one(options, &plan_of(options.seed.unwrap_or(0)));
    }
    many(options, plan_of)
}

fn check(plan: &Plan) -> Result<(), String> {
    if plan.hostile > plan.clients {
        return Err(format!(
            "--hostile {} is more than the {} clients there are",
            plan.hostile, plan.clients
        ));
    }
    if plan.duration_ns == 0 {
        return Err("a run of no time shows nothing: --minutes must be more than 0".to_owned());
    }
    Ok(())
}

impl SimOptions {
    fn faults(&self) -> Result<Option<Vec<FaultKind>>, String> {
        let Some(names) = &self.faults else { return Ok(None) };
        if names.len() == 1 && names[0] == "none" {
            return Ok(Some(Vec::new()));
        }
        let kinds = names.iter().map(|name| name.parse().map_err(|error| format!("{error}")));
        kinds.collect::<Result<_, String>>().map(Some)
    }

    fn plan(&self, seed: u64, faults: Option<&[FaultKind]>) -> Plan {
        let drawn = Plan::draw(seed).with(self.programs);
        let wide = |number: Option<u32>, drawn: usize| number.map_or(drawn, |number| number as usize);
        let clients = wide(self.clients, drawn.clients);
        Plan {
            nodes: wide(self.nodes, drawn.nodes),
            clients,
            hostile: wide(self.hostile, drawn.hostile.min(clients.saturating_sub(1))),
            tenants: wide(self.tenants, drawn.tenants),
            held: wide(self.held, drawn.held),
            duration_ns: self.duration_ns().unwrap_or(drawn.duration_ns),
            faults: faults.map_or(drawn.faults, <[FaultKind]>::to_vec),
            fill: self.fill,
            udp: self.udp.unwrap_or(drawn.udp),
            think_ns: self.think.unwrap_or(drawn.think_ns),
            within: self.within,
            values_max: self.values_max.unwrap_or(drawn.values_max),
            ..drawn
        }
    }

    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to what a u64 holds")]
    fn duration_ns(&self) -> Option<u64> {
        let minutes = self.minutes.map(|minutes| (minutes * 60e9).clamp(0.0, 1e18) as u64);
        minutes.or(self.microseconds)
    }
}

fn programs(name: &str) -> Result<Programs, String> {
    let names = Programs::ALL.map(Programs::name).join(", ");
    let known = Programs::ALL.into_iter().find(|programs| programs.name() == name);
    known.ok_or_else(|| format!("there are {names}"))
}

fn values_max(text: &str) -> Result<usize, String> {
    let bytes = usize::try_from(crate::size::parse(text)?).ok();
    bytes.filter(|bytes| *bytes <= VALUE_BYTES_MAX - 8).ok_or_else(|| {
        format!("a table takes values of up to {VALUE_BYTES_MAX} bytes, of which 8 are the value's number")
    })
}

/// Nanoseconds, from a text in microseconds with up to three decimals.
fn nanos(text: &str) -> Result<u64, String> {
    let (whole, rest) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(rest) || rest.len() > 3 {
        return Err("microseconds are a number with three decimals at most, like 75.298".to_owned());
    }
    let parsed = format!("{whole}{rest:0<3}").parse();
    parsed.map_err(|_| format!("{text} µs are more ns than 64 bits hold"))
}

fn one(options: &SimOptions, plan: &Plan) -> ExitCode {
    let started = Instant::now();
    let report = run(&Plan { readable: options.trace, ..plan.clone() });
    if options.trace && !options.json {
        print_trace(&report);
    }
    let mut summary = Summary::default();
    summary.add(&report);
    summary.print(options.json, started.elapsed());
    if report.ok {
        return ExitCode::SUCCESS;
    }
    explain(&report, plan, !options.trace);
    ExitCode::from(1)
}

fn print_trace(report: &Report) {
    let skipped = report.lines.len().saturating_sub(TRACE_LINES);
    if skipped > 0 {
        say(format_args!("… {skipped} lines before these"));
    }
    for line in &report.lines[skipped..] {
        say(line);
    }
}

/// Prints the failures, and the command that shows them again with a smaller plan.
fn explain(report: &Report, plan: &Plan, cut_down: bool) {
    for failure in &report.failures {
        complain(format_args!("broken: {failure}"));
    }
    complain(format_args!("replay: {}", plan.command()));
    if cut_down {
        let (smaller, shown) = shrink(plan, SHRINK_TRIES);
        let command = smaller.command();
        complain(format_args!("cut down: {command}"));
        for failure in &shown.failures {
            complain(format_args!("  {failure}"));
        }
        if !shows(&command, &shown) {
            complain(format_args!(
                "  this command does not show it: a mistake of the simulator's own; take the replay"
            ));
        }
    }
}

/// Whether a printed command, parsed as this program parses it, leads to the same failures.
fn shows(command: &str, shown: &Report) -> bool {
    read(command).is_ok_and(|plan| run(&plan).failures == shown.failures)
}

/// The plan of a printed command.
fn read(command: &str) -> Result<Plan, String> {
    /// The words after `portcullis`.
    #[derive(clap::Parser)]
    struct Printed {
        #[command(flatten)]
        options: SimOptions,
    }
    let words = command.split_whitespace().skip(1);
    let options =
        <Printed as clap::Parser>::try_parse_from(words).map_err(|error| error.to_string())?.options;
    let faults = options.faults()?;
    Ok(options.plan(options.seed.unwrap_or(0), faults.as_deref()))
}

fn many(options: &SimOptions, plan_of: impl Fn(u64) -> Plan + Sync) -> ExitCode {
    let first = options.seed.unwrap_or(0);
    let count = if options.hours.is_some() { u64::MAX - first } else { options.seeds.unwrap_or(SEEDS) };
    let bar = progress(options, count);
    let threads = options.jobs.or_else(|| std::thread::available_parallelism().ok().map(usize::from));
    let started = Instant::now();
    let limit = options.hours.map(|hours| Duration::from_secs_f64(hours.clamp(0.0, 1e6) * 3600.0));
    let mut summary = Summary::default();
    let mut worst: Option<Report> = None;
    campaign(first..first.saturating_add(count), threads.unwrap_or(1), &plan_of, |report| {
        bar.inc(1);
        summary.add(&report);
        // The failure of the lowest seed is kept, whichever thread was first.
        if !report.ok && worst.as_ref().is_none_or(|worst| report.seed < worst.seed) {
            worst = Some(report);
        }
        limit.is_none_or(|limit| started.elapsed() < limit)
    });
    bar.finish_and_clear();
    summary.print(options.json, started.elapsed());
    match worst {
        None => ExitCode::SUCCESS,
        Some(report) => {
            explain(&report, &plan_of(report.seed), true);
            ExitCode::from(1)
        }
    }
}

fn progress(options: &SimOptions, count: u64) -> ProgressBar {
    if options.hours.is_some() {
        let bar = ProgressBar::new_spinner();
        let style = ProgressStyle::with_template("{spinner} {pos} seeds, {per_sec}, {elapsed}");
        return bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    }
    let style = ProgressStyle::with_template("{bar:40} {pos} of {len} seeds, {per_sec}, {eta} left");
    ProgressBar::new(count).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plans() -> impl Strategy<Value = Plan> {
        let sizes = (1usize..1001, 1usize..5000, 1usize..1000, 1usize..5000);
        let faults = proptest::sample::subsequence(FaultKind::ALL.to_vec(), 0..=FaultKind::ALL.len());
        let times = (any::<u64>(), proptest::option::of(any::<u64>()));
        let programs = proptest::sample::select(Programs::ALL.to_vec());
        let programs = (programs, 0u32..101);
        let last = (any::<bool>(), proptest::option::of(0usize..=1 << 19));
        (any::<u64>(), sizes, 0u32..100, faults, times, last, programs).prop_map(
            |(
                seed,
                (nodes, clients, tenants, held),
                hostile,
                faults,
                (duration_ns, think),
                (fill, values_max),
                (programs, udp),
            )| {
                let drawn = Plan::draw(seed).with(programs);
                let hostile = clients * hostile as usize / 100;
                let think_ns = think.unwrap_or(drawn.think_ns);
                let values_max = values_max.unwrap_or(drawn.values_max);
                let sizes = Plan { nodes, clients, tenants, held, hostile, ..drawn };
                Plan { duration_ns, faults, think_ns, fill, udp, values_max, ..sizes }
            },
        )
    }

    proptest! {
        #[test]
        fn every_plan_survives_printing_and_reading(plan in plans()) {
            let command = plan.command();
            prop_assert_eq!(read(&command), Ok(plan), "{}", command);
        }

        #[test]
        fn times_are_read_to_the_nanosecond_or_not_at_all(text in "[0-9]{0,20}[.,]?[0-9]{0,4}") {
            if let Ok(time) = nanos(&text) {
                let (whole, rest) = text.split_once('.').unwrap_or((&text, ""));
                let value: u128 = format!("{whole}{rest:0<3}").parse().expect("digits");
                prop_assert_eq!(u128::from(time), value);
            }
        }
    }

    #[test]
    fn a_command_that_runs_something_else_is_noticed() {
        let shown = run(&Plan::draw(3));
        assert!(shows(&Plan::draw(3).command(), &shown));
        let failed = portcullis_sim::Failure {
            promise: portcullis_sim::Promise::Truth,
            at_ns: 1,
            what: String::new(),
        };
        assert!(!shows(&Plan::draw(3).command(), &Report { failures: vec![failed], ..shown }));
        assert!(!shows("portcullis-lab sim --seed x", &run(&Plan::draw(3))));
    }
}
