//! Buffers to their last byte, queues to their last place, and the client's counters.

use crate::fake::{BAD, Fake, GOOD, Handle, fake};
use portcullis_client::{
    Access, Acquire, Allocate, Answer, Client, ClientConfig, ControlRequest, Error, Operation, Permission,
    Unchecked,
};
use portcullis_nic::{Completion, CompletionKind, QpId, Status, VerbsEndpoint};
use portcullis_protocol::{
    Incarnation, Lifetime, Mechanism, Moment, ObjectRef, Refusal, RemoteAddress, ReplyBody, Rkey,
};

const NOW: Moment = Moment(10);
const SHORT: Lifetime = Lifetime::millis(1);
const LONG: Lifetime = Lifetime::millis(10);

fn start(depth: usize, config: ClientConfig) -> (Client<Fake>, Handle) {
    let (endpoint, handle) = fake(2, depth);
    (Client::new(endpoint, config).unwrap(), handle)
}

fn granted(client: &mut Client<Fake>, lifetime: Lifetime) -> Permission {
    let call = client.call(NOW, Allocate::bytes(4096).lifetime(lifetime)).unwrap();
    client.poll(NOW);
    let Some(Ok(Answer::Granted(permission))) = client.take_call(call) else { panic!("granted") };
    permission
}

fn write(client: &mut Client<Fake>, permission: &Permission) -> Operation {
    let buffer = client.buffer(1).unwrap();
    client.access(NOW, Access::write(permission, 0, buffer)).unwrap()
}

fn raw(client: &mut Client<Fake>, rkey: Rkey) -> Operation {
    let buffer = client.buffer(8).unwrap();
    client.dangerous_access(Access::write(Unchecked::new(RemoteAddress(4096), rkey), 0, buffer)).unwrap()
}

fn result(client: &mut Client<Fake>, operation: Operation) -> Result<u64, Error> {
    client.take(operation).expect("the operation has ended").result
}

/// Reports a completion that the fake NIC would never report.
fn say(handle: &Handle, request: u64, queue_pair: QpId, status: Status, kind: CompletionKind) {
    handle.world().completions.push_back(Completion { request, queue_pair, status, kind });
}

#[test]
fn a_buffer_holds_what_was_written_where_it_was_written() {
    let (client, _handle) = start(4, ClientConfig::default());
    let mut first = client.buffer(100).unwrap();
    let mut second = client.buffer(100).unwrap();
    second.write(0, &[2; 100]);
    first.write(0, &[0; 100]);
    first.write(10, &[1; 20]);
    let mut bytes = [9; 40];
    first.read(5, &mut bytes);
    let expected: Vec<u8> = (5..45).map(|at| u8::from((10..30).contains(&at))).collect();
    assert_eq!(bytes[..], expected);
    let mut theirs = [0; 100];
    second.read(0, &mut theirs);
    assert_eq!(theirs, [2; 100], "its neighbour's stay");
}

#[test]
fn a_buffer_is_resized_within_its_capacity_alone() {
    let (client, _handle) = start(4, ClientConfig::default());
    for asked in [0, 1, 64, 65, 100, 4096, 5000] {
        let mut buffer = client.buffer(asked).unwrap();
        let capacity = buffer.capacity();
        assert_eq!((buffer.len(), buffer.is_empty()), (asked, asked == 0));
        assert!(capacity >= u64::from(asked) && capacity.is_power_of_two());
        let most = u32::try_from(capacity).unwrap();
        buffer.write(0, &vec![7; asked as usize]);
        for length in [most, 0, 1, most] {
            buffer.resize(length).unwrap();
            assert_eq!((buffer.len(), buffer.capacity(), buffer.is_empty()), (length, capacity, length == 0));
        }
        let beyond = buffer.resize(most + 1);
        assert!(matches!(beyond, Err(Error::ArenaFull { asked, .. }) if asked == capacity + 1), "{beyond:?}");
        assert_eq!(buffer.len(), most, "it stays as it is");
        let mut bytes = vec![0; asked as usize];
        buffer.read(0, &mut bytes);
        assert!(bytes.iter().all(|&byte| byte == 7), "it lies where it lay");
    }
}

#[test]
fn buffers_at_the_same_time_share_no_byte() {
    let (client, _handle) = start(4, ClientConfig::default());
    let mut held: Vec<_> =
        [1, 64, 65, 128, 129, 700, 4096, 3, 9000].map(|length| client.buffer(length).unwrap()).into();
    for (number, buffer) in (1..).zip(&mut held) {
        let most = u32::try_from(buffer.capacity()).unwrap();
        buffer.resize(most).unwrap();
        buffer.write(0, &vec![number; most as usize]);
    }
    for (number, buffer) in (1..).zip(&held) {
        let mut bytes = vec![0; buffer.len() as usize];
        buffer.read(0, &mut bytes);
        assert!(bytes.iter().all(|&byte| byte == number), "buffer {number}");
    }
}

#[test]
fn a_batch_says_how_much_is_in_it() {
    let (mut client, handle) = start(16, ClientConfig::default());
    let permission = granted(&mut client, LONG);
    let (one, two) = (client.buffer(8).unwrap(), client.buffer(8).unwrap());
    let mut batch = client.batch();
    assert!(batch.is_empty());
    batch.access(NOW, Access::read(&permission, 0, one)).unwrap();
    assert_eq!((batch.len(), batch.is_empty()), (1, false));
    let extended = batch.call(NOW, ControlRequest::extend(&permission, LONG)).unwrap();
    batch.access(NOW, Access::write(&permission, 0, two)).unwrap();
    batch.call(NOW, Allocate::bytes(64)).unwrap();
    assert_eq!((batch.len(), batch.is_empty()), (4, false));
    assert_eq!(batch.post(), 4);
    handle.run_all();
    assert_eq!(client.poll(NOW), 4);
    assert!(matches!(client.take_call(extended), Some(Ok(Answer::Extended(_)))));
}

#[test]
fn the_client_knows_what_is_pending_and_whether_there_is_room_for_calls() {
    let (mut client, handle) = start(16, ClientConfig::default());
    let permission = granted(&mut client, LONG);
    assert_eq!((client.pending(), client.room_for_calls() > 0), (0, true));
    handle.world().node.hold = true;
    write(&mut client, &permission);
    write(&mut client, &permission);
    assert_eq!((client.pending(), client.room_for_calls() > 0), (2, true));
    // One of the four slots is kept for rebuilds.
    for calls in 1..=3 {
        client.call(NOW, ControlRequest::free(permission.object())).unwrap();
        assert_eq!((client.pending(), client.room_for_calls() > 0), (2 + calls, calls < 3));
    }
    handle.run_all();
    crate::fake::node::release(&mut handle.world());
    assert_eq!(client.poll(NOW), 5);
    assert_eq!((client.pending(), client.room_for_calls() > 0), (0, true));
}

#[test]
fn one_poll_takes_in_all_that_has_come() {
    const MANY: usize = 1000;
    let (mut client, handle) = start(MANY, ClientConfig { operations_max: 1024, ..ClientConfig::default() });
    let permission = granted(&mut client, LONG);
    for _ in 0..MANY {
        write(&mut client, &permission);
    }
    handle.run_all();
    assert_eq!(client.poll(NOW), MANY);
}

#[test]
fn what_is_not_taken_one_by_one_is_drained_in_the_order_of_its_end() {
    let (mut client, handle) = start(16, ClientConfig::default());
    let permission = granted(&mut client, LONG);
    let all: Vec<Operation> = (0..6).map(|_| write(&mut client, &permission)).collect();
    handle.run_all();
    client.poll(NOW);
    assert_eq!(result(&mut client, all[3]), Ok(1));
    assert_eq!(result(&mut client, all[0]), Ok(1));
    let mut drained = Vec::new();
    client.drain(&mut drained);
    let left: Vec<Operation> = drained.into_iter().map(|(operation, _)| operation).collect();
    assert_eq!(left, [all[1], all[2], all[4], all[5]]);
    assert!(all.into_iter().all(|it| client.take(it).is_none()), "each is told once");
}

#[test]
fn an_invalid_request_is_a_violation_of_those_alone_who_asked_for_no_checks() {
    let (mut client, handle) = start(16, ClientConfig::default());
    let permission = granted(&mut client, LONG);
    let status = Status::RemoteInvalidRequestError;
    let checked = write(&mut client, &permission);
    say(&handle, checked.number(), QpId(0), status, CompletionKind::Send);
    client.poll(NOW);
    assert_eq!(result(&mut client, checked), Err(Error::LocalFault(status)));
    let (mut client, handle) = start(16, ClientConfig::default());
    let unchecked = raw(&mut client, GOOD);
    say(&handle, unchecked.number(), QpId(0), status, CompletionKind::Send);
    client.poll(NOW);
    assert_eq!(result(&mut client, unchecked), Err(Error::Violation));
}

#[test]
fn a_message_in_a_receive_that_was_never_posted_ends_the_session() {
    let (mut client, handle) = start(16, ClientConfig::default());
    client.poll(NOW);
    let depth = u64::from(handle.look().control_depth);
    let kind = CompletionKind::Receive { length: 128, invalidated: None };
    say(&handle, depth, Fake::CONTROL, Status::Success, kind);
    let posted = handle.look().receives.len();
    client.poll(NOW);
    assert_eq!(client.over(), Some(Error::SessionLost));
    assert_eq!(handle.look().receives.len(), posted, "nothing is received where nothing was");
}

#[test]
fn no_doorbell_rings_for_a_queue_that_is_full() {
    const DEPTH: usize = 4;
    let (mut client, handle) = start(DEPTH, ClientConfig::default());
    let permission = granted(&mut client, LONG);
    let before = handle.look().doorbells;
    let all: Vec<Operation> = (0..2 * DEPTH).map(|_| write(&mut client, &permission)).collect();
    assert_eq!(handle.look().doorbells - before, DEPTH);
    // While there is no room, nothing depends on the time.
    assert!(!client.take_in(), "nothing depends on the time");
    assert_eq!(handle.look().doorbells - before, DEPTH);
    handle.run_all();
    client.poll(NOW);
    handle.run_all();
    client.poll(NOW);
    assert!(all.into_iter().all(|it| result(&mut client, it) == Ok(1)));
}

#[test]
fn an_expired_request_holds_up_none_behind_it() {
    const DEPTH: usize = 4;
    let (mut client, handle) = start(DEPTH, ClientConfig::default());
    let (long, short) = (granted(&mut client, LONG), granted(&mut client, SHORT));
    let full: Vec<Operation> = (0..DEPTH).map(|_| write(&mut client, &long)).collect();
    let waiting = [&long, &short, &long].map(|permission| write(&mut client, permission));
    handle.run_all();
    let later = short.lease().deadline();
    client.poll(later);
    handle.run_all();
    assert_eq!(handle.look().executed.len(), DEPTH + 2, "posted in one poll");
    client.poll(later);
    assert!(full.into_iter().all(|it| result(&mut client, it) == Ok(1)));
    let results = waiting.map(|it| result(&mut client, it));
    assert_eq!(results, [Ok(1), Err(Error::Expired), Ok(1)]);
}

#[test]
fn a_batch_signals_so_often_that_room_comes_back_in_time() {
    let (mut client, handle) = start(16, ClientConfig::default());
    let permission = granted(&mut client, LONG);
    let buffers: Vec<_> = (0..16).map(|_| client.buffer(1).unwrap()).collect();
    let mut batch = client.batch();
    for buffer in buffers {
        batch.access(NOW, Access::write(&permission, 0, buffer)).unwrap();
    }
    batch.post();
    handle.run_all();
    assert_eq!(handle.look().signalled, 4, "each fourth of sixteen");
}

#[test]
fn a_client_whose_node_is_gone_has_nothing_left_to_do() {
    let (mut client, handle) = start(4, ClientConfig::default());
    let wait = Lifetime::micros(500);
    handle
        .world()
        .node
        .reactions
        .push_back(crate::fake::node::Reaction::Say(ReplyBody::Refused(Refusal::Paused { wait })));
    raw(&mut client, BAD);
    handle.run_all();
    client.poll(NOW);
    client.poll(NOW);
    assert!(client.next_wake().is_some(), "it would ask for the rebuild again");
    client.node_gone();
    assert_eq!((client.next_wake(), client.pending()), (None, 0));
}

#[test]
fn operations_of_a_leaked_batch_end_with_the_session_and_once() {
    let (mut client, _handle) = start(16, ClientConfig::default());
    let permission = granted(&mut client, LONG);
    let buffer = client.buffer(8).unwrap();
    let mut batch = client.batch();
    let operation = batch.access(NOW, Access::read(&permission, 0, buffer)).unwrap();
    std::mem::forget(batch);
    assert_eq!(client.pending(), 1);
    client.node_gone();
    drop(client.batch());
    assert_eq!(client.pending(), 0);
    assert_eq!(result(&mut client, operation), Err(Error::NodeGone));
}

#[test]
fn what_is_asked_in_a_leaked_batch_is_forgotten_with_it_and_calls_go_on() {
    let (mut client, handle) = start(16, ClientConfig::default());
    let object = ObjectRef { incarnation: Incarnation(1), address: RemoteAddress(64), birth: 1 };
    let mut batch = client.batch();
    batch.call(NOW, Acquire::object(object)).unwrap();
    std::mem::forget(batch);
    let call = client.call(NOW, ControlRequest::free(object)).unwrap();
    client.poll(NOW);
    assert!(matches!(client.take_call(call), Some(Ok(Answer::Done))));
    assert_eq!(handle.look().node.asked.len(), 1, "the acquisition was never sent");
}

/// With mechanism `node-copy`, collected operations count towards the backlog as well.
#[test]
fn a_batch_of_messages_is_bounded_by_the_backlog() {
    let (endpoint, handle) = fake(0, 1);
    handle.world().node.by_messages = true;
    handle.world().data = 4096;
    let config = ClientConfig { backlog_max: 2, ..ClientConfig::default() };
    let mut client = Client::new(endpoint, config).unwrap();
    let permission = granted(&mut client, LONG);
    let buffers = [(); 3].map(|()| client.buffer(8).unwrap());
    let mut batch = client.batch();
    let results =
        buffers.map(|buffer| batch.access(NOW, Access::write(&permission, 0, buffer)).map_err(|it| it.error));
    assert!(matches!(results, [Ok(_), Ok(_), Err(Error::QueueFull { limit: 2 })]), "{results:?}");
    assert_eq!(batch.post(), 2);
    for _ in 0..10 {
        client.poll(NOW);
    }
    assert_eq!(client.pending(), 0);
}

#[test]
#[should_panic(expected = "reach outside a buffer of 8")]
fn a_write_beyond_a_buffers_end_is_the_callers_mistake() {
    let (client, _handle) = start(4, ClientConfig::default());
    client.buffer(8).unwrap().write(4, &[0; 5]);
}

#[test]
#[should_panic(expected = "reach outside a buffer of 8")]
fn a_read_beyond_a_buffers_end_is_the_callers_mistake() {
    let (client, _handle) = start(4, ClientConfig::default());
    client.buffer(8).unwrap().read(9, &mut []);
}

#[test]
fn a_permission_says_what_part_of_its_object_it_covers_and_what_enforces_it() {
    let (mut client, handle) = start(4, ClientConfig::default());
    handle.world().node.by_messages = true;
    let object = granted(&mut client, LONG).object();
    let call = client.call(NOW, Acquire::object(object).part(64, 128)).unwrap();
    client.poll(NOW);
    let Some(Ok(Answer::Granted(part))) = client.take_call(call) else { panic!("granted") };
    assert_eq!((part.offset(), part.length()), (64, 128));
    assert_eq!(part.mechanism(), Mechanism::NodeCopy);
}

#[test]
fn what_waits_for_room_in_a_queue_is_something_left_to_do() {
    let (mut client, handle) = start(2, ClientConfig::default());
    let permission = granted(&mut client, LONG);
    let before = handle.look().polls;
    assert!(!client.take_in(), "nothing is under way");
    assert_eq!(handle.look().polls, before + 1, "an empty queue is asked once");
    let begun: Vec<_> = (0..12).map(|_| write(&mut client, &permission)).collect();
    assert!(!client.take_in(), "there is no room for more");
    handle.run_all();
    assert!(client.take_in(), "those that wait have room");
    for _ in 0..20 {
        handle.run_all();
        client.poll(NOW);
    }
    assert!(!client.take_in(), "all is done");
    for operation in begun {
        assert!(result(&mut client, operation).is_ok());
    }
}
