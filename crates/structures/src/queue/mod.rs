//! A queue in remote memory, for many producers and many consumers (Patronus §6.1, §7.3.2).
//!
//! All operations are one-sided. A client may die at any step: nobody waits for it longer than a lease, and what it had
//! pushed stays in the queue. An entry whose consumer dies after it has popped it is gone; in a queue of claims
//! ([`QueueOptions::claims`]) an entry is claimed and acknowledged, and comes again where its consumer dies: see [`Claim`].
//!
//! # How it is built
//! - The *head* has the queue's options and, for each segment, a record. The records are changed only under an exclusive
//!   permission with a lease, the *right*. A client that is late has lost it, and its NIC refuses what it still sends.
//! - A *segment* has two indexes, a word for each slot, and a cell for each slot. An entry lies in as many cells, one
//!   after another, as it needs, and the word of its first slot says how long it is.
//!
//! # What each step rests on
//! - A producer gets its slots by one FETCH_AND_ADD of the segment's tail. It writes the cells, and fills the slot's word
//!   by a COMPARE_AND_SWAP. The NIC carries both out in this order; over UDP, where nothing has an order, the word waits
//!   for the cells. So a filled slot has its bytes.
//! - A consumer moves the segment's head over an entry by one COMPARE_AND_SWAP. The entry is then its own. Cells are never
//!   used again, so it reads them when it likes.
//! - A slot that stays empty for a lease belongs to a client that has died, or is late. A consumer abandons it by a
//!   COMPARE_AND_SWAP of its word. A producer that comes late finds its slot abandoned, and takes another one.
//! - The queue is empty if its head has reached its tail, and a second look finds the tail where it was. Both only grow.
//! - A segment goes back to the node when all of it is consumed. The node waits with that until the last permission over
//!   it has ended, so nobody reads or writes what has become somebody else's.

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

/// What a handle knows of its queue. All of it may be out of date.
#[derive(Debug, Default)]
struct State {
    segments: Segments,
    /// The segment into which this handle pushes.
    last: u64,
    /// The segment from which this handle pops.
    first: u64,
    /// Where in that segment the head was.
    next: u64,
    /// The slot that was empty at the last look, and since when.
    empty: Option<pop::Empty>,
    pops: Pops,
    outstanding: Outstanding,
    takes: claim::Takes,
    claims_begun: u64,
    /// An operation of this pipeline changes the records, or asks for them.
    at_the_head: bool,
    is_closed: bool,
}

/// How long the first write of a queue's head may take.
const MADE_WITHIN: Lifetime = Lifetime::seconds(1);

/// What a queue takes, and how full it is. Others may change it meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QueueStatistics {
    /// Slots that are taken by producers and not by consumers. An entry takes one slot for each cell that it fills.
    pub slots: u64,
    /// Entries that consumers have claimed and not acknowledged.
    pub claimed: u64,
    /// Segments.
    pub segments: u64,
    /// Bytes of the node's memory: head and segments.
    pub bytes: u64,
    /// Nobody may push any more.
    pub is_closed: bool,
}

impl<E: VerbsEndpoint, C: Clock> Queue<E, C> {
    /// Makes an empty queue. [`Queue::head`] names it.
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
            // It may outlive many leases, and whoever frees the segment would wait for it.
            pipeline.end(made);
            // The options make it a queue: they come last.
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
    /// The object is gone, or no queue.
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

    /// Opens the queue of the client's tenant that has a name.
    ///
    /// # Errors
    /// There is no such name, or as of [`Queue::open`].
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

    /// The object that names the queue.
    #[must_use]
    pub fn head(&self) -> ObjectRef {
        self.head
    }

    /// How the queue was made.
    #[must_use]
    pub fn options(&self) -> &QueueOptions {
        &self.options
    }

    /// What the queue takes, and how full it is.
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
