//! The promises of chunks that the NIC allocates without the node's CPU (OneSidedMW), to sessions of a node on the
//! software NIC.

use portcullis::host::{Host, HostConfig, NodeCounters};
use portcullis::{
    Access, Answer, BarePermission, Buffer, Call, Chunk, ChunkLimits, ControlRequest, Credential, Error,
    Moment, NodeConfig, NotBegun, Quota, Refusal, RemoteAddress, Rkey, Session, SessionOptions, Unchecked,
};
use std::time::{Duration, Instant};

const CHUNKS: u64 = 64;
const CHUNK_BYTES: u64 = 256;
/// Number of allocations and frees without the node's CPU.
const WITHOUT_CPU: u64 = 1_000_000;

fn limits() -> ChunkLimits {
    ChunkLimits { chunks: CHUNKS, chunk_bytes: CHUNK_BYTES, client_max: CHUNKS }
}

fn host_with(chunks: Option<ChunkLimits>, quota: Quota) -> Host {
    let node = NodeConfig { pool_bytes: 1 << 20, chunks, quota, ..NodeConfig::default() };
    Host::start(HostConfig { node, ..HostConfig::default() }).expect("a node starts")
}

fn host() -> Host {
    host_with(Some(limits()), Quota::default())
}

fn session(host: &Host, tenant: &str) -> Session {
    host.connect(tenant, SessionOptions::default()).expect("a session")
}

fn joined(host: &Host, tenant: &str) -> Session {
    let mut session = session(host, tenant);
    session.join_chunks().expect("workers");
    session
}

/// Waits until the node's counters satisfy the condition.
fn wait_for(host: &Host, what: &str, wanted: impl Fn(&NodeCounters) -> bool) {
    let within = Instant::now() + Duration::from_secs(10);
    while !wanted(&host.counters()) {
        assert!(Instant::now() < within, "{what}: {:?}", host.counters());
        std::thread::yield_now();
    }
}

fn first_bytes(session: &mut Session, chunk: &Chunk) -> [u8; 16] {
    let mut bytes = [0; 16];
    session.read(chunk, 0, &mut bytes).expect("a read");
    bytes
}

/// Reads without local checks, with `credential`.
fn read_with(session: &mut Session, address: RemoteAddress, credential: Credential) -> Result<u64, Error> {
    let buffer: Buffer<_> = session.buffer(16).expect("a buffer");
    let read = Access::read(Unchecked::new(address, credential), 0, buffer);
    let begun = session.client().dangerous_access(read).expect("it begins");
    session.wait(begun).expect("the node is there").result
}

/// Requests a chunk, and does not wait for it.
fn begin_to_allocate(session: &mut Session) -> Result<Call, Error> {
    let now = session.now();
    session.client().call(now, ControlRequest::AllocateChunk).map_err(Error::from)
}

/// Requests that a chunk be freed, and does not wait for it.
fn begin_to_free(
    session: &mut Session,
    chunk: BarePermission,
) -> Result<Call, NotBegun<Box<ControlRequest>>> {
    let now = session.now();
    session.client().call(now, ControlRequest::FreeChunk(chunk))
}

fn group(chunk: &Chunk) -> [Rkey; 2] {
    let Credential::Chunk(keys) = chunk.credential() else { panic!("a chunk has keys of a group") };
    keys
}

#[test]
fn a_chunk_is_written_and_read_and_comes_back_as_zeros() {
    let host = host();
    let mut session = joined(&host, "red");
    let chunk = session.allocate_chunk().expect("a chunk");
    assert_eq!(chunk.length(), CHUNK_BYTES);
    assert_eq!(first_bytes(&mut session, &chunk), [0; 16]);
    session.write(&chunk, 0, b"sixteen bytes...").expect("a write");
    assert_eq!(first_bytes(&mut session, &chunk), *b"sixteen bytes...");
    session.write(&chunk, 8, &7u64.to_le_bytes()).expect("a word");
    assert_eq!(session.fetch_and_add(&chunk, 8, 5), Ok(7));
    assert_eq!(session.compare_and_swap(&chunk, 8, 12, 99), Ok(12));
    let outside = session.write(&chunk, CHUNK_BYTES - 8, &[1; 16]);
    assert!(matches!(outside, Err(Error::OutsideRange { .. })), "{outside:?}");
    let address = chunk.address();
    session.free_chunk(chunk).expect("it is freed");
    let again = session.allocate_chunk().expect("a chunk");
    assert_eq!(again.address(), address, "the list is a stack");
    assert_eq!(first_bytes(&mut session, &again), [0; 16]);
    session.free_chunk(again).expect("it is freed");
}

#[test]
fn a_batch_and_many_requests_in_flight_reach_chunks_too() {
    let host = host();
    let mut session = joined(&host, "red");
    let calls: Vec<_> =
        (0..16).map(|_| begin_to_allocate(&mut session).expect("a worker takes sixteen")).collect();
    let full = begin_to_allocate(&mut session);
    assert!(matches!(full, Err(Error::QueueFull { limit: 16 })), "{full:?}");
    let chunks = calls.into_iter().map(|call| match session.wait_call(call).expect("a chunk") {
        Answer::Granted(chunk) => chunk,
        other => panic!("{other:?}"),
    });
    let chunks: Vec<_> = chunks.collect();
    let now = session.now();
    let mut begun = Vec::new();
    let buffers: Vec<_> = (0..16u8)
        .map(|number| {
            let mut buffer = session.buffer(8).expect("a buffer");
            buffer.write(0, &[number; 8]);
            buffer
        })
        .collect();
    let mut batch = session.client().batch();
    for (chunk, buffer) in chunks.iter().zip(buffers) {
        begun.push(batch.access(now, Access::write(chunk, 0, buffer)).expect("there is room"));
    }
    assert_eq!(batch.post(), 16);
    for operation in begun {
        session.wait(operation).expect("the node is there").result.expect("a write");
    }
    for (number, chunk) in (0..16u8).zip(&chunks) {
        let mut bytes = [0; 8];
        session.read(chunk, 0, &mut bytes).expect("a read");
        assert_eq!(bytes, [number; 8]);
    }
}

/// Allocates and frees `count` chunks, with as many requests in flight as there is room for.
fn churn(session: &mut Session, count: u64) {
    let (mut asked, mut freed) = (0, 0);
    let (mut allocations, mut frees) = (Vec::new(), Vec::new());
    let begin = |session: &mut Session, asked: &mut u64| {
        (*asked < count).then(|| begin_to_allocate(session)).and_then(Result::ok).inspect(|_| *asked += 1)
    };
    while freed < count {
        while let Some(call) = begin(session, &mut asked) {
            allocations.push(call);
        }
        session.poll();
        allocations.retain(|&call| match session.client().take_call(call) {
            None => true,
            Some(Ok(Answer::Granted(chunk))) => {
                frees.push((Some(chunk), None));
                false
            }
            Some(other) => panic!("{other:?}"),
        });
        for (chunk, call) in &mut frees {
            if let Some(held) = chunk.take() {
                match begin_to_free(session, held).map_err(|refused| *refused.ask) {
                    Ok(begun) => *call = Some(begun),
                    Err(ControlRequest::FreeChunk(held)) => *chunk = Some(held),
                    Err(other) => panic!("{other:?}"),
                }
            }
        }
        frees.retain(|&(_, call)| match call.and_then(|call| session.client().take_call(call)) {
            None => true,
            Some(freeing) => {
                freeing.expect("it is freed");
                freed += 1;
                false
            }
        });
    }
}

#[test]
fn a_million_allocations_and_frees_take_none_of_the_nodes_cpu_and_the_books_have_all_of_them_afterwards() {
    let host = host();
    let mut session = joined(&host, "red");
    host.hold_turns(true);
    let before = host.counters();
    churn(&mut session, WITHOUT_CPU);
    let after = host.counters();
    assert_eq!((after.turns, after.control_messages), (before.turns, before.control_messages));
    assert_eq!(after.chunk_allocations, 0, "nothing is taken up without a turn");
    host.hold_turns(false);
    wait_for(&host, "all are taken up", |it| it.chunk_allocations == WITHOUT_CPU && it.chunks_held == 0);
    assert!(host.counters().turns > after.turns, "the counter counts");
}

#[test]
fn a_key_of_a_chunk_opens_nothing_on_another_sessions_queue_pairs() {
    let host = host();
    let mut holder = joined(&host, "red");
    let chunk = holder.allocate_chunk().expect("a chunk");
    holder.write(&chunk, 0, b"sixteen bytes...").expect("a write");
    let keys = group(&chunk);
    let mut sibling = joined(&host, "red");
    let own = sibling.allocate_chunk().expect("a chunk");
    sibling.write(&own, 0, b"the sibling's...").expect("a write");
    let mixed = [[keys[1], keys[0]], [keys[0], keys[1]], [keys[0]; 2], [keys[1]; 2]];
    for stolen in mixed {
        let told = read_with(&mut sibling, chunk.address(), Credential::Chunk(stolen));
        assert_eq!(told, Err(Error::Violation), "{stolen:?}");
        let ordinary = Credential::Keys { buffer: stolen[0], lifetime: stolen[0] };
        let told = read_with(&mut sibling, chunk.address(), ordinary);
        assert_eq!(told, Err(Error::Violation), "on an ordinary queue pair");
    }
    assert_eq!(first_bytes(&mut holder, &chunk), *b"sixteen bytes...", "nothing changes for the holder");
    assert_eq!(first_bytes(&mut sibling, &own), *b"the sibling's...", "a rebuilt queue pair has its windows");
    let told = host.admin().clients().expect("the node is there");
    let guesses: Vec<_> = told.iter().map(|client| client.violations.guesses).collect();
    assert_eq!(guesses, [0, 8], "all are charged to the sibling");
}

#[test]
fn the_holders_own_mistake_breaks_one_queue_pair_and_the_other_carries_on() {
    let host = host();
    let mut session = joined(&host, "red");
    let chunk = session.allocate_chunk().expect("a chunk");
    session.write(&chunk, 0, b"sixteen bytes...").expect("a write");
    for _ in 0..5 {
        let behind = RemoteAddress(chunk.address().0 + CHUNK_BYTES);
        assert_eq!(read_with(&mut session, behind, chunk.credential()), Err(Error::Violation));
        assert_eq!(first_bytes(&mut session, &chunk), *b"sixteen bytes...");
    }
    let counters = session.client().counters();
    assert!(counters.switches >= 5 && counters.rebuilds_asked >= 4, "{counters:?}");
}

#[test]
fn a_freed_chunk_is_gone_for_the_one_that_had_it() {
    let host = host();
    let mut session = joined(&host, "red");
    let chunk = session.allocate_chunk().expect("a chunk");
    let (address, credential) = (chunk.address(), chunk.credential());
    assert_eq!(read_with(&mut session, address, credential), Ok(16));
    session.free_chunk(chunk).expect("it is freed");
    assert_eq!(read_with(&mut session, address, credential), Err(Error::Violation));
    let next = session.allocate_chunk().expect("a chunk");
    assert_eq!(next.address(), address);
    assert_ne!(next.credential(), credential, "keys move");
    assert_eq!(read_with(&mut session, address, credential), Err(Error::Violation));
    assert_eq!(first_bytes(&mut session, &next), [0; 16]);
}

#[test]
fn nobody_frees_a_chunk_that_is_not_his() {
    let host = host();
    let mut holder = joined(&host, "red");
    let chunk = holder.allocate_chunk().expect("a chunk");
    let mut other = joined(&host, "blue");
    let pool = other.allocate_chunk().expect("a chunk");
    for address in [chunk.address().0, chunk.address().0 + 8 * CHUNK_BYTES] {
        let call = other.client().dangerous_free_chunk(RemoteAddress(address)).expect("it is asked");
        let told = other.wait_call(call).map(|_| ());
        assert_eq!(told, Err(Error::ForeignChunk), "{address:x}");
    }
    let outside = RemoteAddress(chunk.address().0 + CHUNKS * CHUNK_BYTES);
    let told = other.client().dangerous_free_chunk(outside);
    assert!(matches!(told, Err(Error::ForeignChunk)), "{told:?}");
    holder.write(&chunk, 0, &[1; 8]).expect("it is still held");
    other.free_chunk(pool).expect("its own");
}

#[test]
fn a_client_holds_no_more_than_it_may_and_learns_when_there_is_none() {
    let three = ChunkLimits { chunks: 4, client_max: 3, ..limits() };
    let host = host_with(Some(three), Quota { chunks_max: 5, ..Quota::default() });
    let mut first = session(&host, "red");
    let early = first.allocate_chunk().map(drop);
    assert_eq!(early, Err(Error::Refused(Refusal::NoChunks)), "before it has workers");
    assert_eq!(first.join_chunks().expect("workers").quota, 3);
    let again = first.join_chunks();
    assert!(again.is_err(), "{again:?}");
    let held: Vec<_> = (0..3).map(|_| first.allocate_chunk().expect("a chunk")).collect();
    let beyond = first.allocate_chunk().map(drop);
    assert_eq!(beyond, Err(Error::Quota { used: 3, limit: 3 }));
    let mut second = session(&host, "red");
    assert_eq!(second.join_chunks().expect("workers").quota, 2, "what its tenant has left");
    let third = session(&host, "red").join_chunks();
    assert_eq!(third, Err(Error::Quota { used: 5, limit: 5 }));
    let last = second.allocate_chunk().expect("the last chunk");
    for _ in 0..3 {
        assert_eq!(second.allocate_chunk().map(drop), Err(Error::NoFreeChunk));
    }
    for chunk in held {
        first.free_chunk(chunk).expect("it is freed");
    }
    let one = second.allocate_chunk().expect("there are some again");
    second.free_chunk(one).expect("it is freed");
    second.free_chunk(last).expect("it is freed");
    drop(first.allocate_chunk().expect("a freed chunk counts no more"));
}

#[test]
fn what_a_client_held_is_free_and_zero_once_it_is_gone() {
    let host = host();
    let mut first = joined(&host, "red");
    let mut held = Vec::new();
    while let Ok(chunk) = first.allocate_chunk() {
        first.write(&chunk, 0, b"somebody else's.").expect("a write");
        held.push(chunk);
    }
    assert_eq!(held.len() as u64, CHUNKS);
    wait_for(&host, "all are held", |it| it.chunks_held == CHUNKS);
    assert_eq!(host.admin().clients().expect("a node")[0].chunks, CHUNKS);
    // Requests are under way when the session ends.
    for chunk in held.drain(..10) {
        begin_to_free(&mut first, chunk.into_bare()).expect("there is room");
    }
    drop(first);
    wait_for(&host, "all are free", |it| it.chunks_held == 0);
    let mut second = joined(&host, "blue");
    for _ in 0..CHUNKS {
        let chunk = second.allocate_chunk().expect("a chunk");
        assert_eq!(first_bytes(&mut second, &chunk), [0; 16]);
    }
}

#[test]
fn a_node_without_chunks_says_which_option_gives_it_some() {
    let host = host_with(None, Quota::default());
    let refused = session(&host, "red").join_chunks().expect_err("there are none");
    assert_eq!(refused, Error::Refused(Refusal::NoChunks));
    assert!(refused.to_string().contains("--chunks"), "{refused}");
}

#[test]
fn a_chunk_has_no_end_that_could_be_put_off() {
    let host = host();
    let mut session = joined(&host, "red");
    let chunk = session.allocate_chunk().expect("a chunk");
    let now: Moment = session.now();
    let request = ControlRequest::extend(&chunk, portcullis::Lifetime::millis(1));
    let told = session.client().call(now, request).map_err(Error::from);
    assert!(matches!(told, Err(Error::LivesLonger { .. })), "{told:?}");
    assert_eq!(host.counters().control_messages, 1, "only the one for the workers");
}

/// Makes a request. If the request reports that the workers have broken, requests new workers and repeats it.
fn again<T>(
    session: &mut Session,
    mut ask: impl FnMut(&mut Session) -> Result<T, Error>,
) -> Result<T, Error> {
    match ask(session) {
        Err(Error::Refused(Refusal::NicFailed)) => {
            session.join_chunks().expect("workers");
            ask(session)
        }
        other => other,
    }
}

#[test]
fn a_worker_that_breaks_costs_sessions_a_pause_and_no_chunk() {
    let host = host();
    let mut sessions = [joined(&host, "red"), joined(&host, "blue")];
    let mut kept = Vec::new();
    for (number, session) in (1..).zip(&mut sessions) {
        let chunk = session.allocate_chunk().expect("a chunk");
        session.write(&chunk, 0, &[number; 16]).expect("a write");
        kept.push(chunk);
    }
    for round in 1..=20 {
        // Requests are under way when the workers break: some have been carried out, some not.
        let mut calls = Vec::new();
        for session in &mut sessions {
            for _ in 0..10 {
                calls.push(begin_to_allocate(session));
            }
        }
        host.dangerous_break_worker();
        wait_for(&host, "the pool is rebuilt", |it| it.chunk_rebuilds == round);
        let mut calls = calls.into_iter();
        for (session, number) in sessions.iter_mut().zip(1..) {
            let mut known = Vec::new();
            for call in calls.by_ref().take(10) {
                match call.and_then(|call| session.wait_call(call)) {
                    Ok(Answer::Granted(chunk)) => known.push(chunk),
                    Err(Error::Refused(Refusal::NicFailed)) => {}
                    other => panic!("{other:?}"),
                }
            }
            let chunk = &kept[number - 1];
            assert_eq!(first_bytes(session, chunk), [u8::try_from(number).expect("small"); 16]);
            let one = again(session, Session::allocate_chunk).expect("a chunk");
            let free = |session: &mut Session, chunk| {
                let call = begin_to_free(session, chunk).expect("it is asked");
                session.wait_call(call).expect("it is freed");
            };
            known.into_iter().chain([one.into_bare()]).for_each(|chunk| free(session, chunk));
        }
        wait_for(&host, "what is held is known", |it| it.chunks_held == 2);
    }
}

#[test]
fn a_chunk_that_was_to_be_freed_when_a_worker_broke_is_freed() {
    let host = host();
    let mut session = joined(&host, "red");
    for round in 1..=20 {
        let chunks: Vec<_> = (0..8).map(|_| session.allocate_chunk().expect("a chunk").into_bare()).collect();
        let calls: Vec<_> = chunks
            .into_iter()
            .map(|chunk| begin_to_free(&mut session, chunk).expect("it is asked"))
            .collect();
        host.dangerous_break_worker();
        wait_for(&host, "the pool is rebuilt", |it| it.chunk_rebuilds == round);
        for call in calls {
            match session.wait_call(call) {
                Ok(_) | Err(Error::Refused(Refusal::NicFailed)) => {}
                Err(other) => panic!("{other:?}"),
            }
        }
        let chunk = again(&mut session, Session::allocate_chunk).expect("a chunk");
        session.free_chunk(chunk).expect("it is freed");
        wait_for(&host, "nothing is held", |it| it.chunks_held == 0);
    }
}

#[test]
fn where_the_nic_has_no_chains_the_same_calls_work() {
    let limits = ChunkLimits { client_max: CHUNKS - 1, ..limits() };
    let node =
        NodeConfig { pool_bytes: 1 << 20, chunks: Some(limits), chains: false, ..NodeConfig::default() };
    let host = Host::start(HostConfig { node, ..HostConfig::default() }).expect("a node starts");
    let mut session = session(&host, "red");
    let terms = session.join_chunks().expect("it joins");
    assert_eq!(terms.by, portcullis::HandedOutBy::Cpu);
    assert!(session.join_chunks().is_err(), "it has joined");
    let mut held = Vec::new();
    for number in 0..CHUNKS - 1 {
        let chunk = session.allocate_chunk().expect("a chunk");
        assert_eq!(first_bytes(&mut session, &chunk), [0; 16]);
        session.write(&chunk, 0, &number.to_le_bytes()).expect("a write");
        assert_eq!(session.fetch_and_add(&chunk, 0, 5), Ok(number));
        held.push(chunk);
    }
    let beyond = session.allocate_chunk().map(drop);
    assert_eq!(beyond, Err(Error::Quota { used: CHUNKS - 1, limit: CHUNKS - 1 }));
    let mut other = joined(&host, "blue");
    let last = other.allocate_chunk().expect("the last chunk");
    assert_eq!(other.allocate_chunk().map(drop), Err(Error::NoFreeChunk));
    assert_eq!(host.counters().chunks_held, CHUNKS);
    for chunk in held.drain(..10) {
        session.free_chunk(chunk).expect("it is freed");
    }
    other.free_chunk(last).expect("it is freed");
    drop(session);
    wait_for(&host, "what a session held ends with it", |it| it.chunks_held == 0);
    let chunk = other.allocate_chunk().expect("a chunk");
    assert_eq!(first_bytes(&mut other, &chunk), [0; 16]);
    other.free_chunk(chunk).expect("it is freed");
}
