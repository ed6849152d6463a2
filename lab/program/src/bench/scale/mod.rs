//! `portcullis-lab bench scale`: rates with more and more clients of one node, each beside memcpy by as many threads.

mod gateway;
mod load;
mod memcpy;
mod reads;
mod report;
mod sizing;

use super::course::Length;
use super::queue::QueueAlone;
use super::report::print_json;
use super::rivals::{Comparison, Measured};
use super::ycsb::{TableAlone, Workload};
use super::{BenchError, pingpong, processors};
use crate::network::NicKind;
use clap::{Args, ValueEnum};
use gateway::LoadedGateway;
use load::Request;
use memcpy::WorkingSet;
use portcullis::Mechanism;
use portcullis::host::ThreadCount;
use reads::{NodeThreads, Reads};
use report::{Report, Row};
use sizing::Sizing;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  portcullis-lab bench scale                # all rows, for a machine at rest
  portcullis-lab bench scale --what reads,udp --sizes 64,64KiB
  portcullis-lab bench scale --clients 1,4,12 --what table,queue --duration 5
  portcullis-lab bench scale --what udp --udp-lanes 4  # beside --udp-lanes 1
  portcullis-lab bench scale --what gateway --clients 4 --json
  portcullis-lab bench scale --object-bytes 1GiB --what reads  # beyond caches

The node has the first processor, and each client has a session, a thread and
one of the other processors; with more clients than those, they take turns,
which the report states. The rows:
  reads    random blocks of the client's own object, many reads under way
  udp      the same, encrypted, over UDP on loopback
  table    gets and updates of 64-byte values, 64 under way
  queue    pushes and pops of 64-byte entries, 16 under way
  gateway  GET and SET of memcached's text protocol by 4 threads with 96
           connections; `clients` are the gateway's threads
The memcpy beside a row is by as many threads, of blocks of the row's size,
from random places of as much memory as all clients of the row use together:
their objects, the table, a segment of the queue, or the gateway's values.

With --json, `rows` are {what, bytes, clients, mops, gbps, p50, p99,
memcpy_gbps}. mops are millions of operations a second and gbps are
10^9 bytes a second, both of all clients together. p50 and p99 are microseconds
of one operation, or of a batch of reads (a quarter of those under way) for
reads and udp; null if none began and ended within the row.

Exit codes: 0 measured; 2 the call was wrong; 3 the machine refused, for example
because it has too little memory.";

/// The protection of all rows.
const PROTECTION: Mechanism = Mechanism::MemoryWindow;
/// Bytes of the values of the table, and of the entries of the queue.
const VALUE_BYTES: u32 = 64;
/// Bytes of the blocks that are read, by default.
const READ_BYTES: [u32; 4] = [64, 4 << 10, 64 << 10, 2 << 20];
/// Bytes of the blocks that are read over UDP, by default.
const UDP_BYTES: [u32; 2] = [64, 1 << 20];
/// Bytes of the gateway's values.
const GATEWAY_BYTES: [u32; 2] = [64, 4 << 10];
/// The largest block that is read: a session has room for 16 MiB of buffers.
const READ_BYTES_MAX: u64 = 16 << 20;
/// The most clients of a row, as in other benchmarks.
const CLIENTS_MAX: u32 = 64;

/// The measurement, and how it is done.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct BenchScaleOptions {
    /// Numbers of clients, with a row for each [default: 1, 2, 4 and so on up to the number of processors].
    #[arg(long, value_delimiter = ',', value_name = "LIST",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(CLIENTS_MAX)))]
    clients: Vec<u32>,
    /// The rows.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "reads,udp,table,queue,gateway",
        value_name = "LIST"
    )]
    what: Vec<What>,
    /// Bytes of the blocks of reads and udp [default: 64,4KiB,64KiB,2MiB; for udp 64,1MiB].
    #[arg(long, value_delimiter = ',', value_name = "LIST", value_parser = read_bytes)]
    sizes: Vec<u32>,
    /// Seconds of each row, and as many of its memcpy; for example 0.5.
    #[arg(long, default_value = "1", value_name = "SECONDS", value_parser = seconds)]
    duration: Duration,
    /// Bytes of each client's object, for reads and udp. The table has one key, up to 200,000, for 64 of these bytes, and the
    /// gateway up to 100,000 keys that fill them [default: 64MiB, or less if there is too little memory].
    #[arg(long, value_name = "SIZE", value_parser = crate::size::parse)]
    object_bytes: Option<u64>,
    /// Copy units of the node: a number, or `auto`.
    #[arg(long, value_name = "N", default_value_t)]
    copy_units: ThreadCount,
    /// Engines of the node, which serve busy clients of all rows but those of udp: a number, or `auto`.
    #[arg(long, value_name = "N", default_value_t)]
    engines: ThreadCount,
    /// UDP lanes of the node, for the rows of udp: a number, or `auto`.
    #[arg(long, value_name = "N", default_value_t)]
    udp_lanes: ThreadCount,
    /// Print one JSON object instead of the table.
    #[arg(long)]
    json: bool,
    /// Run as the gateway of the node at this address.
    #[arg(long, hide = true, value_name = "ADDRESS")]
    serve_gateway: Option<String>,
}

/// A part of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    Reads,
    Udp,
    Table,
    Queue,
    Gateway,
}

fn read_bytes(text: &str) -> Result<u32, String> {
    let bytes = crate::size::parse(text)?;
    let bytes = u32::try_from(bytes).ok().filter(|&bytes| (1..=READ_BYTES_MAX).contains(&bytes.into()));
    bytes.ok_or_else(|| "a block has 1 byte to 16MiB".to_owned())
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.001..=3600.0).contains(seconds));
    let seconds = seconds.ok_or_else(|| "a row takes 0.001 to 3600 seconds".to_owned())?;
    Ok(Duration::from_secs_f64(seconds))
}

/// Runs the benchmark, or serves as its gateway.
pub fn run(options: &BenchScaleOptions) -> Result<(), BenchError> {
    let clients = options.clients();
    if let Some(node) = &options.serve_gateway {
        return gateway::serve(node, clients[0] as usize);
    }
    let sizing = Sizing::new(options, &clients)?;
    let pingpong_rtt = pingpong::round_trip();
    let mut bench = Scale { options, sizing, rows: Vec::new(), planned: options.planned(clients.len()) };
    for &what in &options.what {
        match what {
            What::Reads => bench.reads(&clients, NicKind::Software)?,
            What::Udp => bench.reads(&clients, NicKind::Udp)?,
            What::Table => bench.table(&clients)?,
            What::Queue => bench.queue(&clients)?,
            What::Gateway => bench.gateway(&clients)?,
        }
    }
    let report = Report::new(&clients, options, &bench.sizing, pingpong_rtt, bench.rows);
    if options.json {
        print_json(&report);
    } else {
        report.print_table();
    }
    Ok(())
}

impl BenchScaleOptions {
    fn threads(&self) -> NodeThreads {
        NodeThreads { copy_units: self.copy_units, engines: self.engines, udp_lanes: self.udp_lanes }
    }

    fn clients(&self) -> Vec<u32> {
        if self.clients.is_empty() { usual_clients(processors::count()) } else { self.clients.clone() }
    }

    fn sizes(&self, nic: NicKind) -> &[u32] {
        match nic {
            _ if !self.sizes.is_empty() => &self.sizes,
            NicKind::Udp => &UDP_BYTES,
            _ => &READ_BYTES,
        }
    }

    /// The largest block that a row reads.
    fn largest_block(&self) -> u32 {
        let of = |what: &What| match what {
            What::Reads => self.sizes(NicKind::Software),
            What::Udp => self.sizes(NicKind::Udp),
            _ => &[],
        };
        self.what.iter().flat_map(of).copied().max().unwrap_or(0)
    }

    /// Number of rows.
    fn planned(&self, clients: usize) -> usize {
        let of = |what: &What| match what {
            What::Reads => self.sizes(NicKind::Software).len(),
            What::Udp => self.sizes(NicKind::Udp).len(),
            What::Table => 2,
            What::Queue => 1,
            What::Gateway => 2 * GATEWAY_BYTES.len(),
        };
        clients * self.what.iter().map(of).sum::<usize>()
    }
}

/// The powers of two below a number of processors, and that number.
fn usual_clients(processors: usize) -> Vec<u32> {
    let most = u32::try_from(processors).unwrap_or(CLIENTS_MAX).clamp(1, CLIENTS_MAX);
    let powers = (0..u32::BITS).map(|shift| 1 << shift).take_while(|&clients| clients < most);
    powers.chain([most]).collect()
}

/// A run of the benchmark.
struct Scale<'a> {
    options: &'a BenchScaleOptions,
    sizing: Sizing,
    rows: Vec<Row>,
    /// Number of rows that there will be.
    planned: usize,
}

impl Scale<'_> {
    fn length(&self) -> Length {
        Length::lasting(self.options.duration)
    }

    /// The text beside the progress bar of the next row.
    fn name(&self, what: &str) -> String {
        format!("row {} of {}: {what}", self.rows.len() + 1, self.planned)
    }

    /// Adds a row, with a memcpy of `bytes` of memory.
    fn add(
        &mut self,
        (what, size): (&'static str, u32),
        clients: u32,
        measured: &Measured,
        bytes: u64,
    ) -> Result<(), BenchError> {
        let name = self.name(&format!("memcpy of {size} B, {clients} threads"));
        let set = WorkingSet::new(usize::try_from(bytes.max(size.into())).unwrap_or(usize::MAX));
        let copied = set.copies(size as usize, clients as usize, self.length(), &name)?;
        self.rows.push(Row::new((what, size), clients, measured, &copied));
        Ok(())
    }

    fn reads(&mut self, clients: &[u32], nic: NicKind) -> Result<(), BenchError> {
        let what = if nic == NicKind::Udp { "udp-read" } else { "read" };
        let object_bytes = self.sizing.object_bytes;
        let threads = self.options.threads();
        for &size in self.options.sizes(nic) {
            for &count in clients {
                let reads = Reads { nic, threads, size, object_bytes, length: self.length() };
                let name = self.name(&format!("{what} of {size} B, {count} clients"));
                let measured = reads.measure(count as usize, &name)?;
                self.add((what, size), count, &measured, u64::from(count) * object_bytes)?;
            }
        }
        Ok(())
    }

    /// Returns the settings of a structure's rows, on a node of its own.
    fn alone(&self) -> Comparison {
        Comparison::alone(PROTECTION, self.length(), self.options.threads().options().to_vec())
    }

    fn table(&mut self, clients: &[u32]) -> Result<(), BenchError> {
        let (comparison, keys) = (self.alone(), self.sizing.table_keys());
        let most = clients.iter().copied().max().unwrap_or(1);
        let mut table = TableAlone::load(comparison, (keys, VALUE_BYTES), most)?;
        for (what, workload) in [("table-read", Workload::Read), ("table-write", Workload::Write)] {
            for &count in clients {
                let name = self.name(&format!("{what}, {count} clients"));
                let measured = table.measure(workload, count as usize, &name)?;
                self.add((what, VALUE_BYTES), count, &measured, table.bytes())?;
            }
        }
        Ok(())
    }

    fn queue(&mut self, clients: &[u32]) -> Result<(), BenchError> {
        let comparison = self.alone();
        let mut queue = QueueAlone::start(comparison, VALUE_BYTES)?;
        for &count in clients {
            let name = self.name(&format!("queue, {count} clients"));
            let measured = queue.measure(count, &name)?;
            let bytes = u64::from(QueueAlone::SEGMENT_SLOTS * VALUE_BYTES);
            self.add(("queue", VALUE_BYTES), count, &measured, bytes)?;
        }
        Ok(())
    }

    fn gateway(&mut self, clients: &[u32]) -> Result<(), BenchError> {
        for size in GATEWAY_BYTES {
            let keys = gateway::keys(self.sizing.object_bytes, size);
            for &count in clients {
                let loading = self.name(&format!("{keys} keys for the gateway"));
                let gateway =
                    LoadedGateway::start((count as usize, self.options.threads()), (keys, size), &loading)?;
                for (what, request) in [("gateway-get", Request::Get), ("gateway-set", Request::Set)] {
                    let name = self.name(&format!("{what} of {size} B, {count} threads"));
                    let measured = gateway.measure(request, self.length(), &name)?;
                    self.add((what, size), count, &measured, keys * u64::from(size))?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_double_up_to_the_number_of_processors() {
        for (processors, clients) in [
            (0, &[1][..]),
            (1, &[1]),
            (2, &[1, 2]),
            (3, &[1, 2, 3]),
            (12, &[1, 2, 4, 8, 12]),
            (1000, &[1, 2, 4, 8, 16, 32, 64]),
        ] {
            assert_eq!(usual_clients(processors), clients, "{processors} processors");
        }
    }

    #[test]
    fn seconds_have_fractions_and_a_row_takes_some_time() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "-1", "x", "NaN", "inf", "4000"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
