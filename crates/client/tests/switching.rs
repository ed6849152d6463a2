//! Broken queue pairs: which request gets the error, which are replayed, and in which order (Patronus §5.5).

use crate::fake::node::{Reaction, paused, release};
use crate::fake::{BAD, Fake, GOOD, Handle, LATE, UNANSWERED, fake};
use portcullis_client::{
    Access, Allocate, Answer, Client, ClientConfig, ControlRequest, Error, Operation, Outcome, Permission,
    Unchecked,
};
use portcullis_nic::Memory;
use portcullis_protocol::{
    Lifetime, Moment, QueuePairRequest, Refusal, RemoteAddress, ReplyBody, RequestBody, Rkey,
};

const NOW: Moment = Moment(10);

fn start(queue_pairs: usize, depth: usize, config: ClientConfig) -> (Client<Fake>, Handle, Permission) {
    let (endpoint, handle) = fake(queue_pairs, depth);
    let mut client = Client::new(endpoint, config).unwrap();
    let ask = Allocate::bytes(4096).lifetime(Lifetime::millis(10));
    let call = client.call(NOW, ask).unwrap();
    client.poll(NOW);
    let Some(Ok(Answer::Granted(permission))) = client.take_call(call) else { panic!("granted") };
    (client, handle, permission)
}

fn write(client: &mut Client<Fake>, permission: &Permission, offset: u64, byte: u8) -> Operation {
    let mut buffer = client.buffer(1).unwrap();
    buffer.write(0, &[byte]);
    client.access(NOW, Access::write(permission, offset, buffer)).unwrap()
}

fn raw(client: &mut Client<Fake>, rkey: Rkey) -> Operation {
    let buffer = client.buffer(8).unwrap();
    client.dangerous_access(Access::write(Unchecked::new(RemoteAddress(4096), rkey), 0, buffer)).unwrap()
}

fn result(client: &mut Client<Fake>, operation: Operation) -> Result<u64, Error> {
    let Outcome { result, .. } = client.take(operation).expect("the operation has ended");
    result
}

fn recovers(handle: &Handle) -> usize {
    let asked = |request: &&portcullis_protocol::Request| {
        matches!(request.body, RequestBody::QueuePair(QueuePairRequest::Recover { .. }))
    };
    handle.look().node.asked.iter().filter(asked).count()
}

#[test]
fn what_was_behind_a_violation_is_replayed_in_order_before_anything_newer() {
    let (mut client, handle, permission) = start(2, 16, ClientConfig::default());
    let before = write(&mut client, &permission, 0, 1);
    let guilty = raw(&mut client, BAD);
    let behind: Vec<_> = (2..6).map(|byte| write(&mut client, &permission, 0, byte)).collect();
    handle.run_all();
    client.poll(NOW);
    let newer = write(&mut client, &permission, 0, 9);
    handle.run_all();
    client.poll(NOW);
    assert_eq!(result(&mut client, before), Ok(1));
    assert_eq!(result(&mut client, guilty), Err(Error::Violation));
    for operation in behind {
        assert_eq!(result(&mut client, operation), Ok(1));
    }
    assert_eq!(result(&mut client, newer), Ok(1));
    let world = handle.look();
    assert_eq!(world.executed.len(), 6);
    let mut byte = [0];
    world.remote.read(permission.address().0, &mut byte);
    assert_eq!(byte, [9]);
    let counters = client.counters();
    assert_eq!((counters.switches, counters.replayed, counters.recoveries), (1, 4, 1));
}

#[test]
fn what_has_expired_meanwhile_is_not_replayed_into_the_next_violation() {
    let (mut client, handle, permission) = start(3, 16, ClientConfig::default());
    let guilty = raw(&mut client, BAD);
    let behind: Vec<_> = (2..6).map(|byte| write(&mut client, &permission, 0, byte)).collect();
    handle.run_all();
    client.poll(permission.lease().deadline());
    handle.run_all();
    client.poll(permission.lease().deadline());
    assert_eq!(result(&mut client, guilty), Err(Error::Violation));
    for operation in behind {
        assert_eq!(result(&mut client, operation), Err(Error::Expired));
    }
    assert_eq!((client.counters().switches, client.counters().replayed), (1, 0));
}

#[test]
fn a_replay_does_not_wait_for_the_rebuild() {
    let (mut client, handle, permission) = start(2, 16, ClientConfig::default());
    handle.world().node.hold = true;
    raw(&mut client, BAD);
    let behind = write(&mut client, &permission, 0, 1);
    handle.run(1);
    client.poll(NOW);
    // The flush of the old request has not arrived yet.
    handle.run_all();
    client.poll(NOW);
    assert_eq!(result(&mut client, behind), Ok(1));
    assert_eq!(client.counters().recoveries, 0);
}

#[test]
fn without_spares_the_replay_waits_for_the_same_queue_pair() {
    let config = ClientConfig { use_spares: false, ..ClientConfig::default() };
    let (mut client, handle, permission) = start(3, 16, config);
    handle.world().node.hold = true;
    let guilty = raw(&mut client, BAD);
    let behind = write(&mut client, &permission, 0, 1);
    handle.run_all();
    client.poll(NOW);
    assert_eq!(result(&mut client, guilty), Err(Error::Violation));
    handle.run_all();
    client.poll(NOW);
    assert!(client.take(behind).is_none());
    release(&mut handle.world());
    client.poll(NOW);
    handle.run_all();
    client.poll(NOW);
    assert_eq!(result(&mut client, behind), Ok(1));
    let counters = client.counters();
    assert_eq!((counters.switches, counters.recoveries), (0, 1));
}

#[test]
fn with_all_queue_pairs_broken_operations_wait_for_the_first_rebuild() {
    let (mut client, handle, permission) = start(2, 16, ClientConfig::default());
    handle.world().node.hold = true;
    raw(&mut client, BAD);
    raw(&mut client, BAD);
    let waiting = write(&mut client, &permission, 0, 1);
    for _ in 0..4 {
        handle.run_all();
        client.poll(NOW);
    }
    assert!(client.take(waiting).is_none());
    release(&mut handle.world());
    client.poll(NOW);
    handle.run_all();
    client.poll(NOW);
    assert_eq!(result(&mut client, waiting), Ok(1));
}

#[test]
fn a_paused_rebuild_is_asked_for_again_after_the_wait_and_not_before() {
    let (mut client, handle, _permission) = start(2, 16, ClientConfig::default());
    handle.world().node.reactions.push_back(paused(500));
    raw(&mut client, BAD);
    handle.run_all();
    client.poll(NOW);
    client.poll(NOW);
    assert_eq!(recovers(&handle), 1);
    assert_eq!(client.next_wake(), Some(Moment(510)));
    client.poll(Moment(509));
    assert_eq!(recovers(&handle), 1);
    client.poll(Moment(510));
    client.poll(Moment(510));
    assert_eq!(recovers(&handle), 2);
    assert_eq!((client.counters().recoveries, client.next_wake()), (1, None));
}

#[test]
fn a_barred_tenant_gets_its_answer_once_no_queue_pair_is_left() {
    let (mut client, handle, permission) = start(1, 16, ClientConfig::default());
    handle.world().node.reactions.push_back(Reaction::Say(ReplyBody::Refused(Refusal::Barred)));
    raw(&mut client, BAD);
    let behind = write(&mut client, &permission, 0, 1);
    for _ in 0..3 {
        handle.run_all();
        client.poll(NOW);
    }
    assert_eq!(result(&mut client, behind), Err(Error::Barred));
    let buffer = client.buffer(1).unwrap();
    assert_eq!(client.access(NOW, Access::read(&permission, 0, buffer)).unwrap_err().error, Error::Barred);
    assert_eq!(client.pending(), 0);
}

#[test]
fn without_an_answer_only_reads_are_replayed() {
    let (mut client, handle, permission) = start(2, 16, ClientConfig::default());
    let unanswered = raw(&mut client, UNANSWERED);
    let buffer = client.buffer(1).unwrap();
    let read = client.access(NOW, Access::read(&permission, 0, buffer)).unwrap();
    let behind = write(&mut client, &permission, 0, 1);
    let atomic = client.access(NOW, Access::fetch_and_add(&permission, 8, 1)).unwrap();
    for _ in 0..3 {
        handle.run_all();
        client.poll(NOW);
    }
    assert_eq!(result(&mut client, unanswered), Err(Error::Interrupted));
    assert_eq!(result(&mut client, read), Ok(1));
    assert_eq!(result(&mut client, behind), Err(Error::Interrupted));
    assert_eq!(result(&mut client, atomic), Err(Error::Interrupted));
    assert_eq!(handle.look().remote.load(permission.address().0 + 8), 0);
}

#[test]
fn what_comes_late_never_overwrites_what_was_begun_after_it() {
    let (mut client, handle, permission) = start(2, 16, ClientConfig::default());
    let late = raw(&mut client, LATE);
    let behind = write(&mut client, &permission, 0, 1);
    handle.run(1);
    client.poll(NOW);
    // This write goes to the same byte as `raw`, which writes to 4096.
    let newer = write(&mut client, &permission, 4096 - permission.address().0, 9);
    handle.run_all();
    handle.arrive();
    for _ in 0..2 {
        client.poll(NOW);
        handle.run_all();
    }
    client.poll(NOW);
    assert_eq!(result(&mut client, late), Err(Error::Interrupted));
    assert_eq!(result(&mut client, behind), Err(Error::Interrupted));
    assert_eq!(result(&mut client, newer), Ok(1));
    let mut byte = [0];
    handle.look().remote.read(4096, &mut byte);
    assert_eq!(byte, [9], "the late write came after the newer one");
}

#[test]
fn a_write_without_an_answer_ends_when_the_node_has_stopped_its_queue_pair_whatever_it_answers() {
    let refused = |refusal| Reaction::Say(ReplyBody::Refused(refusal));
    for reaction in [Reaction::Serve, paused(500), refused(Refusal::NicFailed)] {
        let (mut client, handle, permission) = start(2, 16, ClientConfig::default());
        handle.world().node.hold = true;
        handle.world().node.reactions.push_back(reaction);
        let late = raw(&mut client, LATE);
        handle.run_all();
        client.poll(NOW);
        let newer = write(&mut client, &permission, 0, 9);
        handle.run_all();
        client.poll(NOW);
        assert!(client.take(late).is_none(), "it may still arrive");
        assert!(client.take(newer).is_none(), "it would be overtaken");
        release(&mut handle.world());
        client.poll(NOW);
        handle.run_all();
        client.poll(NOW);
        assert_eq!(result(&mut client, late), Err(Error::Interrupted));
        assert_eq!(result(&mut client, newer), Ok(1));
    }
}

#[test]
fn calls_that_all_wait_hold_up_no_rebuild_and_wake_nobody() {
    let (mut client, handle, permission) = start(1, 16, ClientConfig::default());
    handle.world().node.hold = true;
    while client.call(NOW, ControlRequest::free(permission.object())).is_ok() {}
    raw(&mut client, BAD);
    let behind = write(&mut client, &permission, 0, 1);
    for _ in 0..2 {
        handle.run_all();
        client.poll(NOW);
    }
    assert_eq!((recovers(&handle), client.next_wake()), (1, None));
    // Only the answer to the rebuild arrives.
    let rebuilt = handle.world().node.held.pop_back().expect("an answer");
    handle.world().deliver(&rebuilt);
    client.poll(NOW);
    handle.run_all();
    client.poll(NOW);
    assert_eq!(result(&mut client, behind), Ok(1));
}

#[test]
fn another_queue_pair_s_rebuild_says_nothing_of_what_may_still_arrive() {
    let (mut client, handle, _permission) = start(3, 16, ClientConfig::default());
    handle.world().node.hold = true;
    raw(&mut client, BAD);
    handle.run_all();
    client.poll(NOW);
    let late = raw(&mut client, LATE);
    let behind = raw(&mut client, LATE);
    handle.run(1);
    client.poll(NOW);
    release(&mut handle.world());
    client.poll(NOW);
    assert_eq!(client.counters().recoveries, 1);
    assert!(client.take(late).is_none(), "the node has not been asked for its queue pair");
    for _ in 0..2 {
        handle.run_all();
        client.poll(NOW);
    }
    for operation in [late, behind] {
        assert_eq!(result(&mut client, operation), Err(Error::Interrupted));
    }
}

#[test]
fn a_refusal_before_the_deadline_means_revoked_and_after_it_expired() {
    for (now, error) in [(Moment(20), Error::Revoked), (Moment(20_000), Error::Expired)] {
        let (endpoint, handle) = fake(2, 16);
        handle.world().node.key = Some(BAD);
        let mut client = Client::new(endpoint, ClientConfig::default()).unwrap();
        let lifetime = Lifetime::millis(10);
        let call = client.call(NOW, Allocate::bytes(64).lifetime(lifetime)).unwrap();
        client.poll(NOW);
        let Some(Ok(Answer::Granted(permission))) = client.take_call(call) else { panic!("granted") };
        let buffer = client.buffer(8).unwrap();
        let operation = client.access(NOW, Access::read(&permission, 0, buffer)).unwrap();
        handle.run_all();
        client.poll(now);
        assert_eq!(result(&mut client, operation), Err(error));
    }
}

#[test]
fn a_batch_rings_one_doorbell_and_signals_its_last() {
    let (mut client, handle, permission) = start(2, 64, ClientConfig::default());
    let doorbells = handle.look().doorbells;
    let mut batch = client.batch();
    let mut operations = Vec::new();
    for add in 1..=5 {
        operations.push(batch.access(NOW, Access::fetch_and_add(&permission, 0, add)).unwrap());
    }
    assert_eq!(batch.post(), 5);
    assert_eq!(handle.look().doorbells, doorbells + 1);
    handle.run(4);
    assert_eq!(client.poll(NOW), 0);
    handle.run_all();
    assert_eq!(client.poll(NOW), 5);
    assert_eq!(handle.look().signalled, 1);
    let values: Vec<_> = operations.into_iter().map(|it| result(&mut client, it).unwrap()).collect();
    assert_eq!(values, [0, 1, 3, 6, 10]);
}

#[test]
fn unsignalled_operations_before_a_violation_have_succeeded() {
    let (mut client, handle, permission) = start(2, 64, ClientConfig::default());
    let granted = {
        handle.world().node.key = Some(BAD);
        let ask = Allocate::bytes(64).lifetime(Lifetime::millis(10));
        let call = client.call(NOW, ask).unwrap();
        client.poll(NOW);
        client.take_call(call)
    };
    let Some(Ok(Answer::Granted(ended))) = granted else { panic!("granted") };
    let mut batch = client.batch();
    let first = batch.access(NOW, Access::fetch_and_add(&permission, 0, 1)).unwrap();
    let second = batch.access(NOW, Access::fetch_and_add(&permission, 0, 1)).unwrap();
    let guilty = batch.access(NOW, Access::fetch_and_add(&ended, 0, 1)).unwrap();
    let third = batch.access(NOW, Access::fetch_and_add(&permission, 0, 1)).unwrap();
    let fourth = batch.access(NOW, Access::fetch_and_add(&permission, 0, 1)).unwrap();
    batch.post();
    handle.run(3);
    assert_eq!(client.poll(NOW), 3);
    assert_eq!(result(&mut client, first), Ok(0));
    assert_eq!(result(&mut client, second), Ok(1));
    assert_eq!(result(&mut client, guilty), Err(Error::Revoked));
    handle.run_all();
    assert_eq!(client.poll(NOW), 2);
    assert_eq!(result(&mut client, third), Ok(2));
    assert_eq!(result(&mut client, fourth), Ok(3));
}

#[test]
fn a_batch_longer_than_the_queue_is_carried_out_in_order() {
    let (mut client, handle, permission) = start(2, 8, ClientConfig::default());
    let mut batch = client.batch();
    let operations: Vec<_> =
        (0..50).map(|_| batch.access(NOW, Access::fetch_and_add(&permission, 0, 1)).unwrap()).collect();
    batch.post();
    while client.pending() > 0 {
        handle.run_all();
        assert!(client.poll(NOW) > 0, "nothing moves any more");
    }
    for (value, operation) in (0..).zip(operations) {
        assert_eq!(result(&mut client, operation), Ok(value));
    }
}

#[test]
fn a_batch_that_is_not_posted_has_begun_nothing() {
    let (mut client, handle, permission) = start(1, 8, ClientConfig::default());
    let mut batch = client.batch();
    let operation = batch.access(NOW, Access::fetch_and_add(&permission, 0, 1)).unwrap();
    drop(batch);
    handle.run_all();
    client.poll(NOW);
    assert!(client.take(operation).is_none());
    assert_eq!((client.pending(), handle.look().executed.len()), (0, 0));
}

#[test]
fn a_full_queue_hands_everything_back() {
    let config = ClientConfig { backlog_max: 2, ..ClientConfig::default() };
    let (mut client, handle, permission) = start(1, 4, config);
    let begun: Vec<_> = (0..6).map(|byte| write(&mut client, &permission, 0, byte)).collect();
    let mut buffer = client.buffer(3).unwrap();
    buffer.write(0, b"abc");
    let rejected = client.access(NOW, Access::write(&permission, 0, buffer)).unwrap_err();
    assert_eq!(rejected.error, Error::QueueFull { limit: 2 });
    let mut bytes = [0; 3];
    rejected.ask.into_buffer().expect("handed back").read(0, &mut bytes);
    assert_eq!(&bytes, b"abc");
    let mut batch = client.batch();
    assert!(batch.access(NOW, Access::fetch_and_add(&permission, 0, 1)).is_err());
    drop(batch);
    for _ in 0..2 {
        handle.run_all();
        client.poll(NOW);
    }
    for operation in begun {
        assert_eq!(result(&mut client, operation), Ok(1));
    }
}

#[test]
fn the_operation_limit_hands_the_buffer_back() {
    let config = ClientConfig { operations_max: 1, ..ClientConfig::default() };
    let (mut client, _handle, permission) = start(1, 4, config);
    write(&mut client, &permission, 0, 1);
    let buffer = client.buffer(8).unwrap();
    let rejected = client.access(NOW, Access::read(&permission, 0, buffer)).unwrap_err();
    assert_eq!(rejected.error, Error::QueueFull { limit: 1 });
    assert!(rejected.ask.into_buffer().is_some());
}

#[test]
fn polite_mistakes_never_reach_the_nic() {
    let (mut client, handle, permission) = start(1, 4, ClientConfig::default());
    let doorbells = handle.look().doorbells;
    let buffer = client.buffer(8).unwrap();
    let rejected = client.access(NOW, Access::read(&permission, 4089, buffer)).unwrap_err();
    assert_eq!(rejected.error, Error::OutsideRange { offset: 4089, length: 8, size: 4096 });
    let rejected = client
        .access(NOW, Access::read(&permission, u64::MAX, rejected.ask.into_buffer().unwrap()))
        .unwrap_err();
    assert!(matches!(rejected.error, Error::OutsideRange { .. }));
    let rejected = client
        .access(Moment(20_000), Access::read(&permission, 0, rejected.ask.into_buffer().unwrap()))
        .unwrap_err();
    assert_eq!(rejected.error, Error::Expired);
    let rejected = client.access(NOW, Access::fetch_and_add(&permission, 4, 1)).unwrap_err();
    assert_eq!(rejected.error, Error::Misaligned);
    assert_eq!(handle.look().doorbells, doorbells);
}

#[test]
fn when_the_node_is_gone_everything_ends() {
    let (mut client, handle, permission) = start(1, 2, ClientConfig::default());
    handle.world().node.hold = true;
    let operations: Vec<_> = (0..5).map(|byte| write(&mut client, &permission, 0, byte)).collect();
    let extension = client.call(NOW, ControlRequest::extend(&permission, Lifetime::millis(20))).unwrap();
    let free = client.call(NOW, ControlRequest::free(permission.object())).unwrap();
    client.node_gone();
    assert_eq!(client.poll(NOW), 7);
    for operation in operations {
        assert_eq!(result(&mut client, operation), Err(Error::NodeGone));
    }
    for call in [extension, free] {
        assert_eq!(client.take_call(call).unwrap().unwrap_err(), Error::NodeGone);
    }
    assert_eq!(client.pending(), 0);
    let free = client.call(NOW, ControlRequest::free(permission.object()));
    assert_eq!(free.unwrap_err().error, Error::NodeGone);
    assert_eq!(client.call(NOW, ControlRequest::revoke(permission)).unwrap_err().error, Error::NodeGone);
}

#[test]
fn buffers_come_back_to_the_arena() {
    let (client, _handle, _permission) = start(1, 2, ClientConfig::default());
    let most = |client: &Client<Fake>, length| {
        std::iter::from_fn(|| client.buffer(length).ok()).collect::<Vec<_>>().len()
    };
    let (large, small) = (most(&client, 1 << 16), most(&client, 64));
    assert!(large > 8 && small > large);
    for _ in 0..3 {
        assert_eq!(most(&client, 64), small);
        assert_eq!(most(&client, 1 << 16), large);
    }
    let refused = client.buffer(1 << 30).unwrap_err();
    assert!(
        matches!(refused, Error::ArenaFull { asked, needed, arena } if asked == 1 << 30 && needed > asked && needed > arena),
        "{refused:?}"
    );
    assert!(!refused.is_retryable());
}

#[test]
fn a_completion_of_an_unknown_request_completes_nothing() {
    let (mut client, handle, permission) = start(1, 4, ClientConfig::default());
    let operation = write(&mut client, &permission, 0, 1);
    let forged = portcullis_nic::Completion {
        request: 77 << 32,
        queue_pair: portcullis_nic::QpId(0),
        status: portcullis_nic::Status::Success,
        kind: portcullis_nic::CompletionKind::Send,
    };
    handle.world().completions.push_back(forged);
    assert_eq!(client.poll(NOW), 0);
    assert!(client.take(operation).is_none());
}

/// If the client sent an expired request, the node would refuse it and charge it to an honest client, and the refusal
/// would break the queue pair that was just rebuilt.
#[test]
fn what_expires_while_it_waits_for_a_rebuild_is_never_sent() {
    let (mut client, handle, permission) = start(1, 16, ClientConfig::default());
    handle.world().node.hold = true;
    let guilty = raw(&mut client, BAD);
    handle.run_all();
    client.poll(NOW);
    assert_eq!(result(&mut client, guilty), Err(Error::Violation));
    let late: Vec<_> = (0..3).map(|byte| write(&mut client, &permission, 0, byte)).collect();
    let deadline = permission.lease().deadline();
    let unchecked = raw(&mut client, GOOD);
    release(&mut handle.world());
    let before = handle.look().executed.len();
    client.poll(deadline);
    handle.run_all();
    client.poll(deadline);
    for operation in late {
        assert_eq!(result(&mut client, operation), Err(Error::Expired));
    }
    // A request without a deadline is sent, and reports its end.
    assert_eq!(result(&mut client, unchecked), Ok(8));
    assert_eq!(handle.look().executed.len() - before, 1);
}

/// A batch reports its end by its last request, and that request may have expired.
#[test]
fn what_goes_before_an_expired_request_of_its_batch_still_tells_of_its_end() {
    let (mut client, handle, permission) = start(1, 16, ClientConfig::default());
    handle.world().node.hold = true;
    let _guilty = raw(&mut client, BAD);
    handle.run_all();
    client.poll(NOW);
    let short = permission.lease().deadline();
    let call = client.call(NOW, Allocate::bytes(64).lifetime(Lifetime::millis(50))).unwrap();
    release(&mut handle.world());
    handle.world().node.hold = true;
    client.poll(NOW);
    let Some(Ok(Answer::Granted(long))) = client.take_call(call) else { panic!("granted") };
    // The rebuild of the only queue pair has ended by now, so the queue pair has to break again for the batch to wait.
    let _guilty = raw(&mut client, BAD);
    handle.run_all();
    client.poll(NOW);
    let buffers: Vec<_> = (0..2).map(|_| client.buffer(8).unwrap()).collect();
    let [one, two] = <[_; 2]>::try_from(buffers).unwrap();
    let mut batch = client.batch();
    let lives = batch.access(NOW, Access::write(&long, 0, one)).unwrap();
    let expires = batch.access(NOW, Access::write(&permission, 0, two)).unwrap();
    batch.post();
    release(&mut handle.world());
    client.poll(short);
    handle.run_all();
    client.poll(short);
    assert_eq!(result(&mut client, lives), Ok(8));
    assert_eq!(result(&mut client, expires), Err(Error::Expired));
}

/// If a batch is longer than the room in the queue, its posted part reports its end by itself.
#[test]
fn what_was_posted_of_a_batch_tells_of_its_end_though_the_rest_expires() {
    let (mut client, handle, permission) = start(1, 4, ClientConfig::default());
    let mut batch = client.batch();
    let operations: Vec<_> =
        (0..6).map(|_| batch.access(NOW, Access::fetch_and_add(&permission, 0, 1)).unwrap()).collect();
    batch.post();
    handle.run(3);
    client.poll(permission.lease().deadline());
    handle.run_all();
    client.poll(permission.lease().deadline());
    let ended: Vec<_> = operations.into_iter().map(|it| result(&mut client, it)).collect();
    assert_eq!(ended[..4], [Ok(0), Ok(1), Ok(2), Ok(3)]);
    assert_eq!(ended[4..], [Err(Error::Expired), Err(Error::Expired)]);
}
