//! Batches that wait to be resumed, and operations that are reported as ended before their outcomes are taken.

use crate::fake::{Fake, Handle, fake};
use portcullis_client::{
    Access, Allocate, Answer, Client, ClientConfig, ControlRequest, Error, Operation, Permission,
};
use portcullis_protocol::{Lifetime, Moment};

const NOW: Moment = Moment(10);

fn start() -> (Client<Fake>, Handle, Permission) {
    let (endpoint, handle) = fake(2, 16);
    let mut client = Client::new(endpoint, ClientConfig::default()).unwrap();
    let call = client.call(NOW, Allocate::bytes(4096).lifetime(Lifetime::millis(10))).unwrap();
    client.poll(NOW);
    let Some(Ok(Answer::Granted(permission))) = client.take_call(call) else { panic!("granted") };
    (client, handle, permission)
}

/// Adds a write to the waiting batch, or to a new one, and sets the batch aside.
fn add(client: &mut Client<Fake>, permission: &Permission) -> Operation {
    let buffer = client.buffer(1).unwrap();
    let mut batch = client.resume_batch();
    let operation = batch.access(NOW, Access::write(permission, 0, buffer)).unwrap();
    batch.set_aside();
    operation
}

fn ended(client: &mut Client<Fake>) -> Vec<Operation> {
    let mut ended = Vec::new();
    client.drain_ended(|operation| ended.push(operation));
    ended
}

#[test]
fn a_batch_that_was_set_aside_goes_on_where_it_was() {
    let (mut client, handle, permission) = start();
    let operations = [(); 3].map(|()| add(&mut client, &permission));
    handle.run_all();
    client.poll(NOW);
    assert!(ended(&mut client).is_empty(), "nothing was posted");
    let batch = client.resume_batch();
    assert_eq!(batch.len(), 3);
    assert_eq!(batch.post(), 3);
    handle.run_all();
    client.poll(NOW);
    assert_eq!(ended(&mut client), operations);
    assert_eq!(handle.look().signalled, 1, "the last of three reports for all");
    assert!(client.resume_batch().is_empty(), "it was posted");
}

#[test]
fn a_batch_that_was_set_aside_is_dropped_when_another_begins() {
    let (mut client, handle, permission) = start();
    add(&mut client, &permission);
    drop(client.batch());
    assert_eq!(client.pending(), 0);
    add(&mut client, &permission);
    client.call(NOW, ControlRequest::free(permission.object())).unwrap();
    assert_eq!(client.pending(), 1, "the call");
    assert!(client.resume_batch().is_empty());
    handle.run_all();
    client.poll(NOW);
    assert!(ended(&mut client).is_empty());
}

#[test]
fn what_a_batch_holds_ends_with_the_session() {
    let (mut client, _handle, permission) = start();
    let held = add(&mut client, &permission);
    client.node_gone();
    assert_eq!(ended(&mut client), [held]);
    assert!(client.take_success(held).is_none());
    assert_eq!(client.take(held).expect("an outcome").result, Err(Error::NodeGone));
    assert_eq!(client.resume_batch().post(), 0);
}

#[test]
fn outcomes_that_were_named_wait_to_be_taken() {
    let (mut client, handle, permission) = start();
    let [first, second] = [(); 2].map(|()| add(&mut client, &permission));
    assert!(client.take_success(first).is_none(), "it is not even posted");
    client.resume_batch().post();
    handle.run_all();
    client.poll(NOW);
    assert_eq!(ended(&mut client), [first, second]);
    assert!(ended(&mut client).is_empty(), "each is named once");
    let (buffer, bytes) = client.take_success(second).expect("it was carried out");
    assert_eq!((buffer.map(|buffer| buffer.len()), bytes), (Some(1), 1));
    assert!(client.take_success(second).is_none(), "it was taken");
    assert_eq!(client.take(first).expect("an outcome").result, Ok(1));
    let mut drained = Vec::new();
    client.drain(&mut drained);
    assert!(drained.is_empty());
}
