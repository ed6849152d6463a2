//! Workers: the queue pairs that carry a client's chains.
//!
//! A client has two workers: one that allocates and one that frees. Each has a queue pair on which the client sends
//! requests, a queue that holds the chain, and a queue that binds and frees windows. The client's number and the queue
//! pairs of its group are constants of these queues. A request names neither, so neither can be forged.

use crate::chain::{REQUEST_BYTES, Scratch, Wiring};
use crate::objects::Objects;
use crate::pool::{Areas, ChunkPool, ENGINE, connect_to_itself};
use crate::record::{ClientNumber, OWNER_AT};
use portcullis_nic::{
    Access, ChainNic, ChainRole, ChainVerb, CqId, LocalSpan, Memory, Nic, Operation, PdId, QpAddress,
    QpAttributes, QpChange, QpId, QpState, ReceiveRequest, Region, RemoteAddress, Rkey, VerbsError,
    WindowBinding, WindowId, WorkRequest,
};

/// Retry count of a SEND: for ever. A client that posts no receive stops only its own worker.
const RETRY_FOR_EVER: u8 = 7;

/// The two workers of a client.
#[derive(Clone, Debug)]
pub struct Workers<const GROUP: usize> {
    pub(crate) number: ClientNumber,
    pub(crate) group: Vec<QpId>,
    pub(crate) alloc: Worker,
    pub(crate) free: Worker,
}

/// The verbs objects and the memory of a worker, for callers that watch its steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WorkerParts {
    /// The queue pair on which the client sends requests.
    pub messages: QpId,
    /// The queue pair that holds the chain.
    pub chain: QpId,
    /// The queue pair that binds and frees windows.
    pub binds: QpId,
    /// Counts the client's requests.
    pub received: CqId,
    /// Counts the replies that have left.
    pub replied: CqId,
    /// Counts the requests that the bind queue has executed.
    pub bound: CqId,
    /// Offset of the worker's part in the pool's scratch memory.
    pub scratch_at: u64,
    /// Offset, in the scratch memory, of the number of requests for chunks that the client may make.
    pub credits_at: u64,
}

/// One worker.
#[derive(Clone, Debug)]
pub(crate) struct Worker {
    wiring: Wiring,
    /// Number of requests that the worker accepts before it gives one back: one for a worker that frees.
    requests: u64,
    ring: u64,
    /// The number of the worker's part of the scratch memory. `buffers` is that part, for requests and replies.
    scratch: u32,
    buffers: Region,
    objects: Objects,
}

/// Task of a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Allocates, for a client that may hold at most `quota` chunks.
    Alloc { quota: u64 },
    /// Frees. The value is the queue pair for messages and the credits' offset of the client's worker that allocates,
    /// if it has one.
    Free(Option<(QpId, u64)>),
}

impl Kind {
    /// Returns the number of requests that may arrive before the worker gives one back.
    fn requests(self) -> u64 {
        match self {
            Self::Alloc { quota } => quota,
            Self::Free(_) => 1,
        }
    }
}

impl<const GROUP: usize> Workers<GROUP> {
    /// Returns the number of the client.
    #[must_use]
    pub fn client(&self) -> ClientNumber {
        self.number
    }

    /// Returns the addresses of the peers of the client's queue pairs for requests: for allocations, and for frees.
    ///
    /// # Errors
    /// The NIC has lost the queue pairs.
    pub fn addresses<N: Nic>(&self, nic: &N) -> Result<[QpAddress; 2], VerbsError> {
        Ok([nic.qp_address(self.alloc.wiring.messages)?, nic.qp_address(self.free.wiring.messages)?])
    }

    /// Returns the node's ends of the client's access queue pairs.
    #[must_use]
    pub fn group(&self) -> &[QpId] {
        &self.group
    }

    /// Returns the parts of the two workers: of the one that allocates, and of the one that frees.
    #[must_use]
    pub fn parts(&self) -> [WorkerParts; 2] {
        [self.alloc.parts(), self.free.parts()]
    }

    /// Returns whether a queue of a chain has failed. Then its worker stands still, perhaps with the lock.
    ///
    /// # Errors
    /// The NIC has lost the queue pairs.
    pub fn is_broken<N: Nic>(&self, nic: &N) -> Result<bool, VerbsError> {
        Ok(self.alloc.is_broken(nic)? || self.free.is_broken(nic)?)
    }
}

impl Worker {
    pub(crate) fn parts(&self) -> WorkerParts {
        let Wiring {
            messages, queue_pair, bind_queue, received, replied, bound, scratch_at, credits_at, ..
        } = self.wiring;
        let binds = bind_queue;
        WorkerParts { messages, chain: queue_pair, binds, received, replied, bound, scratch_at, credits_at }
    }

    fn queue_pairs(&self) -> [QpId; 3] {
        [self.wiring.messages, self.wiring.queue_pair, self.wiring.bind_queue]
    }

    pub(crate) fn is_broken<N: Nic>(&self, nic: &N) -> Result<bool, VerbsError> {
        let [_, chain, binds] = self.queue_pairs();
        let broken = |qp| nic.qp_state(qp).map(|state| state == QpState::Error);
        Ok(broken(chain)? || broken(binds)?)
    }

    /// Returns the requests that start the worker: they admit the client's requests and the first lap.
    fn beginning(&self) -> [ChainVerb; 2] {
        let Wiring { messages, queue_pair, .. } = self.wiring;
        [
            ChainVerb::EnableReceive { queue_pair: messages, limit: self.requests },
            ChainVerb::Enable { queue_pair, limit: self.ring },
        ]
    }

    pub(crate) fn address<N: Nic>(&self, nic: &N) -> Result<QpAddress, VerbsError> {
        nic.qp_address(self.wiring.messages)
    }
}

impl<M: Memory, const GROUP: usize> ChunkPool<M, GROUP> {
    /// Makes the workers of a client, whose chunks will have windows on `group`: the node's ends of its access queue
    /// pairs in [`Domains::access`](crate::Domains::access). The client can hold `quota` chunks at a time, beyond those
    /// that it holds already. [`ChunkPool::start_workers`] starts the workers.
    ///
    /// No earlier client may have had this number, unless all its chunks were freed, or the pool was rebuilt and the
    /// client has the same group.
    ///
    /// # Errors
    /// The group has too many queue pairs, the pool has too many workers, or a limit of the NIC is reached. No object
    /// is left behind.
    pub fn attach<N: Nic<Memory = M>>(
        &mut self,
        nic: &mut N,
        number: ClientNumber,
        group: &[QpId],
        quota: u64,
    ) -> Result<Workers<GROUP>, VerbsError> {
        if group.is_empty() || group.len() > GROUP {
            return Err(VerbsError::Invalid(
                "a group has a queue pair, and no more than the pool's chunks have windows",
            ));
        }
        let alloc = self.make_worker(nic, Kind::Alloc { quota }, number, group)?;
        let credits = (alloc.wiring.messages, alloc.wiring.credits_at);
        match self.make_worker(nic, Kind::Free(Some(credits)), number, group) {
            Ok(free) => Ok(Workers { number, group: group.to_vec(), alloc, free }),
            Err(error) => {
                let _ = self.dismiss(nic, alloc);
                Err(error)
            }
        }
    }

    /// Makes a worker that frees the chunks of a client that has left.
    pub(crate) fn make_reclaimer<N: Nic<Memory = M>>(
        &mut self,
        nic: &mut N,
        number: ClientNumber,
        group: &[QpId],
    ) -> Result<Worker, VerbsError> {
        self.make_worker(nic, Kind::Free(None), number, group)
    }

    fn make_worker<N: Nic<Memory = M>>(
        &mut self,
        nic: &mut N,
        kind: Kind,
        number: ClientNumber,
        group: &[QpId],
    ) -> Result<Worker, VerbsError> {
        let Some(scratch) = self.scratch_free.pop() else {
            return Err(VerbsError::Exhausted { what: "workers of the pool", limit: self.workers.into() });
        };
        let mut objects = Objects::default();
        match self.wire(nic, kind, number, (group, scratch), &mut objects) {
            Ok((wiring, buffers, ring)) => {
                Ok(Worker { wiring, requests: kind.requests(), ring, scratch, buffers, objects })
            }
            Err(error) => {
                let _ = objects.destroy(nic);
                self.scratch_free.push(scratch);
                Err(error)
            }
        }
    }

    /// Makes a worker's queues, and fills those that hold its chain.
    fn wire<N: Nic<Memory = M>>(
        &self,
        nic: &mut N,
        kind: Kind,
        number: ClientNumber,
        (group, scratch): (&[QpId], u32),
        objects: &mut Objects,
    ) -> Result<(Wiring, Region, u64), VerbsError> {
        let listing = match kind {
            Kind::Alloc { .. } => &self.chains.alloc,
            Kind::Free(_) => &self.chains.free,
        };
        let mut count = || objects.cq(nic.require_chains()?.create_counting_cq());
        let (received, replied, bound) = (count()?, count()?, count()?);
        let bind_queue = managed(nic, objects, self.domains.access, bound, GROUP.next_power_of_two())?;
        let queue_pair = managed(nic, objects, self.domains.engine, self.lock, listing.ring())?;
        let role = ChainRole { managed_send: true, managed_receive: true, privileged: false };
        let attributes =
            QpAttributes { send_cq: replied, receive_cq: received, send_depth: 1, receive_depth: 1 };
        let messages =
            objects.queue_pair(nic.require_chains()?.create_chain_qp(self.domains.edge, attributes, role))?;
        let base = RemoteAddress(0);
        let mut memory = |nic: &mut N, qp| {
            objects.region(nic.require_chains()?.register_queue_memory(self.domains.engine, qp, base, ENGINE))
        };
        let (queue, binds) = (memory(nic, queue_pair)?, memory(nic, bind_queue)?);
        let scratch_at = u64::from(scratch) * Scratch::<GROUP>::BYTES;
        let part = scratch_at..scratch_at + Scratch::<GROUP>::BYTES;
        let buffers = nic.register_region(self.domains.edge, &self.scratch, part, base, Access::LOCAL_WRITE);
        let buffers = objects.region(buffers)?;
        let own_credits = (messages, scratch_at + Scratch::<GROUP>::CREDITS);
        let (alloc_messages, credits_at) = match kind {
            Kind::Free(Some(credits)) => credits,
            Kind::Free(None) | Kind::Alloc { .. } => own_credits,
        };
        let Areas { table, owners, tails, words, scratch, .. } = self.areas;
        let wiring = Wiring {
            client: number,
            queue_pair,
            queue,
            bind_queue,
            binds,
            bound,
            group: group.len(),
            table,
            owners,
            tails,
            words,
            scratch,
            scratch_at,
            credits_at,
            lock: self.lock,
            messages,
            alloc_messages,
            received,
            replied,
        };
        self.prepare_scratch(&wiring, kind);
        self.post_binds(nic, kind, &wiring, group)?;
        let requests = listing.lay(&nic.require_chains()?, &wiring)?;
        post_all(nic, queue_pair, &requests)?;
        Ok((wiring, buffers, listing.ring() as u64))
    }

    fn prepare_scratch(&self, wiring: &Wiring, kind: Kind) {
        for at in (0..Scratch::<GROUP>::BYTES).step_by(8) {
            self.scratch.store(wiring.scratch_at + at, 0);
        }
        let owner = wiring.scratch_at + Scratch::<GROUP>::OWNED + OWNER_AT;
        self.scratch.store(owner, wiring.client.holds());
        if let Kind::Alloc { quota } = kind {
            self.scratch.store(wiring.credits_at, quota);
        }
    }

    /// Fills the ring of a bind queue. Of these requests, chains leave unchanged only the queue pair and the region.
    fn post_binds<N: Nic<Memory = M>>(
        &self,
        nic: &mut N,
        kind: Kind,
        wiring: &Wiring,
        group: &[QpId],
    ) -> Result<(), VerbsError> {
        let nothing = Operation::Chain(ChainVerb::Nop);
        let operation = |number: usize| match (group.get(number), kind) {
            (None, _) => nothing,
            (Some(&queue_pair), Kind::Alloc { .. }) => Operation::Chain(ChainVerb::BindWindow {
                binding: WindowBinding {
                    window: WindowId(0),
                    rkey: Rkey(0),
                    region: self.areas.chunks.id,
                    address: RemoteAddress(0),
                    length: 0,
                    access: Access::empty(),
                },
                queue_pair,
            }),
            (Some(&queue_pair), Kind::Free(_)) => {
                Operation::Chain(ChainVerb::LocalInvalidate { rkey: Rkey(0), queue_pair })
            }
        };
        let requests: Vec<_> = (0..GROUP.next_power_of_two())
            .map(|number| WorkRequest { id: number as u64, signalled: true, operation: operation(number) })
            .collect();
        post_all(nic, wiring.bind_queue, &requests)
    }

    /// Connects a client's workers to its queue pairs for requests, and starts them.
    ///
    /// # Errors
    /// The addresses are wrong, or the workers were started before.
    pub fn start_workers<N: Nic<Memory = M>>(
        &mut self,
        nic: &mut N,
        workers: &Workers<GROUP>,
        peers: [QpAddress; 2],
    ) -> Result<(), VerbsError> {
        let [alloc, free] = peers;
        connect_worker::<GROUP, N>(nic, &workers.alloc, alloc)?;
        connect_worker::<GROUP, N>(nic, &workers.free, free)?;
        // This is the last step, and starts both: a worker that was not started may be destroyed at once, so the
        // starter must not name it.
        self.start(nic, &[workers.alloc.beginning(), workers.free.beginning()].concat())
    }

    pub(crate) fn start_worker<N: Nic<Memory = M>>(
        &mut self,
        nic: &mut N,
        worker: &Worker,
        peer: QpAddress,
    ) -> Result<(), VerbsError> {
        connect_worker::<GROUP, N>(nic, worker, peer)?;
        self.start(nic, &worker.beginning())
    }

    /// Returns whether a worker whose client sends nothing has nothing left to do: it waits for a request, or for its
    /// reply to leave.
    ///
    /// # Errors
    /// The NIC has lost the worker's counts.
    pub(crate) fn is_worker_at_rest<N: Nic<Memory = M>>(
        &self,
        nic: &mut N,
        worker: &Worker,
    ) -> Result<bool, VerbsError> {
        let Wiring { received, replied, scratch_at, .. } = worker.wiring;
        let laps = self.scratch.load(scratch_at + Scratch::<GROUP>::LAPS);
        // Counts have 32 bits and wrap around.
        let laps = u32::try_from(laps & u64::from(u32::MAX)).unwrap_or(u32::MAX);
        let chains = nic.require_chains()?;
        let (received, replied) =
            (chains.completions_counted(received)?, chains.completions_counted(replied)?);
        let waits_for_reply = received != laps && replied != laps;
        Ok(received == laps || waits_for_reply)
    }

    /// Returns whether both workers of a client have nothing left to do. That stays true only if the client can send no
    /// more requests.
    ///
    /// # Errors
    /// The NIC has lost the workers' counts.
    pub fn is_at_rest<N: Nic<Memory = M>>(
        &self,
        nic: &mut N,
        workers: &Workers<GROUP>,
    ) -> Result<bool, VerbsError> {
        Ok(self.is_worker_at_rest(nic, &workers.alloc)? && self.is_worker_at_rest(nic, &workers.free)?)
    }

    /// Accepts no more requests of a client. Its workers finish the requests that they have begun.
    ///
    /// # Errors
    /// The NIC has lost the queue pairs.
    pub fn stop_requests<N: Nic<Memory = M>>(
        &self,
        nic: &mut N,
        workers: &Workers<GROUP>,
    ) -> Result<(), VerbsError> {
        for worker in [&workers.alloc, &workers.free] {
            nic.modify_qp(worker.wiring.messages, QpChange::Error)?;
        }
        Ok(())
    }

    /// Stops a worker where it stands.
    pub(crate) fn halt<N: Nic<Memory = M>>(&self, nic: &mut N, worker: &Worker) -> Result<(), VerbsError> {
        worker.queue_pairs().into_iter().try_for_each(|qp| nic.modify_qp(qp, QpChange::Error))
    }

    pub(crate) fn dismiss<N: Nic<Memory = M>>(
        &mut self,
        nic: &mut N,
        worker: Worker,
    ) -> Result<(), VerbsError> {
        self.scratch_free.push(worker.scratch);
        worker.objects.destroy(nic)
    }

    /// Ends workers, whatever they are doing: workers that were never started, or whose pool is about to end.
    ///
    /// # Errors
    /// The NIC does not destroy an object.
    pub fn dismiss_workers<N: Nic<Memory = M>>(
        &mut self,
        nic: &mut N,
        workers: Workers<GROUP>,
    ) -> Result<(), VerbsError> {
        let halted = self.halt(nic, &workers.alloc).and(self.halt(nic, &workers.free));
        self.detach(nic, workers).and(halted)
    }

    /// Ends the workers of a client that holds no chunk and sends no more requests. The workers must be at rest.
    ///
    /// # Errors
    /// The NIC does not destroy an object.
    pub fn detach<N: Nic<Memory = M>>(
        &mut self,
        nic: &mut N,
        workers: Workers<GROUP>,
    ) -> Result<(), VerbsError> {
        let alloc = self.dismiss(nic, workers.alloc);
        self.dismiss(nic, workers.free).and(alloc)
    }
}

/// Connects a worker to the queue pair on which it receives requests. Posts a receive for a request, and a reply that
/// is sent when the chain enables it.
fn connect_worker<const GROUP: usize, N: Nic>(
    nic: &mut N,
    worker: &Worker,
    peer: QpAddress,
) -> Result<(), VerbsError> {
    let messages = worker.wiring.messages;
    nic.modify_qp(messages, QpChange::Init { access: Access::empty() })?;
    nic.modify_qp(messages, QpChange::ReadyToReceive { peer })?;
    nic.modify_qp(messages, QpChange::ReadyToSend { rnr_retries: RETRY_FOR_EVER })?;
    let lkey = worker.buffers.lkey;
    let local = |address, bytes| LocalSpan { address, length: short(bytes), lkey };
    let request = local(Scratch::<GROUP>::REQUEST, REQUEST_BYTES);
    let posted = nic.post_receive(messages, &[ReceiveRequest { id: 0, local: request }])?;
    assert_eq!(posted, 1, "an empty ring of one has room for one");
    let reply = local(Scratch::<GROUP>::REPLY, Scratch::<GROUP>::REPLY_BYTES);
    let send = Operation::Send { local: reply };
    post_all(nic, messages, &[WorkRequest { id: 0, signalled: true, operation: send }])
}

fn short(bytes: u64) -> u32 {
    u32::try_from(bytes).expect("messages are short")
}

/// Makes a queue pair whose ring other queues enable, connected to itself.
fn managed<N: Nic>(
    nic: &mut N,
    objects: &mut Objects,
    pd: PdId,
    cq: CqId,
    depth: usize,
) -> Result<QpId, VerbsError> {
    let send_depth = u32::try_from(depth).expect("rings of chains are short");
    let attributes = QpAttributes { send_cq: cq, receive_cq: cq, send_depth, receive_depth: 0 };
    let role = ChainRole { managed_send: true, managed_receive: false, privileged: true };
    let qp = objects.queue_pair(nic.require_chains()?.create_chain_qp(pd, attributes, role))?;
    connect_to_itself(nic, qp)?;
    Ok(qp)
}

fn post_all<N: Nic>(nic: &mut N, qp: QpId, requests: &[WorkRequest]) -> Result<(), VerbsError> {
    let posted = nic.post_send(qp, requests)?;
    assert_eq!(posted, requests.len(), "a ring that was just made has room for what it was made for");
    Ok(())
}
