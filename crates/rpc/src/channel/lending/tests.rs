//! Clients that keep what they were lent.

use super::super::messages::{Asked, TOLD_BYTES, Told};
use super::super::tests::{Hostile, LONG};
use super::super::{Connection, ConnectionError, Copied, Server, ServerOptions, serve};
use super::{Lending, User};
use crate::{Boxed, ScopeRef};
use portcullis_attach::unix::MessageSocket;
use rustix::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

const TOUCH: u32 = 1;
const HEAP: u64 = 1 << 20;

/// Starts a server whose method reads nothing: only the copy touches the pages.
fn server(user_bytes: u64) -> (Server, PathBuf, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("loans.sock");
    let options = ServerOptions { heap_bytes: HEAP, heap_bytes_max: HEAP, user_bytes, ..Default::default() };
    let server = serve(&path)
        .with(options)
        .copied(TOUCH, |bytes: Copied<'_, u64>, reply| Ok(reply.set(bytes.view().bytes().len() as u64)?));
    (server.start().unwrap(), path, folder)
}

/// Returns the files of a new connection's heap and ring, or the reason of the refusal.
fn files(path: &Path) -> Result<(MessageSocket, Vec<OwnedFd>), String> {
    let socket = MessageSocket::connect(path, Instant::now() + LONG).unwrap();
    socket.say(&Asked::Hello { heap_bytes: 0 }.encode()).unwrap();
    let (told, files) = socket.hear(TOLD_BYTES).unwrap();
    match Told::parse(&told).unwrap() {
        Told::Refused(reason) => Err(reason),
        told => {
            assert!(matches!(told, Told::Offer { .. }));
            Ok((socket, files))
        }
    }
}

fn blocks(file: &OwnedFd) -> i64 {
    rustix::fs::fstat(file).unwrap().st_blocks
}

/// Repeats an attempt until it succeeds.
fn in_time<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(done) = attempt() {
            return done;
        }
        assert!(began.elapsed() < LONG, "not in time");
        std::thread::yield_now();
    }
}

#[test]
fn who_keeps_the_heaps_of_ended_connections_gets_no_more_than_a_user_may_have() {
    let (server, path, _folder) = server(4 * HEAP);
    let mut kept = Vec::new();
    // With their rings, only three heaps have room.
    for _ in 0..3 {
        let mut hostile = Hostile::connect(&path);
        let place = hostile.heap.place();
        let untouched = ScopeRef { address: place.start() + HEAP / 2, length: HEAP / 4 };
        let heap = hostile.descriptors[1].try_clone().unwrap();
        let before = blocks(&heap);
        hostile.request(TOUCH, 0, untouched);
        hostile.reply();
        assert!(blocks(&heap) >= before + (HEAP / 4 / 512).cast_signed(), "the server has touched its pages");
        kept.push(heap);
    }
    in_time(|| (server.counters().connections == 0).then_some(()));
    let Err(ConnectionError::Refused(reason)) = Connection::open(&path) else { panic!("it is refused") };
    assert!(reason.contains("ServerOptions::user_bytes"), "{reason}");
    // Memory that a client has released can be lent again.
    kept.pop();
    let mut connection = in_time(|| Connection::open(&path).ok());
    let scope = connection.scope(4096).unwrap();
    let root = Boxed::new(&scope, 1_u64).unwrap();
    let answer = connection.call(TOUCH, &scope, root).unwrap();
    assert_eq!(answer.read::<u64>(), Ok(8));
}

#[test]
fn offers_that_are_kept_count_too() {
    let (_server, path, _folder) = server(3 * HEAP);
    let mut kept = Vec::new();
    let refused = loop {
        match files(&path) {
            Ok((_, files)) => kept.push(files),
            Err(reason) => break reason,
        }
        assert!(kept.len() < 3, "a server lends without an end");
    };
    assert!(refused.contains("ServerOptions::user_bytes"), "{refused}");
    // The ring alone is enough to be counted.
    kept.iter_mut().for_each(|files| files.truncate(1));
    assert!(files(&path).is_err());
    kept.clear();
    drop(in_time(|| Connection::open(&path).ok()));
}

#[test]
fn an_answer_is_read_after_its_connection_has_ended() {
    let (server, path, _folder) = server(64 * HEAP);
    let mut connection = Connection::open(&path).unwrap();
    let scope = connection.scope(4096).unwrap();
    let root = Boxed::new(&scope, 1_u64).unwrap();
    let answer = connection.call(TOUCH, &scope, root).unwrap();
    drop((scope, connection));
    in_time(|| (server.counters().connections == 0).then_some(()));
    for _ in 0..20 {
        drop(Connection::open(&path).unwrap());
    }
    assert_eq!(answer.read::<u64>(), Ok(8));
    drop(server);
    assert_eq!(answer.read::<u64>(), Ok(8));
}

#[test]
fn one_user_leaves_as_many_loans_to_others_as_it_has() {
    let lending = Lending::start(u64::MAX, 16).unwrap();
    let deposits = |number| {
        let user = User { listener: 0, user: Some(number) };
        std::iter::from_fn(|| lending.deposit(user, 1).ok()).collect::<Vec<_>>()
    };
    let (greedy, other, third) = (deposits(1), deposits(2), deposits(3));
    assert_eq!([greedy.len(), other.len(), third.len()], [8, 4, 2]);
    drop(greedy);
    assert_eq!(deposits(4).len(), 5);
    drop((other, third));
    assert_eq!(deposits(1).len(), 8, "all are given back");
}
