//! What the demo finds out, and what of it has to hold.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One thing that was looked at.
#[derive(Clone, Debug)]
pub struct Finding {
    /// What was looked at.
    pub what: &'static str,
    /// What was seen.
    pub seen: String,
    /// Whether that is as it should be.
    pub holds: bool,
}

impl Finding {
    /// A finding.
    pub fn new(holds: bool, what: &'static str, seen: String) -> Self {
        Self { what, seen, holds }
    }
}

/// What a part of the demo found out.
pub trait Figures {
    /// In words, with a verdict each.
    fn findings(&self) -> Vec<Finding>;
}

/// Files through remote memory.
#[derive(Debug, Default, Serialize)]
pub struct Files {
    /// Where they came from.
    pub folder: String,
    /// Put into remote memory.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Read back by another process with the same digest.
    pub equal: usize,
    /// Not so.
    pub unequal: Vec<String>,
    /// Objects that the other tenant asked for.
    pub asked_by_strangers: usize,
    /// What of that it was refused.
    pub refused_to_strangers: usize,
    /// Processes that wrote.
    pub writers: usize,
    /// Processes that read.
    pub readers: usize,
    /// Of all writers together, in remote operations, in 10^6 bytes.
    pub write_mb_per_s: f64,
    /// The same of the readers.
    pub read_mb_per_s: f64,
    /// Not taken along: how many.
    pub left_out: usize,
    /// Why, for the first of them.
    pub reasons: Vec<String>,
}

impl Figures for Files {
    fn findings(&self) -> Vec<Finding> {
        let mib = format!("{:.1} MiB", self.bytes as f64 / f64::from(1 << 20));
        let seen = format!(
            "{} of {} files, {mib}; writing {:.0} MB/s, reading {:.0} MB/s",
            self.equal, self.files, self.write_mb_per_s, self.read_mb_per_s
        );
        let equal = self.equal == self.files && self.unequal.is_empty();
        let strangers =
            format!("refused {} of {} requests", self.refused_to_strangers, self.asked_by_strangers);
        let refused = self.refused_to_strangers == self.asked_by_strangers;
        vec![
            Finding::new(equal, "files read back by other processes, SHA-256 equal", seen),
            Finding::new(refused, "the other tenant asks for the same objects", strangers),
        ]
    }
}

/// What a read with an old address and key got.
#[derive(Debug, Serialize)]
pub struct LateRead {
    /// What the node enforces permissions by.
    pub protection: String,
    /// Whether the NIC refused.
    pub refused: bool,
    /// The bytes, if it did not.
    pub got: Option<String>,
    /// From the request to its answer.
    pub took_us: f64,
}

/// A read after the end of its permission, with protection and without.
#[derive(Debug, Serialize)]
pub struct LateReader {
    /// What the memory's new owner wrote.
    pub secret: String,
    /// On a node that protects.
    pub protected: LateRead,
    /// On one that does not.
    pub unprotected: LateRead,
}

impl Figures for LateReader {
    fn findings(&self) -> Vec<Finding> {
        let say = |read: &LateRead| match &read.got {
            None => format!("refused in {:.0} µs", read.took_us),
            Some(got) => format!("success, {got:?}, in {:.0} µs", read.took_us),
        };
        let leaked = self.unprotected.got.as_ref() == Some(&self.secret);
        vec![
            Finding::new(
                self.protected.refused,
                "a late read, the memory has a new owner",
                say(&self.protected),
            ),
            Finding::new(leaked, "the same with --protection none", say(&self.unprotected)),
        ]
    }
}

/// What a process did and how it went.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Traffic {
    /// Reads, each after a write.
    pub operations: u64,
    /// Operations that failed.
    pub errors: u64,
    /// Reads that brought other bytes than were written.
    pub wrong: u64,
    /// Median of the reads.
    pub typical_us: f64,
    /// 99th percentile of the reads.
    pub p99_us: f64,
}

/// A guilty client beside an innocent one.
#[derive(Debug, Serialize)]
pub struct OutOfRange {
    /// Writes of one byte right behind the own buffer.
    pub past_the_end: u64,
    /// Writes into the neighbour's buffer.
    pub far_outside: u64,
    /// Those of both that the NIC refused.
    pub refused: u64,
    /// The neighbour before.
    pub before: Traffic,
    /// The neighbour meanwhile.
    pub during: Traffic,
}

impl Figures for OutOfRange {
    fn findings(&self) -> Vec<Finding> {
        let tried = self.past_the_end + self.far_outside;
        let refused = format!("refused {} of {tried}", self.refused);
        let errors = self.before.errors + self.during.errors + self.before.wrong + self.during.wrong;
        let neighbour = format!(
            "{} checked operations, {errors} errors; typical/p99 {:.1}/{:.1} µs before, {:.1}/{:.1} µs meanwhile",
            self.before.operations + self.during.operations,
            self.before.typical_us,
            self.before.p99_us,
            self.during.typical_us,
            self.during.p99_us,
        );
        let unharmed = errors == 0 && self.during.operations > 0;
        vec![
            Finding::new(self.refused == tried, "writes one byte past a buffer, and far outside", refused),
            Finding::new(unharmed, "the neighbour of the guilty client", neighbour),
        ]
    }
}

/// One holder that is lost.
#[derive(Debug, Serialize)]
pub struct LostHolder {
    /// The lease that it had.
    pub lease_ms: f64,
    /// From the signal until the next one was served.
    pub served_after_signal_ms: f64,
    /// From the holder's request until the next one was served: not before the lease is over, if it was not ended.
    pub served_after_request_ms: f64,
    /// The time that passed after the lease's end, as far as it can be told from outside; negative before it.
    pub after_lease_ms: f64,
}

/// Holders that end or freeze while others wait.
#[derive(Debug, Serialize)]
pub struct LostHolders {
    /// Ended by SIGKILL.
    pub killed: LostHolder,
    /// Frozen by SIGSTOP.
    pub frozen: LostHolder,
    /// Whether the NIC refused what the frozen one did when it woke.
    pub late_write_refused: bool,
    /// Whether the new holder's bytes were still there then.
    pub bytes_intact: bool,
}

/// What a machine with better things to do may add to a lease, in ms.
const LEASE_SLACK_MS: f64 = 500.0;

impl Figures for LostHolders {
    fn findings(&self) -> Vec<Finding> {
        let (killed, frozen) = (&self.killed, &self.frozen);
        let after_kill = format!(
            "served {:.1} ms after it; the lease had {:.1} ms to go",
            killed.served_after_signal_ms, -killed.after_lease_ms
        );
        let after_freeze = format!(
            "served {:.1} ms after the holder asked for its lease of {:.0} ms",
            frozen.served_after_request_ms, frozen.lease_ms
        );
        let in_time =
            frozen.served_after_request_ms >= frozen.lease_ms && frozen.after_lease_ms < LEASE_SLACK_MS;
        let woken = match (self.late_write_refused, self.bytes_intact) {
            (true, true) => "refused; the new holder's bytes are intact",
            (false, _) => "not refused",
            (true, false) => "refused, and yet the new holder's bytes have changed",
        };
        vec![
            Finding::new(
                killed.after_lease_ms < LEASE_SLACK_MS,
                "an exclusive holder is killed (SIGKILL), the next one waits",
                after_kill,
            ),
            Finding::new(in_time, "an exclusive holder freezes (SIGSTOP), the next one waits", after_freeze),
            Finding::new(
                self.late_write_refused && self.bytes_intact,
                "the frozen holder wakes up and writes",
                woken.to_owned(),
            ),
        ]
    }
}

/// What breaking rules cost the client that did.
#[derive(Debug, Serialize, Deserialize)]
pub struct Guilt {
    /// Accesses that were refused, of as many tried.
    pub refused: u32,
    /// As many as were tried.
    pub tried: u32,
    /// Reads right behind them that succeeded after all.
    pub replayed: u32,
    /// Times a spare queue pair took over.
    pub switches: u64,
    /// Queue pairs that the node rebuilt.
    pub recoveries: u64,
    /// Median of the times from a refusal to the success of the read behind it.
    pub interrupted_us: f64,
    /// The longest of them.
    pub interrupted_most_us: f64,
    /// Median of a read without any of this, for comparison.
    pub read_us: f64,
}

impl Figures for Guilt {
    fn findings(&self) -> Vec<Finding> {
        let seen = format!(
            "{:.1} µs (median of {}, longest {:.1} µs; a plain read takes {:.1} µs), {} switches",
            self.interrupted_us, self.refused, self.interrupted_most_us, self.read_us, self.switches
        );
        let all = self.refused == self.tried && self.replayed == self.tried;
        let switched = self.switches >= u64::from(self.tried);
        vec![Finding::new(all && switched, "from a refusal to the next success, on a spare queue pair", seen)]
    }
}

/// What reads take.
#[derive(Debug, Serialize, Deserialize)]
pub struct Latency {
    /// Bytes of each.
    pub bytes: u32,
    /// How many.
    pub reads: u32,
    /// Median.
    pub typical_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
}

impl Figures for Latency {
    fn findings(&self) -> Vec<Finding> {
        let seen =
            format!("typical {:.2} µs, p99 {:.2} µs ({} reads)", self.typical_us, self.p99_us, self.reads);
        let what = "latency of 64-byte reads, one process, one at a time";
        vec![Finding::new(self.reads > 0, what, seen)]
    }
}

/// Who broke rules how often.
#[derive(Debug, Serialize)]
pub struct Offender {
    /// For whom it acted.
    pub tenant: String,
    /// Its number on the node.
    pub client: u64,
    /// Refused accesses that the demo saw.
    pub seen: u64,
    /// Those that the log blames it for.
    pub logged: u64,
}

/// What the audit log says.
#[derive(Debug, Serialize)]
pub struct Audit {
    /// Lines, by what they are about.
    pub events: BTreeMap<String, u64>,
    /// Who broke rules.
    pub offenders: Vec<Offender>,
    /// Violations that the log blames anybody else for.
    pub unexplained: u64,
    /// Lines that are no records.
    pub unreadable: u64,
    /// Whether the node stopped when it was asked to, with exit code 0 and its sockets gone.
    pub stopped_cleanly: bool,
}

impl Figures for Audit {
    fn findings(&self) -> Vec<Finding> {
        let seen: u64 = self.offenders.iter().map(|offender| offender.seen).sum();
        let logged: u64 = self.offenders.iter().map(|offender| offender.logged.min(offender.seen)).sum();
        let matches = self.offenders.iter().all(|offender| offender.seen == offender.logged);
        let right = matches && self.unexplained == 0 && self.unreadable == 0;
        let blamed = format!(
            "{logged} of {seen} violations under the right tenant and client, {} others",
            self.unexplained
        );
        let complete = !self.events.contains_key("lost");
        let events: Vec<String> =
            self.events.iter().map(|(event, count)| format!("{count} {event}")).collect();
        let stopped = if self.stopped_cleanly { "exit code 0, its sockets are gone" } else { "not cleanly" };
        vec![
            Finding::new(right, "the audit log says who it was", blamed),
            Finding::new(complete && !self.events.is_empty(), "the audit log by event", events.join(", ")),
            Finding::new(self.stopped_cleanly, "the node is asked to stop (SIGTERM)", stopped.to_owned()),
        ]
    }
}
