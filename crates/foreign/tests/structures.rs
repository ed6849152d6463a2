//! A structure goes from thread to thread with the session that drives it.

use portcullis::{Acquire, DirectoryName, Lifetime, Session, SessionOptions};
use portcullis_errors::{Coded, ErrorCode};
use portcullis_foreign::{
    Driven, LocalNode, QueueAsk, QueueDone, Structure, StructureAddress, TableAsk, TableDone, When,
};
use portcullis_structures::queue::{Queue, QueueOptions};
use portcullis_structures::table::{Access, Condition, Stored, Table, TableOptions};
use std::sync::mpsc::channel;
use std::time::Instant;

fn node() -> LocalNode {
    LocalNode::start(64 << 20, None).expect("a node")
}

fn session(node: &LocalNode) -> Session {
    node.connect("red", SessionOptions::default()).expect("the node lets it in").session
}

fn name(text: &str) -> DirectoryName {
    DirectoryName::new(text).expect("a name")
}

#[test]
fn a_table_works_in_one_thread_after_another_and_ends_in_a_third() {
    let node = node();
    let mut table =
        Driven::<Table>::create(session(&node), &TableOptions::default(), Some(name("t"))).expect("a table");
    table = std::thread::spawn(move || {
        assert_eq!(table.run(async |table| table.insert(b"key", b"value").await), Ok(true));
        table
    })
    .join()
    .expect("no panic");
    assert_eq!(table.run(async |table| table.get(b"key").await), Ok(Some(b"value".to_vec())));
    let address = StructureAddress::Name(name("t"));
    let mut reader = Driven::<Table>::open(session(&node), address, Access::Read).expect("it is there");
    assert_eq!(reader.run(async |table| table.length().await), Ok(1));
    let ended = std::thread::spawn(move || table.end(async |table| table.destroy(Some(name("t"))).await));
    assert_eq!(ended.join().expect("no panic"), Ok(()));
}

#[test]
fn a_table_whose_name_is_taken_is_none() {
    let node = node();
    let options = TableOptions::default();
    let _first = Driven::<Table>::create(session(&node), &options, Some(name("t"))).expect("a table");
    let refused =
        Driven::<Table>::create(session(&node), &options, Some(name("t"))).expect_err("it is taken");
    assert_eq!(refused.code(), ErrorCode::NameTaken);
}

#[test]
fn a_queue_is_found_by_its_name_and_by_its_head() {
    let node = node();
    let options = QueueOptions::default();
    let mut queue = Driven::<Queue>::create(session(&node), &options, Some(name("q"))).expect("a queue");
    assert_eq!(queue.run(async |queue| queue.push(b"entry").await), Ok(()));
    let head = queue.run(async |queue| queue.head());
    for address in [StructureAddress::Object(head), StructureAddress::Name(name("q"))] {
        let mut opened = Driven::<Queue>::open(session(&node), address).expect("it is there");
        let popped = opened.run(async |queue| queue.pop().await).expect("the node is there");
        assert_eq!(popped.is_some(), matches!(address, StructureAddress::Object(_)));
    }
    assert!(!queue.is_over());
    drop(node);
    assert!(queue.run(async |queue| queue.push(b"late").await).is_err());
    assert!(queue.is_over());
}

#[test]
fn an_operation_is_given_up_where_it_stands_and_the_next_one_works() {
    let node = node();
    let mut table = Driven::<Table>::create(session(&node), &TableOptions::default(), None).expect("a table");
    // An operation that needs the head waits three leases for another client that holds it.
    let head = table.run(async |table| table.head());
    let mut holder = session(&node);
    let held = holder.acquire(Acquire::object(head).lifetime(Lifetime::seconds(9))).expect("it comes");
    let store = async |table: &Table| {
        table.store(b"key", b"value", Condition::Always, Some(Lifetime::seconds(60))).await
    };
    let mut asked = 0;
    let given_up = table.run_while(store, Lifetime::millis(1), || {
        asked += 1;
        asked < 5
    });
    assert_eq!((given_up, asked), (None, 5));
    holder.revoke(held).expect("it was held");
    assert_eq!(table.run_while(store, Lifetime::millis(1), || true), Some(Ok(Stored::Inserted)));
    assert_eq!(table.run(async |table| table.length().await), Ok(1));
}

#[test]
fn a_wait_for_an_entry_is_given_up_and_the_entry_is_there_later() {
    let node = node();
    let mut queue = Driven::<Queue>::create(session(&node), &QueueOptions::default(), None).expect("a queue");
    let pop = async |queue: &Queue| queue.pop_within(Lifetime::seconds(60)).await;
    assert_eq!(queue.run_while(pop, Lifetime::millis(1), || false), None);
    assert_eq!(queue.run(async |queue| queue.push(b"entry").await), Ok(()));
    assert_eq!(queue.run_while(pop, Lifetime::millis(1), || true), Some(Ok(Some(b"entry".to_vec()))));
}

#[test]
fn a_wait_for_an_entry_ends_when_the_node_goes() {
    let node = node();
    let mut queue = Driven::<Queue>::create(session(&node), &QueueOptions::default(), None).expect("a queue");
    let (asked, is_waiting) = channel();
    let stopper = std::thread::spawn(move || {
        is_waiting.recv().expect("it is asked whether to go on");
        drop(node);
    });
    let since = Instant::now();
    let pop = async |queue: &Queue| queue.pop_within(Lifetime::seconds(60)).await;
    let popped = queue.run_while(pop, Lifetime::millis(1), || {
        let _ = asked.send(());
        since.elapsed().as_secs() < 20
    });
    assert!(matches!(popped, Some(Err(_))), "{popped:?}");
    stopper.join().expect("it stops");
}

/// Has turns until `count` operations have ended. Returns their results, in the order of their numbers.
fn ended<S: Structure>(driven: &mut Driven<S>, count: usize) -> Vec<S::Done> {
    let mut ended = Vec::new();
    while ended.len() < count {
        ended.extend(driven.turn());
        std::thread::yield_now();
    }
    ended.sort_by_key(|(number, _)| *number);
    ended.into_iter().map(|(_, done)| done.expect("the node is there")).collect()
}

fn store(key: &[u8]) -> TableAsk<Vec<u8>> {
    TableAsk::Store { key: key.to_vec(), value: b"value".to_vec(), when: When::Absent, live: None }
}

#[test]
fn operations_that_were_begun_end_in_turns_and_in_another_thread() {
    let node = node();
    let mut table = Driven::<Table>::create(session(&node), &TableOptions::default(), None).expect("a table");
    for key in 0..200_u8 {
        table.begin(store(&[key]));
    }
    assert_eq!(table.under_way(), 200);
    let first = table.turn().len();
    assert!(first < 200, "they wait for the node");
    let moved = std::thread::spawn(move || {
        let stored = ended(&mut table, 200 - first);
        (table, stored)
    });
    let (mut table, stored) = moved.join().expect("no panic");
    assert!(stored.iter().all(|done| *done == TableDone::Stored(Stored::Inserted)));
    table.begin(TableAsk::<Vec<u8>>::Length);
    assert_eq!(ended(&mut table, 1), [TableDone::Count(200)]);
    assert_eq!(table.under_way(), 0);
}

#[test]
fn an_operation_that_a_call_waits_for_carries_on_those_that_were_begun() {
    let node = node();
    let mut queue = Driven::<Queue>::create(session(&node), &QueueOptions::default(), None).expect("a queue");
    queue.begin(QueueAsk::<Vec<u8>>::Pop(None));
    assert!(queue.turn().is_empty());
    // This pop waits for what the begun pop holds.
    assert_eq!(queue.run(async |queue| queue.pop().await), Ok(None));
    assert_eq!(queue.run(async |queue| queue.push(b"entry").await), Ok(()));
    assert_eq!(ended(&mut queue, 1), [QueueDone::Popped(Some(b"entry".to_vec()))]);
}

#[test]
fn an_entry_that_a_forgotten_pop_has_taken_goes_to_another_and_one_that_still_waits_takes_none() {
    let node = node();
    let mut queue = Driven::<Queue>::create(session(&node), &QueueOptions::default(), None).expect("a queue");
    let pop = || QueueAsk::<Vec<u8>>::Pop(None);
    let number = queue.begin(pop());
    assert!(queue.turn().is_empty());
    queue.forget(number);
    while queue.under_way() > 0 {
        assert!(queue.turn().is_empty());
    }
    assert_eq!(queue.run(async |queue| queue.push(b"1").await), Ok(()));
    assert_eq!(queue.ask(pop()), Ok(QueueDone::Popped(Some(b"1".to_vec()))));
    for entry in 0..50_u8 {
        assert_eq!(queue.run(async |queue| queue.push(&[entry]).await), Ok(()));
        let number = queue.begin(pop());
        // By then the pop has ended in some rounds, is under way in others, and has not begun in the rest.
        for _ in 0..entry % 3 {
            queue.run(async |queue| queue.statistics().await).expect("the node is there");
        }
        queue.forget(number);
        let taken = Some(vec![entry]);
        if entry % 2 == 0 {
            assert_eq!(queue.ask(pop()), Ok(QueueDone::Popped(taken)));
        } else {
            queue.begin(pop());
            assert_eq!(ended(&mut queue, 1), [QueueDone::Popped(taken)]);
        }
    }
}

#[test]
fn a_structure_ends_while_operations_are_under_way() {
    let node = node();
    let mut queue = Driven::<Queue>::create(session(&node), &QueueOptions::default(), None).expect("a queue");
    queue.begin(QueueAsk::<Vec<u8>>::Pop(None));
    queue.turn();
    assert_eq!(queue.end(async |queue| queue.destroy().await), Ok(()));
}
