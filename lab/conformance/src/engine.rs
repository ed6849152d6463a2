//! The queue pairs of a chain on the bench, and the memory that its requests reach.

use portcullis_examination::bench::{
    Bench, End, HELD, MEMORY_BYTES, POOL_BASE, QUEUE_DEPTH, RETRY_FOR_EVER, remote,
};
use portcullis_examination::check::{Check, Stop};
use portcullis_nic::{
    Access, ChainFeatures, ChainNic, ChainRole, CqId, Nic, Operation, QpAttributes, QpChange, Region,
    RemoteAddress, Rkey,
};

/// Role of a queue pair that posts requests of chains.
pub(super) const PRIVILEGED: ChainRole =
    ChainRole { managed_send: false, managed_receive: false, privileged: true };
/// Role of a queue pair that holds requests of chains, which other queue pairs enable.
pub(super) const MANAGED: ChainRole =
    ChainRole { managed_send: true, managed_receive: true, privileged: true };
/// Capacity of the completion queues of a chain's queue pair.
const ENTRIES: u32 = 128;
const REQUEST_BYTES: u64 = 64;
const WORD_BYTES: u64 = 8;
/// Address at which peers access the memory of a queue.
const QUEUE_BASE: u64 = 0x30_0000_0000;

/// Skips a check if the device lacks a part of the vocabulary.
pub(super) fn require<N: Nic>(bench: &Bench<N>, features: ChainFeatures) -> Check {
    if bench.capabilities.chains.contains(features) {
        return Ok(());
    }
    Err(Stop::Skipped("the device lacks what chains need for this"))
}

/// A queue pair of a chain: its own peer, in the owner's domain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Engine {
    pub end: End,
    /// The owner's memory, with all remote rights.
    pub pool: Region,
}

/// The requests of a managed queue, as memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entries {
    pub region: Region,
}

impl Entries {
    /// Returns the address of a word of a request.
    pub fn word(self, request: u32, word: u64) -> u64 {
        QUEUE_BASE + u64::from(request) * REQUEST_BYTES + word * WORD_BYTES
    }
}

/// Creates a queue pair that posts requests of chains.
pub(super) fn engine<N: Nic>(bench: &mut Bench<N>) -> Result<Engine, Stop> {
    managed(bench, PRIVILEGED)
}

/// Creates a connected queue pair with a role.
pub(super) fn managed<N: Nic>(bench: &mut Bench<N>, role: ChainRole) -> Result<Engine, Stop> {
    let engine = Engine::unconnected(bench, role)?;
    engine.connect(bench)?;
    Ok(engine)
}

impl Engine {
    pub fn unconnected<N: Nic>(bench: &mut Bench<N>, role: ChainRole) -> Result<Self, Stop> {
        let send_cq = bench.nic.create_cq(ENTRIES)?;
        Self::with(bench, role, send_cq)
    }

    /// Creates a privileged queue pair whose completions are counted.
    pub fn counted<N: Nic>(bench: &mut Bench<N>) -> Result<Self, Stop> {
        let send_cq = bench.nic.require_chains()?.create_counting_cq()?;
        let engine = Self::with(bench, PRIVILEGED, send_cq)?;
        engine.connect(bench)?;
        Ok(engine)
    }

    fn with<N: Nic>(bench: &mut Bench<N>, role: ChainRole, send_cq: CqId) -> Result<Self, Stop> {
        let receive_cq = bench.nic.create_cq(ENTRIES)?;
        let attributes =
            QpAttributes { send_cq, receive_cq, send_depth: QUEUE_DEPTH, receive_depth: QUEUE_DEPTH };
        // Without a managed receive queue, the queue pair has no receive queue.
        let receive_depth = if role.managed_receive { QUEUE_DEPTH } else { 0 };
        let qp = bench.nic.require_chains()?.create_chain_qp(
            bench.owner_pd,
            QpAttributes { receive_depth, ..attributes },
            role,
        )?;
        let (pd, base) = (bench.owner_pd, RemoteAddress(POOL_BASE));
        let access = Access::REMOTE | Access::LOCAL_WRITE;
        let pool = bench.nic.register_region(pd, &bench.pool_memory, 0..MEMORY_BYTES, base, access)?;
        Ok(Self { end: End { qp, send_cq, receive_cq }, pool })
    }

    /// Connects the queue pair to itself.
    pub fn connect<N: Nic>(&self, bench: &mut Bench<N>) -> Check {
        let peer = bench.nic.qp_address(self.end.qp)?;
        bench.nic.modify_qp(self.end.qp, QpChange::Init { access: Access::REMOTE })?;
        bench.nic.modify_qp(self.end.qp, QpChange::ReadyToReceive { peer })?;
        bench.nic.modify_qp(self.end.qp, QpChange::ReadyToSend { rnr_retries: RETRY_FOR_EVER })?;
        Ok(())
    }

    /// Puts the queue pair back into service, with nothing posted.
    pub fn recover<N: Nic>(&self, bench: &mut Bench<N>) -> Check {
        bench.nic.modify_qp(self.end.qp, QpChange::Reset)?;
        while bench.nic.poll(self.end.send_cq, 16, &mut Vec::new())? > 0 {}
        self.connect(bench)
    }

    /// Returns a FETCH_AND_ADD to the first word of the range under test.
    pub fn add_to_held<N: Nic>(&self, bench: &Bench<N>, add: u64) -> Operation {
        self.add(bench, HELD, self.pool.rkey, add)
    }

    pub fn add<N: Nic>(&self, bench: &Bench<N>, address: u64, rkey: Rkey, add: u64) -> Operation {
        Operation::FetchAndAdd { local: bench.pool(0, 8), remote: remote(address, rkey), add }
    }

    /// Registers the send queue as memory.
    pub fn queue_memory<N: Nic>(&self, bench: &mut Bench<N>) -> Result<Entries, Stop> {
        let (pd, base) = (bench.owner_pd, RemoteAddress(QUEUE_BASE));
        let access = Access::REMOTE | Access::LOCAL_WRITE;
        Ok(Entries {
            region: bench.nic.require_chains()?.register_queue_memory(pd, self.end.qp, base, access)?,
        })
    }
}
