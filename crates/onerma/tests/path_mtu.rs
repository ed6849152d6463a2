//! A path that stops carrying long datagrams in the middle of transfers, in one direction or both, and carries them
//! again later. Operations continue in shorter datagrams, and their reported outcomes are true.

use crate::rig;

use portcullis_memory::Memory;
use portcullis_onerma::{
    Action, Atomic, Destination, Executor, ExecutorLimits, InitiatorLimits, OperationType, Pace, PathMtu,
    ResponderLimits, ServiceClass, Status, Transfer, TransferEnd,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rig::{Client, INITIATOR, Node, RESPONDER, next, store};
use std::net::SocketAddr;
use std::time::Duration;

/// Half of a round trip.
const WAY: Duration = Duration::from_micros(50);
const BYTES: usize = 40_000;
const LONGEST: usize = 4224;
const INITIATOR_LIMITS: InitiatorLimits = InitiatorLimits {
    slots: 64,
    window: 256 << 10,
    packet_max: LONGEST,
    dispatch_timeout: Duration::from_secs(2),
    timeout: Duration::from_millis(60),
};
const RESPONDER_LIMITS: ResponderLimits =
    ResponderLimits { packet_max: LONGEST, change_timeout: Duration::from_millis(50), ..RESPONDER };

/// Fate of a datagram that is too long for its direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Excess {
    /// The datagram is lost on its way.
    Lost,
    /// The client's own system refuses it.
    Refused,
}

/// A client and its resources.
struct End {
    executor: Executor,
    address: SocketAddr,
    writes: Destination,
    reads: Destination,
    atomics: Destination,
    /// Data of the latest read.
    read: Vec<u8>,
    /// Bytes of the longest datagram that the path carries to the node, and to the client.
    carries: [usize; 2],
    excess: Excess,
    /// The longest datagram of each direction since the test last reset it.
    longest: [usize; 2],
}

struct World {
    node: Node,
    ends: Vec<End>,
    flying: Vec<(Duration, usize, bool, Vec<u8>)>,
    dice: StdRng,
    loss: f64,
    now: Duration,
}

impl End {
    fn new(node: &mut Node, number: u64) -> Self {
        let client = Client::new(number, INITIATOR);
        let region = node.region((number - 1) * (BYTES as u64 + 64), BYTES as u64);
        let [reads, writes, atomics] = std::array::from_fn(|_| node.grant(region, &client));
        let limits = ExecutorLimits::for_round_trip(2 * WAY);
        let path = PathMtu::new(node.address, LONGEST, LONGEST, number);
        let initiator = portcullis_onerma::Initiator::new(INITIATOR_LIMITS);
        let pace = Pace::for_shared_processors();
        Self {
            executor: Executor::with_pace(initiator, limits, pace).with_path(path),
            address: client.address,
            writes,
            reads,
            atomics,
            read: Vec::new(),
            carries: [1 << 16; 2],
            excess: Excess::Lost,
            longest: [0; 2],
        }
    }

    fn datagram_max(&self) -> usize {
        self.executor.path().expect("it has one").datagram_max()
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let mut node = Node::new(RESPONDER_LIMITS);
        let ends = vec![End::new(&mut node, 1)];
        Self {
            node,
            ends,
            flying: Vec::new(),
            dice: StdRng::seed_from_u64(seed),
            loss: 0.0,
            now: Duration::ZERO,
        }
    }

    fn carries(&mut self, carries: [usize; 2], excess: Excess) {
        (self.ends[0].carries, self.ends[0].excess) = (carries, excess);
    }

    fn begin(&mut self, end: usize, action: Action) {
        let end = &mut self.ends[end];
        let to = match action.operation() {
            OperationType::Read => &end.reads,
            OperationType::Write => &end.writes,
            _ => &end.atomics,
        };
        let class = ServiceClass::Bulk;
        let transfer = Transfer { action, to: to.clone(), address: 0, class, may_repeat: true };
        end.executor.begin(transfer, self.now).expect("there is room");
    }

    fn fly(&mut self, end: usize, to_node: bool, packet: Vec<u8>) {
        let it = &mut self.ends[end];
        let direction = usize::from(!to_node);
        it.longest[direction] = it.longest[direction].max(packet.len());
        if packet.len() > it.carries[direction] {
            if to_node && it.excess == Excess::Refused {
                it.executor.handle_too_long(self.node.address, packet.len(), self.now);
            }
        } else if !self.dice.random_bool(self.loss) {
            let late = Duration::from_nanos(self.dice.random_range(0..5_000));
            self.flying.push((self.now + WAY + late, end, to_node, packet));
        }
    }

    /// Sends pending packets, and advances to the next event.
    fn step(&mut self) {
        for end in 0..self.ends.len() {
            while let Some((_, packet)) = next(|it| self.ends[end].executor.poll_transmit(it)) {
                self.fly(end, true, packet);
            }
        }
        while let Some((to, packet)) = next(|it| self.node.responder.poll_transmit(it)) {
            let end = self.ends.iter().position(|it| it.address == to).expect("a client's");
            self.fly(end, false, packet);
        }
        let due = self.ends.iter().filter_map(|it| it.executor.next_timeout());
        let due =
            due.chain(self.node.responder.next_timeout()).chain(self.flying.iter().map(|it| it.0)).min();
        self.now = self.now.max(due.expect("something is to happen"));
        let now = self.now;
        for (_, end, to_node, mut packet) in self.flying.extract_if(.., |it| it.0 <= now).collect::<Vec<_>>()
        {
            if to_node {
                self.node.responder.handle_packet(self.ends[end].address, &mut packet, now);
            } else if let Some(data) =
                self.ends[end].executor.handle_packet(self.node.address, &mut packet, now)
            {
                store(&data, &mut self.ends[end].read);
            }
        }
        self.ends.iter_mut().for_each(|it| it.executor.handle_timeout(now));
        self.node.responder.handle_timeout(now);
    }

    fn end(&mut self, end: usize) -> TransferEnd {
        loop {
            if let Some(end) = self.ends[end].executor.poll_end() {
                return end;
            }
            self.step();
        }
    }

    /// Writes and reads back, and changes the path when the node has performed the given number of writes.
    fn write_and_read(&mut self, seed: u8, change: Option<(u64, [usize; 2], Excess)>) {
        let writes = self.node.responder.counters().writes;
        self.begin(0, Action::Write(bytes(seed)));
        if let Some((after, carries, excess)) = change {
            while self.node.responder.counters().writes < writes + after {
                self.step();
            }
            self.carries(carries, excess);
        }
        let end = self.end(0);
        assert_eq!((end.status, end.is_uncertain), (Status::Ok, false), "{change:?}");
        assert!(self.node.bytes(0, BYTES) == bytes(seed), "{change:?}");
        self.begin(0, Action::Read(BYTES));
        let end = self.end(0);
        assert_eq!(end.status, Status::Ok, "{change:?}");
        assert!(self.ends[0].read == bytes(seed), "{change:?}");
    }
}

fn bytes(seed: u8) -> Vec<u8> {
    (0..BYTES).map(|at| u8::try_from(at % 251).expect("it is small") ^ seed).collect()
}

#[test]
fn transfers_under_way_go_on_in_shorter_datagrams_whatever_the_path_stops_to_carry() {
    for excess in [Excess::Lost, Excess::Refused] {
        for short in [1232, 1300, 1452, 2000, 2176, 3000] {
            for carries in [[short, 1 << 16], [1 << 16, short], [short; 2]] {
                for loss in [0.0, 0.05] {
                    let mut world = World::new(short as u64);
                    world.loss = loss;
                    world.write_and_read(1, None);
                    assert!(world.ends[0].longest.iter().all(|&it| it > 4000), "a whole operation in one");
                    world.write_and_read(2, Some((3, carries, excess)));
                    world.write_and_read(3, None);
                    assert!(world.ends[0].datagram_max() <= short, "{excess:?} {carries:?}");
                }
            }
        }
    }
}

#[test]
fn an_operation_over_a_new_black_hole_takes_one_time_out_and_the_next_ones_none() {
    for operation in [OperationType::Read, OperationType::Write] {
        let mut world = World::new(1);
        world.write_and_read(1, None);
        world.carries([1300; 2], Excess::Lost);
        for timeouts in [1, 0, 0] {
            let begun = world.now;
            let is_read = operation == OperationType::Read;
            world.begin(0, if is_read { Action::Read(4096) } else { Action::Write(vec![7; 4096]) });
            assert_eq!(world.end(0).status, Status::Ok);
            let took = world.now - begun;
            let longest = timeouts * INITIATOR_LIMITS.timeout + 10 * WAY;
            assert!(took >= timeouts * INITIATOR_LIMITS.timeout && took < longest, "{took:?}");
        }
    }
}

#[test]
fn a_path_that_carries_long_datagrams_again_is_used_for_them_again() {
    let mut world = World::new(1);
    world.write_and_read(1, None);
    world.carries([1300; 2], Excess::Lost);
    world.write_and_read(2, None);
    assert_eq!(world.ends[0].datagram_max(), 1232);
    world.carries([1 << 16; 2], Excess::Lost);
    let since = world.now;
    while world.ends[0].datagram_max() < LONGEST {
        assert!(world.now < since + Duration::from_secs(10), "nobody tries larger ones");
        world.write_and_read(3, None);
        // The session is idle for a while.
        world.now += Duration::from_millis(200);
    }
    world.ends[0].longest = [0; 2];
    world.write_and_read(4, None);
    assert!(world.ends[0].longest.iter().all(|&it| it > 4000), "{:?}", world.ends[0].longest);
}

#[test]
fn one_clients_path_changes_no_other_clients_datagrams() {
    let mut world = World::new(1);
    let other = End::new(&mut world.node, 2);
    world.ends.push(other);
    world.carries([1300; 2], Excess::Lost);
    for _ in 0..3 {
        for end in 0..2 {
            world.begin(end, Action::Write(vec![1; 4096]));
            world.begin(end, Action::Read(4096));
        }
        for end in [0, 0, 1, 1] {
            assert_eq!(world.end(end).status, Status::Ok);
        }
    }
    assert_eq!((world.ends[0].datagram_max(), world.ends[1].datagram_max()), (1232, LONGEST));
    world.ends[1].longest = [0; 2];
    world.begin(1, Action::Read(4096));
    assert_eq!(world.end(1).status, Status::Ok);
    assert!(world.ends[1].longest[1] > 4000, "the node's answers are as long as before");
}

/// Adds to words while the path loses more and more. The node has performed exactly the additions that are reported as
/// performed.
#[test]
fn changes_end_with_the_truth_while_the_path_changes() {
    for seed in 0..30 {
        let mut world = World::new(seed);
        world.loss = 0.1;
        let (mut sure, mut perhaps) = (0, 0);
        for round in 0..20 {
            let carries = [1 << 16, 3000, 1500, 1232][world.dice.random_range(0..4)];
            world.carries([carries; 2], Excess::Lost);
            world.begin(0, Action::Atomic(Atomic::FetchAndAdd { add: 1 }));
            let end = world.end(0);
            sure += u64::from(end.status == Status::Ok);
            perhaps += u64::from(end.is_uncertain);
            let word = world.node.memory.load(0);
            assert!((sure..=sure + perhaps).contains(&word), "seed {seed}: {sure}, {perhaps}, {word}");
            let mut bytes = vec![round; 8192];
            bytes[..8].copy_from_slice(&word.to_le_bytes());
            world.begin(0, Action::Write(bytes.clone()));
            let end = world.end(0);
            assert_ne!(end.status, Status::RemoteAuthenticationFailure, "seed {seed}");
            if end.status == Status::Ok {
                assert!(world.node.bytes(0, 8192) == bytes, "seed {seed}");
            }
        }
        assert!(sure >= 18, "seed {seed}: {sure}");
    }
}
