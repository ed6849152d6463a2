//! The cost of violations, and the client or tenant that pays it: pauses, bars, and the rebuild of queue pairs.

use crate::rig::{Rig, acquire, allocate, keys, refused};
use portcullis_nic::{DataQueuePairs, Operation, Status};
use portcullis_node::{AuditEvent, AuditEvents, Charge, NodeConfig, Standing, ViolationLimits};
use portcullis_protocol::Sharing;
use portcullis_protocol::{
    GrantRequest, Granted, Lifetime, QueuePairRequest, Refusal, ReplyBody, RequestBody, Rkey,
};

const PAUSE: Lifetime = Lifetime::millis(1);

fn config() -> NodeConfig {
    let violations = ViolationLimits {
        free_max: 2,
        free_again: Lifetime::seconds(100),
        pause_min: PAUSE,
        pause_max: Lifetime::millis(4),
        bar_after: 4,
        bar_for: Lifetime::seconds(60),
        ..ViolationLimits::default()
    };
    NodeConfig { violations, ..crate::rig::config() }
}

/// Reads with a key that no client ever had.
fn violate(rig: &mut Rig, client: usize, it: &Granted) {
    let key = keys(it).0;
    let guess = Rkey::new(key.index(), key.low_byte().wrapping_add(100));
    assert_eq!(rig.read(client, guess, it.address().0, 1).0, Status::RemoteAccessError);
    rig.settle();
}

fn recover(rig: &mut Rig, client: usize) -> ReplyBody {
    let reply = rig.ask(client, RequestBody::QueuePair(QueuePairRequest::Recover { queue_pair: 0 }));
    if reply == ReplyBody::Done {
        rig.seat(client).endpoint.rebuilt(0);
    }
    reply
}

#[test]
fn a_queue_pair_that_broke_by_a_fault_at_the_clients_end_is_rebuilt_too() {
    let mut rig = Rig::new(config());
    let client = rig.attach("a");
    let it = rig.allocate(client, 64, false);
    let fault = Operation::LocalInvalidate { rkey: keys(&it).0 };
    assert_eq!(rig.operate(client, 0, fault), Status::LocalQpOperationError);
    assert_eq!(rig.node.counters().violations, 0, "nobody was harmed");
    assert_eq!(recover(&mut rig, client), ReplyBody::Done);
    assert_eq!(rig.read(client, keys(&it).0, it.address().0, 8).0, Status::Success);
    rig.end();
}

#[test]
fn some_are_free_then_come_pauses_and_then_the_bar() {
    let mut rig = Rig::new(config());
    let (client, sibling, other) = (rig.attach("a"), rig.attach("a"), rig.attach("b"));
    let it = rig.allocate(client, 64, true);
    let theirs = rig.allocate(sibling, 64, true);
    let others = rig.allocate(other, 64, true);
    for _ in 0..2 {
        violate(&mut rig, client, &it);
        assert_eq!(recover(&mut rig, client), ReplyBody::Done, "free");
    }
    for pause in [1, 2, 4].map(Lifetime::millis) {
        violate(&mut rig, client, &it);
        for asked in
            [allocate(64, false), RequestBody::QueuePair(QueuePairRequest::Recover { queue_pair: 0 })]
        {
            assert_eq!(refused(rig.ask(client, asked)), Refusal::Paused { wait: pause });
        }
        let sibling_asks = acquire(it.object, Sharing::Shared, Lifetime(0));
        assert_eq!(refused(rig.ask(sibling, sibling_asks)), Refusal::Paused { wait: pause }, "the tenant's");
        assert_eq!(rig.try_attach("a").err(), Some(Refusal::Paused { wait: pause }));
        // Existing permissions still work, also those of other clients.
        assert_eq!(rig.read(sibling, keys(&theirs).0, theirs.address().0, 8).0, Status::Success);
        rig.allocate(other, 64, false);
        rig.pass(pause);
        assert_eq!(recover(&mut rig, client), ReplyBody::Done);
    }
    violate(&mut rig, client, &it);
    assert_eq!(rig.try_attach("a").err(), Some(Refusal::Barred));
    for asked in [allocate(64, false), RequestBody::QueuePair(QueuePairRequest::Recover { queue_pair: 0 })] {
        assert_eq!(refused(rig.ask(client, asked)), Refusal::Barred);
    }
    assert_eq!(refused(rig.ask(sibling, allocate(64, false))), Refusal::Barred);
    let stale = RequestBody::Grant(GrantRequest::Revoke { permission: theirs.permission, free: false });
    assert_eq!(refused(rig.ask(sibling, stale)), Refusal::NotLive, "all that it holds has ended");
    rig.pass(Lifetime::millis(2));
    assert_eq!(rig.read(sibling, keys(&theirs).0, theirs.address().0, 8).0, Status::RemoteAccessError);
    assert_eq!(rig.read(other, keys(&others).0, others.address().0, 8).0, Status::Success);
    rig.detach(client);
    rig.detach(sibling);
    assert_eq!(rig.try_attach("a").err(), Some(Refusal::Barred), "leaving changes nothing");
    rig.end();
}

/// A node that records these events, and a client of tenant "a" whose guesses have led to a bar of the tenant.
fn barred_rig(audit_events: AuditEvents) -> (Rig, usize) {
    let mut rig = Rig::new(NodeConfig { audit: true, audit_events, ..config() });
    let client = rig.attach("a");
    let it = rig.allocate(client, 64, true);
    for _ in 0..6 {
        violate(&mut rig, client, &it);
        rig.pass(Lifetime::millis(10));
        recover(&mut rig, client);
    }
    assert_eq!(rig.try_attach("a").err(), Some(Refusal::Barred));
    (rig, client)
}

/// The ends of bars in the audit log: the tenant, and the reason.
fn unbarred(rig: &mut Rig) -> Vec<(Option<String>, Option<&'static str>)> {
    let records = std::iter::from_fn(|| rig.node.poll_audit());
    let ends = records.filter(|record| record.event == AuditEvent::Unbar);
    ends.map(|record| (record.tenant.map(|name| name.to_string()), record.reason)).collect()
}

#[test]
fn a_bar_is_listed_with_its_reason_and_ends_by_time() {
    let (mut rig, client) = barred_rig(AuditEvents::all());
    let bars = rig.node.bars(rig.now);
    let [bar] = &bars[..] else { panic!("one tenant is barred: {bars:?}") };
    assert_eq!((&*bar.tenant, bar.client, bar.barred, bar.charge), ("a", None, true, Charge::Guess));
    assert_eq!(bar.until, bar.since.after(config().violations.bar_for));
    assert_eq!(rig.node.clients(rig.now)[0].standing, Standing::Barred { until: bar.until });
    let (since, until) = (bar.since, bar.until);
    let records: Vec<_> = std::iter::from_fn(|| rig.node.poll_audit()).collect();
    let told = records.iter().find(|record| record.event == AuditEvent::Bar).expect("the log has the bar");
    assert_eq!((told.at, told.until, told.reason), (since, Some(until), Some(Charge::Guess.reason())));
    // No lease is left that would wake the node.
    rig.pass(Lifetime::seconds(1));
    assert_eq!(rig.node.next_wake(), Some(until), "the node wakes for its end");
    rig.pass(until.since(rig.now));
    assert_eq!(rig.node.bars(rig.now), []);
    assert_eq!(unbarred(&mut rig), [(Some("a".to_owned()), Some("its time is over"))]);
    assert_eq!(recover(&mut rig, client), ReplyBody::Done, "who stayed is served again");
    rig.attach("a");
    rig.end();
}

#[test]
fn the_operator_ends_a_bar_and_a_pause_and_nothing_else() {
    let (mut rig, client) = barred_rig(AuditEvents::all());
    rig.attach("b");
    assert!(!rig.node.unbar("b", rig.now), "it is served");
    assert!(!rig.node.unbar("nobody", rig.now));
    assert!(rig.node.unbar("a", rig.now));
    assert!(!rig.node.unbar("a", rig.now), "it is served again");
    assert_eq!(unbarred(&mut rig), [(Some("a".to_owned()), Some("by the operator"))]);
    assert_eq!(recover(&mut rig, client), ReplyBody::Done);
    let it = rig.allocate(client, 64, true);
    for _ in 0..3 {
        violate(&mut rig, client, &it);
        rig.ask(client, RequestBody::QueuePair(QueuePairRequest::Recover { queue_pair: 0 }));
        rig.seat(client).endpoint.rebuilt(0);
    }
    assert_eq!(rig.node.bars(rig.now).iter().map(|bar| bar.barred).collect::<Vec<_>>(), [false]);
    assert!(rig.node.unbar("a", rig.now));
    assert_eq!(rig.node.bars(rig.now), []);
    rig.end();
}

/// A request that is under way when the bar begins gets a reply, but no permission.
#[test]
fn a_request_under_way_when_the_bar_falls_is_refused() {
    for turns in 0..6 {
        let mut rig = Rig::new(config());
        let (client, sibling) = (rig.attach("a"), rig.attach("a"));
        let it = rig.allocate(client, 64, true);
        for _ in 0..5 {
            violate(&mut rig, client, &it);
            rig.pass(Lifetime::millis(10));
            assert_eq!(recover(&mut rig, client), ReplyBody::Done);
        }
        let asked = rig.send(sibling, allocate(64, false));
        let waits = rig.send(sibling, acquire(it.object, Sharing::Exclusive, Lifetime::millis(50)));
        for _ in 0..turns {
            rig.turn();
        }
        violate(&mut rig, client, &it);
        rig.pass(Lifetime::millis(60));
        for sequence in [asked, waits] {
            rig.reply(sibling, sequence).unwrap_or_else(|| panic!("no answer after {turns} turns"));
        }
        assert_eq!(rig.node.counters().permissions, 0);
        rig.end();
    }
}

#[test]
fn free_violations_come_back_with_time() {
    let mut config = config();
    config.violations.free_again = Lifetime::millis(100);
    let mut rig = Rig::new(config);
    let client = rig.attach("a");
    let it = rig.allocate(client, 64, true);
    for _ in 0..20 {
        violate(&mut rig, client, &it);
        assert_eq!(recover(&mut rig, client), ReplyBody::Done);
        rig.pass(Lifetime::millis(100));
    }
    rig.end();
}

#[test]
fn only_a_broken_queue_pair_is_rebuilt_and_once() {
    let mut rig = Rig::new(config());
    let client = rig.attach("a");
    let it = rig.allocate(client, 64, false);
    for queue_pair in [0, 1, 2, u32::MAX] {
        assert_eq!(
            refused(rig.ask(client, RequestBody::QueuePair(QueuePairRequest::Recover { queue_pair }))),
            Refusal::Malformed
        );
    }
    assert_eq!(rig.read(client, keys(&it).0, it.address().0, 8).0, Status::Success, "asking broke nothing");
    violate(&mut rig, client, &it);
    let twice = [(); 2]
        .map(|()| rig.send(client, RequestBody::QueuePair(QueuePairRequest::Recover { queue_pair: 0 })));
    rig.settle();
    assert_eq!(rig.reply(client, twice[0]), Some(ReplyBody::Done));
    assert_eq!(rig.reply(client, twice[1]).map(refused), Some(Refusal::Malformed));
    rig.seat(client).endpoint.rebuilt(0);
    assert_eq!(rig.read(client, keys(&it).0, it.address().0, 8).0, Status::Success);
    assert_eq!((rig.node.counters().recoveries, rig.node.counters().violations), (1, 1));
    rig.end();
}

#[test]
fn recoveries_beyond_the_limit_wait_and_all_come_back() {
    let mut config = NodeConfig { recoveries_max: 2, ..config() };
    config.violations.free_max = 100;
    let mut rig = Rig::new(config);
    let clients: Vec<usize> = (0..7).map(|_| rig.attach("a")).collect();
    let held: Vec<Granted> = clients.iter().map(|&client| rig.allocate(client, 64, false)).collect();
    for (&client, it) in clients.iter().zip(&held) {
        violate(&mut rig, client, it);
    }
    let ask = |client: &usize| {
        (*client, rig.send(*client, RequestBody::QueuePair(QueuePairRequest::Recover { queue_pair: 0 })))
    };
    let asked: Vec<(usize, u32)> = clients.iter().map(ask).collect();
    let mut done = 0;
    for _ in 0..100 {
        rig.turn();
        let now = asked.iter().filter(|&&(client, sequence)| rig.reply(client, sequence).is_some()).count();
        assert!(now <= 2, "{now} finished in one turn");
        done += now;
    }
    assert_eq!((done, rig.node.counters().recoveries), (7, 7));
    for (&client, it) in clients.iter().zip(&held) {
        rig.seat(client).endpoint.rebuilt(0);
        assert_eq!(rig.read(client, keys(it).0, it.address().0, 8).0, Status::Success);
    }
    rig.end();
}

#[test]
fn a_client_that_leaves_during_its_recovery_leaves_nothing() {
    for turns in 0..8 {
        let mut rig = Rig::new(NodeConfig { recoveries_max: 1, ..config() });
        let (client, other) = (rig.attach("a"), rig.attach("b"));
        let [it, theirs] = [client, other].map(|client| rig.allocate(client, 64, false));
        violate(&mut rig, client, &it);
        violate(&mut rig, other, &theirs);
        rig.send(client, RequestBody::QueuePair(QueuePairRequest::Recover { queue_pair: 0 }));
        let waits = rig.send(other, RequestBody::QueuePair(QueuePairRequest::Recover { queue_pair: 0 }));
        for _ in 0..turns {
            rig.turn();
        }
        rig.detach(client);
        rig.settle();
        assert_eq!(rig.reply(other, waits), Some(ReplyBody::Done), "after {turns} turns");
        rig.end();
    }
}

#[test]
fn the_audit_names_violations_pauses_and_the_bar() {
    let (mut rig, _) = barred_rig(AuditEvents::all());
    let records: Vec<_> = std::iter::from_fn(|| rig.node.poll_audit()).collect();
    let count = |event| records.iter().filter(|record| record.event == event).count();
    assert_eq!(count(AuditEvent::Violation), 6);
    assert_eq!((count(AuditEvent::Pause), count(AuditEvent::Bar)), (3, 1));
    assert_eq!((count(AuditEvent::Grant), count(AuditEvent::Revoke)), (1, 1));
    assert!(records.iter().all(|record| record.tenant.as_deref() == Some("a")));
    rig.end();
}

#[test]
fn only_events_that_were_chosen_are_recorded() {
    let chosen = [AuditEvent::Violation, AuditEvent::Bar].into_iter().collect();
    let (mut rig, _) = barred_rig(chosen);
    let events: Vec<_> = std::iter::from_fn(|| rig.node.poll_audit()).map(|record| record.event).collect();
    assert_eq!(events.len(), 7);
    assert!(events.iter().all(|&event| chosen.contains(event)), "{events:?}");
    rig.end();
}

#[test]
fn a_waiter_of_a_barred_tenant_is_not_let_in_behind_the_bar() {
    let mut rig = Rig::new(config());
    let (client, waiter) = (rig.attach("a"), rig.attach("a"));
    let it = rig.allocate(client, 64, true);
    for _ in 0..5 {
        violate(&mut rig, client, &it);
        rig.pass(Lifetime::millis(10));
        assert_eq!(recover(&mut rig, client), ReplyBody::Done);
    }
    let waits = rig.send(waiter, acquire(it.object, Sharing::Exclusive, Lifetime::millis(20)));
    rig.settle();
    violate(&mut rig, client, &it);
    assert_eq!(rig.reply(waiter, waits).map(refused), Some(Refusal::Barred));
    rig.end();
}
