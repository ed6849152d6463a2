//! `portcullis-lab bench ycsb`: the hash table under the workloads of YCSB and of Patronus §7.3.1, with each protection
//! mechanism in turns.

mod alone;
mod client;
mod loaded;
mod memory;
mod singles;
mod workload;

use super::pingpong::RoundTrip;
use super::report::print_json;
use super::rivals::{Comparison, Figures, Rival, compare};
use super::{BenchError, pingpong};
use crate::output::say;
pub use alone::TableAlone;
use clap::{Args, ValueEnum};
use client::Turn;
use comfy_table::{Table, presets};
use loaded::{Loaded, Shape, blocks_text, grain_text};
use memory::Memory;
use portcullis::Lifetime;
use portcullis_structures::table::{BlockMemory, Grain, VALUE_BYTES_MAX};
use serde::Serialize;
use singles::{KEYS_AT_ONCE, Single};
pub use workload::Workload;
use workload::{Drawn, draw};

const EXAMPLES: &str = "\
Examples:
  portcullis-lab bench ycsb                         # C: reads, 64-byte values
  portcullis-lab bench ycsb --workload a,b,c,d,f --keys 1000000
  portcullis-lab bench ycsb --workload read,half,write --grain block,extent \\
      --value-bytes 64,4KiB                    # Patronus, Figure 9
  portcullis-lab bench ycsb --protection none,memory-window,memory-region -D 10
  portcullis-lab bench ycsb --depth 1 --workload c  # latency, one at a time
  portcullis-lab bench ycsb --clients 4 --depth 64 --json
  portcullis-lab bench ycsb --blocks objects,chunks --value-bytes 984 \\
      --protection memory-window               # OneSidedMW, the store

Each mechanism has a node of its own, with the same keys, and takes turns with
the others. Rates, times and ratios are medians of the rounds; ratios are to
the first mechanism, and the first of --blocks, in the same round. A client is
a session with a thread of its own; --depth is the number of operations that
it has under way at once.

With --blocks chunks the values lie in chunks of the session that loads the
table, which its NIC hands out (OneSidedMW): no other client can read them, so
that session is the only client. At the end 90 % of the keys are removed, at
random, and the last table shows the memory that the rest takes.

Keys are drawn as in YCSB: Zipf 0.99, scrambled; for D from the latest on.
Each key has 8 bytes. Every value that is read is checked.";

/// Operations that a client has under way at once, by default.
const DEPTH: usize = 64;

/// The measurement, and how it is done.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct BenchYcsbOptions {
    /// Mixes of operations; all of the same keys, and each measured by itself.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "c", ignore_case = true)]
    workload: Vec<Workload>,
    /// Bytes of a value.
    #[arg(long, value_delimiter = ',', default_value = "64", value_name = "SIZES", value_parser = value_bytes)]
    value_bytes: Vec<u32>,
    /// How finely reads are guarded: a permission for each block, or for each extent.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "extent")]
    grain: Vec<GrainName>,
    /// The memory of the values: objects of the node, or chunks that its NIC hands out.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "objects")]
    blocks: Vec<BlocksName>,
    /// Bytes of a chunk.
    #[arg(long, default_value = "8KiB", value_name = "SIZE", value_parser = crate::size::parse)]
    chunk_bytes: u64,
    /// Keys that are loaded before the measurement.
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u32).range(1..1 << 28))]
    keys: u32,
    /// Clients, each with a session and a thread of its own.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    clients: u32,
    /// Operations that a client has under way at once.
    #[arg(long, default_value_t = DEPTH, value_parser = depth)]
    depth: usize,
    /// The table's lease: how long a client's death can hold others up [default: 1s].
    #[arg(long, value_name = "TIME")]
    lease: Option<Lifetime>,
    /// The memory of each node [default: about twice what the keys take].
    #[arg(long, value_name = "SIZE", value_parser = crate::size::parse)]
    memory: Option<u64>,
    #[command(flatten)]
    comparison: Comparison,
}

/// [`Grain`], for the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum GrainName {
    Block,
    Extent,
}

/// [`BlockMemory`], for the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum BlocksName {
    Objects,
    Chunks,
}

impl From<BlocksName> for BlockMemory {
    fn from(name: BlocksName) -> Self {
        match name {
            BlocksName::Objects => Self::Objects,
            BlocksName::Chunks => Self::Chunks,
        }
    }
}

impl From<GrainName> for Grain {
    fn from(name: GrainName) -> Self {
        match name {
            GrainName::Block => Self::Block,
            GrainName::Extent => Self::Extent,
        }
    }
}

fn value_bytes(text: &str) -> Result<u32, String> {
    let bytes = crate::size::parse(text)?;
    let fits = (8..=VALUE_BYTES_MAX as u64).contains(&bytes);
    let bytes = u32::try_from(bytes).ok().filter(|_| fits);
    bytes.ok_or_else(|| "a value has 8 bytes to 1MiB: it begins with its key".to_owned())
}

fn depth(text: &str) -> Result<usize, String> {
    let depth = text.parse().ok().filter(|depth| (1..=256).contains(depth));
    depth.ok_or_else(|| "--depth takes 1 to 256".to_owned())
}

/// A workload under one mechanism.
#[derive(Debug, Serialize)]
struct Row {
    workload: String,
    value_bytes: u32,
    grain: &'static str,
    blocks: &'static str,
    clients: u32,
    depth: usize,
    #[serde(flatten)]
    figures: Figures,
}

#[derive(Debug, Serialize)]
struct Report {
    benchmark: &'static str,
    nic: &'static str,
    keys: u32,
    rounds: usize,
    pingpong_rtt: RoundTrip,
    rows: Vec<Row>,
    singles: Vec<Single>,
    memory: Vec<Memory>,
}

/// Runs `ycsb`.
pub fn run(options: &BenchYcsbOptions) -> Result<(), BenchError> {
    options.comparison.check()?;
    if options.blocks.contains(&BlocksName::Chunks) && options.clients != 1 {
        return Err(BenchError::Options(
            "--blocks chunks takes --clients 1: only the session that loads a table reads it".to_owned(),
        ));
    }
    let drawn: Vec<(Workload, Vec<Vec<Drawn>>)> =
        options.workload.iter().map(|&workload| (workload, options.draw(workload))).collect();
    let mut report = Report {
        benchmark: "ycsb",
        nic: options.comparison.ends.nic.name(),
        keys: options.keys,
        rounds: options.comparison.rounds,
        pingpong_rtt: pingpong::round_trip(),
        rows: Vec::new(),
        singles: Vec::new(),
        memory: Vec::new(),
    };
    for &value_bytes in &options.value_bytes {
        for &grain in &options.grain {
            measure_shape(options, (value_bytes, grain.into()), &drawn, &mut report)?;
        }
    }
    if options.comparison.json {
        print_json(&report);
    } else {
        print_tables(options, &report);
    }
    Ok(())
}

/// Measures everything on tables with values of one length and reads of one grain.
fn measure_shape(
    options: &BenchYcsbOptions,
    (value_bytes, grain): (u32, Grain),
    workloads: &[(Workload, Vec<Vec<Drawn>>)],
    report: &mut Report,
) -> Result<(), BenchError> {
    let mut rivals = Vec::new();
    for blocks in &options.blocks {
        rivals.extend(load(options, Shape { value_bytes, grain, blocks: (*blocks).into() })?);
    }
    report.singles.extend(singles::run(options, &mut rivals)?);
    for (workload, drawn) in workloads {
        let figures = compare(&mut rivals, options.comparison.rounds, |rival: &mut Rival<Loaded>, round| {
            let what = rival.state.contents.shape.text();
            let name = format!("{round}: {} of {what}, {}", workload.text(), rival.mechanism);
            let (address, contents) = (rival.address(), &rival.state.contents);
            let turn = Turn { options, address, contents, length: options.comparison.turn(), name: &name };
            match rival.state.own_table() {
                None => client::measure(turn, drawn),
                Some((pipeline, table)) => client::measure_own(turn, &drawn[0], pipeline, table),
            }
        })?;
        report.rows.extend(figures.into_iter().zip(&rivals).map(|(figures, rival)| Row {
            workload: workload.text(),
            value_bytes,
            grain: grain_text(grain),
            blocks: blocks_text(rival.state.contents.shape.blocks),
            clients: options.clients,
            depth: options.depth,
            figures,
        }));
    }
    // The memory of a table does not depend on the mechanism that enforces permissions.
    for rival in rivals.iter().step_by(options.comparison.protection.len()) {
        report.memory.push(Memory::of(options, rival)?);
    }
    Ok(())
}

/// Loads a table for each mechanism.
fn load(options: &BenchYcsbOptions, shape: Shape) -> Result<Vec<Rival<Loaded>>, BenchError> {
    let what = shape.text();
    let load =
        |address: &str, mechanism| Loaded::new(options, address, shape, &format!("{what}, {mechanism}"));
    options.comparison.rivals_with(options.node_memory(shape), &options.node_chunks(shape), load)
}

impl BenchYcsbOptions {
    /// Draws the operations of each client.
    fn draw(&self, workload: Workload) -> Vec<Vec<Drawn>> {
        let each = self.comparison.turn().share(self.clients as usize).operations_below(u64::MAX);
        (0..self.clients).map(|client| draw(workload, self.keys, each, client.into())).collect()
    }
}

fn print_tables(options: &BenchYcsbOptions, report: &Report) {
    let Report { keys, rounds, pingpong_rtt, .. } = report;
    say(format_args!(
        "YCSB: {keys} keys, {} clients with {} operations under way each, medians of {rounds} rounds; pingpong RTT \
         {pingpong_rtt}",
        options.clients, options.depth
    ));
    say(rows_table(&report.rows));
    say(format_args!(
        "One at a time, one client: a bare read of 64 bytes, a get, a get of {KEYS_AT_ONCE} keys"
    ));
    say(singles_table(&report.singles));
    say("Bytes of the node's memory for each key, when all are there and when 90 % were removed");
    say(memory::as_table(&report.memory));
}

fn empty(first: &[&str], last: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header([first, &["value [B]", "grain", "blocks"], &Figures::HEADER, last].concat());
    table
}

fn rows_table(rows: &[Row]) -> Table {
    let mut table = empty(&["workload"], &[]);
    for row in rows {
        let first =
            [row.workload.clone(), row.value_bytes.to_string(), row.grain.to_owned(), row.blocks.to_owned()];
        table.add_row(first.into_iter().chain(row.figures.cells()));
    }
    table
}

fn singles_table(rows: &[Single]) -> Table {
    let mut table = empty(&["what"], &["p50 of bare read"]);
    for row in rows {
        let first =
            [row.what.to_owned(), row.value_bytes.to_string(), row.grain.to_owned(), row.blocks.to_owned()];
        let last = [format!("{:.2}", row.of_bare_read.median)];
        table.add_row(first.into_iter().chain(row.figures.cells()).chain(last));
    }
    table
}
