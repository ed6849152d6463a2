//! The audit log's writer, on a thread of its own.
//!
//! Each line has the wall clock and the node's incarnation beside the fields that the node recorded. `at_us` counts
//! from the node's start and orders the records of one incarnation. `time` is the reading of the machine's clock; it
//! jumps when that clock is set. The first line of an incarnation is its `start`, the last its `stop`: an incarnation
//! without `stop` was killed. Lines reach the kernel within milliseconds: they survive the node's process, but not a
//! power failure.
//!
//! A failed write is tried again every second. Meanwhile records wait, here and in the node's queue. Records for which
//! that queue has no room are counted, and a `lost` record reports them in their place once there is room.

mod file;
mod lines;
mod tray;

pub(super) use tray::AuditSink;

use super::floods::{FloodLimits, Floods};
use super::wall::{WallClock, WallTime};
use file::LogFile;
use lines::Lines;
use portcullis_node::{AuditEvent, AuditRecord};
use portcullis_protocol::{Incarnation, Moment};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};
use tray::{Tray, WriterEnd};

/// The longest time that the end of a node waits for its log.
const END_WITHIN: Duration = Duration::from_secs(5);
/// The beginning of each line of a log.
const LINE_START: &str = "{\"time\":\"";

/// The state of an audit log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditStatus {
    /// Records that are in the file.
    pub written: u64,
    /// Failed attempts to write or reopen the file. Writing is tried again every second.
    pub failures: u64,
    /// Records that were never written, even when the node ended. Records for which the node had no room are in
    /// [`NodeCounters::audit_lost`](crate::NodeCounters::audit_lost).
    pub lost: u64,
    /// The machine's error, if the file cannot be written now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failing: Option<String>,
}

/// The thread that writes the log.
#[derive(Debug)]
pub(super) struct AuditWriter {
    tray: Arc<Tray>,
    thread: Option<JoinHandle<()>>,
}

impl AuditWriter {
    /// Appends the records of the node's run `incarnation`, whose moment 0 is `zero`, to the file at `path`.
    pub fn start(path: &Path, incarnation: Incarnation, zero: Instant) -> std::io::Result<Self> {
        let log = LogFile::open(path)?;
        let tray = Arc::<Tray>::default();
        let clock = WallClock::new(moment(zero), SystemTime::now().into());
        let writer = Writer {
            log,
            lines: Lines::default(),
            floods: Floods::new(FLOOD_LIMITS),
            tray: Arc::clone(&tray),
            clock,
            zero,
            incarnation: incarnation.to_string(),
            waiting: 0,
        };
        let end = WriterEnd(Arc::clone(&tray));
        let thread = std::thread::Builder::new().name("portcullis-audit".to_owned()).spawn(move || {
            let _end = end;
            writer.run();
        })?;
        Ok(Self { tray, thread: Some(thread) })
    }

    pub fn sink(&self) -> AuditSink {
        AuditSink::new(Arc::clone(&self.tray))
    }

    /// Directs further records to the file at the path. To be called after the file was renamed.
    pub fn reopen(&self) {
        self.tray.order_reopen();
    }

    pub fn watch(&self) -> AuditWatch {
        AuditWatch(Arc::clone(&self.tray))
    }

    /// Waits until every record is in the file, or is known not to get there: it does not wait for a write that hangs.
    /// The sinks must have been drained.
    pub fn finish(&mut self) {
        self.tray.order_close();
        let Some(thread) = self.thread.take() else { return };
        if self.tray.wait_for_end(END_WITHIN) {
            // If the thread panicked, that was printed already.
            let _ = thread.join();
        }
    }
}

/// A handle to the state of a log, for other threads.
#[derive(Clone, Debug)]
pub(super) struct AuditWatch(Arc<Tray>);

impl AuditWatch {
    pub fn status(&self) -> AuditStatus {
        self.0.status()
    }
}

impl Drop for AuditWriter {
    fn drop(&mut self) {
        self.finish();
    }
}

fn moment(zero: Instant) -> Moment {
    Moment(u64::try_from(zero.elapsed().as_micros()).unwrap_or(u64::MAX))
}

/// A record as it is written to the file.
#[derive(Serialize)]
struct Line<'a> {
    time: WallTime,
    incarnation: &'a str,
    #[serde(flatten)]
    record: &'a AuditRecord,
}

/// Limits the records that tenants and peers can cause at no cost, so that these do not fill the disk.
const FLOOD_LIMITS: FloodLimits = FloodLimits {
    period: Duration::from_secs(1),
    reason: "more of them within a second",
    most: |event| match event {
        AuditEvent::Attach
        | AuditEvent::Detach
        | AuditEvent::Refuse
        | AuditEvent::Violation
        | AuditEvent::Pause
        | AuditEvent::Recovery => Some(100),
        // A cache that evicts meets its quota with every item.
        AuditEvent::Quota => Some(1),
        _ => None,
    },
};

struct Writer {
    log: LogFile,
    lines: Lines,
    floods: Floods,
    tray: Arc<Tray>,
    clock: WallClock,
    zero: Instant,
    incarnation: String,
    /// Number of records in `lines`.
    waiting: u64,
}

impl Writer {
    fn run(mut self) {
        let start = AuditRecord { process: Some(std::process::id()), ..self.own(AuditEvent::Start) };
        self.line(&start);
        self.note_torn();
        self.write_out();
        let mut records = VecDeque::new();
        loop {
            // While a write fails, the other records stay in the tray, where they are counted.
            let fails = !self.lines.is_empty();
            let orders = if fails {
                self.tray.wait_to_retry()
            } else {
                self.tray.take(&mut records, self.floods.told_in(moment(self.zero)))
            };
            self.follow_clock();
            self.write(&mut records);
            if orders.reopen {
                self.reopen();
            }
            if orders.close {
                return self.end(records);
            }
            if !fails {
                self.tray.gather();
            }
        }
    }

    fn write(&mut self, records: &mut VecDeque<AuditRecord>) {
        for record in records.drain(..) {
            self.enter(&record);
        }
        if self.lines.is_empty() {
            let now = moment(self.zero);
            self.floods.settle(now).iter().for_each(|summed| self.line(summed));
        }
        self.write_out();
    }

    /// Writes a record of the node's, or adds it to a sum.
    fn enter(&mut self, record: &AuditRecord) {
        self.floods.settle(record.at).iter().for_each(|summed| self.line(summed));
        if self.floods.passes(record) {
            self.line(record);
        }
    }

    fn line(&mut self, record: &AuditRecord) {
        let line = Line { time: self.clock.at(record.at), incarnation: &self.incarnation, record };
        let text = self.lines.text();
        // Writing to a vector cannot fail.
        let _ = serde_json::to_writer(&mut *text, &line);
        text.push(b'\n');
        self.waiting += 1;
    }

    /// Returns a record of the log itself.
    fn own(&self, event: AuditEvent) -> AuditRecord {
        AuditRecord::new(moment(self.zero), event)
    }

    fn note_torn(&mut self) {
        if self.log.take_torn() {
            let reason = Some("an earlier run left half a line, which is cut off");
            let lost = AuditRecord { reason, count: Some(1), ..self.own(AuditEvent::Lost) };
            self.line(&lost);
        }
    }

    fn follow_clock(&mut self) {
        let before = moment(self.zero);
        let wall = SystemTime::now().into();
        self.clock.observe(before, wall, moment(self.zero));
    }

    fn write_out(&mut self) {
        let failed = self.lines.write_out(&mut self.log).err();
        let left = self.lines.count();
        let written = std::mem::replace(&mut self.waiting, left).saturating_sub(left);
        let failing = failed.as_ref().map(ToString::to_string);
        let before = self.tray.tell(|status| {
            status.written += written;
            status.failures += u64::from(failing.is_some());
            std::mem::replace(&mut status.failing, failing)
        });
        let path = self.log.path().display();
        match (before, failed) {
            (None, Some(error)) => {
                tracing::error!(%path, %error, "cannot write the audit log: the node tries again every second");
            }
            (Some(_), None) => tracing::warn!(%path, "the audit log is written again"),
            (None, None) | (Some(_), Some(_)) => {}
        }
    }

    /// Switches to the new file. Records until now belong to the old file, and go to the new one only if the old one
    /// does not accept them.
    fn reopen(&mut self) {
        self.write_out();
        match self.log.successor() {
            Ok(Some(next)) => {
                self.lines.start_over();
                self.log = next;
                self.note_torn();
                self.write_out();
            }
            Ok(None) => {}
            Err(error) => {
                self.tray.tell(|status| status.failures += 1);
                let path = self.log.path().display();
                tracing::error!(%path, %error, "cannot reopen the audit log: records go to the old file until the next request");
            }
        }
    }

    /// Writes the last records, in one last attempt.
    fn end(mut self, mut records: VecDeque<AuditRecord>) {
        self.tray.take_rest(&mut records);
        for record in records {
            self.enter(&record);
        }
        self.floods.end().iter().for_each(|summed| self.line(summed));
        let stop = self.own(AuditEvent::Stop);
        self.line(&stop);
        self.write_out();
        let lost = self.waiting;
        self.tray.tell(|status| status.lost += lost);
    }
}

#[cfg(test)]
mod tests;
