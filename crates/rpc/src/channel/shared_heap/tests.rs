//! Honest clients of a shared heap, and a client that overwrites it.

use super::*;
use crate::channel::messages::{Asked, TOLD_BYTES};
use crate::channel::{
    CallError, Connection, ConnectionError, Copied, ServeError, Server, ServerOptions, Trusted, serve,
};
use crate::{Boxed, List, Room, ScopeRef, Source, Vector};
use portcullis_attach::unix::MessageSocket;
use portcullis_errors::{Coded, ErrorCode};
use portcullis_memory::Memory;
use rand::{Rng, RngExt, SeedableRng};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(20);
const ADD: u32 = 1;
const ADD_TRUSTED: u32 = 2;

fn server(threads: usize, bytes: u64) -> (Server, PathBuf, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shared.sock");
    let server = serve(&path)
        .with(ServerOptions { threads, ..ServerOptions::default() })
        .shared_heap(bytes)
        .copied(ADD, |numbers: Copied<'_, Vector<u64>>, reply| {
            let numbers = numbers.get()?.get(numbers.view())?;
            let before: u64 = numbers.iter().fold(0, |sum, number| sum.wrapping_add(*number));
            // The copy stays the same, whatever the heap's clients do meanwhile.
            std::thread::yield_now();
            let after: u64 = numbers.iter().fold(0, |sum, number| sum.wrapping_add(*number));
            assert_eq!(before, after, "bytes changed under a method");
            reply.set(before)?;
            Ok(())
        })
        .trusted(ADD_TRUSTED, |list: Trusted<'_, List<u64>>, reply| {
            let numbers: Result<Vec<u64>, _> = list.read()?.read(list.heap()).take(1000).collect();
            reply.set_word(numbers?.iter().fold(0, |sum, number| sum.wrapping_add(*number)));
            Ok(())
        })
        .start()
        .unwrap();
    (server, path, folder)
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < LONG, "waited {LONG:?} for {what}");
        std::thread::yield_now();
    }
}

fn shared(connection: &Connection) -> Heap {
    connection.shared_heap().unwrap().clone()
}

#[test]
fn all_clients_have_one_heap_at_the_same_addresses_and_call_with_it() {
    for threads in [1, 2] {
        let (server, path, _folder) = server(threads, 1 << 20);
        let mut connections = [(); 3].map(|()| Connection::open(&path).unwrap());
        let place = server.shared_heap().unwrap().place();
        assert!(connections.iter().all(|it| shared(it).place() == place && it.heap().place() != place));
        // The first client puts values into the heap, and all clients call with them and read them.
        let scope = shared(&connections[0]).scope(4096).unwrap();
        let vector = Boxed::new(&scope, Vector::new(&scope, &[1_u64, 2, 39]).unwrap()).unwrap();
        let mut list = List::EMPTY;
        [4, 5, 6_u64].into_iter().for_each(|it| list.push_back(&scope, it).map(drop).unwrap());
        let list = Boxed::new(&scope, list).unwrap();
        for connection in &mut connections {
            let answer = connection.call(ADD, &scope, vector).unwrap();
            assert_eq!(answer.read::<u64>(), Ok(42), "the result is in the connection's own heap");
            assert_eq!(connection.call(ADD_TRUSTED, &scope, list).unwrap().word(), 15);
            let looked = connection.look_shared(scope.reference(), vector).unwrap();
            assert_eq!(looked.get().unwrap().get(looked.view()).unwrap(), [1, 2, 39]);
            // The connection's own heap still works.
            let own = connection.scope(4096).unwrap();
            let numbers = Boxed::new(&own, Vector::new(&own, &[7_u64]).unwrap()).unwrap();
            assert_eq!(connection.call(ADD, &own, numbers).unwrap().read::<u64>(), Ok(7));
            // Pointers cannot lead from one heap into the other.
            for (scope, root) in [(&own, vector), (&scope, numbers)] {
                let error = connection.call(ADD, scope, root).unwrap_err();
                assert!(matches!(error, CallError::WildPointer(_)), "{error}");
            }
        }
    }
}

#[test]
fn what_a_client_had_is_taken_back_when_it_has_gone() {
    let (server, path, _folder) = server(2, 1 << 20);
    let heap = server.shared_heap().unwrap();
    let free = heap.free_bytes();
    let stays = Connection::open(&path).unwrap();
    let kept = shared(&stays).scope(3 * 4096).unwrap();
    kept.put(kept.address(), b"still here");
    for _ in 0..50 {
        let leaves = Connection::open(&path).unwrap();
        assert_ne!(shared(&leaves).owner(), shared(&stays).owner());
        for pages in 1..10 {
            let _ = shared(&leaves).scope(pages * 4096).unwrap().pass_on();
        }
        drop(leaves);
        wait_for("its pages", || heap.free_bytes() == free - 3 * 4096);
    }
    let mut text = [0; 10];
    heap.copy(kept.address(), &mut text).unwrap();
    assert_eq!(&text, b"still here");
    // A client that leaves before it has a connection was offered the heap, and keeps no part of it.
    for said in [None, Some(Asked::Taken), Some(Asked::Mapped)] {
        let socket = MessageSocket::connect(&path, Instant::now() + LONG).unwrap();
        socket.say(&Asked::Hello { heap_bytes: 0 }.encode()).unwrap();
        socket.hear(TOLD_BYTES).unwrap();
        said.into_iter().for_each(|said| socket.say(&said.encode()).unwrap());
    }
    let owners = || server.shared.as_ref().unwrap().owners.lock().unwrap().used.len();
    wait_for("two owners", || owners() == 2);
}

#[test]
fn each_part_has_a_number_of_its_own_and_the_last_one_is_the_next_to_last() {
    let (heap, _view) = SharedHeap::create(0, None).unwrap();
    let first = heap.join().unwrap().owner();
    assert_ne!(heap.join().unwrap().owner(), first, "it is used again as late as possible");
    let members: Vec<Member> = std::iter::from_fn(|| heap.join()).collect();
    assert_eq!(members.len(), usize::from(u16::MAX) - 1);
    let numbers: HashSet<u16> = members.iter().map(|it| it.owner().0).collect();
    assert!(numbers.len() == members.len() && !numbers.contains(&0) && !numbers.contains(&SERVER.0));
    drop(members);
    assert!(heap.join().is_some());
}

#[test]
fn addresses_that_are_taken_in_a_client_are_an_error_that_says_so() {
    let (server, path, _folder) = server(1, 1 << 20);
    let heap = server.shared_heap().unwrap();
    let file = || heap.file().try_clone_to_owned().unwrap();
    // The server has a mapping at these addresses: this process acts as a client that is not the server's process.
    let opened = ToAll::open(file(), heap.place(), Owner(9), None);
    let taken = opened.unwrap_err();
    assert!(matches!(taken, ConnectionError::SharedHeapTaken { address } if address == heap.place().start()));
    assert_eq!(taken.code(), ErrorCode::HeapPlace);
    assert!(Connection::open(&path).is_ok());
}

#[test]
fn a_channel_without_one_has_none_and_no_heap_is_too_large() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("none.sock");
    let server = serve(&path).start().unwrap();
    let mut connection = Connection::open(&path).unwrap();
    assert!(server.shared_heap().is_none() && connection.shared_heap().is_none());
    let looked = connection.look_shared(ScopeRef::default(), Boxed::<u64>::NULL);
    assert_eq!(looked.unwrap_err(), CallError::Nonsense);
    for bytes in [HEAP_BYTES_MAX + 1, u64::MAX] {
        let refused = serve(folder.path().join("large.sock")).shared_heap(bytes).start().unwrap_err();
        assert!(matches!(refused, ServeError::Heap(_)), "{refused}");
    }
}

/// Runs a client that overwrites the shared heap, its allocator first, connects and leaves again and again, and calls
/// with the heap's contents of the moment.
fn overwrite(path: &Path, seed: u64, stop: &AtomicBool) {
    let mut random = rand_pcg::Pcg64::seed_from_u64(seed);
    while !stop.load(Ordering::Acquire) {
        let mut connection = Connection::open(path).unwrap();
        let heap = shared(&connection);
        let (place, memory) = (heap.place(), heap.memory());
        let owner = u64::from(heap.owner().0);
        for _ in 0..3000 {
            let words = if random.random() { 1024 } else { place.length / 8 };
            // The words stand for runs and small pieces of the client's own, of any length, or are arbitrary.
            let word = match random.random_range(0..3) {
                0 => random.random_range(1..6) | owner << 16 | u64::from(random.random::<u32>()) << 32,
                1 => 5 | random.random_range(0..9) << 8 | owner << 16,
                _ => random.next_u64(),
            };
            memory.store(random.random_range(0..words) * 8, word);
        }
        for _ in 0..20 {
            let address = place.start() + random.random_range(0..place.length);
            let scope = ScopeRef { address, length: random.random_range(0..place.length * 2) };
            let root = Boxed::<u64>::at(place.start() + random.random_range(0..place.length));
            let method = random.random_range(1..3);
            let call = connection.begin(method, scope, root, 0, Some(LONG)).unwrap();
            let error = connection.wait(call).err();
            assert!(!matches!(error, Some(CallError::Panicked | CallError::ServerGone)), "{error:?}");
            let _ = connection.look_shared(scope, root).map(|looked| looked.get().copied());
        }
    }
}

#[test]
fn whoever_overwrites_the_shared_heap_harms_no_server_and_no_connections_own_heap() {
    let seed = rand::rng().next_u64();
    println!("seed {seed}");
    let (server, path, _folder) = server(2, 1 << 20);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let hostile = scope.spawn(|| overwrite(&path, seed, &stop));
        let mut connection = Connection::open(&path).unwrap();
        let began = Instant::now();
        for call in 0..3000_u64 {
            let own = connection.scope(4096).unwrap();
            let numbers: Vec<u64> = (call..call + 50).collect();
            let root = Boxed::new(&own, Vector::new(&own, &numbers).unwrap()).unwrap();
            let answer = connection.call(ADD, &own, root).unwrap();
            assert_eq!(answer.read::<u64>(), Ok(numbers.iter().sum()));
            // In the shared heap a call may have any outcome, but it gets an answer.
            let root = Boxed::<Vector<u64>>::at(shared(&connection).place().start() + 64 * call);
            let place = ScopeRef { address: root.address(), length: 4096 };
            let call = connection.begin(ADD, place, root, 0, Some(LONG)).unwrap();
            let error = connection.wait(call).err();
            assert!(!matches!(error, Some(CallError::Panicked | CallError::Late)), "{error:?}");
            assert!(began.elapsed() < 6 * LONG, "it takes too long");
        }
        stop.store(true, Ordering::Release);
        hostile.join().unwrap();
    });
    let owners = || server.shared.as_ref().unwrap().owners.lock().unwrap().used.len();
    wait_for("all to have left", || owners() == 1);
}
