//! Accesses and requests that are held as values, without a borrow of their client: misuse is a typed error.

use crate::fake::node::release;
use crate::fake::{Fake, GOOD, Handle, fake};
use portcullis_client::{
    Access, Allocate, Answer, Ask, Begun, Client, ClientConfig, ControlRequest, Error, Permission,
    PermissionView,
};
use portcullis_nic::Endpoint;
use portcullis_protocol::{Lifetime, Moment};
use std::collections::VecDeque;

const NOW: Moment = Moment(10);

type Held = Ask<PermissionView, <Fake as Endpoint>::Memory>;

fn start() -> (Client<Fake>, Handle, Permission) {
    let (endpoint, handle) = fake(1, 16);
    handle.world().node.key = Some(GOOD);
    let mut client = Client::new(endpoint, ClientConfig::default()).unwrap();
    let call = client.call(NOW, Allocate::bytes(64).lifetime(Lifetime::millis(10))).unwrap();
    client.poll(NOW);
    let Some(Ok(Answer::Granted(permission))) = client.take_call(call) else { panic!("granted") };
    (client, handle, permission)
}

/// Posts the values in one batch. A value without room goes back to the front; posting stops there.
fn post(client: &mut Client<Fake>, now: Moment, held: &mut VecDeque<Held>) -> Vec<Result<Begun, Error>> {
    let (mut batch, mut results) = (client.batch(), Vec::new());
    while let Some(ask) = held.pop_front() {
        match batch.add(now, ask) {
            Ok(begun) => results.push(Ok(begun)),
            Err(refused) if matches!(refused.error, Error::QueueFull { .. }) => {
                held.push_front(*refused.ask);
                break;
            }
            Err(refused) => results.push(Err(refused.error)),
        }
    }
    batch.post();
    results
}

#[test]
fn values_that_were_collected_without_their_client_are_posted_with_one_doorbell() {
    let (mut client, handle, permission) = start();
    let mut held = VecDeque::new();
    for offset in [0, 8, 16] {
        let buffer = client.buffer(8).unwrap();
        held.push_back(Access::write(permission.view(), offset, buffer).into());
    }
    held.push_back(Access::fetch_and_add(permission.view(), 24, 7).into());
    held.push_back(ControlRequest::from(Allocate::bytes(64)).into());
    let before = (handle.look().doorbells, handle.look().control_doorbells);
    let begun = post(&mut client, NOW, &mut held);
    let after = (handle.look().doorbells, handle.look().control_doorbells);
    assert_eq!(after, (before.0 + 1, before.1 + 1));
    assert_eq!((begun.len(), held.len()), (5, 0));
    handle.run_all();
    client.poll(NOW);
    for begun in begun {
        match begun.unwrap() {
            Begun::Operation(operation) => assert!(client.take(operation).unwrap().result.is_ok()),
            Begun::Call(call) => assert!(matches!(client.take_call(call), Some(Ok(Answer::Granted(_))))),
        }
    }
}

#[test]
fn an_access_that_expired_while_it_was_held_is_not_posted_and_its_buffer_comes_back() {
    let (mut client, handle, permission) = start();
    let access = Access::read(permission.view(), 0, client.buffer(8).unwrap());
    let before = handle.look().doorbells;
    let mut batch = client.batch();
    let refused = batch.access(permission.lease().deadline(), access).unwrap_err();
    assert_eq!(refused.error, Error::Expired);
    assert!(refused.ask.into_buffer().is_some());
    batch.post();
    assert_eq!(handle.look().doorbells, before);
}

#[test]
fn misuse_is_a_typed_error() {
    let (mut client, _handle, permission) = start();
    let (other, _) = fake(1, 16);
    let other = Client::new(other, ClientConfig::default()).unwrap();
    let outside = Access::read(&permission, 60, client.buffer(8).unwrap());
    let outside = client.access(NOW, outside).unwrap_err();
    assert_eq!(outside.error, Error::OutsideRange { offset: 60, length: 8, size: 64 });
    let misaligned = client.access(NOW, Access::compare_and_swap(&permission, 4, 0, 1)).unwrap_err();
    assert_eq!(misaligned.error, Error::Misaligned);
    let mut held = VecDeque::from([Access::write(permission.view(), 0, other.buffer(8).unwrap()).into()]);
    assert_eq!(post(&mut client, NOW, &mut held), [Err(Error::ForeignBuffer)]);
    let foreign = client.access(NOW, Access::read(&permission, 0, other.buffer(8).unwrap())).unwrap_err();
    assert_eq!((foreign.error, foreign.ask.into_buffer().is_some()), (Error::ForeignBuffer, true));
    let mut buffer = client.buffer(8).unwrap();
    let error = Error::OutsideBuffer { offset: 4, length: 5, size: 8 };
    assert_eq!(buffer.try_read(4, &mut [0; 5]), Err(error));
    assert_eq!(buffer.try_write(4, &[0; 5]), Err(error));
    assert_eq!(buffer.try_write(4, &[1; 4]), Ok(()));
}

#[test]
fn values_without_room_come_back_in_order() {
    let (mut client, handle, permission) = start();
    let most = ClientConfig::default().operations_max as usize;
    let mut held: VecDeque<Held> =
        (0..=most).map(|_| Access::fetch_and_add(permission.view(), 0, 1).into()).collect();
    held.push_back(ControlRequest::extend(&permission, Lifetime::millis(20)).into());
    assert_eq!(post(&mut client, NOW, &mut held).len(), most);
    assert!(matches!(held.make_contiguous(), [Ask::Access(_), Ask::Control(_)]), "{held:?}");
    assert!(post(&mut client, NOW, &mut held).is_empty(), "nothing has ended yet");
    handle.run_all();
    client.poll(NOW);
    let mut outcomes = Vec::new();
    client.drain(&mut outcomes);
    assert!(!outcomes.is_empty());
    assert_eq!(post(&mut client, NOW, &mut held).len(), 2);
    assert!(held.is_empty());
}

#[test]
fn values_that_are_dropped_have_begun_nothing_and_give_their_buffers_back() {
    let (mut client, handle, permission) = start();
    for _ in 0..100 {
        drop(Access::read(permission.view(), 0, client.buffer(8).unwrap()));
        drop(Access::read(permission.view(), 0, client.buffer(1 << 18).unwrap()));
    }
    assert_eq!(client.pending(), 0);
    let call = client.call(NOW, ControlRequest::revoke(permission)).unwrap();
    release(&mut handle.world());
    client.poll(NOW);
    assert!(client.take_call(call).is_some());
}

#[test]
fn a_held_value_extends_a_lease_as_well() {
    let (mut client, handle, permission) = start();
    let mut held = VecDeque::from([ControlRequest::extend(&permission, Lifetime::millis(20)).into()]);
    let begun = post(&mut client, NOW, &mut held);
    let [Ok(Begun::Call(call))] = begun[..] else { panic!("{begun:?}") };
    handle.run_all();
    client.poll(NOW);
    let Some(Ok(Answer::Extended(lifetime))) = client.take_call(call) else { panic!("extended") };
    assert!(lifetime >= Lifetime::millis(20), "{lifetime}");
}
