//! `portcullis far` as a program: exit codes, signals, and the fate of the program if its node or its monitor dies. If
//! this process may not handle faults, the tests report that and end.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The longest wait on a busy machine for an event that otherwise takes a moment.
const PATIENCE: Duration = Duration::from_secs(120);

/// Whether the tests can run. If not, prints the reason: this process may not handle faults, or there is no GNU sort.
fn can_run() -> bool {
    let call = ["far", "--range", "64MiB", "--", "sort", "--version"];
    let output = portcullis(&call).output().expect("the program starts");
    if !output.status.success() {
        eprintln!("SKIPPED: {}", errors(&output));
    }
    output.status.success()
}

fn portcullis(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
    command.args(arguments).stdin(Stdio::null()).env_remove("RUST_LOG");
    command
}

/// A node with chunks that ends with its test, because its standard input ends then.
struct Node {
    child: Child,
    address: String,
    _folder: tempfile::TempDir,
}

impl Node {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let address = format!("shm:{}", folder.path().join("node.sock").display());
        let mut command = portcullis(&["serve", "--json", "--stop-at-end-of-input", "--memory", "16MiB"]);
        command.args(["--chunks", "256", "--chunk-bytes", "1MiB", "--listen", &address]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
        serde_json::from_str::<Value>(&line).expect("it listens");
        Self { child, address, _folder: folder }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Starts GNU sort with 8 MiB here and the rest on the node. It has received `lines` lines and waits for more.
fn sort_that_waits(node: &Node, lines: u32) -> (Child, ChildStdin) {
    let mut command =
        portcullis(&["far", "--node", &node.address, "--local", "8MiB", "--", "sort", "-S", "64M"]);
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().expect("it starts");
    let mut input = child.stdin.take().expect("a pipe");
    for number in 0..lines {
        writeln!(input, "{:010} some line {number}", number.wrapping_mul(2_654_435_761)).expect("it reads");
    }
    (child, input)
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_program_s_exit_code_is_passed_on() {
    if !can_run() {
        return;
    }
    let node = Node::start();
    let far = |arguments: &[&str]| {
        let call = [&["far", "--node", &node.address, "--local", "8MiB", "--"], arguments].concat();
        portcullis(&call).output().expect("it starts")
    };
    assert_eq!(far(&["sort", "/dev/null"]).status.code(), Some(0));
    assert_eq!(far(&["sh", "-c", "exit 7"]).status.code(), Some(7));
    let missing = far(&["there-is-no-such-program"]);
    assert_eq!(missing.status.code(), Some(3));
    assert!(errors(&missing).contains("cannot start the program"), "{}", errors(&missing));
}

#[test]
fn a_wrong_call_is_told_what_is_wrong() {
    let cases: [(&[&str], &str); 4] = [
        (&["far", "--local", "1MiB", "--", "sort"], "8MiB must be local"),
        (&["far", "--range", "1000", "--", "sort"], "multiple of 1MiB"),
        (&["far", "--library", "/nowhere/lib.so", "--", "sort"], "--library"),
        (&["far", "--first", "1GiB", "--", "sort"], "--first"),
    ];
    for (call, said) in cases {
        let output = portcullis(call).output().expect("it starts");
        assert_eq!(output.status.code(), Some(2), "{call:?}: {}", errors(&output));
        assert!(errors(&output).contains(said), "{call:?}: {}", errors(&output));
    }
}

#[test]
fn the_summary_is_json_for_programs() {
    if !can_run() {
        return;
    }
    let node = Node::start();
    let report = tempfile::NamedTempFile::new().expect("a file");
    let path = report.path().to_str().expect("text");
    let mut call = portcullis(&["far", "--node", &node.address, "--report", path, "--", "sort", "/dev/null"]);
    let output = call.output().expect("it starts");
    assert!(output.status.success() && output.stderr.is_empty(), "{}", errors(&output));
    let text = std::fs::read_to_string(path).expect("a report");
    let summary: Value = serde_json::from_str(&text).expect("an object");
    for figure in
        ["seconds", "fault_share", "faults", "prefetched_used_pages", "chunks_max", "local_bytes_max"]
    {
        assert!(summary[figure].is_number(), "{figure}: {text}");
    }
}

#[test]
fn a_program_whose_node_dies_is_ended_with_the_reason() {
    if !can_run() {
        return;
    }
    let mut node = Node::start();
    let (child, input) = sort_that_waits(&node, 400_000);
    node.child.kill().expect("it is there");
    node.child.wait().expect("it ends");
    // The program sorts, and most of the data that it sorts is lost.
    drop(input);
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(3), "{}", errors(&output));
    assert!(output.stdout.is_empty(), "it printed something without its memory");
    assert!(errors(&output).contains("node is gone"), "{}", errors(&output));
}

/// The processes whose parent is `process`.
fn children_of(process: u32) -> Vec<u32> {
    let all = std::fs::read_dir("/proc").expect("/proc").flatten();
    let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    numbers.filter(|&number| parent_of(number).is_some_and(|(parent, _)| parent == process)).collect()
}

/// A process's parent, and whether it still runs.
fn parent_of(process: u32) -> Option<(u32, bool)> {
    let stat = std::fs::read_to_string(Path::new("/proc").join(process.to_string()).join("stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let runs = !matches!(fields.next()?, "Z" | "X");
    Some((fields.next()?.parse().ok()?, runs))
}

#[test]
fn a_program_whose_monitor_dies_dies_too() {
    if !can_run() {
        return;
    }
    let node = Node::start();
    let (mut child, input) = sort_that_waits(&node, 300_000);
    let program = children_of(child.id());
    assert_eq!(program.len(), 1, "the monitor has one child: the program");
    child.kill().expect("it is there");
    child.wait().expect("it ends");
    drop(input);
    let mut printed = Vec::new();
    child.stdout.take().expect("a pipe").read_to_end(&mut printed).expect("its output");
    assert!(printed.is_empty(), "it printed something without its memory");
    let within = Instant::now() + PATIENCE;
    while parent_of(program[0]).is_some_and(|(_, runs)| runs) {
        assert!(Instant::now() < within, "the program outlives its monitor");
        std::thread::yield_now();
    }
}

#[test]
fn signals_reach_the_program_and_its_end_is_passed_on() {
    if !can_run() {
        return;
    }
    let node = Node::start();
    let (child, _input) = sort_that_waits(&node, 100);
    let within = Instant::now() + PATIENCE;
    while children_of(child.id()).is_empty() {
        assert!(Instant::now() < within, "no program is started");
        std::thread::yield_now();
    }
    let monitor = Pid::from_child(&child);
    kill_process(monitor, Signal::TERM).expect("it is there");
    let output = child.wait_with_output().expect("it ends");
    let signal = std::os::unix::process::ExitStatusExt::signal(&output.status);
    assert_eq!(signal, Some(Signal::TERM.as_raw()), "{:?} {}", output.status, errors(&output));
    assert!(errors(&output).contains("portcullis far"), "the summary comes first: {}", errors(&output));
}

/// The library in the folder in which cargo has built this program.
fn library() -> std::path::PathBuf {
    let folder = Path::new(env!("CARGO_BIN_EXE_portcullis")).parent().expect("a folder");
    let name = "libportcullis_preload.so";
    let places = [folder.join(name), folder.join("deps").join(name)];
    places.into_iter().find(|path| path.is_file()).expect("cargo builds the library with the tests")
}

#[test]
fn a_library_whose_path_the_dynamic_linker_would_split_is_loaded_beside_the_user_s_own() {
    if !can_run() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path().join("a b:c $LIB");
    std::fs::create_dir(&place).expect("a folder");
    let own = place.join("libportcullis_preload.so");
    std::fs::copy(library(), &own).expect("a copy");
    // The user's own library is one that every program loads anyway.
    let own_text = own.to_str().expect("text");
    let mut call =
        portcullis(&["far", "--json", "--library", own_text, "--", "sh", "-c", "echo $LD_PRELOAD"]);
    let output = call.env("LD_PRELOAD", "libc.so.6").output().expect("it starts");
    let errors = errors(&output);
    assert!(output.status.success() && !errors.contains("cannot be preloaded"), "{errors}");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.trim().ends_with(":libc.so.6") && !printed.contains(' '), "{printed}");
    let line = errors.lines().find(|line| line.starts_with('{')).expect("a summary");
    let summary: Value = serde_json::from_str(line).expect("an object");
    assert!(summary["ranges"].as_u64() >= Some(1), "the library was not loaded: {line}");
    let link = printed.split(':').next().expect("a path");
    assert!(!Path::new(link).exists(), "the link {link} outlives the program");
}

#[test]
fn a_program_that_uses_its_range_up_is_told_which_option_gives_more() {
    if !can_run() {
        return;
    }
    let dd = ["dd", "if=/dev/zero", "of=/dev/null", "bs=100M", "count=1"];
    let output =
        portcullis(&[&["far", "--range", "64MiB", "--"], &dd[..]].concat()).output().expect("it starts");
    let errors = errors(&output);
    assert!(!output.status.success(), "dd has its block");
    let told = errors.lines().find(|line| line.contains("--range")).unwrap_or_else(|| panic!("{errors}"));
    assert!(told.contains("KiB more in its 64 MiB: its malloc fails"), "{told}");
}

#[test]
fn a_script_whose_child_has_the_memory_gets_a_warning() {
    if !can_run() {
        return;
    }
    let script = "head -c 80000000 /dev/zero | tr '\\0' x | tail -c 70000000 | sort -S 200M | wc -c";
    let output = portcullis(&["far", "--", "sh", "-c", script]).output().expect("it starts");
    let errors = errors(&output);
    assert!(output.status.success() && errors.contains("next to nothing"), "{errors}");
}
