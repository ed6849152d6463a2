//! Transfers of any size, over a path that takes time and loses packets: they arrive complete, operations that must not
//! be repeated are not, and each transfer ends within its time. A failure of a seed names it.

use crate::rig;

use portcullis_memory::Memory;
use portcullis_onerma::{
    Action, Atomic, Destination, Executor, ExecutorLimits, InitiatorLimits, NotBegun, OperationType,
    RegionId, ResponderLimits, ServiceClass, Status, Transfer, TransferEnd, TransferId,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rig::{Client, INITIATOR, Node, RESPONDER, at, next, store};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

const LIMITS: ExecutorLimits = ExecutorLimits {
    transfers: 64,
    patience: Duration::from_millis(20),
    local_target: Duration::from_micros(10),
    remote_target: Duration::from_micros(20),
    rtt: Duration::from_micros(4),
};
/// Half of a round trip.
const WAY: Duration = Duration::from_micros(2);
const BYTES: usize = 40_000;

struct Path {
    node: Node,
    executor: Executor,
    client: SocketAddr,
    region: RegionId,
    reads: Destination,
    writes: Destination,
    atomics: Destination,
    /// Data of the latest read.
    read: Vec<u8>,
    flying: Vec<(Duration, bool, Vec<u8>)>,
    dice: StdRng,
    loss: f64,
    /// Times at which packets were sent to the node so far.
    sent: Vec<Duration>,
    now: Duration,
}

impl Path {
    fn new(responder: ResponderLimits, loss: f64, seed: u64) -> Self {
        Self::with(LIMITS, responder, loss, seed)
    }

    fn with(limits: ExecutorLimits, responder: ResponderLimits, loss: f64, seed: u64) -> Self {
        let many = InitiatorLimits { slots: 64, ..INITIATOR };
        let (mut node, client) = (Node::new(responder), Client::new(1, many));
        let region = node.region(0, 48_000);
        let [reads, writes, atomics] = [OperationType::Read, OperationType::Write, OperationType::Atomic]
            .map(|_| node.grant(region, &client));
        Self {
            node,
            executor: Executor::new(client.initiator, limits),
            client: client.address,
            region,
            reads,
            writes,
            atomics,
            read: Vec::new(),
            flying: Vec::new(),
            dice: StdRng::seed_from_u64(seed),
            loss,
            sent: Vec::new(),
            now: Duration::ZERO,
        }
    }

    fn begin(&mut self, action: Action, class: ServiceClass, may_repeat: bool) -> TransferId {
        let to = match action.operation() {
            OperationType::Read => &self.reads,
            OperationType::Write => &self.writes,
            _ => &self.atomics,
        };
        let transfer = Transfer { action, to: to.clone(), address: 0, class, may_repeat };
        self.executor.begin(transfer, self.now).expect("there is room")
    }

    /// Sends pending packets, and advances to the next event. Returns whether there is one.
    fn step(&mut self) -> bool {
        while let Some((to, packet)) = next(|it| self.executor.poll_transmit(it)) {
            assert_eq!(to, self.node.address);
            self.sent.push(self.now);
            self.fly(true, packet);
        }
        while let Some((_, packet)) = next(|it| self.node.responder.poll_transmit(it)) {
            self.fly(false, packet);
        }
        let arrival = self.flying.iter().map(|it| it.0).min();
        let timeouts = [self.executor.next_timeout(), self.node.responder.next_timeout()];
        let Some(next) = arrival.into_iter().chain(timeouts.into_iter().flatten()).min() else {
            return false;
        };
        self.now = self.now.max(next);
        let now = self.now;
        for (_, to_node, mut packet) in self.flying.extract_if(.., |it| it.0 <= now).collect::<Vec<_>>() {
            if to_node {
                self.node.responder.handle_packet(self.client, &mut packet, now);
            } else if let Some(data) = self.executor.handle_packet(self.node.address, &mut packet, now) {
                store(&data, &mut self.read);
            }
        }
        self.executor.handle_timeout(now);
        self.node.responder.handle_timeout(now);
        true
    }

    fn fly(&mut self, to_node: bool, packet: Vec<u8>) {
        if !self.dice.random_bool(self.loss) {
            let late = Duration::from_nanos(self.dice.random_range(0..500));
            self.flying.push((self.now + WAY + late, to_node, packet));
        }
    }

    fn end(&mut self) -> TransferEnd {
        loop {
            if let Some(end) = self.executor.poll_end() {
                return end;
            }
            assert!(self.step(), "nothing happens any more, and a transfer has not ended");
        }
    }
}

fn bytes(seed: u8) -> Vec<u8> {
    (0..BYTES).map(|at| u8::try_from(at % 251).expect("it is small") ^ seed).collect()
}

#[test]
fn transfers_of_any_size_arrive_whole_also_where_packets_are_lost() {
    for (seed, loss) in [(1, 0.0), (2, 0.05), (3, 0.2)] {
        let patient = ExecutorLimits { patience: Duration::from_secs(2), ..LIMITS };
        let mut path = Path::with(patient, RESPONDER, loss, seed);
        for round in 0..5u8 {
            path.begin(Action::Write(bytes(round)), ServiceClass::Bulk, true);
            let end = path.end();
            assert_eq!((end.status, end.is_uncertain), (Status::Ok, false), "seed {seed}");
            assert!(path.node.bytes(0, BYTES) == bytes(round), "seed {seed}");
            path.begin(Action::Read(BYTES), ServiceClass::Bulk, false);
            let end = path.end();
            assert_eq!(end.status, Status::Ok, "seed {seed}");
            assert!(path.read == bytes(round), "seed {seed}");
            assert!(end.operations >= 10 && (loss > 0.0 || end.operations == 10), "{}", end.operations);
        }
        assert_eq!(path.executor.pending(), 0);
    }
}

#[test]
fn a_write_whose_answer_is_lost_is_not_written_over_what_others_wrote_since() {
    let mut uncertain = 0;
    for seed in 0..200 {
        let mut path = Path::new(RESPONDER, 0.4, seed);
        path.begin(Action::Write(vec![7; 64]), ServiceClass::Latency, false);
        // Another client writes as soon as the write has happened, or its transfer has ended.
        while path.node.bytes(0, 64) != [7; 64] && path.executor.pending() > 0 && path.step() {}
        path.node.memory.write(0, &[8; 64]);
        let end = path.end();
        while path.step() {}
        assert_eq!(path.node.bytes(0, 64), [8; 64], "seed {seed}: {end:?}");
        uncertain += u32::from(end.is_uncertain);
        assert!(end.status == Status::Ok || end.status == Status::Timeout, "seed {seed}: {end:?}");
    }
    assert!(uncertain > 10, "answers were lost: {uncertain}");
}

#[test]
fn additions_happen_as_often_as_they_are_said_to() {
    let mut lost = 0;
    for seed in 0..30 {
        let mut path = Path::new(RESPONDER, 0.3, seed);
        let (mut sure, mut perhaps) = (0, 0);
        for _ in 0..40 {
            path.begin(Action::Atomic(Atomic::FetchAndAdd { add: 1 }), ServiceClass::Latency, false);
            let end = path.end();
            sure += u64::from(end.status == Status::Ok);
            perhaps += u64::from(end.is_uncertain);
            let word = path.node.memory.load(0);
            assert!((sure..=sure + perhaps).contains(&word), "seed {seed}: {sure}, {perhaps}, {word}");
            assert!(
                end.before.is_some_and(|before| before < word) || end.status != Status::Ok,
                "seed {seed}"
            );
        }
        while path.step() {}
        lost += perhaps;
    }
    assert!(lost > 0, "some answers are lost for good");
}

#[test]
fn a_transfer_that_is_refused_begins_nothing_more_and_ends_when_nothing_is_under_way() {
    let mut path = Path::new(RESPONDER, 0.0, 1);
    path.begin(Action::Write(bytes(1)), ServiceClass::Bulk, true);
    while path.node.responder.counters().writes < 3 {
        assert!(path.step());
    }
    let before = path.node.bytes(0, BYTES);
    assert!(before != bytes(1), "it is under way");
    assert!(path.node.regions.remove(path.region));
    let end = path.end();
    assert_eq!((end.status, end.is_uncertain), (Status::RemoteAuthenticationFailure, true));
    assert!(end.operations < 10 && path.node.bytes(0, BYTES) == before, "{}", end.operations);
    assert_eq!((path.executor.pending(), path.executor.poll_end().is_none()), (0, true));
}

#[test]
fn no_more_transfers_are_taken_than_have_their_turn_soon() {
    let mut path = Path::new(RESPONDER, 0.0, 1);
    let fill = |path: &mut Path| {
        let pending = path.executor.pending();
        while path.executor.takes(path.node.address, OperationType::Read) {
            path.begin(Action::Read(8), ServiceClass::Latency, true);
        }
        path.executor.pending() - pending
    };
    // The window begins with one operation: one is in progress, and one waits.
    assert_eq!(fill(&mut path), 2);
    assert!(path.executor.takes(path.node.address, OperationType::Atomic), "it has a turn of its own");
    for _ in 0..200 {
        assert_eq!(path.end().status, Status::Ok);
        fill(&mut path);
    }
    let (local, remote) = path.executor.windows(path.node.address, OperationType::Read);
    let window = local.min(remote.expect("it is used"));
    assert!(window > 3.0, "{window}");
    let waiting = u32::try_from(path.executor.pending() - path.executor.operations()).expect("few");
    assert!((window - f64::from(waiting)).abs() <= 1.0, "{waiting} {window}");
}

#[test]
fn nothing_takes_longer_than_its_patience_and_the_end_of_what_is_under_way() {
    // A transfer of one operation has nothing more to begin when its time is over, but for repeats.
    let short = [Action::Read(8), Action::Write(vec![1; 8]), Action::Atomic(Atomic::FetchAndAdd { add: 1 })];
    for action in [Action::Read(BYTES), Action::Write(bytes(1))].into_iter().chain(short) {
        let mut path = Path::new(RESPONDER, 1.0, 1);
        path.begin(action, ServiceClass::Bulk, true);
        let end = path.end();
        assert!(matches!(end.status, Status::Timeout | Status::DispatchTimeout) && !end.is_uncertain);
        let longest = LIMITS.patience + INITIATOR.dispatch_timeout + 2 * INITIATOR.timeout;
        assert!((LIMITS.patience..=longest).contains(&path.now), "{:?}", path.now);
        // A silent node is sent requests ever more rarely: a tenth of a window after each time-out.
        assert!(path.sent.len() < 60, "{}", path.sent.len());
    }
}

#[test]
fn a_transfer_whose_operations_succeed_ends_well_although_it_takes_longer_than_its_patience() {
    let hasty = ExecutorLimits { patience: 5 * WAY, ..LIMITS };
    for action in [Action::Read(BYTES), Action::Write(bytes(1))] {
        let mut path = Path::with(hasty, RESPONDER, 0.0, 1);
        path.begin(action, ServiceClass::Bulk, true);
        let end = path.end();
        assert_eq!((end.status, end.is_uncertain), (Status::Ok, false));
        assert!(path.now > 2 * hasty.patience, "{:?}", path.now);
    }
}

#[test]
fn a_node_that_falls_silent_under_a_transfer_has_its_patience_once_more() {
    let mut path = Path::new(RESPONDER, 0.0, 1);
    path.begin(Action::Write(bytes(1)), ServiceClass::Bulk, true);
    while path.node.responder.counters().writes < 3 {
        assert!(path.step());
    }
    path.loss = 1.0;
    let silent = path.now;
    let end = path.end();
    assert!(end.status != Status::Ok && end.is_uncertain, "{end:?}");
    let longest = LIMITS.patience + INITIATOR.dispatch_timeout + 5 * INITIATOR.timeout + WAY;
    // The last write whose end the client received is one operation old.
    assert!(
        (LIMITS.patience - 5 * WAY..=longest).contains(&(path.now - silent)),
        "{silent:?}, {:?}",
        path.now
    );
}

#[test]
fn a_node_that_is_congested_is_asked_for_less_and_the_transfer_ends_well() {
    let narrow = ResponderLimits { waiting_max: 4096, changes_max: 1, ..RESPONDER };
    let mut path = Path::new(narrow, 0.0, 1);
    for _ in 0..6 {
        path.begin(Action::Read(BYTES), ServiceClass::Bulk, false);
        path.begin(Action::Write(bytes(1)), ServiceClass::Bulk, false);
    }
    for _ in 0..12 {
        assert_eq!(path.end().status, Status::Ok);
    }
    assert!(path.node.responder.counters().nacks > 0);
    let (local, remote) = path.executor.windows(path.node.address, OperationType::Write);
    let remote = remote.expect("it was used");
    assert!(remote < local / 2.0, "it is not this host that is congested: {local} {remote}");
}

#[test]
fn a_small_transfer_does_not_wait_for_the_end_of_a_large_one() {
    for class in [ServiceClass::Latency, ServiceClass::Bulk] {
        let mut path = Path::new(RESPONDER, 0.0, 1);
        let large = path.begin(Action::Read(BYTES), ServiceClass::Bulk, false);
        path.step();
        let small = path.begin(Action::Read(64), class, false);
        assert_eq!(path.end().id, small);
        assert!(path.now < at(20), "a few round trips: {:?}", path.now);
        assert_eq!(path.end().id, large);
    }
}

#[test]
fn operations_under_way_are_as_many_as_the_windows_say() {
    let mut path = Path::new(RESPONDER, 0.0, 1);
    for _ in 0..20 {
        path.begin(Action::Read(BYTES), ServiceClass::Bulk, false);
    }
    let mut most = 0.0f64;
    while path.step() {
        let (local, remote) = path.executor.windows(path.node.address, OperationType::Read);
        let narrow = local.min(remote.expect("it is used"));
        // A read has one packet to the node, and it is in progress for a round trip plus the random delay.
        let recent = path.sent.iter().filter(|&&it| it + 2 * WAY > path.now).count();
        let recent = f64::from(u32::try_from(recent).expect("few"));
        assert!(recent <= 1.0 + narrow.ceil(), "{recent} of {narrow}");
        most = most.max(narrow);
    }
    let statuses: Vec<Status> = std::iter::from_fn(|| path.executor.poll_end()).map(|it| it.status).collect();
    assert_eq!(statuses, [Status::Ok; 20]);
    assert!(most > 4.0, "without congestion the windows grow: {most}");
    let first_round = path.sent.iter().filter(|&&it| it < at(4)).count();
    assert_eq!(first_round, 1, "a window begins with one operation");
}

/// The node falls silent: no more operations begin after that than the windows allow, whatever the pace is.
#[test]
fn operations_without_an_answer_are_no_more_than_the_windows_say() {
    for (both_directions, congested) in [(false, false), (false, true), (true, false)] {
        let mut path = Path::new(RESPONDER, 0.0, 1);
        let mut directions = HashMap::new();
        let mut keep_busy = |path: &mut Path| {
            while let Some(end) = path.executor.poll_end() {
                directions.remove(&end.id);
            }
            for is_write in [false, both_directions] {
                while directions.values().filter(|&&it| it == is_write).count() < 30 {
                    let action = if is_write { Action::Write(vec![0; 64]) } else { Action::Read(64) };
                    directions.insert(path.begin(action, ServiceClass::Bulk, false), is_write);
                }
            }
        };
        while path.now < at(400) {
            keep_busy(&mut path);
            assert!(path.step());
        }
        if congested {
            // All answers in flight are lost: the window for this destination shrinks, and this host's does not.
            path.flying.clear();
            while path.now < at(600) {
                keep_busy(&mut path);
                assert!(path.step());
            }
        }
        let (local, remote) = path.executor.windows(path.node.address, OperationType::Read);
        let (_, writes) = path.executor.windows(path.node.address, OperationType::Write);
        let window = if both_directions { local } else { local.min(remote.expect("it is used")) };
        assert!(writes.is_none_or(|it| it + remote.expect("it is used") > local + 2.0), "both flows press");
        assert!(both_directions || congested && window < local / 2.0 || !congested && window > 4.0);
        path.flying.clear();
        path.loss = 1.0;
        let mut most = 0;
        for _ in 0..40 {
            keep_busy(&mut path);
            path.now += at(1);
            path.executor.handle_timeout(path.now);
            while next(|it| path.executor.poll_transmit(it)).is_some() {}
            most = most.max(path.executor.operations());
        }
        let most = f64::from(u32::try_from(most).expect("few"));
        assert!(
            most <= window.ceil() && most >= window.floor().max(1.0),
            "{most} of {window}: {local} {remote:?} {writes:?}"
        );
    }
}

#[test]
fn what_there_is_no_room_for_comes_back() {
    let client = Client::new(1, InitiatorLimits { slots: 1, ..INITIATOR });
    let mut executor = Executor::new(client.initiator, ExecutorLimits { transfers: 1, ..LIMITS });
    let mut node = Node::new(RESPONDER);
    let region = node.region(0, 64);
    let to = node.grant(region, &Client::new(1, INITIATOR));
    let transfer = |length| Transfer {
        action: Action::Write(vec![7; length]),
        to: to.clone(),
        address: 0,
        class: ServiceClass::Bulk,
        may_repeat: false,
    };
    let (why, back) = executor.begin(transfer(0), at(0)).expect_err("it is empty");
    assert_eq!((why, back.address), (NotBegun::Empty, 0));
    executor.begin(transfer(8), at(0)).expect("there is room");
    let (why, back) = executor.begin(transfer(8), at(0)).expect_err("it is full");
    assert_eq!(why, NotBegun::Full(1));
    assert!(matches!(back.action, Action::Write(bytes) if bytes == [7; 8]));
}
