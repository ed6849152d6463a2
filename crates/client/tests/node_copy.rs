//! Mechanism `node-copy`: one-sided operations that travel as messages.

use crate::fake::node::{Reaction, release};
use crate::fake::{Fake, Handle, fake};
use portcullis_client::{Access, Allocate, Answer, Client, ClientConfig, ControlRequest, Error, Permission};
use portcullis_nic::Status;
use portcullis_protocol::{
    CopyRequest, DATA_BYTES_MAX, GrantRequest, Lifetime, Moment, Refusal, ReplyBody, RequestBody,
};

const NOW: Moment = Moment(10);
const LENGTH: u32 = 30_000;

fn start() -> (Client<Fake>, Handle, Permission) {
    start_with(u32::try_from(DATA_BYTES_MAX).unwrap())
}

/// Starts a client whose messages carry `data` bytes of data.
fn start_with(data: u32) -> (Client<Fake>, Handle, Permission) {
    let (endpoint, handle) = fake(0, 1);
    handle.world().node.by_messages = true;
    handle.world().data = data;
    let mut client = Client::new(endpoint, ClientConfig::default()).unwrap();
    let lifetime = Lifetime::millis(10);
    let call = client.call(NOW, Allocate::bytes(u64::from(LENGTH) + 8).lifetime(lifetime)).unwrap();
    client.poll(NOW);
    let Some(Ok(Answer::Granted(permission))) = client.take_call(call) else { panic!("granted") };
    (client, handle, permission)
}

fn pattern() -> Vec<u8> {
    (0..LENGTH).map(|at| (at % 251).to_le_bytes()[0]).collect()
}

fn settle(client: &mut Client<Fake>) {
    for _ in 0..100 {
        client.poll(NOW);
        if client.pending() == 0 {
            return;
        }
    }
    panic!("{client:?} hangs")
}

#[test]
fn long_accesses_are_split_and_put_together_again() {
    let (mut client, handle, permission) = start();
    let mut buffer = client.buffer(LENGTH).unwrap();
    buffer.write(0, &pattern());
    let write = client.access(NOW, Access::write(&permission, 8, buffer)).unwrap();
    let buffer = client.buffer(LENGTH).unwrap();
    let read = client.access(NOW, Access::read(&permission, 8, buffer)).unwrap();
    settle(&mut client);
    assert_eq!(client.take(write).unwrap().result, Ok(u64::from(LENGTH)));
    let outcome = client.take(read).unwrap();
    assert_eq!(outcome.result, Ok(u64::from(LENGTH)));
    let mut bytes = vec![0; LENGTH as usize];
    outcome.buffer.unwrap().read(0, &mut bytes);
    assert_eq!(bytes, pattern());
    let pieces: Vec<_> = handle.look().node.asked[1..]
        .iter()
        .map(|request| match request.body {
            RequestBody::Copy(CopyRequest::Write { offset, length, .. })
            | RequestBody::Copy(CopyRequest::Read { offset, length, .. }) => (offset, length),
            other => panic!("{other:?} is no piece"),
        })
        .collect();
    assert_eq!(pieces[..4], [(8, 8192), (8200, 8192), (16392, 8192), (24584, 5424)]);
    assert_eq!(pieces[4..], pieces[..4]);
}

#[test]
fn atomics_are_one_message_each() {
    let (mut client, _handle, permission) = start();
    let add = client.access(NOW, Access::fetch_and_add(&permission, 0, 5)).unwrap();
    let swap = client.access(NOW, Access::compare_and_swap(&permission, 0, 5, 9)).unwrap();
    let late = client.access(NOW, Access::compare_and_swap(&permission, 0, 5, 1)).unwrap();
    settle(&mut client);
    assert_eq!(client.take(add).unwrap().result, Ok(0));
    assert_eq!(client.take(swap).unwrap().result, Ok(5));
    assert_eq!(client.take(late).unwrap().result, Ok(9));
}

#[test]
fn the_first_refusal_is_the_error_and_ends_the_sending() {
    for (refusal, error) in
        [(Refusal::NotLive, Error::Revoked), (Refusal::OutsideRange, Error::Refused(Refusal::OutsideRange))]
    {
        let (mut client, handle, permission) = start();
        let say = Reaction::Say(ReplyBody::Refused(refusal));
        handle.world().node.reactions.extend([Reaction::Serve, say]);
        let buffer = client.buffer(LENGTH).unwrap();
        let read = client.access(NOW, Access::read(&permission, 0, buffer)).unwrap();
        let next = client.access(NOW, Access::fetch_and_add(&permission, 0, 1)).unwrap();
        settle(&mut client);
        let outcome = client.take(read).unwrap();
        assert_eq!(outcome.result, Err(error));
        assert!(outcome.buffer.is_some());
        assert_eq!(client.take(next).unwrap().result, Ok(0));
    }
}

#[test]
fn a_short_answer_is_not_passed_on_as_data() {
    let (mut client, handle, permission) = start();
    handle.world().node.reactions.push_back(Reaction::Say(ReplyBody::Data(64)));
    let buffer = client.buffer(64).unwrap();
    let read = client.access(NOW, Access::read(&permission, 0, buffer)).unwrap();
    settle(&mut client);
    assert_eq!(client.take(read).unwrap().result, Err(Error::SessionLost));
}

#[test]
fn many_operations_share_few_slots_in_order() {
    let (mut client, handle, permission) = start();
    handle.world().node.hold = true;
    let mut batch = client.batch();
    let operations: Vec<_> =
        (0..100).map(|_| batch.access(NOW, Access::fetch_and_add(&permission, 0, 1)).unwrap()).collect();
    assert_eq!(batch.post(), 100);
    release(&mut handle.world());
    settle(&mut client);
    for (value, operation) in (0..).zip(operations) {
        assert_eq!(client.take(operation).unwrap().result, Ok(value));
    }
}

#[test]
fn an_extension_is_a_message() {
    let (mut client, handle, permission) = start();
    let call = client.call(NOW, ControlRequest::extend(&permission, Lifetime::millis(20))).unwrap();
    settle(&mut client);
    assert!(matches!(client.take_call(call), Some(Ok(Answer::Extended(Lifetime(20_000))))));
    assert_eq!(permission.lease().lifetime(), Lifetime::millis(20));
    assert!(matches!(
        handle.look().node.asked.last().unwrap().body,
        RequestBody::Grant(GrantRequest::Extend { .. })
    ));
}

#[test]
fn when_the_node_is_gone_half_sent_operations_end_too() {
    let (mut client, handle, permission) = start();
    handle.world().node.hold = true;
    let buffers: Vec<_> = (0..3).map(|_| client.buffer(LENGTH).unwrap()).collect();
    let operations: Vec<_> = buffers
        .into_iter()
        .map(|buffer| client.access(NOW, Access::read(&permission, 0, buffer)).unwrap())
        .collect();
    client.node_gone();
    assert_eq!(client.poll(NOW), 3);
    assert!(operations.into_iter().all(|it| client.take(it).unwrap().result == Err(Error::NodeGone)));
}

#[test]
fn messages_without_room_for_data_carry_atomics_alone() {
    let (mut client, handle, permission) = start_with(0);
    let buffer = client.buffer(8).unwrap();
    let rejected = client.access(NOW, Access::read(&permission, 0, buffer)).unwrap_err();
    assert_eq!(rejected.error, Error::LocalFault(Status::LocalLengthError));
    let added = client.access(NOW, Access::fetch_and_add(&permission, 0, 5)).expect("atomics need no room");
    settle(&mut client);
    assert!(client.take(added).unwrap().result.is_ok());
    let asked = &handle.look().node.asked[1..];
    assert!(
        matches!(asked, [it] if matches!(it.body, RequestBody::Copy(CopyRequest::FetchAndAdd { .. }))),
        "once: {asked:?}"
    );
}
