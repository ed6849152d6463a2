//! The time for which a violation interrupts the client that commits it, and other clients: the rows of Patronus, Table
//! 5.

use super::course::Course;
use super::latency::LIFETIME;
use super::node_process::{NodeProcess, Setup};
use super::pause::Pause;
use super::report::{Setting, print_json};
use super::{BenchError, BenchOptions, pingpong};
use crate::output::say;
use crate::samples::Samples;
use comfy_table::{Table, presets};
use portcullis::{
    Access, Allocate, AtDrop, ClientConfig, Error, Permission, RemoteAddress, Rkey, Session, SessionOptions,
    Unchecked,
};
use serde::Serialize;
use std::time::Instant;

/// Operations behind the violation, which have to be posted again.
const BEHIND: usize = 4;
/// Operations of the innocent client around each violation.
const INNOCENT: u64 = 16;

/// Medians in microseconds, one for each row of Table 5. A step that a case does not have is `null`.
#[derive(Debug, Serialize)]
struct Case {
    /// Time from posting the violation to its error.
    failure_reported: f64,
    /// Time to put a spare queue pair in use and post the flushed operations on it.
    promote_qp: Option<f64>,
    /// Time from the error until the client requested a rebuild from the node.
    notify_failure: Option<f64>,
    /// Time from that request until the queue pair works again.
    recover_qp: Option<f64>,
    /// Time for which the guilty client could not send anything.
    summary: f64,
    summary_p99: f64,
}

/// Measurements of the innocent client while the guilty client broke the rules.
#[derive(Debug, Serialize)]
struct Innocent {
    operations: u64,
    errors: u64,
    /// Without violations, in microseconds.
    p50_quiet: f64,
    p99_quiet: f64,
    /// Right after each violation.
    p50: f64,
    p99: f64,
}

#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    setting: Setting,
    without_spares: Case,
    with_spares: Case,
    /// Interruption with spares, in percent of the interruption without spares.
    percent: f64,
    innocent: Innocent,
}

/// Measures both cases on one node.
pub fn run(options: &BenchOptions) -> Result<(), BenchError> {
    let setup = Setup { violations_free: Some(u32::MAX), ..options.setup() };
    let node = NodeProcess::start(&setup)?;
    let pingpong_rtt = pingpong::round_trip();
    let mut innocent = Bystander::new(session(options, node.address(), true)?, options.size)?;
    let (mut rounds, mut quiet) = (0, Course::new(options, "no client breaks rules"));
    while !quiet.over(rounds) {
        innocent.watch(true)?;
        rounds += 1;
    }
    drop(quiet);
    let mut offend = |use_spares| {
        let what = if use_spares { "with spare queue pairs" } else { "without spare queue pairs" };
        let session = session(options, node.address(), use_spares)?;
        let offender = Offender::new(session, options.size, use_spares)?;
        offender.offend(Course::new(options, what), &mut innocent)
    };
    let ((without_spares, _), (with_spares, iterations)) = (offend(false)?, offend(true)?);
    let report = Report {
        setting: Setting::new(options, iterations, pingpong_rtt),
        percent: 100.0 * with_spares.summary / without_spares.summary,
        without_spares,
        with_spares,
        innocent: innocent.report(),
    };
    if options.json {
        print_json(&report);
    } else {
        print_table(&report);
    }
    Ok(())
}

fn print_table(report: &Report) {
    let time = |time: Option<f64>| time.map_or_else(|| "-".to_owned(), |time| format!("{time:.3}"));
    let (without, with) = (&report.without_spares, &report.with_spares);
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["", "w/o spare QPs [usec]", "with spare QPs [usec]"]);
    for (name, left, right) in [
        ("Failure reported", Some(without.failure_reported), Some(with.failure_reported)),
        ("Promote QP", without.promote_qp, with.promote_qp),
        ("Notify QP failure", without.notify_failure, with.notify_failure),
        ("Recover QP", without.recover_qp, with.recover_qp),
        ("Summary", Some(without.summary), Some(with.summary)),
        ("Summary, p99", Some(without.summary_p99), Some(with.summary_p99)),
    ] {
        table.add_row([name.to_owned(), time(left), time(right)]);
    }
    let percent = report.percent;
    say(format_args!("{table}\nWith spare QPs the interruption is {percent:.1} % of what it is without."));
    let innocent = &report.innocent;
    say(format_args!(
        "An innocent client beside it: {} operations, {} errors; 50 % {:.3} usec (quiet {:.3}), 99 % {:.3} usec (quiet {:.3})",
        innocent.operations,
        innocent.errors,
        innocent.p50,
        innocent.p50_quiet,
        innocent.p99,
        innocent.p99_quiet
    ));
}

fn session(options: &BenchOptions, address: &str, use_spares: bool) -> Result<Session, BenchError> {
    let client = ClientConfig { use_spares, ..ClientConfig::default() };
    Ok(portcullis::connect_with(address, SessionOptions { client, ..options.session_options()? })?)
}

fn hold(session: &mut Session, size: u64) -> Result<Permission, BenchError> {
    Ok(session.allocate(Allocate::bytes(size).lifetime(LIFETIME))?.at_drop(AtDrop::Expire))
}

struct Offender {
    session: Session,
    held: Permission,
    use_spares: bool,
    size: u64,
    reported: Samples,
    promoted: Samples,
    notified: Samples,
    recovered: Samples,
    summary: Samples,
}

impl Offender {
    fn new(mut session: Session, size: u64, use_spares: bool) -> Result<Self, BenchError> {
        Ok(Self {
            held: hold(&mut session, size)?,
            session,
            use_spares,
            size,
            reported: Samples::new(),
            promoted: Samples::new(),
            notified: Samples::new(),
            recovered: Samples::new(),
            summary: Samples::new(),
        })
    }

    fn offend(mut self, mut course: Course, innocent: &mut Bystander) -> Result<(Case, u64), BenchError> {
        let Some(key) = self.held.credential().buffer_key() else {
            return Err(BenchError::Options("this mechanism has no one-sided accesses to refuse".to_owned()));
        };
        let mut times = 0;
        while !course.over(times) {
            times += 1;
            if self.held.lease().deadline().since(self.session.now()).0 < LIFETIME.0 / 2 {
                self.held = hold(&mut self.session, self.size)?;
            }
            let key = self.held.credential().buffer_key().unwrap_or(key);
            self.break_rules_once(key, innocent)?;
        }
        let own = |samples: &Samples, there: bool| there.then(|| samples.typical());
        let case = Case {
            failure_reported: self.reported.typical(),
            promote_qp: own(&self.promoted, self.use_spares),
            notify_failure: own(&self.notified, !self.use_spares),
            recover_qp: own(&self.recovered, !self.use_spares),
            summary: self.summary.typical(),
            summary_p99: self.summary.quantile(0.99),
        };
        Ok((case, times))
    }

    /// Writes once past the end of the held memory (Patronus §7.2.5), with valid reads behind the write.
    fn break_rules_once(&mut self, key: Rkey, innocent: &mut Bystander) -> Result<(), BenchError> {
        let length = u32::try_from(self.size).unwrap_or(u32::MAX);
        let beyond = RemoteAddress(self.held.address().0 + self.held.length());
        let (bad, mut behind) = (self.session.buffer(length)?, Vec::new());
        for _ in 0..BEHIND {
            behind.push(self.session.buffer(length)?);
        }
        let now = self.session.now();
        let before = self.session.client().counters();
        let posted = Instant::now();
        let client = self.session.client();
        let crime = Access::write(Unchecked::new(beyond, key), 0, bad);
        let crime = client.dangerous_access(crime).map_err(Error::from)?;
        let mut reads = Vec::new();
        for buffer in behind {
            let read = client.access(now, Access::read(&self.held, 0, buffer)).map_err(Error::from)?;
            reads.push(read);
        }
        // The poll that reports the failure also promotes the spare, so its own duration counts.
        let (mut heard, mut outcome) = (Instant::now(), None);
        let mut pause = Pause::new();
        while outcome.is_none() {
            pause.pass();
            heard = Instant::now();
            client.poll(now);
            outcome = client.take(crime);
        }
        let acted = Instant::now();
        if !matches!(outcome.map(|outcome| outcome.result), Some(Err(Error::Violation))) {
            return Err(BenchError::Options("the NIC did not refuse the write past the end".to_owned()));
        }
        self.reported.add(heard - posted);
        if self.use_spares {
            self.promoted.add(acted - heard);
            self.summary.add(acted - heard);
        } else {
            self.await_recovery(before.recoveries, heard, acted);
        }
        innocent.watch(false)?;
        for read in reads {
            self.session.wait(read)?.result?;
        }
        // The next violation must find all queue pairs whole.
        self.session.wait_until(|client| (client.counters().recoveries > before.recoveries).then_some(()))?;
        Ok(())
    }

    fn await_recovery(&mut self, recoveries: u64, heard: Instant, mut asked: Instant) {
        let now = self.session.now();
        let client = self.session.client();
        // The client requests the rebuild once all flushed requests have completed.
        while client.counters().recoveries == recoveries {
            let before = client.counters().rebuilds_asked;
            client.poll(now);
            if client.counters().rebuilds_asked > before {
                asked = Instant::now();
            }
            if client.over().is_some() {
                return;
            }
        }
        let done = Instant::now();
        self.notified.add(asked - heard);
        self.recovered.add(done - asked);
        self.summary.add(done - heard);
    }
}

/// The session of the innocent client.
struct Bystander {
    session: Session,
    held: Permission,
    size: u64,
    errors: u64,
    operations: u64,
    quiet: Samples,
    beside: Samples,
}

impl Bystander {
    fn new(mut session: Session, size: u64) -> Result<Self, BenchError> {
        let held = hold(&mut session, size)?;
        Ok(Self {
            session,
            held,
            size,
            errors: 0,
            operations: 0,
            quiet: Samples::new(),
            beside: Samples::new(),
        })
    }

    fn watch(&mut self, quiet: bool) -> Result<(), BenchError> {
        if self.held.lease().deadline().since(self.session.now()).0 < LIFETIME.0 / 2 {
            self.held = hold(&mut self.session, self.size)?;
        }
        let mut into = vec![0; usize::try_from(self.size).unwrap_or(0)];
        for _ in 0..INNOCENT {
            let before = Instant::now();
            let done = self.session.read(&self.held, 0, &mut into);
            let samples = if quiet { &mut self.quiet } else { &mut self.beside };
            samples.add(before.elapsed());
            self.operations += 1;
            self.errors += u64::from(done.is_err());
        }
        Ok(())
    }

    fn report(&self) -> Innocent {
        Innocent {
            operations: self.operations,
            errors: self.errors,
            p50_quiet: self.quiet.typical(),
            p99_quiet: self.quiet.quantile(0.99),
            p50: self.beside.typical(),
            p99: self.beside.quantile(0.99),
        }
    }
}
