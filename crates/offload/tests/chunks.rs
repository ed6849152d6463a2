//! The NIC hands chunks out, binds their windows and takes them back. No other part of the node takes part.

mod rig;

use portcullis_memory::Memory;
use portcullis_nic::{RemoteAddress, Rkey, Status};
use portcullis_offload::record::{LINES, NIL};
use portcullis_offload::{ClientNumber, Handle, Progress, Reserve};
use rig::{ALLOC, CHUNK_BYTES, Chunk, Client, FREE, GROUP, Kind, Rig};
use std::collections::BTreeSet;

/// Returns the number of free chunks, and of held ones.
fn counts(rig: &Rig) -> (usize, usize) {
    let census = rig.pool.census().expect("a sound table");
    (census.free.len(), census.held.len())
}

fn allocate_all(rig: &mut Rig, client: &mut Client) -> Vec<Chunk> {
    std::iter::from_fn(|| rig.allocate(client)).collect()
}

#[test]
fn a_chunk_is_allocated_used_and_freed() {
    let mut rig = Rig::new(3);
    let mut client = rig.attach(1, 2);
    let chunk = rig.allocate(&mut client).expect("a free chunk");
    assert_eq!(chunk.windows[0].length, CHUNK_BYTES);
    rig.fill(&client, 7);
    assert_eq!(rig.access(&client, 0, chunk.windows[0], Kind::Write), Status::Success);
    rig.fill(&client, 0);
    assert_eq!(rig.access(&client, 1, chunk.windows[1], Kind::Read), Status::Success);
    assert_eq!(rig.data(&client), [7; 256], "the other queue pair sees what was written");
    assert!(rig.free(&mut client, chunk.number));
    assert_eq!(rig.access(&client, 0, chunk.windows[0], Kind::Read), Status::RemoteAccessError);
    assert_eq!(counts(&rig), (3, 0));
}

#[test]
fn each_chunk_is_handed_out_once_and_then_none() {
    let mut rig = Rig::new(5);
    let mut clients = [rig.attach(1, 4), rig.attach(2, 1)];
    let chunks: Vec<_> = (0..5).map(|turn| rig.allocate(&mut clients[turn % 2]).expect("a chunk")).collect();
    let numbers: BTreeSet<_> = chunks.iter().map(|chunk| chunk.number).collect();
    assert_eq!(numbers.len(), 5, "no chunk twice: {chunks:?}");
    for client in &mut clients {
        assert_eq!(rig.allocate(client), None);
        assert_eq!(rig.allocate(client), None, "the refusal before has broken nothing");
    }
    assert_eq!(counts(&rig), (0, 5));
    assert!(rig.free(&mut clients[0], chunks[2].number));
    let again = rig.allocate(&mut clients[1]).expect("what was freed");
    assert_eq!(again.number, chunks[2].number);
}

#[test]
fn a_freed_chunk_is_zero_for_its_next_holder() {
    let mut rig = Rig::new(1);
    let (mut one, mut other) = (rig.attach(1, 1), rig.attach(2, 1));
    let chunk = rig.allocate(&mut one).expect("a chunk");
    rig.fill(&one, 0xa5);
    assert_eq!(rig.access(&one, 0, chunk.windows[0], Kind::Write), Status::Success);
    assert!(rig.free(&mut one, chunk.number));
    let chunk = rig.allocate(&mut other).expect("the same chunk");
    rig.fill(&other, 1);
    assert_eq!(rig.access(&other, 0, chunk.windows[0], Kind::Read), Status::Success);
    assert_eq!(rig.data(&other), [0; 256]);
}

#[test]
fn a_key_opens_its_window_on_the_holders_queue_pair_and_on_no_other() {
    let mut rig = Rig::new(2);
    let (mut holder, other) = (rig.attach(1, 2), rig.attach(2, 2));
    let chunk = rig.allocate(&mut holder).expect("a chunk");
    for (pair, window) in [(0, 1), (1, 0), (0, 2), (0, 3)] {
        let status = rig.access(&holder, pair, chunk.windows[window], Kind::Read);
        assert_eq!(status, Status::RemoteAccessError, "queue pair {pair} with window {window}");
        rig.recover(holder.access[pair]);
    }
    for pair in 0..2 {
        for window in chunk.windows {
            let status = rig.access(&other, pair, window, Kind::Write);
            assert_eq!(status, Status::RemoteAccessError, "a stranger with {window:?}");
            rig.recover(other.access[pair]);
        }
    }
    for pair in 0..2 {
        assert_eq!(rig.access(&holder, pair, chunk.windows[pair], Kind::Write), Status::Success);
    }
}

#[test]
fn no_use_of_a_chunk_has_the_keys_of_the_uses_before() {
    let mut rig = Rig::new(1);
    let mut client = rig.attach(1, 1);
    let mut keys = BTreeSet::new();
    for turn in 0..300 {
        let chunk = rig.allocate(&mut client).expect("a chunk");
        let is_new = keys.insert(chunk.windows[0].rkey.0);
        assert_eq!(is_new, turn < 256, "keys go round after 256 uses");
        assert_eq!(rig.access(&client, 0, chunk.windows[0], Kind::Write), Status::Success, "use {turn}");
        assert!(rig.free(&mut client, chunk.number));
    }
}

#[test]
fn only_the_holder_frees_and_only_once() {
    let mut rig = Rig::new(3);
    let (mut holder, mut other) = (rig.attach(1, 1), rig.attach(2, 1));
    let chunk = rig.allocate(&mut holder).expect("a chunk");
    assert!(!rig.free(&mut other, chunk.number), "a stranger frees");
    assert_eq!(rig.access(&holder, 0, chunk.windows[0], Kind::Write), Status::Success, "it still works");
    assert!(rig.free(&mut holder, chunk.number));
    assert!(!rig.free(&mut holder, chunk.number), "it is freed again");
    assert_eq!(counts(&rig), (3, 0));
    let again = rig.allocate(&mut other).expect("a chunk");
    assert_eq!(again.number, chunk.number);
    assert!(!rig.free(&mut holder, chunk.number), "the last holder frees");
    assert_eq!(rig.access(&other, 0, again.windows[0], Kind::Write), Status::Success);
}

#[test]
fn no_handle_frees_what_is_not_the_clients() {
    let mut rig = Rig::new(40);
    let (mut holder, mut other) = (rig.attach(1, 4), rig.attach(2, 4));
    let held = allocate_all(&mut rig, &mut holder);
    let before = rig.pool.census().expect("a sound table");
    for line in 0..LINES {
        let handle = Handle(u16::try_from(line).expect("16 bits"));
        assert!(!rig.free_handle(&mut other, handle), "line {line}");
    }
    assert_eq!(rig.pool.census().expect("a sound table"), before);
    assert_eq!(NIL, 0, "the first line is that of NIL");
    for chunk in held {
        assert!(rig.free(&mut holder, chunk.number), "{chunk:?}");
    }
}

#[test]
fn a_client_gets_as_many_chunks_as_its_quota_and_waits_for_its_own_return() {
    let mut rig = Rig::new(8);
    let (mut small, mut large) = (rig.attach_with_quota(1, 1, 3), rig.attach(2, 1));
    let held: Vec<_> = (0..3).map(|_| rig.allocate(&mut small).expect("within the quota")).collect();
    assert_eq!(rig.ask(&mut small, ALLOC, Handle(0)), None, "it waits");
    assert!(rig.allocate(&mut large).is_some(), "others do not");
    assert!(rig.free_handle(&mut large, Handle(0)).eq(&false), "NIL gives nobody a chunk");
    assert_eq!(rig.take_reply(&mut small), None);
    rig.expect_reply(&small, FREE);
    let handle = rig.pool.geometry().handle::<GROUP>(held[0].number);
    rig.send(&small, FREE, &handle.to_request());
    rig.settle();
    let replies = rig.completions(&small).iter().filter(|it| it.status == Status::Success).count();
    assert!(replies >= 3, "the free and the allocation that waited for it are answered");
    assert_eq!(rig.pool.chunks_of(small.number).len(), 3);
    // Refused frees give nothing back. Otherwise a client could raise its quota by them.
    for _ in 0..5 {
        assert!(!rig.free_handle(&mut small, Handle(0)));
    }
    assert_eq!(rig.ask(&mut small, ALLOC, Handle(0)), None);
}

#[test]
fn what_could_not_be_had_costs_no_quota() {
    let mut rig = Rig::new(2);
    let (mut one, mut other) = (rig.attach_with_quota(1, 1, 1), rig.attach(2, 1));
    let held = allocate_all(&mut rig, &mut other);
    for _ in 0..10 {
        assert_eq!(rig.allocate(&mut one), None);
    }
    assert!(rig.free(&mut other, held[0].number));
    assert!(rig.allocate(&mut one).is_some());
    assert_eq!(rig.ask(&mut one, ALLOC, Handle(0)), None, "the quota is used up");
}

#[test]
fn requests_that_come_together_are_answered_one_after_another() {
    let mut rig = Rig::new(6);
    let mut client = rig.attach(1, 1);
    for _ in 0..6 {
        rig.expect_reply(&client, ALLOC);
        rig.send(&client, ALLOC, &Handle(0).to_request());
    }
    rig.settle();
    assert_eq!(rig.completions(&client).len(), 12, "requests and replies");
    assert_eq!(rig.pool.chunks_of(client.number).len(), 6);
    for chunk in 0..6 {
        let handle = rig.pool.geometry().handle::<GROUP>(chunk);
        rig.expect_reply(&client, FREE);
        rig.send(&client, FREE, &handle.to_request());
        // The next message may have other bytes in this buffer only when the previous one has left.
        rig.settle();
    }
    assert_eq!(rig.completions(&client).len(), 12);
    assert_eq!(counts(&rig), (6, 0));
    let chunk = rig.allocate(&mut client);
    assert!(chunk.is_some());
}

#[test]
fn a_client_that_takes_no_replies_stops_its_own_worker_only() {
    let mut rig = Rig::new(4);
    let (silent, mut other) = (rig.attach(1, 1), rig.attach(2, 1));
    for _ in 0..4 {
        rig.send(&silent, ALLOC, &Handle(0).to_request());
        rig.send(&silent, FREE, &Handle(0).to_request());
    }
    rig.settle();
    assert_eq!(rig.pool.chunks_of(silent.number).len(), 1, "its worker waits for its reply to leave");
    let held = allocate_all(&mut rig, &mut other);
    assert_eq!(held.len(), 3);
    assert!(rig.free(&mut other, held[0].number));
    rig.reclaim(silent);
    assert_eq!(counts(&rig), (2, 2));
}

#[test]
fn a_message_that_is_too_long_or_none_at_all_breaks_its_senders_connection_only() {
    let mut rig = Rig::new(4);
    let mut other = rig.attach(9, 1);
    let spoil: [fn(&mut Rig, &Client); 4] = [
        |rig, client| rig.send(client, ALLOC, &[0xff; 64]),
        |rig, client| rig.send(client, FREE, &[0xff; 9]),
        |rig, client| rig.one_sided(client, FREE, Kind::Write),
        |rig, client| rig.one_sided(client, ALLOC, Kind::Read),
    ];
    for (number, spoil) in (10..).zip(spoil) {
        let mut client = rig.attach(number, 1);
        let chunk = rig.allocate(&mut client).expect("a chunk");
        spoil(&mut rig, &client);
        rig.settle();
        let failed = rig.completions(&client).iter().filter(|it| it.status != Status::Success).count();
        assert!(failed > 0, "client {number} is refused");
        assert_eq!(rig.access(&client, 0, chunk.windows[0], Kind::Write), Status::Success);
        let mine = rig.allocate(&mut other).expect("a chunk");
        assert!(rig.free(&mut other, mine.number));
        rig.reclaim(client);
        assert_eq!(counts(&rig), (4, 0));
    }
    // A message that is shorter than a handle leaves bytes of the previous one in the buffer.
    rig.send(&other, FREE, &[]);
    rig.expect_reply(&other, FREE);
    rig.settle();
    assert_eq!(counts(&rig), (4, 0));
}

#[test]
fn nothing_of_the_engine_can_be_reached_from_a_clients_queue_pair() {
    let mut rig = Rig::new(2);
    let client = rig.attach(1, 1);
    // Keys are small numbers: the client tries all that the NIC could have given out.
    for index in 0..64 {
        for low_byte in [0, 1, 2, 255] {
            for address in [0, 64, 1 << 40] {
                let window = portcullis_offload::ChunkWindow {
                    rkey: Rkey::new(index, low_byte),
                    address: RemoteAddress(address),
                    length: CHUNK_BYTES,
                };
                let status = rig.access(&client, 0, window, Kind::Write);
                assert_eq!(status, Status::RemoteAccessError, "{window:?}");
                rig.recover(client.access[0]);
            }
        }
    }
    let mut client = client;
    assert!(rig.allocate(&mut client).is_some(), "nothing has changed");
    assert_eq!(counts(&rig), (1, 1));
}

#[test]
fn a_message_to_an_access_queue_pair_frees_no_window() {
    let mut rig = Rig::new(1);
    let mut client = rig.attach(1, 1);
    let chunk = rig.allocate(&mut client).expect("a chunk");
    rig.send_with_invalidate(&client, chunk.windows[0].rkey);
    rig.settle();
    rig.completions(&client);
    rig.recover(client.access[0]);
    assert_eq!(rig.access(&client, 0, chunk.windows[0], Kind::Write), Status::Success);
    assert!(rig.free(&mut client, chunk.number), "its bind queue is whole");
}

#[test]
fn chunks_of_a_client_that_is_gone_are_freed_and_zero() {
    let mut rig = Rig::new(6);
    let (mut gone, mut other) = (rig.attach(1, 3), rig.attach(2, 2));
    let held: Vec<_> = (0..4).map(|_| rig.allocate(&mut gone).expect("a chunk")).collect();
    let kept = rig.allocate(&mut other).expect("a chunk");
    rig.fill(&gone, 0xee);
    for chunk in &held {
        assert_eq!(rig.access(&gone, 2, chunk.windows[2], Kind::Write), Status::Success);
    }
    rig.reclaim(gone);
    assert_eq!(counts(&rig), (5, 1));
    let mut bytes = vec![1; 256];
    for chunk in held {
        rig.pool.chunks_memory().read(chunk.number * CHUNK_BYTES, &mut bytes);
        assert_eq!(bytes, [0; 256]);
    }
    assert_eq!(rig.access(&other, 0, kept.windows[0], Kind::Write), Status::Success);
    // A client with the same number may attach again.
    let mut back = rig.attach(1, 1);
    assert!(rig.allocate(&mut back).is_some());
}

#[test]
fn a_broken_worker_holds_the_lock_until_the_pool_is_rebuilt() {
    let mut rig = Rig::new(6);
    let (mut victim, mut other) = (rig.attach(1, 1), rig.attach(2, 1));
    let (kept, held) =
        (rig.allocate(&mut other).expect("a chunk"), rig.allocate(&mut victim).expect("a chunk"));
    rig.fill(&other, 3);
    assert_eq!(rig.access(&other, 0, kept.windows[0], Kind::Write), Status::Success);
    // The chain that allocates is stopped inside the lock.
    rig.stop_inside_the_lock(&victim);
    assert!(victim.workers().is_broken(&rig.nic).expect("its queue pairs"));
    assert_eq!(rig.ask(&mut other, ALLOC, Handle(0)), None, "it waits for the lock");
    let (tickets, releases) = rig.pool.lock_counts(&mut rig.nic).expect("the counts");
    assert_eq!(tickets.wrapping_sub(releases), 2);
    rig.rebuild(&mut [&mut victim, &mut other]);
    assert_eq!(counts(&rig), (4, 2), "what was held is held");
    rig.fill(&other, 0);
    assert_eq!(rig.access(&other, 0, kept.windows[0], Kind::Read), Status::Success);
    assert_eq!(rig.data(&other), [3; 256]);
    assert_eq!(rig.access(&victim, 0, held.windows[0], Kind::Write), Status::Success);
    assert!(rig.free(&mut victim, held.number) && rig.free(&mut other, kept.number));
    assert_eq!(allocate_all(&mut rig, &mut other).len(), 6);
}

#[test]
fn an_allocation_whose_reply_has_not_left_is_undone_by_a_rebuild() {
    let mut rig = Rig::new(3);
    let (mut silent, mut other) = (rig.attach(1, 1), rig.attach(2, 1));
    let told = rig.allocate(&mut silent).expect("a chunk");
    // The client posts no receive for the next reply.
    rig.send(&silent, ALLOC, &Handle(0).to_request());
    rig.settle();
    assert_eq!(rig.pool.chunks_of(silent.number).len(), 2);
    rig.rebuild(&mut [&mut silent, &mut other]);
    assert_eq!(rig.pool.chunks_of(silent.number), [told.number], "what it was told of");
    assert_eq!(rig.access(&silent, 0, told.windows[0], Kind::Write), Status::Success);
    assert_eq!(counts(&rig), (2, 1));
    assert_eq!(allocate_all(&mut rig, &mut other).len(), 2);
}

#[test]
fn a_rebuild_leaves_what_is_free_as_it_is_and_counts_every_use_once() {
    let mut rig = Rig::new(4);
    let (mut victim, mut other) = (rig.attach(1, 1), rig.attach(2, 1));
    let uses = |rig: &Rig| (0..4).map(|chunk| rig.pool.number_of_use(chunk)).collect::<Vec<_>>();
    for _ in 0..5 {
        let chunk = rig.allocate(&mut victim).expect("a chunk");
        assert!(rig.free(&mut victim, chunk.number));
    }
    let (before, windows) = (uses(&rig), rig.pool.parts().windows.to_vec());
    rig.rebuild(&mut [&mut victim, &mut other]);
    assert_eq!((uses(&rig), rig.pool.parts().windows), (before.clone(), &windows[..]));
    rig.stop_inside_the_lock(&victim);
    rig.rebuild(&mut [&mut victim, &mut other]);
    let after = uses(&rig);
    assert!(before.iter().zip(&after).all(|(before, after)| after >= before), "{before:?}, then {after:?}");
    assert_eq!(counts(&rig), (4, 0));
    let mut numbers = BTreeSet::new();
    for _ in 0..20 {
        let chunk = rig.allocate(&mut other).expect("a chunk");
        assert!(numbers.insert((chunk.number, rig.pool.number_of_use(chunk.number))));
        assert!(rig.free(&mut other, chunk.number));
    }
}

#[test]
fn a_pool_shrinks_and_grows_by_what_the_node_holds() {
    let mut rig = Rig::new(4);
    let mut client = rig.attach(1, 1);
    let node = ClientNumber::MAX;
    let mut reserve = Reserve::new(&mut rig.pool, &mut rig.nic, node).expect("a reserve");
    let proceed = |rig: &mut Rig, reserve: &mut Reserve<_, GROUP>| {
        rig.settle();
        while reserve.proceed(&rig.pool, &mut rig.nic).expect("it goes on") == Progress::Pending {
            rig.settle();
        }
    };
    for _ in 0..3 {
        reserve.take(&mut rig.nic).expect("a request");
        proceed(&mut rig, &mut reserve);
    }
    assert_eq!(reserve.held().len(), 3);
    let last = rig.allocate(&mut client).expect("the last chunk");
    assert_eq!(rig.allocate(&mut client), None);
    reserve.take(&mut rig.nic).expect("a request");
    proceed(&mut rig, &mut reserve);
    assert_eq!(reserve.held().len(), 3, "none was free");
    reserve.give(&mut rig.pool, &mut rig.nic).expect("a request");
    proceed(&mut rig, &mut reserve);
    let grown = rig.allocate(&mut client).expect("the pool has grown");
    assert!(rig.free(&mut client, grown.number) && rig.free(&mut client, last.number));
    assert_eq!(counts(&rig), (2, 2));
}

#[test]
fn a_chunk_that_was_used_often_gets_new_windows_on_its_way_through_the_node() {
    let mut rig = Rig::new(1);
    let mut client = rig.attach(1, 2);
    let first = rig.allocate(&mut client).expect("a chunk");
    assert!(rig.free(&mut client, first.number));
    for _ in 0..200 {
        let chunk = rig.allocate(&mut client).expect("a chunk");
        assert!(rig.free(&mut client, chunk.number));
    }
    let mut reserve = Reserve::new(&mut rig.pool, &mut rig.nic, ClientNumber::MAX).expect("a reserve");
    reserve.take(&mut rig.nic).expect("a request");
    rig.settle();
    assert_eq!(reserve.proceed(&rig.pool, &mut rig.nic), Ok(Progress::Done));
    reserve.give(&mut rig.pool, &mut rig.nic).expect("new windows");
    let mut rounds = 0;
    while reserve.proceed(&rig.pool, &mut rig.nic).expect("it goes on") == Progress::Pending {
        rig.settle();
        rounds += 1;
        assert!(rounds < 10, "the chunk is not given back");
    }
    let renewed = rig.allocate(&mut client).expect("a chunk");
    for (old, new) in first.windows.iter().zip(renewed.windows) {
        assert_ne!(old.rkey.index(), new.rkey.index(), "another window");
    }
    for pair in 0..2 {
        assert_eq!(rig.access(&client, pair, renewed.windows[pair], Kind::Write), Status::Success);
    }
    assert!(rig.free(&mut client, renewed.number));
}
