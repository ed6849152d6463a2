//! The control path: calls, replies, extensions.

use crate::fake::node::{Reaction, release};
use crate::fake::{BAD, Fake, Handle, UNANSWERED, fake};
use portcullis_client::{
    Access, Acquire, Allocate, Answer, Call, Client, ClientConfig, ControlRequest, Error, Permission,
};
use portcullis_nic::Memory;
use portcullis_protocol::{
    GrantRequest, Incarnation, Lifetime, Moment, ObjectRef, Refusal, RemoteAddress, Reply, ReplyBody,
    RequestBody, Rights, Rkey, Sharing,
};

const NOW: Moment = Moment(100);
const LIFETIME: Lifetime = Lifetime::micros(1_000);

fn client(key: Option<Rkey>) -> (Client<Fake>, Handle, Permission) {
    let (endpoint, handle) = fake(2, 16);
    handle.world().node.key = key;
    let mut client = Client::new(endpoint, ClientConfig::default()).unwrap();
    let ask = Allocate::bytes(64).lifetime(LIFETIME).rights(Rights::READ).shared().keep();
    let call = client.call(NOW, ask).unwrap();
    let Ok(Answer::Granted(permission)) = end(&mut client, &handle, NOW, call) else { panic!("granted") };
    (client, handle, permission)
}

fn end(client: &mut Client<Fake>, handle: &Handle, now: Moment, call: Call) -> Result<Answer, Error> {
    for _ in 0..10 {
        handle.run_all();
        client.poll(now);
        if let Some(result) = client.take_call(call) {
            return result;
        }
    }
    panic!("the call hangs")
}

fn lifetime_word(permission: &Permission) -> u64 {
    permission.id().header.0 + 24
}

fn extends(handle: &Handle) -> usize {
    let extend = |it: &&portcullis_protocol::Request| {
        matches!(it.body, RequestBody::Grant(GrantRequest::Extend { .. }))
    };
    handle.look().node.asked.iter().filter(extend).count()
}

#[test]
fn the_deadline_counts_from_the_sending_of_the_request() {
    let (endpoint, _handle) = fake(1, 4);
    let mut client = Client::new(endpoint, ClientConfig::default()).unwrap();
    let (rights, sharing) = (Rights::READ, Sharing::Shared);
    let object = ObjectRef { incarnation: Incarnation(1), address: RemoteAddress(64), birth: 1 };
    let ask = Acquire::object(object).part(0, 64).lifetime(LIFETIME).read_only().shared();
    let call = client.call(Moment(7), ask).unwrap();
    client.poll(Moment(500));
    let Some(Ok(Answer::Granted(permission))) = client.take_call(call) else { panic!("granted") };
    assert_eq!(permission.lease().deadline(), Moment(1_007));
    assert_eq!((permission.rights(), permission.sharing()), (rights, sharing));
}

#[test]
fn a_refusal_reaches_its_call() {
    let (mut client, handle, permission) = client(None);
    for (refusal, error) in [
        (Refusal::Barred, Error::Barred),
        (Refusal::Quota { used: 3, limit: 4 }, Error::Quota { used: 3, limit: 4 }),
        (Refusal::NoSuchObject, Error::Refused(Refusal::NoSuchObject)),
    ] {
        handle.world().node.reactions.push_back(Reaction::Say(ReplyBody::Refused(refusal)));
        let call = client.call(NOW, ControlRequest::free(permission.object())).unwrap();
        assert_eq!(end(&mut client, &handle, NOW, call).unwrap_err(), error);
    }
}

#[test]
fn a_full_control_queue_begins_nothing_and_loses_nothing() {
    let (mut client, handle, permission) = client(None);
    handle.world().node.hold = true;
    // One of the four slots is kept for rebuilds.
    let calls: Vec<_> =
        (0..3).map(|_| client.call(NOW, ControlRequest::free(permission.object())).unwrap()).collect();
    let not_revoked = client.call(NOW, ControlRequest::Revoke { permission, free: true }).unwrap_err();
    assert_eq!(not_revoked.error, Error::QueueFull { limit: 3 });
    client.poll(NOW);
    release(&mut handle.world());
    assert_eq!(client.poll(NOW), 3);
    assert!(calls.into_iter().all(|call| matches!(client.take_call(call), Some(Ok(Answer::Done)))));
    let call = client.call(NOW, *not_revoked.ask).unwrap();
    assert!(matches!(end(&mut client, &handle, NOW, call), Ok(Answer::Done)));
}

#[test]
fn stale_and_forged_replies_are_ignored() {
    let (mut client, handle, permission) = client(None);
    let first = client.call(NOW, ControlRequest::free(permission.object())).unwrap();
    end(&mut client, &handle, NOW, first).unwrap();
    let sequence = handle.look().node.asked.last().unwrap().sequence;
    handle.world().node.hold = true;
    let second = client.call(NOW, ControlRequest::free(permission.object())).unwrap();
    client.poll(NOW);
    // An old number, a slot that does not exist, and a slot without a waiting request. They are delivered one at a time
    // because each takes a receive.
    for sequence in [sequence, 0xFFFF, u32::MAX, sequence ^ 1] {
        let body = ReplyBody::Refused(Refusal::Barred);
        handle.world().deliver(&Reply { sequence, body }.encode());
        assert_eq!(client.poll(NOW), 0);
    }
    release(&mut handle.world());
    assert!(matches!(end(&mut client, &handle, NOW, second), Ok(Answer::Done)));
}

#[test]
fn many_more_calls_than_slots_can_follow_each_other() {
    let (mut client, handle, permission) = client(None);
    for _ in 0..200_000 {
        let call = client.call(NOW, ControlRequest::free(permission.object())).unwrap();
        client.poll(NOW);
        assert!(matches!(client.take_call(call), Some(Ok(Answer::Done))));
        handle.world().node.asked.clear();
    }
}

#[test]
fn an_answer_to_another_question_ends_the_call() {
    let (mut client, handle, permission) = client(None);
    handle.world().node.reactions.push_back(Reaction::Say(ReplyBody::Value(3)));
    let call = client.call(NOW, ControlRequest::free(permission.object())).unwrap();
    assert_eq!(end(&mut client, &handle, NOW, call).unwrap_err(), Error::SessionLost);
}

#[test]
fn garbage_from_the_node_ends_the_session() {
    let (mut client, handle, permission) = client(None);
    handle.world().node.reactions.push_back(Reaction::Ignore);
    let call = client.call(NOW, ControlRequest::free(permission.object())).unwrap();
    handle.world().deliver(&[0xEE; 64]);
    client.poll(NOW);
    assert_eq!(client.take_call(call).unwrap().unwrap_err(), Error::SessionLost);
}

#[test]
fn a_broken_control_queue_pair_ends_everything() {
    let (mut client, handle, permission) = client(None);
    let buffer = client.buffer(8).unwrap();
    let operation = client.access(NOW, Access::read(&permission, 0, buffer)).unwrap();
    handle.world().control_broken = true;
    let call = client.call(NOW, ControlRequest::free(permission.object())).unwrap();
    client.poll(NOW);
    assert_eq!(client.take_call(call).unwrap().unwrap_err(), Error::SessionLost);
    assert_eq!(client.take(operation).unwrap().result, Err(Error::SessionLost));
    assert_eq!((client.over(), client.pending()), (Some(Error::SessionLost), 0));
}

#[test]
fn an_extension_is_one_cas_and_no_message() {
    let (mut client, handle, permission) = client(None);
    let asked = handle.look().node.asked.len();
    let call = client.call(NOW, ControlRequest::extend(&permission, Lifetime::micros(5_000))).unwrap();
    let answer = end(&mut client, &handle, NOW, call);
    assert!(matches!(answer, Ok(Answer::Extended(Lifetime(5_000)))));
    assert_eq!(permission.lease().deadline(), Moment(5_100));
    assert_eq!(handle.look().remote.load(lifetime_word(&permission)), 5_000);
    assert_eq!(handle.look().node.asked.len(), asked);
}

#[test]
fn an_extension_that_completes_after_the_old_deadline_is_confirmed_by_the_node() {
    for (reaction, error) in
        [(Reaction::Serve, None), (Reaction::Say(ReplyBody::Refused(Refusal::NotLive)), Some(Error::Expired))]
    {
        let (mut client, handle, permission) = client(None);
        handle.world().node.reactions.push_back(reaction);
        let call = client.call(NOW, ControlRequest::extend(&permission, Lifetime::micros(5_000))).unwrap();
        let late = permission.lease().deadline();
        let answer = end(&mut client, &handle, late, call);
        assert_eq!(extends(&handle), 1);
        assert_eq!(answer.err(), error);
        let lifetime = if error.is_none() { Lifetime(5_000) } else { LIFETIME };
        assert_eq!(permission.lease().lifetime(), lifetime);
    }
}

/// The node's clock may be a thousandth ahead, and the client's a thousandth behind: near the deadline the client may
/// have swapped the word after the node had read it for the last time.
#[test]
fn an_extension_is_believed_only_where_no_sound_clock_is_past_the_deadline() {
    for (before, asked) in [(20_040, 0), (20_000, 1), (1, 1)] {
        let (mut client, handle, permission) = client(None);
        let call = client.call(NOW, ControlRequest::extend(&permission, Lifetime::seconds(10))).unwrap();
        assert!(end(&mut client, &handle, NOW, call).is_ok());
        let call = client.call(NOW, ControlRequest::extend(&permission, Lifetime::seconds(20))).unwrap();
        let late = Moment(permission.lease().deadline().0 - before);
        assert!(matches!(end(&mut client, &handle, late, call), Ok(Answer::Extended(_))));
        assert_eq!(extends(&handle), asked, "{before} µs before the deadline");
    }
}

#[test]
fn zero_in_the_word_is_the_nodes_notice() {
    let (mut client, handle, permission) = client(None);
    handle.world().remote.store(lifetime_word(&permission), 0);
    let call = client.call(NOW, ControlRequest::extend(&permission, Lifetime::micros(5_000))).unwrap();
    let error = end(&mut client, &handle, NOW, call).unwrap_err();
    assert_eq!(error, Error::Refused(Refusal::NotExtendable));
    assert_eq!(permission.lease().lifetime(), LIFETIME);
    assert_eq!(handle.look().remote.load(lifetime_word(&permission)), 0);
}

#[test]
fn an_extension_by_somebody_else_is_adopted_and_built_upon() {
    let (mut client, handle, permission) = client(None);
    handle.world().remote.store(lifetime_word(&permission), 3_000);
    let call = client.call(NOW, ControlRequest::extend(&permission, Lifetime::micros(5_000))).unwrap();
    assert!(matches!(end(&mut client, &handle, NOW, call), Ok(Answer::Extended(Lifetime(5_000)))));
    assert_eq!((extends(&handle), permission.lease().lifetime()), (0, Lifetime(5_000)));
    // A lifetime that is longer than the requested one is not shortened.
    handle.world().remote.store(lifetime_word(&permission), 9_000);
    let call = client.call(NOW, ControlRequest::extend(&permission, Lifetime::micros(7_000))).unwrap();
    assert!(matches!(end(&mut client, &handle, NOW, call), Ok(Answer::Extended(Lifetime(9_000)))));
    assert_eq!(handle.look().remote.load(lifetime_word(&permission)), 9_000);
}

#[test]
fn an_extension_of_a_revoked_permission_says_so() {
    let (mut client, handle, permission) = client(Some(BAD));
    let call = client.call(NOW, ControlRequest::extend(&permission, Lifetime::micros(5_000))).unwrap();
    assert_eq!(end(&mut client, &handle, NOW, call).unwrap_err(), Error::Revoked);
}

#[test]
fn an_extension_without_an_answer_is_confirmed_by_the_node() {
    let (mut client, handle, permission) = client(Some(UNANSWERED));
    let call = client.call(NOW, ControlRequest::extend(&permission, Lifetime::micros(5_000))).unwrap();
    assert!(matches!(end(&mut client, &handle, NOW, call), Ok(Answer::Extended(Lifetime(5_000)))));
    assert_eq!(extends(&handle), 1);
}

#[test]
fn a_keeper_with_its_own_session_extends_the_lease_of_the_holder() {
    let (_holder, _, permission) = client(None);
    let (mut keeper, handle, _) = client(None);
    let lease = std::sync::Arc::clone(permission.lease());
    let call =
        keeper.call(NOW, ControlRequest::extend_to(&lease, NOW.after(Lifetime::micros(5_000)))).unwrap();
    end(&mut keeper, &handle, NOW, call).unwrap();
    assert_eq!(permission.lease().lifetime(), Lifetime(5_000));
}

#[test]
fn an_expired_permission_is_not_extended() {
    let (mut client, _handle, permission) = client(None);
    let late = permission.lease().deadline();
    assert_eq!(
        client.call(late, ControlRequest::extend(&permission, Lifetime::micros(5_000))).unwrap_err().error,
        Error::Expired
    );
}

#[test]
fn an_extension_counts_from_the_moment_it_is_asked_for() {
    let (mut client, handle, permission) = client(None);
    let now = Moment(permission.lease().deadline().0 - 10);
    let call = client.call(now, ControlRequest::extend(&permission, Lifetime::micros(500))).unwrap();
    end(&mut client, &handle, now, call).unwrap();
    assert_eq!(permission.lease().deadline(), now.after(Lifetime::micros(500)));
    let word = now.since(NOW).0 + 500;
    assert_eq!(handle.look().remote.load(lifetime_word(&permission)), word, "counted from the start");
}

#[test]
fn an_extension_never_shortens() {
    let (mut client, handle, permission) = client(None);
    let (before, left) = (handle.look().doorbells, permission.lease().deadline().since(NOW));
    for shorter in [0, 1, left.0 - 1] {
        let refused =
            client.call(NOW, ControlRequest::extend(&permission, Lifetime::micros(shorter))).unwrap_err();
        assert_eq!(refused.error, Error::LivesLonger { left });
    }
    assert_eq!(handle.look().doorbells, before, "nothing was sent");
    assert_eq!(permission.lease().lifetime(), LIFETIME);
}

#[test]
fn an_extension_beyond_the_longest_lifetime_is_refused_at_once() {
    let (mut client, _handle, permission) = client(None);
    let longest = permission.lease().longest();
    let lease = permission.lease();
    let last = lease.started_after().after(longest);
    let refused = client.call(NOW, ControlRequest::extend_to(lease, last.after(Lifetime(1)))).unwrap_err();
    assert_eq!(refused.error, Error::Refused(Refusal::LifetimeTooLong { longest }));
    assert!(client.call(NOW, ControlRequest::extend_to(lease, last)).is_ok());
}

/// A caller that polls in a loop and reads the clock only at times must not judge by an old time.
#[test]
fn the_clock_is_read_after_what_it_judges_has_come_in() {
    let (mut client, handle, permission) = client(None);
    let call = client.call(NOW, ControlRequest::extend(&permission, Lifetime::micros(5_000))).unwrap();
    handle.run_all();
    let late = permission.lease().deadline();
    assert!(client.take_in(), "an extension is judged by the time");
    client.judge(late);
    assert_eq!(extends(&handle), 1, "the node is asked whether it saw the extension in time");
    client.poll(late);
    assert!(matches!(client.take_call(call), Some(Ok(Answer::Extended(Lifetime(5_000))))));
    // If nothing depends on the time, no clock is needed.
    let buffer = client.buffer(8).unwrap();
    let operation = client.access(NOW, Access::read(&permission, 0, buffer)).unwrap();
    handle.run_all();
    assert!(!client.take_in(), "nothing depends on the time");
    assert!(client.take(operation).unwrap().result.is_ok());
}

fn kept_object(address: u64) -> ObjectRef {
    ObjectRef { incarnation: Incarnation(1), address: RemoteAddress(address), birth: 1 }
}

#[test]
fn requests_of_a_batch_share_a_doorbell_and_are_answered_each() {
    let (endpoint, handle) = fake(1, 4);
    let mut client = Client::new(endpoint, ClientConfig::default()).unwrap();
    let before = handle.look().control_doorbells;
    let mut batch = client.batch();
    let calls: Vec<_> =
        (0..2).map(|at| batch.call(NOW, Acquire::object(kept_object(64 * at)).part(0, 8)).unwrap()).collect();
    let allocated = batch.call(NOW, Allocate::bytes(64)).unwrap();
    // The control queue holds four requests, and keeps one place for rebuilds.
    let full = batch.call(NOW, Allocate::bytes(64)).unwrap_err();
    assert_eq!(full.error, Error::QueueFull { limit: 3 });
    assert_eq!(batch.len(), 3);
    assert_eq!(batch.post(), 3);
    assert_eq!(handle.look().control_doorbells - before, 1);
    client.poll(NOW);
    let mut held = Vec::new();
    for call in calls.into_iter().chain([allocated]) {
        let Some(Ok(Answer::Granted(permission))) = client.take_call(call) else { panic!("granted") };
        held.push(permission);
    }
    let mut batch = client.batch();
    let calls: Vec<_> = held
        .into_iter()
        .map(|it| batch.call(NOW, ControlRequest::Revoke { permission: it, free: false }).unwrap())
        .collect();
    batch.post();
    client.poll(NOW);
    assert!(calls.into_iter().all(|call| matches!(client.take_call(call), Some(Ok(Answer::Done)))));
    assert_eq!((handle.look().control_doorbells - before, client.pending()), (2, 0));
}

#[test]
fn requests_of_a_batch_that_is_dropped_or_leaked_were_never_asked() {
    let (endpoint, handle) = fake(1, 4);
    let mut client = Client::new(endpoint, ClientConfig::default()).unwrap();
    for leak in [false, true] {
        let asked = handle.look().node.asked.len();
        let mut batch = client.batch();
        let never = batch.call(NOW, Allocate::bytes(64)).unwrap();
        if leak {
            std::mem::forget(batch)
        } else {
            drop(batch)
        }
        let call = client.call(NOW, ControlRequest::free(kept_object(64))).unwrap();
        client.poll(NOW);
        assert!(matches!(client.take_call(call), Some(Ok(Answer::Done))), "leaked: {leak}");
        assert!(client.take_call(never).is_none());
        assert_eq!((handle.look().node.asked.len() - asked, client.pending()), (1, 0));
    }
    let mut batch = client.batch();
    for _ in 0..3 {
        batch.call(NOW, Allocate::bytes(8)).unwrap();
    }
    assert_eq!(batch.post(), 3);
}

#[test]
fn no_later_buffer_gets_the_bytes_of_one_that_was_dropped_while_it_was_withheld() {
    let (client, ..) = client(None);
    let count = || std::iter::from_fn(|| client.buffer(64).ok()).collect::<Vec<_>>().len();
    let all = count();
    let mut buffer = client.buffer(64).unwrap();
    let before = buffer.withhold();
    buffer.stop_withholding(before);
    drop(buffer);
    assert_eq!(count(), all);
    let mut lost = client.buffer(64).unwrap();
    let _ = lost.withhold();
    assert_eq!((lost.len(), lost.capacity()), (64, 64));
    drop(lost);
    assert_eq!(count(), all - 1);
    // Larger blocks are made of free ones only.
    assert!(client.buffer(64 * u32::try_from(all).unwrap()).is_err());
}
