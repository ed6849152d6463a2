//! A pool's client without a library: the ends at which it sends requests to its workers. The code that drives the
//! NIC decides when a worker continues.

use crate::memory::index;
use portcullis_nic::{
    Access, CompletionKind, CqId, LocalSpan, Nic, Operation, PdId, QpAttributes, QpId, ReceiveRequest,
    Region, RemoteAddress, Status, VerbsError, WorkRequest, connect_qp,
};
use portcullis_offload::{ChunkPool, ClientNumber, Handle, REQUEST_BYTES, Reply, Workers, reply_bytes};
use portcullis_protocol::Moment;
use portcullis_softnic::{NicMemory, SoftNic};

/// Nothing here depends on time.
pub(crate) const NOW: Moment = Moment(0);
const REPLY_AT: u64 = 64;

/// An end at which a client sends requests to a worker.
#[derive(Clone, Debug)]
pub struct AskingEnd<M> {
    pub(crate) qp: QpId,
    cq: CqId,
    memory: M,
    region: Region,
}

impl<M: NicMemory> AskingEnd<M> {
    /// Creates the node's ends of a client's access queue pairs, one for each window of a chunk. Only their numbers
    /// matter: no access arrives there.
    ///
    /// # Panics
    /// The NIC has no room for them.
    pub fn group<const G: usize>(nic: &mut SoftNic<M>, pool: &ChunkPool<M, G>) -> Vec<QpId> {
        let pd = pool.domains().access;
        let end = |_| {
            let cq = nic.create_cq(1).expect("a queue");
            let attributes = QpAttributes { send_cq: cq, receive_cq: cq, send_depth: 1, receive_depth: 0 };
            nic.create_qp(pd, attributes).expect("a queue pair")
        };
        (0..G).map(end).collect()
    }

    /// Gives a client two workers that are ready, and the ends at which it sends them requests: for chunks, and for
    /// frees. The ends are in the protection domain `pd`.
    ///
    /// # Panics
    /// The NIC or the pool has no room for them.
    pub fn attach<const G: usize>(
        nic: &mut SoftNic<M>,
        pool: &mut ChunkPool<M, G>,
        (number, group, quota): (ClientNumber, &[QpId], u64),
        pd: PdId,
    ) -> (Workers<G>, [Self; 2]) {
        let workers = pool.attach(nic, number, group, quota).expect("workers");
        let ends = [(); 2].map(|()| Self::new(nic, pd).expect("an end"));
        let there = workers.addresses(nic).expect("addresses");
        for (end, peer) in ends.iter().zip(there) {
            connect_qp(nic, end.qp, peer).expect("each step");
        }
        let here = [0, 1].map(|end: usize| nic.qp_address(ends[end].qp).expect("an address"));
        pool.start_workers(nic, &workers, here).expect("they begin");
        let starter = pool.parts().starter;
        while nic.core().execute_one(starter, NOW) {}
        (workers, ends)
    }

    fn new(nic: &mut SoftNic<M>, pd: PdId) -> Result<Self, VerbsError> {
        let memory = nic.allocate_memory(1024)?;
        let region = nic.register_region(pd, &memory, 0..1024, RemoteAddress(0), Access::LOCAL_WRITE)?;
        let cq = nic.create_cq(16)?;
        let attributes = QpAttributes { send_cq: cq, receive_cq: cq, send_depth: 8, receive_depth: 8 };
        let qp = nic.create_qp(pd, attributes)?;
        Ok(Self { qp, cq, memory, region })
    }

    fn local(&self, address: u64, bytes: u64) -> LocalSpan {
        let length = u32::try_from(bytes).unwrap_or(0);
        LocalSpan { address, length, lkey: self.region.lkey }
    }

    /// Sends a request. It arrives at once: a delayed message is equivalent to a message that is sent later.
    ///
    /// # Errors
    /// The NIC refuses, because the queue pair has failed.
    ///
    /// # Panics
    /// The worker has no receive for the request.
    pub fn ask<const G: usize>(&self, nic: &mut SoftNic<M>, handle: Handle) -> Result<(), VerbsError> {
        self.memory.write(0, &handle.to_request());
        let local = self.local(REPLY_AT, reply_bytes::<G>());
        nic.post_receive(self.qp, &[ReceiveRequest { id: 0, local }])?;
        let operation = Operation::Send { local: self.local(0, REQUEST_BYTES) };
        nic.post_send(self.qp, &[WorkRequest { id: 0, signalled: true, operation }])?;
        assert!(nic.core().execute_one(self.qp, NOW), "there is a receive for it");
        Ok(())
    }

    /// Takes the reply that has arrived, if there is one.
    pub fn take<const G: usize>(&self, nic: &mut SoftNic<M>) -> Option<Reply<G>> {
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
