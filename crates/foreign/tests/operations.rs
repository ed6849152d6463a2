//! Operations that are begun and not waited for: each ends once, with its tag and its true result.

use portcullis::{Access, Acquire, Allocate, ControlRequest, Lifetime, SessionOptions};
use portcullis_errors::{Coded, ErrorCode};
use portcullis_foreign::{Attached, Completion, Ended, LocalNode};
use std::collections::HashMap;

const LEASE: Lifetime = Lifetime::seconds(5);

fn attached(node: &LocalNode) -> Attached {
    node.connect("red", SessionOptions::default()).expect("the node lets it in")
}

fn node() -> LocalNode {
    LocalNode::start(64 << 20, None).expect("a node")
}

fn by_tag(completions: Vec<Completion>) -> HashMap<u64, Completion> {
    let count = completions.len();
    let by_tag: HashMap<_, _> = completions.into_iter().map(|it| (it.tag, it)).collect();
    assert_eq!(by_tag.len(), count, "each tag ends once");
    by_tag
}

#[test]
fn more_than_the_queues_hold_are_carried_out_in_one_go() {
    let node = node();
    let mut attached = attached(&node);
    let block = attached.session.allocate(Allocate::bytes(8).lifetime(LEASE)).expect("memory");
    for tag in 0..5_000 {
        attached.operations.add(tag, Access::fetch_and_add(block.view(), 0, 1));
    }
    assert_eq!(attached.operations.pending(), 5_000);
    let ended = by_tag(attached.finish());
    assert_eq!((ended.len(), attached.operations.pending()), (5_000, 0));
    assert_eq!(attached.session.fetch_and_add(&block, 0, 0), Ok(5_000));
    // The additions are executed in order: each returns the sum of those before it.
    assert!(ended.iter().all(|(tag, it)| matches!(it.result, Ok(Ended::Value(before)) if before == *tag)));
}

#[test]
fn what_fails_says_so_under_its_own_tag_and_gives_its_buffer_back() {
    let node = node();
    let mut attached = attached(&node);
    let block = attached.session.allocate(Allocate::bytes(64).lifetime(LEASE)).expect("memory");
    let buffer = |attached: &Attached, length| attached.session.buffer(length).expect("room");
    let (fits, outside) = (buffer(&attached, 64), buffer(&attached, 65));
    attached.operations.add(1, Access::read(block.view(), 0, fits));
    attached.operations.add(2, Access::read(block.view(), 0, outside));
    attached.operations.add(3, Access::compare_and_swap(block.view(), 4, 0, 1));
    attached.operations.add(4, ControlRequest::extend(&block, Lifetime::seconds(6)));
    let mut ended = by_tag(attached.finish());
    assert!(matches!(ended[&1].result, Ok(Ended::Value(64))));
    assert!(matches!(ended[&4].result, Ok(Ended::Done)));
    let code = |it: &Completion| it.result.as_ref().expect_err("it fails").code();
    assert_eq!((code(&ended[&2]), code(&ended[&3])), (ErrorCode::OutsideRange, ErrorCode::Misaligned));
    assert!(ended.remove(&2).is_some_and(|it| it.buffer.is_some()));
}

#[test]
fn permissions_come_and_go_without_waiting_for_each() {
    let node = node();
    let mut attached = attached(&node);
    for tag in 0..200 {
        attached.operations.add(tag, Allocate::bytes(64).keep().shared().lifetime(LEASE));
    }
    let granted: Vec<_> = attached.finish().into_iter().map(|it| it.result.expect("memory")).collect();
    let mut objects = Vec::new();
    for (tag, granted) in (0..).zip(granted) {
        let Ended::Granted(permission) = granted else { panic!("{granted:?}") };
        objects.push(permission.object());
        attached.operations.revoke(tag, *permission, false);
    }
    assert!(attached.finish().iter().all(|it| matches!(it.result, Ok(Ended::Done))));
    for (tag, object) in (0..).zip(&objects) {
        attached.operations.add(tag, Acquire::object(*object).read_only().shared());
    }
    assert!(attached.finish().iter().all(|it| matches!(it.result, Ok(Ended::Granted(_)))));
}

#[test]
fn a_wait_ends_when_enough_have_ended_or_its_time_is_over() {
    let node = node();
    let mut attached = attached(&node);
    assert_eq!(attached.wait(1, None), 0, "nothing is under way");
    let held = attached.session.allocate(Allocate::bytes(64).lifetime(LEASE)).expect("memory");
    let asked = Acquire::object(held.object()).wait(Lifetime::seconds(4));
    attached.operations.add(1, asked);
    attached.post();
    assert_eq!(attached.wait(1, Some(Lifetime::millis(20))), 0, "another holds it");
    attached.session.revoke(held).expect("it is held");
    assert_eq!(attached.wait(1, None), 1);
}

#[test]
fn all_that_is_under_way_ends_when_the_node_does() {
    let node = node();
    let mut attached = attached(&node);
    let held = attached.session.allocate(Allocate::bytes(64).lifetime(LEASE)).expect("memory");
    for tag in 0..10 {
        attached.operations.add(tag, Acquire::object(held.object()).wait(Lifetime::seconds(4)));
    }
    attached.post();
    drop(node);
    let ended = attached.finish();
    assert_eq!(ended.len(), 10);
    for it in ended {
        assert_eq!(it.result.expect_err("the node is gone").code(), ErrorCode::NodeGone);
    }
    assert_eq!(attached.over().map(|it| it.code()), Some(ErrorCode::NodeGone));
}
