//! A queue that is used by the rules: as a plain queue, over segments, with every mechanism, closed and drained.

use crate::rig::{node, node_with, pipeline, run};
use portcullis::{Allocate, DirectoryName, Error, Lifetime, Mechanism, NodeConfig, Refusal, ViolationLimits};
use portcullis_structures::queue::{ENTRY_BYTES_MAX, Queue, QueueError, QueueOptions};
use portcullis_structures::table::{Table, TableOptions};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Options with segments so short that each test takes several, and a lease that lasts on a busy machine.
fn short() -> QueueOptions {
    let lease = Lifetime::seconds(1);
    QueueOptions { segment_slots: 64, cell_bytes: 16, segments_max: 8, lease, ..QueueOptions::default() }
}

#[derive(Clone, Debug)]
enum QueueAction {
    Push(Vec<u8>),
    Pop,
    PopMany(usize),
}

fn actions() -> impl Strategy<Value = Vec<QueueAction>> {
    let entry = proptest::collection::vec(any::<u8>(), 0..100);
    let action = prop_oneof![
        3 => entry.prop_map(QueueAction::Push),
        2 => Just(QueueAction::Pop),
        1 => (1usize..20).prop_map(QueueAction::PopMany),
    ];
    proptest::collection::vec(action, 1..300)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn it_does_what_a_plain_queue_does(actions in actions()) {
        let node = node(Mechanism::MemoryWindow);
        let pipeline = pipeline(&node, "red");
        let queue = run(&pipeline, Queue::create(&pipeline, &short())).expect("a queue");
        let mut plain: VecDeque<Vec<u8>> = VecDeque::new();
        for action in actions {
            match action {
                QueueAction::Push(entry) => {
                    prop_assert_eq!(run(&pipeline, queue.push(&entry)), Ok(()));
                    plain.push_back(entry);
                }
                QueueAction::Pop => prop_assert_eq!(run(&pipeline, queue.pop()), Ok(plain.pop_front())),
                QueueAction::PopMany(most) => {
                    let popped = run(&pipeline, queue.pop_many(most)).expect("the node serves it");
                    prop_assert!(popped.len() <= most);
                    prop_assert_eq!(popped.is_empty(), plain.is_empty());
                    let first: Vec<_> = plain.drain(..popped.len()).collect();
                    prop_assert_eq!(popped, first);
                }
            }
        }
    }
}

#[test]
fn every_mechanism_carries_a_queue() {
    for mechanism in Mechanism::ALL {
        let node = node(mechanism);
        let pipeline = pipeline(&node, "red");
        let queue = run(&pipeline, Queue::create(&pipeline, &short())).expect("a queue");
        for number in 0..200u32 {
            run(&pipeline, queue.push(&number.to_le_bytes())).expect("there is room");
        }
        for number in 0..200u32 {
            assert_eq!(run(&pipeline, queue.pop()), Ok(Some(number.to_le_bytes().to_vec())), "{mechanism}");
        }
        assert_eq!(run(&pipeline, queue.pop()), Ok(None), "{mechanism}");
    }
}

#[test]
fn entries_of_any_length_go_through() {
    let node = node(Mechanism::MemoryWindow);
    let pipeline = pipeline(&node, "red");
    let options = QueueOptions { cell_bytes: 1024, segment_slots: 128, ..short() };
    let queue = run(&pipeline, Queue::create(&pipeline, &options)).expect("a queue");
    let lengths = [0, 1, 1023, 1024, 1025, 40_000, ENTRY_BYTES_MAX, 7, ENTRY_BYTES_MAX, ENTRY_BYTES_MAX];
    let entry = |length: usize| (0..=255u8).cycle().take(length).collect::<Vec<u8>>();
    for length in lengths {
        run(&pipeline, queue.push(&entry(length))).expect("there is room");
    }
    for length in lengths {
        assert_eq!(run(&pipeline, queue.pop()), Ok(Some(entry(length))));
    }
    let too_long = run(&pipeline, queue.push(&vec![0; ENTRY_BYTES_MAX + 1]));
    let (bytes, most) = (ENTRY_BYTES_MAX as u64 + 1, ENTRY_BYTES_MAX as u64);
    assert_eq!(too_long, Err(QueueError::EntryTooLong { bytes, most }));
}

#[test]
fn a_queue_that_is_closed_is_drained_and_takes_nothing_more() {
    let node = node(Mechanism::MemoryWindow);
    let (one, two) = (pipeline(&node, "red"), pipeline(&node, "red"));
    let queue = run(&one, Queue::create(&one, &short())).expect("a queue");
    let other = run(&two, Queue::open(&two, queue.head())).expect("the queue");
    for number in 0..100u8 {
        run(&two, other.push(&[number])).expect("there is room");
    }
    run(&one, queue.close()).expect("the node serves it");
    run(&one, queue.close()).expect("a queue that is closed stays so");
    assert_eq!(run(&two, other.push(b"late")), Err(QueueError::Closed));
    assert_eq!(run(&one, queue.push(b"late")), Err(QueueError::Closed));
    assert!(run(&two, other.statistics()).expect("the queue").is_closed);
    for number in 0..100u8 {
        assert_eq!(run(&one, queue.pop()), Ok(Some(vec![number])));
    }
    assert_eq!(run(&one, queue.pop()), Err(QueueError::Closed));
    assert_eq!(run(&two, other.pop_within(Lifetime::seconds(5))), Err(QueueError::Closed));
}

#[test]
fn a_full_queue_says_so_and_goes_on_when_consumers_have_made_room() {
    let node = node(Mechanism::MemoryWindow);
    let pipeline = pipeline(&node, "red");
    // A push that outlasts its lease leaves its slot to the consumers and takes another one.
    let options = QueueOptions { segments_max: 2, lease: Lifetime::seconds(10), ..short() };
    let queue = run(&pipeline, Queue::create(&pipeline, &options)).expect("a queue");
    for number in 0..128u8 {
        run(&pipeline, queue.push(&[number])).expect("there is room");
    }
    assert_eq!(run(&pipeline, queue.push(b"more")), Err(QueueError::Full));
    for number in 0..64u8 {
        assert_eq!(run(&pipeline, queue.pop()), Ok(Some(vec![number])));
    }
    run(&pipeline, queue.push(b"more")).expect("there is room again");
    for number in 64..128u8 {
        assert_eq!(run(&pipeline, queue.pop()), Ok(Some(vec![number])));
    }
    assert_eq!(run(&pipeline, queue.pop()), Ok(Some(b"more".to_vec())));
}

#[test]
fn a_consumer_waits_for_what_comes_and_no_longer_than_it_wants_to() {
    let node = node(Mechanism::MemoryWindow);
    let (one, two) = (pipeline(&node, "red"), pipeline(&node, "red"));
    let queue = run(&one, Queue::create(&one, &short())).expect("a queue");
    assert_eq!(run(&one, queue.pop_within(Lifetime::millis(1))), Ok(None));
    let (head, began) = (queue.head(), one.now());
    drop(two);
    std::thread::scope(|scope| {
        let node = &node;
        scope.spawn(move || {
            let own = pipeline(node, "red");
            let queue = run(&own, Queue::open(&own, head)).expect("the queue");
            run(&own, queue.push(b"here")).expect("there is room");
        });
        assert_eq!(run(&one, queue.pop_within(Lifetime::seconds(15))), Ok(Some(b"here".to_vec())));
    });
    assert!(one.now().since(began) < Lifetime::seconds(15), "it waited although there was an entry");
}

#[test]
fn many_operations_are_in_flight_and_consumed_segments_go_back() {
    let node = node(Mechanism::MemoryWindow);
    let pipeline = pipeline(&node, "red");
    let queue = run(&pipeline, Queue::create(&pipeline, &short())).expect("a queue");
    let name = "orders".parse().expect("a name");
    run(&pipeline, queue.publish(name)).expect("nobody has the name");
    let queue = run(&pipeline, Queue::open_named(&pipeline, name)).expect("the queue");
    let mut next = 0u32;
    for _ in 0..6 {
        let entries: Vec<[u8; 4]> = (next..next + 200).map(u32::to_le_bytes).collect();
        next += 200;
        pipeline.run(64, entries.iter().map(|entry| queue.push(entry)), |pushed| assert_eq!(pushed, Ok(())));
        let mut popped = Vec::new();
        pipeline.run(4, entries.iter().map(|_| queue.pop()), |entry| {
            popped.push(entry.expect("the node serves it"))
        });
        let mut numbers: Vec<u32> = popped
            .into_iter()
            .map(|entry| u32::from_le_bytes(entry.expect("as many as were pushed").try_into().expect("four")))
            .collect();
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(next - 200..next));
    }
    run(&pipeline, queue.sweep()).expect("the node serves it");
    let found = run(&pipeline, queue.statistics()).expect("the queue");
    assert_eq!((found.slots, found.segments), (0, 1));
    let since = Instant::now();
    while node.counters().objects != 2 {
        assert!(since.elapsed().as_secs() < 20, "segments are leaked: {:?}", node.counters());
    }
}

#[test]
fn a_pause_of_the_tenant_is_waited_for() {
    // Each stray access costs the tenant a pause.
    let violations =
        ViolationLimits { free_max: 0, pause_min: Lifetime::millis(100), ..ViolationLimits::default() };
    let node = node_with(NodeConfig { pool_bytes: 256 << 20, violations, ..NodeConfig::default() });
    let (other, pipeline, sibling) =
        (pipeline(&node, "blue"), pipeline(&node, "red"), pipeline(&node, "red"));
    let queue = run(&pipeline, Queue::create(&pipeline, &short())).expect("a queue");
    let table = run(&pipeline, Table::create(&pipeline, &TableOptions::default())).expect("a table");
    let ask = Allocate::bytes(64).lifetime(Lifetime::seconds(1));
    // A client of the tenant shows another tenant's key, until the tenant is paused.
    loop {
        let foreign = Rc::new(run(&other, other.allocate(ask)).expect("memory"));
        assert!(run(&sibling, sibling.read(&foreign, 0, 8)).is_err());
        match run(&pipeline, pipeline.allocate(ask)) {
            Err(Error::Paused { .. }) => break,
            told => drop(told.expect("there is memory")),
        }
    }
    // Queue and table need permissions and memory, which the node does not give now.
    for number in 0..100u8 {
        run(&pipeline, queue.push(&[number])).expect("there is room");
    }
    assert_eq!(run(&pipeline, table.insert(b"key", b"value")), Ok(true));
}

#[test]
fn something_else_is_no_queue() {
    let node = node(Mechanism::MemoryWindow);
    let pipeline = pipeline(&node, "red");
    let ask = Allocate::bytes(4096).shared().lifetime(Lifetime::seconds(1));
    let object = run(&pipeline, pipeline.allocate(ask)).expect("memory").object();
    let opened = run(&pipeline, Queue::open(&pipeline, object));
    assert_eq!(opened.err(), Some(QueueError::NotAQueue));
    let options = QueueOptions { segment_slots: 2000, ..short() };
    let made = run(&pipeline, Queue::create(&pipeline, &options));
    assert!(matches!(made, Err(QueueError::Option { what: "segment_slots", .. })));
    let options = QueueOptions { cell_bytes: 12, ..short() };
    let refused = run(&pipeline, Queue::create(&pipeline, &options)).expect_err("no whole words");
    assert_eq!(refused.to_string(), "the queue's cell_bytes is 12: give a multiple of 8");
}

/// Structures that are made, used in part and destroyed leave no object, no byte and no name. Other clients that have
/// them open get errors.
#[test]
fn queues_and_tables_that_are_destroyed_leave_nothing() {
    let node = node(Mechanism::MemoryWindow);
    let (one, two) = (pipeline(&node, "red"), pipeline(&node, "red"));
    let before = node.counters();
    for number in 0..20u32 {
        let name = DirectoryName::new(&format!("q{number}")).expect("a name");
        let lease = Lifetime::millis(20);
        let queue = run(&one, Queue::create(&one, &QueueOptions { lease, ..short() })).expect("a queue");
        run(&one, queue.publish(name)).expect("the name is free");
        let other = run(&two, Queue::open_named(&two, name)).expect("it has this name");
        for number in 0..200u32 {
            run(&two, other.push(&number.to_le_bytes())).expect("there is room");
        }
        assert_eq!(run(&one, queue.pop()), Ok(Some(0u32.to_le_bytes().to_vec())));
        run(&one, queue.destroy()).expect("the node serves it");
        let gone = QueueError::Session(Error::Refused(Refusal::Gone));
        // The other client gets the error when its permissions have ended.
        let ended =
            (0..).find_map(|_| run(&two, other.push(b"late")).err().or_else(|| run(&two, other.pop()).err()));
        assert_eq!(ended, Some(gone));
        assert!(run(&two, Queue::open_named(&two, name)).is_err());
        let table = run(&one, Table::create(&one, &TableOptions::default())).expect("a table");
        for number in 0..20u32 {
            run(&one, table.insert(&number.to_le_bytes(), &[7; 3000])).expect("the node serves it");
        }
        run(&one, table.destroy(None)).expect("the node serves it");
    }
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let now = node.counters();
        if (now.objects, now.bytes_used, now.names) == (before.objects, before.bytes_used, before.names) {
            break;
        }
        assert!(Instant::now() < until, "{now:?}");
        std::thread::yield_now();
    }
}
