//! A node that is frozen (SIGSTOP): each wait for the node ends within its limit, reports that, and continues when the
//! node does.

use portcullis::{
    Acquire, Allocate, DirectoryName, Effect, Error, Keep, Lifetime, Rights, Session, SessionOptions,
    connect_with,
};
use portcullis_structures::Pipeline;
use portcullis_structures::queue::{Queue, QueueError, QueueOptions};
use portcullis_structures::table::{Table, TableError, TableOptions};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const WITHIN: Lifetime = Lifetime::millis(600);
/// A call that takes longer is taken as never ending. On a busy machine, a limit of less than a second may take some
/// seconds.
const LATE_AFTER: Duration = Duration::from_secs(20);

/// A running `portcullis`, and the first line of its output.
struct Program {
    child: Child,
    said: Value,
}

impl Program {
    fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_portcullis"))
            .args(arguments)
            .arg("--json")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut line = String::new();
        let output = child.stdout.take().expect("it is piped");
        BufReader::new(output).read_line(&mut line).expect("a line");
        Self { child, said: serde_json::from_str(&line).expect("it says where it listens") }
    }

    fn listening(&self, place: usize) -> String {
        self.said["listening"][place].as_str().expect("an address").to_owned()
    }

    fn process(&self) -> Pid {
        Pid::from_raw(self.child.id().try_into().expect("a small number")).expect("not zero")
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.process(), signal).expect("it is ours");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A node with a socket and an address for datagrams.
struct Node {
    program: Program,
    _folder: TempDir,
}

impl Node {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let shm = format!("shm:{}", folder.path().join("node.sock").display());
        let places = ["serve", "--listen", &shm, "--listen", "udp:127.0.0.1:0"];
        let limits = ["--memory", "64MiB", "--longest-lifetime", "600s"];
        Self { program: Program::start(&[&places[..], &limits].concat()), _folder: folder }
    }

    /// The node's addresses: over shared memory, and over UDP.
    fn addresses(&self) -> [String; 2] {
        [0, 1].map(|place| self.program.listening(place))
    }

    fn freeze(&self) {
        self.program.signal(Signal::STOP);
        // Wait until all threads of the node have stopped.
        let stopped = waitpid(Some(self.program.process()), WaitOptions::UNTRACED).expect("it is a child");
        assert!(stopped.is_some_and(|(_, status)| status.stopped()));
    }

    fn thaw(&self) {
        self.program.signal(Signal::CONT);
    }
}

fn session(address: &str) -> Session {
    connect_with(address, SessionOptions { within: WITHIN, ..SessionOptions::default() }).expect("a session")
}

/// Checks that a call fails in time with a retryable error. Returns the error.
#[track_caller]
fn gives_up<T>(what: &str, call: impl FnOnce() -> Result<T, Error>) -> Error {
    let began = Instant::now();
    let Err(error) = call() else { panic!("{what} succeeds on a frozen node") };
    assert!(began.elapsed() < LATE_AFTER, "{what} took {:?}", began.elapsed());
    assert!(error.is_retryable(), "{what}: {error}");
    error
}

#[track_caller]
fn times_out<T>(what: &str, call: impl FnOnce() -> Result<T, Error>) -> Effect {
    let began = Instant::now();
    let error = gives_up(what, call);
    let Error::TimedOut { effect, within, .. } = error else { panic!("{what}: {error}") };
    assert!(began.elapsed() >= Duration::from(within), "{what} ended after {:?}", began.elapsed());
    let text = error.to_string();
    assert!(text.contains("the node") && text.contains("(within)"), "{text}");
    effect
}

#[test]
fn each_request_of_a_session_ends_within_the_limit_and_the_session_goes_on_afterwards() {
    let node = Node::start();
    for address in node.addresses() {
        let mut session = session(&address);
        let long = Lifetime::seconds(50);
        let held = session.allocate(Allocate::bytes(64).lifetime(long).keep()).expect("memory");
        let other = session.allocate(Allocate::bytes(64).lifetime(long).keep()).expect("memory");
        let named = other.object();
        session.write(&held, 0, &[7; 64]).expect("it is written");
        session.revoke(other).expect("it is ended");
        session.publish("known", named).expect("a name");
        node.freeze();
        assert_eq!(times_out("allocate", || session.allocate(Allocate::bytes(64).pinned())), Effect::Nothing);
        let ask = Acquire::object(named).lifetime(long).wait(Lifetime(0));
        assert_eq!(times_out("acquire", || session.acquire(ask)), Effect::Nothing);
        assert_eq!(times_out("lookup", || session.lookup("known")), Effect::Nothing);
        assert_eq!(times_out("publish", || session.publish("new", held.object())), Effect::Perhaps);
        times_out("share", || session.share("known", "orange", Rights::READ));
        times_out("unshare", || session.unshare("known", "orange"));
        times_out("keep", || session.set_keep(named, Keep::Attached));
        times_out("read", || session.read(&held, 0, &mut [0; 8]));
        times_out("write", || session.write(&held, 0, &[7; 64]));
        times_out("an atomic", || session.fetch_and_add(&held, 0, 0));
        gives_up("extend", || session.extend(&held, Lifetime::seconds(55)));
        gives_up("many at once", || {
            session.acquire_all(&[ask; 40])?.into_iter().collect::<Result<Vec<_>, _>>()
        });
        node.thaw();
        let mut bytes = [0; 64];
        session.read(&held, 0, &mut bytes).expect("the session goes on");
        assert_eq!(bytes, [7; 64]);
        session.revoke(held).expect("it is ended");
        // A permission that was granted too late is given back long before its lease ends.
        let mut next = self::session(&address);
        let began = Instant::now();
        while let Err(error) = next.acquire(Acquire::object(named).wait(Lifetime(0))) {
            assert!(matches!(error, Error::Refused(_)), "{error}");
            assert!(began.elapsed() < LATE_AFTER, "the late permission is never given back");
            session.poll();
            std::thread::yield_now();
        }
        session.unpublish("known").expect("the session goes on");
        next.free(named).expect("it is freed");
    }
}

#[test]
fn a_node_that_stands_still_for_less_than_the_limit_fails_no_access() {
    let node = Node::start();
    for address in node.addresses() {
        let within = Lifetime::seconds(60);
        let options = SessionOptions { within, ..SessionOptions::default() };
        let mut session = connect_with(&address, options).expect("a session");
        let held = session.allocate(Allocate::bytes(64).lifetime(Lifetime::seconds(600))).expect("memory");
        node.freeze();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // The node is frozen for this time.
                std::thread::sleep(Duration::from_secs(3));
                node.thaw();
            });
            session.write(&held, 0, &[7; 64]).expect("it is written when the node goes on");
        });
        assert_eq!(session.fetch_and_add(&held, 0, 1), Ok(u64::from_ne_bytes([7; 8])));
    }
}

fn of_table<T>(result: Result<T, TableError>) -> Result<T, Error> {
    result.map_err(|error| match error {
        TableError::Session(error) => error,
        error => panic!("{error}"),
    })
}

fn of_queue<T>(result: Result<T, QueueError>) -> Result<T, Error> {
    result.map_err(|error| match error {
        QueueError::Session(error) => error,
        error => panic!("{error}"),
    })
}

#[test]
fn operations_of_tables_and_queues_end_within_the_limit_one_by_one_and_many_at_once() {
    let node = Node::start();
    for address in node.addresses() {
        let pipeline = Rc::new(Pipeline::new(session(&address)));
        let run = |what: &str, operation: &mut dyn FnMut() -> Result<(), Error>| gives_up(what, operation);
        let table = pipeline.block_on(Table::create(&pipeline, &TableOptions::default())).expect("a table");
        let queue = pipeline.block_on(Queue::create(&pipeline, &QueueOptions::default())).expect("a queue");
        assert!(pipeline.block_on(table.insert(b"key", b"value")).expect("a store"));
        pipeline.block_on(queue.push(b"entry")).expect("a push");
        node.freeze();
        run("get", &mut || of_table(pipeline.block_on(table.get(b"key"))).map(|_| ()));
        run("insert", &mut || of_table(pipeline.block_on(table.upsert(b"other", b"value"))).map(|_| ()));
        run("take", &mut || of_table(pipeline.block_on(table.take(b"nothing"))).map(|_| ()));
        run("for_each", &mut || of_table(pipeline.block_on(table.for_each(|_, _| ()))));
        run("sweep", &mut || of_table(pipeline.block_on(table.sweep())).map(|_| ()));
        run("statistics", &mut || of_table(pipeline.block_on(table.statistics())).map(|_| ()));
        run("open", &mut || {
            let name: DirectoryName = "nothing".parse().expect("a name");
            let access = portcullis_structures::table::Access::Read;
            of_table(pipeline.block_on(Table::open_named(&pipeline, name, access))).map(|_| ())
        });
        run("push", &mut || of_queue(pipeline.block_on(queue.push(b"more"))));
        run("pop", &mut || of_queue(pipeline.block_on(queue.pop())).map(|_| ()));
        run("statistics", &mut || of_queue(pipeline.block_on(queue.statistics())).map(|_| ()));
        // More operations than the session has room for: operations that were given up still take room.
        let (began, mut ended) = (Instant::now(), 0);
        pipeline.run(500, (0..2_000).map(|_| table.get(b"key")), |got| {
            of_table(got).expect_err("the node is frozen");
            ended += 1;
        });
        assert!(ended == 2_000 && began.elapsed() < LATE_AFTER, "{ended} in {:?}", began.elapsed());
        assert!(pipeline.is_silent());
        node.thaw();
        let began = Instant::now();
        let value = loop {
            match pipeline.block_on(table.get(b"key")) {
                Ok(value) => break value,
                Err(error) => assert!(began.elapsed() < LATE_AFTER, "{error}"),
            }
        };
        assert_eq!(value.as_deref(), Some(&b"value"[..]));
        assert_eq!(pipeline.block_on(table.length()).map(|length| (1..=2).contains(&length)), Ok(true));
        pipeline.block_on(queue.push(b"last")).expect("the queue goes on");
    }
}

#[test]
fn a_program_that_looks_at_a_table_fails_with_its_limit_in_words() {
    let node = Node::start();
    let [shm, _] = node.addresses();
    let kv = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
        command
            .arg("kv")
            .args(arguments)
            .args(["--node", &shm, "--within", "600ms"])
            .output()
            .expect("it runs")
    };
    assert!(kv(&["create", "cities"]).status.success());
    node.freeze();
    let output = kv(&["get", "cities", "Bern"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("within 600"), "{text}");
}

/// A gateway on a frozen node, with this limit.
struct Gateway {
    node: Node,
    program: Program,
    client: TcpStream,
}

impl Gateway {
    fn start(within: &str) -> Self {
        let node = Node::start();
        let [shm, _] = node.addresses();
        let arguments = ["memcached", "--node", &shm, "--listen", "tcp:127.0.0.1:0", "--within", within];
        let program = Program::start(&arguments);
        let place = program.listening(0);
        let client = TcpStream::connect(place.trim_start_matches("tcp:")).expect("a connection");
        client.set_read_timeout(Some(LATE_AFTER)).expect("a timeout");
        Self { node, program, client }
    }

    fn ask(&mut self, request: &str) -> String {
        self.client.write_all(request.as_bytes()).expect("the gateway reads");
        let mut line = Vec::new();
        let mut byte = [0];
        while !line.ends_with(b"\r\n") {
            self.client.read_exact(&mut byte).expect("the gateway answers");
            line.push(byte[0]);
        }
        String::from_utf8_lossy(&line).trim_end().to_owned()
    }
}

#[test]
fn a_gateway_on_a_frozen_node_answers_with_an_error_and_serves_again_afterwards() {
    let mut gateway = Gateway::start("600ms");
    assert_eq!(gateway.ask("set a 0 0 1\r\nx\r\n"), "STORED");
    gateway.node.freeze();
    for request in ["get a\r\n", "set a 0 0 1\r\ny\r\n", "incr n 1\r\n", "mg a v\r\n", "touch a 9\r\n"] {
        let answer = gateway.ask(request);
        assert!(answer.starts_with("SERVER_ERROR ") && answer.contains("within"), "{request}: {answer}");
    }
    gateway.node.thaw();
    let began = Instant::now();
    while gateway.ask("set a 0 0 1\r\nz\r\n") != "STORED" {
        assert!(began.elapsed() < LATE_AFTER, "it never serves again");
    }
}

#[test]
fn sigterm_ends_a_gateway_whose_node_is_frozen_also_while_it_waits() {
    let mut gateway = Gateway::start("600ms");
    assert_eq!(gateway.ask("set a 0 0 1\r\nx\r\n"), "STORED");
    gateway.node.freeze();
    gateway.client.write_all(b"get a\r\n").expect("the gateway reads");
    gateway.program.signal(Signal::TERM);
    let began = Instant::now();
    loop {
        match gateway.program.child.try_wait().expect("it is ours") {
            Some(status) => break assert!(status.success(), "{status}"),
            None => assert!(began.elapsed() < LATE_AFTER, "SIGTERM does not end it"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
