//! A queue in remote memory, for many producers and many consumers (Patronus §6.1, §7.3.2).
//!
//! All operations are one-sided. A client may die at any step: no other client waits for it longer than a lease, and
//! the entries that it had pushed stay in the queue. An entry whose consumer dies after it has popped it is lost. In a
//! queue of claims ([`QueueOptions::claims`]) an entry is claimed and acknowledged, and is delivered again if its
//! consumer dies: see [`Claim`].
//!
//! # How it is built
//! - The *head* has the queue's options and, for each segment, a record. The records are changed only under an
//!   exclusive permission with a lease, the *right*. A client that is late has lost the right, and its NIC refuses what
//!   it still sends.
//! - A *segment* has two indexes, a word for each slot, and a cell for each slot. An entry lies in as many consecutive
//!   cells as it needs, and the word of its first slot contains its length.
//!
//! # What each step rests on
//! - A producer gets its slots by one FETCH_AND_ADD of the segment's tail. It writes the cells, and fills the slot's word
//!   by a COMPARE_AND_SWAP. The NIC carries both out in this order; over UDP, where nothing has an order, the word waits
//!   for the cells. So a filled slot has its bytes.
//! - A consumer moves the segment's head over an entry by one COMPARE_AND_SWAP. The entry then belongs to the consumer.
//!   Cells are never used again, so the consumer may read them at any time.
//! - A slot that stays empty for a lease belongs to a client that has died, or is late. A consumer abandons it by a
//!   COMPARE_AND_SWAP of its word. A producer that is late finds its slot abandoned, and takes another one.
//! - The queue is empty if its head has reached its tail, and a second look finds the tail unchanged. Head and tail
//!   only grow.
//! - A segment goes back to the node when all of it is consumed. The node frees it only when the last permission over
//!   it has ended, so no client reads or writes memory that already belongs to another client.

mod claim;
mod claim_word;
mod error;
mod head;
mod options;
mod outstanding;
mod pop;
mod pops;
mod push;
mod segments;
mod words;

pub use claim::{Claim, ClaimId};
pub use error::QueueError;
pub use options::{ENTRY_BYTES_MAX, QueueOptions};

use crate::Pipeline;
use head::Head;
use outstanding::Outstanding;
use pops::Pops;
use portcullis::{
    Acquire, Allocate, Clock, DirectoryName, Effect, Lifetime, ObjectRef, PermissionId, ProcessClock, Rights,
    SessionEndpoint, VerbsEndpoint,
};
use segments::Segments;
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

/// A handle on a queue.
///
/// Its operations are futures that a [`Pipeline`] carries out. Each is linearizable by itself.
pub struct Queue<E: VerbsEndpoint = SessionEndpoint, C: Clock = ProcessClock> {
    pipeline: Rc<Pipeline<E, C>>,
    head: ObjectRef,
    options: QueueOptions,
    /// The permission with which this handle was opened: no other handle had it.
    opened_with: PermissionId,
    state: RefCell<State>,
}

impl<E: VerbsEndpoint, C: Clock> fmt::Debug for Queue<E, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("head", &self.head)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// The state of a queue as a handle knows it. All of it may be out of date.
#[derive(Debug, Default)]
struct State {
    segments: Segments,
    /// The segment into which this handle pushes.
    last: u64,
    /// The segment from which this handle pops.
    first: u64,
    /// The slot in that segment at which the head was.
    next: u64,
    /// The slot that was empty at the last look, and the time since when.
    empty: Option<pop::Empty>,
    pops: Pops,
    outstanding: Outstanding,
    takes: claim::Takes,
    claims_begun: u64,
    /// Whether an operation of this pipeline changes the records, or reads them.
    at_the_head: bool,
    is_closed: bool,
}

/// Longest time that the first write of a queue's head may take.
const MADE_WITHIN: Lifetime = Lifetime::seconds(1);

/// The size and the fill of a queue. Other clients may change them meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QueueStatistics {
    /// Number of slots that producers have taken and consumers have not. An entry takes one slot for each cell that it
    /// fills.
    pub slots: u64,
    /// Number of entries that consumers have claimed and not acknowledged.
    pub claimed: u64,
    /// Number of segments.
    pub segments: u64,
    /// Bytes of the node's memory: head and segments.
    pub bytes: u64,
    /// Whether the queue is closed: no client may push any more.
    pub is_closed: bool,
}

impl<E: VerbsEndpoint, C: Clock> Queue<E, C> {
    /// Makes an empty queue. [`Queue::head`] returns the object that names it.
    ///
    /// # Errors
    /// An option is out of its range, or the node refuses the memory.
    pub async fn create(pipeline: &Rc<Pipeline<E, C>>, options: &QueueOptions) -> Result<Self, QueueError> {
        let operation = async {
            options.check()?;
            let ask = Allocate::bytes(options.head_bytes());
            let lifetime = options.lease.max(MADE_WITHIN);
            let head = Rc::new(pipeline.allocate(ask.shared().lifetime(lifetime)).await?);
            let queue = Self::new(pipeline, head.object(), *options, head.id());
            pipeline.zero(&head, options.head_bytes()).await?;
            let (first, made) = queue.make_segment(lifetime).await?;
            pipeline.write(&head, options.record_at(0), &first.to_bytes()).await?;
            queue.keep_part(first.object).await?;
            // The permission may outlive many leases, and a client that frees the segment would wait for it.
            pipeline.end(made);
            // The options make the object a queue: they are written last.
            pipeline.write(&head, 0, &options.to_bytes()).await?;
            queue.keep_part(queue.head).await?;
            queue.learn(&Head::default(), &[(0, first)]);
            pipeline.end(head);
            Ok(queue)
        };
        pipeline.limited(("making a queue", Effect::Perhaps), operation).await
    }

    /// Opens a queue that exists.
    ///
    /// # Errors
    /// The object is gone, or is not a queue.
    pub async fn open(pipeline: &Rc<Pipeline<E, C>>, head: ObjectRef) -> Result<Self, QueueError> {
        let operation = async {
            let ask = Acquire::object(head).rights(Rights::READ).shared().part(0, QueueOptions::BYTES as u64);
            let permission = Rc::new(pipeline.acquire(ask.lifetime(MADE_WITHIN)).await?);
            let bytes = pipeline.read_bytes(&permission, 0, QueueOptions::BYTES).await?;
            let options = QueueOptions::from_bytes(bytes.try_into().expect("as many as were read"))?;
            let opened_with = permission.id();
            pipeline.end(permission);
            let queue = Self::new(pipeline, head, options, opened_with);
            queue.ask_the_head().await?;
            Ok(queue)
        };
        pipeline.limited(("opening a queue", Effect::Nothing), operation).await
    }

    /// Opens the queue with this name in the client's tenant.
    ///
    /// # Errors
    /// The name does not exist, or an error of [`Queue::open`].
    pub async fn open_named(pipeline: &Rc<Pipeline<E, C>>, name: DirectoryName) -> Result<Self, QueueError> {
        let operation = async {
            let entry = pipeline.lookup(None, name).await?;
            Self::open(pipeline, entry.object).await
        };
        pipeline.limited(("the look-up of a queue", Effect::Nothing), operation).await
    }

    /// Gives the queue a name in its tenant, by which [`Queue::open_named`] finds it.
    ///
    /// # Errors
    /// The name is taken, or the node refuses.
    pub async fn publish(&self, name: DirectoryName) -> Result<(), QueueError> {
        let operation = async { Ok(self.pipeline.publish(name, self.head).await?) };
        self.pipeline.limited(("the publication of a queue", Effect::Perhaps), operation).await
    }

    fn new(
        pipeline: &Rc<Pipeline<E, C>>,
        head: ObjectRef,
        options: QueueOptions,
        opened_with: PermissionId,
    ) -> Self {
        Self { pipeline: Rc::clone(pipeline), head, options, opened_with, state: RefCell::default() }
    }

    /// Returns the object that names the queue.
    #[must_use]
    pub fn head(&self) -> ObjectRef {
        self.head
    }

    /// Returns the options with which the queue was made.
    #[must_use]
    pub fn options(&self) -> &QueueOptions {
        &self.options
    }

    /// Reads the size and the fill of the queue.
    ///
    /// # Errors
    /// The node is gone or refuses, or the queue is damaged.
    pub async fn statistics(&self) -> Result<QueueStatistics, QueueError> {
        let operation = async {
            let head = self.ask_the_head().await?;
            let mut found =
                QueueStatistics { bytes: self.options.head_bytes(), ..QueueStatistics::default() };
            for number in head.first..=head.last {
                self.pipeline.note_step();
                let Some(indexes) = self.indexes(number).await? else { continue };
                found.segments += 1;
                found.bytes += self.options.segment_bytes();
                found.slots += indexes.taken(&self.options).saturating_sub(indexes.head);
                found.is_closed |= indexes.tail.is_closed();
                if self.options.claims {
                    found.claimed += self.claimed_in(number).await?;
                }
            }
            Ok(found)
        };
        self.pipeline.limited(("a look at a whole queue", Effect::Nothing), operation).await
    }
}
