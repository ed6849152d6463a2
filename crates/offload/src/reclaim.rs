//! The node's CPU takes chunks back from clients that have left. It is not on the path of an allocation.
//!
//! The CPU never writes the top of the free list or an owner while chains are under way: its atomics and the NIC's are
//! not atomic to each other. A dead client's chunks are freed by a worker with that client's number, to which the CPU
//! sends requests.

use crate::asker::{Answer, Asker};
use crate::pool::ChunkPool;
use crate::record::ClientNumber;
use crate::worker::{Worker, WorkerParts, Workers};
use portcullis_nic::{Memory, Nic, QpId, VerbsError};

/// Frees all chunks of a client that has left, and ends its workers.
///
/// The client's access queue pairs stay until this is done: windows are bound to them, and no other client may get
/// their numbers before.
#[derive(Clone, Debug)]
pub struct Reclaim<M, const GROUP: usize> {
    number: ClientNumber,
    group: Vec<QpId>,
    /// The client's own workers, until they have finished the requests that they had begun.
    own: Option<Workers<GROUP>>,
    /// The worker that frees the client's chunks.
    hired: Option<Hired<M, GROUP>>,
}

/// A worker with the number of a client that has left. The node sends requests to it.
#[derive(Clone, Debug)]
struct Hired<M, const GROUP: usize> {
    worker: Worker,
    asker: Asker<M, GROUP>,
    /// Chunks to be freed.
    left: Vec<u64>,
    /// Whether the node waits for a reply.
    asked: bool,
}

/// State of a reclaim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// The caller must let the NIC run, and then call the reclaim again.
    Pending,
    /// The client has no chunk and no worker any more.
    Done,
}

impl<M: Memory, const GROUP: usize> Reclaim<M, GROUP> {
    /// Begins the reclaim: the client's workers accept no more requests.
    ///
    /// # Errors
    /// The NIC has lost the workers' queue pairs.
    pub fn begin<N: Nic<Memory = M>>(
        pool: &ChunkPool<M, GROUP>,
        nic: &mut N,
        workers: Workers<GROUP>,
    ) -> Result<Self, VerbsError> {
        pool.stop_requests(nic, &workers)?;
        let (number, group) = (workers.number, workers.group.clone());
        Ok(Self { number, group, own: Some(workers), hired: None })
    }

    /// Begins the reclaim of a client whose own workers have ended already, because the pool was rebuilt.
    #[must_use]
    pub fn resume(number: ClientNumber, group: Vec<QpId>) -> Self {
        Self { number, group, own: None, hired: None }
    }

    /// Returns whether a worker has broken for which the reclaim waits.
    ///
    /// # Errors
    /// The NIC has lost the queue pairs.
    pub fn is_broken<N: Nic>(&self, nic: &N) -> Result<bool, VerbsError> {
        let own = self.own.as_ref().map_or(Ok(false), |own| own.is_broken(nic))?;
        Ok(own || self.hired.as_ref().map_or(Ok(false), |hired| hired.worker.is_broken(nic))?)
    }

    /// Returns the client's number.
    #[must_use]
    pub fn client(&self) -> ClientNumber {
        self.number
    }

    /// Returns the parts of the present workers: the client's own two, or the one that frees for it.
    #[must_use]
    pub fn parts(&self) -> Vec<WorkerParts> {
        let own = self.own.iter().flat_map(|own| own.parts());
        own.chain(self.hired.iter().map(|hired| hired.worker.parts())).collect()
    }

    /// Returns the chunks that the node has not yet requested to free, and whether it waits for a reply.
    #[must_use]
    pub fn chunks_left(&self) -> Option<(&[u64], bool)> {
        self.hired.as_ref().map(|hired| (&hired.left[..], hired.asked))
    }

    /// Returns the queue pair on which the node sends requests to a worker.
    #[must_use]
    pub fn asking_queue_pair(&self) -> Option<QpId> {
        self.hired.as_ref().map(|hired| hired.asker.queue_pair())
    }

    /// Returns the client's access queue pairs.
    #[must_use]
    pub fn group(&self) -> &[QpId] {
        &self.group
    }

    /// Ends the reclaim's objects on the NIC, whatever they are doing. Chunks stay as they are: the pool is about to
    /// end, or to be rebuilt.
    ///
    /// # Errors
    /// The NIC does not destroy an object.
    pub fn abandon<N: Nic<Memory = M>>(
        self,
        pool: &mut ChunkPool<M, GROUP>,
        nic: &mut N,
    ) -> Result<(), VerbsError> {
        if let Some(own) = self.own {
            pool.dismiss_workers(nic, own)?;
        }
        let Some(Hired { worker, asker, .. }) = self.hired else { return Ok(()) };
        let halted = pool.halt(nic, &worker);
        pool.dismiss(nic, worker).and(asker.end(nic)).and(halted)
    }

    /// Continues the reclaim, as far as the NIC has got.
    ///
    /// # Errors
    /// A limit of the NIC or of the pool's workers is reached. The work done so far stays, and the next call tries
    /// again.
    pub fn proceed<N: Nic<Memory = M>>(
        &mut self,
        pool: &mut ChunkPool<M, GROUP>,
        nic: &mut N,
    ) -> Result<Progress, VerbsError> {
        if let Some(own) = &self.own
            && !(pool.has_started_all(nic)? && pool.is_at_rest(nic, own)?)
        {
            return Ok(Progress::Pending);
        }
        if let Some(own) = self.own.take() {
            pool.detach(nic, own)?;
        }
        if self.hired.is_none() {
            let left = pool.chunks_of(self.number);
            if left.is_empty() {
                return Ok(Progress::Done);
            }
            self.hired = Some(Hired::new(pool, nic, self.number, &self.group, left)?);
        }
        let Some(hired) = &mut self.hired else { return Ok(Progress::Done) };
        if hired.proceed(pool, nic)? == Progress::Pending {
            return Ok(Progress::Pending);
        }
        if let Some(Hired { worker, asker, .. }) = self.hired.take() {
            let ended = asker.end(nic);
            pool.dismiss(nic, worker).and(ended)?;
        }
        assert!(
            pool.chunks_of(self.number).is_empty(),
            "no chunk is allocated for a client whose workers are gone"
        );
        Ok(Progress::Done)
    }
}

impl<M: Memory, const GROUP: usize> Hired<M, GROUP> {
    fn new<N: Nic<Memory = M>>(
        pool: &mut ChunkPool<M, GROUP>,
        nic: &mut N,
        number: ClientNumber,
        group: &[QpId],
        left: Vec<u64>,
    ) -> Result<Self, VerbsError> {
        let asker = Asker::new(nic, pool.domains.edge)?;
        let worker = match pool.make_reclaimer(nic, number, group) {
            Ok(worker) => worker,
            Err(error) => {
                let _ = asker.end(nic);
                return Err(error);
            }
        };
        let begun = asker.address(nic).and_then(|here| {
            asker.connect(nic, worker.address(nic)?)?;
            pool.start_worker(nic, &worker, here)
        });
        if let Err(error) = begun {
            let _ = pool.dismiss(nic, worker).and(asker.end(nic));
            return Err(error);
        }
        Ok(Self { worker, asker, left, asked: false })
    }

    /// Frees the chunks one after another, by requests to the worker.
    fn proceed<N: Nic<Memory = M>>(
        &mut self,
        pool: &ChunkPool<M, GROUP>,
        nic: &mut N,
    ) -> Result<Progress, VerbsError> {
        loop {
            if self.asked {
                match self.asker.answer(nic)? {
                    Answer::Pending => return Ok(Progress::Pending),
                    Answer::Broken => return Err(broken_worker()),
                    Answer::Reply(_) => self.asked = false,
                }
            } else if let Some(&chunk) = self.left.last() {
                self.asker.ask(nic, pool.geometry.handle::<GROUP>(chunk))?;
                self.left.pop();
                self.asked = true;
            } else if pool.is_worker_at_rest(nic, &self.worker)? {
                return Ok(Progress::Done);
            } else {
                return Ok(Progress::Pending);
            }
        }
    }
}

pub(crate) fn broken_worker() -> VerbsError {
    VerbsError::Machine("a worker of the chunk pool broke".to_owned())
}

impl<M: Memory, const GROUP: usize> ChunkPool<M, GROUP> {
    /// Returns the chunks that a client holds.
    #[must_use]
    pub fn chunks_of(&self, client: ClientNumber) -> Vec<u64> {
        (0..self.geometry.chunks).filter(|&chunk| self.table.owner(chunk) == Some(client)).collect()
    }
}
