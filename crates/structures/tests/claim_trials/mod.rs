//! Trials: a consumer dies, or stands still, at one step of a claim or of an acknowledgement.

use crate::rig::{node, pipeline, run};
use portcullis::host::Host;
use portcullis::{Lifetime, Mechanism};
use portcullis_structures::Pipeline;
use portcullis_structures::queue::{Claim, Queue, QueueError, QueueOptions};
use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

const LEASE: Lifetime = Lifetime::millis(5);
/// Number of entries: more than a segment has slots for.
const ENTRIES: u32 = 70;
/// Number of entries that another consumer has acknowledged before: all entries of the first segment but one.
const DONE: u32 = 63;

/// The operation in whose middle the consumer ends.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Deed {
    /// The consumer claims an entry that no consumer has taken.
    Claim,
    /// The consumer claims an entry whose claim has ended.
    ClaimAgain,
    Acknowledge,
}

/// How the consumer ends.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum End {
    /// The consumer dies, and the node ends its permissions at once.
    Killed,
    /// The consumer stands still, and goes on when all others are done.
    Late,
}

struct User {
    pipeline: Rc<Pipeline>,
    queue: Queue,
}

impl User {
    fn run<T>(&self, operation: impl Future<Output = Result<T, QueueError>>) -> T {
        run(&self.pipeline, operation).expect("the queue is whole, and the node serves it")
    }
}

/// The number of times that each entry was acknowledged.
type Done = BTreeMap<Vec<u8>, u32>;

async fn perform(queue: &Queue, deed: Deed, claim: Option<&Claim>) -> Result<Option<Claim>, QueueError> {
    match deed {
        Deed::Claim | Deed::ClaimAgain => queue.claim(LEASE).await,
        Deed::Acknowledge => queue.acknowledge(claim.expect("it has one").id).await.map(|()| None),
    }
}

/// Claims and acknowledges as another consumer until the queue, which is closed, has no entries left.
fn others_finish(other: &User, done: &mut Done, what: &str) {
    loop {
        match run(&other.pipeline, other.queue.claim_within(LEASE, Lifetime::seconds(10))) {
            Ok(Some(claim)) => acknowledge(other, &claim, done),
            Ok(None) => panic!("{what}: an entry is not delivered again"),
            Err(QueueError::Closed) => return,
            Err(error) => panic!("{what}: {error}"),
        }
    }
}

fn acknowledge(user: &User, claim: &Claim, done: &mut Done) {
    match run(&user.pipeline, user.queue.acknowledge(claim.id)) {
        Ok(()) => *done.entry(claim.entry.clone()).or_default() += 1,
        Err(QueueError::ClaimEnded) => {}
        Err(error) => panic!("{error}"),
    }
}

/// Runs one trial: the consumer ends after `posts` posts. Returns whether its operation ended before.
fn trial(node: &Host, deed: Deed, end: End, posts: u64) -> bool {
    let what = format!("{deed:?}, {end:?} after {posts} posts");
    let tenant = format!("trial-{posts}");
    let options = QueueOptions { segment_slots: 64, cell_bytes: 16, claims: true, ..QueueOptions::default() };
    let own = pipeline(node, &tenant);
    let queue = run(&own, Queue::create(&own, &options)).expect("a queue");
    let other = User { pipeline: own, queue };
    (0..ENTRIES).for_each(|number| other.run(other.queue.push(&number.to_le_bytes())));
    let mut done = Done::new();
    for _ in 0..DONE {
        let claim = other.run(other.queue.claim(Lifetime::seconds(100))).expect("an entry");
        acknowledge(&other, &claim, &mut done);
    }
    let its = pipeline(node, &tenant);
    let its =
        User { queue: run(&its, Queue::open(&its, other.queue.head())).expect("the queue"), pipeline: its };
    let claim = match deed {
        Deed::Claim => None,
        Deed::ClaimAgain => {
            other.run(other.queue.claim(LEASE)).expect("an entry");
            // From its first look on it measures the lease.
            let _ = its.run(its.queue.statistics());
            None
        }
        Deed::Acknowledge => Some(its.run(its.queue.claim(LEASE)).expect("an entry")),
    };
    other.run(other.queue.close());
    its.pipeline.halt_after(Some(posts));
    let mut operation = pin!(perform(&its.queue, deed, claim.as_ref()));
    let mut told = its.pipeline.drive(operation.as_mut());
    let was_done = told.is_some();
    // No segment goes back to the node with an entry that is not done.
    other.run(other.queue.sweep());
    others_finish(&other, &mut done, &what);
    if !was_done && end == End::Late {
        its.pipeline.halt_after(None);
        told = its.pipeline.drive(operation.as_mut());
        assert!(told.is_some(), "{what}: it goes on");
    }
    its.pipeline.halt_after(None);
    match (deed, told) {
        (Deed::Acknowledge, Some(Ok(_))) => {
            *done.entry(claim.as_ref().expect("it has one").entry.clone()).or_default() += 1;
        }
        (_, Some(Ok(Some(claim)))) if end == End::Late => acknowledge(&its, &claim, &mut done),
        (_, Some(Ok(_)) | None) => {}
        (_, Some(Err(QueueError::ClaimEnded | QueueError::Closed))) => {}
        (_, Some(Err(error))) => panic!("{what}: {error}"),
    }
    check(&done, deed, (end, was_done), &what);
    nothing_is_left(&other, &what);
    was_done
}

/// Checks that each entry is acknowledged once. An entry whose consumer died in its acknowledgement may be acknowledged
/// although no client got that result.
fn check(done: &Done, deed: Deed, (end, was_done): (End, bool), what: &str) {
    assert!(done.values().all(|&times| times == 1), "{what}: acknowledged more than once: {done:?}");
    let untold = usize::from(deed == Deed::Acknowledge && end == End::Killed && !was_done);
    let missing = ENTRIES as usize - done.len();
    assert!(missing <= untold, "{what}: {missing} entries are lost");
}

/// Checks that after a sweep there are the head and the last segment, and that no entry is claimed.
fn nothing_is_left(user: &User, what: &str) {
    user.run(user.queue.sweep());
    let found = user.run(user.queue.statistics());
    assert_eq!((found.slots, found.claimed, found.segments), (0, 0, 1), "{what}: something is left");
}

/// Lets the consumer end after each of its posts in turn.
pub fn at_each_step(deed: Deed, end: End) {
    let node = node(Mechanism::MemoryWindow);
    let mut posts = 0;
    while !trial(&node, deed, end, posts) {
        posts += 1;
    }
    assert!(posts > 0, "{deed:?} takes no step");
}

/// Checks that an entry whose consumer does nothing is delivered again after the lease, not before, and then belongs to
/// the next consumer alone.
pub fn an_entry_belongs_to_its_last_consumer() {
    let node = node(Mechanism::MemoryWindow);
    let options = QueueOptions { claims: true, ..QueueOptions::default() };
    let one = pipeline(&node, "red");
    let queue = run(&one, Queue::create(&one, &options)).expect("a queue");
    let two = pipeline(&node, "red");
    let others = run(&two, Queue::open(&two, queue.head())).expect("the queue");
    run(&one, queue.push(b"job")).expect("the node serves it");
    let lease = Lifetime::millis(100);
    let claimed = Instant::now();
    let first = run(&one, queue.claim(lease)).expect("the node serves it").expect("an entry");
    assert_eq!((&first.entry[..], first.id.deliveries()), (&b"job"[..], 1));
    let again = run(&two, others.claim_within(lease, Lifetime::seconds(10))).expect("the node serves it");
    let again = again.expect("it is delivered again");
    assert!(claimed.elapsed() >= Duration::from(lease), "it is delivered before its lease is over");
    assert_eq!((&again.entry[..], again.id.deliveries()), (&b"job"[..], 2));
    let late = run(&one, queue.acknowledge(first.id));
    assert_eq!(late, Err(QueueError::ClaimEnded), "acknowledged more than once");
    assert_eq!(run(&two, others.acknowledge(again.id)), Ok(()));
    let waits = Lifetime(lease.0 * 2);
    assert_eq!(run(&one, queue.claim_within(lease, waits)), Ok(None), "it is done");
    let found = run(&one, queue.statistics()).expect("the node serves it");
    assert_eq!((found.slots, found.claimed, found.segments), (0, 0, 1));
}
