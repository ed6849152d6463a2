//! Delayed unbinding and memory that is becoming free: a window lingers no longer than allowed, and ends when a request
//! needs the memory.

use crate::rig::{Rig, allocate, keys};
use portcullis_nic::Status;
use portcullis_node::{NodeConfig, Reductions};
use portcullis_protocol::{Granted, Lifetime, Refusal, ReplyBody};

const LINGER: Lifetime = Lifetime::millis(8);

fn config() -> NodeConfig {
    NodeConfig { linger_max: LINGER, ..crate::rig::config() }
}

/// Returns the number of bytes of this percentage of the pool.
fn share(rig: &Rig, hundredths: u64) -> u64 {
    rig.node.config().pool_bytes * hundredths / 100
}

fn objects(rig: &Rig) -> u64 {
    rig.node.counters().objects
}

/// Allocates and revokes an object, so that its window lingers.
fn let_linger(rig: &mut Rig, client: usize, bytes: u64) -> Granted {
    let it = rig.allocate(client, bytes, false);
    rig.revoke(client, it.permission);
    it
}

#[test]
fn a_window_lingers_for_its_time_and_no_longer() {
    let mut rig = Rig::new(config());
    let client = rig.attach("a");
    let it = let_linger(&mut rig, client, 64);
    assert_eq!(objects(&rig), 1, "the object is going");
    let wake = rig.node.next_wake().expect("there is something to unbind");
    assert_eq!(wake, rig.now.after(LINGER));
    rig.pass(Lifetime(LINGER.0 / 2));
    assert_eq!(objects(&rig), 1, "nobody needs its memory: the unbind waits");
    assert_eq!(rig.read(client, keys(&it).0, it.address().0, 8).0, Status::Success);
    // The node checks four times in each linger time.
    rig.pass(Lifetime(LINGER.0 / 2 + LINGER.0 / 4));
    assert_eq!(objects(&rig), 0);
    assert_eq!(rig.read(client, keys(&it).0, it.address().0, 8).0, Status::RemoteAccessError);
    rig.end();
}

#[test]
fn what_began_to_linger_later_ends_later() {
    let mut rig = Rig::new(config());
    let client = rig.attach("a");
    let held = [64, 64].map(|bytes| rig.allocate(client, bytes, false));
    rig.revoke(client, held[0].permission);
    rig.pass(Lifetime(LINGER.0 / 2));
    rig.revoke(client, held[1].permission);
    assert_eq!(objects(&rig), 2);
    rig.pass(Lifetime(LINGER.0 * 3 / 4));
    assert_eq!(objects(&rig), 1);
    rig.pass(Lifetime(LINGER.0 / 2));
    assert_eq!(objects(&rig), 0);
    rig.end();
}

#[test]
fn a_request_that_finds_no_memory_gets_what_lingers_at_once() {
    let mut rig = Rig::new(config());
    let (client, other) = (rig.attach("a"), rig.attach("b"));
    let most = share(&rig, 60);
    let_linger(&mut rig, client, most);
    assert_eq!(objects(&rig), 1, "so much is left that it may linger");
    let it = rig.allocate(other, most, false);
    assert_eq!((it.length, objects(&rig)), (most, 1), "no time has passed");
    rig.end();
}

#[test]
fn nothing_lingers_over_memory_that_has_become_scarce() {
    let mut rig = Rig::new(config());
    let (client, other) = (rig.attach("a"), rig.attach("b"));
    let (some, more) = (share(&rig, 30), share(&rig, 50));
    let_linger(&mut rig, client, some);
    // Other tenants can allocate while there is enough memory.
    let small = rig.allocate(other, 64, false);
    assert_eq!(objects(&rig), 2);
    rig.allocate(other, more, false);
    assert_eq!(objects(&rig), 2, "the one that lingered is gone");
    rig.revoke(other, small.permission);
    assert_eq!(objects(&rig), 2, "now there is enough, and the small one lingers");
    rig.end();
}

#[test]
fn nothing_lingers_while_headers_are_scarce() {
    let reductions = Reductions { contiguity: false, ..Reductions::default() };
    let mut rig = Rig::new(NodeConfig { headers: 16, reductions, ..config() });
    let client = rig.attach("a");
    let held: Vec<Granted> = (0..14).map(|_| rig.allocate(client, 64, false)).collect();
    let left: Vec<u64> = held
        .iter()
        .map(|it| {
            rig.revoke(client, it.permission);
            objects(&rig)
        })
        .collect();
    // Two of the sixteen headers were free. With the third free one, more than a quarter is free.
    assert_eq!(left, [13, 12, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11]);
    rig.end();
}

#[test]
fn many_windows_that_have_lingered_end_over_several_turns_without_time() {
    const MANY: u64 = 100;
    const STEPS: u32 = 10;
    let mut rig = Rig::new(NodeConfig { steps_per_turn: STEPS, ..config() });
    let client = rig.attach("a");
    let held: Vec<Granted> = (0..MANY).map(|_| rig.allocate(client, 64, false)).collect();
    for it in held {
        rig.revoke(client, it.permission);
    }
    assert_eq!(objects(&rig), MANY);
    rig.now = rig.now.after(Lifetime(2 * LINGER.0));
    let mut turns = 0;
    while objects(&rig) > 0 {
        let before = rig.node.counters().window_operations;
        rig.turn();
        assert!(rig.node.counters().window_operations - before <= u64::from(STEPS), "turn {turns}");
        turns += 1;
        assert!(turns < 100, "they end without time passing");
    }
    rig.end();
}

/// More requests wait for memory than the node retries when some becomes free.
#[test]
fn everybody_who_waits_for_memory_hears_when_none_is_on_its_way_any_more() {
    const CLIENTS: usize = 8;
    const WAITING: usize = 14 * CLIENTS;
    let mut rig = Rig::new(NodeConfig { requests_per_turn: 256, ..config() });
    let client = rig.attach("a");
    let others: Vec<usize> = (0..CLIENTS).map(|_| rig.attach("b")).collect();
    let (most, half) = (share(&rig, 60), share(&rig, 50));
    let_linger(&mut rig, client, most);
    // All requests are sent before the node reads any.
    let asked: Vec<(usize, u32)> = (0..WAITING)
        .map(|number| (others[number % CLIENTS], rig.send(others[number % CLIENTS], allocate(half, false))))
        .collect();
    rig.settle();
    let replies: Vec<ReplyBody> = asked
        .iter()
        .map(|&(other, it)| rig.reply(other, it).expect("each has its answer, without time"))
        .collect();
    let granted_ones = replies.iter().filter(|reply| matches!(reply, ReplyBody::Granted(_))).count();
    assert_eq!(granted_ones, 1, "there is room for one");
    assert_eq!((rig.node.counters().postponed, objects(&rig)), (0, 1));
    let no_memory = |reply: &&ReplyBody| matches!(reply, ReplyBody::Refused(Refusal::OutOfMemory { .. }));
    assert_eq!(replies.iter().filter(no_memory).count(), WAITING - 1);
    rig.end();
}
