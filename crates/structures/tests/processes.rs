//! The results that clients in several processes get fit one order of all operations on a key, also if the kernel kills
//! some of the processes.

use crate::perform::perform;
use crate::rig::User;
use portcullis::host::{Host, HostConfig, Listen};
use portcullis::{DirectoryName, Lifetime, NodeConfig, SessionOptions, connect_with};
use portcullis_histories::key::{Event, Operation, is_linearizable};
use portcullis_structures::Pipeline;
use portcullis_structures::table::{Access, Grain, Table, TableOptions};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::rc::Rc;

/// Number of processes at a time.
const PROCESSES: u64 = 3;
/// Number of times that one of them is killed and another one started.
const KILLED: u64 = 6;
/// Number of operations of a process that is not killed.
const OPERATIONS: u64 = 300;
/// Number of keys that all processes change, and number of all keys: the others make the table grow.
const HOT: u64 = 4;
const KEYS: u64 = 400;
/// Prefix of the lines that a process prints for the test: the test's own framework prints too.
const MARK: &str = "history: ";
/// Variables through which a process gets its parameters: its number, and the node's socket.
const NUMBER: &str = "PORTCULLIS_TEST_PROCESS";
const SOCKET: &str = "PORTCULLIS_TEST_SOCKET";

/// A line that a process prints before and after each operation.
#[derive(Serialize, Deserialize)]
struct Told {
    key: u64,
    operation: Operation,
}

/// Returns the time of the machine, which all its processes see.
fn time() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let nanos = i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec);
    u64::try_from(nanos).expect("a machine runs for less than 500 years")
}

fn name() -> DirectoryName {
    "hot".parse().expect("a name")
}

fn connect(socket: &Path) -> Rc<Pipeline> {
    let address = format!("shm:{}", socket.display());
    let session = connect_with(&address, SessionOptions::default()).expect("the node is there");
    Rc::new(Pipeline::new(session))
}

fn draw(dice: &mut StdRng, value: u64, seen: u64) -> Event {
    match dice.random_range(0..10) {
        0..4 => Event::Get(None),
        4 => Event::Insert(value, false),
        5 => Event::Update(value, false),
        6 | 7 => Event::Upsert(value),
        8 => Event::Remove(false),
        _ => Event::Exchange(seen, value, false),
    }
}

/// Prints an operation that is about to happen, or has happened. A line is written at once, so each line that a dying
/// process has printed is whole.
fn tell(key: u64, event: Event, start: u64, end: Option<u64>) {
    let told = Told { key, operation: Operation { event, start, end } };
    println!("{MARK}{}", serde_json::to_string(&told).expect("it is plain data"));
}

#[test]
#[ignore = "it is one of the processes of the other test"]
fn one_of_several_processes() {
    let number: u64 = std::env::var(NUMBER).expect("it is told").parse().expect("a number");
    let pipeline = connect(Path::new(&std::env::var_os(SOCKET).expect("it is told")));
    let table = pipeline.block_on(Table::open_named(&pipeline, name(), Access::Write)).expect("the table");
    let mut dice = StdRng::seed_from_u64(number);
    let mut seen = 0;
    for count in 0..OPERATIONS {
        let hot = dice.random_range(0..10) < 8;
        let key = if hot { dice.random_range(0..HOT) } else { dice.random_range(HOT..KEYS) };
        // Each value is stored at most once.
        let event = draw(&mut dice, number << 32 | (count + 1), seen);
        let start = time();
        tell(key, event, start, None);
        let event = pipeline.block_on(perform(&table, key, event)).expect("the node serves all");
        tell(key, event, start, Some(time()));
        if let Event::Get(Some(value)) = event {
            seen = value;
        }
    }
}

/// A process, and the operations that it has printed so far.
struct Process {
    child: Child,
    lines: BufReader<ChildStdout>,
    told: Vec<Told>,
}

impl Process {
    fn start(number: u64, socket: &Path) -> Self {
        let this = std::env::current_exe().expect("the path of this test");
        let mut child = Command::new(this)
            .args(["--exact", "processes::one_of_several_processes", "--ignored", "--nocapture"])
            .env(NUMBER, number.to_string())
            .env(SOCKET, socket)
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let lines = BufReader::new(child.stdout.take().expect("it is piped"));
        Self { child, lines, told: Vec::new() }
    }

    /// Reads the lines of the process, until it has printed `most` lines or has ended. An operation has two lines: the
    /// one with its result replaces the one that announced it.
    fn listen(&mut self, most: usize) {
        for line in (&mut self.lines).lines().take(most) {
            let line = line.expect("text");
            let Some((_, told_now)) = line.split_once(MARK) else { continue };
            let now: Told = serde_json::from_str(told_now).expect("a line is whole");
            match self.told.last_mut().filter(|last| last.operation.end.is_none()) {
                Some(begun) => *begun = now,
                None => self.told.push(now),
            }
        }
    }
}

fn explore(seed: u64, grain: Grain) {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("node.sock");
    let config = HostConfig {
        node: NodeConfig { pool_bytes: 256 << 20, ..NodeConfig::default() },
        listen: vec![Listen { path: socket.clone(), tenant: Some("red".to_owned()) }],
        ..HostConfig::default()
    };
    let _node = Host::start(config).expect("a node starts");
    let options = TableOptions {
        grain,
        lease: Lifetime::millis(20),
        groups: 1,
        depth_max: 10,
        seed: Some(0),
        ..TableOptions::default()
    };
    let pipeline = connect(&socket);
    let table = pipeline.block_on(Table::create(&pipeline, &options)).expect("a table");
    pipeline.block_on(table.publish(name())).expect("a name");
    let first = User { pipeline, table };
    let told = run_processes(seed, &socket, &first);
    assert!(told.len() as u64 > PROCESSES * OPERATIONS, "seed {seed}: only {} operations", told.len());
    for key in 0..KEYS {
        let history: Vec<Operation> = told.iter().filter(|it| it.key == key).map(|it| it.operation).collect();
        assert!(is_linearizable(&history), "seed {seed}, {grain:?}: key {key}: {history:#?}");
    }
    for _ in 0..2 {
        first.run(first.table.sweep());
    }
    let found = first.run(first.table.statistics());
    assert_eq!((found.unlinked, found.dangling), (0, 0), "seed {seed}, {grain:?}: leaked or lost: {found:?}");
}

/// Runs the processes, kills some at any moment, and sweeps meanwhile. Returns the operations that all of them have
/// printed.
fn run_processes(seed: u64, socket: &Path, first: &User) -> Vec<Told> {
    let mut dice = StdRng::seed_from_u64(seed);
    let mut numbers = seed % (1 << 20) * 64..;
    let mut start = || Process::start(numbers.next().expect("enough"), socket);
    let mut told = Vec::new();
    let mut running: Vec<Process> = (0..PROCESSES).map(|_| start()).collect();
    for _ in 0..KILLED {
        let place = dice.random_range(0..running.len());
        running[place].listen(dice.random_range(4..200));
        let mut killed = std::mem::replace(&mut running[place], start());
        killed.child.kill().expect("it can be killed");
        killed.child.wait().expect("it has ended");
        killed.listen(usize::MAX);
        told.append(&mut killed.told);
        first.run(first.table.sweep());
    }
    for mut process in running {
        process.listen(usize::MAX);
        told.append(&mut process.told);
        assert!(process.child.wait().expect("it ends").success(), "seed {seed}: a process has failed");
    }
    told
}

/// Returns a new seed each time, or the one that failed (`PORTCULLIS_SEED`). A seed decides which operations each
/// process does, and not when.
fn seed() -> u64 {
    let given = std::env::var("PORTCULLIS_SEED").ok();
    given.map_or_else(
        || rand::random_range(0..1 << 20),
        |seed| seed.parse().expect("PORTCULLIS_SEED is a number"),
    )
}

#[test]
fn what_processes_are_told_fits_one_order_also_where_some_of_them_are_killed() {
    explore(seed(), Grain::Extent);
}

#[test]
fn the_same_where_each_block_has_a_permission_of_its_own() {
    explore(seed(), Grain::Block);
}
