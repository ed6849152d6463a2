//! Files and streams that commands read and write: standard streams, formats of other programs, limits, pipes and
//! links.

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The longest wait on a busy machine for an event that otherwise takes a moment.
const PATIENCE: Duration = Duration::from_secs(60);

fn portcullis(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
    command.args(arguments).stdin(Stdio::null()).env_remove("RUST_LOG");
    command
}

/// The result of a call.
struct Ended {
    code: Option<i32>,
    output: Vec<u8>,
    errors: String,
}

impl Ended {
    #[track_caller]
    fn with_code(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{}", self.errors);
        self
    }

    /// Checks that the call ended with this code, and that its errors contain each of these parts.
    #[track_caller]
    fn refused(self, code: i32, parts: &[&str]) {
        let errors = self.with_code(code).errors;
        for part in parts {
            assert!(errors.contains(part), "{part:?} is not in {errors}");
        }
    }
}

/// Runs a call until it ends, and kills it if that takes too long.
#[track_caller]
fn run(mut command: Command, input: &[u8]) -> Ended {
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().expect("it starts");
    // A call that does not read its input may end before all of the input is written.
    let _ = child.stdin.take().expect("it is piped").write_all(input);
    let process = Pid::from_child(&child);
    let (ended, waits) = std::sync::mpsc::channel::<()>();
    let watch = std::thread::spawn(move || {
        let is_late = waits.recv_timeout(PATIENCE) == Err(std::sync::mpsc::RecvTimeoutError::Timeout);
        if is_late {
            let _ = kill_process(process, Signal::KILL);
        }
        is_late
    });
    let output = child.wait_with_output().expect("it ends");
    drop(ended);
    assert!(!watch.join().expect("it watches"), "{command:?} did not end");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    Ended { code: output.status.code(), output: output.stdout, errors }
}

/// A node that keeps tables. It ends with its test, because its standard input ends then.
struct Node {
    child: Child,
    output: BufReader<ChildStdout>,
    folder: TempDir,
}

impl Node {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let listen = format!("shm:{}", folder.path().join("node").display());
        let mut command = portcullis(&["serve", "--json", "--stop-at-end-of-input", "--memory", "64MiB"]);
        command.args(["--longest-keep", "forever", "--listen", &listen]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut node = Self { child, output, folder };
        assert!(node.line()["listening"].is_array());
        node
    }

    fn line(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line");
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("the node prints {line:?}"))
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn file(&self, name: &str, content: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), content).expect("a file");
    }

    fn content(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).expect("a file")
    }

    #[track_caller]
    fn kv_with(&self, input: &[u8], command: &str, arguments: &[&str]) -> Ended {
        let mut call = portcullis(&["kv", command, "--node"]);
        call.arg(format!("shm:{}", self.path("node").display())).args(arguments).current_dir(&self.folder);
        run(call, input)
    }

    #[track_caller]
    fn kv(&self, command: &str, arguments: &[&str]) -> Ended {
        self.kv_with(b"", command, arguments)
    }

    #[track_caller]
    fn value(&self, table: &str, key: &str) -> String {
        String::from_utf8(self.kv("get", &[table, key]).with_code(0).output).expect("text")
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

#[test]
fn a_dash_is_a_standard_stream_or_refused_and_never_a_file() {
    let node = Node::start();
    node.kv_with(b"{\"key\":\"a\",\"n\":1}\n", "load", &["t", "-", "--format", "jsonl"]).with_code(0);
    node.kv_with(b"any\xffbytes", "put", &["t", "b", "--file", "-"]).with_code(0);
    assert_eq!(node.kv("get", &["t", "b", "--output", "-"]).with_code(0).output, b"any\xffbytes");
    let backup = node.kv("dump", &["t", "-"]).with_code(0).output;
    assert_eq!(backup.iter().filter(|&&byte| byte == b'\n').count(), 2);
    node.kv_with(&backup, "load", &["u", "-", "--format", "jsonl", "--value", "value"]).with_code(0);
    assert_eq!(node.kv("get", &["u", "b"]).with_code(0).output, b"any\xffbytes");
    let rows = node.kv("dump", &["t", "-", "--format", "csv"]).with_code(0).output;
    assert!(rows.starts_with(b"key,value\n"));

    node.kv("dump", &["t", "-", "--format", "folder"]).refused(2, &["folder"]);
    node.kv("load", &["t", "-", "--format", "csv", "--reject", "-"]).refused(2, &["--reject", "./-"]);
    for option in ["--audit", "--admin", "--certificates"] {
        let mut serve = portcullis(&["serve", "--listen", "shm:socket", option, "-"]);
        serve.current_dir(&node.folder);
        run(serve, b"").refused(2, &[option, "./-"]);
    }
    run(portcullis(&["certificates", "--directory", "-", "authority"]), b"").refused(2, &["./-"]);
    assert!(!node.path("-").exists(), "a file called - was made");
    node.kv("dump", &["t", "./-", "--format", "jsonl"]).with_code(0);
    assert_eq!(std::fs::read(node.path("-")).expect("the file that was named"), backup);
}

#[test]
fn settings_come_from_standard_input_too_and_have_a_limit_and_one_encoding() {
    let print = ["serve", "--print-config", "--config"];
    let config = |file: &str, input: &[u8]| run(portcullis(&[&print[..], &[file]].concat()), input);
    let printed =
        config("-", b"\xef\xbb\xbflisten = \"shm:/a\"\r\nmemory = \"1GiB\"\r\n").with_code(0).output;
    assert!(String::from_utf8_lossy(&printed).contains("memory = \"1GiB\""));
    config("-", b"listen = \"shm:/a\"\nmemory = \n").refused(2, &["standard input", "line 2"]);
    config("-", b"\xff\xfem\0").refused(3, &["UTF-16"]);
    config("/dev/zero", b"").refused(3, &["/dev/zero", "1048576"]);
    let mut both = portcullis(&["serve", "--stop-at-end-of-input", "--config", "-"]);
    both.args(["--listen", "shm:/nowhere/socket"]);
    run(both, b"").refused(2, &["--stop-at-end-of-input"]);
}

#[test]
fn a_load_takes_rows_as_other_programs_write_them() {
    let node = Node::start();
    node.file("excel.csv", "\u{feff}Ort;Zahl\r\nBern;1\r\n\"a;b\";2\r\n");
    node.kv("load", &["excel", "excel.csv", "--delimiter", ";", "--key", "Ort", "--value", "Zahl"])
        .with_code(0);
    assert_eq!((node.value("excel", "Bern"), node.value("excel", "a;b")), ("1".to_owned(), "2".to_owned()));
    node.kv("load", &["excel", "excel.csv", "--key", "Ort"]).refused(2, &["--delimiter ';'"]);
    node.file("bare.tsv", "x\tBern\t3\ny\tBasel\t4\n");
    node.kv("load", &["bare", "bare.tsv", "--no-header", "--key", "2", "--value", "3"]).with_code(0);
    assert_eq!(node.value("bare", "Basel"), "4");
    node.kv("load", &["tabs", "bare.tsv", "--no-header", "--delimiter", "\\t"]).with_code(0);
    assert_eq!(node.value("tabs", "x"), "Bern");
    node.kv("dump", &["tabs", "again.tsv"]).with_code(0);
    node.kv("load", &["again", "again.tsv"]).with_code(0);
    assert_eq!(node.value("again", "y"), "Basel");

    node.file("twice.csv", "key,value,value\na,1,2\n");
    node.kv("load", &["t", "twice.csv"]).refused(2, &["twice.csv, line 1", "columns 2 and 3"]);
    node.file("short.csv", "key,value\r\na,1\r\nb\r\n");
    node.kv("load", &["t", "short.csv"]).refused(2, &["short.csv, line 3", "1 field"]);
    let utf16: Vec<u8> = "\u{feff}key,value\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    node.file("utf16.csv", utf16);
    node.kv("load", &["t", "utf16.csv"]).refused(2, &["utf16.csv", "UTF-16", "iconv"]);
    node.file("book.csv", b"PK\x03\x04\x14\0\x06\0");
    node.kv("load", &["t", "book.csv"]).refused(2, &["xlsx"]);
    node.kv("load", &["t", "bare.tsv", "--format", "jsonl", "--no-header"]).refused(2, &["--no-header"]);
}

#[test]
fn an_input_without_an_end_is_refused_with_its_line_and_the_option_that_raises_the_limit() {
    let node = Node::start();
    for format in ["csv", "jsonl"] {
        let loaded = node.kv("load", &["t", "/dev/zero", "--format", format]);
        loaded.refused(2, &["/dev/zero, line 1", "16777216", "--row-max"]);
    }
    let quoted = format!("key,value\na,\"{}\n", "x".repeat(3000));
    let loaded = node.kv_with(quoted.as_bytes(), "load", &["t", "-", "--format", "csv", "--row-max", "1KiB"]);
    loaded.refused(2, &["standard input, line 2", "1024", "--row-max"]);
    node.kv("put", &["t", "a", "--file", "/dev/zero"]).refused(2, &["1048576"]);
}

#[test]
fn rejected_rows_are_named_counted_and_can_be_loaded_again() {
    let node = Node::start();
    node.file("in.csv", "key;value;left\r\na;1;\r\nb\r\n\"c;c\";3;soon\r\nd;4;1h\r\n");
    let options = ["--delimiter", ";", "--ttl-column", "left"];
    let load = |file: &str, reject: &str, more: &[&str]| {
        node.kv("load", &[&["t", file, "--reject", reject], &options[..], more].concat())
    };
    let loaded = load("in.csv", "bad.csv", &["--json"]).with_code(1);
    let counts: Value = serde_json::from_slice(&loaded.output).expect("JSON");
    assert_eq!((&counts["keys"], &counts["rejected"]), (&2.into(), &2.into()));
    for part in ["in.csv, line 3", "in.csv, line 4", "soon", "2 rows are not stored, but in bad.csv"] {
        assert!(loaded.errors.contains(part), "{part:?} is not in {}", loaded.errors);
    }
    assert_eq!((node.value("t", "a"), node.value("t", "d")), ("1".to_owned(), "4".to_owned()));
    assert_eq!(node.content("bad.csv"), "key;value;left\nb\n\"c;c\";3;soon\n");
    load("bad.csv", "bad.csv", &[]).refused(2, &["--reject bad.csv", "name another"]);
    node.file("bad.csv", node.content("bad.csv").replace("b\n", "b;2;\n").replace("soon", "90"));
    load("bad.csv", "worse.csv", &[]).with_code(0);
    assert_eq!((node.value("t", "b"), node.value("t", "c;c")), ("2".to_owned(), "3".to_owned()));
    assert_eq!(node.content("worse.csv"), "");

    node.file("in.jsonl", "{\"key\":1}\n{\"key\":\n{\"key\":\"\\ud83d\"}\n{\"key\":2}\n");
    let loaded = node.kv("load", &["lines", "in.jsonl", "--reject", "bad.jsonl"]);
    loaded.refused(1, &["in.jsonl, line 2", "in.jsonl, line 3", "2 rows"]);
    assert_eq!(node.content("bad.jsonl"), "{\"key\":\n{\"key\":\"\\ud83d\"}\n");
    assert_eq!(node.value("lines", "2"), "{\"key\":2}");
    node.file("other.csv", "left;key;value\n");
    load("in.csv", "x", &["other.csv"]).refused(2, &["--reject", "one by one"]);
    load("in.csv", "no/folder", &[]).refused(3, &["--reject no/folder"]);
    assert!(!node.path("x").exists());
}

#[test]
fn loaded_keys_live_as_long_as_they_are_told() {
    let node = Node::start();
    let rows = b"key,value,left\nsoon,1,300ms\nlater,2,1h\nothers,3,\n";
    let options = ["t", "-", "--format", "csv", "--ttl-column", "left"];
    node.kv_with(rows, "load", &options).with_code(0);
    node.kv_with(b"key,value\nall,4\n", "load", &["t", "-", "--format", "csv", "--ttl", "300ms"])
        .with_code(0);
    let since = Instant::now();
    while node.kv("get", &["t", "soon"]).code == Some(0) || node.kv("get", &["t", "all"]).code == Some(0) {
        assert!(since.elapsed() < PATIENCE, "the keys stay");
    }
    assert_eq!((node.value("t", "later"), node.value("t", "others")), ("2".to_owned(), "3".to_owned()));
}

#[test]
fn a_node_without_a_log_outlives_a_hangup_and_ends_when_it_is_told_to() {
    let mut node = Node::start();
    for _ in 0..3 {
        node.signal(Signal::HUP);
        node.signal(Signal::USR1);
        assert!(node.line()["counters"].is_object(), "the node answers after SIGHUP");
    }
    node.signal(Signal::TERM);
    assert!(node.child.wait().expect("it ends").success());
}

fn pipe(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("a pipe");
}

#[test]
fn a_log_waits_for_no_reader_and_follows_no_link() {
    let folder = tempfile::tempdir().expect("a folder");
    pipe(&folder.path().join("pipe"));
    std::os::unix::fs::symlink("victim", folder.path().join("link")).expect("a link");
    let audit = |path: &str| {
        let mut serve =
            portcullis(&["serve", "--listen", "shm:socket", "--memory", "16MiB", "--audit", path]);
        serve.current_dir(&folder);
        run(serve, b"")
    };
    audit("pipe").refused(3, &["--audit", "this pipe has no reader"]);
    audit("link").refused(3, &["--audit", "symbolic link"]);
    audit(".").refused(3, &["--audit"]);
    assert!(!folder.path().join("victim").exists());
}

/// Characters that act on a terminal: an escape sequence, a title, an end of line, a control character of C1 and an
/// override.
const FOREIGN: &str = "\u{1b}[31m\u{1b}]0;x\u{7}\r\u{9b}2J\u{202e}";

#[track_caller]
fn harmless(text: &[u8]) {
    let text = std::str::from_utf8(text).expect("UTF-8");
    let acts = |c: char| (c.is_control() && c != '\n' && c != '\t') || c == '\u{202e}';
    assert!(!text.contains(acts), "{text:?}");
}

#[test]
fn foreign_text_in_messages_does_nothing_to_a_terminal_and_other_text_stays() {
    let node = Node::start();
    let (file, forged) = (format!("Zürich {FOREIGN}.csv"), "a\nportcullis kv: all is stored.csv");
    node.file(&file, format!("{FOREIGN},value\n1,2\n"));
    node.file(forged, "x,y\n");
    let options: [(&str, Vec<&str>); 5] = [
        ("load", vec!["t", &file]),
        ("load", vec!["t", &file, "--no-such-option"]),
        ("load", vec!["t", "-", "--format", FOREIGN]),
        ("get", vec!["t", FOREIGN]),
        ("load", vec!["t", forged]),
    ];
    node.kv("put", &["t", "a", "b"]).with_code(0);
    for (command, arguments) in options {
        let ended = node.kv(command, &arguments);
        assert!(matches!(ended.code, Some(1 | 2)), "{}", ended.errors);
        harmless(ended.errors.as_bytes());
        assert!(
            !ended.errors.lines().any(|line| line == "portcullis kv: all is stored.csv"),
            "{}",
            ended.errors
        );
    }
    let named = node.kv("load", &["t", &file]).errors;
    assert!(named.contains("Zürich \\u{1b}[31m"), "{named}");

    node.kv("put", &["t", FOREIGN, FOREIGN]).with_code(0);
    for (command, arguments) in [
        ("list", vec!["t"]),
        ("list", vec!["t", "--json"]),
        ("get", vec!["t", FOREIGN, "a"]),
        ("get", vec!["t", FOREIGN, "--json"]),
    ] {
        harmless(&node.kv(command, &arguments).with_code(0).output);
    }
    let json: Value =
        serde_json::from_slice(&node.kv("get", &["t", FOREIGN, "--json"]).output).expect("JSON");
    assert_eq!((&json["key"], &json["value"]), (&FOREIGN.into(), &FOREIGN.into()));
    assert_eq!(
        node.kv("get", &["t", FOREIGN]).with_code(0).output,
        FOREIGN.as_bytes(),
        "data for a pipe is as it is"
    );
}

#[test]
fn a_reader_that_leaves_ends_a_dump_in_order() {
    let node = Node::start();
    let rows: String = (0..2000).map(|n| format!("{n},{}\n", "x".repeat(500))).collect();
    node.kv_with(rows.as_bytes(), "load", &["t", "-", "--format", "csv", "--no-header"]).with_code(0);
    let mut call = portcullis(&["kv", "dump", "--node"]);
    call.arg(format!("shm:{}", node.path("node").display())).args(["t", "-"]);
    let mut child = call.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut first = [0; 1];
    child.stdout.take().expect("it is piped").read_exact(&mut first).expect("a byte");
    let ended = child.wait_with_output().expect("it ends");
    assert_eq!((ended.status.code(), String::from_utf8_lossy(&ended.stderr).as_ref()), (Some(0), ""));
}
