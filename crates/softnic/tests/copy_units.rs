//! Tests of the software NIC's copy units: a transfer completes when its bytes are there, and what ends an access completes
//! when no byte of such an access still moves.
//!
//! Most tests move the pieces by hand, so that each order of events is chosen and not awaited. The conformance suite, and
//! a test with many withdrawals, run with units on threads.

mod chains;
mod ends;
mod load;
mod on_threads;

use portcullis_memory::{Mapping, Memory};
use portcullis_nic::{
    Access, Completion, CqId, LocalSpan, Nic, Operation, PdId, QpAttributes, QpChange, QpId, Region,
    RemoteAddress, RemoteSpan, Rkey, Status, Window, WindowBinding, WindowKind, WorkRequest, connect_qp,
};
use portcullis_softnic::SoftNic;
use portcullis_softnic::core::ThreadRunner;
use portcullis_softnic::core::copy_units::{PIECES_MAX, PieceSizes, Pieces};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const UNITS: usize = 2;
const PIECE: u32 = 64;
const TRANSFER_MIN: u32 = 65;
const SIZES: PieceSizes = PieceSizes { transfer_min: TRANSFER_MIN, piece_max: PIECE };
/// The depth of each queue.
const DEPTH: u32 = 64;
/// Bytes of each of the two memories: the node's and the client's.
const BYTES: u64 = 64 << 10;

type Queues = Vec<Arc<Pieces<Mapping>>>;

/// Units that move when the NIC waits for them, and when the test lets them.
#[derive(Debug)]
struct ByHand(Queues);

impl ThreadRunner for ByHand {
    fn wake(&self, _: usize) {}

    fn wait(&self) {
        for queue in &self.0 {
            let _ = queue.move_next();
        }
    }
}

/// Units that sleep until they are woken, and do nothing then.
#[derive(Debug, Default)]
struct Sleepers([AtomicBool; UNITS]);

impl ThreadRunner for Sleepers {
    fn wake(&self, unit: usize) {
        self.0[unit].store(true, Ordering::Relaxed);
    }

    fn sleeps(&self, unit: usize) -> bool {
        !self.0[unit].load(Ordering::Relaxed)
    }

    fn wait(&self) {}
}

/// A node's end with a window over its memory, and a client's end.
struct Rig {
    nic: SoftNic,
    queues: Queues,
    cq: CqId,
    pd: PdId,
    node_memory: Mapping,
    client_memory: Mapping,
    node_region: Region,
    client_region: Region,
    /// The client's queue pair, and the node's.
    client: QpId,
    node: QpId,
    window: Window,
    /// The key of the window's binding.
    key: Rkey,
}

/// Makes a queue pair of a client with completions in `cq`, and an end of the node for it, with all rights.
fn connected(nic: &mut SoftNic, pd: PdId, cq: CqId) -> [QpId; 2] {
    let attributes = QpAttributes { send_cq: cq, receive_cq: cq, send_depth: DEPTH, receive_depth: DEPTH };
    let [client, node] = [(); 2].map(|()| nic.create_qp(pd, attributes).expect("a queue pair"));
    for (one, other) in [(client, node), (node, client)] {
        let peer = nic.qp_address(other).expect("an address");
        connect_qp(nic, one, peer).expect("each step");
        nic.modify_qp(one, QpChange::Access { access: Access::REMOTE }).expect("all rights");
    }
    [client, node]
}

impl Rig {
    fn new() -> Self {
        Self::with(|queues| Arc::new(ByHand(queues)))
    }

    fn with(runner: impl FnOnce(Queues) -> Arc<dyn ThreadRunner>) -> Self {
        let queues: Queues = (0..UNITS).map(|_| Arc::default()).collect();
        let mut nic = SoftNic::new();
        nic.core().set_copy_units(queues.clone(), runner(queues.clone()), SIZES);
        let pd = nic.allocate_pd().expect("a domain");
        let cq = nic.create_cq(256).expect("a queue");
        let [node_memory, client_memory] = [(); 2].map(|()| nic.allocate_memory(BYTES).expect("memory"));
        let rights = Access::LOCAL_WRITE | Access::WINDOW_BIND;
        let base = RemoteAddress(0);
        let node_region = nic.register_region(pd, &node_memory, 0..BYTES, base, rights).expect("a region");
        let client_region =
            nic.register_region(pd, &client_memory, 0..BYTES, base, Access::LOCAL_WRITE).expect("a region");
        let [client, node] = connected(&mut nic, pd, cq);
        let window = nic.allocate_window(pd, WindowKind::Two).expect("a window");
        let key = Rkey::new(window.rkey.index(), window.rkey.low_byte().wrapping_add(1));
        let mut rig = Self {
            nic,
            queues,
            cq,
            pd,
            node_memory,
            client_memory,
            node_region,
            client_region,
            client,
            node,
            window,
            key,
        };
        rig.bind(100);
        assert_eq!(rig.turn(), [(100, Status::Success)]);
        rig
    }

    fn post(&mut self, qp: QpId, id: u64, operation: Operation) {
        let request = WorkRequest { id, signalled: true, operation };
        assert_eq!(self.nic.post_send(qp, &[request]), Ok(1));
    }

    /// Binds the window over the whole of the node's memory.
    fn bind(&mut self, id: u64) {
        let binding = WindowBinding {
            window: self.window.id,
            rkey: self.key,
            region: self.node_region.id,
            address: RemoteAddress(0),
            length: BYTES,
            access: Access::REMOTE,
        };
        self.post(self.node, id, Operation::BindWindow(binding));
    }

    fn invalidate(&mut self, id: u64) {
        self.post(self.node, id, Operation::LocalInvalidate { rkey: self.key });
    }

    fn ends(&self, at: u64, length: u32) -> (LocalSpan, RemoteSpan) {
        let local = LocalSpan { address: at, length, lkey: self.client_region.lkey };
        (local, RemoteSpan { address: RemoteAddress(at), rkey: self.key })
    }

    fn read(&mut self, id: u64, at: u64, length: u32) {
        let (local, remote) = self.ends(at, length);
        self.post(self.client, id, Operation::Read { local, remote });
    }

    fn write(&mut self, id: u64, at: u64, length: u32) {
        let (local, remote) = self.ends(at, length);
        self.post(self.client, id, Operation::Write { local, remote });
    }

    /// Lets the NIC work until a turn changes nothing more, while no piece moves. Returns the completions.
    fn turn(&mut self) -> Vec<(u64, Status)> {
        let mut completions: Vec<Completion> = Vec::new();
        for _ in 0..64 {
            self.nic.turn_all();
            self.nic.poll(self.cq, 256, &mut completions).expect("the queue");
        }
        completions.iter().map(|completion| (completion.request, completion.status)).collect()
    }

    fn move_one(&self, unit: usize) -> bool {
        self.queues[unit].move_next().is_some()
    }

    fn move_all(&self) {
        for unit in 0..UNITS {
            while self.move_one(unit) {}
        }
    }

    /// Moves pieces and turns until nothing is left. Returns the completions.
    fn finish(&mut self) -> Vec<(u64, Status)> {
        let mut completions = self.turn();
        while self.queues.iter().any(|queue| queue.is_waiting()) {
            self.move_all();
            completions.extend(self.turn());
        }
        completions
    }
}

fn bytes_of(memory: &Mapping, at: u64, length: u32) -> Vec<u8> {
    let mut bytes = vec![0; length as usize];
    memory.read(at, &mut bytes);
    bytes
}

#[test]
fn a_transfer_completes_when_its_last_piece_has_been_moved() {
    let mut rig = Rig::new();
    rig.node_memory.write(0, &[7; 300]);
    rig.read(1, 0, 300);
    assert_eq!(rig.turn(), []);
    assert!(rig.move_one(0));
    assert_eq!(rig.turn(), []);
    assert_eq!(rig.finish(), [(1, Status::Success)]);
    assert_eq!(bytes_of(&rig.client_memory, 0, 301), [vec![7; 300], vec![0]].concat());
}

#[test]
fn a_short_transfer_is_not_handed_over() {
    let mut rig = Rig::new();
    rig.node_memory.write(0, &[7; 64]);
    rig.read(1, 0, TRANSFER_MIN - 1);
    assert_eq!(rig.turn(), [(1, Status::Success)]);
    assert_eq!(bytes_of(&rig.client_memory, 0, 64), [7; 64]);
}

#[test]
fn the_requests_of_a_queue_pair_keep_their_order() {
    let mut rig = Rig::new();
    rig.client_memory.write(0, &[3; 256]);
    rig.write(1, 0, 256);
    rig.read(2, 0, 8);
    rig.client_memory.write(512, &[4; 256]);
    // The short read waits for the long write before it.
    assert_eq!(rig.turn(), []);
    assert_eq!(rig.finish(), [(1, Status::Success), (2, Status::Success)]);
    assert_eq!(bytes_of(&rig.node_memory, 0, 256), [3; 256]);
}

#[test]
fn an_invalidation_is_confirmed_only_when_each_unit_has_moved_the_pieces_before_it() {
    for last in 0..UNITS {
        let mut rig = Rig::new();
        rig.write(1, 0, 256);
        assert_eq!(rig.turn(), []);
        assert!(rig.queues.iter().all(|queue| queue.is_waiting()), "each unit has a piece");
        rig.invalidate(2);
        assert_eq!(rig.turn(), []);
        (0..UNITS).filter(|&unit| unit != last).for_each(|unit| while rig.move_one(unit) {});
        assert_eq!(rig.turn(), [], "unit {last} still moves");
        while rig.queues[last].is_waiting() {
            assert!(!rig.turn().iter().any(|&(id, _)| id == 2));
            rig.move_one(last);
        }
        assert!(rig.turn().contains(&(2, Status::Success)));
    }
}

#[test]
fn after_an_invalidation_no_piece_is_posted_and_the_transfer_is_refused_when_its_pieces_have_been_moved() {
    let mut rig = Rig::new();
    rig.read(1, 0, 4096);
    assert_eq!(rig.turn(), []);
    let posted: u64 = rig.queues.iter().map(|queue| queue.posted()).sum();
    assert!(posted < 4096 / u64::from(PIECE), "a queue pair has few pieces under way");
    rig.invalidate(2);
    assert_eq!(rig.turn(), []);
    assert!(rig.move_one(0));
    assert_eq!(rig.turn(), [], "the client may use its buffer after a refusal");
    let completions = rig.finish();
    assert!(completions.contains(&(1, Status::RemoteAccessError)), "{completions:?}");
    assert!(completions.contains(&(2, Status::Success)), "{completions:?}");
    assert_eq!(rig.queues.iter().map(|queue| queue.posted()).sum::<u64>(), posted);
}

#[test]
fn an_invalidation_does_not_wait_for_pieces_posted_after_it() {
    let mut rig = Rig::new();
    // A second window, whose accesses go on.
    let window = rig.nic.allocate_window(rig.pd, WindowKind::Two).expect("a window");
    let (first, key) = (rig.key, Rkey::new(window.rkey.index(), window.rkey.low_byte().wrapping_add(1)));
    let old = std::mem::replace(&mut rig.window, window);
    rig.key = key;
    rig.bind(101);
    assert_eq!(rig.turn(), [(101, Status::Success)]);
    (rig.window, rig.key) = (old, first);
    rig.invalidate(2);
    assert_eq!(rig.turn(), [(2, Status::Success)], "nothing moves");
    rig.key = key;
    rig.write(3, 0, 4096);
    assert_eq!(rig.turn(), []);
    rig.key = first;
    rig.bind(4);
    assert_eq!(rig.turn(), [(4, Status::Success)], "a first binding ends no access");
    rig.invalidate(5);
    rig.bind(6);
    assert_eq!(rig.turn(), [], "what follows an end completes after it");
    // One piece of each unit goes, and another comes: those before the mark are gone after PIECES_MAX rounds.
    let mut completions = Vec::new();
    for _ in 0..PIECES_MAX {
        (0..UNITS).for_each(|unit| assert!(rig.move_one(unit)));
        completions.extend(rig.turn());
    }
    assert_eq!(completions, [(5, Status::Success), (6, Status::Success)]);
    assert!(rig.queues.iter().any(|queue| queue.is_waiting()));
    assert_eq!(rig.finish(), [(3, Status::Success)]);
}

#[test]
fn a_unit_is_woken_only_when_those_that_are_awake_have_no_room() {
    let sleepers = Arc::new(Sleepers::default());
    let mut rig = Rig::with(|_| sleepers.clone());
    let posted = |rig: &Rig| rig.queues.iter().map(|queue| queue.posted()).collect::<Vec<_>>();
    for id in 1..20 {
        rig.write(id, 0, 2 * PIECE);
        assert_eq!(rig.finish(), [(id, Status::Success)]);
        assert_eq!(posted(&rig), [2 * id, 0]);
    }
    assert!(sleepers.sleeps(1));
    let most = u32::try_from(PIECES_MAX).expect("few");
    rig.write(20, 0, (most + 1) * PIECE);
    assert_eq!(rig.turn(), []);
    assert_eq!(posted(&rig), [2 * 19 + u64::from(most), 1]);
    assert!(!sleepers.sleeps(1));
    // Both are awake, and share.
    assert_eq!(rig.finish(), [(20, Status::Success)]);
    rig.write(21, 0, 4 * PIECE);
    assert_eq!(rig.turn(), []);
    assert_eq!(posted(&rig), [2 * 19 + u64::from(most) + 2, 3]);
}

#[test]
fn a_held_completion_frees_its_place_in_the_queue() {
    let mut rig = Rig::new();
    rig.write(1, 0, 256);
    assert_eq!(rig.turn(), []);
    rig.invalidate(2);
    assert_eq!(rig.turn(), [], "it is held");
    assert_eq!(rig.finish().len(), 2);
    let request =
        WorkRequest { id: 3, signalled: true, operation: Operation::LocalInvalidate { rkey: rig.key } };
    assert_eq!(rig.nic.post_send(rig.node, &vec![request; DEPTH as usize]), Ok(DEPTH as usize));
}

#[test]
fn clients_share_the_units_however_many_queue_pairs_each_uses() {
    /// Long enough to last until the other client's transfer has ended.
    const STREAM: u32 = 48 << 10;
    const TRANSFER: u32 = 64 * PIECE;
    let mut rig = Rig::new();
    // A key that works on every queue pair.
    let rights = Access::LOCAL_WRITE | Access::REMOTE;
    let region = rig.nic.register_region(rig.pd, &rig.node_memory, 0..BYTES, RemoteAddress(0), rights);
    rig.key = region.expect("a region").rkey;
    let first = rig.client;
    // Three queue pairs of one client, and one of another.
    let mut another_client = |cq| connected(&mut rig.nic, rig.pd, cq)[0];
    let streams = [first, another_client(rig.cq), another_client(rig.cq)];
    let others_cq = rig.nic.create_cq(16).expect("a queue");
    let [other, _] = connected(&mut rig.nic, rig.pd, others_cq);
    for (id, stream) in (1..).zip(streams) {
        rig.client = stream;
        rig.write(id, 0, STREAM);
    }
    assert_eq!(rig.turn(), []);
    rig.client = other;
    rig.write(9, 0, TRANSFER);
    let mut ended: Vec<Completion> = Vec::new();
    let mut rounds = 0;
    while ended.is_empty() {
        rounds += 1;
        let _ = rig.turn();
        for unit in 0..UNITS {
            let _ = rig.move_one(unit);
        }
        rig.nic.poll(others_cq, 16, &mut ended).expect("the queue");
    }
    // With half of the moves, the transfer takes as many rounds as it has pieces; with a quarter, twice as many.
    let pieces = (TRANSFER / PIECE) as usize;
    assert!(rounds <= pieces * 3 / 2, "{rounds} rounds for {pieces} pieces");
}

#[test]
fn a_queue_pair_that_goes_leaves_no_piece_behind() {
    let mut rig = Rig::new();
    rig.write(1, 0, 4096);
    assert_eq!(rig.turn(), []);
    rig.invalidate(2);
    // The node's queue pair has a window until the invalidation is carried out.
    let _ = rig.turn();
    rig.nic.destroy_qp(rig.client).expect("it is destroyed");
    assert!(!rig.queues.iter().any(|queue| queue.is_waiting()));
    assert_eq!(rig.finish(), [(2, Status::Success)]);
}

#[test]
fn a_memory_is_released_when_its_region_is_deregistered() {
    const NAME: &str = "memory-that-pieces-named";
    let is_mapped = || std::fs::read_to_string("/proc/self/maps").expect("the maps").contains(NAME);
    let mut rig = Rig::new();
    let memory = Mapping::shareable(NAME, BYTES).expect("memory");
    let region = rig.nic.register_region(rig.pd, &memory, 0..BYTES, RemoteAddress(0), Access::LOCAL_WRITE);
    rig.client_region = region.expect("a region");
    rig.write(1, 0, 4096);
    assert_eq!(rig.finish(), [(1, Status::Success)]);
    drop(memory);
    assert!(is_mapped());
    rig.nic.deregister_region(rig.client_region.id).expect("it is deregistered");
    assert!(!is_mapped(), "a unit's queue still names the memory");
}

/// A step of a random run.
#[derive(Clone, Copy, Debug)]
enum Step {
    Read {
        at: u64,
        length: u32,
    },
    Write {
        at: u64,
        length: u32,
    },
    Turn,
    Move(usize),
    /// Ends the window; the node overwrites its memory when the end is confirmed, and binds the window again.
    Withdraw,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let span = (0..2048_u64, 1..1024_u32);
    let step = prop_oneof![
        3 => span.clone().prop_map(|(at, length)| Step::Read { at, length }),
        3 => span.prop_map(|(at, length)| Step::Write { at, length }),
        6 => Just(Step::Turn),
        6 => (0..UNITS).prop_map(Step::Move),
        2 => Just(Step::Withdraw),
    ];
    proptest::collection::vec(step, 1..80)
}

proptest! {
    /// After a confirmed withdrawal the memory has a new owner: no byte of an earlier access arrives in it.
    #[test]
    fn no_access_follows_a_confirmed_withdrawal(steps in steps()) {
        let mut rig = Rig::new();
        rig.client_memory.write(0, &[1; 4096]);
        let mut id = 1000;
        for step in steps {
            id += 1;
            if rig.nic.qp_state(rig.client) != Ok(portcullis_nic::QpState::ReadyToSend) {
                break;
            }
            match step {
                Step::Read { at, length } => rig.read(id, at, length),
                Step::Write { at, length } => rig.write(id, at, length),
                Step::Turn => drop(rig.turn()),
                Step::Move(unit) => drop(rig.move_one(unit)),
                Step::Withdraw => {
                    rig.invalidate(id);
                    while !rig.turn().contains(&(id, Status::Success)) {
                        let unit = rig.queues.iter().position(|queue| queue.is_waiting());
                        rig.move_one(unit.expect("only moving pieces hold a confirmation"));
                    }
                    rig.node_memory.write(0, &[2; 4096]);
                    rig.finish();
                    prop_assert_eq!(bytes_of(&rig.node_memory, 0, 4096), vec![2; 4096]);
                    rig.bind(id + 1_000_000);
                    rig.finish();
                }
            }
        }
    }
}
