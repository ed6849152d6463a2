//! The requests that a worker's lap executes: the real chains on the real software NIC, request by request.

use super::super::ends::ModelNic;
use portcullis_nic::{ChainVerb, Nic, Operation, QpId};
use portcullis_offload::chain::{Chains, Listing, RowOperation};
use portcullis_offload::{ChunkPool, ChunkPoolConfig, ClientNumber, Handle, Reply, WorkerParts};
use portcullis_protocol::Moment;
use portcullis_sim::{AskingEnd, SimMemory};

/// Number of laps before those that are counted. A first lap is like any other, but the counts do not depend on that.
const LAPS_BEFORE: usize = 3;
/// The time of all requests: chains do not depend on it.
const NOW: Moment = Moment(0);
/// The most requests of a lap: more means that a chain never ends.
const REQUESTS_MAX: usize = 10_000;

/// A request that was executed, as its entry was at that time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Request {
    /// Nothing: a NOP, or a request that was patched to be one.
    Nothing,
    /// A wait, which ended.
    Wait,
    /// Another queue was enabled.
    Enable,
    /// This many bytes were read.
    Read(u64),
    /// This many bytes were written.
    Write(u64),
    /// An atomic.
    Atomic,
    /// A window was bound or freed.
    Window,
    /// A message of this many bytes left.
    Send(u64),
}

impl Request {
    fn of(operation: Operation) -> Self {
        match operation {
            Operation::Read { local, .. } => Self::Read(local.length.into()),
            Operation::Write { local, .. } => Self::Write(local.length.into()),
            Operation::CompareAndSwap { .. } | Operation::FetchAndAdd { .. } => Self::Atomic,
            Operation::Send { local } | Operation::SendWithInvalidate { local, .. } => {
                Self::Send(local.length.into())
            }
            Operation::BindWindow(_) | Operation::LocalInvalidate { .. } => Self::Window,
            Operation::Chain(verb) => match verb {
                ChainVerb::Nop => Self::Nothing,
                ChainVerb::Wait { .. } => Self::Wait,
                ChainVerb::Enable { .. } | ChainVerb::EnableReceive { .. } => Self::Enable,
                ChainVerb::BindWindow { .. } | ChainVerb::LocalInvalidate { .. } => Self::Window,
            },
        }
    }

    /// Returns a row's request as the listing has it, for listings that no worker runs.
    pub fn of_step(step: RowOperation) -> Self {
        match step {
            RowOperation::Nop => Self::Nothing,
            RowOperation::Read { bytes, .. } => Self::Read(bytes),
            RowOperation::Write { bytes, .. } | RowOperation::CopyImage { bytes, .. } => Self::Write(bytes),
            RowOperation::Add { .. } | RowOperation::Swap { .. } => Self::Atomic,
            RowOperation::Wait { .. } => Self::Wait,
            RowOperation::Enable { .. }
            | RowOperation::EnableReceive { .. }
            | RowOperation::EnableRequest { .. } => Self::Enable,
        }
    }
}

/// A lap of a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Lap {
    /// The chain's requests, with the NOPs behind the last row.
    pub chain: Vec<Request>,
    /// The requests of the bind queue.
    pub binds: Vec<Request>,
    /// The requests of the queue that has the reply.
    pub replies: Vec<Request>,
}

impl Lap {
    /// Returns all requests that were executed.
    pub fn requests(&self) -> impl Iterator<Item = Request> {
        [&self.chain, &self.binds, &self.replies].into_iter().flatten().copied()
    }

    /// Counts the requests for which `is_such` is true.
    pub fn count(&self, is_such: impl Fn(Request) -> bool) -> u64 {
        self.requests().filter(|&request| is_such(request)).count() as u64
    }
}

/// The laps of a pool's workers, one that allocates and one that frees, for a client whose group is full.
#[derive(Clone, Debug)]
pub(super) struct Laps {
    /// The chains.
    pub chains: Chains,
    pub alloc: Lap,
    pub free: Lap,
    /// An allocation when no chunk is free.
    pub refused: Lap,
    /// Number of workers of a client.
    pub workers: u64,
}

/// A pool with one client.
struct Pool<const G: usize> {
    nic: ModelNic,
    pool: ChunkPool<SimMemory, G>,
    parts: [WorkerParts; 2],
    ends: [AskingEnd<SimMemory>; 2],
}

const ALLOC: usize = 0;
const FREE: usize = 1;

impl<const G: usize> Pool<G> {
    fn new(chunk_bytes: u64) -> Self {
        let mut nic = ModelNic::default();
        let config = ChunkPoolConfig { chunks: 1, chunk_bytes, workers: 2 };
        let mut pool = ChunkPool::create(&mut nic, config).expect("the software NIC has chains");
        let group = AskingEnd::group(&mut nic, &pool);
        let pd = nic.allocate_pd().expect("a domain");
        let number = ClientNumber::new(1).expect("a small number");
        // The quota is one more than there are chunks, so that a refusal is one of the pool.
        let (workers, ends) = AskingEnd::attach(&mut nic, &mut pool, (number, &group, 2), pd);
        Self { nic, parts: workers.parts(), pool, ends }
    }

    /// Executes a queue's requests as far as possible.
    fn run(&mut self, qp: QpId, into: &mut Vec<Request>) -> bool {
        let before = into.len();
        while let Some(operation) = self.nic.core().next_operation(qp) {
            if !self.nic.core().execute_one(qp, NOW) {
                break;
            }
            into.push(Request::of(operation));
            assert!(into.len() < REQUESTS_MAX, "a chain never ends");
        }
        into.len() > before
    }

    fn lap(&mut self, worker: usize, handle: Handle) -> (Lap, Reply<G>) {
        self.ends[worker].ask::<G>(&mut self.nic, handle).expect("a client may ask");
        let parts = self.parts[worker];
        let mut lap = Lap::default();
        loop {
            let mut moved = self.run(parts.chain, &mut lap.chain);
            moved |= self.run(parts.binds, &mut lap.binds);
            moved |= self.run(parts.messages, &mut lap.replies);
            if !moved {
                break;
            }
        }
        let reply = self.ends[worker].take::<G>(&mut self.nic).expect("a reply");
        (lap, reply)
    }

    fn allocate(&mut self) -> Lap {
        let (lap, reply) = self.lap(ALLOC, Handle(0));
        assert!(reply.is_done, "a chunk is free");
        lap
    }

    fn free(&mut self) -> Lap {
        let handle = self.pool.geometry().handle::<G>(0);
        let (lap, reply) = self.lap(FREE, handle);
        assert!(reply.is_done, "it is the client's");
        lap
    }

    fn laps(mut self) -> Laps {
        for _ in 0..LAPS_BEFORE {
            self.allocate();
            self.free();
        }
        let alloc = self.allocate();
        let (refused, reply) = self.lap(ALLOC, Handle(0));
        assert!(!reply.is_done, "the only chunk is taken");
        let free = self.free();
        let workers = self.parts.len() as u64;
        Laps { chains: Chains::new::<G>(), alloc, free, refused, workers }
    }
}

/// Returns the laps for chunks of this many bytes, with windows for `group` queue pairs. A pool's chunks can have
/// windows for 1, 2, 4 or 8 queue pairs: `group` is rounded up to one of these, or down to 8.
///
/// # Panics
/// Panics if the pool does not do what it promises, which is a bug.
pub(super) fn laps(group: u64, chunk_bytes: u64) -> Laps {
    match group {
        0 | 1 => Pool::<1>::new(chunk_bytes).laps(),
        2 => Pool::<2>::new(chunk_bytes).laps(),
        3 | 4 => Pool::<4>::new(chunk_bytes).laps(),
        _ => Pool::<8>::new(chunk_bytes).laps(),
    }
}

/// Returns the requests of a listing that no worker runs, as they stand in it, without padding.
pub(super) fn as_written(listing: &Listing) -> Vec<Request> {
    listing.rows().iter().map(|row| Request::of_step(row.operation)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::index;
    use super::*;

    const CHUNK_BYTES: u64 = 8 << 10;

    #[test]
    fn a_lap_executes_its_ring_once_and_binds_a_window_for_each_queue_pair() {
        for group in [1, 2, 4, 8] {
            let laps = laps(group, CHUNK_BYTES);
            assert_eq!(laps.alloc.chain.len(), laps.chains.alloc.ring());
            assert_eq!(laps.free.chain.len(), laps.chains.free.ring());
            for lap in [&laps.alloc, &laps.free] {
                assert_eq!(lap.binds, vec![Request::Window; index(group)]);
                assert_eq!(lap.replies.len(), 1);
            }
        }
    }

    #[test]
    fn only_a_free_fills_the_chunk_with_zeros() {
        let laps = laps(4, CHUNK_BYTES);
        let scrubs = |lap: &Lap| lap.count(|request| request == Request::Write(CHUNK_BYTES));
        assert_eq!((scrubs(&laps.alloc), scrubs(&laps.refused), scrubs(&laps.free)), (0, 0, 1));
    }

    #[test]
    fn a_refused_allocation_is_a_lap_of_the_same_length_that_binds_nothing() {
        let laps = laps(4, CHUNK_BYTES);
        assert_eq!(laps.refused.chain.len(), laps.alloc.chain.len());
        assert_eq!(laps.refused.binds, vec![Request::Nothing; 4]);
    }
}
