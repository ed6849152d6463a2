//! Late accesses, strays and guesses: the cases in which they are hard to distinguish. Each bar is reported once.

use crate::rig::{Rig, granted, guess, is_refused, keys, refused, word};
use portcullis_nic::{DataQueuePairs, Operation, RemoteSpan, Status};
use portcullis_node::{AuditEvent, NodeConfig, Reductions, ViolationLimits, Violations};
use portcullis_protocol::{
    Allocate, GrantRequest, Granted, Keep, Lifetime, Mechanism, QueuePairRequest, Refusal, RemoteAddress,
    ReplyBody, RequestBody, Rights, Rkey, Sharing,
};

const LIMITS: ViolationLimits = ViolationLimits { bar_after: 2, ..crate::rig::LIMITS };

fn config() -> NodeConfig {
    NodeConfig { violations: LIMITS, audit: true, ..crate::rig::config() }
}

/// Gets the queue pair rebuilt once the pauses are over. Returns whether there was a pause.
fn recover(rig: &mut Rig, client: usize) -> bool {
    let mut paused = false;
    loop {
        match rig.ask(client, RequestBody::QueuePair(QueuePairRequest::Recover { queue_pair: 0 })) {
            ReplyBody::Done => {
                rig.seat(client).endpoint.rebuilt(0);
                return paused;
            }
            ReplyBody::Refused(Refusal::Paused { wait }) => rig.pass(wait),
            other => panic!("{:?}", refused(other)),
        }
        paused = true;
    }
}

fn counted(rig: &mut Rig, client: usize) -> Violations {
    let id = rig.seat(client).id;
    let clients = rig.node.clients(rig.now);
    clients.iter().find(|it| it.id == id).expect("it is attached").violations
}

fn audited(rig: &mut Rig, event: AuditEvent) -> usize {
    std::iter::from_fn(|| rig.node.poll_audit()).filter(|record| record.event == event).count()
}

fn allocate(rig: &mut Rig, client: usize, rights: Rights) -> Granted {
    let (lifetime, sharing) = (Lifetime::seconds(1), Sharing::Exclusive);
    let ask = RequestBody::Grant(GrantRequest::Allocate(Allocate {
        size: 64,
        alignment: 0,
        lifetime,
        rights,
        sharing,
        keep: Keep::No,
    }));
    granted(rig.ask(client, ask))
}

#[test]
fn with_a_window_for_the_word_and_one_for_the_buffer_each_key_strays_by_itself() {
    let reductions = Reductions { contiguity: false, ..Reductions::default() };
    let mut rig = Rig::new(NodeConfig { reductions, ..config() });
    let client = rig.attach("a");
    let it = allocate(&mut rig, client, Rights::all());
    let (buffer, lifetime) = keys(&it);
    assert_ne!(buffer, lifetime);
    is_refused(&mut rig, client, buffer, it.address().0 + it.length);
    recover(&mut rig, client);
    is_refused(&mut rig, client, lifetime, it.address().0);
    assert_eq!(counted(&mut rig, client), Violations { stray: 2, ..Violations::default() });
    rig.end();
}

/// One key reaches all permissions of a tenant here. For a client that holds one of them, using the key is no guess.
#[test]
fn the_key_over_the_pool_strays_in_the_hands_of_those_who_hold_something_alone() {
    let mut rig = Rig::new(NodeConfig { mechanism: Mechanism::QueuePair, ..config() });
    let (client, idle) = (rig.attach("a"), rig.attach("a"));
    let it = allocate(&mut rig, client, Rights::READ);
    let (key, address) = (keys(&it).0, it.address().0);
    assert_eq!(rig.write(client, key, address, b"no right"), Status::RemoteAccessError);
    rig.settle();
    assert_eq!(counted(&mut rig, client), Violations { stray: 1, ..Violations::default() });
    recover(&mut rig, client);
    guess(&mut rig, client, &it);
    assert_eq!(counted(&mut rig, client), Violations { stray: 1, guesses: 1, ..Violations::default() });
    is_refused(&mut rig, idle, key, address);
    assert_eq!(counted(&mut rig, idle), Violations { guesses: 1, ..Violations::default() });
    rig.end();
}

/// The address and the key of a lifetime word have to belong to the same permission.
#[test]
fn the_word_of_one_sibling_with_the_key_of_another_is_a_guess() {
    let mut rig = Rig::new(config());
    let (keeper, holder) = (rig.attach("a"), rig.attach("a"));
    let [one, other] = [(); 2].map(|()| rig.allocate(holder, 64, false));
    rig.pass(Lifetime::millis(102));
    rig.pass(Lifetime::millis(2));
    let lifetime = Lifetime::millis(100).0;
    let swapped = rig.swap(keeper, keys(&one).1, word(&other), lifetime, 2 * lifetime);
    assert_eq!(swapped.0, Status::RemoteAccessError);
    rig.settle();
    assert_eq!(counted(&mut rig, keeper), Violations { guesses: 1, ..Violations::default() });
    recover(&mut rig, keeper);
    let swapped = rig.swap(keeper, Rkey(keys(&one).1.0 ^ 0x55), word(&one), lifetime, 2 * lifetime);
    assert_eq!(swapped.0, Status::RemoteAccessError);
    rig.settle();
    assert_eq!(counted(&mut rig, keeper), Violations { guesses: 2, ..Violations::default() });
    rig.end();
}

#[test]
fn a_guess_is_remembered_when_others_guess_too() {
    let mut rig = Rig::new(config());
    let (client, other) = (rig.attach("a"), rig.attach("b"));
    let [its, theirs] = [client, other].map(|client| allocate(&mut rig, client, Rights::all()));
    for round in 0..LIMITS.free_max {
        guess(&mut rig, client, &its);
        assert!(!recover(&mut rig, client), "guess {round} is free");
        guess(&mut rig, other, &theirs);
        assert!(!recover(&mut rig, other), "guess {round} is free");
    }
    guess(&mut rig, client, &its);
    assert!(recover(&mut rig, client), "no more are free");
    rig.end();
}

#[test]
fn a_tenants_bar_is_told_once_whoever_breaks_something_after_it() {
    let mut rig = Rig::new(config());
    let (client, sibling) = (rig.attach("a"), rig.attach("a"));
    let it = allocate(&mut rig, client, Rights::all());
    for _ in 1..LIMITS.free_max + LIMITS.bar_after {
        guess(&mut rig, client, &it);
        recover(&mut rig, client);
    }
    assert_eq!(audited(&mut rig, AuditEvent::Bar), 0);
    guess(&mut rig, client, &it);
    assert_eq!(audited(&mut rig, AuditEvent::Bar), 1);
    guess(&mut rig, sibling, &it);
    assert_eq!((counted(&mut rig, sibling).guesses, audited(&mut rig, AuditEvent::Bar)), (1, 0));
    rig.end();
}

#[test]
fn a_clients_bar_is_told_once_whatever_it_breaks_after_it() {
    let mut rig = Rig::new(config());
    let client = rig.attach("a");
    let it = allocate(&mut rig, client, Rights::all());
    let (key, behind) = (keys(&it).0, it.address().0 + it.length);
    for _ in 1..LIMITS.free_max + LIMITS.bar_after {
        is_refused(&mut rig, client, key, behind);
        recover(&mut rig, client);
    }
    is_refused(&mut rig, client, key, behind);
    assert_eq!(audited(&mut rig, AuditEvent::Bar), 1);
    assert_eq!(rig.node.poll_evicted(), Some(rig.seat(client).id));
    // The client has another queue pair and is not detached yet. Its accesses there no longer count as late.
    rig.pass(Lifetime(LIMITS.late_grace.0 + 1));
    let lkey = rig.seat(client).lkey();
    let local = portcullis_nic::LocalSpan { address: 512 << 10, length: 8, lkey };
    let remote = RemoteSpan { address: RemoteAddress(behind), rkey: key };
    assert_eq!(rig.operate(client, 1, Operation::Read { local, remote }), Status::RemoteAccessError);
    rig.settle();
    assert_eq!((audited(&mut rig, AuditEvent::Bar), rig.node.poll_evicted()), (0, None));
    rig.end();
}
