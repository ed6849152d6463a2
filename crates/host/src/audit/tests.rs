use super::*;
use portcullis_protocol::ClientId;
use rustix::fs::{CWD, FileType, Mode, OFlags};
use serde_json::Value;
use std::collections::VecDeque;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// A writer and its sink, without a node.
struct Rig {
    folder: tempfile::TempDir,
    path: PathBuf,
    writer: AuditWriter,
    sink: AuditSink,
    next: u32,
}

impl Rig {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Self::at(folder)
    }

    fn at(folder: tempfile::TempDir) -> Self {
        let path = folder.path().join("audit.jsonl");
        Self::writing_to(path, folder)
    }

    fn writing_to(path: PathBuf, folder: tempfile::TempDir) -> Self {
        let writer = AuditWriter::start(&path, Incarnation(0xff), Instant::now()).expect("a writer");
        let sink = writer.sink();
        Self { folder, path, writer, sink, next: 0 }
    }

    fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// Records a flood: `count` records of one event of one tenant at one time.
    fn flood(&mut self, count: u32, at: Moment) {
        let tenant: Arc<str> = "red".into();
        let mut records: VecDeque<AuditRecord> = (0..count)
            .map(|_| AuditRecord {
                tenant: Some(Arc::clone(&tenant)),
                ..AuditRecord::new(at, AuditEvent::Violation)
            })
            .collect();
        while self.sink.fill(|| records.pop_front()) || !records.is_empty() {
            std::thread::yield_now();
        }
    }

    /// Records clients with consecutive numbers.
    fn record(&mut self, count: u32) {
        let mut records: VecDeque<AuditRecord> = (self.next..self.next + count)
            .map(|client| AuditRecord {
                client: Some(ClientId(client.into())),
                ..AuditRecord::new(Moment(client.into()), AuditEvent::Attach)
            })
            .collect();
        self.next += count;
        while self.sink.fill(|| records.pop_front()) || !records.is_empty() {
            std::thread::yield_now();
        }
    }

    fn rotate(&self, to: &str) {
        std::fs::rename(self.path(), self.folder.path().join(to)).expect("renamed");
        self.writer.reopen();
    }

    fn wait_until(&self, what: &str, holds: impl Fn(&AuditStatus) -> bool) {
        let since = Instant::now();
        while !holds(&self.writer.watch().status()) {
            assert!(since.elapsed().as_secs() < 60, "waiting for {what}: {:?}", self.writer.watch().status());
            std::thread::yield_now();
        }
    }

    fn finish(&mut self) -> AuditStatus {
        self.sink.drain(|| None);
        self.writer.finish();
        self.writer.watch().status()
    }
}

/// Returns each line of a log, as JSON. Every line has to be whole.
fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).expect("a log");
    assert!(text.is_empty() || text.ends_with('\n'), "the last line is whole");
    text.lines().map(|line| serde_json::from_str(line).expect("a whole line")).collect()
}

fn events(lines: &[Value]) -> Vec<&str> {
    lines.iter().filter_map(|line| line["event"].as_str()).collect()
}

fn clients(lines: &[Value]) -> Vec<u64> {
    lines.iter().filter_map(|line| line["client"].as_u64()).collect()
}

#[test]
fn a_line_begins_with_the_time_and_says_which_run_it_is_of() {
    let record = AuditRecord::new(Moment(7), AuditEvent::Violation);
    let time = "2026-01-01T00:00:00Z".parse().expect("a time");
    let line = Line { time, incarnation: "00000000000000ff", record: &record };
    let text = serde_json::to_string(&line).expect("a text");
    assert!(text.starts_with(LINE_START));
    let expected = "{\"time\":\"2026-01-01T00:00:00.000000Z\",\"incarnation\":\"00000000000000ff\",\
                    \"at_us\":7,\"event\":\"violation\"}";
    assert_eq!(text, expected);
}

#[test]
fn a_log_begins_with_the_start_and_ends_with_the_stop() {
    let mut rig = Rig::new();
    rig.record(3);
    let status = rig.finish();
    assert_eq!((status.written, status.failures, status.lost, status.failing), (5, 0, 0, None));
    let lines = lines(&rig.path());
    assert_eq!(events(&lines), ["start", "attach", "attach", "attach", "stop"]);
    for line in &lines {
        assert_eq!(line["incarnation"], "00000000000000ff");
        assert!(line["time"].as_str().is_some_and(|time| time.parse::<WallTime>().is_ok()));
    }
}

#[test]
fn rotation_loses_no_record_and_splits_none() {
    let mut rig = Rig::new();
    for round in 0..50 {
        rig.record(997);
        rig.rotate(&format!("audit.jsonl.{round}"));
        // A second rotation before the first one was noticed would rename nothing.
        let path = rig.path();
        rig.wait_until("the new file", |_| path.exists());
    }
    rig.record(1);
    let status = rig.finish();
    assert_eq!((status.failures, status.lost), (0, 0));
    let mut seen = Vec::new();
    for round in 0..50 {
        seen.extend(clients(&lines(&rig.folder.path().join(format!("audit.jsonl.{round}")))));
    }
    seen.extend(clients(&lines(&rig.path())));
    assert!(seen.into_iter().eq(0..u64::from(rig.next)));
}

#[test]
fn a_signal_without_a_renamed_file_changes_nothing() {
    let mut rig = Rig::new();
    rig.record(1);
    rig.writer.reopen();
    rig.record(1);
    let status = rig.finish();
    assert_eq!((status.written, status.failures), (4, 0));
    assert_eq!(events(&lines(&rig.path())), ["start", "attach", "attach", "stop"]);
}

/// Makes a pipe at this path. Returns the end that reads from it.
fn pipe(path: &Path) -> OwnedFd {
    rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("a pipe");
    rustix::fs::open(path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()).expect("its other end")
}

#[test]
fn a_log_that_takes_nothing_is_tried_again_and_loses_nothing_that_there_is_room_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("audit.jsonl");
    let reader = pipe(&path);
    let mut full = crate::log_file::open(&path).expect("it is read");
    while full.write(&[b'x'; 4096]).is_ok() {}
    let mut rig = Rig::at(folder);
    rig.record(100);
    rig.wait_until("a second attempt", |status| status.failures >= 2);
    let status = rig.writer.watch().status();
    assert!(status.failing.is_some_and(|why| why.contains("temporarily unavailable")), "it says why");
    assert_eq!(status.written, 0);
    // Room is made, here by putting another file at the path.
    std::fs::remove_file(rig.path()).expect("the pipe");
    rig.writer.reopen();
    rig.wait_until("everything to be written", |status| status.written == 101);
    assert_eq!(rig.writer.watch().status().failing, None);
    let status = rig.finish();
    assert_eq!((status.written, status.lost), (102, 0));
    assert!(clients(&lines(&rig.path())).into_iter().eq(0..100));
    drop(reader);
}

#[test]
fn what_a_full_disk_has_no_room_for_until_the_end_is_counted_and_holds_nobody_up() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut rig = Rig::writing_to("/dev/full".into(), folder);
    rig.record(100);
    rig.wait_until("an attempt", |status| status.failures >= 1);
    let status = rig.writer.watch().status();
    assert!(status.failing.is_some_and(|why| why.contains("No space left")), "it says why");
    let status = rig.finish();
    assert_eq!((status.written, status.lost), (0, 102));
}

#[test]
fn a_renamed_log_is_not_followed_through_a_link_in_its_place() {
    let mut rig = Rig::new();
    rig.record(1);
    let other = rig.folder.path().join("other");
    std::fs::rename(rig.path(), rig.folder.path().join("audit.jsonl.1")).expect("renamed");
    std::os::unix::fs::symlink(&other, rig.path()).expect("a link");
    rig.writer.reopen();
    rig.wait_until("the refusal", |status| status.failures >= 1);
    rig.record(1);
    let status = rig.finish();
    assert_eq!((status.written, status.lost, other.exists()), (4, 0, false));
    assert_eq!(clients(&lines(&rig.folder.path().join("audit.jsonl.1"))), [0, 1]);
}

#[test]
fn what_an_earlier_run_left_half_is_written_down_as_lost() {
    let folder = tempfile::tempdir().expect("a folder");
    let earlier = "{\"time\":\"2026-01-01T00:00:00.000000Z\",\"event\":\"stop\"}\n{\"time\":\"2026-01";
    std::fs::write(folder.path().join("audit.jsonl"), earlier).expect("written");
    let mut rig = Rig::at(folder);
    rig.record(1);
    rig.finish();
    let lines = lines(&rig.path());
    assert_eq!(events(&lines), ["stop", "start", "lost", "attach", "stop"]);
    assert_eq!(lines[2]["count"], 1);
}

#[test]
fn the_log_is_for_the_nodes_own_user() {
    use std::os::unix::fs::PermissionsExt;
    let log = Rig::new();
    let mode = std::fs::metadata(log.path()).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_flood_takes_a_few_lines_and_says_how_many_there_were() {
    let mut log = Rig::new();
    log.flood(5_000, Moment(10));
    log.flood(1, Moment(2_000_000));
    log.writer.finish();
    let text = std::fs::read_to_string(log.path()).expect("a log");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let violations: Vec<_> = lines.iter().filter(|line| line["event"] == "violation").collect();
    assert!(violations.len() < 200, "{} lines", violations.len());
    let told: u64 = violations.iter().map(|line| line["count"].as_u64().unwrap_or(1)).sum();
    assert_eq!(told, 5_001);
}

/// The pipe is never read, like a file system that does not answer any more.
#[test]
fn a_pipe_that_nobody_empties_holds_up_no_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let reader = pipe(&folder.path().join("audit.jsonl"));
    let mut log = Rig::at(folder);
    log.record(10_000);
    let started = Instant::now();
    log.writer.finish();
    assert!(started.elapsed() < Duration::from_secs(20), "it waited for the log");
    let status = log.writer.watch().status();
    assert!(status.lost > 0 && status.failing.is_some(), "{status:?}");
    drop(reader);
}
