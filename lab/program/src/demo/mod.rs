//! `portcullis-lab demo`: shows the effect of protection, with real nodes, real client processes and real files.
//!
//! Everything that is shown was measured in this run. If something does not hold, the demo reports that and exits with
//! 1.

mod actor;
mod audit;
mod cast;
mod figures;
mod files;
mod holders;
mod listing;
mod loader;
mod loops;
mod offences;
mod orders;
mod processors;
mod screen;
mod table;

use crate::network::{DeviceOptions, NicKind};
use crate::output::complain;
use cast::{DemoError, Ground, Node, Patience};
use clap::Args;
use figures::{Figures, Finding};
use listing::Listing;
use offences::Offence;
use orders::{Order, OrderReply};
use processors::Processors;
use screen::Screen;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// The longest time of the whole demo. Soft-RoCE on a machine in software takes most of a minute.
const ALL_WITHIN: Duration = Duration::from_secs(120);
/// Number of reads of the latency measurement.
const READS: u32 = 30_000;

const EXAMPLES: &str = "\
Examples:
  portcullis-lab demo                  # with the files of this folder
  portcullis-lab demo ~/photos         # others: up to 64 MiB and 4,000 of them
  portcullis-lab demo --json | jq .ok  # for programs
  portcullis-lab demo --nic ibverbs    # over the RDMA device of this machine
  portcullis-lab demo --nic udp        # encrypted, over UDP

It starts three nodes and two dozen clients, each a process of its own, in a
temporary folder. It needs no privileges, no network and no RDMA hardware, and
leaves nothing behind. With --nic ibverbs all of them are on an RDMA
device; with --nic udp they communicate over UDP, except with the node that
protects nothing.";

/// Options of `portcullis-lab demo`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct DemoOptions {
    /// The folder whose files go through remote memory.
    #[arg(default_value = ".", value_parser = crate::files::path())]
    folder: PathBuf,
    /// The NIC: in software, or an RDMA device of this machine through libibverbs.
    #[arg(long, value_enum, default_value_t)]
    nic: NicKind,
    #[command(flatten)]
    device: DeviceOptions,
    /// Print one JSON object instead of text: `ok`, the results, and `problems`.
    #[arg(long)]
    json: bool,
    /// Run as one of the demo's client processes.
    #[arg(long, hide = true, value_name = "ADDRESS")]
    act_at: Option<String>,
    /// As a client process, stay on these processors.
    #[arg(long, hide = true, value_name = "N,N", value_delimiter = ',')]
    act_on: Vec<usize>,
}

/// The results of the demo. A part that was not completed is missing, and listed among the problems.
#[derive(Debug, Default, Serialize)]
struct Report {
    ok: bool,
    version: &'static str,
    processors: usize,
    seconds: f64,
    files: Option<figures::Files>,
    late_reader: Option<figures::LateReader>,
    out_of_range: Option<figures::OutOfRange>,
    lost_holders: Option<figures::LostHolders>,
    interruption: Option<figures::Guilt>,
    latency: Option<figures::Latency>,
    shared_table: Option<figures::SharedTable>,
    audit: Option<figures::Audit>,
    problems: Vec<String>,
}

/// Runs the demo.
pub fn run(options: DemoOptions) -> ExitCode {
    if let Some(address) = &options.act_at {
        return actor::run(address, &options.device, &options.act_on);
    }
    let listing = match Listing::of(&options.folder) {
        Ok(listing) => listing,
        Err(error) => {
            complain(format_args!(
                "portcullis-lab demo: cannot read the folder {}: {error}",
                options.folder.display()
            ));
            return ExitCode::from(2);
        }
    };
    let stopped = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // Without the handler, Ctrl-C only leaves a temporary folder behind.
        let _ = signal_hook::flag::register(signal, Arc::clone(&stopped));
    }
    let mut show = Show::new(options.json, Patience::new(ALL_WITHIN, stopped));
    if let Err(error) = show.play(&options, listing) {
        if show.findings.is_empty() && !matches!(error, DemoError::Interrupted) {
            complain(format_args!("portcullis-lab demo: nothing could be shown: {error}"));
            return ExitCode::from(3);
        }
        show.report.problems.push(error.to_string());
    }
    show.close()
}

struct Show {
    screen: Screen,
    patience: Patience,
    started: Instant,
    findings: Vec<Finding>,
    offences: Vec<Offence>,
    report: Report,
}

impl Show {
    fn new(json: bool, patience: Patience) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let report = Report { version: env!("CARGO_PKG_VERSION"), processors, ..Report::default() };
        let (findings, offences) = (Vec::new(), Vec::new());
        Self { screen: Screen::new(json), patience, started: Instant::now(), findings, offences, report }
    }

    fn play(&mut self, options: &DemoOptions, listing: Listing) -> Result<(), DemoError> {
        let scratch = tempfile::Builder::new().prefix("portcullis-demo-").tempdir()?;
        let log = scratch.path().join("audit.jsonl");
        let path = log.display().to_string();
        let patience = self.patience.clone();
        let ground = Ground {
            folder: scratch.path(),
            processors: Processors::usable(),
            patience: &patience,
            nic: options.nic,
            device: &options.device,
        };
        let protecting = Node::start(&ground, "protecting", &["--memory", "256MiB", "--audit", &path])?;
        // Over UDP no node runs without protection: accesses always need keys.
        let nic = if options.nic == NicKind::Udp { NicKind::Software } else { options.nic };
        let without = Ground { nic, ..ground.clone() };
        let careless = Node::start(&without, "careless", &["--memory", "16MiB", "--protection", "none"])?;
        let processes = format!("{} and {}", protecting.process(), careless.process());
        self.screen
            .line(&format!("Two nodes, processes {processes}, lend memory to the tenants orange and blue."));

        self.play_files(&protecting, &options.folder, listing)?;
        self.screen.part("2. A read that comes after its permission has ended");
        let late = offences::show_late_reader(&protecting, &careless, &mut self.offences);
        self.report.late_reader = self.settle(late)?;
        self.screen.part("3. Writes outside of a buffer, beside a neighbour that works");
        let range = offences::show_out_of_range(&protecting, &mut self.offences);
        self.report.out_of_range = self.settle(range)?;
        self.screen.part("4. Exclusive holders that are killed or freeze");
        let lost = holders::show(&protecting, &mut self.offences);
        self.report.lost_holders = self.settle(lost)?;
        self.screen.part("5. How long the guilty client is interrupted");
        let guilt = offences::show_guilt(&protecting, &mut self.offences);
        self.report.interruption = self.settle(guilt)?;
        self.screen.part("6. What a read takes");
        let latency = measure(&protecting);
        self.report.latency = self.settle(latency)?;
        self.screen.part("7. A table that three processes load, one of which is killed");
        let table = table::show(&ground);
        self.report.shared_table = self.settle(table)?;
        self.screen.part("8. What the node wrote down");
        let audit = stop_and_examine(protecting, careless, &log, &self.offences);
        self.report.audit = self.settle(audit)?;
        Ok(())
    }

    fn play_files(&mut self, node: &Node, folder: &Path, listing: Listing) -> Result<(), DemoError> {
        self.screen.part("1. Files through remote memory");
        if listing.files.is_empty() {
            self.screen.line("  this folder has no files to show");
        }
        let files = files::show(node, &mut self.screen, folder, listing);
        if let Ok(files) = &files
            && files.left_out > 0
        {
            self.screen.line(&format!("  left out: {}", files.left_out));
            for reason in &files.reasons {
                self.screen.line(&format!("    {reason}"));
            }
            let others = files.left_out - files.reasons.len();
            if others > 0 {
                self.screen.line(&format!("    and {others} more"));
            }
        }
        self.report.files = self.settle(files)?;
        Ok(())
    }

    /// Shows the results of a part, and keeps those that do not hold. Only an interruption by the user ends the demo
    /// here.
    fn settle<T: Figures>(&mut self, played: Result<T, DemoError>) -> Result<Option<T>, DemoError> {
        match played {
            Ok(figures) => {
                for finding in figures.findings() {
                    self.screen.finding(&finding);
                    if !finding.holds {
                        self.report.problems.push(format!("{}: {}", finding.what, finding.seen));
                    }
                    self.findings.push(finding);
                }
                Ok(Some(figures))
            }
            Err(DemoError::Interrupted) => Err(DemoError::Interrupted),
            Err(error) => {
                let finding = Finding::new(false, "this part did not come to its end", error.to_string());
                self.screen.finding(&finding);
                self.report.problems.push(error.to_string());
                self.findings.push(finding);
                Ok(None)
            }
        }
    }

    fn close(mut self) -> ExitCode {
        self.report.seconds = self.started.elapsed().as_secs_f64();
        self.report.ok = self.report.problems.is_empty();
        self.screen.table(&self.findings);
        let seconds = self.report.seconds;
        if self.report.ok {
            self.screen.line(&format!("Everything held, in {seconds:.1} s."));
        } else {
            self.screen.line(&format!("Not everything held, in {seconds:.1} s:"));
            for problem in &self.report.problems {
                self.screen.line(&format!("  {problem}"));
            }
        }
        self.screen.object(&self.report);
        if self.report.ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// Runs part 6.
fn measure(node: &Node) -> Result<figures::Latency, DemoError> {
    let mut reader = node.client("orange", "reader")?;
    match reader.ask(&Order::Measure { bytes: 64, reads: READS })? {
        OrderReply::Latency(latency) => Ok(latency),
        other => Err(reader.strange(&other)),
    }
}

/// Runs part 8.
fn stop_and_examine(
    protecting: Node,
    careless: Node,
    log: &Path,
    offences: &[Offence],
) -> Result<figures::Audit, DemoError> {
    let stopped_cleanly = protecting.stop()? & careless.stop()?;
    Ok(audit::examine(log, offences, stopped_cleanly)?)
}
