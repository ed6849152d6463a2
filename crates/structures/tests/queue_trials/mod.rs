//! Trials: a client dies, or stands still, at one step of an operation on a queue.

use crate::rig::{node, pipeline, run};
use portcullis::host::Host;
use portcullis::{Lifetime, Mechanism};
use portcullis_structures::Pipeline;
use portcullis_structures::queue::{Queue, QueueError, QueueOptions};
use std::pin::pin;
use std::rc::Rc;
use std::time::Instant;

const LEASE: Lifetime = Lifetime::millis(20);
/// Number of slots of a segment.
const SLOTS: u32 = 64;

/// The operation in whose middle the client ends.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Deed {
    Push,
    /// A push of an entry that takes several slots.
    PushLong,
    Pop,
    Close,
}

/// How the client ends.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum End {
    /// The client dies, and the node ends its permissions at once.
    Killed,
    /// The client stands still, and goes on when all others are done.
    Late,
}

/// The earlier use of the queue: the number of entries that were pushed, and the number of those that were popped.
#[derive(Clone, Copy, Debug)]
pub struct Before {
    pub pushed: u32,
    pub popped: u32,
}

/// The segment has room for another push.
pub const HALF_FULL: Before = Before { pushed: 5, popped: 1 };
/// The next push adds a segment.
pub const FULL: Before = Before { pushed: SLOTS, popped: 3 };
/// The next pop takes the last entry of a segment, and retires it.
pub const NEARLY_CONSUMED: Before = Before { pushed: SLOTS + 2, popped: SLOTS - 1 };

struct User {
    pipeline: Rc<Pipeline>,
    queue: Queue,
}

impl User {
    fn run<T>(&self, operation: impl Future<Output = Result<T, QueueError>>) -> T {
        run(&self.pipeline, operation).expect("the queue is whole, and the node serves it")
    }
}

fn entry(number: u32) -> Vec<u8> {
    format!("entry {number}").into_bytes()
}

fn new_entry(deed: Deed) -> Vec<u8> {
    if deed == Deed::PushLong { b"new ".repeat(20) } else { b"new".to_vec() }
}

async fn perform(queue: &Queue, deed: Deed) -> Result<Option<Vec<u8>>, QueueError> {
    match deed {
        Deed::Push | Deed::PushLong => queue.push(&new_entry(deed)).await.map(|()| None),
        Deed::Pop => queue.pop().await,
        Deed::Close => queue.close().await.map(|()| None),
    }
}

/// Pops all entries that are left in a queue, which may be closed.
fn drain(user: &User) -> Vec<Vec<u8>> {
    let mut entries = Vec::new();
    loop {
        match run(&user.pipeline, user.queue.pop()) {
            Ok(Some(entry)) => entries.push(entry),
            Ok(None) | Err(QueueError::Closed) => return entries,
            Err(error) => panic!("the queue is whole, and the node serves it: {error}"),
        }
    }
}

/// Runs one trial: the client ends after `posts` posts. Returns whether its operation ended before.
fn trial(node: &Host, before: Before, deed: Deed, end: End, posts: u64) -> bool {
    let what = format!("{deed:?} after {before:?}, {end:?} after {posts} posts");
    let tenant = format!("trial-{posts}");
    let options =
        QueueOptions { segment_slots: SLOTS, cell_bytes: 16, lease: LEASE, ..QueueOptions::default() };
    let own = pipeline(node, &tenant);
    let queue = run(&own, Queue::create(&own, &options)).expect("a queue");
    let other = User { pipeline: own, queue };
    (0..before.pushed).for_each(|number| other.run(other.queue.push(&entry(number))));
    for number in 0..before.popped {
        assert_eq!(other.run(other.queue.pop()), Some(entry(number)), "{what}");
    }
    let its = pipeline(node, &tenant);
    let queue = run(&its, Queue::open(&its, other.queue.head())).expect("the queue");
    its.halt_after(Some(posts));
    let mut operation = pin!(perform(&queue, deed));
    let mut told = its.drive(operation.as_mut());
    let was_done = told.is_some();
    if end == End::Killed && !was_done {
        drop(its);
        let (mut left, pushed) = others_go_on(&other, &what);
        left.extend(drain(&other));
        check(before, deed, None, &left, &pushed, &what);
        nothing_is_left(node, &other, &what);
        return false;
    }
    let (mut left, pushed) = others_go_on(&other, &what);
    if !was_done {
        its.halt_after(None);
        told = its.drive(operation.as_mut());
        assert!(told.is_some(), "{what}: it goes on");
    }
    left.extend(drain(&other));
    check(before, deed, told, &left, &pushed, &what);
    nothing_is_left(node, &other, &what);
    was_done
}

/// Pushes and pops as another client. Returns the entries that it has popped, and those that it has pushed.
fn others_go_on(other: &User, what: &str) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let mut popped = Vec::new();
    let mut pushed = Vec::new();
    for number in 1000..1000 + SLOTS + 5 {
        match run(&other.pipeline, other.queue.push(&entry(number))) {
            Ok(()) => pushed.push(entry(number)),
            Err(QueueError::Closed) => break,
            Err(error) => panic!("{what}: {error}"),
        }
    }
    for _ in 0..SLOTS + 3 {
        match run(&other.pipeline, other.queue.pop()) {
            Ok(Some(entry)) => popped.push(entry),
            Ok(None) | Err(QueueError::Closed) => break,
            Err(error) => panic!("{what}: {error}"),
        }
    }
    (popped, pushed)
}

/// Checks that every entry was popped once and in order. The operation of the ended client has happened, or it has not.
fn check(
    before: Before,
    deed: Deed,
    told: Option<Result<Option<Vec<u8>>, QueueError>>,
    left: &[Vec<u8>],
    pushed: &[Vec<u8>],
    what: &str,
) {
    let known: Vec<Vec<u8>> =
        (before.popped..before.pushed).map(entry).chain(pushed.iter().cloned()).collect();
    let new = new_entry(deed);
    let count = left.iter().filter(|entry| **entry == new).count();
    let others: Vec<&Vec<u8>> = left.iter().filter(|entry| **entry != new).collect();
    let wanted: Vec<&Vec<u8>> = known.iter().collect();
    match (deed, told) {
        (Deed::Push | Deed::PushLong, told) => {
            assert_eq!(others, wanted, "{what}: entries are lost or out of order");
            let closed = matches!(told, Some(Err(_)));
            assert!(count <= 1 && !closed, "{what}: an entry comes {count} times: {told:?}");
            assert!(told.is_none() || count == 1, "{what}: the entry that was pushed is lost");
        }
        (Deed::Pop, None) => {
            let taken = others == wanted[1..];
            assert!(taken || others == wanted, "{what}: entries are lost or out of order: {left:?}");
        }
        (Deed::Pop, Some(Ok(Some(popped)))) => {
            let rest: Vec<&Vec<u8>> = wanted.into_iter().filter(|entry| **entry != popped).collect();
            assert_eq!(others, rest, "{what}: entries are lost or out of order");
        }
        (Deed::Pop, told) => {
            assert!(matches!(told, Some(Ok(None))), "{what}: {told:?}");
            assert_eq!(others, wanted, "{what}: entries are lost or out of order");
        }
        (Deed::Close, told) => {
            assert!(matches!(told, None | Some(Ok(None))), "{what}: {told:?}");
            assert_eq!(others, wanted, "{what}: entries are lost or out of order");
        }
    }
}

/// Checks that after a sweep there are the head and the last segment, and no other object.
fn nothing_is_left(node: &Host, user: &User, what: &str) {
    user.run(user.queue.sweep());
    let found = user.run(user.queue.statistics());
    assert_eq!((found.slots, found.segments), (0, 1), "{what}: slots or segments are leaked");
    let since = Instant::now();
    // The objects of earlier trials' tenants are freed little by little.
    while node.counters().objects != 2 {
        assert!(since.elapsed().as_secs() < 10, "{what}: objects are leaked: {:?}", node.counters());
    }
}

pub fn at_each_step(before: Before, deed: Deed, end: End) {
    let node = node(Mechanism::MemoryWindow);
    let done = (0..1_000).find(|&posts| trial(&node, before, deed, end, posts));
    assert!(done.is_some_and(|steps| steps >= 2), "an operation of {done:?} steps");
}
