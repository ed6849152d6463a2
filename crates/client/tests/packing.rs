//! Batches whose requests share messages.

use crate::fake::node::{Reaction, deliver};
use crate::fake::{Fake, Handle, fake};
use portcullis_client::{Allocate, Answer, Call, Client, ClientConfig, ControlRequest, Error};
use portcullis_protocol::{
    Holders, Incarnation, MESSAGE_BYTES, Moment, ObjectRef, PACKED_HEAD_BYTES, Packing, Refusal,
    RemoteAddress, Reply, ReplyBody,
};

const NOW: Moment = Moment(1_000);
/// Requests of any length for which a message of the rig has room.
const PER_MESSAGE: usize = 8;

/// A client with four messages, one of which is kept for rebuilds.
fn rig() -> (Client<Fake>, Handle) {
    let (endpoint, handle) = fake(1, 4);
    handle.world().data = u32::try_from(PACKED_HEAD_BYTES + (PER_MESSAGE - 1) * MESSAGE_BYTES).unwrap();
    (Client::new(endpoint, ClientConfig::default()).unwrap(), handle)
}

fn object(birth: u64) -> ObjectRef {
    ObjectRef { incarnation: Incarnation(1), address: RemoteAddress(64), birth }
}

/// Begins a batch of short requests. Returns those for which there was room.
fn free_all(client: &mut Client<Fake>, births: std::ops::Range<u64>) -> Vec<Call> {
    let mut batch = client.batch();
    let calls = births.map_while(|birth| batch.call(NOW, ControlRequest::free(object(birth))).ok()).collect();
    batch.post();
    calls
}

fn is_done(client: &mut Client<Fake>, call: Call) -> bool {
    matches!(client.take_call(call), Some(Ok(Answer::Done)))
}

#[test]
fn a_message_carries_what_a_batch_requests_and_each_request_has_its_own_outcome() {
    let (mut client, handle) = rig();
    let gone = ReplyBody::Refused(Refusal::Gone);
    handle.world().node.reactions = [Reaction::Serve, Reaction::Say(gone), Reaction::Serve].into();
    let mut batch = client.batch();
    let first = batch.call(NOW, ControlRequest::free(object(1))).unwrap();
    let second = batch.call(NOW, ControlRequest::free(object(2))).unwrap();
    let third = batch.call(NOW, Allocate::bytes(64)).unwrap();
    batch.post();
    client.poll(NOW);
    assert!(is_done(&mut client, first));
    assert!(matches!(client.take_call(second), Some(Err(Error::Refused(Refusal::Gone)))));
    assert!(matches!(client.take_call(third), Some(Ok(Answer::Granted(_)))));
    assert_eq!((handle.look().node.messages, client.pending()), (1, 0));
}

#[test]
fn a_batch_takes_as_many_messages_as_it_needs_and_has_room_for_what_was_promised() {
    let (mut client, handle) = rig();
    assert_eq!((client.calls_per_message(), client.room_for_calls()), (PER_MESSAGE, 3 * PER_MESSAGE));
    for round in 1..=3 {
        // Short requests take half of the room.
        let calls = free_all(&mut client, 0..100);
        assert_eq!(calls.len(), 3 * 2 * PER_MESSAGE);
        client.poll(NOW);
        assert!(calls.into_iter().all(|call| is_done(&mut client, call)));
        assert_eq!((handle.look().node.messages, client.room_for_calls()), (3 * round, 3 * PER_MESSAGE));
    }
}

#[test]
fn a_full_client_names_its_room_in_calls() {
    let (mut client, handle) = rig();
    handle.world().node.hold = true;
    let calls: Vec<_> = (0..3).map(|_| client.call(NOW, Allocate::bytes(64)).unwrap()).collect();
    let full = client.call(NOW, Allocate::bytes(64)).unwrap_err();
    assert_eq!(full.error, Error::QueueFull { limit: client.calls_max() as u64 });
    assert_eq!((calls.len(), client.calls_max()), (3, 3 * PER_MESSAGE));
}

#[test]
fn requests_get_their_answers_in_any_order_and_a_message_is_free_with_the_last() {
    let (mut client, handle) = rig();
    handle.world().node.hold = true;
    let calls = free_all(&mut client, 0..5);
    client.poll(NOW);
    assert_eq!(client.room_for_calls(), 2 * PER_MESSAGE);
    let mut replies: Vec<_> = handle.world().node.held.drain(..).collect();
    replies.rotate_left(2);
    for (answered, reply) in (1..).zip(&replies) {
        deliver(&mut handle.world(), std::slice::from_ref(reply));
        client.poll(NOW);
        assert_eq!(client.pending(), 5 - answered);
        assert_eq!(client.room_for_calls() == 3 * PER_MESSAGE, answered == 5);
    }
    assert!(calls.into_iter().all(|call| is_done(&mut client, call)));
}

#[test]
fn a_batch_that_is_dropped_takes_no_room() {
    let (mut client, handle) = rig();
    for _ in 0..20 {
        let mut batch = client.batch();
        for birth in 0..20 {
            batch.call(NOW, ControlRequest::free(object(birth))).unwrap();
        }
        drop(batch);
    }
    assert_eq!((client.room_for_calls(), handle.look().node.messages), (3 * PER_MESSAGE, 0));
    let calls = free_all(&mut client, 0..100);
    client.poll(NOW);
    assert_eq!(calls.len(), 3 * 2 * PER_MESSAGE);
    assert!(calls.into_iter().all(|call| is_done(&mut client, call)));
}

#[test]
fn a_request_is_answered_once_whatever_the_node_repeats() {
    let (mut client, handle) = rig();
    handle.world().node.hold = true;
    let calls = free_all(&mut client, 0..3);
    client.poll(NOW);
    let replies: Vec<_> = handle.world().node.held.drain(..).collect();
    let repeated: Vec<_> = replies.iter().chain(&replies).cloned().collect();
    deliver(&mut handle.world(), &repeated);
    client.poll(NOW);
    assert!(calls.into_iter().all(|call| is_done(&mut client, call)));
    // The numbers of requests that are over name no later request.
    let later = free_all(&mut client, 0..3);
    deliver(&mut handle.world(), &replies);
    client.poll(NOW);
    assert_eq!((client.pending(), client.over()), (3, None));
    crate::fake::node::release(&mut handle.world());
    client.poll(NOW);
    assert!(later.into_iter().all(|call| is_done(&mut client, call)));
}

#[test]
fn a_packed_reply_that_no_node_makes_ends_the_session() {
    let replies = [1, 2].map(|sequence| Reply { sequence, body: ReplyBody::Done }.encode());
    let mut packing = Packing::new(1024);
    let mut bytes = vec![0; PACKED_HEAD_BYTES];
    for reply in &replies {
        bytes.extend(packing.add(reply).unwrap().1);
    }
    bytes[..PACKED_HEAD_BYTES].copy_from_slice(&packing.head().unwrap());
    for (at, value) in [(4, 3), (4, 1), (8, 1), (16, 1), (64, 77)] {
        let (mut client, handle) = rig();
        let call =
            client.call(NOW, ControlRequest::Free { object: object(1).into(), holders: Holders::Stay });
        client.poll(NOW);
        assert!(is_done(&mut client, call.unwrap()));
        let mut forged = bytes.clone();
        forged[at] = value;
        handle.world().deliver(&forged);
        client.poll(NOW);
        assert_eq!(client.over(), Some(Error::SessionLost), "{at}: {value}");
    }
}
