//! The rate at which permissions are acquired and ended: the steps of Patronus, Table 4.

use super::course::Course;
use super::latency::LIFETIME;
use super::node_process::{Counted, NodeProcess, Setup};
use super::pause::{Pause, give_way};
use super::report::{Setting, print_json};
use super::{BenchError, BenchOptions, pingpong};
use crate::output::say;
use crate::samples::{Samples, mops, per};
use comfy_table::{Table, presets};
use portcullis::{
    Acquire, Allocate, Answer, BarePermission, Batch, Call, Client, ControlRequest, Lifetime, Moment,
    ObjectRef, Session, SessionEndpoint,
};
use serde::Serialize;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

const WARM_UP: u64 = 50_000;
/// Objects that permissions are acquired over, at random.
const OBJECTS: usize = 16_384;
/// Requests in flight at once if each has a message: fewer than the control queue pair holds.
const UNDER_WAY: usize = 48;
/// Requests in flight at once if messages carry [`PACKED`] each.
const UNDER_WAY_PACKED: usize = 4 * PACKED;
/// Requests of a packed message.
const PACKED: usize = 64;
/// The lease of the last step, as in the paper's evaluation (Patronus §7.2.4).
const SHORT_LEASE: Lifetime = Lifetime::micros(100);

/// A row of Table 4.
struct EvaluationStep {
    name: &'static str,
    without: &'static [&'static str],
    course: LifeCourse,
}

/// How permissions are requested and ended.
#[derive(Clone, Copy, Debug)]
pub struct LifeCourse {
    /// Whether permissions expire instead of being revoked.
    pub expire: bool,
    /// Whether messages carry [`PACKED`] requests, and not one.
    pub is_packed: bool,
}

impl LifeCourse {
    /// Each request has a message, and permissions are revoked.
    pub const SINGLE: Self = Self { expire: false, is_packed: false };

    fn under_way(self) -> usize {
        if self.is_packed { UNDER_WAY_PACKED } else { UNDER_WAY }
    }

    /// Returns the number of requests that begin together.
    fn at_once(self) -> usize {
        if self.is_packed { PACKED } else { 1 }
    }

    /// The options of a node that has room for this many requests.
    fn node_options(self) -> Vec<String> {
        if self.is_packed {
            vec![format!("--requests-per-message={PACKED}")]
        } else {
            vec!["--control-depth=64".to_owned()]
        }
    }
}

/// The steps of the paper, and one that it does not have: messages that carry many requests.
const STEPS: [EvaluationStep; 6] = [
    EvaluationStep {
        name: "Baseline",
        without: &["delayed-unbinding", "contiguity", "handover"],
        course: LifeCourse::SINGLE,
    },
    EvaluationStep { name: "+ Delay", without: &["contiguity", "handover"], course: LifeCourse::SINGLE },
    EvaluationStep { name: "+ Cont", without: &["handover"], course: LifeCourse::SINGLE },
    EvaluationStep { name: "+ HO", without: &[], course: LifeCourse::SINGLE },
    EvaluationStep {
        name: "+ HO, 64 a message",
        without: &[],
        course: LifeCourse { expire: false, is_packed: true },
    },
    EvaluationStep { name: "+ Expr", without: &[], course: LifeCourse { expire: true, is_packed: false } },
];

#[derive(Debug, Serialize)]
struct Row {
    name: &'static str,
    /// Permissions acquired and ended, in millions a second.
    mops: f64,
    /// Binds, rebinds and unbinds for each permission.
    window_operations: f64,
    control_messages: f64,
    /// Time from the request for a permission until it is held, in microseconds.
    p50: f64,
    p99: f64,
}

#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    setting: Setting,
    steps: Vec<Row>,
}

/// Measures all steps, each on a node of its own.
pub fn run(options: &BenchOptions) -> Result<(), BenchError> {
    let pingpong_rtt = pingpong::round_trip();
    let mut steps = Vec::new();
    let mut iterations = 0;
    for step in &STEPS {
        let (row, counted) = run_step(options, step)?;
        steps.push(row);
        iterations = counted;
    }
    let report = Report { setting: Setting::new(options, iterations, pingpong_rtt), steps };
    if options.json {
        print_json(&report);
    } else {
        print_table(&report);
    }
    Ok(())
}

fn print_table(report: &Report) {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["step", "Mops", "window operations", "RPCs", "p50 [usec]", "p99 [usec]"]);
    for row in &report.steps {
        table.add_row([
            row.name.to_owned(),
            format!("{:.3}", row.mops),
            format!("{:.2}", row.window_operations),
            format!("{:.2}", row.control_messages),
            format!("{:.2}", row.p50),
            format!("{:.2}", row.p99),
        ]);
    }
    let Setting { size, iterations, pingpong_rtt, .. } = report.setting;
    say(format_args!(
        "Permissions over {size} bytes acquired and ended, {iterations} in the last step; pingpong RTT \
         {pingpong_rtt}\n{table}"
    ));
}

fn run_step(options: &BenchOptions, step: &EvaluationStep) -> Result<(Row, u64), BenchError> {
    let setup = Setup { without: step.without.to_vec(), ..options.setup() };
    let run = Run::on_own_node(options, &setup, (step.name, step.course))?;
    Ok((run.row(step), run.ended))
}

/// A measurement on a node of its own.
pub struct Run {
    /// Permissions that ended during the measurement.
    pub ended: u64,
    elapsed: Duration,
    before: Counted,
    after: Counted,
    samples: Samples,
}

impl Run {
    /// Starts a node and measures it.
    pub fn on_own_node(
        options: &BenchOptions,
        setup: &Setup,
        (name, course_of_lives): (&str, LifeCourse),
    ) -> Result<Self, BenchError> {
        let more = [&setup.more[..], &course_of_lives.node_options()].concat();
        let mut node = NodeProcess::start(&Setup { more, ..setup.clone() })?;
        let mut session = options.connect(node.address())?;
        let objects = make_objects(&mut session, options.size)?;
        let mut life = Lives::new(objects, course_of_lives);
        let mut warm_up = Course::warm_up(options, WARM_UP);
        while !warm_up.over(life.ended) {
            life.turn(&mut session)?;
        }
        life.samples = Samples::new();
        let before = node.counted()?;
        let from = life.ended;
        let mut course = Course::new(options, name);
        while !course.over(life.ended - from) {
            life.turn(&mut session)?;
        }
        let (ended, elapsed) = (life.ended - from, course.elapsed());
        let after = node.counted()?;
        life.drain(&mut session)?;
        Ok(Self { ended, elapsed, before, after, samples: life.samples })
    }

    /// In millions per second.
    pub fn mops(&self) -> f64 {
        mops(self.ended, self.elapsed)
    }

    /// Percentage of audit records that were lost during the measurement.
    pub fn percent_lost(&self) -> f64 {
        let lost = self.after.audit_lost - self.before.audit_lost;
        // A grant and an end for each permission.
        100.0 * per(lost, 2 * (self.after.grants - self.before.grants))
    }

    fn row(&self, step: &EvaluationStep) -> Row {
        let lives = self.after.grants - self.before.grants;
        Row {
            name: step.name,
            mops: self.mops(),
            window_operations: per(self.after.window_operations - self.before.window_operations, lives),
            control_messages: per(self.after.control_messages - self.before.control_messages, lives),
            p50: self.samples.quantile(0.5),
            p99: self.samples.quantile(0.99),
        }
    }
}

/// Allocates kept objects without holders.
fn make_objects(session: &mut Session, size: u64) -> Result<Vec<ObjectRef>, BenchError> {
    let mut objects = Vec::with_capacity(OBJECTS);
    for _ in 0..OBJECTS {
        let object = session.allocate(Allocate::bytes(size).keep().lifetime(LIFETIME))?;
        objects.push(object.object());
        session.revoke(object)?;
    }
    Ok(objects)
}

/// Permissions that are being acquired and ended.
pub struct Lives {
    objects: Vec<ObjectRef>,
    course: LifeCourse,
    random: u64,
    acquiring: VecDeque<(Call, Instant)>,
    /// Permissions that are to be revoked.
    held: VecDeque<BarePermission>,
    revoking: VecDeque<Call>,
    samples: Samples,
    ended: u64,
}

impl Lives {
    /// Permissions over new objects of `size` bytes each, which are revoked.
    pub fn over_new_objects(session: &mut Session, size: u64) -> Result<Self, BenchError> {
        Ok(Self::new(make_objects(session, size)?, LifeCourse::SINGLE))
    }

    fn new(objects: Vec<ObjectRef>, course: LifeCourse) -> Self {
        Self {
            objects,
            course,
            random: 0x9e37_79b9_7f4a_7c15,
            acquiring: VecDeque::new(),
            held: VecDeque::new(),
            revoking: VecDeque::new(),
            samples: Samples::new(),
            ended: 0,
        }
    }

    /// A number of a xorshift generator. It is random enough to miss caches.
    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random >> 11
    }

    fn object(&mut self) -> ObjectRef {
        let index = usize::try_from(self.random()).unwrap_or(0) % self.objects.len();
        self.objects[index]
    }

    /// Begins as many requests as there is room for, and takes those that have ended.
    pub fn turn(&mut self, session: &mut Session) -> Result<(), BenchError> {
        let (at, at_once) = (Instant::now(), self.course.at_once());
        while self.acquiring.len() + self.revoking.len() + at_once <= self.course.under_way()
            && session.client().room_for_calls() >= at_once
        {
            self.begin(session, at, at_once)?;
        }
        if session.poll() == 0 {
            give_way();
        }
        self.take(session, Instant::now())
    }

    /// Begins `count` requests together.
    fn begin(&mut self, session: &mut Session, at: Instant, count: usize) -> Result<(), BenchError> {
        let now = session.at(at);
        let mut beginning = Beginning::of(session, now, count);
        for _ in 0..count {
            match self.next_to_revoke() {
                Some(permission) => {
                    self.revoking.push_back(beginning.call(ControlRequest::revoke(permission))?);
                }
                None => {
                    let lifetime = if self.course.expire { SHORT_LEASE } else { LIFETIME };
                    let request = Acquire::object(self.object()).shared().lifetime(lifetime).wait(LIFETIME);
                    self.acquiring.push_back((beginning.call(request.into())?, at));
                }
            }
        }
        beginning.post();
        Ok(())
    }

    /// Takes a permission that the next request revokes. `None`: the next request acquires one.
    ///
    /// A coin decides, so requests of both kinds arrive mixed, as those of many clients do. In a fixed order they would
    /// arrive in groups of one kind or mixed, depending on how many requests the node takes in a turn.
    fn next_to_revoke(&mut self) -> Option<BarePermission> {
        let is_full = self.held.len() >= self.course.under_way();
        if is_full || self.random() & 1 == 0 { self.held.pop_front() } else { None }
    }

    fn take(&mut self, session: &mut Session, at: Instant) -> Result<(), BenchError> {
        while let Some(&(call, asked)) = self.acquiring.front() {
            let Some(answer) = session.client().take_call(call) else { break };
            self.acquiring.pop_front();
            self.samples.add(at - asked);
            let Answer::Granted(permission) = answer? else { continue };
            if self.course.expire {
                // Nothing is sent: the permission expires.
                self.ended += 1;
            } else {
                self.held.push_back(permission);
            }
        }
        while let Some(&call) = self.revoking.front() {
            let Some(answer) = session.client().take_call(call) else { break };
            self.revoking.pop_front();
            answer?;
            self.ended += 1;
        }
        Ok(())
    }

    /// Permissions that have ended since the figures were taken last.
    pub fn ended(&self) -> u64 {
        self.ended
    }

    /// Takes the figures since the last call: the number of permissions that have ended, and the times from request to
    /// grant.
    pub fn take_figures(&mut self) -> (u64, Samples) {
        (std::mem::take(&mut self.ended), std::mem::replace(&mut self.samples, Samples::new()))
    }

    /// Revokes what is held, and waits until nothing is under way.
    pub fn drain(&mut self, session: &mut Session) -> Result<(), BenchError> {
        let mut pause = Pause::new();
        while !(self.acquiring.is_empty() && self.held.is_empty() && self.revoking.is_empty()) {
            match session.poll() {
                0 => pause.pass(),
                _ => pause.reset(),
            }
            let at = Instant::now();
            self.take(session, at)?;
            let (count, now) = (self.held.len().min(session.client().room_for_calls()), session.at(at));
            let mut beginning = Beginning::of(session, now, count);
            for permission in self.held.drain(..count) {
                self.revoking.push_back(beginning.call(ControlRequest::revoke(permission))?);
            }
            beginning.post();
        }
        Ok(())
    }
}

/// Requests that begin together. One travels alone, several share messages.
enum Beginning<'a> {
    Single(&'a mut Client<SessionEndpoint>, Moment),
    Packed(Batch<'a, SessionEndpoint>, Moment),
}

impl<'a> Beginning<'a> {
    /// Begins with none of `count` requests, for which the caller has found room.
    fn of(session: &'a mut Session, now: Moment, count: usize) -> Self {
        match count {
            1 => Self::Single(session.client(), now),
            _ => Self::Packed(session.client().batch(), now),
        }
    }

    fn call(&mut self, request: ControlRequest) -> Result<Call, BenchError> {
        let call = match self {
            Self::Single(client, now) => client.call(*now, request),
            Self::Packed(batch, now) => batch.call(*now, request),
        };
        call.map_err(|refused| refused.error.into())
    }

    fn post(self) {
        if let Self::Packed(batch, _) = self {
            batch.post();
        }
    }
}
