//! The output of benchmarks: perftest's table, or one JSON object.

use super::pingpong::RoundTrip;
use super::{BenchOptions, Name, pingpong};
use crate::network::NicKind;
use crate::output::{complain, say};
use crate::samples::Summary;
use portcullis::Mechanism;
use serde::Serialize;
use std::fmt::Write;

/// Size from which a latency report includes the bandwidth. For smaller sizes a latency does not indicate the
/// bandwidth.
const BANDWIDTH_FROM: u64 = 4096;

/// The setting of a measurement, in every report.
#[derive(Debug, Serialize)]
pub struct Setting {
    pub benchmark: String,
    pub nic: &'static str,
    pub protection: &'static str,
    pub size: u64,
    pub iterations: u64,
    pub pingpong_rtt: RoundTrip,
    /// Over UDP: a round trip of datagrams of this size between the same two processors, both of which poll.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub udp_rtt: Option<f64>,
}

impl Setting {
    pub fn new(options: &BenchOptions, iterations: u64, pingpong_rtt: RoundTrip) -> Self {
        let is_udp = options.nic() == NicKind::Udp;
        let size = if options.name == Name::AtomicLat { 8 } else { options.size };
        Self {
            benchmark: options.name.text(),
            nic: options.nic().name(),
            // A running node has its own protection, which is unknown to the benchmark.
            protection: match &options.node {
                _ if is_udp => Mechanism::RegionKey.name(),
                Some(_) => "the node's own",
                None => options.protection.name(),
            },
            size,
            iterations,
            pingpong_rtt,
            udp_rtt: if is_udp { pingpong::udp_round_trip(size) } else { None },
        }
    }
}

/// The results, with the names that programs read.
#[derive(Debug, Serialize)]
pub struct Report {
    #[serde(flatten)]
    pub setting: Setting,
    #[serde(flatten)]
    pub times: Option<Summary>,
    pub mops: f64,
    /// In MiB per second: for rates, and for latencies from 4 KiB on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bw_average: Option<f64>,
    pub outstanding: usize,
    pub queue_pairs: usize,
}

impl Report {
    pub fn new(options: &BenchOptions, iterations: u64, pingpong_rtt: RoundTrip) -> Self {
        Self {
            setting: Setting::new(options, iterations, pingpong_rtt),
            times: None,
            mops: 0.0,
            bw_average: None,
            outstanding: 1,
            queue_pairs: 1,
        }
    }

    /// Sets the rate in millions of operations per second, and the bandwidth.
    pub fn set_rate(&mut self, mops: f64) {
        self.mops = mops;
        let told = !self.is_latency() || self.setting.size >= BANDWIDTH_FROM;
        self.bw_average = told.then(|| mops * 1e6 * bytes(self.setting.size) / f64::from(1 << 20));
    }

    fn connection(&self) -> &'static str {
        if self.setting.nic == NicKind::Udp.name() { "none (UDP)" } else { "RC" }
    }

    fn is_latency(&self) -> bool {
        self.setting.benchmark.ends_with("_lat")
    }

    pub fn print(&self, json: bool) {
        if json {
            print_json(self);
        } else {
            say(self.table().trim_end());
        }
    }

    fn table(&self) -> String {
        let line = "-".repeat(100);
        let mut text = String::new();
        let _ = writeln!(text, "{line}\n                    {}", title(&self.setting.benchmark));
        let _ = writeln!(
            text,
            " NIC             : {:<20} Protection      : {}",
            self.setting.nic, self.setting.protection
        );
        let _ = writeln!(
            text,
            " Connection type : {:<20} Number of qps   : {}",
            self.connection(),
            self.queue_pairs
        );
        let _ = writeln!(
            text,
            " Outstanding     : {:<20} pingpong RTT    : {}",
            self.outstanding, self.setting.pingpong_rtt
        );
        if let Some(udp_rtt) = self.setting.udp_rtt {
            let _ = writeln!(text, " {:<37} UDP RTT         : {udp_rtt:.3} usec", "");
        }
        let _ = writeln!(text, "{line}");
        if self.is_latency()
            && let Some(times) = self.times
        {
            self.latencies(&mut text, times);
        } else {
            let _ = writeln!(text, " #bytes     #iterations    BW average[MiB/sec]   MsgRate[Mpps]");
            let _ = writeln!(
                text,
                " {:<10} {:<14} {:<21.2} {:.6}",
                self.setting.size,
                self.setting.iterations,
                self.bw_average.unwrap_or_default(),
                self.mops
            );
        }
        let _ = writeln!(text, "{line}");
        text
    }

    fn latencies(&self, text: &mut String, times: Summary) {
        let bandwidth = self.bw_average.map(|mebibytes| format!("                    {mebibytes:.2}"));
        let heading = if bandwidth.is_some() { "   BW average[MiB/sec]" } else { "" };
        let _ = writeln!(
            text,
            " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]{heading}"
        );
        let _ = writeln!(
            text,
            " {:<6} {:<14} {:<14.3} {:<12.3} {:<16.3} {:<14.3} {:<15.3} {:<22.3} {:.3}{}",
            self.setting.size,
            self.setting.iterations,
            times.t_min,
            times.t_max,
            times.t_typical,
            times.t_avg,
            times.t_stdev,
            times.p99,
            times.p999,
            bandwidth.unwrap_or_default()
        );
    }
}

#[allow(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
fn bytes(size: u64) -> f64 {
    size as f64
}

fn title(benchmark: &str) -> String {
    let what = match benchmark {
        "read_lat" => "RDMA_Read Latency Test",
        "write_lat" => "RDMA_Write Latency Test (full round trip)",
        "atomic_lat" => "Atomic FETCH_AND_ADD Latency Test",
        "read_rate" => "RDMA_Read Rate Test",
        "write_rate" => "RDMA_Write Rate Test",
        other => other,
    };
    what.to_owned()
}

/// Prints one object on standard output.
pub fn print_json(value: &impl Serialize) {
    match serde_json::to_string_pretty(value) {
        Ok(text) => say(text),
        Err(error) => complain(format_args!("portcullis-lab bench: {error}")),
    }
}
