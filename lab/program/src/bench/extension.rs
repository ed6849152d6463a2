//! Ways to keep a permission: acquiring again, extending by RPC, and extending by the client alone (Patronus §7.2.2).

use super::course::Course;
use super::latency::LIFETIME;
use super::node_process::{NodeProcess, Setup};
use super::pause::give_way;
use super::report::{Setting, print_json};
use super::{BenchError, BenchOptions, pingpong};
use crate::output::say;
use crate::samples::{Samples, mops};
use comfy_table::{Table, presets};
use portcullis::{
    Acquire, Allocate, Answer, BarePermission, Call, ControlRequest, Error, Lifetime, NotBegun, ObjectRef,
    Refusal, Session,
};
use serde::Serialize;
use std::collections::VecDeque;
use std::time::Instant;

const WARM_UP: u64 = 20_000;
/// Permissions that are kept alive at once. Each takes a message, of which a client has 31 under way by default.
const HELD: usize = 24;
/// Extensions of a permission before its holder takes another (Patronus §7.2.2).
const EXTENSIONS: u32 = 8;
const LEASE: Lifetime = Lifetime::micros(100);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Reacquire,
    Rpc,
    Client,
}

#[derive(Debug, Serialize)]
struct Row {
    name: &'static str,
    /// Extensions, or acquisitions in their place, in millions per second.
    mops: f64,
    /// Time of one of them, in microseconds.
    p50: f64,
    p99: f64,
    /// Relative to acquiring again.
    gain: f64,
}

#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    setting: Setting,
    rows: Vec<Row>,
}

/// Measures the three ways, each on a node of its own.
pub fn run(options: &BenchOptions) -> Result<(), BenchError> {
    let pingpong_rtt = pingpong::round_trip();
    let mut rows: Vec<Row> = Vec::new();
    let mut iterations = 0;
    for (name, way) in [("Re-acquire", Way::Reacquire), ("+ Extend", Way::Rpc), ("+ CN Extend", Way::Client)]
    {
        let mut row = run_way(options, name, way, &mut iterations)?;
        row.gain = row.mops / rows.first().map_or(row.mops, |first| first.mops);
        rows.push(row);
    }
    let report = Report { setting: Setting::new(options, iterations, pingpong_rtt), rows };
    if options.json {
        print_json(&report);
        return Ok(());
    }
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["way", "Mops", "p50 [usec]", "p99 [usec]", "gain"]);
    for row in &report.rows {
        table.add_row([
            row.name.to_owned(),
            format!("{:.3}", row.mops),
            format!("{:.2}", row.p50),
            format!("{:.2}", row.p99),
            format!("x{:.1}", row.gain),
        ]);
    }
    say(format_args!("Extensions, {EXTENSIONS} a permission; pingpong RTT {pingpong_rtt}\n{table}"));
    Ok(())
}

fn run_way(
    options: &BenchOptions,
    name: &'static str,
    way: Way,
    iterations: &mut u64,
) -> Result<Row, BenchError> {
    // With such a short lease some extensions arrive too late. These violations must cost nothing.
    let violations_free = Some(u32::MAX);
    let setup = Setup { violations_free, ..options.setup() };
    let node = NodeProcess::start(&setup)?;
    let mut session = options.connect(node.address())?;
    let mut holders = Holders::new(&mut session, way, options.size)?;
    let mut warm_up = Course::warm_up(options, WARM_UP);
    while !warm_up.over(holders.extended) {
        holders.turn(&mut session)?;
    }
    holders.samples = Samples::new();
    let from = holders.extended;
    let mut course = Course::new(options, name);
    while !course.over(holders.extended - from) {
        holders.turn(&mut session)?;
    }
    let (counted, elapsed) = (holders.extended - from, course.elapsed());
    *iterations = counted;
    let samples = &holders.samples;
    Ok(Row {
        name,
        mops: mops(counted, elapsed),
        p50: samples.quantile(0.5),
        p99: samples.quantile(0.99),
        gain: 1.0,
    })
}

/// A holder of a permission, which it wants to keep.
struct Holder {
    object: ObjectRef,
    permission: Option<BarePermission>,
    extensions: u32,
}

struct Holders {
    way: Way,
    holders: Vec<Holder>,
    /// Pending extensions by the client alone, with their holders. They end in order.
    extending: VecDeque<(usize, Call, Instant)>,
    /// Pending requests to the node, which end in order as well.
    asking: VecDeque<(usize, Call, Instant)>,
    samples: Samples,
    extended: u64,
}

impl Holders {
    fn new(session: &mut Session, way: Way, size: u64) -> Result<Self, BenchError> {
        let mut holders = Vec::new();
        for _ in 0..HELD {
            let made = session.allocate(Allocate::bytes(size).keep().lifetime(LIFETIME))?;
            holders.push(Holder { object: made.object(), permission: None, extensions: 0 });
            session.revoke(made)?;
        }
        let mut all = Self {
            way,
            holders,
            extending: VecDeque::new(),
            asking: VecDeque::new(),
            samples: Samples::new(),
            extended: 0,
        };
        let everybody: Vec<usize> = (0..HELD).collect();
        all.go_on(session, &everybody, Instant::now())?;
        Ok(all)
    }

    /// Begins the next step of some holders. The clock is read once for all of them, and extensions share a doorbell.
    fn go_on(&mut self, session: &mut Session, indices: &[usize], at: Instant) -> Result<(), BenchError> {
        let now = session.at(at);
        let mut batch = session.client().batch();
        let mut others = Vec::new();
        for &index in indices {
            let holder = &self.holders[index];
            match holder.permission.as_ref().filter(|_| holder.extensions < EXTENSIONS) {
                Some(permission) if self.way == Way::Client => {
                    let longer = permission.lease().deadline().after(LEASE);
                    match batch.call(now, ControlRequest::extend(permission, longer.since(now))) {
                        Ok(call) => self.extending.push_back((index, call, at)),
                        Err(NotBegun { error: Error::Expired, .. }) => others.push(index),
                        Err(refused) => return Err(refused.error.into()),
                    }
                }
                _ => others.push(index),
            }
        }
        batch.post();
        for index in others {
            self.ask_node(session, index, at)?;
        }
        Ok(())
    }

    /// Begins a step that needs the node's CPU.
    fn ask_node(&mut self, session: &mut Session, index: usize, at: Instant) -> Result<(), BenchError> {
        let now = session.at(at);
        let holder = &mut self.holders[index];
        let alive = holder.permission.as_ref().filter(|_| holder.extensions < EXTENSIONS);
        let extended = match (self.way, alive) {
            (Way::Rpc, Some(permission)) => {
                let longer = permission.lease().deadline().after(LEASE);
                Some(session.client().extend_by_rpc(now, permission.lease(), longer))
            }
            _ => None,
        };
        let call = match extended {
            Some(Err(Error::Expired)) | None => {
                // The old permission expires by itself.
                holder.permission = None;
                let ask = Acquire::object(holder.object).shared().lifetime(LEASE).wait(LIFETIME);
                session.client().call(now, ask).map_err(Error::from)
            }
            Some(call) => call,
        };
        self.asking.push_back((index, call?, at));
        Ok(())
    }

    /// The next holder whose step has ended.
    fn next_ended(&mut self, session: &mut Session) -> Option<(usize, Instant, Result<Answer, Error>)> {
        for under_way in [&mut self.extending, &mut self.asking] {
            if let Some(&(index, call, asked)) = under_way.front()
                && let Some(answer) = session.client().take_call(call)
            {
                under_way.pop_front();
                return Some((index, asked, answer));
            }
        }
        None
    }

    fn turn(&mut self, session: &mut Session) -> Result<(), BenchError> {
        if session.poll() == 0 {
            give_way();
        }
        let at = Instant::now();
        let mut idle = Vec::with_capacity(HELD);
        while let Some((index, asked, answer)) = self.next_ended(session) {
            let holder = &mut self.holders[index];
            match answer {
                Ok(Answer::Granted(permission)) => {
                    holder.permission = Some(permission);
                    holder.extensions = 0;
                    if self.way == Way::Reacquire {
                        self.extended += 1;
                        self.samples.add(at - asked);
                    }
                }
                Ok(Answer::Extended(_)) => {
                    holder.extensions += 1;
                    self.extended += 1;
                    self.samples.add(at - asked);
                }
                Ok(Answer::Done | Answer::Entry(_) | Answer::EndOfList | Answer::Chunks(_)) => {}
                Err(Error::Expired | Error::Revoked | Error::Refused(Refusal::NotExtendable)) => {
                    holder.permission = None;
                }
                Err(error) => return Err(error.into()),
            }
            idle.push(index);
        }
        self.go_on(session, &idle, at)
    }
}
