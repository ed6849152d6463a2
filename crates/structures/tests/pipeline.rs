//! All accesses of a pipeline end, however many there are and in whatever order their futures are awaited.

use crate::rig::{node, node_with, pipeline, run};
use portcullis::{
    Acquire, Allocate, BarePermission, ChunkLimits, Error, Lifetime, Mechanism, NodeConfig, SessionOptions,
    WAITING_CALLS_MAX,
};
use portcullis_structures::{Pipeline, Work};
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

/// A number of accesses for which neither the client's operations nor its queues have room at once.
const MANY: u64 = 5_000;

fn memory(pipeline: &Pipeline) -> Rc<BarePermission> {
    let ask = Allocate::bytes(MANY * 8).lifetime(Lifetime::seconds(10));
    Rc::new(run(pipeline, pipeline.allocate(ask)).expect("memory"))
}

#[test]
fn more_accesses_than_there_is_room_for_end_in_any_order_of_awaiting() {
    for mechanism in [Mechanism::MemoryWindow, Mechanism::NodeCopy] {
        let node = node(mechanism);
        let pipeline = pipeline(&node, "red");
        let permission = memory(&pipeline);
        run(&pipeline, async {
            let writes: Vec<_> =
                (0..MANY).map(|word| pipeline.write(&permission, word * 8, &word.to_le_bytes())).collect();
            for write in writes.into_iter().rev() {
                write.await.expect("a write");
            }
            let reads: Vec<_> = (0..MANY).map(|word| pipeline.read(&permission, word * 8, 8)).collect();
            for (word, read) in (0..MANY).rev().zip(reads.into_iter().rev()) {
                let mut bytes = [0; 8];
                read.await.expect("a read").read(0, &mut bytes);
                assert_eq!(u64::from_le_bytes(bytes), word);
            }
        });
    }
}

#[test]
fn more_requests_than_there_is_room_for_wait_while_the_end_that_they_wait_for_gets_through() {
    let node = node(Mechanism::MemoryWindow);
    let pipeline = pipeline(&node, "red");
    run(&pipeline, async {
        let first = Allocate::bytes(64).lifetime(Lifetime::seconds(10));
        let first = pipeline.allocate(first).await.expect("memory");
        let ask = Acquire::object(first.object()).lifetime(Lifetime::seconds(10)).wait(Lifetime::seconds(1));
        // A client has room for 1,024 calls.
        let asked: Vec<_> = (0..1_100).map(|_| pipeline.acquire(ask)).collect();
        while node.counters().postponed < 100 {
            pipeline.sleep(Lifetime::millis(1)).await.expect("the session goes on");
        }
        assert!(node.counters().postponed <= WAITING_CALLS_MAX as u64, "others have places too");
        pipeline.revoke(first, false).await.expect("the end that all wait for");
        for permission in asked {
            let permission = permission.await.expect("each gets its turn");
            pipeline.revoke(permission, false).await.expect("the next one's turn");
        }
    });
    assert_eq!(node.counters().permissions, 0);
}

#[test]
fn a_pipeline_waits_at_the_node_whatever_other_calls_its_client_has() {
    let node = node(Mechanism::MemoryWindow);
    let mut session = node.connect("red", SessionOptions::default()).expect("a session");
    let [held, free] = [(); 2].map(|()| {
        session.allocate(Allocate::bytes(64).lifetime(Lifetime::seconds(10)).keep()).expect("memory")
    });
    let free = {
        let object = free.object();
        session.revoke(free).expect("it was live");
        object
    };
    let now = session.now();
    let mut batch = session.client().batch();
    let ask = Acquire::object(held.object()).wait(Lifetime::seconds(5));
    for _ in 0..2 * WAITING_CALLS_MAX {
        batch.call(now, ask).expect("room");
    }
    batch.post();
    let pipeline = Pipeline::new(session);
    let ask = Acquire::object(free).wait(Lifetime::seconds(1));
    run(&pipeline, pipeline.acquire(ask)).expect("the object is free");
    assert!(pipeline.into_session().client().pending() >= 2 * WAITING_CALLS_MAX, "the others wait");
}

#[test]
fn an_access_whose_future_is_dropped_is_carried_out_all_the_same() {
    let node = node(Mechanism::MemoryWindow);
    let pipeline = pipeline(&node, "red");
    let permission = memory(&pipeline);
    let sum = run(&pipeline, async {
        for round in 0..MANY {
            let [dropped, kept] = [1, 1].map(|add| pipeline.fetch_and_add(&permission, 0, add));
            match round % 3 {
                // The future is dropped before its access is posted.
                0 => drop(dropped),
                // The future is dropped when its access has ended, because the next one has ended.
                1 => {
                    kept.await.expect("an addition");
                    drop(dropped);
                    continue;
                }
                // The future is dropped when there is no room: the rest of the round is requested at once.
                _ => drop([(); 40].map(|()| pipeline.fetch_and_add(&permission, 8, 1))),
            }
            kept.await.expect("an addition");
        }
        let words = [0, 8].map(|at| pipeline.fetch_and_add(&permission, at, 0));
        let mut sum = Vec::new();
        for word in words {
            sum.push(word.await.expect("an addition"));
        }
        sum
    });
    assert_eq!(sum, [MANY * 2, (0..MANY).filter(|round| round % 3 == 2).count() as u64 * 40]);
}

#[test]
fn an_access_that_cannot_be_begun_says_so_to_its_own_future() {
    let node = node(Mechanism::MemoryWindow);
    let pipeline = pipeline(&node, "red");
    let permission = memory(&pipeline);
    run(&pipeline, async {
        let outside = pipeline.read(&permission, MANY * 8, 8);
        let inside = pipeline.read(&permission, 0, 8);
        let misaligned = pipeline.fetch_and_add(&permission, 4, 1);
        assert!(matches!(outside.await, Err(Error::OutsideRange { .. })));
        assert!(inside.await.is_ok());
        assert_eq!(misaligned.await, Err(Error::Misaligned));
    });
}

#[test]
fn accesses_end_when_the_node_does() {
    let node = node(Mechanism::MemoryWindow);
    let pipeline = pipeline(&node, "red");
    let permission = memory(&pipeline);
    drop(node);
    pipeline.block_on(async {
        let reads: Vec<_> = (0..MANY).map(|_| pipeline.read(&permission, 0, 8)).collect();
        let mut last = Ok(());
        for read in reads.into_iter().rev() {
            last = read.await.map(drop);
        }
        assert_eq!(last, Err(Error::NodeGone));
        assert_eq!(pipeline.read(&permission, 0, 8).await.map(drop), Err(Error::NodeGone));
    });
}

/// Jobs that arrive a few at a time: some when no operation is under way, the others beside operations that are.
struct Arrivals {
    waiting: VecDeque<u64>,
    arrived: u64,
    done: BTreeSet<u64>,
    /// The largest number of operations that were under way when more jobs arrived.
    most: usize,
}

/// Number of jobs that arrive together.
const TOGETHER: u64 = 3;
const ARRIVALS_BESIDE_MAX: usize = 8;

impl Work for Arrivals {
    type Job = u64;
    type Outcome = (u64, Result<u64, Error>);

    fn next(&mut self) -> Option<u64> {
        self.waiting.pop_front()
    }

    fn done(&mut self, (job, outcome): Self::Outcome) {
        outcome.expect("an addition");
        assert!(self.done.insert(job), "job {job} is done twice");
    }

    fn rest(&mut self, under_way: usize) -> bool {
        assert!(self.waiting.is_empty() || under_way > 0, "what waits has room");
        assert_eq!(self.done.len() + under_way + self.waiting.len(), usize::try_from(self.arrived).unwrap());
        if under_way <= ARRIVALS_BESIDE_MAX && self.arrived < MANY {
            self.most = self.most.max(under_way);
            let first = self.arrived;
            self.arrived = (first + TOGETHER).min(MANY);
            self.waiting.extend(first..self.arrived);
        }
        self.arrived < MANY
    }
}

#[test]
fn jobs_that_come_while_others_are_under_way_are_begun_beside_them() {
    for depth in [1, 4, 64] {
        let node = node(Mechanism::MemoryWindow);
        let pipeline = pipeline(&node, "red");
        let permission = memory(&pipeline);
        let mut work = Arrivals { waiting: VecDeque::new(), arrived: 0, done: BTreeSet::new(), most: 0 };
        pipeline.serve(depth, &mut work, |job| {
            let (pipeline, permission) = (&pipeline, &permission);
            async move { (job, pipeline.fetch_and_add(permission, 0, 1).await) }
        });
        assert_eq!(work.done.len() as u64, MANY, "each is done");
        assert_eq!(run(&pipeline, pipeline.fetch_and_add(&permission, 0, 0)), Ok(MANY));
        assert!(work.most > 0, "some came beside others");
    }
}

#[test]
fn a_chunk_from_the_nodes_processor_leaves_the_accesses_of_its_round_alone() {
    let chunks = Some(ChunkLimits { chunks: 16, chunk_bytes: 1024, client_max: 16 });
    let config = NodeConfig { pool_bytes: 1 << 20, chunks, chains: false, ..NodeConfig::default() };
    let node = node_with(config);
    let pipeline = pipeline(&node, "red");
    let permission = memory(&pipeline);
    run(&pipeline, async {
        pipeline.chunk_terms().await.expect("the node has chunks");
        let write = pipeline.write(&permission, 0, &[7; 8]);
        let chunk = pipeline.allocate_chunk().await.expect("a chunk");
        write.await.expect("a write");
        pipeline.free_chunk(chunk).await.expect("it is freed");
    });
}
