//! Windows that are allocated ahead of their use, and regions that are removed after it.

use crate::rig::{Rig, granted, keys, refused, word};
use portcullis_nic::Status;
use portcullis_node::{NodeConfig, Reductions};
use portcullis_protocol::{
    Allocate, GrantRequest, Granted, Keep, Lifetime, Mechanism, Refusal, RequestBody, Rights, Sharing,
};

#[test]
fn a_tenants_windows_are_allocated_while_nothing_else_happens() {
    // More than one idle turn allocates.
    const READY: u32 = 100;
    let mut rig = Rig::new(NodeConfig { windows_ready: READY, ..crate::rig::config() });
    let client = rig.attach("a");
    rig.settle();
    assert_eq!(rig.node.counters().windows, u64::from(READY), "without time passing");
    rig.attach("b");
    rig.pass(Lifetime::millis(20));
    assert_eq!(rig.node.counters().windows, 2 * u64::from(READY));
    for _ in 0..READY {
        rig.allocate(client, 64, false);
    }
    assert!(rig.node.counters().windows >= 2 * u64::from(READY));
    rig.pass(Lifetime::millis(20));
    rig.end();
}

#[test]
fn mechanisms_without_windows_allocate_none() {
    for mechanism in [Mechanism::MemoryRegion, Mechanism::QueuePair, Mechanism::NodeCopy, Mechanism::None] {
        let mut rig = Rig::new(NodeConfig { mechanism, ..crate::rig::config() });
        let client = rig.attach("a");
        rig.pass(Lifetime::millis(20));
        rig.allocate(client, 64, false);
        rig.pass(Lifetime::millis(20));
        assert_eq!(rig.node.counters().windows, 0, "{mechanism:?}");
        rig.end();
    }
}

/// A permission has two regions, or only one.
#[test]
fn no_region_of_an_ended_permission_opens_anything() {
    for (rights, separate) in [(Rights::READ, true), (Rights::all(), false)] {
        let config = NodeConfig { mechanism: Mechanism::MemoryRegion, ..crate::rig::config() };
        let mut rig = Rig::new(NodeConfig { reductions: Reductions::default(), ..config });
        let client = rig.attach("a");
        let (lifetime, sharing) = (Lifetime::millis(100), Sharing::Exclusive);
        let ask = RequestBody::Grant(GrantRequest::Allocate(Allocate {
            size: 64,
            alignment: 0,
            lifetime,
            rights,
            sharing,
            keep: Keep::No,
        }));
        let it: Granted = granted(rig.ask(client, ask));
        let (buffer, over_word) = keys(&it);
        assert_eq!(buffer != over_word, separate);
        let swapped = rig.swap(client, over_word, word(&it), lifetime.0, lifetime.0);
        assert_eq!(swapped, (Status::Success, lifetime.0));
        rig.revoke(client, it.permission);
        let ended = rig.swap(client, over_word, word(&it), lifetime.0, lifetime.0).0;
        assert_eq!(ended, Status::RemoteAccessError, "its word, with {rights:?}");
        rig.settle();
        rig.recover(client);
        assert_eq!(rig.read(client, buffer, it.address().0, 8).0, Status::RemoteAccessError, "its buffer");
        rig.end();
    }
}

/// A batch of binds that fails loses all its windows. New windows replace them.
#[test]
fn windows_that_were_lost_do_not_count_against_the_tenant() {
    const MOST: u32 = 4;
    let mut rig = Rig::new(NodeConfig { windows_max: MOST, windows_ready: 0, ..crate::rig::config() });
    let client = rig.attach("a");
    rig.settle();
    for _ in 0..3 {
        rig.nic.hook.is_broken = true;
        let asked: Vec<u32> = (0..MOST).map(|_| rig.send(client, crate::rig::allocate(64, false))).collect();
        rig.settle();
        for sequence in asked {
            assert_eq!(refused(rig.reply(client, sequence).expect("a reply")), Refusal::NicFailed);
        }
        assert_eq!(rig.node.counters().windows, 0);
    }
    rig.nic.hook.is_broken = false;
    let held: Vec<Granted> = (0..MOST).map(|_| rig.allocate(client, 64, false)).collect();
    assert_eq!(rig.node.counters().windows, u64::from(MOST));
    let one_more = rig.ask(client, crate::rig::allocate(64, false));
    assert_eq!(refused(one_more), Refusal::NodeFull { limit: MOST.into() });
    for it in held {
        rig.revoke(client, it.permission);
    }
    rig.end();
}

/// The most windows that one idle turn allocates or deallocates.
const PER_TURN: u64 = 16;

#[test]
fn an_idle_turn_allocates_a_few_windows_and_no_more() {
    const READY: u64 = 100;
    let mut rig = Rig::new(NodeConfig { windows_ready: 100, ..crate::rig::config() });
    rig.attach("a");
    while rig.node.counters().windows < READY {
        let before = rig.node.counters().windows;
        rig.turn();
        assert!(rig.node.counters().windows - before <= PER_TURN);
    }
    rig.settle();
    assert_eq!(rig.node.counters().windows, READY);
    rig.end();
}

/// These windows have used up their keys.
#[test]
fn worn_windows_rest_and_go_a_few_in_each_idle_turn() {
    const MANY: usize = 40;
    let rest = Lifetime::millis(50);
    let reductions = Reductions { delayed_unbinding: false, handover: false, contiguity: true };
    let config = NodeConfig { windows_ready: 2, window_rest: rest, reductions, ..crate::rig::config() };
    let mut rig = Rig::new(config);
    let client = rig.attach("a");
    for _ in 0..128 {
        let held: Vec<Granted> = (0..MANY).map(|_| rig.allocate(client, 64, false)).collect();
        for it in held {
            rig.revoke(client, it.permission);
        }
    }
    let worn = rig.node.counters().windows;
    assert!(worn >= MANY as u64, "{worn} windows");
    rig.now = rig.now.after(rest);
    let mut most = 0;
    for _ in 0..100 {
        let before = rig.node.counters().windows;
        rig.turn();
        most = most.max(before.saturating_sub(rig.node.counters().windows));
    }
    assert!(most > 0 && most <= PER_TURN, "{most} windows ended in one turn");
    rig.pass(Lifetime::millis(20));
    let left = rig.node.counters().windows;
    assert!(left < MANY as u64, "{left} of {worn} windows are left");
    rig.end();
}
