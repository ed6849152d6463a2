//! The assignment of connections to threads, and the ends of a server with several threads.

use super::*;
use crate::channel::admission::Shared;
use crate::channel::messages::{Asked, TOLD_BYTES, Told};
use crate::channel::{CallError, Connection, Copied, Server, ServerOptions, make_ring, serve};
use crate::heap::{HEAP_ADDRESSES, Heap, HeapPlace};
use portcullis_attach::unix::MessageSocket;
use portcullis_memory::{Mapping, Memory, PrivateView, WatchedEvent};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(20);

fn server(threads: usize) -> (Server, PathBuf, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shards.sock");
    let server = serve(&path)
        .with(ServerOptions { threads, ..ServerOptions::default() })
        .copied(1, |word: Copied<'_, u64>, reply| {
            reply.set_word(word.word());
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

#[test]
fn connections_go_where_the_fewest_are() {
    let shards = ServerShards::new(3).unwrap();
    let mut seats: Vec<Seat> = (0..7).map(|_| shards.deal()).collect();
    assert_eq!(shards.seats(), [3, 2, 2]);
    seats.retain(|seat| seat.client % 3 != 1);
    assert_eq!(shards.seats(), [3, 0, 2]);
    seats.extend((0..3).map(|_| shards.deal()));
    assert_eq!(shards.seats(), [3, 3, 2]);
    drop(seats);
    assert_eq!(shards.seats(), [0; 3]);
}

#[test]
fn a_client_is_told_of_on_its_own_shard() {
    let shards = ServerShards::new(4).unwrap();
    let seats: Vec<Seat> = (0..4).map(|_| shards.deal()).collect();
    for client in seats.iter().chain(&seats).map(Seat::client) {
        shards.of(client).tell(News::Left(client));
    }
    let told = |news: &News| if let News::Left(client) = news { *client } else { u64::MAX };
    for (seat, shard) in seats.iter().zip(&*shards) {
        let clients: Vec<u64> = shard.take_news().iter().map(told).collect();
        assert_eq!(clients, [seat.client(); 2]);
        assert!(!shard.has_news());
    }
    let numbers: std::collections::HashSet<u64> = seats.iter().map(Seat::client).collect();
    assert_eq!(numbers.len(), 4);
}

#[test]
fn a_server_has_a_thread_at_least() {
    assert_eq!(ServerShards::new(0).unwrap().len(), 1);
}

#[test]
fn a_doorbell_is_that_of_the_connections_own_thread() {
    let shards = ServerShards::new(2).unwrap();
    let seats = [shards.deal(), shards.deal()];
    let events = seats.each_ref().map(|seat| WatchedEvent::new(seat.waker()).unwrap());
    let asleep = || events.each_ref().map(|event| event.page().load(0) != 0);
    seats[1].waker().announce();
    assert_eq!(asleep(), [false, true]);
    seats[1].waker().awake();
    assert_eq!(asleep(), [false, false]);
}

#[test]
fn whoever_does_not_go_on_gives_its_seat_back() {
    let (server, path, _folder) = server(3);
    let honest = Connection::open(&path).unwrap();
    wait_for("the honest client", || server.counters().connections == 1);
    for _ in 0..20 {
        for answer in [None, Some(Asked::Taken), Some(Asked::Mapped)] {
            let socket = MessageSocket::connect(&path, Instant::now() + LONG).unwrap();
            socket.say(&Asked::Hello { heap_bytes: 1 << 20 }.encode()).unwrap();
            let offered = Told::parse(&socket.hear(TOLD_BYTES).unwrap().0);
            assert!(matches!(offered, Some(Told::Offer { .. })), "{offered:?}");
            assert!(server.shards.seats().iter().sum::<u64>() >= 2);
            answer.into_iter().for_each(|answer| socket.say(&answer.encode()).unwrap());
        }
    }
    wait_for("all seats but one", || server.shards.seats().iter().sum::<u64>() == 1);
    assert_eq!(server.counters().connections, 1);
    drop(honest);
    wait_for("the last seat", || server.shards.seats() == [0; 3]);
}

/// Makes a connection that admission never makes: its ring is too short.
fn broken(shards: &ServerShards) -> (u64, Shared) {
    let place = HeapPlace::new(HEAP_ADDRESSES.start + (9 << 40), 1 << 20).unwrap();
    let (heap, view) = (
        Heap::create(place, crate::channel::admission::SERVER).unwrap(),
        PrivateView::at(place.address, place.length).unwrap(),
    );
    let seat = shards.deal();
    let event = WatchedEvent::new(seat.waker()).unwrap();
    let ring = Mapping::private(4096).unwrap();
    assert!(ring.length() < make_ring().unwrap().length());
    (seat.client(), Shared { heap, view, ring, event, one_shot_table: None, seat, member: None, given: None })
}

#[test]
fn a_panic_of_one_thread_ends_the_server_for_all() {
    let (server, path, _folder) = server(2);
    let mut connections = [(); 4].map(|()| Connection::open(&path).unwrap());
    for connection in &mut connections {
        assert_eq!(connection.call_with_word(1, 5).unwrap().word(), 5);
    }
    let (client, shared) = broken(&server.shards);
    server.shards.of(client).tell(News::Came(client, Box::new(shared)));
    for connection in &mut connections {
        let error = (0..).find_map(|word| connection.call_with_word(1, word).err());
        assert_eq!(error, Some(CallError::ServerGone));
    }
    assert!(Connection::open(&path).is_err(), "nobody is let in by a server that serves nobody");
    wait_for("all connections to end", || server.counters().connections == 0);
}
