//! One-shot scopes between a server and honest clients.

use portcullis_memory::Mapping;
use portcullis_rpc::channel::{
    CallError, Connection, ConnectionOptions, Copied, Failure, OneShot, OneShotError, Server, ServerOptions,
    serve,
};
use portcullis_rpc::{Boxed, List, Map, Room, Source, Text, Vector};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// How long a test waits for a condition before it fails. No successful test waits that long.
const LONG: Duration = Duration::from_secs(20);
const PAGE: u64 = 4096;
const SUM: u32 = 1;
const NAMES: u32 = 2;
const WAIT: u32 = 3;
const COPIED: u32 = 4;

#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
struct Tree {
    value: u64,
    left: Boxed<Tree>,
    right: Boxed<Tree>,
}

#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
struct Names {
    list: List<Text>,
    places: Map<Text, u64>,
}

fn sum(at: Boxed<Tree>, arguments: &OneShot<'_, Tree>) -> Result<u64, Failure> {
    if at.is_null() {
        return Ok(0);
    }
    let tree = at.get(arguments.view())?;
    Ok(tree.value + sum(tree.left, arguments)? + sum(tree.right, arguments)?)
}

fn plant(room: &impl Room, depth: u32, value: &mut u64) -> Boxed<Tree> {
    if depth == 0 {
        return Boxed::NULL;
    }
    *value += 1;
    let tree =
        Tree { value: *value, left: plant(room, depth - 1, value), right: plant(room, depth - 1, value) };
    Boxed::new(room, tree).unwrap()
}

/// Starts a server at a path. `is_over` is the flag that the method `WAIT` waits for.
fn start(path: &Path, is_over: &Arc<AtomicBool>) -> Server {
    let waits_for = Arc::clone(is_over);
    serve(path)
        .with(ServerOptions { one_shot_bytes: 1 << 20, ..ServerOptions::default() })
        .one_shot(SUM, |tree: OneShot<'_, Tree>, reply| {
            let root = tree.get()?;
            reply.set_word(root.value + sum(root.left, &tree)? + sum(root.right, &tree)?);
            Ok(())
        })
        .one_shot(NAMES, |names: OneShot<'_, Names>, reply| {
            let Names { list, places } = *names.get()?;
            let mut right = 0;
            for (place, name) in list.iter(names.view()).enumerate() {
                let name = name?.get(names.view())?;
                right += u64::from(places.get(names.view(), name)? == Some(&(place as u64)));
            }
            reply.set_word(right);
            Ok(())
        })
        .one_shot(WAIT, move |bytes: OneShot<'_, Vector<u8>>, _| {
            let bytes = bytes.get()?.get(bytes.view())?;
            let before = bytes.to_vec();
            while !waits_for.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            assert_eq!(bytes, before);
            Ok(())
        })
        .copied(COPIED, |value: Copied<'_, u64>, reply| {
            reply.set_word(*value.get()?);
            Ok(())
        })
        .start()
        .unwrap()
}

struct Rig {
    server: Server,
    path: PathBuf,
    is_over: Arc<AtomicBool>,
    _folder: tempfile::TempDir,
}

impl Rig {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("calls.sock");
        let is_over = Arc::new(AtomicBool::new(false));
        Self { server: start(&path, &is_over), path, is_over, _folder: folder }
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

/// Whether a file of a one-shot scope is mapped at an address of this process.
fn is_mapped(address: u64) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().any(|line| line.starts_with(&format!("{address:08x}-")) && line.contains("portcullis-scope"))
}

#[test]
fn one_scope_is_read_by_many_methods_and_calls() {
    let rig = Rig::new();
    let mut connection = rig.connection();
    let scope = connection.one_shot(64 << 10).unwrap();
    let mut nodes = 0;
    let tree = plant(&scope, 9, &mut nodes);
    assert_eq!(tree.read(&scope).unwrap().value, 1, "what was put there can be read before");
    let (mut list, mut places) = (List::EMPTY, Map::<Text, u64>::EMPTY);
    for (place, name) in ["one", "two", "three", ""].into_iter().enumerate() {
        let text = Text::new(&scope, name).unwrap();
        list.push_back(&scope, text).unwrap();
        places.insert(&scope, name, || Ok(text), place as u64).unwrap();
    }
    let names = Boxed::new(&scope, Names { list, places }).unwrap();
    let (address, used) = (scope.address(), scope.used());
    assert!(scope.length() == 64 << 10 && used < scope.length());
    let sealed = connection.seal(scope).unwrap();
    assert_eq!((sealed.address(), sealed.view().bytes().len() as u64), (address, used));
    for _ in 0..200 {
        assert_eq!(connection.call_sealed(SUM, &sealed, tree).unwrap().word(), nodes * (nodes + 1) / 2);
        assert_eq!(connection.call_sealed(NAMES, &sealed, names).unwrap().word(), 4);
    }
    assert_eq!(names.get(&sealed.view()).unwrap().list.len(), 4);
}

#[test]
fn both_processes_have_a_scope_at_the_same_address() {
    const CHILD: &str = "PORTCULLIS_SERVES_AT";
    const READY: &str = "serves";
    if let Some(path) = std::env::var_os(CHILD) {
        let _server = start(Path::new(&path), &Arc::default());
        println!("{READY}");
        // The server runs until the client closes the pipe.
        std::io::stdin().lines().for_each(drop);
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("calls.sock");
    let name = std::thread::current().name().unwrap().to_owned();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &name, "--nocapture", "--test-threads=1"])
        .env(CHILD, &path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains(READY)));
    let mut connection = Connection::open(&path).unwrap();
    for round in 0..50 {
        let scope = connection.one_shot(32 << 10).unwrap();
        let mut nodes = round;
        let tree = plant(&scope, 8, &mut nodes);
        let sealed = connection.seal(scope).unwrap();
        assert_eq!(sealed.view().bytes().as_ptr().addr() as u64, sealed.address());
        let expected: u64 = (round + 1..=nodes).sum();
        assert_eq!(connection.call_sealed(SUM, &sealed, tree).unwrap().word(), expected);
    }
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_method_gets_the_form_that_its_signature_says_or_the_call_fails() {
    let rig = Rig::new();
    let mut connection = rig.connection();
    let scope = connection.one_shot(PAGE).unwrap();
    let value = Boxed::new(&scope, 5_u64).unwrap();
    let sealed = connection.seal(scope).unwrap();
    assert_eq!(connection.call_sealed(COPIED, &sealed, value).unwrap_err(), CallError::NoSealedWanted);
    let scope = connection.scope(PAGE).unwrap();
    let tree = plant(&scope, 2, &mut 0);
    assert_eq!(connection.call(SUM, &scope, tree).unwrap_err(), CallError::NotSealed);
    assert_eq!(connection.call_with_word(SUM, 1).unwrap_err(), CallError::NotSealed);
    assert_eq!(connection.call_sealed(99, &sealed, value).unwrap_err(), CallError::NoSuchMethod(99));
    let value = Boxed::new(&scope, 6_u64).unwrap();
    assert_eq!(connection.call(COPIED, &scope, value).unwrap().word(), 6);
}

#[test]
fn what_is_dropped_is_unmapped_at_the_server_and_gives_its_room_back() {
    let rig = Rig::new();
    let mut connection = rig.connection();
    let sealed = |connection: &mut Connection| {
        let scope = connection.one_shot(1 << 20).unwrap();
        Boxed::new(&scope, 1_u64).unwrap();
        connection.seal(scope).unwrap()
    };
    for _ in 0..50 {
        let sealed = sealed(&mut connection);
        assert!(is_mapped(sealed.address()));
        let refused = connection.one_shot(PAGE).unwrap_err();
        assert!(
            matches!(&refused, OneShotError::Refused(text) if text.contains("one_shot_bytes")),
            "{refused}"
        );
    }
    // Scopes that are not sealed are given back too.
    drop(connection.one_shot(1 << 20).unwrap());
    let last = sealed(&mut connection);
    drop(connection);
    wait_for("the end of a connection", || !is_mapped(last.address()));
    assert_eq!(last.view().get::<u64>(last.address()).unwrap(), &1, "its sender has it still");
}

#[test]
fn a_method_that_still_runs_keeps_what_its_caller_has_dropped() {
    let rig = Rig::new();
    let mut connection = rig.connection();
    let waits = |connection: &mut Connection, value: u8| {
        let scope = connection.one_shot(PAGE).unwrap();
        let bytes = Vector::new(&scope, &[value; 2000]).unwrap();
        let root = Boxed::new(&scope, bytes).unwrap();
        (connection.seal(scope).unwrap(), root)
    };
    let (first, root) = waits(&mut connection, 7);
    let within = Some(Duration::from_millis(20));
    let call = connection.begin(WAIT, first.reference(), root, 0, within).unwrap();
    assert_eq!(connection.wait(call).unwrap_err(), CallError::Late);
    drop(first);
    // The method still reads the first scope, or has not begun.
    let (second, root) = waits(&mut connection, 8);
    rig.is_over.store(true, Ordering::Release);
    connection.call_sealed(WAIT, &second, root).unwrap();
    wait_for("both calls", || rig.server.counters().calls == 2);
}

#[test]
fn a_scope_that_something_can_still_write_is_not_sealed() {
    let rig = Rig::new();
    let mut connection = rig.connection();
    // No other test has a file of this length, so the length identifies the file.
    let length = 13 * PAGE;
    let scope = connection.one_shot(length).unwrap();
    let open = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.ok()?.path();
        let is_ours = std::fs::read_link(&path).ok()?.to_string_lossy().contains("portcullis-scope");
        is_ours.then(|| std::fs::File::options().read(true).write(true).open(path).ok())?
    };
    let mut files = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(open);
    let file = files.find(|file| file.metadata().is_ok_and(|it| it.len() == length)).expect("its file");
    let kept = Mapping::of_peer(file.into(), length, true).unwrap();
    let error = connection.seal(scope).unwrap_err();
    assert!(matches!(error, OneShotError::Busy { .. }), "{error}");
    drop(kept);
    let scope = connection.one_shot(length).unwrap();
    connection.seal(scope).unwrap();
}

#[test]
fn a_server_without_such_methods_gives_no_scopes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("calls.sock");
    let server = serve(&path).copied(COPIED, |_: Copied<'_, u64>, _| Ok(())).start().unwrap();
    let mut connection = Connection::open(&path).unwrap();
    let refused = connection.one_shot(PAGE).unwrap_err();
    assert!(matches!(&refused, OneShotError::Refused(text) if text.contains("no method")), "{refused}");
    connection.call_with_word(COPIED, 0).expect("its calls go on");
    drop(server);
}

#[test]
fn a_server_that_is_gone_is_missed() {
    let rig = Rig::new();
    let options = ConnectionOptions { guarded: true, ..ConnectionOptions::default() };
    let mut connection = Connection::open_with(&rig.path, options).unwrap();
    let scope = connection.one_shot(PAGE).unwrap();
    let Rig { server, _folder, .. } = rig;
    drop(server);
    assert!(matches!(connection.seal(scope), Err(OneShotError::ServerGone)));
    assert!(matches!(connection.one_shot(PAGE), Err(OneShotError::ServerGone)));
    assert_eq!(connection.call_with_word(COPIED, 1).unwrap_err(), CallError::ServerGone);
}

#[test]
fn what_does_not_lie_in_a_scope_is_not_read_there() {
    let rig = Rig::new();
    let mut connection = rig.connection();
    let scope = connection.one_shot(PAGE).unwrap();
    assert!(Vector::new(&scope, &[0_u8; 4097]).is_err() && Vector::new(&scope, &[0_u8; 4096]).is_ok());
    let (start, end) = (scope.address(), scope.address() + PAGE);
    for (address, length) in [(start - 1, 8), (end - 7, 8), (u64::MAX, 8), (start, PAGE + 1)] {
        assert!(scope.check(address, length).is_err(), "{address:#x} {length}");
    }
    assert!(scope.value::<u64>(end - 8).is_ok());
    let sealed = connection.seal(scope).unwrap();
    assert!(sealed.view().get::<u64>(end).is_err() && sealed.view().get::<u64>(end - 8).is_ok());
}
