//! Accesses that are carried out only if the one before them is.

use crate::fake::{BAD, Fake, GOOD, Handle, UNANSWERED, fake};
use portcullis_client::{
    Access, Allocate, Answer, Client, ClientConfig, Error, Operation, Outcome, Permission,
};
use portcullis_nic::{Memory, Status};
use portcullis_protocol::{Lifetime, Moment, Rkey};

const NOW: Moment = Moment(10);

fn start(depth: usize) -> (Client<Fake>, Handle) {
    let (endpoint, handle) = fake(2, depth);
    (Client::new(endpoint, ClientConfig::default()).unwrap(), handle)
}

fn grant(client: &mut Client<Fake>, handle: &Handle, key: Rkey) -> Permission {
    handle.world().node.key = Some(key);
    let call = client.call(NOW, Allocate::bytes(64).lifetime(Lifetime::millis(10))).unwrap();
    client.poll(NOW);
    let Some(Ok(Answer::Granted(permission))) = client.take_call(call) else { panic!("granted") };
    permission
}

/// Begins a write under `first`, and a swap of the word of `second` behind it.
fn write_and_swap(client: &mut Client<Fake>, first: &Permission, second: &Permission) -> [Operation; 2] {
    let buffer = client.buffer(8).unwrap();
    let mut batch = client.batch();
    let write = batch.access(NOW, Access::write(first, 8, buffer)).unwrap();
    let swap = batch.access_behind(NOW, write, Access::compare_and_swap(second, 0, 0, 7)).unwrap();
    batch.post();
    [write, swap]
}

fn results(client: &mut Client<Fake>, operations: [Operation; 2]) -> [Result<u64, Error>; 2] {
    operations.map(|operation| {
        let Outcome { result, .. } = client.take(operation).expect("the operation has ended");
        result
    })
}

fn word(handle: &Handle, permission: &Permission) -> u64 {
    handle.look().remote.load(permission.address().0)
}

#[test]
fn a_swap_behind_a_write_that_is_carried_out_takes_one_doorbell() {
    let (mut client, handle) = start(16);
    let good = grant(&mut client, &handle, GOOD);
    let before = handle.look().doorbells;
    let both = write_and_swap(&mut client, &good, &good);
    assert_eq!(handle.look().doorbells - before, 1);
    handle.run_all();
    client.poll(NOW);
    assert_eq!((results(&mut client, both), word(&handle, &good)), ([Ok(8), Ok(0)], 7));
}

#[test]
fn a_swap_behind_a_write_that_is_refused_is_not_carried_out_on_another_queue_pair() {
    for depth in [1, 16] {
        let (mut client, handle) = start(depth);
        let (good, bad) = (grant(&mut client, &handle, GOOD), grant(&mut client, &handle, BAD));
        let both = write_and_swap(&mut client, &bad, &good);
        handle.run_all();
        client.poll(NOW);
        handle.run_all();
        client.poll(NOW);
        assert_eq!(results(&mut client, both), [Err(Error::Revoked); 2], "depth {depth}");
        assert_eq!(word(&handle, &good), 0);
    }
}

#[test]
fn a_pair_that_another_refusal_has_flushed_is_carried_out_on_another_queue_pair() {
    let (mut client, handle) = start(16);
    let (good, bad) = (grant(&mut client, &handle, GOOD), grant(&mut client, &handle, BAD));
    client.access(NOW, Access::fetch_and_add(&bad, 0, 1)).unwrap();
    let both = write_and_swap(&mut client, &good, &good);
    handle.run_all();
    client.poll(NOW);
    handle.run_all();
    client.poll(NOW);
    assert_eq!((results(&mut client, both), word(&handle, &good)), ([Ok(8), Ok(0)], 7));
}

#[test]
fn a_swap_behind_a_write_that_has_expired_before_its_replay_is_not_carried_out() {
    let (mut client, handle) = start(16);
    let bad = grant(&mut client, &handle, BAD);
    let short = grant(&mut client, &handle, GOOD);
    handle.world().node.key = Some(GOOD);
    let call = client.call(NOW, Allocate::bytes(64).lifetime(Lifetime::millis(50))).unwrap();
    client.poll(NOW);
    let Some(Ok(Answer::Granted(long))) = client.take_call(call) else { panic!("granted") };
    client.access(NOW, Access::fetch_and_add(&bad, 0, 1)).unwrap();
    let both = write_and_swap(&mut client, &short, &long);
    handle.run_all();
    let later = short.lease().deadline();
    assert!(later < long.lease().deadline());
    client.poll(later);
    handle.run_all();
    client.poll(later);
    assert_eq!(results(&mut client, both), [Err(Error::Expired); 2]);
    assert_eq!(word(&handle, &long), 0);
}

#[test]
fn the_end_of_a_swap_is_as_uncertain_as_that_of_the_write_before_it() {
    for depth in [1, 16] {
        let (mut client, handle) = start(depth);
        let good = grant(&mut client, &handle, GOOD);
        let unanswered = grant(&mut client, &handle, UNANSWERED);
        let both = write_and_swap(&mut client, &unanswered, &good);
        for _ in 0..4 {
            handle.run_all();
            client.poll(NOW);
        }
        assert_eq!(results(&mut client, both), [Err(Error::Interrupted); 2], "depth {depth}");
    }
}

#[test]
fn an_access_is_linked_only_to_the_one_directly_before_it() {
    let (mut client, handle) = start(16);
    let good = grant(&mut client, &handle, GOOD);
    let mut batch = client.batch();
    let first = batch.access(NOW, Access::fetch_and_add(&good, 0, 1)).unwrap();
    let second = batch.access(NOW, Access::fetch_and_add(&good, 0, 1)).unwrap();
    let refused = batch.access_behind(NOW, first, Access::fetch_and_add(&good, 0, 1)).unwrap_err();
    assert_eq!(refused.error, Error::LocalFault(Status::LocalQpOperationError));
    batch.access_behind(NOW, second, Access::fetch_and_add(&good, 0, 1)).unwrap();
    assert_eq!(batch.post(), 3);
}
