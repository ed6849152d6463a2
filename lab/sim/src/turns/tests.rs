//! Tests of the checkers with a turn of a node in which much happens at once.

use super::*;
use crate::clock::MILLISECOND;
use crate::plan::Plan;
use crate::scene::SimClient;
use portcullis_client::{Access, Allocate, Answer, Call, Unchecked};
use portcullis_node::{NodeConfig, ViolationLimits};
use portcullis_protocol::{Lifetime, Mechanism, RemoteAddress, Rkey};

/// Creates a cluster in which client 0 is honest, and client 1 is hostile and has its own tenant. The pool has one
/// page, and no client acts by itself.
fn quiet() -> Cluster {
    let faults = Vec::new();
    let plan =
        Plan { nodes: 1, clients: 2, tenants: 1, hostile: 1, udp: 0, faults, held: 1, ..Plan::draw(1) };
    let mut cluster = Cluster::new(Plan { duration_ns: 1_000 * MILLISECOND, ..plan });
    cluster.node_plan.config = NodeConfig {
        mechanism: Mechanism::MemoryRegion,
        pool_bytes: 64 << 10,
        headers: 64,
        longest_lifetime: Lifetime::seconds(1),
        longest_wait: crate::oracle::LONGEST_WAIT,
        violations: ViolationLimits { free_max: 0, bar_after: 1, ..ViolationLimits::default() },
        audit: true,
        ..NodeConfig::default()
    };
    (cluster.oracle.forgiving, cluster.oracle.bar_after) = (false, 1);
    cluster.start_node(0);
    for client in 0..2 {
        cluster.clients[client].next_action = Nanos::MAX;
        cluster.attach(client);
    }
    cluster
}

fn pass(cluster: &mut Cluster, time: Nanos) {
    let end = cluster.now + time;
    while cluster.now < end && !cluster.oracle.has_failed() {
        let Some((at, event)) = cluster.events.next() else { break };
        cluster.now = at;
        cluster.step(event);
    }
}

fn library(cluster: &mut Cluster, client: usize) -> (&mut SimClient, Moment) {
    let host = &mut cluster.clients[client];
    let moment = host.clock.read(cluster.now);
    (host.stay.as_mut().expect("it is attached").client.as_mut().expect("a library"), moment)
}

/// Takes a call's grant and returns the address of its object.
fn granted(cluster: &mut Cluster, client: usize, call: Call) -> RemoteAddress {
    let answer = library(cluster, client).0.take_call(call).expect("it is answered");
    let Ok(Answer::Granted(permission)) = answer else { panic!("granted, not {answer:?}") };
    permission.address()
}

#[test]
fn what_a_bar_ends_may_be_given_to_others_and_zeroed_in_the_same_turn() {
    let mut cluster = quiet();
    pass(&mut cluster, MILLISECOND);
    // The pool has room for one of these.
    let most = Allocate::bytes(40 << 10).lifetime(Lifetime::seconds(1));
    let (hostile, now) = library(&mut cluster, 1);
    let call = hostile.call(now, most).expect("it has room");
    cluster.client_nic_turn_now(1);
    pass(&mut cluster, MILLISECOND);
    let held = granted(&mut cluster, 1, call);
    // While the node stands still, the first tenant earns its bar, and the second requests the memory.
    cluster.nodes[0].paused_until = cluster.now + MILLISECOND;
    let (hostile, _) = library(&mut cluster, 1);
    let buffer = hostile.buffer(8).expect("it has room");
    let target = Unchecked::new(RemoteAddress(0), Rkey(0xdead_be00));
    hostile.dangerous_access(Access::read(target, 0, buffer)).expect("it has room");
    cluster.client_nic_turn_now(1);
    let (honest, now) = library(&mut cluster, 0);
    let call = honest.call(now, most).expect("it has room");
    cluster.client_nic_turn_now(0);
    pass(&mut cluster, 3 * MILLISECOND);
    let (barred, next) = (cluster.oracle.was_barred(0), granted(&mut cluster, 0, call));
    assert!(!barred && cluster.oracle.was_barred(1));
    assert_eq!(next, held, "it has the memory that the bar set free");
    let (failures, _) = cluster.oracle.verdict();
    assert!(failures.is_empty(), "{failures:?}");
}
