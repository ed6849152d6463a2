//! The demo's results, and the ones among them that must hold.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One checked result.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Description of the check.
    pub what: &'static str,
    /// Description of the observation.
    pub seen: String,
    /// Whether the result is as it should be.
    pub holds: bool,
}

impl Finding {
    /// A finding.
    pub fn new(holds: bool, what: &'static str, seen: String) -> Self {
        Self { what, seen, holds }
    }
}

/// The results of a part of the demo.
pub trait Figures {
    /// The results in words, each with a verdict.
    fn findings(&self) -> Vec<Finding>;
}

/// Part 1: files in remote memory.
#[derive(Debug, Default, Serialize)]
pub struct Files {
    /// The folder of the files.
    pub folder: String,
    /// Files written to remote memory.
    pub files: usize,
    /// Bytes of these files.
    pub bytes: u64,
    /// Files that another process read back with the same digest.
    pub equal: usize,
    /// Files whose digest was different or missing.
    pub unequal: Vec<String>,
    /// Objects that clients of the other tenant requested.
    pub asked_by_strangers: usize,
    /// Such requests that were refused.
    pub refused_to_strangers: usize,
    /// Processes that wrote.
    pub writers: usize,
    /// Processes that read.
    pub readers: usize,
    /// Rate of all writers together in remote operations, in 10^6 bytes per second.
    pub write_mb_per_s: f64,
    /// Rate of all readers together in remote operations, in 10^6 bytes per second.
    pub read_mb_per_s: f64,
    /// Number of files that were left out.
    pub left_out: usize,
    /// The first reasons for which files were left out.
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

/// The result of a read with an old address and key.
#[derive(Debug, Serialize)]
pub struct LateRead {
    /// The mechanism that enforces the node's permissions.
    pub protection: String,
    /// Whether the NIC refused.
    pub refused: bool,
    /// The bytes, if the NIC did not refuse.
    pub got: Option<String>,
    /// Time from the request to its answer.
    pub took_us: f64,
}

/// Part 2: a read after the end of its permission, with protection and without.
#[derive(Debug, Serialize)]
pub struct LateReader {
    /// The text of the memory's new owner.
    pub secret: String,
    /// The read on a node with protection.
    pub protected: LateRead,
    /// The read on a node without protection.
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

/// The results of a client's writes and reads.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Traffic {
    /// Number of reads, each after a write.
    pub operations: u64,
    /// Operations that failed.
    pub errors: u64,
    /// Reads that returned other bytes than were written.
    pub wrong: u64,
    /// Median of the reads.
    pub typical_us: f64,
    /// 99th percentile of the reads.
    pub p99_us: f64,
}

/// Part 3: a guilty client beside an innocent one.
#[derive(Debug, Serialize)]
pub struct OutOfRange {
    /// Writes of one byte right behind the client's own buffer.
    pub past_the_end: u64,
    /// Writes into the neighbour's buffer.
    pub far_outside: u64,
    /// Writes of both kinds that the NIC refused.
    pub refused: u64,
    /// The neighbour's traffic before the violations.
    pub before: Traffic,
    /// The neighbour's traffic during the violations.
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

/// A holder that was killed or frozen.
#[derive(Debug, Serialize)]
pub struct LostHolder {
    /// The holder's lease.
    pub lease_ms: f64,
    /// Time from the signal until the next holder was served.
    pub served_after_signal_ms: f64,
    /// Time from the holder's request until the next holder was served. Unless the holder was ended, the lease passes
    /// first.
    pub served_after_request_ms: f64,
    /// Time from the lease's end until the next holder was served, as seen from outside. Negative before the end.
    pub after_lease_ms: f64,
}

/// Part 4: lost holders for which other clients wait.
#[derive(Debug, Serialize)]
pub struct LostHolders {
    /// The holder that got SIGKILL.
    pub killed: LostHolder,
    /// The holder that got SIGSTOP.
    pub frozen: LostHolder,
    /// Whether the NIC refused the frozen holder's write after the holder woke.
    pub late_write_refused: bool,
    /// Whether the new holder's bytes were still intact after that.
    pub bytes_intact: bool,
}

/// Time that a busy machine may add to a lease, in ms.
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

/// Part 5: the cost of violations for the guilty client.
#[derive(Debug, Serialize, Deserialize)]
pub struct Guilt {
    /// Refused accesses.
    pub refused: u32,
    /// Accesses that were tried.
    pub tried: u32,
    /// Reads right behind the refused accesses that succeeded in the end.
    pub replayed: u32,
    /// Whether a refusal breaks a queue pair.
    pub breaks: bool,
    /// Number of times that a spare queue pair took over.
    pub switches: u64,
    /// Queue pairs that the node rebuilt.
    pub recoveries: u64,
    /// Median time from a refusal to the success of the read behind it.
    pub interrupted_us: f64,
    /// The longest time from a refusal to the success of the read behind it.
    pub interrupted_most_us: f64,
    /// Median time of a read without violations.
    pub read_us: f64,
}

impl Figures for Guilt {
    fn findings(&self) -> Vec<Finding> {
        let seen = format!(
            "{:.1} µs (median of {}, longest {:.1} µs; a plain read takes {:.1} µs), {} switches",
            self.interrupted_us, self.refused, self.interrupted_most_us, self.read_us, self.switches
        );
        let all = self.refused == self.tried && self.replayed == self.tried;
        let switched = !self.breaks || self.switches >= u64::from(self.tried);
        let what = match self.breaks {
            true => "from a refusal to the next success, on a spare queue pair",
            false => "from a refusal to the next success: there is no connection to break",
        };
        vec![Finding::new(all && switched, what, seen)]
    }
}

/// Part 6: the latency of reads.
#[derive(Debug, Serialize, Deserialize)]
pub struct Latency {
    /// Bytes of each read.
    pub bytes: u32,
    /// Number of reads.
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

/// The content of a table at the end.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Content {
    /// Keys that a loader received confirmation for.
    pub told: u64,
    /// Keys that were found. A killed loader may have stored a key without having received the confirmation.
    pub keys: u64,
    /// Keys that a loader received confirmation for, and that are missing.
    pub lost: u64,
    /// Keys that were found several times.
    pub twice: u64,
    /// Keys with a value that no loader stored.
    pub torn: u64,
    /// Keys that no loader stored.
    pub strange: u64,
    /// Slots with a key: as many as keys were found.
    pub slots_used: u64,
    /// Subtables.
    pub subtables: u64,
    /// Pieces of memory that the sweeps have freed: blocks, slots, subtables, extents.
    pub freed: u64,
    /// Splits that the sweeps have finished. The other loaders finish those that are in their way.
    pub splits_finished: u64,
    /// Pieces of memory and splits that the last sweep still found.
    pub unfreed: u64,
    /// Blocks that are claimed but hold no key.
    pub unlinked: u64,
    /// Keys without a block.
    pub dangling: u64,
    /// Objects of the node that belong to the table.
    pub objects: u64,
}

/// Part 7: a table that several processes load, one of which is killed.
#[derive(Debug, Serialize)]
pub struct SharedTable {
    /// Processes that load the table.
    pub loaders: u32,
    /// Buckets that the killed loader had moved in its split.
    pub moved: u32,
    /// Buckets that the killed loader had to move.
    pub buckets: u32,
    /// The table's lease.
    pub lease_ms: f64,
    /// The longest operation of the other loaders.
    pub longest_ms: f64,
    /// The content of the table at the end.
    pub content: Content,
    /// Number of objects by which the node's objects exceed the table's, or fall short of them.
    pub objects_left: u64,
}

impl Figures for SharedTable {
    fn findings(&self) -> Vec<Finding> {
        let Content { told, keys, lost, twice, torn, strange, slots_used, freed, .. } = self.content;
        let Content { unfreed, unlinked, dangling, .. } = self.content;
        let killed = format!(
            "{} of {} buckets were moved; the longest operation of the others took {:.1} ms, the lease is {:.0} ms",
            self.moved, self.buckets, self.longest_ms, self.lease_ms
        );
        let in_the_middle = 0 < self.moved && self.moved < self.buckets;
        let there = format!(
            "{} of {told} there, {twice} twice, {torn} torn, {strange} of nobody; {} subtables",
            told - lost,
            self.content.subtables
        );
        let right = told > 0 && lost + twice + torn + strange == 0 && slots_used == keys;
        let leaked = unfreed + unlinked + dangling + self.objects_left;
        vec![
            Finding::new(
                in_the_middle,
                "one of three loaders is killed (SIGKILL) in the middle of a split",
                killed,
            ),
            Finding::new(right, "the keys of which a loader was told that they are stored", there),
            Finding::new(
                leaked == 0,
                "a sweep after that",
                format!("freed {freed} leftovers; {leaked} are left"),
            ),
        ]
    }
}

/// A client that broke rules.
#[derive(Debug, Serialize)]
pub struct Offender {
    /// The client's tenant.
    pub tenant: String,
    /// The client's number on the node.
    pub client: u64,
    /// Refused accesses that the demo saw.
    pub seen: u64,
    /// Violations of the client in the log.
    pub logged: u64,
}

/// Part 8: the audit log.
#[derive(Debug, Serialize)]
pub struct Audit {
    /// Number of lines, by event.
    pub events: BTreeMap<String, u64>,
    /// The clients that broke rules.
    pub offenders: Vec<Offender>,
    /// Violations in the log by any other client.
    pub unexplained: u64,
    /// Lines that are no records.
    pub unreadable: u64,
    /// Whether the node stopped on request, with exit code 0 and without its sockets.
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
