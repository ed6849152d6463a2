//! Clients of a pool: what each is doing, and the ends at which they ask.

use super::Case;
use super::arena::ArenaMemory;
use crate::memory::index;
use portcullis_nic::{
    Access, CompletionKind, CqId, LocalSpan, Memory, Nic, Operation, PdId, QpAttributes, QpId,
    ReceiveRequest, Region, RemoteAddress, Status, VerbsError, WorkRequest, connect_qp,
};
use portcullis_offload::{
    ChunkPool, ClientNumber, Handle, REQUEST_BYTES, Reclaim, Reply, Workers, reply_bytes,
};
use portcullis_protocol::Moment;
use portcullis_softnic::SoftNic;
use std::collections::VecDeque;

/// Nothing here depends on time.
pub(super) const NOW: Moment = Moment(0);
const REPLY_AT: u64 = 64;

/// What a client of the pool is doing.
#[derive(Clone, Debug)]
pub(super) enum Life<const G: usize> {
    /// It lives, and has these workers.
    Alive(Vec<Workers<G>>),
    /// It is gone, and the node frees its chunks.
    Gone(Vec<Reclaim<ArenaMemory, G>>),
    /// Nothing of it is left.
    Forgotten,
}

/// What a reply will have to say, as the chain's effects on the table show it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Due {
    Allocated(Option<u64>),
    Freed(bool),
}

/// A client of the pool.
#[derive(Clone, Debug)]
pub(super) struct Member<const G: usize> {
    pub number: ClientNumber,
    pub group: Vec<QpId>,
    pub life: Life<G>,
    /// The ends at which it asks: two for each pair of workers.
    pub asks: Vec<AskingEnd>,
}

/// Where a client asks a worker.
#[derive(Clone, Debug)]
pub(super) struct AskingEnd {
    pub qp: QpId,
    cq: CqId,
    memory: ArenaMemory,
    region: Region,
    /// Requests without a reply.
    pub waiting: u32,
    /// What the replies under way have to say.
    pub due: VecDeque<Due>,
}

impl<const G: usize> Member<G> {
    pub fn new(
        nic: &mut SoftNic<ArenaMemory>,
        pool: &mut ChunkPool<ArenaMemory, G>,
        case: &Case,
        place: u64,
    ) -> Self {
        let number = ClientNumber::new(place + 1).expect("a small number");
        let group: Vec<_> = (0..G).map(|_| access_end(nic, pool.domains().access)).collect();
        let pd = nic.allocate_pd().expect("a domain");
        let mut asks = Vec::new();
        let mut pairs = Vec::new();
        for _ in 0..case.pairs {
            let quota = case.quota.unwrap_or(case.chunks + 2);
            let workers = pool.attach(nic, number, &group, quota).expect("workers");
            let ends: Vec<_> = (0..2).map(|_| AskingEnd::new(nic, pd).expect("an end")).collect();
            let there = workers.addresses(nic).expect("addresses");
            for (end, peer) in ends.iter().zip(there) {
                connect_qp(nic, end.qp, peer).expect("each step");
            }
            let here = [0, 1].map(|end: usize| nic.qp_address(ends[end].qp).expect("an address"));
            pool.start_workers(nic, &workers, here).expect("they begin");
            let starter = pool.parts().starter;
            while nic.core().execute_one(starter, NOW) {}
            asks.extend(ends);
            pairs.push(workers);
        }
        Self { number, group, life: Life::Alive(pairs), asks }
    }
}

/// The node's end of an access queue pair: nothing but its number matters here.
fn access_end(nic: &mut SoftNic<ArenaMemory>, pd: PdId) -> QpId {
    let cq = nic.create_cq(1).expect("a queue");
    let attributes = QpAttributes { send_cq: cq, receive_cq: cq, send_depth: 1, receive_depth: 0 };
    nic.create_qp(pd, attributes).expect("a queue pair")
}

impl AskingEnd {
    fn new(nic: &mut SoftNic<ArenaMemory>, pd: PdId) -> Result<Self, VerbsError> {
        let memory = nic.allocate_memory(1024)?;
        let region = nic.register_region(pd, &memory, 0..1024, RemoteAddress(0), Access::LOCAL_WRITE)?;
        let cq = nic.create_cq(16)?;
        let attributes = QpAttributes { send_cq: cq, receive_cq: cq, send_depth: 8, receive_depth: 8 };
        let qp = nic.create_qp(pd, attributes)?;
        Ok(Self { qp, cq, memory, region, waiting: 0, due: VecDeque::new() })
    }

    fn local(&self, address: u64, bytes: u64) -> LocalSpan {
        let length = u32::try_from(bytes).unwrap_or(0);
        LocalSpan { address, length, lkey: self.region.lkey }
    }

    /// Sends a request. It arrives at once: a message on its way is one that is sent later.
    pub fn ask<const G: usize>(
        &self,
        nic: &mut SoftNic<ArenaMemory>,
        handle: Handle,
    ) -> Result<(), VerbsError> {
        self.memory.write(0, &handle.to_request());
        let local = self.local(REPLY_AT, reply_bytes::<G>());
        nic.post_receive(self.qp, &[ReceiveRequest { id: 0, local }])?;
        let operation = Operation::Send { local: self.local(0, REQUEST_BYTES) };
        nic.post_send(self.qp, &[WorkRequest { id: 0, signalled: true, operation }])?;
        assert!(nic.core().execute_one(self.qp, NOW), "there is a receive for it");
        Ok(())
    }

    /// The reply that has come.
    pub fn take<const G: usize>(&self, nic: &mut SoftNic<ArenaMemory>) -> Option<Reply<G>> {
        let mut completions = Vec::new();
        nic.poll(self.cq, 16, &mut completions).ok()?;
        let is_reply = completions
            .iter()
            .any(|it| it.status == Status::Success && matches!(it.kind, CompletionKind::Receive { .. }));
        let mut bytes = vec![0; index(reply_bytes::<G>())];
        self.memory.read(REPLY_AT, &mut bytes);
        is_reply.then(|| Reply::from_bytes(&bytes)).flatten()
    }
}
