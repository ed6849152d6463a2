//! Queues whose entries are claimed and acknowledged.

use crate::claim_trials::{Deed, End, an_entry_belongs_to_its_last_consumer, at_each_step};
use crate::rig::{node, pipeline, run};
use portcullis::{Coded, ErrorCode, Lifetime, Mechanism};
use portcullis_structures::Pipeline;
use portcullis_structures::queue::{Claim, Queue, QueueError, QueueOptions};
use std::rc::Rc;

const LEASE: Lifetime = Lifetime::millis(30);
/// Time after which an event counts as one that never happens.
const LONG: Lifetime = Lifetime::seconds(10);

fn options() -> QueueOptions {
    QueueOptions { segment_slots: 64, cell_bytes: 16, claims: true, ..QueueOptions::default() }
}

struct Consumer {
    pipeline: Rc<Pipeline>,
    queue: Queue,
}

impl Consumer {
    fn first(node: &portcullis::host::Host) -> Self {
        let pipeline = pipeline(node, "red");
        let queue = run(&pipeline, Queue::create(&pipeline, &options())).expect("a queue");
        Self { pipeline, queue }
    }

    fn another(&self, node: &portcullis::host::Host) -> Self {
        let pipeline = pipeline(node, "red");
        let queue = run(&pipeline, Queue::open(&pipeline, self.queue.head())).expect("the queue");
        Self { pipeline, queue }
    }

    fn push(&self, entry: &[u8]) {
        run(&self.pipeline, self.queue.push(entry)).expect("the node serves it");
    }

    fn claim(&self) -> Option<Claim> {
        run(&self.pipeline, self.queue.claim(LEASE)).expect("the node serves it")
    }

    fn claim_within(&self, time: Lifetime) -> Option<Claim> {
        run(&self.pipeline, self.queue.claim_within(LEASE, time)).expect("the node serves it")
    }

    fn acknowledge(&self, claim: &Claim) -> Result<(), QueueError> {
        run(&self.pipeline, self.queue.acknowledge(claim.id))
    }
}

#[test]
fn what_is_not_acknowledged_comes_again_after_the_lease_and_then_belongs_to_the_next_consumer() {
    an_entry_belongs_to_its_last_consumer();
    assert_eq!(QueueError::ClaimEnded.code(), ErrorCode::ClaimEnded);
}

#[test]
fn a_claim_that_is_extended_lasts_and_one_that_is_given_back_comes_at_once() {
    let node = node(Mechanism::MemoryWindow);
    let one = Consumer::first(&node);
    let two = one.another(&node);
    one.push(b"job");
    let mut claim = one.claim().expect("an entry");
    let until = one.pipeline.now().after(Lifetime(LEASE.0 * 6));
    while one.pipeline.now() < until {
        claim.id = run(&one.pipeline, one.queue.extend_claim(claim.id, LEASE)).expect("it is still there");
        assert_eq!(two.claim(), None, "it is claimed");
        run(&one.pipeline, one.pipeline.sleep(Lifetime::millis(1))).expect("the node is there");
    }
    run(&one.pipeline, one.queue.give_back(claim.id)).expect("it is still there");
    let again = two.claim_within(LONG).expect("it comes again");
    assert_eq!(again.id.deliveries(), 2);
    assert_eq!(one.acknowledge(&claim), Err(QueueError::ClaimEnded));
    assert_eq!(two.acknowledge(&again), Ok(()));
}

#[test]
fn what_was_delivered_too_often_is_buried() {
    let node = node(Mechanism::MemoryWindow);
    let one = Consumer::first(&node);
    let dead = Consumer::first(&node);
    let letters = run(&one.pipeline, Queue::open(&one.pipeline, dead.queue.head())).expect("the queue");
    one.push(b"poison");
    for deliveries in 1..=3 {
        let claim =
            run(&one.pipeline, one.queue.claim_or_bury(LEASE, 3, &letters)).expect("the node serves it");
        let claim = claim.expect("it comes again");
        assert_eq!(claim.id.deliveries(), deliveries);
        run(&one.pipeline, one.queue.give_back(claim.id)).expect("it is still there");
    }
    let buried = run(&one.pipeline, one.queue.claim_or_bury(LEASE, 3, &letters)).expect("the node serves it");
    assert_eq!(buried, None);
    assert_eq!(one.claim_within(Lifetime(LEASE.0 * 3)), None, "it is done");
    assert_eq!(dead.claim().expect("it is here").entry, b"poison");
}

#[test]
fn a_closed_queue_ends_with_its_last_acknowledgement() {
    let node = node(Mechanism::MemoryWindow);
    let one = Consumer::first(&node);
    one.push(b"job");
    let claim = one.claim().expect("an entry");
    run(&one.pipeline, one.queue.close()).expect("the node serves it");
    assert_eq!(one.claim(), None, "it may come again");
    assert_eq!(one.acknowledge(&claim), Ok(()));
    assert_eq!(run(&one.pipeline, one.queue.claim(LEASE)), Err(QueueError::Closed));
}

#[test]
fn segments_go_back_to_the_node_when_all_of_their_entries_are_done() {
    let node = node(Mechanism::MemoryWindow);
    let one = Consumer::first(&node);
    (0..200u32).for_each(|number| one.push(&number.to_le_bytes()));
    let claim = || run(&one.pipeline, one.queue.claim(LONG)).expect("the node serves it").expect("an entry");
    let slow = claim();
    for _ in 1..200 {
        one.acknowledge(&claim()).expect("it is not late");
    }
    let sweep = || run(&one.pipeline, one.queue.sweep()).expect("the node serves it");
    let segments = || run(&one.pipeline, one.queue.statistics()).expect("the node serves it").segments;
    sweep();
    assert_eq!(segments(), 4, "the first segment has an entry that is not done");
    one.acknowledge(&slow).expect("it is not late");
    sweep();
    assert_eq!(segments(), 1);
}

#[test]
fn each_queue_has_one_kind_of_delivery() {
    let node = node(Mechanism::MemoryWindow);
    let one = Consumer::first(&node);
    assert_eq!(run(&one.pipeline, one.queue.pop()), Err(QueueError::OnlyClaims));
    assert_eq!(run(&one.pipeline, one.queue.pop_many(3)), Err(QueueError::OnlyClaims));
    let long = run(&one.pipeline, one.queue.claim(Lifetime::seconds(5000)));
    assert!(matches!(long, Err(QueueError::Option { .. })), "{long:?}");
    let plain =
        run(&one.pipeline, Queue::create(&one.pipeline, &QueueOptions { claims: false, ..options() }));
    let plain = plain.expect("a queue");
    assert_eq!(run(&one.pipeline, plain.claim(LEASE)), Err(QueueError::NoClaims));
}

#[test]
fn a_consumer_is_killed_at_each_step_of_a_claim() {
    at_each_step(Deed::Claim, End::Killed);
}

#[test]
fn a_consumer_is_killed_at_each_step_of_a_claim_of_what_comes_again() {
    at_each_step(Deed::ClaimAgain, End::Killed);
}

#[test]
fn a_consumer_is_killed_at_each_step_of_an_acknowledgement() {
    at_each_step(Deed::Acknowledge, End::Killed);
}

#[test]
fn a_consumer_is_late_at_each_step_of_a_claim() {
    at_each_step(Deed::Claim, End::Late);
}

#[test]
fn a_consumer_is_late_at_each_step_of_a_claim_of_what_comes_again() {
    at_each_step(Deed::ClaimAgain, End::Late);
}

#[test]
fn a_consumer_is_late_at_each_step_of_an_acknowledgement() {
    at_each_step(Deed::Acknowledge, End::Late);
}
