//! Windows and their keys: the cost of each permission, the change of keys, and that no window is lost.

use crate::rig::{Rig, acquire, granted, keys, refused};
use portcullis_node::{NodeConfig, Reductions};
use portcullis_protocol::{
    Allocate, GrantRequest, Granted, Keep, Lifetime, ObjectRef, Refusal, RequestBody, Rights, Rkey, Sharing,
};
use std::collections::{HashMap, HashSet};

const DELAYED: Reductions = Reductions { delayed_unbinding: true, contiguity: false, handover: false };
const CONTIGUOUS: Reductions = Reductions { contiguity: true, ..DELAYED };

fn with(reductions: Reductions) -> NodeConfig {
    NodeConfig { reductions, ..crate::rig::config() }
}

/// Number of window operations that one or two requests cause before time passes.
fn cost(rig: &mut Rig, of: impl FnOnce(&mut Rig)) -> u64 {
    let before = rig.node.counters().window_operations;
    of(rig);
    rig.settle();
    rig.node.counters().window_operations - before
}

fn kept(rig: &mut Rig, client: usize) -> ObjectRef {
    let object = rig.keep(client).object;
    rig.pass(Lifetime::millis(5));
    object
}

/// Patronus Table 4: an acquire and a revoke with all rights over an object that stays.
#[test]
fn an_acquire_and_its_revoke_cost_what_the_paper_counts() {
    for (reductions, of_acquire, of_revoke) in
        [(Reductions::none(), 2, 2), (DELAYED, 2, 1), (CONTIGUOUS, 1, 1)]
    {
        let mut rig = Rig::new(with(reductions));
        let client = rig.attach("a");
        let address = kept(&mut rig, client);
        for round in 0..20 {
            let mut it = None;
            let cost_of_acquire = cost(&mut rig, |rig| it = Some(rig.acquire(client, address)));
            let it: Granted = it.expect("granted");
            let cost_of_revoke = cost(&mut rig, |rig| rig.revoke(client, it.permission));
            assert_eq!(
                (cost_of_acquire, cost_of_revoke),
                (of_acquire, of_revoke),
                "{reductions:?}, round {round}"
            );
        }
        rig.end();
    }
}

#[test]
fn an_end_and_a_start_in_one_batch_share_an_operation() {
    let mut rig = Rig::new(with(Reductions::default()));
    let (one, two) = (rig.attach("a"), rig.attach("a"));
    let [first, second] = [kept(&mut rig, one), kept(&mut rig, one)];
    let mut held = rig.acquire(one, first);
    for round in 0..20 {
        let next = if round % 2 == 0 { second } else { first };
        let (mut starts, mut ends) = (0, 0);
        let cost = cost(&mut rig, |rig| {
            starts = rig.send(two, acquire(next, Sharing::Exclusive, Lifetime(0)));
            ends = rig.send(
                one,
                RequestBody::Grant(GrantRequest::Revoke { permission: held.permission, free: false }),
            );
        });
        assert_eq!(cost, 1, "round {round}");
        let it = granted(rig.reply(two, starts).expect("a reply"));
        assert_eq!(keys(&it).0.index(), keys(&held).0.index(), "the same window");
        assert!(rig.reply(one, ends).is_some());
        rig.revoke(two, it.permission);
        held = rig.acquire(one, next);
    }
    rig.end();
}

#[test]
fn an_expiry_costs_one_message_from_start_to_end() {
    let mut rig = Rig::new(with(Reductions::default()));
    let client = rig.attach("a");
    let address = kept(&mut rig, client);
    let before = rig.node.counters().control_messages;
    rig.acquire(client, address);
    rig.pass(Lifetime::millis(200));
    assert_eq!((rig.node.counters().control_messages - before, rig.node.counters().permissions), (1, 0));
    rig.end();
}

#[test]
fn a_key_is_not_given_twice_and_worn_windows_are_replaced() {
    for reductions in [Reductions::default(), CONTIGUOUS, DELAYED, Reductions::none()] {
        let rest = Lifetime::millis(50);
        let mut rig =
            Rig::new(NodeConfig { window_rest: rest, windows_ready: 2, windows_max: 64, ..with(reductions) });
        let client = rig.attach("a");
        let [one, two] = [kept(&mut rig, client), kept(&mut rig, client)];
        let mut seen: HashSet<u32> = HashSet::new();
        let mut indices: HashMap<u32, u32> = HashMap::new();
        let mut note = |it: &Granted| {
            let (buffer, word) = keys(it);
            for key in HashSet::<Rkey>::from([buffer, word]) {
                assert!(seen.insert(key.0), "{key:?} was granted before");
                *indices.entry(key.index()).or_default() += 1;
            }
        };
        let mut held = rig.acquire(client, one);
        note(&held);
        for round in 0..1500 {
            let ends = rig.send(
                client,
                RequestBody::Grant(GrantRequest::Revoke { permission: held.permission, free: false }),
            );
            let next = if round % 2 == 0 { two } else { one };
            let starts = rig.send(client, acquire(next, Sharing::Exclusive, Lifetime(0)));
            rig.pass(Lifetime(100));
            assert!(rig.reply(client, ends).is_some());
            held = granted(rig.reply(client, starts).expect("a reply"));
            note(&held);
        }
        assert!(indices.len() > 5, "{} windows for all that", indices.len());
        assert!(indices.values().all(|&grants| grants <= 255), "a window has 256 keys");
        assert!(rig.node.counters().windows <= 64);
        rig.end();
    }
}

#[test]
fn a_tenant_without_windows_left_hears_so_and_nothing_leaks() {
    for reductions in [Reductions::default(), Reductions::none()] {
        let config = NodeConfig {
            windows_max: 8,
            windows_ready: 4,
            linger_max: Lifetime::millis(1),
            ..with(reductions)
        };
        let mut rig = Rig::new(config);
        let (client, other) = (rig.attach("a"), rig.attach("b"));
        let full = if reductions == Reductions::none() { 4 } else { 8 };
        for _ in 0..3 {
            let held: Vec<Granted> = (0..full).map(|_| rig.allocate(client, 64, false)).collect();
            let before = rig.node.counters();
            for _ in 0..3 {
                let reply = rig.ask(client, crate::rig::allocate(64, false));
                assert_eq!(refused(reply), Refusal::NodeFull { limit: 8 });
            }
            let after = rig.node.counters();
            assert_eq!((before.objects, before.permissions), (after.objects, after.permissions));
            assert_eq!((before.bytes_used, before.headers_used), (after.bytes_used, after.headers_used));
            rig.allocate(other, 64, false);
            for it in held {
                rig.revoke(client, it.permission);
            }
            rig.pass(Lifetime::millis(5));
        }
        rig.end();
    }
}

/// Two windows are needed and only one is left. That one must not be lost.
#[test]
fn a_permission_that_gets_half_its_windows_gives_them_back() {
    let mut rig = Rig::new(NodeConfig { windows_max: 3, windows_ready: 1, ..with(Reductions::none()) });
    let client = rig.attach("a");
    rig.allocate(client, 64, false);
    for _ in 0..600 {
        assert_eq!(refused(rig.ask(client, crate::rig::allocate(64, false))), Refusal::NodeFull { limit: 3 });
        rig.pass(Lifetime::millis(20));
        if rig.node.counters().permissions == 0 {
            break;
        }
    }
    rig.pass(Lifetime::seconds(3));
    rig.allocate(client, 64, false);
    rig.end();
}

/// More permissions end at once than the queue for binds holds.
#[test]
fn thousands_of_permissions_end_together() {
    for reductions in [Reductions::default(), Reductions::none()] {
        for end in ["expiry", "detach"] {
            let config = NodeConfig { headers: 8192, pool_bytes: 16 << 20, ..with(reductions) };
            let mut rig = Rig::new(config);
            let (client, sibling) = (rig.attach("a"), rig.attach("a"));
            let lifetime = Lifetime::seconds(1);
            let (rights, sharing) = (Rights::READ, Sharing::Exclusive);
            for _ in 0..3000 {
                granted(rig.ask(
                    client,
                    RequestBody::Grant(GrantRequest::Allocate(Allocate {
                        size: 64,
                        alignment: 0,
                        lifetime,
                        rights,
                        sharing,
                        keep: Keep::Attached,
                    })),
                ));
            }
            match end {
                "expiry" => rig.pass(Lifetime::seconds(2)),
                _ => rig.detach(client),
            }
            rig.settle();
            rig.pass(Lifetime::millis(50));
            let left = rig.node.counters();
            assert_eq!((left.permissions, left.headers_used), (0, 0), "{end} {reductions:?}: {left:?}");
            rig.allocate(sibling, 64, false);
            rig.end();
        }
    }
}

/// A failure of the NIC must not affect later requests.
#[test]
fn a_nic_that_works_again_serves_the_next_request() {
    let mut rig = Rig::new(with(Reductions::default()));
    let (one, two) = (rig.attach("a"), rig.attach("a"));
    let ask = crate::rig::allocate(64, false);
    granted(rig.ask(one, ask));
    rig.nic.hook.is_broken = true;
    for _ in 0..3 {
        assert_eq!(refused(rig.ask(one, ask)), Refusal::NicFailed);
    }
    rig.nic.hook.is_broken = false;
    let it = granted(rig.ask(two, ask));
    assert_eq!(rig.write(two, keys(&it).0, it.address().0, b"bytes"), portcullis_nic::Status::Success);
    rig.end();
}

/// The spy knows all earlier keys. For each window that it knows and for the next window, it guesses the keys that
/// would follow if keys were used in order: each seen key plus or minus one or two.
#[test]
fn a_siblings_key_cannot_be_told_from_the_keys_before() {
    const NODES: u8 = 100;
    let (mut hits, mut guesses) = (0, 0);
    for number in 0..NODES {
        let mut rig = Rig::with_secret(with(Reductions::default()), [number; 32]);
        let (spy, sibling) = (rig.attach("a"), rig.attach("a"));
        let mut seen = Vec::new();
        for _ in 0..4 {
            let it = rig.allocate(spy, 64, false);
            seen.push(keys(&it).0);
            rig.revoke(spy, it.permission);
            rig.pass(Lifetime::millis(5));
        }
        let next = seen.iter().flat_map(|key| {
            let steps = [1, 2, u8::MAX].map(|step| key.low_byte().wrapping_add(step));
            [key.index(), key.index() + 1]
                .into_iter()
                .flat_map(move |index| steps.map(|low| Rkey::new(index, low)))
        });
        let guessed: HashSet<Rkey> = next.collect();
        guesses += guessed.len();
        let key = keys(&rig.allocate(sibling, 64, false)).0;
        hits += usize::from(guessed.contains(&key));
        rig.end();
    }
    // There are eight windows with 255 keys each. By chance one guess in two thousand hits.
    assert!(hits <= 8, "{hits} hits on {NODES} nodes, with {guesses} guesses");
    assert!(guesses > 1000, "{guesses} guesses are none");
}
