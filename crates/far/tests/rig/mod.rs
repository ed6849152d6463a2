//! A node in this process, and programs that run with its memory.

#![allow(dead_code, reason = "each test program uses a part")]

use portcullis::host::{Host, HostConfig};
use portcullis::{ChunkLimits, NodeConfig, SessionOptions};
use portcullis_far::{Ended, FarError, Monitor, Pins, Program, SEGMENT_BYTES, Sizes, Summary};
use portcullis_memory::userfault::Userfault;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

pub const CHUNKS: u64 = 256;
/// Time that a busy machine may take for operations that usually take a moment.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Whether the test can run here. If not, it prints the reason.
pub fn can_run(program: &str) -> bool {
    if let Err(error) = Userfault::new() {
        eprintln!("SKIPPED: {error}");
        return false;
    }
    let version = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let is_there = version.is_ok_and(|status| status.success());
    if !is_there {
        eprintln!("SKIPPED: there is no {program} here");
    }
    is_there
}

pub fn library() -> PathBuf {
    let test = std::env::current_exe().expect("a test is a program");
    let library = test.with_file_name("libportcullis_preload.so");
    assert!(library.is_file(), "cargo builds {} with the tests", library.display());
    library
}

pub fn host(chunks: u64) -> Host {
    let chunks = ChunkLimits { chunks, chunk_bytes: SEGMENT_BYTES, client_max: chunks };
    let pool_bytes = chunks.chunks * SEGMENT_BYTES + (16 << 20);
    let node = NodeConfig { pool_bytes, chunks: Some(chunks), ..NodeConfig::default() };
    Host::start(HostConfig { node, ..HostConfig::default() }).expect("a node starts")
}

/// A program with far memory, and the thread that is its monitor.
pub struct Running {
    monitor: JoinHandle<(Result<Ended, FarError>, Summary)>,
    pub input: Option<ChildStdin>,
    pub output: BufReader<ChildStdout>,
}

impl Running {
    pub fn start(host: &Host, local: u64, mut command: Command) -> Self {
        let sizes = Sizes { range: 1 << 30, local, first: 2 << 20, least: 0 };
        let options = SessionOptions { arena_bytes: sizes.arena_bytes(), ..SessionOptions::default() };
        let session = host.connect("far", options).expect("a session");
        let (sender, streams) = mpsc::channel();
        let monitor = thread::spawn(move || {
            let mut monitor = Monitor::new(session, sizes, Pins::Respected).expect("a monitor");
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut program = Program::start(command, &library(), sizes).expect("the program starts");
            sender.send(program.take_streams()).expect("the test waits");
            (monitor.serve(&mut program), monitor.summary())
        });
        let (input, output) = streams.recv().expect("the program starts");
        Self { monitor, input, output: BufReader::new(output.expect("a pipe")) }
    }

    pub fn says(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line");
        line.trim().to_owned()
    }

    pub fn tell(&mut self, line: &str) {
        let input = self.input.as_mut().expect("a pipe");
        writeln!(input, "{line}").expect("it listens");
    }

    /// Returns the program's output until its end, and the way it ended.
    pub fn end(mut self) -> (Vec<u8>, Result<Ended, FarError>, Summary) {
        drop(self.input.take());
        let mut printed = Vec::new();
        self.output.read_to_end(&mut printed).expect("its output");
        let (ended, summary) = self.monitor.join().expect("the monitor does not panic");
        (printed, ended, summary)
    }
}

pub fn python(script: &str) -> Command {
    let mut command = Command::new("python3");
    command.args(["-c", script]);
    command
}
