//! The part of the node's CPU for chunks that the NIC hands out: workers, reclaims, and the books afterwards.

use crate::rig::{Rig, refused};
use portcullis_nic::{
    AskingQueuePairs, CompletionKind, DataQueuePairs, EndpointQueue, LocalSpan, Nic, Operation, QpChange,
    QpId, ReceiveRequest, RemoteAddress, RemoteSpan, Rkey, Status, WorkRequest,
};
use portcullis_node::{AuditEvent, AuditedChunk, ChunkLimits, NodeConfig, Quota, Reductions};
use portcullis_offload::Geometry;
use portcullis_protocol::{
    Allocate, ChunkTerms, GrantRequest, Granted, HandedOutBy, Lifetime, QueuePairRequest, Refusal, ReplyBody,
    RequestBody, Sharing,
};
use portcullis_softnic::core::ObjectCounts;

const CHUNKS: u64 = 8;
/// Offsets in a client's arena of its requests to workers, and of the workers' replies.
const REQUEST_AT: u64 = 768 << 10;
const REPLY_AT: u64 = REQUEST_AT + 4096;
const REPLY_BYTES: u32 = 256;
/// Number of requests of the NIC in which two clients get two chunks each, and more.
const STEPS: u32 = 160;
/// More queue pairs than a small node has.
const QUEUE_PAIRS_MAX: u32 = 64;

fn config() -> NodeConfig {
    let chunks = ChunkLimits { chunks: CHUNKS, chunk_bytes: 64, client_max: CHUNKS };
    NodeConfig { chunks: Some(chunks), audit: true, ..crate::rig::config() }
}

fn join(rig: &mut Rig, client: usize) -> ChunkTerms {
    match rig.ask(client, RequestBody::QueuePair(QueuePairRequest::JoinChunks)) {
        ReplyBody::Chunks(terms) => terms,
        other => panic!("{other:?}"),
    }
}

/// Requests this many chunks from the worker that allocates.
fn ask_for(rig: &mut Rig, client: usize, chunks: u32) {
    let seat = rig.seat(client);
    let lkey = seat.lkey();
    for number in 0..chunks {
        let reply = REPLY_AT + u64::from(number * REPLY_BYTES);
        let local = LocalSpan { address: reply, length: REPLY_BYTES, lkey };
        let posted = seat.endpoint.post_asking_receive(0, &[ReceiveRequest { id: u64::from(number), local }]);
        assert_eq!(posted, 1);
        let local = LocalSpan { address: REQUEST_AT, length: 8, lkey };
        let send = WorkRequest { id: 0, signalled: true, operation: Operation::Send { local } };
        assert_eq!(seat.endpoint.post_asking(0, &[send]), 1);
    }
}

fn held(rig: &Rig) -> (u64, u64) {
    let counters = rig.node.counters();
    (counters.chunks_held, counters.chunk_allocations)
}

#[test]
fn what_the_nic_has_done_is_in_counters_reports_and_the_audit_log_afterwards() {
    let mut rig = Rig::new(config());
    let client = rig.attach("red");
    let terms = join(&mut rig, client);
    assert_eq!((terms.chunks, terms.chunk_bytes, terms.quota), (CHUNKS, 64, CHUNKS));
    ask_for(&mut rig, client, 3);
    rig.settle();
    rig.pass(Lifetime::millis(1));
    assert_eq!(held(&rig), (3, 3));
    let report = rig.node.clients(rig.now).pop().expect("a client");
    assert_eq!(report.chunks, 3);
    rig.detach(client);
    for _ in 0..20 {
        rig.pass(Lifetime::millis(1));
    }
    assert_eq!(held(&rig), (0, 3));
    let records = std::iter::from_fn(|| rig.node.poll_audit());
    let records: Vec<_> =
        records.filter_map(|it| Some((it.event, it.client, it.count, *it.chunk?))).collect();
    let events: Vec<_> = records.iter().map(|&(event, client, count, _)| (event, client, count)).collect();
    let (allocated, freed) = (AuditEvent::AllocateChunk, AuditEvent::FreeChunk);
    let wanted = [[(allocated, Some(report.id), None); 3], [(freed, Some(report.id), Some(1)); 3]].concat();
    assert_eq!(events, wanted);
    let uses = |of: &[(_, _, _, AuditedChunk)]| {
        let mut uses: Vec<_> = of.iter().map(|(_, _, _, it)| (it.chunk.0, it.number_of_use)).collect();
        uses.sort_unstable();
        uses
    };
    assert_eq!(uses(&records[..3]), uses(&records[3..]), "the uses that began are those that ended");
    rig.end();
}

#[test]
fn a_client_that_leaves_before_its_workers_have_begun_takes_nobody_elses_with_it() {
    let mut rig = Rig::new(config());
    for _ in 0..3 {
        let hasty = rig.attach("red");
        rig.send(hasty, RequestBody::QueuePair(QueuePairRequest::JoinChunks));
        // The NIC delivers the request, and has no turn between the node's reply and the client's end.
        rig.nic.nic.turn_all();
        rig.node.turn(&mut rig.nic, rig.now);
        rig.detach(hasty);
        rig.node.turn(&mut rig.nic, rig.now);
        rig.settle();
        rig.pass(Lifetime::millis(2));
    }
    let client = rig.attach("blue");
    join(&mut rig, client);
    ask_for(&mut rig, client, 2);
    rig.settle();
    assert_eq!(chunks_got(&mut rig, client), Some(2), "the queue that starts chains works on");
    rig.end();
}

#[test]
fn an_allocation_is_found_whenever_the_node_looks_in_between() {
    let mut rig = Rig::new(config());
    let client = rig.attach("red");
    join(&mut rig, client);
    for held_now in 1..=CHUNKS {
        ask_for(&mut rig, client, 1);
        // Each turn of the NIC continues the chain a little, and the node reads the records after each.
        for _ in 0..200 {
            rig.now = rig.now.after(Lifetime::millis(2));
            rig.turn();
        }
        for _ in 0..3 {
            rig.pass(Lifetime::millis(2000));
        }
        assert_eq!(held(&rig), (held_now, held_now));
    }
    rig.end();
}

#[test]
fn workers_are_made_once_and_for_clients_whose_ends_have_queue_pairs_for_chunks() {
    let mut rig = Rig::new(config());
    let client = rig.attach("red");
    join(&mut rig, client);
    assert_eq!(
        refused(rig.ask(client, RequestBody::QueuePair(QueuePairRequest::JoinChunks))),
        Refusal::Malformed
    );
    rig.end();
    let mut rig = Rig::new(crate::rig::config());
    let client = rig.attach("red");
    assert_eq!(
        refused(rig.ask(client, RequestBody::QueuePair(QueuePairRequest::JoinChunks))),
        Refusal::NoChunks
    );
    rig.end();
}

/// Three clients of a tenant with a quota of ten chunks, the last of which gets none, and one of another tenant.
fn sharers_of_a_quota(config: NodeConfig) -> (Rig, [usize; 4]) {
    let quota = Quota { chunks_max: 10, ..Quota::default() };
    let mut rig = Rig::new(NodeConfig { quota, ..config });
    let clients = [rig.attach("red"), rig.attach("red"), rig.attach("red"), rig.attach("blue")];
    assert_eq!(join(&mut rig, clients[0]).quota, 8);
    assert_eq!(join(&mut rig, clients[1]).quota, 2);
    let beyond = refused(rig.ask(clients[2], RequestBody::QueuePair(QueuePairRequest::JoinChunks)));
    assert_eq!(beyond, Refusal::Quota { used: 10, limit: 10 });
    assert_eq!(join(&mut rig, clients[3]).quota, 8, "another tenant has its own");
    (rig, clients)
}

#[test]
fn a_tenants_clients_share_its_quota_and_what_one_had_comes_back_when_it_is_reclaimed() {
    let (mut rig, clients) = sharers_of_a_quota(config());
    ask_for(&mut rig, clients[0], 5);
    rig.settle();
    rig.detach(clients[0]);
    for _ in 0..20 {
        rig.pass(Lifetime::millis(1));
    }
    assert_eq!(held(&rig).0, 0);
    assert_eq!(join(&mut rig, clients[2]).quota, 8);
    rig.end();
}

#[test]
fn clients_that_come_and_go_leave_nothing_on_the_nic() {
    let mut rig = Rig::new(config());
    let before = rig.nic.nic.core().objects();
    let mut level = None;
    for round in 0..100 {
        let client = rig.attach("red");
        if round % 3 > 0 {
            join(&mut rig, client);
        }
        if round % 3 > 1 {
            ask_for(&mut rig, client, 1 + round % 7);
            for _ in 0..round {
                rig.turn();
            }
        }
        rig.detach(client);
        for _ in 0..30 {
            rig.pass(Lifetime::millis(1));
        }
        assert_eq!(held(&rig).0, 0);
        // The tenant's own objects on the NIC stay for its next client.
        let now = rig.nic.nic.core().objects();
        assert_eq!(*level.get_or_insert(now), now, "round {round}, before {before:?}");
    }
    rig.end();
}

#[test]
fn a_nic_that_connects_nothing_makes_no_workers_and_leaves_none_half_made() {
    let mut rig = Rig::new(config());
    let client = rig.attach("red");
    rig.settle();
    let before = rig.nic.nic.core().objects();
    rig.nic.hook.is_broken = true;
    assert_eq!(
        refused(rig.ask(client, RequestBody::QueuePair(QueuePairRequest::JoinChunks))),
        Refusal::NicFailed
    );
    assert_eq!(rig.nic.nic.core().objects(), before);
    rig.nic.hook.is_broken = false;
    rig.end();
}

/// Returns the objects on the NIC of a node that has ended, and of the client that it had.
fn left_behind(mut rig: Rig, client: usize, leave_first: bool) -> ObjectCounts {
    let port = rig.seat(client).port;
    if leave_first {
        let id = rig.seat(client).id;
        rig.node.detach(&mut rig.nic, id, rig.now);
    }
    rig.node.end(&mut rig.nic, rig.now);
    rig.nic.nic.destroy_port(port);
    rig.nic.nic.core().objects()
}

#[test]
fn a_node_that_ends_takes_the_pool_and_its_workers_along() {
    let mut without = Rig::new(crate::rig::config());
    let client = without.attach("red");
    let wanted = left_behind(without, client, false);
    // The client has left, and its chunks are not freed yet when the node ends.
    for leave_first in [false, true] {
        let mut rig = Rig::new(config());
        let client = rig.attach("red");
        join(&mut rig, client);
        ask_for(&mut rig, client, 4);
        rig.settle();
        assert_eq!(left_behind(rig, client, leave_first), wanted, "left first: {leave_first}");
    }
}

#[test]
fn a_stray_on_a_queue_pair_for_chunks_is_the_clients_own_and_a_guess_its_tenants() {
    let mut rig = Rig::new(config());
    let client = rig.attach("red");
    let terms = join(&mut rig, client);
    ask_for(&mut rig, client, 1);
    rig.settle();
    let mut reply = [0; REPLY_BYTES as usize];
    let seat = rig.seat(client);
    portcullis_nic::Memory::read(portcullis_nic::Endpoint::arena(&seat.endpoint), REPLY_AT, &mut reply);
    let reply = portcullis_offload::Reply::<2>::from_bytes(&reply).expect("a reply");
    assert!(reply.is_done);
    let lkey = rig.seat(client).lkey();
    let local = LocalSpan { address: REQUEST_AT, length: 8, lkey };
    let chunk_queue_pair = 2;
    let read = |rig: &mut Rig, rkey, address| {
        let status = rig.operate(
            client,
            chunk_queue_pair,
            Operation::Read { local, remote: RemoteSpan { address, rkey } },
        );
        if status != Status::Success {
            let recovered = rig.ask(
                client,
                RequestBody::QueuePair(QueuePairRequest::Recover { queue_pair: chunk_queue_pair }),
            );
            assert_eq!(recovered, ReplyBody::Done);
            rig.seat(client).endpoint.rebuilt(chunk_queue_pair);
        }
        status
    };
    let [window, other] = reply.windows;
    assert_eq!(read(&mut rig, window.rkey, window.address), Status::Success);
    let behind = RemoteAddress(terms.base.0 + terms.chunks * terms.chunk_bytes);
    let counts = |rig: &Rig| {
        let violations = rig.node.clients(rig.now).pop().expect("a client").violations;
        (violations.late, violations.stray, violations.guesses)
    };
    assert_eq!(read(&mut rig, window.rkey, behind), Status::RemoteAccessError);
    assert_eq!(counts(&rig), (0, 1, 0));
    assert_eq!(
        read(&mut rig, other.rkey, window.address),
        Status::RemoteAccessError,
        "on the other one only"
    );
    assert_eq!(counts(&rig), (0, 2, 0));
    assert_eq!(read(&mut rig, Rkey(0xffff_ff01), window.address), Status::RemoteAccessError);
    assert_eq!(counts(&rig), (0, 2, 1));
    assert_eq!(read(&mut rig, window.rkey, window.address), Status::Success, "a rebuilt one has its windows");
    // A second chunk is allocated and freed before the node has read its record. An access after that is late.
    ask_for(&mut rig, client, 1);
    rig.settle();
    let seat = rig.seat(client);
    let mut bytes = [0; REPLY_BYTES as usize];
    portcullis_nic::Memory::read(portcullis_nic::Endpoint::arena(&seat.endpoint), REPLY_AT, &mut bytes);
    let second = portcullis_offload::Reply::<2>::from_bytes(&bytes).expect("a reply").windows[0];
    let geometry = Geometry { base: terms.base, chunk_bytes: terms.chunk_bytes, chunks: terms.chunks };
    let chunk = geometry.chunk_at(second.address).expect("a chunk of the pool");
    let handle = geometry.handle::<2>(chunk).to_request();
    portcullis_nic::Memory::write(portcullis_nic::Endpoint::arena(&seat.endpoint), REQUEST_AT, &handle);
    let reply = LocalSpan { address: REPLY_AT, length: REPLY_BYTES, lkey };
    assert_eq!(seat.endpoint.post_asking_receive(1, &[ReceiveRequest { id: 0, local: reply }]), 1);
    let send = WorkRequest { id: 0, signalled: true, operation: Operation::Send { local } };
    assert_eq!(seat.endpoint.post_asking(1, &[send]), 1);
    rig.settle();
    assert_eq!(read(&mut rig, second.rkey, second.address), Status::RemoteAccessError);
    assert_eq!(counts(&rig), (1, 2, 1));
    rig.end();
}

/// Returns the number of chunks that a client has got from its worker that allocates. `None`: there were errors.
fn chunks_got(rig: &mut Rig, client: usize) -> Option<u64> {
    let seat = rig.seat(client);
    let alloc = EndpointQueue::Asking(0).label();
    let mine: Vec<_> = seat.completions.iter().filter(|it| it.queue_pair == alloc).collect();
    let replies = mine.iter().filter(|it| matches!(it.kind, CompletionKind::Receive { .. }));
    let got = replies.filter(|it| it.status == Status::Success).count() as u64;
    mine.iter().all(|it| it.status == Status::Success).then_some(got)
}

fn join_again(rig: &mut Rig, client: usize) -> ChunkTerms {
    let terms = join(rig, client);
    (0..2).for_each(|place| rig.seat(client).endpoint.asking_rebuilt(place));
    terms
}

/// Makes a client's first worker fail after the NIC has executed `steps` requests, while the client and another one
/// request chunks. `is_told`: whether the NIC reports the failure. Returns how often the pool was rebuilt.
fn broken_after(steps: u32, is_told: bool) -> u64 {
    let mut rig = Rig::new(config());
    let clients = [rig.attach("red"), rig.attach("blue")];
    for client in clients {
        join(&mut rig, client);
        ask_for(&mut rig, client, 1);
    }
    rig.settle();
    clients.into_iter().for_each(|client| ask_for(&mut rig, client, 2));
    let mut queue_pairs = (0..QUEUE_PAIRS_MAX).cycle();
    for _ in 0..steps {
        let mut tried = queue_pairs.by_ref().take(2 * QUEUE_PAIRS_MAX as usize);
        let now = rig.now;
        tried.any(|qp| rig.nic.nic.core().execute_one(QpId(qp), now));
    }
    let victim = rig.seat(clients[0]).id;
    match is_told {
        true => rig.node.dangerous_break_worker(&mut rig.nic),
        false => {
            let chain = rig.node.dangerous_chains_of(victim)[0];
            rig.nic.modify_qp(chain, QpChange::Error).expect("a step");
        }
    }
    rig.settle();
    for _ in 0..30 {
        rig.pass(Lifetime::millis(10));
    }
    let rebuilds = rig.node.counters().chunk_rebuilds;
    if rebuilds == 0 {
        return 0;
    }
    let mut held_by_all = 0;
    for client in clients {
        let told = rig.seat(client).completions.iter().filter(|it| it.status == Status::Success);
        let got = told.filter(|it| matches!(it.kind, CompletionKind::Receive { .. })).count() as u64;
        let terms = join_again(&mut rig, client);
        assert_eq!(terms.held, got, "after {steps} steps: what a client was told of, and nothing else");
        held_by_all += got;
    }
    rig.settle();
    // All chunks that are left can be allocated.
    rig.seat(clients[1]).completions.clear();
    let left = u32::try_from(CHUNKS - held_by_all).expect("few");
    ask_for(&mut rig, clients[1], left);
    rig.settle();
    for _ in 0..5 {
        rig.pass(Lifetime::millis(10));
    }
    assert_eq!(chunks_got(&mut rig, clients[1]), Some(left.into()), "after {steps} steps");
    assert_eq!(held(&rig).0, CHUNKS);
    clients.into_iter().for_each(|client| rig.detach(client));
    for _ in 0..30 {
        rig.pass(Lifetime::millis(1));
    }
    assert_eq!(held(&rig).0, 0, "after {steps} steps");
    rig.end();
    rebuilds
}

#[test]
fn a_worker_that_breaks_costs_others_a_pause_and_nobody_a_chunk() {
    for steps in 0..STEPS {
        assert_eq!(broken_after(steps, true), 1, "after {steps} steps");
    }
}

#[test]
fn a_lock_that_is_never_released_is_noticed_although_the_nic_says_nothing() {
    let noticed = (0..STEPS).filter(|&steps| broken_after(steps, false) == 1).count();
    assert!(noticed > 0, "the worker had the lock at no time");
}

#[test]
fn a_pool_that_could_not_be_rebuilt_is_rebuilt_when_the_nic_works_again() {
    let mut rig = Rig::new(NodeConfig { chunks_ready: Some(2), ..config() });
    let clients = [rig.attach("red"), rig.attach("blue")];
    for client in clients {
        join(&mut rig, client);
        ask_for(&mut rig, client, 2);
    }
    rig.settle();
    rig.nic.hook.is_broken = true;
    rig.node.dangerous_break_worker(&mut rig.nic);
    for _ in 0..5 {
        rig.pass(Lifetime::millis(1));
    }
    assert_eq!(
        refused(rig.ask(clients[0], RequestBody::QueuePair(QueuePairRequest::JoinChunks))),
        Refusal::NicFailed
    );
    rig.detach(clients[1]);
    rig.nic.hook.is_broken = false;
    for _ in 0..100 {
        rig.pass(Lifetime::millis(1));
    }
    assert_eq!(join_again(&mut rig, clients[0]).held, 2, "its chunks are its own");
    assert_eq!(held(&rig).0, 2, "those of the client that has gone meanwhile are free");
    rig.end();
}

#[test]
fn a_client_that_goes_while_the_pool_is_rebuilt_leaves_nothing() {
    for turns in 0..40 {
        let mut rig = Rig::new(config());
        let clients = [rig.attach("red"), rig.attach("blue")];
        for client in clients {
            join(&mut rig, client);
            ask_for(&mut rig, client, 3);
        }
        rig.settle();
        rig.detach(clients[0]);
        for _ in 0..turns {
            rig.turn();
        }
        rig.node.dangerous_break_worker(&mut rig.nic);
        rig.detach(clients[1]);
        for _ in 0..50 {
            rig.pass(Lifetime::millis(1));
        }
        assert_eq!((held(&rig).0, rig.node.counters().chunk_rebuilds), (0, 1), "after {turns} turns");
        rig.end();
    }
}

const MANY: u64 = 64;
const READY: u64 = 4;

fn sized() -> NodeConfig {
    let chunks = ChunkLimits { chunks: MANY, chunk_bytes: 8192, client_max: MANY };
    NodeConfig { chunks: Some(chunks), chunks_ready: Some(READY), ..config() }
}

/// Gives the node turns to read the records, and to act on them.
fn look(rig: &mut Rig) {
    for _ in 0..10 {
        rig.pass(Lifetime::millis(2));
    }
}

#[test]
fn the_node_holds_chunks_that_nobody_needs_and_gives_them_back_when_few_are_ready() {
    let mut rig = Rig::new(sized());
    look(&mut rig);
    let aside = |rig: &Rig| rig.node.counters().chunks_set_aside;
    assert_eq!(aside(&rig), MANY - 2 * READY);
    let client = rig.attach("red");
    join(&mut rig, client);
    for round in 1..=MANY / READY {
        ask_for(&mut rig, client, 4);
        look(&mut rig);
        assert_eq!(held(&rig), (READY * round, READY * round), "the node's own are not counted");
        let ready = MANY - READY * round - aside(&rig);
        assert!(aside(&rig) == 0 || (READY..=2 * READY).contains(&ready), "{ready} are ready");
    }
    assert_eq!(aside(&rig), 0);
    rig.detach(client);
    // The client's chunks are freed one after the other.
    (0..MANY).for_each(|_| look(&mut rig));
    assert_eq!((held(&rig).0, aside(&rig)), (0, MANY - 2 * READY));
    let of_node = |record: &portcullis_node::AuditRecord| record.chunk.is_some() && record.client.is_none();
    assert_eq!(std::iter::from_fn(|| rig.node.poll_audit()).filter(of_node).count(), 0);
    rig.end();
}

#[test]
fn chunks_that_go_up_and_down_a_little_stay_ready() {
    let mut rig = Rig::new(sized());
    let client = rig.attach("red");
    join(&mut rig, client);
    look(&mut rig);
    let before = rig.node.counters().chunks_set_aside;
    for _ in 0..50 {
        ask_for(&mut rig, client, 3);
        look(&mut rig);
        rig.detach(client);
        assert_eq!(rig.attach("red"), client);
        join(&mut rig, client);
        look(&mut rig);
        assert_eq!(rig.node.counters().chunks_set_aside, before);
    }
    rig.end();
}

#[test]
fn a_pool_that_is_rebuilt_while_the_node_takes_and_gives_loses_nothing() {
    for turns in 0..60 {
        let mut rig = Rig::new(sized());
        let client = rig.attach("red");
        join(&mut rig, client);
        for _ in 0..turns {
            rig.now = rig.now.after(Lifetime::micros(60));
            rig.turn();
        }
        rig.node.dangerous_break_worker(&mut rig.nic);
        look(&mut rig);
        assert_eq!(rig.node.counters().chunk_rebuilds, 1, "after {turns} turns");
        assert_eq!(rig.node.counters().chunks_set_aside, MANY - 2 * READY, "after {turns} turns");
        join_again(&mut rig, client);
        for _ in 0..16 {
            ask_for(&mut rig, client, 4);
            look(&mut rig);
        }
        assert_eq!(held(&rig).0, MANY, "after {turns} turns");
        rig.end();
    }
}

/// A configuration in which the NIC hands out no chunks.
fn by_cpu() -> NodeConfig {
    NodeConfig { chains: false, ..config() }
}

fn allocate_chunk(rig: &mut Rig, client: usize) -> Result<Granted, Refusal> {
    match rig.ask(client, RequestBody::Grant(GrantRequest::AllocateChunk)) {
        ReplyBody::Granted(granted) => Ok(granted),
        other => Err(refused(other)),
    }
}

#[test]
fn where_the_nic_has_no_chains_the_nodes_cpu_hands_chunks_out_with_the_same_promises() {
    // Memory that was freed is used again at once.
    let mut rig = Rig::new(NodeConfig { reductions: Reductions::none(), ..by_cpu() });
    let (red, sibling) = (rig.attach("red"), rig.attach("red"));
    assert_eq!(allocate_chunk(&mut rig, red), Err(Refusal::NoChunks), "it has not joined");
    let terms = join(&mut rig, red);
    assert_eq!((terms.chunks, terms.chunk_bytes, terms.by), (CHUNKS, 64, HandedOutBy::Cpu));
    assert_eq!(
        refused(rig.ask(red, RequestBody::QueuePair(QueuePairRequest::JoinChunks))),
        Refusal::Malformed
    );
    let chunk = allocate_chunk(&mut rig, red).expect("a chunk");
    let (rkey, address) = (crate::rig::keys(&chunk).0, chunk.address().0);
    assert_eq!(rig.write(red, rkey, address, &[7; 64]), Status::Success);
    // The chunk has no deadline, and no other client can have it.
    rig.pass(Lifetime::seconds(1_000_000));
    assert_eq!(rig.read(red, rkey, address, 64), (Status::Success, vec![7; 64]));
    let other = rig.ask(sibling, crate::rig::acquire(chunk.object, Sharing::Exclusive, Lifetime(0)));
    assert_eq!(refused(other), Refusal::Conflict);
    assert_eq!(held(&rig), (1, 1));
    let report = rig.node.clients(rig.now);
    assert_eq!(report.iter().map(|it| it.chunks).collect::<Vec<_>>(), [1, 0]);
    rig.revoke(red, chunk.permission);
    assert_eq!(held(&rig), (0, 1));
    // The same client gets the same memory, as zeros, once all other memory was used.
    let again = (0..10_000).find_map(|_| {
        let chunk = allocate_chunk(&mut rig, red).expect("a chunk");
        if chunk.address().0 == address {
            return Some(chunk);
        }
        rig.revoke(red, chunk.permission);
        None
    });
    let again = again.expect("memory is used again");
    assert_eq!(rig.read(red, crate::rig::keys(&again).0, address, 64), (Status::Success, vec![0; 64]));
    assert_eq!(rig.read(red, rkey, address, 64).0, Status::RemoteAccessError, "the key before");
    rig.end();
}

#[test]
fn chunks_of_the_nodes_cpu_have_the_quotas_of_those_of_its_nic_and_end_with_the_client() {
    let (mut rig, clients) = sharers_of_a_quota(by_cpu());
    for _ in 0..2 {
        allocate_chunk(&mut rig, clients[1]).expect("a chunk");
    }
    assert_eq!(allocate_chunk(&mut rig, clients[1]), Err(Refusal::Quota { used: 2, limit: 2 }));
    for _ in 0..CHUNKS - 2 {
        allocate_chunk(&mut rig, clients[0]).expect("a chunk");
    }
    assert_eq!(allocate_chunk(&mut rig, clients[3]), Err(Refusal::OutOfMemory { size: 64 }));
    rig.detach(clients[0]);
    rig.settle();
    assert_eq!(held(&rig), (2, CHUNKS));
    allocate_chunk(&mut rig, clients[3]).expect("what the other had");
    rig.end();
}

#[test]
fn nobody_asks_for_a_permission_with_the_lifetime_of_a_chunk() {
    let mut rig = Rig::new(by_cpu());
    let client = rig.attach("red");
    join(&mut rig, client);
    let RequestBody::Grant(GrantRequest::Allocate(Allocate {
        size, alignment, rights, sharing, keep, ..
    })) = crate::rig::allocate(64, false)
    else {
        panic!("it allocates")
    };
    let for_ever = RequestBody::Grant(GrantRequest::Allocate(Allocate {
        size,
        alignment,
        lifetime: Lifetime(u64::MAX),
        rights,
        sharing,
        keep,
    }));
    let longest = rig.node.config().longest_lifetime;
    assert_eq!(refused(rig.ask(client, for_ever)), Refusal::LifetimeTooLong { longest });
    assert_eq!(held(&rig), (0, 0));
    rig.end();
}
