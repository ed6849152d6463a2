//! Messages that carry several requests.

use crate::rig::{Rig, acquire, allocate, config, free};
use portcullis_node::NodeConfig;
use portcullis_protocol::{
    CopyRequest, GrantRequest, Lifetime, MESSAGE_BYTES, Mechanism, ObjectRef, PACKED_HEAD_BYTES, Refusal,
    ReplyBody, Request, RequestBody, Sharing,
};

/// Requests of a packed message in these tests. A turn takes fewer.
const REQUESTS: usize = 60;

fn rig() -> Rig {
    Rig::new(NodeConfig { requests_per_turn: 16, ..config() })
}

/// Allocates kept objects that have no holders.
fn objects(rig: &mut Rig, client: usize, count: usize) -> Vec<ObjectRef> {
    (0..count).map(|_| rig.keep(client).object).collect()
}

fn malformed() -> ReplyBody {
    ReplyBody::Refused(Refusal::Malformed)
}

#[test]
fn each_request_of_a_message_has_its_own_outcome() {
    let mut rig = rig();
    let client = rig.attach("a");
    let objects = objects(&mut rig, client, REQUESTS);
    let before = (rig.node.counters().control_messages, rig.seat(client).messages);
    let wanted: Vec<_> = objects.iter().map(|&it| acquire(it, Sharing::Exclusive, Lifetime(0))).collect();
    // The second request for an object is refused: the first has it.
    let twice: Vec<_> = wanted.iter().flat_map(|&it| [it, it]).take(REQUESTS).collect();
    let numbers = rig.send_packed(client, &twice);
    rig.settle();
    for (at, number) in numbers.into_iter().enumerate() {
        let reply = rig.reply(client, number).expect("each request is answered");
        match reply {
            ReplyBody::Granted(granted) if at % 2 == 0 => assert_eq!(granted.object, objects[at / 2]),
            ReplyBody::Refused(_) if at % 2 == 1 => {}
            reply => panic!("{at}: {reply:?}"),
        }
    }
    let messages = rig.seat(client).messages - before.1;
    assert!((1..REQUESTS / 4).contains(&(messages as usize)), "the replies take {messages} messages");
    assert_eq!(rig.node.counters().control_messages - before.0, 1);
    rig.end();
}

#[test]
fn a_client_whose_messages_carry_many_requests_does_not_delay_the_others() {
    let mut rig = rig();
    let (many, one) = (rig.attach("a"), rig.attach("b"));
    let objects = objects(&mut rig, many, REQUESTS);
    let frees: Vec<_> = objects.iter().map(|&it| free(it)).collect();
    let numbers = rig.send_packed(many, &frees);
    rig.deliver();
    let single = rig.send(one, allocate(64, false));
    rig.deliver();
    let mut turns = 0;
    while rig.reply(one, single).is_none() {
        rig.turn();
        turns += 1;
        assert!(turns < 20, "the single request is answered");
    }
    let last = *numbers.last().expect("there are some");
    assert_eq!(rig.reply(many, last), None, "{turns} turns");
    rig.settle();
    assert_eq!(rig.reply(many, last), Some(ReplyBody::Done));
    rig.end();
}

/// The node takes one request a turn, and always has new messages. From a client without receives it gets no completions
/// of replies between them.
#[test]
fn neither_single_messages_nor_packed_ones_keep_the_other_waiting() {
    for is_deaf in [false, true] {
        let mut rig = Rig::new(NodeConfig { requests_per_turn: 1, ..config() });
        let (many, one) = (rig.attach("a"), rig.attach("b"));
        let objects = objects(&mut rig, many, REQUESTS);
        rig.seat(one).is_deaf = is_deaf;
        for _ in 0..16 {
            rig.send(one, free(objects[0]));
            rig.settle();
        }
        let frees: Vec<_> = objects.iter().map(|&it| free(it)).collect();
        let before = rig.node.counters().control_messages;
        let mut packed = rig.send_packed(many, &frees);
        let (mut sent, mut answered_at, mut turns) = (0, 0, 0);
        let singles = |rig: &Rig| (rig.node.counters().control_messages - before).saturating_sub(1);
        while !packed.is_empty() {
            while sent < singles(&rig) + 8 {
                rig.send(one, free(objects[0]));
                sent += 1;
            }
            rig.deliver();
            rig.turn();
            turns += 1;
            let count = packed.len();
            packed.retain(|&number| rig.reply(many, number).is_none());
            answered_at = if packed.len() < count { turns } else { answered_at };
            assert!(turns - answered_at < 6, "{} packed requests wait", packed.len());
        }
        let taken = singles(&rig);
        assert!(taken > 8, "{taken} single requests in {turns} turns");
        rig.settle();
        rig.end();
    }
}

#[test]
fn requests_are_carried_out_in_the_order_in_which_they_were_sent() {
    let mut rig = rig();
    let client = rig.attach("a");
    let objects = objects(&mut rig, client, REQUESTS);
    let last = *objects.last().expect("there are some");
    let frees: Vec<_> = objects.iter().map(|&it| free(it)).collect();
    rig.send_packed(client, &frees);
    let later = rig.send(client, acquire(last, Sharing::Exclusive, Lifetime(0)));
    rig.settle();
    assert_eq!(rig.reply(client, later), Some(ReplyBody::Refused(Refusal::Gone)));
    rig.end();
}

#[test]
fn a_client_that_leaves_in_the_middle_of_a_message_leaves_nothing() {
    for turns in 0..4 {
        let mut rig = rig();
        let (leaver, other) = (rig.attach("a"), rig.attach("a"));
        rig.send_packed(leaver, &[allocate(64, true); REQUESTS]);
        rig.deliver();
        for _ in 0..turns {
            rig.turn();
        }
        rig.detach(leaver);
        rig.settle();
        let it = rig.allocate(other, 64, false);
        rig.revoke(other, it.permission);
        rig.end();
    }
}

#[test]
fn a_record_that_means_nothing_is_refused_by_its_number_and_the_others_are_served() {
    let mut rig = rig();
    let client = rig.attach("a");
    let request = |sequence| Request { sequence, body: allocate(64, false) }.encode();
    let mut bytes = packed(&[request(1001), request(1002), request(1003)]);
    bytes[PACKED_HEAD_BYTES + MESSAGE_BYTES / 2] = 0xee;
    rig.seat(client).send_raw(&bytes);
    rig.settle();
    let mut replies: Vec<_> = std::iter::from_fn(|| rig.unmatched(client)).collect();
    replies.sort_by_key(|reply| reply.sequence);
    assert!(matches!(replies[0].body, ReplyBody::Granted(_)), "{:?}", replies[0]);
    assert_eq!((replies[1].sequence, replies[1].body), (1002, malformed()));
    assert!(matches!(replies[2].body, ReplyBody::Granted(_)), "{:?}", replies[2]);
    rig.end();
}

#[test]
fn a_message_that_cannot_be_taken_apart_is_refused_whole() {
    let mut rig = rig();
    let client = rig.attach("a");
    let request = |sequence| Request { sequence, body: allocate(64, false) }.encode();
    let bytes = packed(&[request(1001), request(1002)]);
    let cut = &bytes[..bytes.len() - 1];
    let mut more = bytes.clone();
    more[4] = 3;
    let mut nested = bytes.clone();
    nested.copy_within(..PACKED_HEAD_BYTES, PACKED_HEAD_BYTES);
    for (message, refusals) in [(cut, 1), (&more, 1), (&nested, 1), (&bytes, 0)] {
        rig.seat(client).send_raw(message);
        rig.settle();
        let replies: Vec<_> = std::iter::from_fn(|| rig.unmatched(client)).collect();
        let refused = replies.iter().filter(|reply| reply.body == malformed()).count();
        assert_eq!(refused, refusals, "{replies:?}");
    }
    rig.end();
}

#[test]
fn a_client_that_has_packed_nothing_as_clients_do_gets_no_packed_replies() {
    let mut rig = rig();
    let client = rig.attach("a");
    let request = |sequence| Request { sequence, body: allocate(64, false) }.encode();
    let bytes = packed(&[request(1001), request(1002)]);
    rig.seat(client).send_raw(&bytes[..MESSAGE_BYTES]);
    rig.settle();
    assert_eq!(rig.unmatched(client).map(|reply| reply.body), Some(malformed()));
    let before = rig.seat(client).messages;
    let numbers = [(); 8].map(|()| rig.send(client, allocate(64, false)));
    rig.settle();
    assert!(numbers.iter().all(|&number| rig.reply(client, number).is_some()), "all are answered");
    assert_eq!(rig.seat(client).messages - before, 8, "each reply has a message of its own");
    rig.end();
}

#[test]
fn a_packed_write_has_no_data() {
    let mut rig = Rig::new(NodeConfig { mechanism: Mechanism::NodeCopy, ..config() });
    let client = rig.attach("a");
    let it = rig.allocate(client, 256, false);
    let write = RequestBody::Copy(CopyRequest::Write { permission: it.permission, offset: 0, length: 64 });
    let numbers = rig.send_packed(client, &[write, write]);
    rig.settle();
    for number in numbers {
        assert_eq!(rig.reply(client, number), Some(malformed()));
    }
    let read = RequestBody::Copy(CopyRequest::Read { permission: it.permission, offset: 0, length: 64 });
    assert_eq!(rig.ask_with(client, read, &[]), (ReplyBody::Data(64), vec![0; 64]));
    rig.end();
}

#[test]
fn an_extension_and_the_end_of_its_permission_may_share_a_message() {
    let mut rig = rig();
    let client = rig.attach("a");
    let it = rig.allocate(client, 64, false);
    let longer = GrantRequest::Extend { permission: it.permission, lifetime: Lifetime::millis(150) };
    let end = GrantRequest::Revoke { permission: it.permission, free: true };
    let numbers = rig.send_packed(client, &[longer.into(), end.into(), end.into()]);
    rig.settle();
    let replies: Vec<_> = numbers.iter().map(|&number| rig.reply(client, number)).collect();
    assert_eq!(replies[0], Some(ReplyBody::Extended(Lifetime::millis(150))));
    assert_eq!(replies[1], Some(ReplyBody::Done));
    assert_eq!(replies[2], Some(ReplyBody::Refused(Refusal::NotLive)));
    rig.end();
}

#[test]
fn a_client_may_owe_four_times_what_its_packed_messages_carry_before_it_is_evicted() {
    const CARRIED: usize = 16 * 128;
    let mut rig = rig();
    let (deaf, other) = (rig.attach("a"), rig.attach("a"));
    rig.seat(deaf).is_deaf = true;
    let id = rig.seat(deaf).id;
    let (mut evicted, mut sent) = (None, 0);
    while evicted.is_none() {
        assert!(sent < 6 * CARRIED, "a backlog has an end");
        let body = free(ObjectRef { birth: 77, ..it_of(&mut rig, other) });
        rig.send_packed(deaf, &[body; REQUESTS]);
        rig.settle();
        sent += REQUESTS;
        evicted = rig.node.poll_evicted();
    }
    assert_eq!(evicted, Some(id));
    assert!(sent > 4 * CARRIED, "evicted after {sent} requests");
    rig.end();
}

#[test]
fn replies_with_data_wait_for_a_client_that_packs_no_more_than_for_another() {
    const DEPTH: usize = 16;
    let mut rig = Rig::new(NodeConfig { mechanism: Mechanism::NodeCopy, ..config() });
    let (deaf, other) = (rig.attach("a"), rig.attach("a"));
    let object = rig.allocate(deaf, 4096, true);
    let gone = free(ObjectRef { birth: 77, ..it_of(&mut rig, other) });
    rig.send_packed(deaf, &[gone; 2]);
    rig.settle();
    rig.seat(deaf).is_deaf = true;
    let mut sent = 0;
    let read = RequestBody::Copy(CopyRequest::Read { permission: object.permission, offset: 0, length: 64 });
    let evicted = loop {
        rig.send(deaf, read);
        rig.settle();
        sent += 1;
        match rig.node.poll_evicted() {
            None => assert!(sent < 8 * DEPTH, "a backlog has an end"),
            Some(evicted) => break evicted,
        }
    };
    assert_eq!(evicted, rig.seat(deaf).id);
    assert!(sent > 4 * DEPTH, "evicted after {sent} requests");
    rig.end();
}

/// Returns an object that has ended.
fn it_of(rig: &mut Rig, client: usize) -> ObjectRef {
    let it = rig.allocate(client, 64, false);
    rig.revoke(client, it.permission);
    it.object
}

fn packed(records: &[[u8; MESSAGE_BYTES]]) -> Vec<u8> {
    let mut packing = portcullis_protocol::Packing::new(4096);
    let mut bytes = vec![0; PACKED_HEAD_BYTES];
    for record in records {
        bytes.extend(packing.add(record).expect("room").1);
    }
    bytes[..PACKED_HEAD_BYTES].copy_from_slice(&packing.head().expect("several records"));
    bytes
}
