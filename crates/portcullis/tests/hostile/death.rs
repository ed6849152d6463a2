//! Clients that die at each step of their work.

use crate::attach_connection::{AttachConnection, hello};
use crate::attacker::{DATA, key};
use crate::child::{self, Child};
use crate::rig::{BLUE, RED, Rig, descriptors, lenient, random, wait_for};
use portcullis::{
    Acquire, Allocate, ChunkLimits, ChunkOptions, Lifetime, NodeConfig, NotAllAllocated, Rights, Rkey,
    SessionOptions, Sharing, connect,
};
use portcullis_nic::{Operation, RemoteSpan};
use portcullis_protocol::{GrantRequest, Keep, ObjectRef, Part, ReplyBody, Request, RequestBody};
use rand::RngExt;

/// Number of deaths at each step.
const DEATHS: u32 = 12;
/// Number of chunks of the node. One client may hold all of them.
const CHUNKS: usize = 64;
const CHUNK_BYTES: usize = 256;

#[test]
fn whoever_dies_on_its_way_in_leaves_nothing() {
    let rig = Rig::new();
    let before = descriptors();
    for _ in 0..DEATHS {
        drop(AttachConnection::connect(&rig.socket(RED)));
        AttachConnection::connect(&rig.socket(RED)).say(&hello(4096));
        let connection = AttachConnection::connect(&rig.socket(RED));
        connection.say(&hello(4096));
        drop(connection.hear());
        drop(connection);
        drop(AttachConnection::attach(&rig.socket(RED)));
    }
    wait_for("descriptors to come back", || descriptors() <= before);
    rig.clear();
}

#[test]
fn whoever_dies_with_requests_under_way_leaves_nothing() {
    let rig = Rig::new();
    for round in 0..DEATHS {
        let mut attacker = rig.attacker();
        let own = attacker.allocate(1 << 20, Sharing::Exclusive);
        let remote = RemoteSpan { address: own.address(), rkey: Rkey(key(own.credential)) };
        let local = attacker.local(DATA, 1 << 20);
        for _ in 0..round {
            attacker.post(0, 0, Operation::Read { local, remote });
            attacker.post(1, 0, Operation::Write { local, remote });
        }
        let (rights, sharing, lifetime) = (Rights::all(), Sharing::Exclusive, Lifetime::seconds(10));
        for keep in [Keep::Attached, Keep::No] {
            let body = RequestBody::Grant(GrantRequest::Allocate(Allocate {
                size: 300_000,
                alignment: 0,
                lifetime,
                rights,
                sharing,
                keep,
            }));
            attacker.say(&Request { sequence: 0, body }.encode(), keep == Keep::Attached);
        }
        // The socket closes together with everything else, in the middle of the transfers.
        drop(attacker);
    }
    rig.clear();
}

#[test]
fn whoever_dies_while_it_waits_or_holds_leaves_the_way_free() {
    let rig = Rig::new();
    let mut session = rig.host.connect(RED, SessionOptions::default()).expect("a session");
    let object = session.allocate(Allocate::bytes(4096).keep()).expect("memory");
    let reference = object.object();
    session.revoke(object).expect("it has not ended");
    for _ in 0..DEATHS {
        let (mut holder, mut waiter) = (rig.attacker(), rig.attacker());
        let wait = Lifetime::seconds(9);
        let (lifetime, rights, sharing) = (Lifetime::seconds(10), Rights::all(), Sharing::Exclusive);
        let object = reference.into();
        let body = RequestBody::Grant(GrantRequest::Acquire(Acquire {
            object,
            part: Part::WHOLE,
            lifetime,
            rights,
            sharing,
            wait,
        }));
        assert!(matches!(holder.ask(body), ReplyBody::Granted(_)));
        assert!(waiter.say(&Request { sequence: 0, body }.encode(), true));
        wait_for("somebody to wait", || rig.host.counters().postponed == 1);
        drop(waiter);
        wait_for("nobody to wait", || rig.host.counters().postponed == 0);
        drop(holder);
        let next =
            session.acquire(Acquire::object(reference).wait(Lifetime::seconds(5))).expect("the way is free");
        session.revoke(next).expect("it has not ended");
    }
    session.free(reference).expect("it is the tenant's");
    drop(session);
    rig.clear();
}

/// Not a test: the program of a child, which works until it is killed.
#[test]
fn a_child_that_works_until_it_is_killed() {
    let Some(socket) = child::path() else { return };
    let mut attacker = crate::attacker::Attacker::attach(&socket);
    let rights = Rights::all();
    let (lifetime, sharing) = (Lifetime::seconds(10), Sharing::Exclusive);
    let kept = attacker.ask(RequestBody::Grant(GrantRequest::Allocate(Allocate {
        size: 1 << 20,
        alignment: 0,
        lifetime,
        rights,
        sharing,
        keep: Keep::Attached,
    })));
    let ReplyBody::Granted(own) = kept else { panic!("no memory: {kept:?}") };
    child::say_ready(own.object);
    let remote = RemoteSpan { address: own.address(), rkey: Rkey(key(own.credential)) };
    let write = Operation::Write { local: attacker.local(DATA, 1 << 20), remote };
    loop {
        attacker.post(0, 0, write);
        attacker.post(1, 0, write);
        attacker.allocate(64, Sharing::Shared);
    }
}

#[test]
fn a_killed_process_loses_what_it_held_at_once() {
    let rig = Rig::new();
    for _ in 0..4 {
        let mut session = rig.host.connect(RED, SessionOptions::default()).expect("a session");
        let (child, object) = Child::start("death::a_child_that_works_until_it_is_killed", &rig.socket(RED));
        child.kill();
        let object: ObjectRef = object.parse().expect("a reference");
        let ask = Acquire::object(object).wait(Lifetime::seconds(5));
        let next = session.acquire(ask).expect("free long before its lease is over");
        session.write(&next, 0, &[7; 4096]).expect("exclusively");
        session.revoke_and_free(next).expect("it has not ended");
    }
    rig.clear();
}

/// Not a test: the program of a child, which allocates chunks, writes into them and frees them until it is killed.
#[test]
fn a_child_that_allocates_chunks_until_it_is_killed() {
    let Some(socket) = child::path() else { return };
    let address = format!("shm:{}", socket.display());
    let mut session = connect(&address).expect("a session");
    let mut chunks = session.chunks(ChunkOptions::default()).expect("workers");
    child::say_ready("chunks");
    let mut held = Vec::new();
    for round in 0.. {
        match chunks.allocate_many(&mut session, 1 + round % 9) {
            Ok(more) | Err(NotAllAllocated { chunks: more, .. }) => held.extend(more),
        }
        for chunk in &held {
            session.write(chunk, 0, &[0xee; CHUNK_BYTES]).expect("the child holds the chunk");
        }
        let some = held.split_off(held.len() / 2);
        chunks.free_many(&mut session, some).expect("the child holds the chunks");
    }
}

#[test]
fn a_process_that_is_killed_among_its_chunks_leaves_all_of_them_free_and_none_of_its_bytes() {
    let (chunks, chunk_bytes) = (CHUNKS as u64, CHUNK_BYTES as u64);
    let limits = ChunkLimits { chunks, chunk_bytes, client_max: chunks };
    for chains in [true, false] {
        let rig = Rig::with(NodeConfig { chunks: Some(limits), chains, ..lenient() }, &[BLUE]);
        let mut dice = random();
        for _ in 0..DEATHS / 2 {
            let program = "death::a_child_that_allocates_chunks_until_it_is_killed";
            let (child, _) = Child::start(program, &rig.socket(RED));
            let until = rig.host.counters().chunk_allocations + dice.random_range(1..1000);
            wait_for("the child to allocate", || rig.host.counters().chunk_allocations >= until);
            child.kill();
            wait_for("all chunks to be free", || rig.host.counters().chunks_held == 0);
            let mut session = rig.session(BLUE);
            session.join_chunks().expect("workers");
            let all = session.allocate_chunks(CHUNKS).expect("no chunk is lost");
            for chunk in &all {
                let mut bytes = [1; CHUNK_BYTES];
                session.read(chunk, 0, &mut bytes).expect("a chunk of the next holder");
                assert_eq!(bytes, [0; CHUNK_BYTES], "the killed child's bytes");
            }
            session.free_chunks(all).expect("they are the session's");
        }
        rig.clear();
    }
}
