//! Invalidations by chains: they take effect at once, and the chain goes on when no byte of an access that they have ended
//! still moves. Other queue pairs do not wait.

use super::{
    Access, BYTES, DEPTH, LocalSpan, Nic, Operation, QpId, Queues, RemoteAddress, RemoteSpan, Rig, Rkey,
    Status, UNITS, Window, WindowBinding, WindowKind, bytes_of, connect_qp, connected,
};
use portcullis_memory::Memory;
use portcullis_nic::{ChainNic, ChainRole, ChainVerb, Completion, CqId, QpAttributes, QpChange, Region};
use portcullis_softnic::core::ThreadRunner;
use std::sync::Arc;

/// The place of the word that the chain adds to when it goes on, and that of the value before.
const WENT_ON: u64 = BYTES - 8;
const BEFORE: u64 = BYTES - 16;

/// Units whose threads do not run. The NIC's thread must not wait for them.
#[derive(Debug)]
struct Starved;

impl ThreadRunner for Starved {
    fn wake(&self, _: usize) {}

    fn wait(&self) {
        panic!("the NIC's thread waits for a unit");
    }
}

fn starved(_: Queues) -> Arc<dyn ThreadRunner> {
    Arc::new(Starved)
}

/// A rig with a queue pair of a chain.
struct Chained {
    rig: Rig,
    chain: QpId,
    /// The node's memory, for the chain.
    all: Region,
}

impl Chained {
    fn new() -> Self {
        let rig = Rig::with(starved);
        let cq = rig.cq;
        Self::completing_in(rig, cq)
    }

    fn completing_in(mut rig: Rig, cq: CqId) -> Self {
        let rights = Access::LOCAL_WRITE | Access::REMOTE;
        let all = rig.nic.register_region(rig.pd, &rig.node_memory, 0..BYTES, RemoteAddress(0), rights);
        let all = all.expect("a region");
        let chain = chain(&mut rig, cq);
        Self { rig, chain, all }
    }

    fn post(&mut self, id: u64, operation: Operation) {
        self.rig.post(self.chain, id, operation);
    }

    fn invalidate(&mut self, id: u64) {
        let (rkey, queue_pair) = (self.rig.key, self.rig.node);
        self.post(id, Operation::Chain(ChainVerb::LocalInvalidate { rkey, queue_pair }));
    }

    fn count(&mut self, id: u64) {
        let local = LocalSpan { address: BEFORE, length: 8, lkey: self.all.lkey };
        let remote = RemoteSpan { address: RemoteAddress(WENT_ON), rkey: self.all.rkey };
        self.post(id, Operation::FetchAndAdd { local, remote, add: 1 });
    }

    /// Number of times that the chain has gone on.
    fn went_on(&self) -> u64 {
        self.rig.node_memory.load(WENT_ON)
    }

    fn bind(&mut self, id: u64, window: Window) -> Rkey {
        let rkey = window.rkey.advanced();
        let binding = WindowBinding {
            window: window.id,
            rkey,
            region: self.rig.node_region.id,
            address: RemoteAddress(0),
            length: BYTES,
            access: Access::REMOTE,
        };
        let queue_pair = self.rig.node;
        self.post(id, Operation::Chain(ChainVerb::BindWindow { binding, queue_pair }));
        rkey
    }
}

/// Makes a queue pair of chains that completes in `cq`.
fn chain(rig: &mut Rig, cq: CqId) -> QpId {
    let attributes = QpAttributes { send_cq: cq, receive_cq: rig.cq, send_depth: DEPTH, receive_depth: 0 };
    let role = ChainRole { privileged: true, ..ChainRole::default() };
    let mut chains = rig.nic.require_chains().expect("it has chains");
    let qp = chains.create_chain_qp(rig.pd, attributes, role).expect("a queue pair");
    drop(chains);
    let own = rig.nic.qp_address(qp).expect("an address");
    connect_qp(&mut rig.nic, qp, own).expect("each step");
    rig.nic.modify_qp(qp, QpChange::Access { access: Access::REMOTE }).expect("all rights");
    qp
}

#[test]
fn a_chain_goes_on_only_when_each_unit_has_moved_the_pieces_before_its_invalidation() {
    for last in 0..UNITS {
        let mut it = Chained::new();
        it.rig.write(1, 0, 256);
        assert_eq!(it.rig.turn(), []);
        assert!(it.rig.queues.iter().all(|queue| queue.is_waiting()), "each unit has a piece");
        it.invalidate(2);
        it.count(3);
        assert_eq!(it.rig.turn(), []);
        (0..UNITS).filter(|&unit| unit != last).for_each(|unit| while it.rig.move_one(unit) {});
        assert_eq!(it.rig.turn(), [], "unit {last} still moves");
        while it.rig.queues[last].is_waiting() {
            assert!(!it.rig.turn().iter().any(|&(id, _)| id != 1));
            assert_eq!(it.went_on(), 0, "unit {last} still moves");
            it.rig.move_one(last);
        }
        let completions = it.rig.turn();
        assert!(completions.ends_with(&[(2, Status::Success), (3, Status::Success)]), "{completions:?}");
        assert_eq!(it.went_on(), 1);
    }
}

#[test]
fn a_chain_whose_units_have_nothing_goes_on_at_once() {
    let mut it = Chained::new();
    it.invalidate(2);
    it.count(3);
    it.rig.nic.turn();
    assert_eq!(it.went_on(), 1);
    assert_eq!(it.rig.turn(), [(2, Status::Success), (3, Status::Success)]);
}

#[test]
fn a_chain_binds_nothing_while_bytes_of_an_access_that_it_has_ended_move() {
    let mut it = Chained::new();
    let window = it.rig.nic.allocate_window(it.rig.pd, WindowKind::Two).expect("a window");
    it.rig.write(1, 0, 256);
    assert_eq!(it.rig.turn(), []);
    it.invalidate(2);
    let key = it.bind(3, window);
    assert_eq!(it.rig.turn(), []);
    assert_eq!(it.rig.nic.core().window_holder(window.id), None, "the memory is handed out");
    let completions = it.rig.finish();
    assert!(completions.ends_with(&[(2, Status::Success), (3, Status::Success)]), "{completions:?}");
    assert_eq!(it.rig.nic.core().window_holder(window.id), Some((it.rig.node, key)));
}

#[test]
fn invalidations_of_a_chain_wait_together() {
    let mut it = Chained::new();
    let first = it.rig.key;
    let window = it.rig.nic.allocate_window(it.rig.pd, WindowKind::Two).expect("a window");
    let second = it.bind(100, window);
    assert_eq!(it.rig.turn(), [(100, Status::Success)]);
    let [other, _] = connected(&mut it.rig.nic, it.rig.pd, it.rig.cq);
    it.rig.write(1, 0, 256);
    assert_eq!(it.rig.turn(), []);
    it.invalidate(2);
    it.rig.key = second;
    it.invalidate(3);
    it.count(4);
    assert_eq!(it.rig.turn(), []);
    assert_eq!(it.rig.nic.core().window_holder(window.id), None, "the second takes effect at once too");
    it.rig.key = first;
    it.rig.client = other;
    it.rig.read(5, 0, 8);
    assert_eq!(it.rig.turn(), [(5, Status::RemoteAccessError)], "so does the first");
    assert_eq!(it.went_on(), 0);
    let completions = it.rig.finish();
    let chain: Vec<_> = completions.into_iter().filter(|&(id, _)| id != 1).collect();
    assert_eq!(chain, [(2, Status::Success), (3, Status::Success), (4, Status::Success)]);
}

#[test]
fn a_chain_that_waits_for_a_starved_unit_holds_nobody_up_and_is_not_visited() {
    const TURNS: u64 = 100;
    let mut it = Chained::new();
    let key = it.all.rkey;
    let [other, _] = connected(&mut it.rig.nic, it.rig.pd, it.rig.cq);
    it.rig.write(1, 0, 256);
    assert_eq!(it.rig.turn(), []);
    let visits = |it: &mut Chained| {
        let before = it.rig.nic.core().visits();
        (0..TURNS).for_each(|_| assert!(it.rig.nic.turn(), "its owner would sleep, and miss the units"));
        it.rig.nic.core().visits() - before
    };
    let without = visits(&mut it);
    it.invalidate(2);
    it.count(3);
    it.rig.nic.turn();
    assert_eq!(visits(&mut it), without, "the chain is visited while it waits");
    // The second unit moves its pieces, and the first does nothing.
    while it.rig.move_one(1) {}
    (it.rig.client, it.rig.key) = (other, key);
    for id in 10..10 + TURNS {
        it.rig.write(id, 1024, 8);
        it.rig.nic.turn();
        assert_eq!(it.rig.turn(), [(id, Status::Success)], "short requests of others are served");
    }
    assert_eq!(it.went_on(), 0);
    while it.rig.move_one(0) {}
    assert_eq!(it.rig.turn().len(), 3);
    assert_eq!(it.went_on(), 1);
}

#[test]
fn a_chain_does_not_wait_for_pieces_posted_after_its_invalidation() {
    let mut it = Chained::new();
    let [other, _] = connected(&mut it.rig.nic, it.rig.pd, it.rig.cq);
    it.rig.write(1, 0, 128);
    assert_eq!(it.rig.turn(), []);
    it.invalidate(2);
    it.count(3);
    assert_eq!(it.rig.turn(), []);
    (it.rig.client, it.rig.key) = (other, it.all.rkey);
    it.rig.write(4, 4096, 4096);
    assert_eq!(it.rig.turn(), []);
    (0..UNITS).for_each(|unit| assert!(it.rig.move_one(unit)));
    let completions = it.rig.turn();
    assert!(completions.ends_with(&[(2, Status::Success), (3, Status::Success)]), "{completions:?}");
    assert!(it.rig.queues.iter().all(|queue| queue.is_waiting()), "the others go on");
}

#[test]
fn a_request_of_a_chain_fails_after_the_invalidations_before_it() {
    let mut it = Chained::new();
    it.rig.write(1, 0, 256);
    assert_eq!(it.rig.turn(), []);
    it.invalidate(2);
    it.invalidate(3);
    it.count(4);
    assert_eq!(it.rig.turn(), []);
    let completions: Vec<_> = it.rig.finish().into_iter().filter(|&(id, _)| id != 1).collect();
    let failed = [(3, Status::LocalQpOperationError), (4, Status::FlushError)];
    assert_eq!(completions, [&[(2, Status::Success)][..], &failed].concat());
}

#[test]
fn a_count_that_chains_wait_for_is_raised_when_no_byte_moves() {
    let mut rig = Rig::with(starved);
    let counted = rig.nic.require_chains().expect("chains").create_counting_cq().expect("a count");
    let mut it = Chained::completing_in(rig, counted);
    let cq = it.rig.cq;
    let waiter = chain(&mut it.rig, cq);
    it.rig.post(waiter, 5, Operation::Chain(ChainVerb::Wait { cq: counted, threshold: 1 }));
    it.rig.write(1, 0, 256);
    assert_eq!(it.rig.turn(), []);
    it.invalidate(2);
    assert_eq!(it.rig.turn(), []);
    let mut completions = Vec::new();
    for unit in 0..UNITS {
        assert!(!completions.contains(&(5, Status::Success)));
        while it.rig.move_one(unit) {}
        completions.extend(it.rig.turn());
    }
    assert!(completions.contains(&(5, Status::Success)));
}

#[test]
fn a_held_invalidation_waits_for_room_for_its_completion_too() {
    let mut rig = Rig::with(starved);
    let cq = rig.nic.create_cq(1).expect("a queue");
    let mut it = Chained::completing_in(rig, cq);
    let window = it.rig.nic.allocate_window(it.rig.pd, WindowKind::Two).expect("a window");
    let second = it.bind(100, window);
    let mut polled: Vec<Completion> = Vec::new();
    let _ = it.rig.turn();
    assert_eq!(it.rig.nic.poll(cq, 8, &mut polled), Ok(1));
    it.rig.write(1, 0, 256);
    assert_eq!(it.rig.turn(), []);
    it.invalidate(2);
    it.rig.key = second;
    it.invalidate(3);
    let _ = it.rig.finish();
    for _ in 0..2 {
        let _ = it.rig.turn();
        assert_eq!(it.rig.nic.poll(cq, 8, &mut polled), Ok(1));
    }
    assert_eq!(polled.iter().map(|completion| completion.request).collect::<Vec<_>>(), [100, 2, 3]);
}

#[test]
fn a_chain_that_is_stopped_while_it_waits_leaves_nothing_behind() {
    let stops: [(QpChange, usize); 2] = [(QpChange::Error, 2), (QpChange::Reset, 0)];
    for (stop, ended) in stops {
        let rig = Rig::new();
        let cq = rig.cq;
        rig.node_memory.write(0, &[1; 256]);
        let mut it = Chained::completing_in(rig, cq);
        it.rig.write(1, 0, 256);
        assert_eq!(it.rig.turn(), []);
        it.invalidate(2);
        it.count(3);
        assert_eq!(it.rig.turn(), []);
        it.rig.nic.modify_qp(it.chain, stop).expect("it is stopped");
        assert!(!it.rig.queues.iter().any(|queue| queue.is_waiting()), "a stop waits itself");
        let completions = it.rig.finish();
        assert_eq!(completions.iter().filter(|&&(id, _)| id != 1).count(), ended, "{completions:?}");
        assert_eq!((it.went_on(), bytes_of(&it.rig.node_memory, 0, 256)), (0, vec![0; 256]));
    }
}
