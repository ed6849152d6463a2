//! Figure 16: solicitation and NACKs without congestion control (§7.5).

use super::bench::{mean, quantile, read_command};
use super::inputs::OneShotInputs;
use crate::one_shot::{Happening, World};
use crate::report::OutputRow;
use crate::time::{MICROSECOND, MILLISECOND, Nanos};
use portcullis_onerma::{Destination, Initiator, InitiatorLimits, OPERATION_MAX, SlotId, Status};
use portcullis_sim::LinkFaults;
use std::collections::{HashMap, VecDeque};

const JITTER: &str = "Figure 16a";
const SHED: &str = "Figure 16b";
const NACKS: &str = "Figure 16c";
const THRESHOLD: &str = "Figure 16d";

const BYTES: usize = OPERATION_MAX as usize;
/// The span that is counted.
const SPAN: std::ops::Range<Nanos> = 500 * MICROSECOND..MILLISECOND;
/// Windows of §7.5, in KB.
const WINDOWS: [u32; 3] = [48, 64, 96];
/// The most that a round trip is late, in µs.
const JITTERS: [u64; 7] = [0, 1, 2, 4, 8, 16, 32];
/// More slots than a client that ignores all signals has operations within a time-out.
const SLOTS: u32 = 1 << 12;

/// A run of clients that issue at a constant rate, irrespective of how operations end.
struct Greedy {
    inputs: OneShotInputs,
    clients: usize,
    threshold: u64,
    jitter: Nanos,
    /// Whether operations that failed are issued again.
    repeats: bool,
}

/// The results of operations that ended in the span.
#[derive(Default)]
struct Outcome {
    ok: u64,
    nacks: u64,
    timeouts: u64,
    dispatch_timeouts: u64,
    /// Times of operations that ended with success, from their first issue, in ns.
    times: Vec<f64>,
}

impl Outcome {
    fn count(&mut self, status: Status, took: Nanos) {
        match status {
            Status::Ok => {
                self.ok += 1;
                self.times.push(took as f64);
            }
            Status::Nack => self.nacks += 1,
            Status::Timeout => self.timeouts += 1,
            Status::DispatchTimeout => self.dispatch_timeouts += 1,
            Status::RemoteAuthenticationFailure => unreachable!("the keys are right"),
        }
    }

    /// Returns the data of successful operations as a share of the data that one link carries.
    fn goodput(&self, inputs: &OneShotInputs) -> f64 {
        self.ok as f64 / (inputs.link_operations() * (SPAN.end - SPAN.start) as f64 / 1e9)
    }

    fn share(&self, count: u64) -> f64 {
        count as f64 / (self.ok + self.nacks + self.timeouts + self.dispatch_timeouts).max(1) as f64
    }
}

/// A client that issues at a constant rate.
struct Client {
    to: Destination,
    issued: u64,
    /// Times of the first issue of operations that are under way.
    under_way: HashMap<SlotId, Nanos>,
    /// Times of the first issue of operations that failed and wait to be issued again.
    again: VecDeque<Nanos>,
}

impl Greedy {
    fn run(&self) -> Outcome {
        let mut world = self.world();
        let mut clients: Vec<Client> = (1..=self.clients)
            .map(|host| Client {
                to: world.grant(0, host),
                issued: 0,
                under_way: HashMap::new(),
                again: VecDeque::new(),
            })
            .collect();
        for host in 1..=self.clients {
            // Clients that issue at the very same time would meet in the same order for ever.
            world.wake(host as u64 * 37, host as u64);
        }
        let mut outcome = Outcome::default();
        while let Some(happening) = world.step(SPAN.end) {
            match happening {
                Happening::Alarm(host) => {
                    let host = usize::try_from(host).expect("hosts are few");
                    self.issue(&mut world, host, &mut clients[host - 1]);
                }
                Happening::Client(host) => {
                    self.collect(&mut world, host, &mut clients[host - 1], &mut outcome)
                }
            }
        }
        outcome
    }

    fn world(&self) -> World {
        let faults = LinkFaults { jitter: self.jitter / 2, ..LinkFaults::default() };
        let mut world = World::new(self.inputs.world(faults), self.clients + 1);
        let limits = portcullis_onerma::ResponderLimits {
            waiting_max: self.threshold,
            ..self.inputs.responder_limits()
        };
        world.add_responder(0, 1 << 16, limits);
        for host in 1..=self.clients {
            let limits = InitiatorLimits { slots: SLOTS, ..self.inputs.initiator_limits() };
            world.add_initiator(host, Initiator::new(limits));
        }
        world
    }

    /// Issues one operation, and sets the alarm for the next.
    fn issue(&self, world: &mut World, host: usize, client: &mut Client) {
        let at = world.now();
        let first = client.again.pop_front().unwrap_or(at);
        let command = read_command(&client.to, BYTES);
        let slot = world.with_initiator(host, |it, now| it.issue(command, now).ok());
        match slot {
            Some(slot) => {
                client.under_way.insert(slot, first);
            }
            None => client.again.push_front(first),
        }
        client.issued += 1;
        let next = client.issued * self.inputs.operation_ps() / 1000 + host as u64 * 37;
        world.wake(next, host as u64);
    }

    fn collect(&self, world: &mut World, host: usize, client: &mut Client, outcome: &mut Outcome) {
        let now = world.now();
        while let Some(end) = world.with_initiator(host, |it, _| it.poll_completion()) {
            let first = client.under_way.remove(&end.slot).expect("it was issued");
            if SPAN.contains(&now) {
                outcome.count(end.status, now - first);
            }
            if self.repeats && end.status != Status::Ok {
                client.again.push_back(first);
            }
        }
    }
}

/// Runs one client and one server, with this window and jitter.
fn alone(inputs: &OneShotInputs, window_kb: u32, jitter_us: u64) -> Outcome {
    let inputs = OneShotInputs { window_bytes: window_kb << 10, ..*inputs };
    let jitter = jitter_us * MICROSECOND;
    Greedy { threshold: inputs.nack_threshold(), inputs, clients: 1, jitter, repeats: false }.run()
}

fn jitter(inputs: &OneShotInputs) -> Vec<OutputRow> {
    let outcomes = WINDOWS.map(|window| JITTERS.map(|jitter| alone(inputs, window, jitter)));
    let goodputs = outcomes.each_ref().map(|of_window| of_window.each_ref().map(|it| it.goodput(inputs)));
    let mut rows = Vec::new();
    for (window, of_window) in WINDOWS.iter().zip(&goodputs) {
        for (jitter, goodput) in JITTERS.iter().zip(of_window) {
            let what = format!("window of {window} KB, jitter of {jitter} µs: goodput");
            rows.push(OutputRow::new(JITTER, what, "% of the link", 100.0 * goodput));
        }
    }
    let [small, equal, large] = goodputs.map(|it| it.to_vec());
    let falls = [&small, &equal, &large].iter().all(|it| it.windows(2).all(|pair| pair[1] <= pair[0] + 0.01));
    let tolerates =
        (0..JITTERS.len()).all(|at| small[at] <= equal[at] + 0.01 && equal[at] <= large[at] + 0.01);
    let claim = |what: &str, unit, value| OutputRow::new(JITTER, what, unit, value);
    let loss = claim(
        "what the worst jitter costs, window of 96 KB",
        "%",
        100.0 * (large[0] - large[JITTERS.len() - 1]),
    );
    rows.push(
        loss.said("§7.5: goodput drops with jitter").holds(falls && large[0] > large[JITTERS.len() - 1]),
    );
    let gain = mean(&large) - mean(&small);
    rows.push(
        claim("mean gain of 96 KB over 48 KB", "% of the link", 100.0 * gain)
            .said("§7.5: larger-sized solicitation windows are generally more tolerant")
            .holds(tolerates && gain > 0.0),
    );
    rows.push(
        claim("window of 64 KB without jitter", "% of the link", 100.0 * equal[0])
            .said("§7.5: in an ideal network the bandwidth-delay product suffices")
            .holds(equal[0] > 0.95 && small[0] < 0.9),
    );
    rows.extend(shed(&outcomes[1]));
    rows
}

/// Returns rows about the operations that are shed with a window of 64 KB.
fn shed(outcomes: &[Outcome]) -> Vec<OutputRow> {
    let mut rows = Vec::new();
    let rate = |count: fn(&Outcome) -> u64| -> Vec<f64> {
        outcomes.iter().map(|it| 100.0 * it.share(count(it))).collect()
    };
    let [dispatch, timeout] = [rate(|it| it.dispatch_timeouts), rate(|it| it.timeouts)];
    for (at, jitter) in JITTERS.iter().enumerate() {
        let row = |what: &str, value| {
            OutputRow::new(SHED, format!("jitter of {jitter} µs: {what}"), "% of operations", value)
        };
        rows.push(row("DISPATCH_TIMEOUT", dispatch[at]));
        rows.push(row("TIMEOUT", timeout[at]));
    }
    let first =
        |rates: &[f64]| rates.iter().position(|&it| it > 0.1).map_or(f64::INFINITY, |at| JITTERS[at] as f64);
    let (local, late) = (first(&dispatch), first(&timeout));
    rows.push(
        OutputRow::new(SHED, "the first jitter with DISPATCH_TIMEOUT", "µs", local.min(1e6))
            .said("§7.5: local load shedding comes as RTT becomes unpredictable, TIMEOUT when latency does")
            .holds(local < late && dispatch[0] < 0.1)
            .reading(format!("the first with TIMEOUT is {late} µs")),
    );
    rows
}

/// Runs this many clients, each of which requests all that the server's link carries.
fn incast(inputs: &OneShotInputs, clients: usize, window: u32, threshold: u64) -> Outcome {
    let inputs = OneShotInputs { window_bytes: window, ..*inputs };
    Greedy { inputs, clients, threshold, jitter: 0, repeats: true }.run()
}

/// A solicitation window that bounds nothing.
const WIDE: u32 = 8 << 20;

fn nacks(inputs: &OneShotInputs) -> Vec<OutputRow> {
    let threshold = inputs.nack_threshold();
    let mut rows = Vec::new();
    for (name, clients, window) in [("2 clients", 2, WIDE), ("8 clients", 8, inputs.window_bytes)] {
        let [with, without] =
            [threshold, u64::MAX].map(|most| incast(inputs, clients, window, most).goodput(inputs));
        let row = |what: &str, value| {
            let what = format!("{name}, windows of {} KB: {what}", window >> 10);
            OutputRow::new(NACKS, what, "% of the link", 100.0 * value)
        };
        let shed = row("goodput with NACKs", with).said("§7.5: NACKs shed what is not sustainable");
        rows.push(if clients == 2 {
            shed.holds(with >= 0.9).reading("at least 0.9 is asked for here")
        } else {
            shed.reading(
                "eight times what the link carries: each of seven NACKs for one answer takes 146 bytes of the same link, \
                 so more clients that ignore them leave less; the paper has two",
            )
        });
        rows.push(
            row("goodput without", without).said("§7.5: goodput collapses").holds(without < 0.5 * with),
        );
    }
    let bounded = incast(inputs, 2, inputs.window_bytes, u64::MAX).goodput(inputs);
    rows.push(OutputRow::new(NACKS, "2 clients, windows of 64 KB: goodput without", "% of the link", 100.0 * bounded).reading(
        "two windows of a bandwidth-delay product are a queue that is served within TIMEOUT, so solicitation alone is enough \
         here; the paper does not say which windows its two clients have",
    ));
    rows
}

fn thresholds(inputs: &OneShotInputs) -> Vec<OutputRow> {
    let tuned = inputs.nack_threshold();
    let all = [u64::from(OPERATION_MAX), 16 << 10, 32 << 10, tuned, 2 * tuned, 4 * tuned, 8 * tuned];
    let mut rows = Vec::new();
    let mut found = Vec::new();
    for threshold in all {
        let mut outcome = incast(inputs, 2, WIDE, threshold);
        let goodput = outcome.goodput(inputs);
        let median = quantile(&mut outcome.times, 0.5) / 1e3;
        let row = |what: &str, unit, value| {
            OutputRow::new(
                THRESHOLD,
                format!("threshold of {:.1} KB: {what}", threshold as f64 / 1024.0),
                unit,
                value,
            )
        };
        rows.push(row("goodput", "% of the link", 100.0 * goodput));
        rows.push(row("median time, with repeats", "µs", median));
        found.push((goodput, median));
    }
    let [least, .., most] = found[..] else { return rows };
    let chosen = found[3];
    let claim = |what: &str, unit, value| OutputRow::new(THRESHOLD, what, unit, value);
    rows.push(
        claim("goodput at the threshold of §6.1", "% of the link", 100.0 * chosen.0)
            .said("§7.5: no loss of goodput")
            .holds(chosen.0 >= 0.9),
    );
    rows.push(
        claim("goodput at the highest threshold", "% of the link", 100.0 * most.0)
            .said("§7.5: when the threshold is too high, goodput collapses")
            .holds(most.0 < 0.5 * chosen.0),
    );
    rows.push(
        claim("median time at the lowest threshold, of that at §6.1's", "times", least.1 / chosen.1)
            .said("§7.5: at lower thresholds more retries, so a higher median, but no loss of goodput")
            .holds(least.1 > chosen.1 && least.0 >= 0.9)
            .reading(
                "half of all requests are NACKed at any threshold, as the demand is twice the rate, and half of the operations \
                 succeed at once: a lower threshold only shortens the queue that those meet",
            ),
    );
    rows
}

pub(super) fn figure_16(inputs: &OneShotInputs) -> Vec<OutputRow> {
    let mut rows = jitter(inputs);
    rows.extend(nacks(inputs));
    rows.extend(thresholds(inputs));
    rows
}
