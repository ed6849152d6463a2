//! The chunks that the node itself holds: a pool shrinks when the node takes some, and grows when it gives them back.
//!
//! The node takes and gives chunks as any client does, by chains. No client can reach a chunk that the node holds. So
//! the node can do without its memory, and can give the chunk new windows before their keys repeat.

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

/// Number of uses after which a chunk gets new windows when the node has it. A chunk's keys repeat after 256 uses.
const USES_MAX: u64 = 128;

/// The node as a client of its own pool.
#[derive(Clone, Debug)]
pub struct Reserve<M, const GROUP: usize> {
    number: ClientNumber,
    /// `None`: the pool is being rebuilt.
    desk: Option<Desk<M, GROUP>>,
    /// The queue pair to which the reserve's windows are bound, and on which it binds.
    anchor: QpId,
    binds: CqId,
    held: Vec<u64>,
    under_way: Option<Change>,
    /// Number of uses of a chunk's windows after which the chunk gets new ones.
    uses_max: u64,
    objects: Objects,
}

/// The node's workers, and the ends at which the node sends requests to them.
#[derive(Clone, Debug)]
struct Desk<M, const GROUP: usize> {
    workers: Workers<GROUP>,
    alloc: Asker<M, GROUP>,
    free: Asker<M, GROUP>,
}

impl<M: Memory, const GROUP: usize> Desk<M, GROUP> {
    /// Connects both ends, and starts the workers.
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

/// The change that a reserve is making.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Change {
    /// Takes a chunk.
    Take,
    /// Binds a new window of the chunk that the reserve is about to give.
    Bind,
    /// Gives a chunk.
    Give,
}

impl<M: Memory, const GROUP: usize> Reserve<M, GROUP> {
    /// Makes the node a client of a pool. No other client may have this number.
    ///
    /// # Errors
    /// A limit of the NIC or of the pool's workers is reached.
    pub fn new<N: Nic<Memory = M>>(
        pool: &mut ChunkPool<M, GROUP>,
        nic: &mut N,
        number: ClientNumber,
    ) -> Result<Self, VerbsError> {
        Self::with_uses(pool, nic, number, USES_MAX)
    }

    /// Makes the node a client of a pool, with another number of uses after which a chunk gets new windows, for an
    /// examination.
    ///
    /// # Errors
    /// The errors of [`Reserve::new`].
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

    /// Makes the workers: the first ones, or new ones after [`Reserve::stop`] has given up the old ones. The node holds
    /// the chunks whose records name it.
    ///
    /// # Errors
    /// A limit of the NIC or of the pool's workers is reached.
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

    /// Gives up the reserve's workers, for [`ChunkPool::rebuild`]. A request to them is either executed or has no
    /// effect. The workers take no part in a bind, which goes on.
    ///
    /// # Errors
    /// The NIC does not destroy an object.
    pub fn stop<N: Nic<Memory = M>>(&mut self, nic: &mut N) -> Result<Option<Workers<GROUP>>, VerbsError> {
        self.under_way = self.under_way.filter(|change| *change == Change::Bind);
        let Some(Desk { workers, alloc, free }) = self.desk.take() else { return Ok(None) };
        alloc.end(nic)?;
        free.end(nic)?;
        Ok(Some(workers))
    }

    /// Returns whether one of the node's workers has broken.
    ///
    /// # Errors
    /// The NIC has lost the queue pairs.
    pub fn is_broken<N: Nic>(&self, nic: &N) -> Result<bool, VerbsError> {
        self.desk.as_ref().map_or(Ok(false), |desk| desk.workers.is_broken(nic))
    }

    /// Returns the parts of the node's workers, if it has any: of the one that allocates, and of the one that frees.
    #[must_use]
    pub fn parts(&self) -> Vec<WorkerParts> {
        self.desk.iter().flat_map(|desk| desk.workers.parts()).collect()
    }

    /// Returns the queue pairs on which the node sends requests to its workers.
    #[must_use]
    pub fn asking_queue_pairs(&self) -> Vec<QpId> {
        self.desk.iter().flat_map(|desk| [desk.alloc.queue_pair(), desk.free.queue_pair()]).collect()
    }

    /// Returns the queue pair to which the reserve's windows are bound.
    #[must_use]
    pub fn anchor(&self) -> QpId {
        self.anchor
    }

    /// Returns the change that is under way.
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
    /// The previous change is still under way.
    pub fn take<N: Nic<Memory = M>>(&mut self, nic: &mut N) -> Result<(), VerbsError> {
        assert!(self.under_way.is_none(), "one change at a time");
        self.desk()?.alloc.ask(nic, Handle(0))?;
        self.under_way = Some(Change::Take);
        Ok(())
    }

    /// Begins to give back the chunk that was taken last. Does nothing if the node holds no chunk.
    ///
    /// # Errors
    /// The NIC refuses a request. The node keeps the chunk.
    ///
    /// # Panics
    /// The previous change is still under way.
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

    /// Gives a chunk new windows. Binds the first of them, as the chain that frees expects it.
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

    /// Continues the change that is under way.
    ///
    /// # Errors
    /// The NIC has lost an object, or a worker has broken.
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

    /// Ends the reserve, whatever it is doing. Chunks stay as they are: the pool is about to end.
    ///
    /// # Errors
    /// The NIC does not destroy an object.
    pub fn abandon<N: Nic<Memory = M>>(
        mut self,
        pool: &mut ChunkPool<M, GROUP>,
        nic: &mut N,
    ) -> Result<(), VerbsError> {
        // A queue pair with windows bound to it is destroyed with the pool.
        pool.adopt(std::mem::take(&mut self.objects));
        let workers = self.stop(nic)?;
        workers.map_or(Ok(()), |workers| pool.dismiss_workers(nic, workers))
    }
}

fn small(group: usize) -> u32 {
    u32::try_from(group).expect("a group has at most eight queue pairs")
}
