//! Figure 15: how fast congestion control reaches line rate and fair shares (§7.4).

use super::bench::{REGION_BYTES, begin, mean, read, world_with_servers};
use super::inputs::{OneShotInputs, micro};
use crate::one_shot::{Happening, World};
use crate::report::OutputRow;
use crate::time::{MICROSECOND, MILLISECOND, Nanos};
use portcullis_onerma::{Destination, ExecutorCounters, ServiceClass, Signal, Status, TransferId};
use std::collections::HashMap;

const RAMP: &str = "Figure 15a";
const SHARE: &str = "Figure 15b";
const TOGETHER: &str = "Figure 15c";
const DELAY: &str = "Figure 15d";

/// When the second transfer begins (§7.4).
const SECOND: Nanos = 400 * MICROSECOND;
/// Transfers of 4 MB that one destination has under way, so that none has to wait for the end of another.
const UNDER_WAY: usize = 2;
/// Round trips over which the rate of one transfer is counted. One round trip has 15 operations, too few to
/// distinguish a twentieth.
const RAMP_SPAN: u64 = 4;
/// Round trips over which the shares of two transfers are counted.
const SHARE_SPAN: u64 = 10;
/// The paper's number of round trips to line rate. `SHARE_WITHIN` is its number to fair shares.
const RAMP_WITHIN: u64 = 8;
const SHARE_WITHIN: u64 = 5;
/// The allowed deviation of a rate from its target.
const NEAR: f64 = 0.1;

/// An alarm that belongs to no server.
const SAMPLE: u64 = u64::MAX;

/// A client that reads 4 MB repeatedly from each server.
struct Run {
    world: World,
    grants: Vec<Destination>,
    client: usize,
    /// The server that each transfer reads from.
    transfers: HashMap<TransferId, usize>,
    /// The executor's counters at the end of each round trip.
    samples: Vec<ExecutorCounters>,
    /// Operations under way at the end of each round trip.
    under_way: Vec<f64>,
}

impl Run {
    /// Creates a run. `begins` has the time at which the transfers from each server begin.
    fn new(inputs: &OneShotInputs, signal: Signal, begins: &[Nanos], end: Nanos) -> Self {
        let client = begins.len();
        let mut world = world_with_servers(inputs, client + 1, 0..client, REGION_BYTES);
        world.add_executor(client, inputs.executor(signal));
        world.note_sent();
        for (server, &at) in begins.iter().enumerate() {
            world.wake(at, server as u64);
        }
        world.wake(inputs.round_trip_ns, SAMPLE);
        let grants = (0..client).map(|server| world.grant(server, client)).collect();
        let (transfers, samples, under_way) = (HashMap::new(), Vec::new(), Vec::new());
        let mut run = Self { world, grants, client, transfers, samples, under_way };
        while let Some(happening) = run.world.step(end) {
            run.react(happening, inputs.round_trip_ns);
        }
        run
    }

    fn react(&mut self, happening: Happening, round_trip: Nanos) {
        match happening {
            Happening::Alarm(SAMPLE) => {
                let (counters, operations) =
                    self.world.with_executor(self.client, |it, _| (it.counters(), it.operations()));
                self.samples.push(counters);
                self.under_way.push(operations as f64);
                self.world.wake(self.world.now() + round_trip, SAMPLE);
            }
            Happening::Alarm(server) => {
                (0..UNDER_WAY).for_each(|_| self.start(usize::try_from(server).expect("servers are few")));
            }
            Happening::Client(client) => {
                while let Some(end) = self.world.with_executor(client, |it, _| it.poll_end()) {
                    assert_eq!(end.status, Status::Ok, "a read that is repeated comes to its end");
                    let server = self.transfers.remove(&end.id).expect("it was begun");
                    self.start(server);
                }
            }
        }
    }

    fn start(&mut self, server: usize) {
        // The first transfer has half the bytes, so that transfers end one at a time.
        let bytes =
            if self.transfers.values().any(|&it| it == server) { REGION_BYTES } else { REGION_BYTES / 2 };
        let bytes = usize::try_from(bytes).expect("4 MB");
        let transfer = read(&self.grants[server], bytes, ServiceClass::Bulk);
        let id = begin(&mut self.world, self.client, transfer);
        self.transfers.insert(id, server);
    }

    fn end(&self) -> Nanos {
        self.world.now()
    }

    /// Returns the number of requests to a server in a span of time.
    fn requests(&self, server: usize, from: Nanos, until: Nanos) -> f64 {
        let sent = self.world.sent();
        let first = sent.partition_point(|it| it.0 < from);
        let span = sent[first..].iter().take_while(|it| it.0 < until);
        span.filter(|it| it.2 == server).count() as f64
    }

    /// Returns the first whole round trip after `start` from which on `holds` is true of each span of this many round
    /// trips.
    fn settled(
        &self,
        inputs: &OneShotInputs,
        (start, span): (Nanos, u64),
        holds: impl Fn(Nanos, Nanos) -> bool,
    ) -> Option<u64> {
        let (rtt, span) = (inputs.round_trip_ns, span * inputs.round_trip_ns);
        let spans = (self.end() - start - span) / rtt;
        let failed = (0..=spans).rev().find(|at| !holds(start + at * rtt, start + at * rtt + span));
        match failed {
            None => Some(0),
            Some(at) if at < spans => Some(at + 1),
            Some(_) => None,
        }
    }

    /// Returns the round trips until the first server's rate is the link's.
    fn ramp(&self, inputs: &OneShotInputs) -> Option<u64> {
        self.settled(inputs, (0, RAMP_SPAN), |from, until| {
            let carried = inputs.link_operations() * (until - from) as f64 / 1e9;
            self.requests(0, from, until) > (1.0 - NEAR / 2.0) * carried
        })
    }

    /// Returns the round trips until two servers' rates are both near half of their sum.
    fn fair(&self, inputs: &OneShotInputs) -> Option<u64> {
        self.settled(inputs, (SECOND, SHARE_SPAN), |from, until| self.apart(from, until) <= NEAR)
    }

    /// Returns how far the rates of two servers are from half of their sum, as a share of that half.
    fn apart(&self, from: Nanos, until: Nanos) -> f64 {
        let [one, other] = [0, 1].map(|server| self.requests(server, from, until));
        (one - other).abs() / (one + other).max(1.0)
    }

    /// Returns the largest such distance in spans of a few round trips, from the paper's number of round trips on.
    fn most_apart(&self, inputs: &OneShotInputs) -> f64 {
        let rtt = inputs.round_trip_ns;
        let first = SECOND + SHARE_WITHIN * rtt;
        let spans = (self.end() - first) / rtt - RAMP_SPAN;
        let apart = (0..spans).map(|at| self.apart(first + at * rtt, first + (at + RAMP_SPAN) * rtt));
        apart.fold(0.0, f64::max)
    }

    /// Returns the mean `issue_delay` in each round trip, in µs.
    fn issue_delays(&self) -> Vec<f64> {
        let pairs = self.samples.windows(2);
        let delays = pairs.map(|pair| {
            let (waited, ended) = (pair[1].issue_delay - pair[0].issue_delay, pair[1].ok - pair[0].ok);
            waited.as_secs_f64() * 1e6 / ended.max(1) as f64
        });
        delays.collect()
    }

    /// Returns the number of operations that did not end with `OK`.
    fn failures(&self) -> u64 {
        let ExecutorCounters { refused, nacks, timeouts, dispatch_timeouts, .. } =
            self.samples.last().copied().unwrap_or_default();
        refused + nacks + timeouts + dispatch_timeouts
    }
}

/// Returns round trips as a number. A rate that never settles counts as the whole run.
fn round_trips(settled: Option<u64>, inputs: &OneShotInputs, span: Nanos) -> f64 {
    settled.unwrap_or(span / inputs.round_trip_ns) as f64
}

fn ramp(inputs: &OneShotInputs) -> Vec<OutputRow> {
    let end = MILLISECOND;
    let run = Run::new(inputs, Signal::Apart, &[0], end);
    let half = end / 2;
    let rate = run.requests(0, half, end) * inputs.operation_ps() as f64 / (end - half) as f64 / 1e3;
    let link = inputs.link_bits as f64 / 1e9;
    let until = run.ramp(inputs);
    let mut rows = vec![
        OutputRow::new(RAMP, "round trips to line rate", "", round_trips(until, inputs, end))
            .paper(8.0, "§7.4: ~8 RTTs, 40 µs")
            .holds(until.is_some_and(|it| it <= RAMP_WITHIN))
            .reading(
                "95 % of what the link carries, in that and each later span of 4 round trips; it rests on the initial \
                 window, as the rows for others show",
            ),
        OutputRow::new(RAMP, "operations that were not OK", "", run.failures() as f64)
            .said("§7.4: without any outcome but OK")
            .holds(run.failures() == 0),
        OutputRow::new(RAMP, "rate of the link after that", "Gb/s", rate * link)
            .paper(100.0, "§7.4: maintains 100 Gbps")
            .holds(rate > 0.95)
            .reading("with headers, tags and framing"),
        OutputRow::new(RAMP, "operations under way", "", mean(&run.under_way[run.under_way.len() / 2..]))
            .paper(15.0, "§7.4: a CWND of 15 outstanding operations")
            .reading("on the network and before the solicitation window"),
    ];
    for initial_window in [1.0, 4.0, 8.0, 13.0] {
        let run = Run::new(&OneShotInputs { initial_window, ..*inputs }, Signal::Apart, &[0], end);
        let what = format!("round trips to line rate, initial window of {initial_window}");
        rows.push(
            OutputRow::new(RAMP, what, "", round_trips(run.ramp(inputs), inputs, end)).reading(
                "Algorithm 1 adds a quarter of an operation in a round trip, so 8 round trips come to 15 only from 13 or \
                 more",
            ),
        );
    }
    rows
}

fn shares(inputs: &OneShotInputs) -> Vec<OutputRow> {
    let end = SECOND + 5 * MILLISECOND;
    let [apart, together] =
        [Signal::Apart, Signal::Together].map(|signal| Run::new(inputs, signal, &[0, SECOND], end));
    let counted = end - SECOND;
    let [fair, slow] = [&apart, &together].map(|run| round_trips(run.fair(inputs), inputs, counted));
    let times = slow / fair.max(1.0);
    let delays = apart.issue_delays();
    let at = usize::try_from(SECOND / inputs.round_trip_ns).expect("a short run");
    let before = mean(&delays[at / 2..at - 1]);
    let peak = delays[at..].iter().copied().fold(0.0, f64::max);
    let carried = inputs.link_operations() * micro(counted) / 1e6;
    let both = apart.requests(0, SECOND, end) + apart.requests(1, SECOND, end);
    let said = "§7.4: quick convergence, ~5 RTTs";
    vec![
        OutputRow::new(SHARE, "round trips until both transfers have half", "", fair)
            .paper(5.0, said)
            .holds(apart.fair(inputs).is_some_and(|it| it <= SHARE_WITHIN))
            .reading("each within a tenth of half, in that and each later span of 10 round trips"),
        OutputRow::new(SHARE, "the most from half after 5 round trips", "%", 100.0 * apart.most_apart(inputs))
            .said(said)
            .holds(apart.most_apart(inputs) <= NEAR)
            .reading("in spans of 4 round trips, which are shorter, so that no average hides a bad one"),
        OutputRow::new(SHARE, "rate of both, of what the link carries", "%", 100.0 * both / carried)
            .said("§6: not to waste bandwidth")
            .holds(both > 0.95 * carried),
        OutputRow::new(SHARE, "operations that were not OK", "", apart.failures() as f64)
            .said("§7.5: outcomes like TIMEOUT are rare in these experiments"),
        OutputRow::new(TOGETHER, "round trips until both transfers have half", "", slow)
            .paper(100.0, "§7.4: 20 times as long as 5 RTTs"),
        OutputRow::new(TOGETHER, "as slow as with both signals", "times", times)
            .paper(20.0, "§7.4: 20x slower convergence")
            .holds(times >= 10.0)
            .reading("at least 10 times is asked for here; less than one round trip counts as one"),
        OutputRow::new(DELAY, "issue_delay before the second transfer", "µs", before),
        OutputRow::new(DELAY, "issue_delay, the most of a round trip after that", "µs", peak)
            .said("§7.4: a sharp increase")
            .holds(peak > 2.0 * before)
            .reading(
                "this executor's local window bounds all operations of the host together, so a second destination only \
                 takes turns with the first, and no more wait than before; in the paper each destination has the narrower \
                 of two windows for itself, so the sum jumps",
            ),
    ]
}

/// Returns rows for other targets. The targets are not published, and the effect of one signal depends on its target.
fn other_targets(inputs: &OneShotInputs) -> Vec<OutputRow> {
    let end = SECOND + 5 * MILLISECOND;
    let row = |remote_target_ns| {
        let inputs = OneShotInputs { remote_target_ns, ..*inputs };
        let run = Run::new(&inputs, Signal::Together, &[0, SECOND], end);
        let what =
            format!("round trips until both have half, remote target of {} µs", micro(remote_target_ns));
        OutputRow::new(TOGETHER, what, "", round_trips(run.fair(&inputs), &inputs, end - SECOND))
    };
    [7_500, 10_000].map(row).into()
}

pub(super) fn figure_15(inputs: &OneShotInputs) -> Vec<OutputRow> {
    let mut rows = ramp(inputs);
    rows.extend(shares(inputs));
    rows.extend(other_targets(inputs));
    rows
}
