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
use crate::worker::Workers;
use portcullis_nic::{
    CqId, Memory, Nic, Operation, QpAttributes, QpId, Status, VerbsError, WindowBinding, WorkRequest,
};

/// Uses of a chunk after which it gets new windows when it comes by. Its keys go round after 256.
const USES_MAX: u64 = 128;

/// The node as a client of its own pool.
#[derive(Debug)]
pub struct Reserve<M, const GROUP: usize> {
    workers: Workers<GROUP>,
    alloc: Asker<M, GROUP>,
    free: Asker<M, GROUP>,
    /// The queue pair to which its windows are bound, and on which it binds.
    anchor: QpId,
    binds: CqId,
    held: Vec<u64>,
    under_way: Option<Change>,
    objects: Objects,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Change {
    Take,
    /// New windows are bound before the chunk is given.
    Bind,
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
        let mut objects = Objects::default();
        let binds = objects.cq(nic.create_cq(2 * small(GROUP)))?;
        let attributes =
            QpAttributes { send_cq: binds, receive_cq: binds, send_depth: small(GROUP), receive_depth: 0 };
        let anchor = objects.queue_pair(nic.create_qp(pool.domains.access, attributes))?;
        connect_to_itself(nic, anchor)?;
        let quota = pool.geometry.chunks;
        let workers = pool.attach(nic, number, &[anchor], quota)?;
        let (alloc, free) = (Asker::new(nic, pool.domains.edge)?, Asker::new(nic, pool.domains.edge)?);
        let [alloc_peer, free_peer] = workers.addresses(nic)?;
        alloc.connect(nic, alloc_peer)?;
        free.connect(nic, free_peer)?;
        let peers = [alloc.address(nic)?, free.address(nic)?];
        pool.start_workers(nic, &workers, peers)?;
        Ok(Self { workers, alloc, free, anchor, binds, held: Vec::new(), under_way: None, objects })
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
        self.alloc.ask(nic, Handle(0))?;
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
        if pool.table.number_of_use(chunk) > USES_MAX {
            self.renew(pool, nic, chunk)?;
            self.under_way = Some(Change::Bind);
            return Ok(());
        }
        self.free.ask(nic, pool.geometry.handle::<GROUP>(chunk))?;
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
        pool.renew_windows(nic, chunk)?;
        pool.table.set_owner(chunk, self.workers.client());
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
        let asker = if change == Change::Take { &self.alloc } else { &self.free };
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
                self.free.ask(nic, pool.geometry.handle::<GROUP>(chunk))?;
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

    /// Ends: the node holds no chunk. The workers are returned, to be ended by a [`Reclaim`](crate::Reclaim), and after that
    /// what else there was, by [`ReserveEnds::destroy`].
    #[must_use]
    pub fn end(self) -> (Workers<GROUP>, ReserveEnds<M, GROUP>) {
        (self.workers, ReserveEnds { alloc: self.alloc, free: self.free, objects: self.objects })
    }
}

/// What is left of a [`Reserve`] without its workers.
#[derive(Debug)]
pub struct ReserveEnds<M, const GROUP: usize> {
    alloc: Asker<M, GROUP>,
    free: Asker<M, GROUP>,
    objects: Objects,
}

impl<M: Memory, const GROUP: usize> ReserveEnds<M, GROUP> {
    /// Destroys it. The workers are gone.
    ///
    /// # Errors
    /// The NIC does not let something go.
    pub fn destroy<N: Nic<Memory = M>>(self, nic: &mut N) -> Result<(), VerbsError> {
        self.alloc.end(nic)?;
        self.free.end(nic)?;
        self.objects.destroy(nic)
    }
}

fn small(group: usize) -> u32 {
    u32::try_from(group).expect("a group has at most eight queue pairs")
}
