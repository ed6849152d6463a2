//! The processes of the example: the scene starts them, kills some of them, and collects their reports.

use crate::{BLOCK_BYTES, BLOCKS};
use portcullis::host::{Host, HostConfig, Listen};
use portcullis::{NodeConfig, Session, connect};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

type BoxError = Box<dyn std::error::Error>;

/// The size of the pool in blocks: freed blocks that readers still hold must fit beside the listed ones.
const POOL_BLOCKS: u64 = BLOCKS + 64;
/// Bytes that an aligned block takes with its header.
const BLOCK_SPACE: u64 = BLOCK_BYTES as u64 + 4096;
/// Interval at which a process reports its progress.
const SAID_EVERY: Duration = Duration::from_millis(200);

/// Progress of a process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Blocks written.
    pub written: u64,
    /// Blocks that were read completely and had the right content.
    pub read: u64,
    /// Reads that returned another block than the requested one.
    pub wrong: u64,
    /// Errors that the process got instead of a block, with their counts.
    pub told: BTreeMap<String, u64>,
}

impl Report {
    fn add(&mut self, other: &Self) {
        self.written += other.written;
        self.read += other.read;
        self.wrong += other.wrong;
        for (what, count) in &other.told {
            *self.told.entry(what.clone()).or_default() += count;
        }
    }
}

/// Reports a process's progress to the scene as lines of JSON. The process is to end when the scene closes its standard
/// input.
pub struct Reporter {
    pub report: Report,
    over: Arc<AtomicBool>,
    said: Instant,
}

impl Reporter {
    pub fn start() -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&over);
        std::thread::spawn(move || {
            let _ = std::io::stdin().lock().read(&mut [0]);
            told.store(true, Ordering::Release);
        });
        Self { report: Report::default(), over, said: Instant::now() }
    }

    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    pub fn count(&mut self, change: impl FnOnce(&mut Report)) {
        change(&mut self.report);
        if self.said.elapsed() > SAID_EVERY {
            self.said = Instant::now();
            self.say();
        }
    }

    fn say(&self) {
        let line = serde_json::to_string(&self.report).unwrap_or_default();
        let mut output = std::io::stdout().lock();
        let _ = writeln!(output, "{line}").and_then(|()| output.flush());
    }

    pub fn end(&self) {
        self.say();
    }
}

fn socket(folder: &Path) -> PathBuf {
    folder.join("node.sock")
}

/// Opens a session as soon as the node is running. `None`: the example ended first.
pub fn connect_until(folder: &Path, over: impl Fn() -> bool) -> Option<Session> {
    let address = format!("shm:{}", socket(folder).display());
    while !over() {
        match connect(&address) {
            Ok(session) => return Some(session),
            // The node is starting.
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    None
}

/// Runs the node until its standard input ends.
pub fn serve(folder: &Path) -> Result<(), BoxError> {
    let node = NodeConfig { pool_bytes: POOL_BLOCKS * BLOCK_SPACE, ..NodeConfig::default() };
    let listen = vec![Listen { path: socket(folder), tenant: None }];
    let host = Host::start(HostConfig { node, listen, ..HostConfig::default() })?;
    println!("{}", host.incarnation());
    let _ = std::io::stdin().lock().read(&mut [0]);
    Ok(())
}

struct Player {
    process: Child,
    input: Option<ChildStdin>,
    report: Arc<Mutex<Report>>,
    listener: Option<JoinHandle<()>>,
}

impl Player {
    fn start(role: &[&str], folder: &Path) -> Result<Self, BoxError> {
        let mut process = Command::new(std::env::current_exe()?)
            .arg(role[0])
            .arg(folder)
            .args(&role[1..])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = process.stdin.take();
        let output = process.stdout.take().ok_or("no output")?;
        let report = Arc::new(Mutex::new(Report::default()));
        let heard = Arc::clone(&report);
        let listener = std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if let Ok(report) = serde_json::from_str(&line) {
                    *heard.lock().unwrap_or_else(PoisonError::into_inner) = report;
                }
            }
        });
        Ok(Self { process, input, report, listener: Some(listener) })
    }

    /// Closes the process's input, waits until the process has ended, and returns its last report.
    fn end(&mut self) -> Report {
        self.input = None;
        let _ = self.process.wait();
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
        self.report.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Kills the process with SIGKILL, so that it cannot clean up.
    fn kill(&mut self) -> Report {
        let _ = self.process.kill();
        self.end()
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[derive(Serialize)]
struct SceneResults {
    seconds: f64,
    #[serde(flatten)]
    report: Report,
    read_gb_per_s: f64,
    memcpy_gb_per_s: f64,
}

/// Starts all processes, kills a reader after a third of the time and the node after two thirds, and prints the
/// results.
pub fn play(seconds: u64, consumers: u32, json: bool) -> ExitCode {
    match scene(Duration::from_secs(seconds), consumers) {
        Ok(results) => {
            let wrong = results.report.wrong;
            if json {
                println!("{}", serde_json::to_string(&results).unwrap_or_default());
            } else {
                print(&results);
            }
            if wrong == 0 && results.report.read > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("block_store: {error}");
            ExitCode::from(3)
        }
    }
}

fn scene(time: Duration, consumers: u32) -> Result<SceneResults, BoxError> {
    let folder = tempfile::tempdir()?;
    let folder = folder.path();
    let memcpy_gb_per_s = memcpy();
    let mut node = Player::start(&["node"], folder)?;
    let mut producer = Player::start(&["producer"], folder)?;
    let start = |seed: u32| Player::start(&["consumer", &seed.to_string()], folder);
    let mut readers = (0..consumers).map(start).collect::<Result<Vec<_>, _>>()?;
    let (began, mut report) = (Instant::now(), Report::default());

    std::thread::sleep(time / 3);
    report.add(&readers[0].kill());
    readers[0] = start(consumers)?;

    std::thread::sleep((time * 2 / 3).saturating_sub(began.elapsed()));
    node.kill();
    node = Player::start(&["node"], folder)?;

    std::thread::sleep(time.saturating_sub(began.elapsed()));
    let seconds = began.elapsed().as_secs_f64();
    for player in readers.iter_mut().chain([&mut producer]) {
        report.add(&player.end());
    }
    node.end();
    let read_gb_per_s = report.read as f64 * f64::from(BLOCK_BYTES) / seconds / 1e9;
    Ok(SceneResults { seconds, report, read_gb_per_s, memcpy_gb_per_s })
}

/// The copy rate of this machine with one thread, in GB/s, over as many bytes as the blocks of the example have.
fn memcpy() -> f64 {
    let block = BLOCK_BYTES as usize;
    let store = vec![1u8; block * usize::try_from(BLOCKS).unwrap_or(0)];
    let mut into = vec![0u8; block];
    let (began, mut copied) = (Instant::now(), 0u64);
    while began.elapsed() < Duration::from_millis(300) {
        for from in store.chunks_exact(block) {
            into.copy_from_slice(std::hint::black_box(from));
            std::hint::black_box(&mut into);
            copied += u64::from(BLOCK_BYTES);
        }
    }
    copied as f64 / began.elapsed().as_secs_f64() / 1e9
}

fn print(results: &SceneResults) {
    let SceneResults { seconds, report, read_gb_per_s, memcpy_gb_per_s } = results;
    println!(
        "{} blocks of {BLOCK_BYTES} bytes written into {BLOCKS} places in {seconds:.1} s",
        report.written
    );
    println!(
        "{} blocks read, whole and looked at: {read_gb_per_s:.2} GB/s (memcpy: {memcpy_gb_per_s:.2} GB/s)",
        report.read
    );
    println!("{} wrong blocks", report.wrong);
    println!("told instead of a block:");
    for (what, count) in &report.told {
        println!("{count:>10}  {what}");
    }
}
