//! Limits of the time for which operations and calls may be under way if the node stands still, and the handling of
//! answers that arrive too late.

use crate::fake::node::{Reaction, release};
use crate::fake::{Fake, Handle, fake};
use portcullis_client::{
    Access, Acquire, Allocate, Answer, Call, Client, ClientConfig, ControlRequest, Effect, Error, Permission,
};
use portcullis_protocol::{GrantRequest, Lifetime, Moment, RequestBody};

const WITHIN: Lifetime = Lifetime::millis(1_600);
/// Interval at which the client is polled: shorter than a step of the limit.
const POLLED_EVERY: Lifetime = Lifetime::millis(20);
/// The limit is kept to within an eighth of it.
const BOUND: Lifetime = Lifetime::millis(1_600 + 200);

struct Rig {
    client: Client<Fake>,
    handle: Handle,
    now: Moment,
}

impl Rig {
    fn new() -> Self {
        let (endpoint, handle) = fake(2, 16);
        let mut client = Client::new(endpoint, ClientConfig::default()).unwrap();
        client.limit_to(Some(WITHIN));
        Self { client, handle, now: Moment(0) }
    }

    fn pass(&mut self, time: Lifetime) {
        let until = self.now.after(time);
        while self.now < until {
            self.now = self.now.after(POLLED_EVERY);
            self.client.poll(self.now);
        }
    }

    /// Lets time pass until `ended` returns a value. Returns the value, and the time that passed.
    fn until<T>(&mut self, mut ended: impl FnMut(&mut Client<Fake>) -> Option<T>) -> (T, Lifetime) {
        let began = self.now;
        loop {
            if let Some(result) = ended(&mut self.client) {
                return (result, self.now.since(began));
            }
            assert!(self.now.since(began) < Lifetime::seconds(60), "it never ends");
            self.pass(POLLED_EVERY);
        }
    }

    fn call_ends(&mut self, call: Call) -> (Result<Answer, Error>, Lifetime) {
        self.until(|client| client.take_call(call))
    }

    fn granted(&mut self) -> Permission {
        let call = self.client.call(self.now, Allocate::bytes(64).lifetime(Lifetime::seconds(600))).unwrap();
        let Ok(Answer::Granted(permission)) = self.call_ends(call).0 else { panic!("granted") };
        permission
    }

    /// Returns, for each revocation that the node received, whether it also frees the object.
    fn revoked(&self) -> Vec<bool> {
        let ends = |body| {
            if let RequestBody::Grant(GrantRequest::Revoke { free, .. }) = body { Some(free) } else { None }
        };
        self.handle.look().node.asked.iter().filter_map(|request| ends(request.body)).collect()
    }
}

fn is_given_up(error: Error, expected: Effect) -> bool {
    matches!(error, Error::TimedOut { effect, within: WITHIN, .. } if effect == expected)
}

#[test]
fn accesses_that_the_nic_does_not_carry_out_end_within_the_limit_and_say_what_may_have_happened() {
    let mut rig = Rig::new();
    let permission = rig.granted();
    let now = rig.now;
    let buffer = rig.client.buffer(8).unwrap();
    let read = rig.client.access(now, Access::read(&permission, 0, buffer)).unwrap();
    let buffer = rig.client.buffer(8).unwrap();
    let write = rig.client.access(now, Access::write(&permission, 8, buffer)).unwrap();
    let atomic = rig.client.access(now, Access::fetch_and_add(&permission, 0, 1)).unwrap();
    for (operation, effect) in [(read, Effect::Nothing), (write, Effect::Perhaps), (atomic, Effect::Perhaps)]
    {
        let (outcome, _) = rig.until(|client| client.take(operation));
        let error = outcome.result.unwrap_err();
        assert!(is_given_up(error, effect) && error.is_retryable(), "{error}");
        assert!(outcome.buffer.is_none(), "the NIC may still use it");
    }
    assert!(rig.now.since(now) >= WITHIN && rig.now.since(now) <= BOUND, "{:?}", rig.now.since(now));
    assert_eq!(rig.client.pending(), 0);
}

#[test]
fn a_late_completion_is_not_taken_for_another_operations() {
    let mut rig = Rig::new();
    let permission = rig.granted();
    let late: Vec<_> = (0..4)
        .map(|_| rig.client.access(rig.now, Access::fetch_and_add(&permission, 0, 1)).unwrap())
        .collect();
    for operation in late {
        let (outcome, _) = rig.until(|client| client.take(operation));
        assert!(outcome.result.is_err());
    }
    // The node continues: it now carries out the earlier requests, in their order.
    let next = rig.client.access(rig.now, Access::fetch_and_add(&permission, 0, 1)).unwrap();
    rig.handle.run_all();
    let (outcome, _) = rig.until(|client| client.take(next));
    assert_eq!(outcome.result, Ok(4), "the four late ones came before it");
    assert_eq!(rig.client.pending(), 0);
}

#[test]
fn places_of_operations_that_were_given_up_are_free_again_when_the_nic_has_done_with_them() {
    let (endpoint, handle) = fake(1, 16);
    let mut client =
        Client::new(endpoint, ClientConfig { operations_max: 2, ..ClientConfig::default() }).unwrap();
    client.limit_to(Some(WITHIN));
    let mut rig = Rig { client, handle, now: Moment(0) };
    let permission = rig.granted();
    for _ in 0..3 {
        let both: Vec<_> = (0..2)
            .map(|_| rig.client.access(rig.now, Access::fetch_and_add(&permission, 0, 1)).unwrap())
            .collect();
        for operation in both {
            let _ = rig.until(|client| client.take(operation));
        }
        let full = rig.client.access(rig.now, Access::fetch_and_add(&permission, 0, 1)).unwrap_err().error;
        assert_eq!(full, Error::QueueFull { limit: 2 });
        rig.handle.run_all();
        rig.pass(POLLED_EVERY);
    }
    assert_eq!(rig.handle.look().executed.len(), 6);
}

#[test]
fn what_was_given_up_before_the_nic_had_it_is_never_carried_out() {
    let mut rig = Rig::new();
    let permission = rig.granted();
    // These are more operations than the queue pair has room for.
    let begun: Vec<_> = (0..40)
        .map(|_| rig.client.access(rig.now, Access::fetch_and_add(&permission, 0, 1)).unwrap())
        .collect();
    for operation in begun {
        let _ = rig.until(|client| client.take(operation));
    }
    for _ in 0..10 {
        rig.handle.run_all();
        rig.pass(POLLED_EVERY);
    }
    assert_eq!(rig.handle.look().executed.len(), 16, "the depth of the queue pair");
}

#[test]
fn a_permission_that_is_granted_too_late_is_given_back_and_its_new_object_with_it() {
    for (is_new, ask) in [(true, None), (false, Some(()))] {
        let mut rig = Rig::new();
        let known = rig.granted();
        rig.handle.world().node.hold = true;
        let now = rig.now;
        let call = match ask {
            None => rig.client.call(now, Allocate::bytes(64).pinned()).unwrap(),
            Some(()) => rig.client.call(now, Acquire::object(known.object()).wait(Lifetime(0))).unwrap(),
        };
        let (answer, took) = rig.call_ends(call);
        assert!(is_given_up(answer.unwrap_err(), Effect::Nothing));
        assert!(took >= WITHIN && took <= BOUND, "{took:?}");
        assert!(rig.client.take_call(call).is_none(), "an error is told once");
        release(&mut rig.handle.world());
        rig.pass(POLLED_EVERY);
        rig.pass(POLLED_EVERY);
        assert_eq!(rig.revoked(), [is_new]);
        assert_eq!(rig.client.pending(), 0);
    }
}

#[test]
fn a_late_answer_is_not_the_answer_to_the_next_request() {
    let mut rig = Rig::new();
    let permission = rig.granted();
    rig.handle.world().node.hold = true;
    let late = rig.client.call(rig.now, ControlRequest::free(permission.object())).unwrap();
    assert!(is_given_up(rig.call_ends(late).0.unwrap_err(), Effect::Perhaps));
    let next = rig.client.call(rig.now, Allocate::bytes(64)).unwrap();
    release(&mut rig.handle.world());
    assert!(matches!(rig.call_ends(next).0, Ok(Answer::Granted(_))));
}

#[test]
fn a_request_that_may_wait_at_the_node_has_that_time_besides() {
    let mut rig = Rig::new();
    let permission = rig.granted();
    rig.handle.world().node.reactions.push_back(Reaction::Ignore);
    let wait = Lifetime::seconds(10);
    let call = rig.client.call(rig.now, Acquire::object(permission.object()).wait(wait)).unwrap();
    let (answer, took) = rig.call_ends(call);
    assert!(took.0 >= wait.0 + WITHIN.0 && took.0 <= wait.0 + BOUND.0, "{took:?}");
    let text = answer.unwrap_err().to_string();
    assert!(text.contains("a request for a permission") && text.contains("within 11.6"), "{text}");
}

#[test]
fn a_caller_that_stood_still_itself_gives_nothing_up() {
    let mut rig = Rig::new();
    let permission = rig.granted();
    let operation = rig.client.access(rig.now, Access::fetch_and_add(&permission, 0, 1)).unwrap();
    rig.now = rig.now.after(Lifetime::seconds(3_600));
    rig.client.poll(rig.now);
    assert_eq!(rig.client.pending(), 1);
    rig.handle.run_all();
    assert_eq!(rig.until(|client| client.take(operation)).0.result, Ok(0));
}

#[test]
fn a_client_without_a_limit_waits_for_as_long_as_it_takes() {
    let mut rig = Rig::new();
    rig.client.limit_to(None);
    let permission = rig.granted();
    let operation = rig.client.access(rig.now, Access::fetch_and_add(&permission, 0, 1)).unwrap();
    rig.pass(Lifetime::seconds(100));
    assert!(rig.client.take(operation).is_none());
    assert_eq!(rig.client.next_wake(), None);
}

#[test]
fn the_client_says_when_it_is_to_be_polled_for_its_limit() {
    let mut rig = Rig::new();
    assert_eq!(rig.client.next_wake(), None, "nothing is under way");
    let permission = rig.granted();
    let operation = rig.client.access(rig.now, Access::fetch_and_add(&permission, 0, 1)).unwrap();
    let mut polls = 0;
    let outcome = loop {
        rig.now = rig.client.next_wake().expect("something is under way");
        rig.client.poll(rig.now);
        polls += 1;
        if let Some(outcome) = rig.client.take(operation) {
            break outcome;
        }
    };
    assert!(outcome.result.is_err() && polls <= 20, "{polls}");
}

#[test]
fn what_nobody_wants_any_more_is_given_back_when_it_comes() {
    let mut rig = Rig::new();
    rig.handle.world().node.hold = true;
    let call = rig.client.call(rig.now, Allocate::bytes(64)).unwrap();
    rig.client.forget(call);
    assert_eq!(rig.client.pending(), 0);
    release(&mut rig.handle.world());
    rig.pass(POLLED_EVERY);
    rig.pass(POLLED_EVERY);
    assert_eq!(rig.revoked(), [true]);
}

#[test]
fn the_end_of_the_session_ends_what_was_given_up_as_well() {
    let mut rig = Rig::new();
    let permission = rig.granted();
    rig.handle.world().node.hold = true;
    let operation = rig.client.access(rig.now, Access::fetch_and_add(&permission, 0, 1)).unwrap();
    let call = rig.client.call(rig.now, Allocate::bytes(64)).unwrap();
    rig.pass(BOUND);
    rig.client.node_gone();
    assert!(matches!(rig.client.take(operation).unwrap().result, Err(Error::TimedOut { .. })));
    assert!(matches!(rig.client.take_call(call), Some(Err(Error::TimedOut { .. }))));
    assert_eq!(rig.client.pending(), 0);
}
