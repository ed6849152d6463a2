//! Batches and buffers that are held without a borrow of their client: misuse is a typed error.

use crate::fake::node::release;
use crate::fake::{Fake, GOOD, Handle, fake};
use portcullis_client::{Allocate, Answer, Client, ClientConfig, Error, OwnedBatch, Permission, Started};
use portcullis_protocol::{Lifetime, Moment};

const NOW: Moment = Moment(10);

fn start() -> (Client<Fake>, Handle, Permission) {
    let (endpoint, handle) = fake(1, 16);
    handle.world().node.key = Some(GOOD);
    let mut client = Client::new(endpoint, ClientConfig::default()).unwrap();
    let call = client.allocate(NOW, Allocate::bytes(64).lifetime(Lifetime::millis(10))).unwrap();
    client.poll(NOW);
    let Some(Ok(Answer::Granted(permission))) = client.take_call(call) else { panic!("granted") };
    (client, handle, permission)
}

#[test]
fn a_batch_that_was_collected_without_its_client_is_posted_with_one_doorbell() {
    let (mut client, handle, permission) = start();
    let mut batch = OwnedBatch::new();
    for offset in [0, 8, 16] {
        let buffer = client.buffer(8).unwrap();
        batch.write(&permission, offset, buffer).unwrap();
    }
    batch.fetch_and_add(&permission, 24, 7).unwrap();
    batch.allocate(Allocate::bytes(64));
    assert_eq!((batch.len(), batch.is_empty()), (5, false));
    let before = (handle.look().doorbells, handle.look().control_doorbells);
    let started = client.post(NOW, &mut batch);
    let after = (handle.look().doorbells, handle.look().control_doorbells);
    assert_eq!(after, (before.0 + 1, before.1 + 1));
    handle.run_all();
    client.poll(NOW);
    for step in started {
        match step {
            Started::Operation(begun) => assert!(client.take(begun.unwrap()).unwrap().result.is_ok()),
            Started::Call(begun) => {
                assert!(matches!(client.take_call(begun.unwrap()), Some(Ok(Answer::Granted(_)))));
            }
            Started::Revocation(_) => panic!("nothing was to be revoked"),
        }
    }
}

#[test]
fn what_expired_while_the_batch_was_held_is_not_posted_and_its_buffer_comes_back() {
    let (mut client, handle, permission) = start();
    let mut batch = OwnedBatch::new();
    batch.read(&permission, 0, client.buffer(8).unwrap()).unwrap();
    let before = handle.look().doorbells;
    let started = client.post(permission.lease().deadline(), &mut batch);
    let [Started::Operation(Err(rejected))] = &started[..] else { panic!("{started:?}") };
    assert_eq!(rejected.error, Error::Expired);
    assert!(rejected.buffer.is_some());
    assert_eq!(handle.look().doorbells, before);
}

#[test]
fn misuse_is_a_typed_error() {
    let (mut client, _handle, permission) = start();
    let (other, _) = fake(1, 16);
    let other = Client::new(other, ClientConfig::default()).unwrap();
    let mut batch = OwnedBatch::new();
    let outside = batch.read(&permission, 60, client.buffer(8).unwrap()).unwrap_err();
    assert_eq!(outside.error, Error::OutsideRange { offset: 60, length: 8, size: 64 });
    assert_eq!(batch.compare_and_swap(&permission, 4, 0, 1).unwrap_err().error, Error::Misaligned);
    batch.write(&permission, 0, other.buffer(8).unwrap()).unwrap();
    let started = client.post(NOW, &mut batch);
    let [Started::Operation(Err(foreign))] = &started[..] else { panic!("{started:?}") };
    assert_eq!(foreign.error, Error::ForeignBuffer);
    let foreign = client.read(NOW, &permission, 0, other.buffer(8).unwrap()).unwrap_err();
    assert_eq!((foreign.error, foreign.buffer.is_some()), (Error::ForeignBuffer, true));
    let mut buffer = client.buffer(8).unwrap();
    let error = Error::OutsideBuffer { offset: 4, length: 5, size: 8 };
    assert_eq!(buffer.try_read(4, &mut [0; 5]), Err(error));
    assert_eq!(buffer.try_write(4, &[0; 5]), Err(error));
    assert_eq!(buffer.try_write(4, &[1; 4]), Ok(()));
}

#[test]
fn what_there_is_no_room_for_stays_in_the_batch_in_order() {
    let (mut client, handle, permission) = start();
    let mut batch = OwnedBatch::new();
    let most = ClientConfig::default().operations_max as usize;
    for _ in 0..=most {
        batch.fetch_and_add(&permission, 0, 1).unwrap();
    }
    batch.extend(&permission, Lifetime::millis(20));
    assert_eq!(client.post(NOW, &mut batch).len(), most);
    assert_eq!(batch.len(), 2, "an operation, and the call behind it");
    assert!(client.post(NOW, &mut batch).is_empty(), "nothing has ended yet");
    handle.run_all();
    client.poll(NOW);
    let mut outcomes = Vec::new();
    client.drain(&mut outcomes);
    assert!(!outcomes.is_empty());
    assert_eq!(client.post(NOW, &mut batch).len(), 2);
    assert!(batch.is_empty());
}

#[test]
fn a_batch_that_is_dropped_has_begun_nothing_and_gives_its_buffers_back() {
    let (mut client, handle, permission) = start();
    for _ in 0..100 {
        let mut batch = OwnedBatch::new();
        batch.read(&permission, 0, client.buffer(8).unwrap()).unwrap();
        batch.read(&permission, 0, client.buffer(1 << 18).unwrap()).unwrap_err();
        drop(batch);
    }
    assert_eq!(client.pending(), 0);
    let call = client.revoke(NOW, permission, false).unwrap();
    release(&mut handle.world());
    client.poll(NOW);
    assert!(client.take_call(call).is_some());
}

#[test]
fn a_batch_extends_a_lease_as_well() {
    let (mut client, handle, permission) = start();
    let mut batch = OwnedBatch::new();
    assert_eq!((batch.len(), batch.is_empty()), (0, true));
    batch.extend(&permission, Lifetime::millis(20));
    assert_eq!((batch.len(), batch.is_empty()), (1, false));
    let started = client.post(NOW, &mut batch);
    let [Started::Call(Ok(call))] = started[..] else { panic!("{started:?}") };
    handle.run_all();
    client.poll(NOW);
    let Some(Ok(Answer::Extended(lifetime))) = client.take_call(call) else { panic!("extended") };
    assert!(lifetime >= Lifetime::millis(20), "{lifetime}");
}
