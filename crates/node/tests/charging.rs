//! The charge for a refused access: the client alone pays for late accesses and strays, its tenant for guesses.

use crate::rig::{LIMITS, Rig, allocate, guess, is_refused, keys, refused, word};
use portcullis_nic::{DataQueuePairs, Status};
use portcullis_node::{AuditEvent, AuditRecord, Charge, NodeConfig, Standing, Violations};
use portcullis_protocol::{Granted, Lifetime, Mechanism, QueuePairRequest, Refusal, ReplyBody, RequestBody};

fn rig() -> Rig {
    Rig::new(NodeConfig { violations: LIMITS, audit: true, ..crate::rig::config() })
}

/// Reads with the key of a permission that ended `later`, and two milliseconds, ago.
fn come_late(rig: &mut Rig, client: usize, later: Lifetime) {
    let it = rig.allocate(client, 64, false);
    rig.revoke(client, it.permission);
    rig.pass(Lifetime::millis(2));
    rig.pass(later);
    is_refused(rig, client, keys(&it).0, it.address().0);
}

/// Reads behind the end of the client's own memory.
fn stray(rig: &mut Rig, client: usize, it: &Granted) {
    is_refused(rig, client, keys(it).0, it.address().0 + it.length);
}

/// Gets the queue pair rebuilt once the pauses are over. Returns how long that took.
fn recover(rig: &mut Rig, client: usize) -> Result<Lifetime, Refusal> {
    let asked = rig.now;
    loop {
        match rig.ask(client, RequestBody::QueuePair(QueuePairRequest::Recover { queue_pair: 0 })) {
            ReplyBody::Done => {
                rig.seat(client).endpoint.rebuilt(0);
                return Ok(rig.now.since(asked));
            }
            ReplyBody::Refused(Refusal::Paused { wait }) => rig.pass(wait),
            other => return Err(refused(other)),
        }
    }
}

fn counted(rig: &mut Rig, client: usize) -> Violations {
    let id = rig.seat(client).id;
    let clients = rig.node.clients(rig.now);
    clients.iter().find(|it| it.id == id).expect("it is attached").violations
}

fn audited(rig: &mut Rig, event: AuditEvent) -> Vec<AuditRecord> {
    std::iter::from_fn(|| rig.node.poll_audit()).filter(|record| record.event == event).collect()
}

/// The case that led to this rule: a client that does not look at its clock must not cause a pause or bar for others.
#[test]
fn a_client_that_comes_late_again_and_again_is_slowed_alone_and_never_barred() {
    let mut rig = rig();
    let (client, sibling) = (rig.attach("a"), rig.attach("a"));
    let id = rig.seat(client).id;
    for time in 0..200 {
        come_late(&mut rig, client, Lifetime(0));
        let bars = rig.node.bars(rig.now);
        let slowed =
            bars.iter().all(|bar| bar.client == Some(id) && bar.charge == Charge::Late && !bar.barred);
        assert_eq!((slowed, bars.len()), (true, usize::from(time >= 2)), "{bars:?}");
        // The client's pause delays only its own rebuilds.
        let held = rig.allocate(client, 64, false);
        rig.revoke(client, held.permission);
        rig.allocate(sibling, 64, false);
        let newcomer = rig.attach("a");
        rig.detach(newcomer);
        let waited = recover(&mut rig, client).expect("never barred");
        assert!(waited <= LIMITS.late_pause_max, "{waited}");
        assert_eq!(waited.0 > 0, time >= 2, "the first are free");
    }
    assert_eq!(counted(&mut rig, client), Violations { late: 200, ..Violations::default() });
    assert_eq!(audited(&mut rig, AuditEvent::Bar), []);
    rig.end();
}

#[test]
fn pauses_for_lateness_are_forgiven_after_a_time_without_any() {
    let mut rig = rig();
    let client = rig.attach("a");
    for _ in 0..6 {
        come_late(&mut rig, client, Lifetime(0));
        recover(&mut rig, client).expect("slowed");
    }
    rig.pass(Lifetime::seconds(1000));
    for wait_ms in [0, 0, 1, 2] {
        come_late(&mut rig, client, Lifetime(0));
        assert_eq!(recover(&mut rig, client), Ok(Lifetime::millis(wait_ms)));
    }
    rig.end();
}

#[test]
fn a_client_that_strays_is_shown_out_alone_and_its_siblings_work_on() {
    let mut rig = rig();
    let (client, sibling) = (rig.attach("a"), rig.attach("a"));
    let (it, theirs) = (rig.allocate(client, 64, true), rig.allocate(sibling, 64, true));
    for time in 0.. {
        stray(&mut rig, client, &it);
        rig.allocate(sibling, 64, false);
        if recover(&mut rig, client).is_err() {
            assert_eq!(time, 2 + 3, "two are free, and three cost a pause");
            break;
        }
    }
    let (id, bars) = (rig.seat(client).id, audited(&mut rig, AuditEvent::Bar));
    let [bar] = &bars[..] else { panic!("one bar: {bars:?}") };
    assert_eq!((bar.client, bar.reason), (Some(id), Some(Charge::Stray.reason())));
    assert_eq!(rig.node.poll_evicted(), Some(id));
    assert_eq!(refused(rig.ask(client, allocate(64, false))), Refusal::Barred);
    assert!(matches!(rig.node.clients(rig.now)[0].standing, Standing::Barred { .. }));
    assert_eq!(rig.read(sibling, keys(&theirs).0, theirs.address().0, 8).0, Status::Success);
    assert_eq!(rig.acquire(sibling, it.object).address(), it.address(), "what it held is free");
    rig.detach(client);
    rig.attach("a");
    rig.end();
}

/// A tenant has one budget of guesses, whichever of its clients make them, and whatever they do in between.
#[test]
fn guesses_are_counted_together_over_all_clients_of_a_tenant_also_over_those_that_left() {
    let mut rig = rig();
    let sibling = rig.attach("a");
    let theirs = rig.allocate(sibling, 64, true);
    let mut guesses = 0;
    let barred = loop {
        let client = match rig.try_attach("a") {
            Ok(client) => client,
            Err(Refusal::Paused { wait }) => {
                rig.pass(wait);
                continue;
            }
            Err(refusal) => break refusal,
        };
        come_late(&mut rig, client, Lifetime(0));
        recover(&mut rig, client).expect("the first late one is free");
        guess(&mut rig, client, &theirs);
        guesses += 1;
        rig.detach(client);
    };
    assert_eq!((barred, guesses), (Refusal::Barred, LIMITS.free_max + LIMITS.bar_after));
    rig.end();
}

#[test]
fn a_siblings_key_is_a_guess_while_it_lives_and_when_it_has_just_ended() {
    let mut rig = rig();
    let (client, sibling) = (rig.attach("a"), rig.attach("a"));
    let theirs = rig.allocate(sibling, 64, true);
    is_refused(&mut rig, client, keys(&theirs).0, theirs.address().0 + theirs.length);
    recover(&mut rig, client).expect("free");
    rig.revoke(sibling, theirs.permission);
    rig.pass(Lifetime::millis(2));
    is_refused(&mut rig, client, keys(&theirs).0, theirs.address().0);
    assert_eq!(counted(&mut rig, client), Violations { guesses: 2, ..Violations::default() });
    rig.end();
}

/// A keeper extends a permission from its own session, and may be late like the holder.
#[test]
fn an_extension_for_a_sibling_that_comes_late_is_no_guess() {
    let mut rig = rig();
    let (keeper, holder) = (rig.attach("a"), rig.attach("a"));
    let it = rig.allocate(holder, 64, false);
    // First the permission ends, then its window.
    rig.pass(Lifetime::millis(102));
    rig.pass(Lifetime::millis(2));
    let lifetime = Lifetime::millis(100).0;
    let swapped = rig.swap(keeper, keys(&it).1, word(&it), lifetime, 2 * lifetime);
    assert_eq!(swapped.0, Status::RemoteAccessError);
    rig.settle();
    recover(&mut rig, keeper).expect("free");
    let elsewhere = rig.swap(keeper, keys(&it).1, it.address().0, 0, 1);
    assert_eq!(elsewhere.0, Status::RemoteAccessError);
    rig.settle();
    assert_eq!(counted(&mut rig, keeper), Violations { late: 1, guesses: 1, ..Violations::default() });
    rig.end();
}

#[test]
fn a_key_of_long_ago_is_a_stray_and_a_forgotten_one_a_guess() {
    let mut rig = rig();
    let client = rig.attach("a");
    come_late(&mut rig, client, LIMITS.late_grace);
    recover(&mut rig, client).expect("free");
    assert_eq!(counted(&mut rig, client), Violations { stray: 1, ..Violations::default() });
    let old = rig.allocate(client, 64, false);
    rig.revoke(client, old.permission);
    for _ in 0..LIMITS.keys_remembered {
        let it = rig.allocate(client, 64, false);
        rig.revoke(client, it.permission);
    }
    rig.pass(Lifetime::millis(2));
    is_refused(&mut rig, client, keys(&old).0, old.address().0);
    assert_eq!(counted(&mut rig, client), Violations { stray: 1, guesses: 1, ..Violations::default() });
    rig.end();
}

#[test]
fn the_audit_says_what_was_refused_and_how_it_looked() {
    let mut rig = rig();
    let client = rig.attach("a");
    come_late(&mut rig, client, Lifetime(0));
    recover(&mut rig, client).expect("free");
    let it = rig.allocate(client, 64, false);
    stray(&mut rig, client, &it);
    recover(&mut rig, client).expect("free");
    guess(&mut rig, client, &it);
    let told: Vec<_> = audited(&mut rig, AuditEvent::Violation)
        .into_iter()
        .map(|record| (record.reason.expect("a reason"), record.access.expect("the NIC tells")))
        .collect();
    let reasons: Vec<_> = told.iter().map(|it| it.0).collect();
    assert_eq!(reasons, [Charge::Late, Charge::Stray, Charge::Guess].map(Charge::reason));
    let access = told[1].1;
    assert_eq!((access.operation, access.fault), ("read", "outside range"));
    assert_eq!((access.address.0, access.length, access.rkey), (it.address().0 + 64, 8, keys(&it).0));
    rig.end();
}

/// The NIC does not report the access that it refused. An access soon after an end may be late, but a tenant's excuses
/// are limited.
#[test]
fn on_a_nic_that_tells_nothing_a_tenant_has_few_excuses_and_then_all_are_guesses() {
    let mut rig = rig();
    rig.nic.hook.is_mute = true;
    let (client, sibling) = (rig.attach("a"), rig.attach("a"));
    let theirs = rig.allocate(sibling, 64, true);
    guess(&mut rig, client, &theirs);
    recover(&mut rig, client).expect("free");
    assert_eq!(counted(&mut rig, client), Violations { guesses: 1, ..Violations::default() });
    let mut late = 0;
    while recover_or_stop(&mut rig, client) {
        come_late(&mut rig, client, Lifetime(0));
        late += 1;
    }
    // There was one guess before. Of the others, the excused ones cost the tenant nothing.
    assert_eq!(late, LIMITS.excuses_max + LIMITS.free_max + LIMITS.bar_after - 1);
    assert_eq!(rig.try_attach("a").err(), Some(Refusal::Barred));
    rig.end();
}

/// Returns whether the client may go on. A whole queue pair counts as rebuilt.
fn recover_or_stop(rig: &mut Rig, client: usize) -> bool {
    match recover(rig, client) {
        Ok(_) | Err(Refusal::Malformed) => true,
        Err(Refusal::Barred) => false,
        Err(other) => panic!("{other}"),
    }
}

/// On such a NIC too, an honest client that is late now and then costs its siblings nothing.
#[test]
fn on_a_nic_that_tells_nothing_a_few_late_accesses_are_the_clients_own_affair() {
    let mut rig = rig();
    rig.nic.hook.is_mute = true;
    let (client, sibling) = (rig.attach("a"), rig.attach("a"));
    for _ in 0..LIMITS.excuses_max {
        come_late(&mut rig, client, Lifetime(0));
        rig.allocate(sibling, 64, false);
        recover(&mut rig, client).expect("slowed");
    }
    assert_eq!(counted(&mut rig, client).guesses, 0);
    come_late(&mut rig, client, LIMITS.late_grace);
    assert_eq!(counted(&mut rig, client).guesses, 1, "nothing of the client's ended just before");
    rig.end();
}

#[test]
fn the_operator_ends_the_pause_of_a_client_and_the_log_says_so() {
    let mut rig = rig();
    let client = rig.attach("a");
    let it = rig.allocate(client, 64, true);
    for _ in 0..2 {
        stray(&mut rig, client, &it);
        recover(&mut rig, client).expect("two are free");
    }
    stray(&mut rig, client, &it);
    let id = rig.seat(client).id;
    let bars: Vec<_> = rig.node.bars(rig.now).iter().map(|bar| (bar.client, bar.barred)).collect();
    assert_eq!(bars, [(Some(id), false)], "it is paused");
    assert!(rig.node.unbar("a", rig.now));
    assert_eq!(rig.node.bars(rig.now), []);
    let told: Vec<_> = audited(&mut rig, AuditEvent::Unbar).iter().map(|it| (it.client, it.reason)).collect();
    assert_eq!(told, [(Some(id), Some("by the operator"))]);
    rig.end();
}

/// Tests each mechanism with keys, with one key for all of a tenant's permissions or one key for each.
#[test]
fn a_key_that_a_client_holds_is_no_guess_wherever_the_client_points_it() {
    for mechanism in Mechanism::ALL.into_iter().filter(|&it| it != Mechanism::NodeCopy) {
        let mut rig = Rig::new(NodeConfig { mechanism, ..rig().node.config().clone() });
        // Another tenant's keys come first, and a sibling's permission last.
        rig.attach("b");
        let [client, sibling] = ["a"; 2].map(|tenant| rig.attach(tenant));
        let it = rig.allocate(client, 64, true);
        rig.allocate(sibling, 64, true);
        let beyond = 1 << 40;
        assert_eq!(rig.read(client, keys(&it).0, beyond, 8).0, Status::RemoteAccessError, "{mechanism}");
        rig.settle();
        let counted = counted(&mut rig, client);
        assert_eq!(counted, Violations { stray: 1, ..Violations::default() }, "{mechanism}");
        rig.recover(client);
        rig.end();
    }
}
