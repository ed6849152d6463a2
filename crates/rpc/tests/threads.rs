//! Servers with several threads.

use portcullis_rpc::channel::{
    CallError, CallId, Connection, Copied, DEPTH, Failure, Server, ServerOptions, serve,
};
use portcullis_rpc::{Boxed, ScopeRef};
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// How long a test waits for a condition before it fails. No successful test waits that long.
const LONG: Duration = Duration::from_secs(20);

const ECHO: u32 = 1;
const FAIL: u32 = 2;
const WAIT: u32 = 3;
const NOTE: u32 = 4;

/// State that the methods share.
#[derive(Default)]
struct Seen {
    is_over: AtomicBool,
    waiting: AtomicU64,
    /// Records of the connections, by their numbers.
    noted: Mutex<HashMap<u64, Noted>>,
}

/// Record of a connection's calls.
#[derive(Default)]
struct Noted {
    threads: HashSet<ThreadId>,
    /// Numbers of the calls, in the order in which they were served.
    numbers: Vec<u64>,
}

struct Rig {
    server: Server,
    path: PathBuf,
    seen: Arc<Seen>,
    _folder: tempfile::TempDir,
}

impl Rig {
    fn new(threads: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("threads.sock");
        let seen = Arc::new(Seen::default());
        let (waits, notes) = (Arc::clone(&seen), Arc::clone(&seen));
        let server = serve(&path)
            .with(ServerOptions { threads, ..ServerOptions::default() })
            .copied(ECHO, |word: Copied<'_, u64>, reply| {
                reply.set_word(word.word());
                Ok(())
            })
            .copied(FAIL, |_: Copied<'_, u64>, _| Err(Failure::new(1, "told to")))
            .copied(WAIT, move |_: Copied<'_, u64>, _| {
                waits.waiting.fetch_add(1, Ordering::AcqRel);
                while !waits.is_over.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                Ok(())
            })
            .copied(NOTE, move |word: Copied<'_, u64>, _| {
                let (connection, number) = (word.word() >> 32, word.word() & u64::from(u32::MAX));
                let mut noted = notes.noted.lock().unwrap();
                let noted = noted.entry(connection).or_default();
                noted.threads.insert(std::thread::current().id());
                noted.numbers.push(number);
                Ok(())
            })
            .start()
            .unwrap();
        Self { server, path, seen, _folder: folder }
    }

    fn connections(&self, count: usize) -> Vec<Connection> {
        (0..count).map(|_| Connection::open(&self.path).unwrap()).collect()
    }
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < LONG, "waited {LONG:?} for {what}");
        std::thread::yield_now();
    }
}

fn begin(connection: &mut Connection, method: u32, word: u64) -> CallId {
    connection.begin(method, ScopeRef::default(), Boxed::<u64>::NULL, word, Some(LONG)).unwrap()
}

/// Ends the methods that wait, also when a test has failed: a server waits for its methods.
struct Release(Arc<Seen>);

impl Drop for Release {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Release);
    }
}

#[test]
fn each_connection_has_one_thread_and_its_calls_their_order() {
    const ROUNDS: u64 = 20;
    let rig = Rig::new(4);
    let mut connections = rig.connections(8);
    for round in 0..ROUNDS {
        let mut calls = Vec::new();
        for slot in 0..u64::from(DEPTH) {
            for (number, connection) in (0_u64..).zip(&mut connections) {
                let word = number << 32 | (round * u64::from(DEPTH) + slot);
                calls.push((number, begin(connection, NOTE, word)));
            }
        }
        for (number, call) in calls {
            connections[usize::try_from(number).unwrap()].wait(call).unwrap();
        }
    }
    let all = ROUNDS * u64::from(DEPTH);
    let seen = rig.seen.noted.lock().unwrap();
    let mut by_thread = HashMap::<ThreadId, u64>::new();
    for Noted { threads, numbers } in seen.values() {
        assert_eq!(threads.len(), 1, "a connection stays on its thread");
        assert!(numbers.iter().copied().eq(0..all), "calls were served in another order");
        threads.iter().for_each(|thread| *by_thread.entry(*thread).or_default() += 1);
    }
    assert_eq!((by_thread.len(), by_thread.values().max()), (4, Some(&2)));
    wait_for("the last turns to be counted", || rig.server.counters().calls == 8 * all);
}

#[test]
fn a_busy_method_holds_up_no_connection_of_another_thread() {
    let rig = Rig::new(2);
    let mut connections = rig.connections(3);
    let release = Release(Arc::clone(&rig.seen));
    // The first and the third connection have the same thread.
    let busy = begin(&mut connections[0], WAIT, 0);
    wait_for("the method to begin", || rig.seen.waiting.load(Ordering::Acquire) == 1);
    let behind = begin(&mut connections[2], ECHO, 7);
    for word in 0..1000 {
        let call = begin(&mut connections[1], ECHO, word);
        assert_eq!(connections[1].wait(call).unwrap().word(), word);
    }
    assert!(!connections[0].has_ended(busy) && !connections[2].has_ended(behind));
    drop(release);
    connections[0].wait(busy).unwrap();
    assert_eq!(connections[2].wait(behind).unwrap().word(), 7);
}

#[test]
fn threads_sleep_and_wake_each_for_its_own() {
    let rig = Rig::new(3);
    let mut connections = rig.connections(3);
    for round in 0..4 {
        // The pause is longer than an idle thread stays awake.
        std::thread::sleep(Duration::from_millis(20));
        let connection = &mut connections[round % 3];
        assert_eq!(connection.call_with_word(ECHO, 9).unwrap().word(), 9);
    }
}

#[test]
fn counters_are_those_of_all_threads() {
    const CALLS: u64 = 500;
    let rig = Rig::new(3);
    let connections = rig.connections(6);
    wait_for("all connections", || rig.server.counters().connections == 6);
    std::thread::scope(|scope| {
        for mut connection in connections {
            scope.spawn(move || {
                for word in 0..CALLS {
                    connection.call_with_word(ECHO, word).unwrap();
                    assert!(connection.call_with_word(FAIL, word).is_err());
                }
            });
        }
    });
    wait_for("all connections to end", || rig.server.counters().connections == 0);
    let counted = rig.server.counters();
    assert_eq!((counted.calls, counted.failed), (6 * 2 * CALLS, 6 * CALLS));
    // New clients find threads without connections.
    let mut again = rig.connections(3);
    again.iter_mut().for_each(|it| assert_eq!(it.call_with_word(ECHO, 1).unwrap().word(), 1));
}

#[test]
fn a_server_ends_while_calls_are_under_way() {
    let rig = Rig::new(4);
    let connections = rig.connections(8);
    let Rig { server, seen, _folder, .. } = rig;
    let answered = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for mut connection in connections {
            let answered = &answered;
            scope.spawn(move || {
                let error = loop {
                    match connection.call_with_word(ECHO, 3) {
                        Ok(answer) => assert_eq!(answer.word(), 3),
                        Err(error) => break error,
                    }
                    answered.fetch_add(1, Ordering::Relaxed);
                };
                assert_eq!(error, CallError::ServerGone);
            });
        }
        wait_for("calls of all", || answered.load(Ordering::Relaxed) > 1000);
        drop(server);
        assert_eq!(Arc::strong_count(&seen), 1, "all threads have ended, and have let go of the methods");
    });
}

#[test]
fn a_server_that_ends_waits_for_the_methods_that_run() {
    let rig = Rig::new(2);
    let mut connections = rig.connections(2);
    let release = Release(Arc::clone(&rig.seen));
    let calls: Vec<CallId> = connections.iter_mut().map(|it| begin(it, WAIT, 0)).collect();
    wait_for("both methods to begin", || rig.seen.waiting.load(Ordering::Acquire) == 2);
    let Rig { server, seen, _folder, .. } = rig;
    std::thread::scope(|scope| {
        let ending = scope.spawn(move || drop(server));
        for (connection, call) in connections.iter_mut().zip(calls) {
            assert_eq!(connection.wait(call).unwrap_err(), CallError::ServerGone);
        }
        assert!(!ending.is_finished(), "its methods are running");
        drop(release);
        ending.join().unwrap();
        assert_eq!(Arc::strong_count(&seen), 1);
    });
}
