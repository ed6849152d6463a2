//! Calls between a server and honest clients.

use portcullis_rpc::channel::{
    CallError, Connection, ConnectionError, ConnectionOptions, Copied, DEPTH, Failure, Reply, Server,
    ServerOptions, Trusted, serve,
};
use portcullis_rpc::{Boxed, List, Map, Room, ScopeRef, Text, Vector};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// How long a test waits for a condition before it fails. No successful test waits that long.
const LONG: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
struct Tree {
    value: u64,
    left: Boxed<Tree>,
    right: Boxed<Tree>,
}

const SUM: u32 = 1;
const SUM_TRUSTED: u32 = 2;
const ECHO: u32 = 3;
const PANIC: u32 = 4;
const FAIL: u32 = 5;
const REVERSE: u32 = 6;
const WAIT: u32 = 7;
const FILL: u32 = 8;
const KEEP: u32 = 9;

fn sum(at: Boxed<Tree>, arguments: &Copied<'_, Tree>) -> Result<u64, Failure> {
    if at.is_null() {
        return Ok(0);
    }
    let tree = at.get(arguments.view())?;
    Ok(tree.value + sum(tree.left, arguments)? + sum(tree.right, arguments)?)
}

fn sum_trusted(at: Boxed<Tree>, arguments: &Trusted<'_, Tree>) -> Result<u64, Failure> {
    if at.is_null() {
        return Ok(0);
    }
    let tree = at.read(arguments.heap())?;
    Ok(tree.value + sum_trusted(tree.left, arguments)? + sum_trusted(tree.right, arguments)?)
}

fn reverse(names: &Copied<'_, Vector<Text>>, reply: &mut Reply<'_>) -> Result<(), Failure> {
    let names: Result<Vec<&str>, _> =
        names.get()?.get(names.view())?.iter().map(|name| name.get(names.view())).collect();
    let scope = reply.scope(4096)?;
    let (mut reversed, mut places) = (List::EMPTY, Map::<Text, u64>::EMPTY);
    for (place, name) in names?.into_iter().rev().enumerate() {
        let text = Text::new(scope, name)?;
        reversed.push_back(scope, text)?;
        places.insert(scope, name, || Ok(text), place as u64)?;
    }
    let root = Boxed::new(scope, Reversed { names: reversed, places })?;
    reply.set_root(root);
    Ok(())
}

#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
struct Reversed {
    names: List<Text>,
    places: Map<Text, u64>,
}

struct Rig {
    server: Server,
    path: PathBuf,
    /// Flag that the method `WAIT` waits for.
    is_over: Arc<AtomicBool>,
    _folder: tempfile::TempDir,
}

impl Rig {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("calls.sock");
        let is_over = Arc::new(AtomicBool::new(false));
        let waits_for = Arc::clone(&is_over);
        let options = ServerOptions { arguments_max: 1 << 20, ..ServerOptions::default() };
        let server = serve(&path)
            .with(options)
            .copied(SUM, |tree: Copied<'_, Tree>, reply| {
                let root = tree.get()?;
                reply.set_word(root.value + sum(root.left, &tree)? + sum(root.right, &tree)?);
                Ok(())
            })
            .trusted(SUM_TRUSTED, |tree: Trusted<'_, Tree>, reply| {
                reply.set_word(sum_trusted(tree.root(), &tree)?);
                Ok(())
            })
            .copied(ECHO, |word: Copied<'_, u64>, reply| {
                reply.set_word(word.word());
                Ok(())
            })
            .copied(PANIC, |word: Copied<'_, u64>, _| panic!("told to, with {}", word.word()))
            .copied(FAIL, |word: Copied<'_, u64>, _| {
                Err(Failure::new(42, format!("no luck with {}", word.word())))
            })
            .copied(REVERSE, |names: Copied<'_, Vector<Text>>, reply| reverse(&names, reply))
            .copied(WAIT, move |_: Copied<'_, u64>, _| {
                while !waits_for.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                Ok(())
            })
            .copied(FILL, |bytes: Copied<'_, u64>, reply| {
                reply.scope(bytes.word())?;
                Ok(())
            })
            .trusted(KEEP, |value: Trusted<'_, u64>, reply| {
                let kept = Boxed::new(value.heap(), value.word())?;
                reply.set_root(kept);
                Ok(())
            })
            .start()
            .unwrap();
        Self { server, path, is_over, _folder: folder }
    }

    fn connection(&self) -> Connection {
        Connection::open(&self.path).unwrap()
    }
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < LONG, "waited {LONG:?} for {what}");
        std::thread::yield_now();
    }
}

/// Builds a tree of the given depth, whose values count from `value` on.
fn plant(room: &impl Room, depth: u32, value: &mut u64) -> Boxed<Tree> {
    if depth == 0 {
        return Boxed::NULL;
    }
    *value += 1;
    let tree =
        Tree { value: *value, left: plant(room, depth - 1, value), right: plant(room, depth - 1, value) };
    Boxed::new(room, tree).unwrap()
}

#[test]
fn a_tree_is_passed_by_its_pointer() {
    let rig = Rig::new();
    let mut connection = rig.connection();
    for depth in 1..10 {
        let scope = connection.scope(64 << 10).unwrap();
        let mut nodes = 0;
        let root = plant(&scope, depth, &mut nodes);
        let expected = nodes * (nodes + 1) / 2;
        assert_eq!(connection.call(SUM, &scope, root).unwrap().word(), expected);
        assert_eq!(connection.call(SUM_TRUSTED, &scope, root).unwrap().word(), expected);
    }
}

#[test]
fn results_have_pointers_too_and_are_freed_with_their_answer() {
    let rig = Rig::new();
    let mut connection = rig.connection();
    let free = connection.heap().free_bytes();
    let names = ["one", "two", "three", ""];
    for _ in 0..1000 {
        let scope = connection.scope(4096).unwrap();
        let texts: Vec<Text> = names.iter().map(|name| Text::new(&scope, name).unwrap()).collect();
        let vector = Vector::new(&scope, &texts).unwrap();
        let root = Boxed::new(&scope, vector).unwrap();
        let answer = connection.call(REVERSE, &scope, root).unwrap();
        let reversed = connection.look::<Reversed>(&answer).unwrap();
        let Reversed { names: list, places } = *reversed.get().unwrap();
        let back: Vec<&str> =
            list.iter(reversed.view()).map(|name| name.unwrap().get(reversed.view()).unwrap()).collect();
        assert_eq!(back, ["", "three", "two", "one"]);
        assert_eq!(places.get(reversed.view(), "two").unwrap(), Some(&2));
        drop(answer);
    }
    assert_eq!(connection.heap().free_bytes(), free);
}

#[test]
fn what_goes_wrong_is_told_and_the_next_call_works() {
    let rig = Rig::new();
    let mut connection = rig.connection();
    let scope = connection.scope(2 << 20).unwrap();
    let small = Boxed::new(&scope, 7_u64).unwrap();
    let elsewhere = Boxed::<Tree>::at(scope.address() + (1 << 19));
    let heap_start = Boxed::<Tree>::at(connection.heap().place().start());
    let free = connection.heap().free_bytes();
    for _ in 0..3 {
        assert_eq!(connection.call(99, &scope, small).unwrap_err(), CallError::NoSuchMethod(99));
        assert_eq!(connection.call(PANIC, &scope, small).unwrap_err(), CallError::Panicked);
        let failed = CallError::Failed { number: 42, text: "no luck with 5".to_owned() };
        assert_eq!(connection.call_with_word(FAIL, 5).unwrap_err(), failed);
        for wrong in [elsewhere, heap_start, Boxed::NULL, Boxed::at(u64::MAX)] {
            let error = connection.call(SUM, &scope, wrong).unwrap_err();
            assert!(matches!(error, CallError::WildPointer(_)), "{error:?}");
        }
        let whole = ScopeRef { address: scope.address(), length: scope.length() };
        let call = connection.begin(SUM, whole, Boxed::<Tree>::at(scope.address()), 0, None).unwrap();
        assert_eq!(connection.wait(call).unwrap_err(), CallError::ArgumentsTooLong);
        let error = connection.call_with_word(FILL, 1 << 40).unwrap_err();
        assert!(matches!(error, CallError::NoRoom(_)), "{error:?}");
        assert_eq!(connection.call_with_word(ECHO, 6).unwrap().word(), 6);
    }
    assert_eq!(connection.heap().free_bytes(), free);
    assert_eq!(rig.server.counters().failed, 27);
}

#[test]
fn a_tree_that_leads_to_itself_is_an_error() {
    let rig = Rig::new();
    let mut connection = rig.connection();
    let scope = connection.scope(4096).unwrap();
    let own = Boxed::at(scope.address());
    let root = Boxed::new(&scope, Tree { value: 1, left: Boxed::NULL, right: own }).unwrap();
    assert_eq!(root, own);
    let error = connection.call(SUM, &scope, root).unwrap_err();
    assert!(matches!(&error, CallError::WildPointer(text) if text.contains("no end")), "{error}");
}

#[test]
fn many_calls_are_under_way_and_end_in_any_order() {
    let rig = Rig::new();
    let mut connection = rig.connection();
    for round in 0..200 {
        let calls: Vec<_> = (0..u64::from(DEPTH))
            .map(|word| {
                let begun = connection.begin(ECHO, ScopeRef::default(), Boxed::<u64>::NULL, word, None);
                begun.unwrap()
            })
            .collect();
        if round == 0 {
            // Perhaps some have ended already, but not for ever.
            rig.is_over.store(false, Ordering::Release);
        }
        for (word, call) in calls.iter().enumerate().rev() {
            assert_eq!(connection.wait(*call).unwrap().word(), word as u64);
        }
        assert_eq!(connection.wait(calls[0]).unwrap_err(), CallError::NoSuchCall);
    }
}

#[test]
fn more_calls_than_can_be_under_way_push_back() {
    let rig = Rig::new();
    let mut connection = rig.connection();
    let mut calls = Vec::new();
    let begun = |connection: &mut Connection| {
        connection.begin(WAIT, ScopeRef::default(), Boxed::<u64>::NULL, 0, None)
    };
    let error = loop {
        match begun(&mut connection) {
            Ok(call) => calls.push(call),
            Err(error) => break error,
        }
    };
    assert_eq!((error, calls.len()), (CallError::TooMany, DEPTH as usize));
    rig.is_over.store(true, Ordering::Release);
    for call in calls {
        connection.wait(call).unwrap();
    }
    let call = begun(&mut connection).unwrap();
    connection.wait(call).unwrap();
}

#[test]
fn a_deadline_passes_at_both_ends_and_a_cancelled_call_does_not_begin() {
    let rig = Rig::new();
    let mut connection = rig.connection();
    let nothing = (ScopeRef::default(), Boxed::<u64>::NULL);
    let slow = connection.begin(WAIT, nothing.0, nothing.1, 0, Some(Duration::from_millis(5))).unwrap();
    let behind = connection.begin(ECHO, nothing.0, nothing.1, 1, Some(Duration::from_millis(6))).unwrap();
    let cancelled = connection.begin(ECHO, nothing.0, nothing.1, 2, None).unwrap();
    connection.cancel(cancelled);
    let last = connection.begin(ECHO, nothing.0, nothing.1, 3, None).unwrap();
    assert_eq!(connection.wait(slow).unwrap_err(), CallError::Late);
    assert_eq!(connection.wait(behind).unwrap_err(), CallError::Late);
    rig.is_over.store(true, Ordering::Release);
    assert_eq!(connection.wait(cancelled).unwrap_err(), CallError::Cancelled);
    assert_eq!(connection.wait(last).unwrap().word(), 3);
    // The last late call was late at the server too, and was not begun there.
    wait_for("all four to be answered", || rig.server.counters().calls == 4);
    // On a busy machine the first call was late at the server too.
    assert!((2..=3).contains(&rig.server.counters().failed));
}

#[test]
fn a_call_for_which_no_time_is_given_ends_where_its_server_lives_and_does_not_answer() {
    let rig = Rig::new();
    let default = ConnectionOptions::default();
    assert!(default.call_within <= Duration::from_secs(10), "a caller waits for some seconds at the most");
    let options = ConnectionOptions { call_within: Duration::from_millis(50), ..default };
    let mut connection = Connection::open_with(&rig.path, options).unwrap();
    // One method waits for ever, and the other call waits behind it in the ring.
    let error = connection.call_with_word(WAIT, 0).unwrap_err();
    assert!(error == CallError::Late && error.to_string().contains("call_within"), "{error}");
    assert_eq!(connection.call_with_word(ECHO, 1).unwrap_err(), CallError::Late);
    rig.is_over.store(true, Ordering::Release);
    // An answer that arrived too late is not taken for that of another call.
    wait_for("the connection to serve again", || {
        connection.call_with_word(ECHO, 2).is_ok_and(|it| it.word() == 2)
    });
}

#[test]
fn both_ends_sleep_when_nothing_is_called_and_wake_for_a_call() {
    let rig = Rig::new();
    let mut connection = rig.connection();
    for pause in [3, 30, 3] {
        std::thread::sleep(Duration::from_millis(pause));
        assert_eq!(connection.call_with_word(ECHO, pause).unwrap().word(), pause);
    }
    let over = Arc::clone(&rig.is_over);
    let waker = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        over.store(true, Ordering::Release);
    });
    connection.call_with_word(WAIT, 0).unwrap();
    waker.join().unwrap();
}

#[test]
fn whoever_is_gone_is_missed() {
    let rig = Rig::new();
    let mut connection = rig.connection();
    connection.call_with_word(ECHO, 1).unwrap();
    wait_for("a connection", || rig.server.counters().connections == 1);
    drop(connection);
    wait_for("its end", || rig.server.counters().connections == 0);
    let mut connection = rig.connection();
    let Rig { server, path, _folder, .. } = rig;
    drop(server);
    assert_eq!(connection.call_with_word(ECHO, 1).unwrap_err(), CallError::ServerGone);
    assert_eq!(connection.call_with_word(ECHO, 1).unwrap_err(), CallError::ServerGone);
    assert!(matches!(Connection::open(&path).unwrap_err(), ConnectionError::NoServer { .. }));
}

#[test]
fn values_stay_in_the_heap_after_the_call() {
    let rig = Rig::new();
    let mut connection = rig.connection();
    let kept: Vec<Boxed<u64>> =
        (0..100).map(|word| connection.call_with_word(KEEP, word).unwrap().root()).collect();
    for (word, kept) in kept.into_iter().enumerate() {
        assert_eq!(kept.read(connection.heap()).unwrap(), word as u64);
        connection.heap().free(kept.address()).unwrap();
    }
}

#[test]
fn a_heap_that_is_larger_than_the_server_gives_is_refused() {
    let rig = Rig::new();
    let options = ConnectionOptions { heap_bytes: 2 << 30, ..ConnectionOptions::default() };
    let refused = Connection::open_with(&rig.path, options).unwrap_err();
    assert!(matches!(&refused, ConnectionError::Refused(text) if text.contains("allowed")), "{refused}");
    let options = ConnectionOptions { heap_bytes: 1 << 20, ..ConnectionOptions::default() };
    let connection = Connection::open_with(&rig.path, options).unwrap();
    assert_eq!(connection.heap().place().length, 1 << 20);
}

#[test]
fn several_clients_at_once_have_their_own_answers() {
    let rig = Rig::new();
    std::thread::scope(|scope| {
        for client in 0..4_u64 {
            let mut connection = rig.connection();
            scope.spawn(move || {
                for call in 0..500 {
                    let scope = connection.scope(4096).unwrap();
                    let mut nodes = client * 1000 + call;
                    let first = nodes;
                    let root = plant(&scope, 4, &mut nodes);
                    let expected: u64 = (first + 1..=nodes).sum();
                    assert_eq!(connection.call(SUM, &scope, root).unwrap().word(), expected);
                }
            });
        }
    });
}
