//! Fixed costs of a node and a client: the time of an attach, the memory of a node with many permissions, and the
//! processor time of an idle node and an idle client.

use super::latency::hold_objects;
use super::node_process::NodeProcess;
use super::report::print_json;
use super::{BenchError, BenchOptions, processors};
use crate::output::say;
use crate::samples::Samples;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::time::{Duration, Instant};

/// Permissions that are live when the node's memory is measured.
const PERMISSIONS: usize = 10_000;
const ATTACHES: usize = 200;
/// The time after which the node is idle: windows have rested, and none lingers any more.
const SETTLING: Duration = Duration::from_secs(2);
/// The length of the idle measurement without -D. In a single second, one tick would be a whole percent.
const IDLE: Duration = Duration::from_secs(5);
/// Time between two frames of the spinner.
const FRAME: Duration = Duration::from_millis(250);
/// The unit in which the kernel counts processor time: on every Linux that this runs on, hundredths of a second.
const TICKS_A_SECOND: f64 = 100.0;

#[derive(Debug, Serialize)]
struct Report {
    benchmark: &'static str,
    nic: &'static str,
    protection: &'static str,
    /// Time to connect, be admitted, and map the queues, in milliseconds.
    attach_typical_ms: f64,
    attach_p99_ms: f64,
    permissions: usize,
    /// Resident memory of the node, with the touched part of its pool.
    node_resident_mib: f64,
    idle_seconds: u64,
    /// Percent of one processor.
    node_idle_percent: f64,
    client_idle_percent: f64,
}

/// Runs `footprint`.
pub fn run(options: &BenchOptions) -> Result<(), BenchError> {
    let node = NodeProcess::start(&options.setup())?;
    processors::pin_client();
    let mut attaches = Samples::new();
    for _ in 0..ATTACHES {
        let before = Instant::now();
        let session = options.connect(node.address())?;
        attaches.add(before.elapsed());
        drop(session);
    }
    let mut session = options.connect(node.address())?;
    let held = hold_objects(&mut session, PERMISSIONS, options.size)?;
    let resident = resident_bytes(node.process())?;
    for permission in held {
        session.revoke(permission)?;
    }
    wait(SETTLING, "the node comes to rest");
    let idle = options.duration.map_or(IDLE, Duration::from_secs);
    let before = (ticks(node.process())?, ticks(std::process::id())?);
    wait(idle, "nothing happens");
    let after = (ticks(node.process())?, ticks(std::process::id())?);
    let percent = |ticks: f64| 100.0 * ticks / TICKS_A_SECOND / idle.as_secs_f64();
    let report = Report {
        benchmark: "footprint",
        nic: options.nic().name(),
        protection: options.protection.name(),
        attach_typical_ms: attaches.typical() / 1_000.0,
        attach_p99_ms: attaches.quantile(0.99) / 1_000.0,
        permissions: PERMISSIONS,
        node_resident_mib: mebibytes(resident),
        idle_seconds: idle.as_secs(),
        node_idle_percent: percent(after.0 - before.0),
        client_idle_percent: percent(after.1 - before.1),
    };
    drop(session);
    if options.json {
        print_json(&report);
        return Ok(());
    }
    say(format_args!(
        "Attach: typical {:.2} ms, 99 % {:.2} ms, of {ATTACHES}",
        report.attach_typical_ms, report.attach_p99_ms
    ));
    say(format_args!(
        "Node with {PERMISSIONS} live permissions: {:.1} MiB resident",
        report.node_resident_mib
    ));
    say(format_args!(
        "Idle for {} s: node {:.2} % of a processor, client {:.2} %",
        report.idle_seconds, report.node_idle_percent, report.client_idle_percent
    ));
    Ok(())
}

/// Waits, and shows the reason on a terminal.
fn wait(time: Duration, what: &'static str) {
    let style = ProgressStyle::with_template("{spinner} {msg}, {elapsed}");
    let bar = ProgressBar::new_spinner().with_message(what);
    let bar = bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    let until = Instant::now() + time;
    while Instant::now() < until {
        bar.tick();
        std::thread::park_timeout(until.saturating_duration_since(Instant::now()).min(FRAME));
    }
    bar.finish_and_clear();
}

#[allow(clippy::cast_precision_loss, reason = "a process has far less than 2^53 bytes")]
fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn resident_bytes(process: u32) -> Result<u64, BenchError> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|text| text.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kibibytes.map(|kibibytes| kibibytes << 10).ok_or(BenchError::NoCounters)
}

/// Processor time of a process, in ticks. These are fields 14 and 15 of its `stat`, counted after the name in
/// parentheses.
fn ticks(process: u32) -> Result<f64, BenchError> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let mut numbers = fields.split_whitespace().skip(11).map(|field| field.parse::<f64>().unwrap_or(0.0));
    Ok(numbers.next().unwrap_or(0.0) + numbers.next().unwrap_or(0.0))
}
