//! The report of `bench scale`.

use super::super::pingpong::RoundTrip;
use super::super::processors;
use super::super::rivals::Measured;
use super::gateway::LOAD_THREADS;
use super::sizing::Sizing;
use super::{BenchScaleOptions, PROTECTION, What};
use crate::network::NicKind;
use crate::output::say;
use comfy_table::{Table, presets};
use serde::Serialize;

/// The rate of one number of clients.
#[derive(Debug, Serialize)]
pub struct Row {
    what: &'static str,
    /// Bytes of an operation.
    bytes: u32,
    clients: u32,
    /// Millions of operations a second, of all clients together.
    mops: f64,
    /// 10^9 bytes a second.
    gbps: f64,
    /// In microseconds; absent if no operation, or batch of reads, that began in the measurement ended in it.
    p50: Option<f64>,
    p99: Option<f64>,
    /// 10^9 bytes a second of memcpy by as many threads.
    memcpy_gbps: f64,
}

impl Row {
    pub fn new(
        (what, bytes): (&'static str, u32),
        clients: u32,
        measured: &Measured,
        copied: &Measured,
    ) -> Self {
        let gbps = |mops: f64| mops * f64::from(bytes) / 1_000.0;
        let time = |micros: f64| Some(micros).filter(|&micros| micros > 0.0);
        Self {
            what,
            bytes,
            clients,
            mops: measured.mops,
            gbps: gbps(measured.mops),
            p50: time(measured.p50()),
            p99: time(measured.p99()),
            memcpy_gbps: gbps(copied.mops),
        }
    }
}

/// The results, with the names that programs read.
#[derive(Debug, Serialize)]
pub struct Report {
    benchmark: &'static str,
    /// The NIC of all rows but those over UDP.
    nic: &'static str,
    protection: &'static str,
    /// Number of processors that the run could use.
    processors: usize,
    /// Seconds of a row.
    duration: f64,
    object_bytes: u64,
    table_keys: u32,
    pingpong_rtt: RoundTrip,
    /// Conditions that the rows do not show.
    notes: Vec<String>,
    rows: Vec<Row>,
}

impl Report {
    pub fn new(
        clients: &[u32],
        options: &BenchScaleOptions,
        sizing: &Sizing,
        pingpong_rtt: RoundTrip,
        rows: Vec<Row>,
    ) -> Self {
        let processors = processors::count();
        Self {
            benchmark: "scale",
            nic: NicKind::Software.name(),
            protection: PROTECTION.name(),
            processors,
            duration: options.duration.as_secs_f64(),
            object_bytes: sizing.object_bytes,
            table_keys: sizing.table_keys(),
            pingpong_rtt,
            notes: notes(clients, options, sizing, processors),
            rows,
        }
    }

    pub fn print_table(&self) {
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        table.set_header([
            "what",
            "bytes",
            "clients",
            "Mops",
            "GB/s",
            "p50 [usec]",
            "p99 [usec]",
            "memcpy [GB/s]",
            "of memcpy",
        ]);
        for row in &self.rows {
            let Row { what, bytes, clients, mops, gbps, p50, p99, memcpy_gbps } = row;
            let counts = [(*what).to_owned(), bytes.to_string(), clients.to_string()];
            let rates = [*mops, *gbps].map(Some);
            let memcpy = [*memcpy_gbps, gbps / memcpy_gbps].map(Some);
            let figures = rates.into_iter().chain([*p50, *p99]).chain(memcpy);
            let text =
                |figure: Option<f64>| figure.map_or_else(|| "-".to_owned(), |figure| format!("{figure:.3}"));
            table.add_row(counts.into_iter().chain(figures.map(text)));
        }
        let Self { processors, duration, object_bytes, pingpong_rtt, .. } = self;
        say(format_args!(
            "Clients of one node, {processors} processors, {duration} s a row, objects of {object_bytes} bytes; GB are \
             10^9 bytes; pingpong RTT {pingpong_rtt}\n{table}"
        ));
        self.notes.iter().for_each(say);
    }
}

/// The conditions of a run that its rows do not show.
fn notes(clients: &[u32], options: &BenchScaleOptions, sizing: &Sizing, processors: usize) -> Vec<String> {
    let mut notes = Vec::new();
    if sizing.reduced {
        notes.push(format!(
            "The machine has too little memory for objects of 64 MiB: they have {} bytes.",
            sizing.object_bytes
        ));
    }
    let shared: Vec<String> = shared(clients, 1, processors).map(|count| count.to_string()).collect();
    if !shared.is_empty() {
        notes.push(format!(
            "Time-shared: the node and {} clients are more threads than the {processors} processors.",
            shared.join(", ")
        ));
    }
    let with_load: Vec<String> =
        self::shared(clients, 1 + LOAD_THREADS, processors).map(|count| count.to_string()).collect();
    if options.what.contains(&What::Gateway) && !with_load.is_empty() {
        notes.push(format!(
            "Time-shared: the node, {} threads of the gateway and {LOAD_THREADS} of its load are more than the \
             {processors} processors.",
            with_load.join(", ")
        ));
    }
    notes
}

/// The numbers of clients with which there are more threads than processors, if `others` threads work beside them.
fn shared(clients: &[u32], others: usize, processors: usize) -> impl Iterator<Item = u32> {
    clients.iter().copied().filter(move |&count| count as usize + others > processors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_without_a_processor_of_their_own_are_found() {
        let shared = |others, processors| shared(&[1, 2, 4, 8], others, processors).collect::<Vec<_>>();
        assert_eq!(shared(1, 1), [1, 2, 4, 8]);
        assert_eq!(shared(1, 5), [8]);
        assert!(shared(1, 9).is_empty());
        assert_eq!(shared(5, 9), [8]);
    }
}
