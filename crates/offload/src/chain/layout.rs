//! The requests of a listing, for one worker.

use super::{Count, Line, Listing, Operand, Queue, Row, RowOperation, Value};
use crate::record::ClientNumber;
use portcullis_nic::{
    ChainNic, ChainVerb, CqId, LocalSpan, Operation, QpId, Region, RemoteAddress, RemoteSpan, VerbsError,
    WorkRequest, entry,
};

/// The objects that a worker's requests name. All regions are in the engine's domain, and their first bytes have
/// address zero.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wiring {
    /// The client for which the worker runs.
    pub client: ClientNumber,
    /// The worker's own queue pair.
    pub queue_pair: QpId,
    /// The memory of the worker's own queue.
    pub queue: Region,
    /// The queue pair whose queue binds and frees the windows.
    pub bind_queue: QpId,
    /// The memory of that queue.
    pub binds: Region,
    /// Counts the requests that the bind queue has executed.
    pub bound: CqId,
    /// Number of queue pairs of the client's group. The pool's chunks can have more windows: the others stay unbound.
    pub group: usize,
    /// The table.
    pub table: Region,
    /// The table, from the first record's owner on.
    pub owners: Region,
    /// The table, from the first record's status on.
    pub tails: Region,
    /// The top of the free list, and the next ticket.
    pub words: Region,
    /// The scratch memory of all workers.
    pub scratch: Region,
    /// Offset of this worker's part in the scratch memory.
    pub scratch_at: u64,
    /// Offset, in the scratch memory, of the number of requests for chunks that the client may make.
    pub credits_at: u64,
    /// Counts releases of the lock.
    pub lock: CqId,
    /// The queue pair on which the client sends requests to this worker.
    pub messages: QpId,
    /// The queue pair on which the client requests chunks.
    pub alloc_messages: QpId,
    /// Counts the client's requests.
    pub received: CqId,
    /// Counts the replies that have left.
    pub replied: CqId,
}

impl Listing {
    /// Makes the requests of one worker: the rows, and NOPs up to the end of the ring.
    ///
    /// # Errors
    /// The NIC has no queue memory.
    pub(crate) fn lay(
        &self,
        chains: &impl ChainNic,
        wiring: &Wiring,
    ) -> Result<Vec<WorkRequest>, VerbsError> {
        let layer = Layer { listing: self, wiring, chains };
        let nop = Row { label: Line::Other.first(), releases: false, operation: RowOperation::Nop };
        let rows = self.rows().iter().copied().chain(std::iter::repeat(nop)).take(self.ring());
        (0..).zip(rows).map(|(id, row)| layer.request(id, row)).collect()
    }
}

struct Layer<'a, C> {
    listing: &'a Listing,
    wiring: &'a Wiring,
    chains: &'a C,
}

impl<C: ChainNic> Layer<'_, C> {
    fn request(&self, id: u64, row: Row) -> Result<WorkRequest, VerbsError> {
        Ok(WorkRequest { id, signalled: row.releases, operation: self.operation(row.operation)? })
    }

    fn operation(&self, operation: RowOperation) -> Result<Operation, VerbsError> {
        let wiring = self.wiring;
        Ok(match operation {
            RowOperation::Nop => Operation::Chain(ChainVerb::Nop),
            RowOperation::Read { from, bytes, to } => {
                Operation::Read { local: self.local(to, bytes), remote: self.remote(from) }
            }
            RowOperation::Write { from, bytes, to } => {
                Operation::Write { local: self.local(from, bytes), remote: self.remote(to) }
            }
            RowOperation::CopyImage { to, .. } if usize::from(to) >= wiring.group => {
                Operation::Chain(ChainVerb::Nop)
            }
            RowOperation::CopyImage { from, bytes, to } => {
                Operation::Write { local: self.local(from, bytes), remote: self.remote(Operand::Bind(to)) }
            }
            RowOperation::Add { to, add, old } => {
                Operation::FetchAndAdd { local: self.local(old, 8), remote: self.remote(to), add }
            }
            RowOperation::Swap { at, compare, swap, old } => Operation::CompareAndSwap {
                local: self.local(old, 8),
                remote: self.remote(at),
                compare: self.value(compare)?,
                swap: self.value(swap)?,
            },
            RowOperation::Wait { count, threshold } => {
                Operation::Chain(ChainVerb::Wait { cq: self.counter(count), threshold })
            }
            RowOperation::Enable { queue, limit } => {
                let queue_pair = match queue {
                    Queue::Binds => wiring.bind_queue,
                    Queue::Reply => wiring.messages,
                    Queue::Own => wiring.queue_pair,
                };
                Operation::Chain(ChainVerb::Enable { queue_pair, limit })
            }
            RowOperation::EnableReceive { limit } => {
                Operation::Chain(ChainVerb::EnableReceive { queue_pair: wiring.messages, limit })
            }
            RowOperation::EnableRequest { limit } => {
                Operation::Chain(ChainVerb::EnableReceive { queue_pair: wiring.alloc_messages, limit })
            }
        })
    }

    fn counter(&self, count: Count) -> CqId {
        match count {
            Count::Requests => self.wiring.received,
            Count::Replies => self.wiring.replied,
            Count::Releases => self.wiring.lock,
            Count::Binds => self.wiring.bound,
        }
    }

    fn value(&self, value: Value) -> Result<u64, VerbsError> {
        Ok(match value {
            Value::Held => self.wiring.client.holds(),
            Value::Freed => self.wiring.client.freed(),
            Value::Number(number) => number,
            Value::FirstWord(label) => {
                let row = self.listing.position(label).map(|at| self.listing.rows()[at]);
                let row = row.expect("a listing names its own rows");
                self.chains.queue_entry(&self.request(0, row)?)?[0]
            }
        })
    }

    /// Returns the region of a place, and its address in that region.
    fn place(&self, place: Operand) -> (Region, u64) {
        let wiring = self.wiring;
        match place {
            Operand::Line(label, part) => {
                let line = self.listing.position(label).expect("a listing names its own rows");
                (wiring.queue, line as u64 * entry::BYTES + part)
            }
            Operand::Bind(number) => (wiring.binds, u64::from(number) * entry::BYTES),
            Operand::Words(at) => (wiring.words, at),
            Operand::Table(at) => (wiring.table, at),
            Operand::Owners(at) => (wiring.owners, at),
            Operand::Tails(at) => (wiring.tails, at),
            Operand::Scratch(at) => (wiring.scratch, wiring.scratch_at + at),
            Operand::Credits => (wiring.scratch, wiring.credits_at),
        }
    }

    fn local(&self, place: Operand, bytes: u64) -> LocalSpan {
        let (region, address) = self.place(place);
        let length = u32::try_from(bytes).expect("a row moves no more than a record");
        LocalSpan { address, length, lkey: region.lkey }
    }

    fn remote(&self, place: Operand) -> RemoteSpan {
        let (region, address) = self.place(place);
        RemoteSpan { address: RemoteAddress(address), rkey: region.rkey }
    }
}
