//! Messages of a hostile client over its connection.

use crate::attacker::Attacker;
use crate::rig::{BLUE, LONG, RED, Rig, config, goes_on, wait_for};
use portcullis::{
    Allocate, ChunkLimits, Keep, Lifetime, Mechanism, NodeConfig, ObjectName, Part, Refusal, Rights, Sharing,
};
use portcullis_attach::tls::conversation::{ClientSays, Frames, NodeSays, VERSION, framed};
use portcullis_onerma::Action;
use portcullis_protocol::{
    Acquire, CopyRequest, GrantRequest, Holders, MESSAGE_BYTES, QueuePairRequest, ReplyBody, Request,
    RequestBody,
};
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

fn free_nothing() -> RequestBody {
    RequestBody::Grant(GrantRequest::Free {
        object: ObjectName::Address(portcullis::RemoteAddress(0)),
        holders: Holders::Stay,
    })
}

fn hello() -> Vec<u8> {
    framed(&ClientSays::Hello { version: VERSION }.encode())
}

/// Returns the connection of an attached client.
fn attached(rig: &Rig) -> TcpStream {
    let mut stream = TcpStream::connect(rig.place(RED)).expect("the node listens");
    stream.set_read_timeout(Some(LONG)).expect("set");
    stream.write_all(&hello()).expect("sent");
    let (mut frames, mut bytes) = (Frames::default(), [0; 512]);
    loop {
        let there = stream.read(&mut bytes).expect("the node answers");
        assert!(there > 0, "the node lets it in");
        if let Some(message) = frames.take_in(&bytes[..there]).expect("a frame") {
            assert!(matches!(NodeSays::parse(&message), Some(NodeSays::OneShots { .. })));
            return stream;
        }
    }
}

fn assert_hung_up(mut stream: TcpStream) {
    stream.set_read_timeout(Some(LONG)).expect("set");
    loop {
        match stream.read(&mut [0; 512]) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn whoever_says_what_is_no_message_is_hung_up_on_and_others_are_not() {
    let rig = Rig::new();
    let mut honest = rig.honest(BLUE);
    let whole = Request { sequence: 7, body: free_nothing() }.encode();
    let mut random = StdRng::seed_from_u64(1);
    for length in [0, 1, 2, MESSAGE_BYTES - 1, MESSAGE_BYTES + 1, 4096, 4097, 65_535] {
        let mut bytes = whole.to_vec();
        bytes.resize(length, 0);
        // The frame claims this length, even if no frame may have it.
        let length = u16::try_from(length).expect("it is short").to_le_bytes();
        let mut stream = attached(&rig);
        stream.write_all(&[&length[..], &bytes].concat()).expect("sent");
        assert_hung_up(stream);
    }
    for _ in 0..20 {
        let mut bytes = vec![0; random.random_range(2..2000)];
        random.fill_bytes(&mut bytes);
        // This bit makes every length that the frame claims too long.
        bytes[1] |= 0x20;
        let mut stream = attached(&rig);
        stream.write_all(&bytes).expect("sent");
        assert_hung_up(stream);
    }
    let mut attacker = Attacker::attach(&rig.place(RED));
    for _ in 0..200 {
        let mut message = [0; MESSAGE_BYTES];
        random.fill_bytes(&mut message);
        // The node answers the message, whatever its meaning.
        assert!(attacker.say(&message).is_some());
    }
    goes_on(&honest);
    honest.stop();
    drop((attacker, honest));
    rig.assert_empty();
}

#[test]
fn whoever_dies_at_any_step_of_its_attach_leaves_nothing() {
    let rig = Rig::new();
    let hello = hello();
    for cut in 0..=hello.len() {
        let mut stream = TcpStream::connect(rig.place(RED)).expect("the node listens");
        stream.write_all(&hello[..cut]).expect("sent");
    }
    // The node hangs up on a peer that sends a message out of turn.
    let mut stream = TcpStream::connect(rig.place(RED)).expect("the node listens");
    stream.write_all(&[&hello[..], &hello[..]].concat()).expect("sent");
    assert_hung_up(stream);
    rig.assert_empty();
}

#[test]
fn whoever_asks_more_than_its_terms_allow_is_shown_out_at_once_although_the_node_has_nothing_else_to_do() {
    let rig = Rig::new();
    let mut holder = rig.session(RED);
    let held = holder.allocate(Allocate::bytes(64).keep().lifetime(Lifetime::seconds(9))).expect("memory");
    let mut attacker = Attacker::attach(&rig.place(RED));
    let (lifetime, wait) = (Lifetime::seconds(1), Lifetime::seconds(9));
    let (rights, sharing) = (Rights::all(), Sharing::Exclusive);
    let object = held.object().into();
    let body = RequestBody::Grant(GrantRequest::Acquire(Acquire {
        object,
        part: Part::WHOLE,
        lifetime,
        rights,
        sharing,
        wait,
    }));
    let depth = attacker.control_depth;
    for sequence in 0..depth {
        attacker.talk.say(&Request { sequence, body }.encode());
    }
    wait_for("all to wait", || rig.host.counters().postponed == u64::from(depth));
    let turns = rig.host.counters().turns;
    wait_for("the engine to have nothing to do", || rig.host.counters().turns > turns + 10);
    attacker.talk.say(&Request { sequence: depth, body }.encode());
    wait_for("the node to hang up", || attacker.talk.hear().is_none() && !attacker.talk.is_alive());
    wait_for("nobody to wait", || rig.host.counters().postponed == 0);
    holder.revoke_and_free(held).expect("it has not ended");
    drop((holder, attacker));
    rig.assert_empty();
}

/// The messages are for clients with queue pairs, for chunks, or for another mechanism.
#[test]
fn messages_that_make_no_sense_for_such_a_client_are_refused_and_harm_nobody() {
    let limits = ChunkLimits { chunks: 8, chunk_bytes: 64, client_max: 8 };
    for (mechanism, chunks, chains) in [
        (Mechanism::MemoryWindow, None, true),
        (Mechanism::NodeCopy, None, true),
        (Mechanism::MemoryWindow, Some(limits), true),
        (Mechanism::MemoryWindow, Some(limits), false),
    ] {
        let rig = Rig::with(NodeConfig { mechanism, chunks, chains, ..config() }, |_| {});
        let mut attacker = Attacker::attach(&rig.place(RED));
        let own = attacker.allocate(64, Rights::all());
        let permission = own.permission;
        let refused = |reply: ReplyBody| matches!(reply, ReplyBody::Refused(_));
        for queue_pair in [0, 1, u32::MAX] {
            assert_eq!(
                attacker.ask(RequestBody::QueuePair(QueuePairRequest::Recover { queue_pair })),
                ReplyBody::Refused(Refusal::Malformed)
            );
        }
        for (offset, length) in [(0, 8), (0, 64), (0, u64::MAX), (u64::MAX, 8)] {
            assert!(refused(attacker.ask(RequestBody::Copy(CopyRequest::Read {
                permission,
                offset,
                length
            }))));
            assert!(refused(attacker.ask(RequestBody::Copy(CopyRequest::Write {
                permission,
                offset,
                length
            }))));
        }
        for offset in [1, 64, u64::MAX] {
            assert!(refused(attacker.ask(RequestBody::Copy(CopyRequest::FetchAndAdd {
                permission,
                offset,
                add: 1
            }))));
        }
        if chunks.is_none() || chains {
            assert!(refused(attacker.ask(RequestBody::QueuePair(QueuePairRequest::JoinChunks))));
            assert!(refused(attacker.ask(RequestBody::Grant(GrantRequest::AllocateChunk))));
        } else {
            // The node's CPU hands out chunks to every client that requests them; a second request to join is refused.
            let _ = attacker.ask(RequestBody::QueuePair(QueuePairRequest::JoinChunks));
            assert!(refused(attacker.ask(RequestBody::QueuePair(QueuePairRequest::JoinChunks))));
            let _ = attacker.ask(RequestBody::Grant(GrantRequest::AllocateChunk));
        }
        let to = attacker.to(&own);
        let status = attacker.try_operation(&to, own.address().0, Action::Read(64));
        assert_eq!(status, portcullis_onerma::Status::Ok, "it is served all the same");
        drop(attacker);
        rig.assert_empty();
    }
}

#[test]
fn whoever_hangs_up_with_everything_under_way_leaves_nothing() {
    let rig = Rig::new();
    let mut honest = rig.honest(BLUE);
    for round in 0..12u32 {
        let mut attacker = Attacker::attach(&rig.place(RED));
        let own = attacker.allocate(1 << 16, Rights::all());
        let to = attacker.to(&own);
        for _ in 0..round * 8 {
            attacker.begin(&to, own.address().0, Action::Read(4096));
            attacker.begin(&to, own.address().0, Action::Write(vec![1; 4096]));
        }
        attacker.send();
        let (lifetime, sharing) = (Lifetime::seconds(9), Sharing::Exclusive);
        for keep in [Keep::Attached, Keep::No] {
            let rights = Rights::all();
            let body = RequestBody::Grant(GrantRequest::Allocate(Allocate {
                size: 1 << 16,
                alignment: 0,
                lifetime,
                rights,
                sharing,
                keep,
            }));
            attacker.talk.say(&Request { sequence: 0, body }.encode());
        }
        drop(attacker);
    }
    goes_on(&honest);
    honest.stop();
    drop(honest);
    rig.assert_empty();
}
