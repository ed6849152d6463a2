//! Who pays for a refused access: the client alone for its lateness and its strays, its tenant for guesses.

mod rig;

use portcullis_nic::{Status, VerbsEndpoint};
use portcullis_node::{AuditEvent, AuditRecord, Charge, NodeConfig, Standing, ViolationLimits, Violations};
use portcullis_protocol::{Granted, Lifetime, Refusal, ReplyBody, RequestBody, Rkey};
use rig::{Rig, allocate, keys, refused, word};

const LIMITS: ViolationLimits = ViolationLimits {
    free_max: 2,
    free_again: Lifetime::seconds(100),
    pause_min: Lifetime::millis(1),
    pause_max: Lifetime::millis(20),
    bar_after: 4,
    bar_for: Lifetime::seconds(60),
    late_grace: Lifetime::millis(500),
    late_pause_max: Lifetime::millis(4),
    keys_remembered: 8,
    excuses_max: 3,
    excuse_again: Lifetime::seconds(100),
};

fn rig() -> Rig {
    Rig::new(NodeConfig { violations: LIMITS, audit: true, ..rig::config() })
}

/// Reads with a key at an address, and is refused.
fn is_refused(rig: &mut Rig, client: usize, key: Rkey, address: u64) {
    assert_eq!(rig.read(client, key, address, 8).0, Status::RemoteAccessError);
    rig.settle();
}

/// A read with the key of a permission that ended `later` ago.
fn come_late(rig: &mut Rig, client: usize, later: Lifetime) {
    let it = rig.allocate(client, 64, false);
    rig.revoke(client, it.permission);
    rig.pass(Lifetime::millis(2));
    rig.pass(later);
    is_refused(rig, client, keys(&it).0, it.address().0);
}

/// A read with a key that nobody had.
fn guess(rig: &mut Rig, client: usize, near: &Granted) {
    let key = keys(near).0;
    is_refused(rig, client, Rkey::new(key.index(), key.low_byte().wrapping_add(100)), near.address().0);
}

/// A read behind the end of what is held.
fn stray(rig: &mut Rig, client: usize, it: &Granted) {
    is_refused(rig, client, keys(it).0, it.address().0 + it.length);
}

/// Has the queue pair rebuilt when the pauses are over, and says how long that took.
fn recover(rig: &mut Rig, client: usize) -> Result<Lifetime, Refusal> {
    let asked = rig.now;
    loop {
        match rig.ask(client, RequestBody::Recover { queue_pair: 0 }) {
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

/// The observation that this rule came from: who does not look at its clock pauses nobody, and bars nobody.
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
        // A pause of its own holds up the rebuilds of a client and nothing else.
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

/// 256 keys against a budget: it is one budget, however many clients show them, and whatever they show between.
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

/// A keeper extends a permission from a session of its own, and may be late like its holder.
#[test]
fn an_extension_for_a_sibling_that_comes_late_is_no_guess() {
    let mut rig = rig();
    let (keeper, holder) = (rig.attach("a"), rig.attach("a"));
    let it = rig.allocate(holder, 64, false);
    // It ends, and then its window does.
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

/// Where the NIC tells nothing: an access soon after an end may be late, but not more often than a tenant has excuses.
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
    // One guess was before; of the others the excused ones cost the tenant nothing.
    assert_eq!(late, LIMITS.excuses_max + LIMITS.free_max + LIMITS.bar_after - 1);
    assert_eq!(rig.try_attach("a").err(), Some(Refusal::Barred));
    rig.end();
}

/// Whether the client may go on. A queue pair that is whole is one.
fn recover_or_stop(rig: &mut Rig, client: usize) -> bool {
    match recover(rig, client) {
        Ok(_) | Err(Refusal::Malformed) => true,
        Err(Refusal::Barred) => false,
        Err(other) => panic!("{other}"),
    }
}

/// And an honest one that is late now and then costs its siblings nothing there either.
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
