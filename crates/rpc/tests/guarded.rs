//! Guarded calls: if an honest sender writes into a scope while a call is under way, its process reports the place.

use portcullis_rpc::channel::{
    CallId, Connection, ConnectionOptions, Copied, Server, Trusted, explain_faults, serve,
};
use portcullis_rpc::{Boxed, Scope, ScopeRef};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const READ: u32 = 1;
const ECHO: u32 = 2;
const PAGE: u64 = 4096;
/// The number of the signal SIGSEGV.
const FAULT: i32 = 11;

fn server() -> (Server, PathBuf, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("calls.sock");
    let server = serve(&path)
        .trusted(READ, |value: Trusted<'_, u64>, reply| {
            reply.set_word(value.read()?);
            Ok(())
        })
        .copied(ECHO, |word: Copied<'_, u64>, reply| {
            reply.set_word(word.word());
            Ok(())
        })
        .start()
        .unwrap();
    (server, path, folder)
}

fn guarded(path: &Path) -> Connection {
    let options = ConnectionOptions { guarded: true, ..ConnectionOptions::default() };
    Connection::open_with(path, options).unwrap()
}

fn begin(connection: &mut Connection, scope: &Scope, root: Boxed<u64>) -> CallId {
    connection.begin(READ, scope.reference(), root, 0, None).unwrap()
}

#[test]
fn whoever_writes_into_a_guarded_scope_is_told_call_and_scope_and_everybody_else_goes_on() {
    const CHILD: &str = "PORTCULLIS_GUARDED";
    if let Some(path) = std::env::var_os(CHILD) {
        explain_faults().unwrap();
        let mut connection = guarded(Path::new(&path));
        let scope = connection.scope(PAGE).unwrap();
        let root = Boxed::new(&scope, 5_u64).unwrap();
        let call = begin(&mut connection, &scope, root);
        eprintln!("{call:?} of scope {:#x}", scope.address());
        connection.call_with_word(ECHO, 1).unwrap();
        connection.heap().set(root, 6).unwrap();
        unreachable!("the write is a fault");
    }
    let (_server, path, _folder) = server();
    let mut beside = Connection::open(&path).unwrap();
    let name = std::thread::current().name().unwrap().to_owned();
    for round in 0..3 {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &name, "--nocapture", "--test-threads=1"])
            .env(CHILD, &path)
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&child.stderr);
        assert_eq!(child.status.signal(), Some(FAULT), "{stderr}");
        let said = stderr.lines().find_map(|line| line.split_once("CallId(")).expect("what was begun").1;
        let (call, scope) = said.split_once(") of scope ").expect("a scope");
        let told = stderr.lines().find(|line| line.contains("portcullis: a write to 0x")).expect("a line");
        for part in [format!("call {call} of method {READ}"), format!("the scope at {scope} of 8 bytes")] {
            assert!(told.contains(&part), "{told}");
        }
        assert_eq!(beside.call_with_word(ECHO, round).unwrap().word(), round);
    }
}

#[test]
fn a_scope_is_the_senders_again_when_its_last_call_has_ended() {
    let (_server, path, _folder) = server();
    let mut connection = guarded(&path);
    let scope = connection.scope(4 * PAGE).unwrap();
    let root = Boxed::new(&scope, 5_u64).unwrap();
    for value in 0..50 {
        connection.heap().set(root, value).unwrap();
        let (first, second) = (begin(&mut connection, &scope, root), begin(&mut connection, &scope, root));
        // Other pages of the heap can be written, and the guarded ones can be read.
        let other = connection.scope(PAGE).unwrap();
        let beside = Boxed::new(&other, value + 1).unwrap();
        assert_eq!(connection.call(READ, &other, beside).unwrap().word(), value + 1);
        assert_eq!(root.read(connection.heap()).unwrap(), value);
        assert_eq!(connection.wait(second).unwrap().word(), value);
        assert_eq!(writable(&connection, &scope), [false, true, true, true]);
        assert_eq!(connection.wait(first).unwrap().word(), value);
        assert_eq!(writable(&connection, &scope), [true; 4]);
    }
}

#[test]
fn calls_with_the_same_pages_guard_each_until_the_last_has_ended() {
    let (server, path, _folder) = server();
    let mut connection = guarded(&path);
    let scope = connection.scope(4 * PAGE).unwrap();
    let root = Boxed::new(&scope, 5_u64).unwrap();
    let mut part = |from: u64, bytes: u64| {
        let part = ScopeRef { address: scope.address() + from, length: bytes };
        let call = connection.begin(READ, part, root, 0, None).unwrap();
        (call, writable(&connection, &scope))
    };
    let (edge, rights) = part(PAGE - 1, 2);
    assert_eq!(rights, [false, false, true, true]);
    let (all, rights) = part(0, 4 * PAGE);
    assert_eq!(rights, [false; 4]);
    let (third, _) = part(2 * PAGE + 8, 1);
    // A scope outside the heap is not guarded.
    let (nothing, _) = part(u64::MAX / 2, 8);
    let mut end = |call| {
        connection.wait(call).unwrap();
        writable(&connection, &scope)
    };
    assert_eq!(end(nothing), [false; 4]);
    assert_eq!(end(all), [false, false, false, true]);
    assert_eq!(end(third), [false, false, true, true]);
    assert_eq!(end(edge), [true; 4]);
    // The sender may write its scope again after the server has ended, and after the connection has.
    let heap = connection.heap().clone();
    begin(&mut connection, &scope, root);
    assert_eq!(writable(&connection, &scope), [false, true, true, true]);
    drop(server);
    while connection.call_with_word(ECHO, 1).is_ok() {}
    assert_eq!(writable(&connection, &scope), [true; 4]);
    drop(connection);
    heap.set(root, 7).unwrap();
}

/// Whether this process may write each page of a scope, according to the kernel.
fn writable(connection: &Connection, scope: &Scope) -> [bool; 4] {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let offset = scope.address() - connection.heap().place().start();
    let start = connection.heap().memory().start().addr().get() as u64 + offset;
    std::array::from_fn(|page| {
        let address = start + page as u64 * PAGE;
        let rights = maps.lines().find_map(|line| {
            let (span, rest) = line.split_once(' ')?;
            let (from, until) = span.split_once('-')?;
            let [from, until] = [from, until].map(|it| u64::from_str_radix(it, 16).unwrap());
            (from..until).contains(&address).then_some(rest)
        });
        rights.expect("it is mapped").starts_with("rw")
    })
}
