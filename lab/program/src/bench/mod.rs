//! `portcullis-lab bench`: measurements, in the dialect of perftest.
//!
//! Every benchmark also measures `pingpong_rtt` in the same run: the round trip of one cache line between the same two
//! processors. Machines differ and drift, so the ratio to this time is more meaningful than a time alone. On a single
//! processor it is not measured, and the benchmark reports that on standard error.

mod audit;
mod call;
mod chunks;
mod course;
mod ends;
mod extension;
mod footprint;
mod groups;
mod latency;
mod node_process;
mod overlapped;
mod own_process;
mod pause;
mod permissions;
mod pingpong;
mod processors;
mod queue;
mod rate;
mod report;
mod rivals;
mod scale;
mod side_by_side;
mod siege;
mod turns;
mod violation;
mod ycsb;

use crate::network::NicKind;
use crate::output::complain;
use clap::{Args, Subcommand, ValueEnum};
use ends::Ends;
use node_process::Setup;
use portcullis::{ConnectError, Error, IdentityError, Mechanism, Session, SessionOptions, connect_with};
use portcullis_structures::queue::QueueError;
use portcullis_structures::table::TableError;
use std::process::ExitCode;

/// Default number of operations in flight.
const OUTSTANDING: usize = 128;
/// Bytes of buffers that a session of a benchmark has room for: by default a node lends a session 64 MiB.
const BUFFERS_BYTES: u64 = 16 << 20;

const EXAMPLES: &str = "\
Examples:
  portcullis-lab bench read_lat                # 64-byte reads, one at a time
  portcullis-lab bench read_rate -s 64 -o 128  # the same, 128 under way at once
  portcullis-lab bench read_rate -s 64KiB -D 5  # bandwidth, for five seconds
  portcullis-lab bench write_lat -s 4096 -n 100000
  portcullis-lab bench permissions             # the steps of Patronus, Table 4
  portcullis-lab bench violation               # the rows of Patronus, Table 5
  portcullis-lab bench audit -D 2              # what the audit log costs
  portcullis-lab bench siege                   # what attacks cost other clients
  portcullis-lab bench siege --attack messages --attack transfers -D 5
  portcullis-lab bench ycsb --workload a,c     # the hash table; see ycsb --help
  portcullis-lab bench queue --clients 2       # the queue; see queue --help
  portcullis-lab bench groups                  # a window for each queue pair
  portcullis-lab bench chunks                  # allocation by the NIC alone
  portcullis-lab bench call                    # calls through shared memory
  portcullis-lab bench scale                   # more and more clients of a node
  portcullis-lab bench read_lat --node shm:/run/portcullis.sock
  portcullis-lab bench read_lat --nic ibverbs  # on this machine's RDMA device
  portcullis-lab bench read_lat --nic udp      # encrypted, over UDP
  portcullis-lab bench read_lat --node rdma:node1:7471 \\
      --certificates /etc/portcullis --tenant orange

Without --node a node process is started for the run, on processor 0; this end
runs on processor 1. With one processor only (taskset -c 3) the two take turns:
a line on standard error says so, and pingpong_rtt is null in --json.
The measurement takes a second, or a second for each step; -n and -D change
that.

Times are in microseconds. READ and atomic latencies are full round trips, as in
perftest; so are WRITE latencies here, since a completion means that the bytes
have arrived. Bandwidths are in MiB a second; with latencies they are printed
from 4 KiB on.";

/// A benchmark of accesses and permissions, or of a structure in a node's memory.
#[derive(Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Arguments {
    #[command(subcommand)]
    structure: Option<Structure>,
    /// The benchmark.
    #[arg(value_enum, required = true)]
    name: Option<Name>,
    #[command(flatten)]
    options: BenchOptions,
}

/// Benchmarks of structures, which have options of their own.
#[derive(Subcommand)]
enum Structure {
    /// The hash table under the workloads of YCSB, with several protection mechanisms in turns (Patronus, Figure 9).
    Ycsb(Box<ycsb::BenchYcsbOptions>),
    /// Pushes and pops of a queue, with several protection mechanisms in turns (Patronus §7.3.2).
    Queue(Box<queue::BenchQueueOptions>),
    /// Permissions and accesses with a window for each queue pair of a client, beside one for all of them (OneSidedMW).
    Groups(groups::BenchGroupsOptions),
    /// Memory allocated and freed by chains on the NIC, and by messages to the node's CPU (OneSidedMW).
    Chunks(chunks::BenchChunksOptions),
    /// Calls through shared memory between two processes (RPCool, Table 1).
    Call(call::BenchCallOptions),
    /// Rates with more and more clients, each on a processor of its own, beside memcpy by as many threads.
    Scale(scale::BenchScaleOptions),
}

/// The measurement, and how it is done.
#[derive(Args, Clone)]
pub struct BenchOptions {
    /// Beside a structure's name these options have no effect, so theirs is not one of them.
    #[arg(skip = Name::ReadLat)]
    name: Name,
    /// Bytes of each access; atomics move 8.
    #[arg(short = 's', long, default_value = "64", value_parser = crate::size::parse)]
    size: u64,
    /// Iterations to measure.
    #[arg(short = 'n', long)]
    iterations: Option<u64>,
    /// Run for this many seconds instead [default: one].
    #[arg(short = 'D', long, conflicts_with = "iterations")]
    duration: Option<u64>,
    /// Operations under way at once, in the benchmarks that have several [default: 128, or as many as have room].
    #[arg(short = 'o', long)]
    outstanding: Option<usize>,
    /// Sessions that one thread drives, each with one queue pair in use; for the rates.
    #[arg(short = 'q', long, default_value_t = 1)]
    queue_pairs: usize,
    /// Read every byte that read_rate has fetched.
    #[arg(long, value_enum, value_name = "HOW")]
    look: Option<Look>,
    /// For siege: run only this attack; may be given several times [default: all].
    #[arg(long, value_enum, value_name = "ATTACK")]
    attack: Vec<siege::Attack>,
    /// A running node to use, for example shm:/run/portcullis.sock.
    #[arg(long)]
    node: Option<String>,
    #[command(flatten)]
    ends: Ends,
    /// The mechanism that enforces permissions on the node that is started for the run.
    #[arg(long, default_value = "memory-window", value_parser = crate::protection::mechanism)]
    protection: Mechanism,
    /// Print one JSON object instead of the table.
    #[arg(long)]
    json: bool,
}

/// Where fetched bytes are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Look {
    /// In place, in the session's arena.
    InPlace,
    /// In a copy in the program's own memory.
    Copied,
}

/// The benchmarks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Name {
    /// Latency of one READ at a time.
    ReadLat,
    /// Latency of one WRITE at a time.
    WriteLat,
    /// Latency of one FETCH_AND_ADD at a time.
    AtomicLat,
    /// READs per second and their bandwidth, with many under way; also read_bw.
    #[value(alias = "read_bw")]
    ReadRate,
    /// WRITEs per second and their bandwidth, with many under way; also write_bw.
    #[value(alias = "write_bw")]
    WriteRate,
    /// Permissions acquired and ended per second, adding one technique of Patronus §5.4 at a time (Table 4).
    Permissions,
    /// Re-acquiring, compared with extending by RPC and by the client alone (Patronus §7.2.2).
    Extension,
    /// Permissions acquired and ended per second without an audit log, with violations and bars only, and with all
    /// events.
    Audit,
    /// How long a violation interrupts the guilty client, with and without spare queue pairs (Table 5).
    Violation,
    /// Latency and rate of an honest client beside attacks by another tenant.
    Siege,
    /// The cost of attaching, memory and idling.
    Footprint,
}

impl Name {
    fn text(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// A reason why a benchmark failed.
#[derive(Debug, thiserror::Error)]
enum BenchError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error(transparent)]
    Session(#[from] Error),
    #[error("the node process: {0}")]
    Node(#[from] std::io::Error),
    #[error("{0}")]
    Options(String),
    #[error(transparent)]
    Table(#[from] TableError),
    #[error(transparent)]
    Queue(#[from] QueueError),
    #[error("the call: {0}")]
    Call(String),
    #[error("the gateway: {0}")]
    Gateway(String),
    #[error("{0}")]
    Memory(String),
    #[error("an entry arrived that no client has pushed")]
    WrongEntry,
    #[error("key {key} has another value than it should have, or none")]
    Wrong { key: u32 },
    #[error("the node process did not report its counters")]
    NoCounters,
}

impl BenchOptions {
    fn connect(&self, address: &str) -> Result<Session, BenchError> {
        Ok(connect_with(address, self.session_options()?)?)
    }

    fn session_options(&self) -> Result<SessionOptions, BenchError> {
        self.ends.session_options()
    }

    fn nic(&self) -> NicKind {
        match &self.node {
            Some(address) => NicKind::of_address(address),
            None => self.ends.nic,
        }
    }

    /// The default settings of the node for the run.
    fn setup(&self) -> Setup {
        let memory = node_process::MEMORY.max(latency::memory_for(self.queue_pairs, self.size));
        Setup { memory: Some(memory), ..self.ends.setup(self.protection) }
    }

    fn run(&self) -> Result<(), BenchError> {
        self.check()?;
        match self.name {
            Name::ReadLat | Name::WriteLat | Name::AtomicLat => latency::run(self),
            Name::ReadRate | Name::WriteRate => rate::run(self),
            Name::Permissions => permissions::run(self),
            Name::Audit => audit::run(self),
            Name::Extension => extension::run(self),
            Name::Violation => violation::run(self),
            Name::Siege => siege::run(self),
            Name::Footprint => footprint::run(self),
        }
    }

    /// Number of operations in flight.
    fn outstanding(&self) -> usize {
        self.outstanding.unwrap_or_else(|| usual_outstanding(self.size))
    }

    fn check(&self) -> Result<(), BenchError> {
        let wrong = |text: &str| Err(BenchError::Options(text.to_owned()));
        if self.size == 0 || self.size > 1 << 20 {
            return wrong("-s takes 1 to 1MiB");
        }
        if !(1..=512).contains(&self.outstanding()) {
            return wrong("-o takes 1 to 512");
        }
        if self.queue_pairs == 0 || self.queue_pairs > 64 {
            return wrong("-q takes 1 to 64");
        }
        if self.iterations == Some(0) || self.duration == Some(0) {
            return wrong("-n and -D take at least 1");
        }
        let own = matches!(
            self.name,
            Name::Permissions
                | Name::Audit
                | Name::Extension
                | Name::Violation
                | Name::Siege
                | Name::Footprint
        );
        if self.name != Name::Siege && !self.attack.is_empty() {
            return wrong("--attack is for siege");
        }
        if self.name == Name::Siege && self.nic() != NicKind::Software {
            return wrong("siege attacks the software NIC: leave --nic out");
        }
        if matches!(self.name, Name::Permissions | Name::Violation) && self.nic() == NicKind::Udp {
            return wrong("this benchmark is about windows and queue pairs, which --nic udp does not have");
        }
        if own && self.node.is_some() {
            return wrong("this benchmark starts nodes of several settings by itself: leave --node out");
        }
        Ok(())
    }
}

/// Number of operations of `size` bytes in flight by default: no more than those whose buffers have room in a session's
/// memory.
fn usual_outstanding(size: u64) -> usize {
    let have_room = usize::try_from(BUFFERS_BYTES / size.next_power_of_two()).unwrap_or(usize::MAX);
    OUTSTANDING.min(have_room)
}

/// Runs the benchmark.
pub fn run(arguments: &Arguments) -> ExitCode {
    let done = match (&arguments.structure, arguments.name) {
        (Some(Structure::Ycsb(options)), _) => ycsb::run(options),
        (Some(Structure::Queue(options)), _) => queue::run(options),
        (Some(Structure::Groups(options)), _) => groups::run(options),
        (Some(Structure::Chunks(options)), _) => chunks::run(options),
        (Some(Structure::Call(options)), _) => call::run(options),
        (Some(Structure::Scale(options)), _) => scale::run(options),
        (None, name) => {
            let name = name.expect("the name is required where there is no structure");
            BenchOptions { name, ..arguments.options.clone() }.run()
        }
    };
    let Err(error) = done else { return ExitCode::SUCCESS };
    complain(format_args!("portcullis-lab bench: {error}"));
    ExitCode::from(if matches!(error, BenchError::Options(_)) { 2 } else { 3 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_perftest_are_known() {
        for (theirs, ours) in
            [("read_bw", Name::ReadRate), ("write_bw", Name::WriteRate), ("read_lat", Name::ReadLat)]
        {
            assert_eq!(Name::from_str(theirs, false), Ok(ours));
        }
    }
}
