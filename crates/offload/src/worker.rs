//! Workers: the queue pairs that carry a client's chains.
//!
//! A client has two: one that allocates and one that frees. Each has a queue pair on which the client asks, a queue that
//! holds the chain, and a queue that binds and frees windows. Who the client is, and which queue pairs its group has, are
//! constants of these queues. A request names neither, so neither can be forged.

use crate::chain::{REQUEST_BYTES, Scratch, Wiring};
use crate::objects::Objects;
use crate::pool::{Areas, ChunkPool, ENGINE, connect_to_itself};
use crate::record::{ClientNumber, OWNER_AT};
use portcullis_nic::{
    Access, ChainRole, ChainVerb, CqId, LocalSpan, Memory, Nic, Operation, PdId, QpAddress, QpAttributes,
    QpChange, QpId, QpState, ReceiveRequest, Region, RemoteAddress, Rkey, VerbsError, WindowBinding,
    WindowId, WorkRequest,
};

/// A SEND is tried again for ever: a client that posts no receive stops its own worker only.
const RETRY_FOR_EVER: u8 = 7;

/// The two workers of a client.
#[derive(Clone, Debug)]
pub struct Workers<const GROUP: usize> {
    pub(crate) number: ClientNumber,
    pub(crate) group: Vec<QpId>,
    pub(crate) alloc: Worker,
    pub(crate) free: Worker,
}

/// What a worker is made of, for those who watch its steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WorkerParts {
    /// The queue pair on which the client asks.
    pub messages: QpId,
    /// The queue pair that holds the chain.
    pub chain: QpId,
    /// The queue pair that binds and frees windows.
    pub binds: QpId,
    /// Counts the client's requests.
    pub received: CqId,
    /// Counts the replies that have left.
    pub replied: CqId,
    /// Counts what the bind queue has done.
    pub bound: CqId,
    /// Where in the pool's scratch memory the worker's is.
    pub scratch_at: u64,
    /// Where in it is how many requests for chunks the client may make.
    pub credits_at: u64,
}

/// One worker.
#[derive(Clone, Debug)]
pub(crate) struct Worker {
    wiring: Wiring,
    /// How many requests it takes before it gives one back: of one that frees, one.
    requests: u64,
    ring: u64,
    /// The number of its scratch memory, and that memory, for requests and replies.
    scratch: u32,
    buffers: Region,
    objects: Objects,
}

/// What a worker is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// It allocates, for a client that may hold so many chunks.
    Alloc { quota: u64 },
    /// It frees. The wiring is that of the client's worker that allocates, if it has one.
    Free(Option<(QpId, u64)>),
}

impl Kind {
    /// How many requests may come before the worker gives one back.
    fn requests(self) -> u64 {
        match self {
            Self::Alloc { quota } => quota,
            Self::Free(_) => 1,
        }
    }
}

impl<const GROUP: usize> Workers<GROUP> {
    /// The client that they work for.
    #[must_use]
    pub fn client(&self) -> ClientNumber {
        self.number
    }

    /// Where the client's queue pairs for requests have their peers: for allocations, and for frees.
    ///
    /// # Errors
    /// The NIC has lost the queue pairs.
    pub fn addresses<N: Nic>(&self, nic: &N) -> Result<[QpAddress; 2], VerbsError> {
        Ok([nic.qp_address(self.alloc.wiring.messages)?, nic.qp_address(self.free.wiring.messages)?])
    }

    /// The client's queue pairs for access, at this end.
    #[must_use]
    pub fn group(&self) -> &[QpId] {
        &self.group
    }

    /// What the two are made of: the one that allocates, and the one that frees.
    #[must_use]
    pub fn parts(&self) -> [WorkerParts; 2] {
        [self.alloc.parts(), self.free.parts()]
    }

    /// Whether a queue of a chain has failed. Then its worker stands still, perhaps with the lock.
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

    /// What lets it begin: requests may come, and the first lap is admitted.
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
    /// Makes the workers of a client, whose chunks will have windows on `group`: the ends of its access queue pairs in
    /// [`Domains::access`](crate::Domains::access). The client can hold `quota` chunks at a time, beyond those that it
    /// holds already. The workers begin with [`ChunkPool::start_workers`].
    ///
    /// No client before had this number, unless all its chunks were freed, or the pool was rebuilt and the client has the
    /// same group.
    ///
    /// # Errors
    /// There are too many queue pairs in the group, or too many workers, or a limit of the NIC is reached. Nothing is left
    /// behind.
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

    /// Makes a worker that frees the chunks of a client that is gone.
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
        let [received, replied, bound] = [(); 3].map(|()| objects.cq(nic.create_counting_cq()));
        let (received, replied, bound) = (received?, replied?, bound?);
        let bind_queue = managed(nic, objects, self.domains.access, bound, GROUP.next_power_of_two())?;
        let queue_pair = managed(nic, objects, self.domains.engine, self.lock, listing.ring())?;
        let role = ChainRole { managed_send: true, managed_receive: true, privileged: false };
        let attributes =
            QpAttributes { send_cq: replied, receive_cq: received, send_depth: 1, receive_depth: 1 };
        let messages = objects.queue_pair(nic.create_chain_qp(self.domains.edge, attributes, role))?;
        let base = RemoteAddress(0);
        let mut memory = |nic: &mut N, qp| {
            objects.region(nic.register_queue_memory(self.domains.engine, qp, base, ENGINE))
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
        let requests = listing.lay(nic, &wiring)?;
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

    /// Fills the ring of a bind queue: only which queue pair and which region each is for stays.
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

    /// Connects a client's workers to its queue pairs for requests, and lets them begin.
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
        // Last, and together: a worker that does not begin may go at once, and the starter must know nothing of it.
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

    /// Whether a worker whose client is silent has nothing left to do: it waits for a request, or for its reply to leave.
    ///
    /// # Errors
    /// The NIC has lost its counts.
    pub(crate) fn is_worker_at_rest<N: Nic<Memory = M>>(
        &self,
        nic: &N,
        worker: &Worker,
    ) -> Result<bool, VerbsError> {
        let Wiring { received, replied, scratch_at, .. } = worker.wiring;
        let laps = self.scratch.load(scratch_at + Scratch::<GROUP>::LAPS);
        // Counts have 32 bits and go round.
        let laps = u32::try_from(laps & u64::from(u32::MAX)).unwrap_or(u32::MAX);
        let (received, replied) = (nic.completions_counted(received)?, nic.completions_counted(replied)?);
        let waits_for_reply = received != laps && replied != laps;
        Ok(received == laps || waits_for_reply)
    }

    /// Whether both workers of a client have nothing left to do. It stays so only where the client can ask no more.
    ///
    /// # Errors
    /// The NIC has lost their counts.
    pub fn is_at_rest<N: Nic<Memory = M>>(
        &self,
        nic: &N,
        workers: &Workers<GROUP>,
    ) -> Result<bool, VerbsError> {
        Ok(self.is_worker_at_rest(nic, &workers.alloc)? && self.is_worker_at_rest(nic, &workers.free)?)
    }

    /// Takes no more requests of a client. What its workers have begun they finish.
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

    /// Ends workers where they stand, whatever they were doing: those that were never started, or whose pool is about to
    /// end.
    ///
    /// # Errors
    /// The NIC does not let something go.
    pub fn dismiss_workers<N: Nic<Memory = M>>(
        &mut self,
        nic: &mut N,
        workers: Workers<GROUP>,
    ) -> Result<(), VerbsError> {
        let halted = self.halt(nic, &workers.alloc).and(self.halt(nic, &workers.free));
        self.detach(nic, workers).and(halted)
    }

    /// Ends the workers of a client that holds no chunk, and that has stopped asking. The workers are at rest.
    ///
    /// # Errors
    /// The NIC does not let something go.
    pub fn detach<N: Nic<Memory = M>>(
        &mut self,
        nic: &mut N,
        workers: Workers<GROUP>,
    ) -> Result<(), VerbsError> {
        let alloc = self.dismiss(nic, workers.alloc);
        self.dismiss(nic, workers.free).and(alloc)
    }
}

/// Connects a worker to the queue pair on which it is asked, with a place for a request, and a reply that leaves when its
/// chain says so.
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

/// A queue pair whose ring others enable, connected to itself.
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
    let qp = objects.queue_pair(nic.create_chain_qp(pd, attributes, role))?;
    connect_to_itself(nic, qp)?;
    Ok(qp)
}

fn post_all<N: Nic>(nic: &mut N, qp: QpId, requests: &[WorkRequest]) -> Result<(), VerbsError> {
    let posted = nic.post_send(qp, requests)?;
    assert_eq!(posted, requests.len(), "a ring that was just made has room for what it was made for");
    Ok(())
}
