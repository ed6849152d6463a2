//! The promises of `Session::chunks`, to sessions of a node on the software NIC: small objects without messages,
//! batches, and the state after a failure in the middle of a call (OneSidedMW).

use portcullis::host::{Host, HostConfig, NodeCounters};
use portcullis::{
    AskingQueuePairs, ChunkAllocator, ChunkLimits, ChunkOptions, Error, LocalSpan, NicOperation, NodeConfig,
    NotAllAllocated, NotAllFreed, Quota, Refusal, Session, SessionOptions, SmallObject, VerbsEndpoint,
    WorkRequest,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

const CHUNKS: u64 = 64;
const CHUNK_BYTES: u64 = 1024;
/// A size at which eight objects fit into a chunk.
const OBJECT_BYTES: u64 = 128;

fn limits() -> ChunkLimits {
    ChunkLimits { chunks: CHUNKS, chunk_bytes: CHUNK_BYTES, client_max: CHUNKS }
}

fn host_with(limits: ChunkLimits, quota: Quota) -> Host {
    let node = NodeConfig { pool_bytes: 1 << 20, chunks: Some(limits), quota, ..NodeConfig::default() };
    Host::start(HostConfig { node, ..HostConfig::default() }).expect("a node starts")
}

fn host() -> Host {
    host_with(limits(), Quota::default())
}

fn user(host: &Host, tenant: &str) -> (Session, ChunkAllocator) {
    user_that_keeps(host, tenant, ChunkOptions::default().free_max)
}

fn user_that_keeps(host: &Host, tenant: &str, free_max: usize) -> (Session, ChunkAllocator) {
    let mut session = host.connect(tenant, SessionOptions::default()).expect("a session");
    let chunks = session.chunks(ChunkOptions { free_max }).expect("workers");
    (session, chunks)
}

/// Waits until the node's counters satisfy the condition.
fn wait_for(host: &Host, what: &str, wanted: impl Fn(&NodeCounters) -> bool) {
    let within = Instant::now() + Duration::from_secs(10);
    while !wanted(&host.counters()) {
        assert!(Instant::now() < within, "{what}: {:?}", host.counters());
        std::thread::yield_now();
    }
}

fn bytes_of(session: &mut Session, object: &SmallObject) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(object.length()).expect("it is small")];
    session.read(object, 0, &mut bytes).expect("a read");
    bytes
}

#[test]
fn an_object_takes_reads_writes_and_atomics_within_its_own_bytes() {
    let host = host();
    let (mut session, mut chunks) = user(&host, "red");
    let first = chunks.allocate_object(&mut session, 100).expect("an object");
    let neighbour = chunks.allocate_object(&mut session, 100).expect("an object");
    assert!(neighbour.address().0 - first.address().0 < CHUNK_BYTES, "they are in one chunk");
    session.write(&neighbour, 0, &[7; 100]).expect("a write");
    session.write(&first, 0, &[1; 100]).expect("a write");
    assert_eq!(bytes_of(&mut session, &neighbour), [7; 100]);
    session.write(&first, 8, &5u64.to_le_bytes()).expect("a word");
    assert_eq!(session.fetch_and_add(&first, 8, 2), Ok(5));
    assert_eq!(session.compare_and_swap(&first, 8, 7, 9), Ok(7));
    // The chunk has bytes behind the object, but the library refuses accesses to them.
    let beyond = session.write(&first, 96, &[9; 8]);
    assert_eq!(beyond, Err(Error::OutsideRange { offset: 96, length: 8, size: 100 }));
    assert!(matches!(session.fetch_and_add(&first, 96, 1), Err(Error::OutsideRange { .. })));
    assert_eq!(bytes_of(&mut session, &neighbour), [7; 100]);
    assert_eq!(session.client().counters().switches, 0, "nothing reached the NIC that it had to refuse");
}

#[test]
fn objects_cost_no_message_and_a_chunk_only_where_their_class_is_full() {
    let host = host();
    let (mut session, mut chunks) = user(&host, "red");
    host.hold_turns(true);
    let before = host.counters();
    let of_a_chunk = CHUNK_BYTES / OBJECT_BYTES;
    let mut objects: Vec<_> = (0..8 * of_a_chunk)
        .map(|_| chunks.allocate_object(&mut session, OBJECT_BYTES).expect("an object"))
        .collect();
    for round in 0..10_000usize {
        let object = objects.swap_remove(round * 7 % objects.len());
        chunks.free_object(&mut session, object).expect("it is freed");
        objects.push(chunks.allocate_object(&mut session, OBJECT_BYTES).expect("an object"));
    }
    let after = host.counters();
    assert_eq!((after.turns, after.control_messages), (before.turns, before.control_messages));
    host.hold_turns(false);
    wait_for(&host, "the chunks are in the books", |it| it.chunks_held == 8);
    assert_eq!(host.counters().chunk_allocations, 8, "as many as the objects need, once");
    let found = chunks.occupancy();
    assert_eq!((found.chunks, found.free_chunks, found.objects), (8, 0, 8 * of_a_chunk));
    assert_eq!((found.bytes_held, found.bytes_live), (8 * CHUNK_BYTES, 8 * CHUNK_BYTES));
    assert_eq!(host.counters().control_messages, 1, "only the one for the workers");
}

#[test]
fn chunks_without_objects_go_back_to_the_node_except_for_the_number_that_is_kept() {
    let host = host();
    let (mut session, mut chunks) = user_that_keeps(&host, "red", 3);
    let objects = chunks.allocate_objects(&mut session, 80, OBJECT_BYTES).expect("objects");
    wait_for(&host, "ten chunks are held", |it| it.chunks_held == 10);
    for object in objects {
        chunks.free_object(&mut session, object).expect("it is freed");
    }
    wait_for(&host, "three are kept", |it| it.chunks_held == 3);
    assert_eq!(chunks.occupancy().free_chunks, 3);
    // The kept chunks serve any class, so that no other chunk is needed.
    let object = chunks.allocate_object(&mut session, CHUNK_BYTES).expect("a whole chunk");
    assert_eq!(chunks.give_back_free(&mut session), Ok(2));
    chunks.free_object(&mut session, object).expect("it is freed");
    assert_eq!(chunks.give_back_free(&mut session), Ok(1));
    wait_for(&host, "none is held", |it| it.chunks_held == 0);
    assert_eq!(host.counters().chunk_allocations, 10);
}

#[test]
fn an_object_has_bytes_of_its_own_session_or_zeros_and_never_anothers() {
    let host = host_with(ChunkLimits { chunks: 1, ..limits() }, Quota::default());
    let (mut first, mut of_first) = user_that_keeps(&host, "red", 0);
    let one = of_first.allocate_object(&mut first, OBJECT_BYTES).expect("an object");
    let stays = of_first.allocate_object(&mut first, OBJECT_BYTES).expect("an object");
    assert_eq!(bytes_of(&mut first, &one), [0; 128], "a chunk comes as zeros");
    first.write(&one, 0, &[0xAA; 128]).expect("a write");
    let address = one.address();
    of_first.free_object(&mut first, one).expect("it is freed");
    let again = of_first.allocate_object(&mut first, OBJECT_BYTES).expect("an object");
    assert_eq!(again.address(), address);
    assert_eq!(bytes_of(&mut first, &again), [0xAA; 128], "it is not zeroed for the same session");
    of_first.free_object(&mut first, again).expect("it is freed");
    of_first.free_object(&mut first, stays).expect("it is freed, and with it the chunk");
    let (mut second, mut of_second) = user(&host, "blue");
    let other = of_second.allocate_object(&mut second, OBJECT_BYTES).expect("an object");
    assert_eq!(other.address(), address, "it is the only chunk");
    assert_eq!(bytes_of(&mut second, &other), [0; 128]);
}

#[test]
fn an_object_is_freed_by_its_own_allocator_only() {
    let (host, twin) = (host(), host());
    let (mut session, mut chunks) = user(&host, "red");
    let mut others = session.chunks(ChunkOptions::default()).expect("a second one");
    let (mut elsewhere, mut of_elsewhere) = user(&twin, "red");
    // All three have their first object at the same place of their first chunk.
    let own = chunks.allocate_object(&mut session, OBJECT_BYTES).expect("an object");
    let other = others.allocate_object(&mut session, OBJECT_BYTES).expect("an object");
    let foreign = of_elsewhere.allocate_object(&mut elsewhere, OBJECT_BYTES).expect("an object");
    session.write(&own, 0, &[1; 128]).expect("a write");
    for object in [other, foreign] {
        let refused = chunks.free_object(&mut session, object).expect_err("it is another's");
        assert_eq!(refused.error, Error::NoSuchSmallObject);
        let object = refused.object.expect("it comes back");
        assert_eq!(object.id(), own.id(), "names alone do not tell them apart");
    }
    assert_eq!(bytes_of(&mut session, &own), [1; 128]);
    // The allocator does not accept another session either: this session could not reach the chunks of that one.
    let told = chunks.allocate_object(&mut elsewhere, OBJECT_BYTES).map(drop);
    assert_eq!(told, Err(Error::ForeignChunk));
    assert_eq!(chunks.give_back_free(&mut elsewhere), Err(Error::ForeignChunk));
    let refused = chunks.free_object(&mut elsewhere, own).expect_err("it is another session");
    assert_eq!(refused.error, Error::ForeignChunk);
    let own = refused.object.expect("it comes back");
    chunks.free_object(&mut session, *own).expect("it lived all the time");
}

#[test]
fn an_object_is_no_longer_than_a_chunk() {
    let host = host();
    let (mut session, mut chunks) = user(&host, "red");
    let told = chunks.allocate_object(&mut session, CHUNK_BYTES + 1).map(drop);
    assert_eq!(told, Err(Error::SmallObjectTooLong { bytes: CHUNK_BYTES + 1, limit: CHUNK_BYTES }));
    let told = chunks.allocate_object(&mut session, 0).map(drop);
    assert_eq!(told, Err(Error::Refused(Refusal::Nothing)));
    assert_eq!(chunks.occupancy().chunks, 0, "nothing was asked for");
}

#[test]
fn many_chunks_are_allocated_and_freed_at_once_and_each_is_there_once() {
    let host = host();
    let (mut session, mut chunks) = user(&host, "red");
    for _ in 0..3 {
        let many = chunks.allocate_many(&mut session, 64).expect("chunks");
        let places: BTreeSet<_> = many.iter().map(|chunk| chunk.address()).collect();
        assert_eq!(places.len(), 64);
        for chunk in &many {
            session.write(chunk, 0, &chunk.address().0.to_le_bytes()).expect("a write");
        }
        for chunk in &many {
            let mut bytes = [0; 16];
            session.read(chunk, 0, &mut bytes).expect("a read");
            assert_eq!(bytes[..8], chunk.address().0.to_le_bytes());
            assert_eq!(bytes[8..], [0; 8]);
        }
        chunks.free_many(&mut session, many).expect("they are freed");
    }
    wait_for(&host, "all are free", |it| it.chunks_held == 0 && it.chunk_allocations == 3 * 64);
    assert!(chunks.allocate_many(&mut session, 0).expect("nothing is asked").is_empty());
}

#[test]
fn a_batch_that_meets_the_quota_or_the_last_chunk_has_what_there_was() {
    let host = host_with(ChunkLimits { client_max: 40, ..limits() }, Quota::default());
    let (mut session, mut chunks) = user(&host, "red");
    let NotAllAllocated { chunks: held, error } =
        chunks.allocate_many(&mut session, 50).expect_err("more than it may hold");
    assert_eq!((held.len(), error), (40, Error::Quota { used: 40, limit: 40 }));
    let (mut second, mut of_second) = user(&host, "blue");
    let NotAllAllocated { chunks: rest, error } =
        of_second.allocate_many(&mut second, 30).expect_err("more than there are");
    assert_eq!((rest.len(), error), (24, Error::NoFreeChunk));
    session.write(&held[39], 0, &[1; 8]).expect("the last one is as good as the first");
    second.write(&rest[23], 0, &[2; 8]).expect("so is this one's");
    // If the objects need more chunks than are free, none is allocated, and the places that were taken are free again
    // for other objects.
    let told = of_second.allocate_objects(&mut second, 9, OBJECT_BYTES).map(drop);
    assert_eq!(told, Err(Error::NoFreeChunk));
    chunks.free_many(&mut session, held).expect("they are freed");
    let objects = of_second.allocate_objects(&mut second, 9, OBJECT_BYTES).expect("there are chunks again");
    assert_eq!((objects.len(), of_second.occupancy().chunks), (9, 2));
    of_second.free_many(&mut second, rest).expect("they are freed");
}

#[test]
fn a_node_that_goes_in_the_middle_of_a_batch_ends_it() {
    let host = host();
    let (mut session, mut chunks) = user(&host, "red");
    let object = chunks.allocate_object(&mut session, OBJECT_BYTES).expect("an object");
    let work = std::thread::spawn(move || {
        let ended = loop {
            let many = match chunks.allocate_many(&mut session, 60) {
                Ok(many) => many,
                Err(NotAllAllocated { chunks, error }) => {
                    assert!(chunks.len() <= 60);
                    break error;
                }
            };
            if let Err(NotAllFreed { left, error }) = chunks.free_many(&mut session, many) {
                assert!(left.len() <= 60);
                break error;
            }
        };
        let told = chunks.free_object(&mut session, object);
        (ended, told.is_ok(), chunks.give_back_free(&mut session))
    });
    wait_for(&host, "it is at work", |it| it.chunk_allocations > 200);
    drop(host);
    let (ended, is_freed, given_back) = work.join().expect("it does not hang");
    assert_eq!(ended, Error::NodeGone);
    assert!(is_freed, "an object is freed without the node");
    assert_eq!(given_back, Err(Error::NodeGone));
}

/// Breaks one of the session's queue pairs for requests by a message of a length that no worker accepts. The message
/// takes the place of one request, so fifteen others may be under way.
fn break_worker(session: &mut Session, worker: usize) {
    let lkey = session.client().endpoint().arena_key();
    let local = LocalSpan { address: 0, length: 64, lkey };
    let request = WorkRequest { id: 0, signalled: true, operation: NicOperation::Send { local } };
    let mut queue_pairs = session.client().endpoint().asking_queue_pairs().expect("a port has them");
    assert_eq!(queue_pairs.post_asking(worker, &[request]), 1);
}

#[test]
fn a_worker_that_breaks_in_the_middle_ends_a_batch_and_what_is_held_stays() {
    let broken = Error::Refused(Refusal::NicFailed);
    for worker in [0, 1] {
        let host = host();
        let (mut session, mut chunks) = user_that_keeps(&host, "red", 0);
        let held = chunks.allocate_many(&mut session, 15).expect("chunks");
        let object = chunks.allocate_object(&mut session, OBJECT_BYTES).expect("an object");
        session.write(&object, 0, &[3; 128]).expect("a write");
        break_worker(&mut session, worker);
        let (error, left) = match worker {
            0 => {
                let told = chunks.allocate_many(&mut session, 15).expect_err("the worker is broken");
                assert!(told.chunks.is_empty());
                (told.error, held)
            }
            _ => {
                let told = chunks.free_many(&mut session, held).expect_err("the worker is broken");
                (told.error, told.left)
            }
        };
        assert_eq!(error, broken);
        for chunk in &left {
            session.write(chunk, 0, &[4; 8]).expect("what is left is held");
        }
        assert_eq!(bytes_of(&mut session, &object), [3; 128]);
        let more = chunks.allocate_object(&mut session, OBJECT_BYTES).expect("its chunk has room");
        session.write(&more, 0, &[5; 128]).expect("a write");
        for object in [object, more] {
            let told = chunks.free_object(&mut session, object);
            let told = told.map_err(|not_freed| (not_freed.object.is_some(), not_freed.error));
            // Freeing the last object gives the chunk back, and that fails because the worker is broken.
            assert!(told.is_ok() || told == Err((false, broken)), "{told:?}");
        }
    }
}

/// An object that a trial has allocated, and the byte that fills it.
struct Filled {
    object: SmallObject,
    byte: u8,
}

#[test]
fn no_object_ever_has_anothers_bytes() {
    let host = host();
    for seed in 0..8u64 {
        let mut random = StdRng::seed_from_u64(seed);
        let (mut session, mut chunks) = user_that_keeps(&host, "red", 1);
        let mut filled: Vec<Filled> = Vec::new();
        for step in 0..400 {
            let grows = filled.len() < 20 || (filled.len() < 80 && random.random_bool(0.5));
            if grows {
                let bytes = random.random_range(1..=300);
                let object = chunks.allocate_object(&mut session, bytes).expect("there is room for eighty");
                let byte = random.random();
                let content = vec![byte; usize::try_from(bytes).expect("it is small")];
                session.write(&object, 0, &content).expect("a write");
                filled.push(Filled { object, byte });
            } else {
                let Filled { object, byte } = filled.swap_remove(random.random_range(0..filled.len()));
                let bytes = bytes_of(&mut session, &object);
                assert!(bytes.iter().all(|found| *found == byte), "seed {seed}, step {step}");
                chunks.free_object(&mut session, object).expect("it is freed");
            }
        }
        for Filled { object, byte } in filled {
            let bytes = bytes_of(&mut session, &object);
            assert!(bytes.iter().all(|found| *found == byte), "seed {seed}, at the end");
            chunks.free_object(&mut session, object).expect("it is freed");
        }
        assert_eq!(chunks.occupancy().chunks, 1, "seed {seed}: one is kept");
        drop(session);
        wait_for(&host, "the session is gone", |it| it.chunks_held == 0);
    }
}
