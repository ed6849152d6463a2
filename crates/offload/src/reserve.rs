//! The chunks that the node itself holds: a pool shrinks when the node takes some, and grows when it gives them back.
//!
//! The node takes and gives as any client does, by chains. What it holds nobody reaches, so that it can do without the
//! memory, and give the chunk new windows before their keys have gone round.

use crate::asker::{Answer, Asker};
use crate::message::Handle;
use crate::objects::Objects;
use crate::pool::{ChunkPool, connect_to_itself};
use crate::reclaim::{Progress, broken_worker};
use crate::record::ClientNumber;
use crate::worker::{WorkerParts, Workers};
use portcullis_nic::{
    CqId, Memory, Nic, Operation, QpAttributes, QpId, Status, VerbsError, WindowBinding, WorkRequest,
};

/// Uses of a chunk after which it gets new windows when it comes by. Its keys go round after 256.
const USES_MAX: u64 = 128;

/// The node as a client of its own pool.
#[derive(Clone, Debug)]
pub struct Reserve<M, const GROUP: usize> {
    number: ClientNumber,
    /// `None`: the pool is being rebuilt.
    desk: Option<Desk<M, GROUP>>,
    /// The queue pair to which its windows are bound, and on which it binds.
    anchor: QpId,
    binds: CqId,
    held: Vec<u64>,
    under_way: Option<Change>,
    /// Uses of a chunk's windows after which it gets new ones.
    uses_max: u64,
    objects: Objects,
}

/// The node's workers, and the ends at which it asks them.
#[derive(Clone, Debug)]
struct Desk<M, const GROUP: usize> {
    workers: Workers<GROUP>,
    alloc: Asker<M, GROUP>,
    free: Asker<M, GROUP>,
}

impl<M: Memory, const GROUP: usize> Desk<M, GROUP> {
    /// Connects both sides, and lets the workers begin.
    fn open<N: Nic<Memory = M>>(
        &self,
        pool: &mut ChunkPool<M, GROUP>,
        nic: &mut N,
    ) -> Result<(), VerbsError> {
        let [alloc_peer, free_peer] = self.workers.addresses(nic)?;
        self.alloc.connect(nic, alloc_peer)?;
        self.free.connect(nic, free_peer)?;
        let peers = [self.alloc.address(nic)?, self.free.address(nic)?];
        pool.start_workers(nic, &self.workers, peers)
    }
}

/// What a reserve is doing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Change {
    /// It takes a chunk.
    Take,
    /// It binds a new window of the chunk that it is about to give.
    Bind,
    /// It gives a chunk.
    Give,
}

impl<M: Memory, const GROUP: usize> Reserve<M, GROUP> {
    /// Makes the node a client of a pool. No other client has this number.
    ///
    /// # Errors
    /// A limit of the NIC or of the pool's workers.
    pub fn new<N: Nic<Memory = M>>(
        pool: &mut ChunkPool<M, GROUP>,
        nic: &mut N,
        number: ClientNumber,
    ) -> Result<Self, VerbsError> {
        Self::with_uses(pool, nic, number, USES_MAX)
    }

    /// The same with another number of uses after which a chunk gets new windows, for those who examine it.
    ///
    /// # Errors
    /// As [`Reserve::new`].
    pub fn with_uses<N: Nic<Memory = M>>(
        pool: &mut ChunkPool<M, GROUP>,
        nic: &mut N,
        number: ClientNumber,
        uses_max: u64,
    ) -> Result<Self, VerbsError> {
        let mut objects = Objects::default();
        let binds = objects.cq(nic.create_cq(2 * small(GROUP)))?;
        let attributes =
            QpAttributes { send_cq: binds, receive_cq: binds, send_depth: small(GROUP), receive_depth: 0 };
        let anchor = objects.queue_pair(nic.create_qp(pool.domains.access, attributes))?;
        connect_to_itself(nic, anchor)?;
        let mut reserve =
            Self { number, desk: None, anchor, binds, held: Vec::new(), under_way: None, uses_max, objects };
        reserve.resume(pool, nic)?;
        Ok(reserve)
    }

    /// Makes the workers that [`Reserve::stop`] has ended anew. The node holds what the table says.
    ///
    /// # Errors
    /// A limit of the NIC or of the pool's workers.
    pub fn resume<N: Nic<Memory = M>>(
        &mut self,
        pool: &mut ChunkPool<M, GROUP>,
        nic: &mut N,
    ) -> Result<(), VerbsError> {
        self.held = pool.chunks_of(self.number);
        let quota = pool.geometry.chunks - self.held.len() as u64;
        let alloc = Asker::new(nic, pool.domains.edge)?;
        let free = match Asker::new(nic, pool.domains.edge) {
            Ok(free) => free,
            Err(error) => {
                let _ = alloc.end(nic);
                return Err(error);
            }
        };
        let workers = match pool.attach(nic, self.number, &[self.anchor], quota) {
            Ok(workers) => workers,
            Err(error) => {
                let _ = alloc.end(nic).and(free.end(nic));
                return Err(error);
            }
        };
        let desk = Desk { workers, alloc, free };
        if let Err(error) = desk.open(pool, nic) {
            let Desk { workers, alloc, free } = desk;
            let _ = pool.dismiss_workers(nic, workers).and(alloc.end(nic)).and(free.end(nic));
            return Err(error);
        }
        self.desk = Some(desk);
        Ok(())
    }

    /// Gives up its workers, for [`ChunkPool::rebuild`]. What it had asked for is done or not done; a bind is none of theirs,
    /// and goes on.
    ///
    /// # Errors
    /// The NIC does not let something go.
    pub fn stop<N: Nic<Memory = M>>(&mut self, nic: &mut N) -> Result<Option<Workers<GROUP>>, VerbsError> {
        self.under_way = self.under_way.filter(|change| *change == Change::Bind);
        let Some(Desk { workers, alloc, free }) = self.desk.take() else { return Ok(None) };
        alloc.end(nic)?;
        free.end(nic)?;
        Ok(Some(workers))
    }

    /// Whether a worker of the node's has broken.
    ///
    /// # Errors
    /// The NIC has lost the queue pairs.
    pub fn is_broken<N: Nic>(&self, nic: &N) -> Result<bool, VerbsError> {
        self.desk.as_ref().map_or(Ok(false), |desk| desk.workers.is_broken(nic))
    }

    /// What its workers are made of, if it has any: the one that allocates, and the one that frees.
    #[must_use]
    pub fn parts(&self) -> Vec<WorkerParts> {
        self.desk.iter().flat_map(|desk| desk.workers.parts()).collect()
    }

    /// The queue pairs on which it asks its workers.
    #[must_use]
    pub fn asking_queue_pairs(&self) -> Vec<QpId> {
        self.desk.iter().flat_map(|desk| [desk.alloc.queue_pair(), desk.free.queue_pair()]).collect()
    }

    /// The queue pair to which its windows are bound.
    #[must_use]
    pub fn anchor(&self) -> QpId {
        self.anchor
    }

    /// What it is doing.
    #[must_use]
    pub fn under_way(&self) -> Option<Change> {
        self.under_way
    }

    fn desk(&self) -> Result<&Desk<M, GROUP>, VerbsError> {
        self.desk.as_ref().ok_or_else(broken_worker)
    }

    /// The chunks that the node holds.
    #[must_use]
    pub fn held(&self) -> &[u64] {
        &self.held
    }

    /// Begins to take a chunk out of the pool.
    ///
    /// # Errors
    /// The NIC refuses the request.
    ///
    /// # Panics
    /// The change before is not done.
    pub fn take<N: Nic<Memory = M>>(&mut self, nic: &mut N) -> Result<(), VerbsError> {
        assert!(self.under_way.is_none(), "one change at a time");
        self.desk()?.alloc.ask(nic, Handle(0))?;
        self.under_way = Some(Change::Take);
        Ok(())
    }

    /// Begins to give back the chunk that was taken last. Nothing happens if there is none.
    ///
    /// # Errors
    /// The NIC refuses something. The node keeps the chunk.
    ///
    /// # Panics
    /// The change before is not done.
    pub fn give<N: Nic<Memory = M>>(
        &mut self,
        pool: &mut ChunkPool<M, GROUP>,
        nic: &mut N,
    ) -> Result<(), VerbsError> {
        assert!(self.under_way.is_none(), "one change at a time");
        let Some(&chunk) = self.held.last() else { return Ok(()) };
        if pool.uses_of_windows(chunk) >= self.uses_max {
            self.renew(pool, nic, chunk)?;
            self.under_way = Some(Change::Bind);
            return Ok(());
        }
        self.desk()?.free.ask(nic, pool.geometry.handle::<GROUP>(chunk))?;
        self.under_way = Some(Change::Give);
        Ok(())
    }

    /// Gives a chunk new windows. The first is bound, as the chain that frees expects it.
    fn renew<N: Nic<Memory = M>>(
        &self,
        pool: &mut ChunkPool<M, GROUP>,
        nic: &mut N,
        chunk: u64,
    ) -> Result<(), VerbsError> {
        pool.renew_windows(nic, chunk, pool.number_of_use(chunk))?;
        let binding: WindowBinding = pool.table.binding(chunk, pool.windows_of(chunk)[0]);
        let bind = WorkRequest { id: 0, signalled: true, operation: Operation::BindWindow(binding) };
        let posted = nic.post_send(self.anchor, &[bind])?;
        assert_eq!(posted, 1, "a bind is posted after the one before has ended");
        Ok(())
    }

    /// Goes on with what was begun.
    ///
    /// # Errors
    /// The NIC has lost something, or a worker is broken.
    pub fn proceed<N: Nic<Memory = M>>(
        &mut self,
        pool: &ChunkPool<M, GROUP>,
        nic: &mut N,
    ) -> Result<Progress, VerbsError> {
        let Some(change) = self.under_way else { return Ok(Progress::Done) };
        if change == Change::Bind {
            return self.proceed_from_bind(pool, nic);
        }
        let desk = self.desk()?;
        let asker = if change == Change::Take { &desk.alloc } else { &desk.free };
        let reply = match asker.answer(nic)? {
            Answer::Pending => return Ok(Progress::Pending),
            Answer::Broken => return Err(broken_worker()),
            Answer::Reply(reply) => reply,
        };
        self.under_way = None;
        if change == Change::Give {
            assert!(reply.is_done, "the node frees what it holds");
            self.held.pop();
        } else if reply.is_done {
            let chunk = pool.geometry.chunk_at(reply.windows[0].address);
            self.held.push(chunk.expect("the pool's records name its chunks"));
        }
        Ok(Progress::Done)
    }

    fn proceed_from_bind<N: Nic<Memory = M>>(
        &mut self,
        pool: &ChunkPool<M, GROUP>,
        nic: &mut N,
    ) -> Result<Progress, VerbsError> {
        let mut bound = Vec::new();
        nic.poll(self.binds, 1, &mut bound)?;
        match (bound.first(), self.held.last()) {
            (Some(bound), Some(&chunk)) if bound.status == Status::Success => {
                self.desk()?.free.ask(nic, pool.geometry.handle::<GROUP>(chunk))?;
                self.under_way = Some(Change::Give);
                Ok(Progress::Pending)
            }
            (Some(bound), _) => Err(VerbsError::Machine(format!(
                "a window of a chunk could not be bound: {:?}",
                bound.status
            ))),
            (None, _) => Ok(Progress::Pending),
        }
    }

    /// Ends it where it stands. Chunks stay as they are: the pool is about to end.
    ///
    /// # Errors
    /// The NIC does not let something go.
    pub fn abandon<N: Nic<Memory = M>>(
        mut self,
        pool: &mut ChunkPool<M, GROUP>,
        nic: &mut N,
    ) -> Result<(), VerbsError> {
        // A queue pair with windows bound to it goes with the pool.
        pool.adopt(std::mem::take(&mut self.objects));
        let workers = self.stop(nic)?;
        workers.map_or(Ok(()), |workers| pool.dismiss_workers(nic, workers))
    }
}

fn small(group: usize) -> u32 {
    u32::try_from(group).expect("a group has at most eight queue pairs")
}
