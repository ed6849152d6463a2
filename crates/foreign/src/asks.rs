//! Operations of tables and queues as values, which a binding begins without waiting for them.

use crate::Failure;
use portcullis::Lifetime;
use portcullis_structures::Pipeline;
use portcullis_structures::queue::{Claim, ClaimId, Queue, QueueError, QueueStatistics};
use portcullis_structures::table::{Condition, Statistics, Stored, Swept, Table, TableError};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt::Debug;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};

/// The shortest pause of a pop between two looks at an empty queue. A pause lasts an eighth of the time that the pop
/// has waited before.
const PAUSE_MIN: Lifetime = Lifetime::micros(10);
/// The longest pause of a pop that a call waits for.
pub(crate) const PAUSE_MAX_IN_CALL: Lifetime = Lifetime::millis(1);
/// The longest pause of a pop that was begun. The program's event loop has a turn after each, which may cost it 100 µs.
pub(crate) const PAUSE_MAX_IN_TURNS: Lifetime = Lifetime::millis(5);

mod sealed {
    pub trait Sealed {}
}

/// A structure whose operations can be begun.
pub trait Structure: Debug + sealed::Sealed + Sized + 'static {
    /// The result of the structure's operations.
    type Done: Debug + Send + 'static;

    /// Returns the entries that an operation has taken out of the structure.
    fn taken(done: Self::Done) -> Vec<Vec<u8>>;
}

/// The surroundings of an operation that is given as a value, besides its structure.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings<'d> {
    pub(crate) pipeline: &'d Pipeline,
    /// Whether the caller still awaits the operation.
    pub(crate) is_awaited: &'d AtomicBool,
    /// Entries that operations have taken out of the structure although no caller awaited them any more.
    pub(crate) left_over: &'d RefCell<VecDeque<Vec<u8>>>,
    /// The longest pause between two looks at what the operation waits for.
    pub(crate) pause_max: Lifetime,
}

/// An operation of a structure as a value.
pub trait StructureAsk<S: Structure>: sealed::Sealed + Send + 'static {
    /// Carries the operation out. If it is not awaited any more, it may end early and without an effect.
    fn carry_out(
        self,
        structure: &S,
        around: Surroundings<'_>,
    ) -> impl Future<Output = Result<S::Done, Failure>>;
}

/// The condition on which [`TableAsk::Store`] stores.
#[derive(Clone, Debug)]
pub enum When<B> {
    /// The value is stored in any case.
    Always,
    /// The value is stored if the key is not in the table.
    Absent,
    /// The value is stored if the key is in the table.
    Present,
    /// The value is stored if the key has this value.
    Equals(B),
}

impl<B: Deref<Target = [u8]>> When<B> {
    fn condition(&self) -> Condition<'_> {
        match self {
            Self::Always => Condition::Always,
            Self::Absent => Condition::Absent,
            Self::Present => Condition::Present,
            Self::Equals(value) => Condition::Equals(value),
        }
    }
}

/// An operation of a table. `B`: the bytes of keys and values.
#[derive(Clone, Debug)]
pub enum TableAsk<B> {
    /// As [`Table::get`].
    Get(B),
    /// As [`Table::get_many`].
    GetMany(Vec<B>),
    /// As [`Table::store`].
    Store {
        /// The key.
        key: B,
        /// The value.
        value: B,
        /// The condition.
        when: When<B>,
        /// The time after which the key is removed.
        live: Option<Lifetime>,
    },
    /// As [`Table::remove`].
    Remove(B),
    /// As [`Table::take`].
    Take(B),
    /// All keys.
    Keys,
    /// All keys and values.
    Items,
    /// As [`Table::length`].
    Length,
    /// As [`Table::remove_expired`].
    RemoveExpired,
    /// As [`Table::sweep`].
    Sweep,
    /// As [`Table::statistics`].
    Statistics,
}

/// The result of an operation of a table.
#[derive(Clone, PartialEq, Debug)]
pub enum TableDone {
    /// The value of a key, if the key is in the table.
    Value(Option<Vec<u8>>),
    /// The values of several keys.
    Values(Vec<Option<Vec<u8>>>),
    /// The result of a store.
    Stored(Stored),
    /// Whether the key was in the table.
    WasThere(bool),
    /// Keys.
    Keys(Vec<Vec<u8>>),
    /// Keys and values.
    Items(Vec<(Vec<u8>, Vec<u8>)>),
    /// A number of keys.
    Count(u64),
    /// The result of a sweep.
    Swept(Swept),
    /// The table's statistics.
    Statistics(Statistics),
}

/// An operation of a queue. `B`: the bytes of entries.
#[derive(Clone, Debug)]
pub enum QueueAsk<B> {
    /// As [`Queue::push`].
    Push(B),
    /// As [`Queue::pop_within`]. `None`: without a time limit. If the pop is not awaited any more, it takes no entry.
    Pop(Option<Lifetime>),
    /// As [`Queue::pop_many`].
    PopMany(usize),
    /// As [`Queue::claim_within`]. Without `within`: without a time limit. If the operation is not awaited any more, it
    /// gives back an entry that it claims.
    Claim {
        /// The claim's lease.
        lease: Lifetime,
        /// The longest wait for an entry.
        within: Option<Lifetime>,
    },
    /// As [`Queue::acknowledge`].
    Acknowledge(ClaimId),
    /// As [`Queue::give_back`].
    GiveBack(ClaimId),
    /// As [`Queue::extend_claim`].
    ExtendClaim(ClaimId, Lifetime),
    /// As [`Queue::close`].
    Close,
    /// As [`Queue::sweep`].
    Sweep,
    /// As [`Queue::statistics`].
    Statistics,
}

/// The result of an operation of a queue.
#[derive(Clone, PartialEq, Debug)]
pub enum QueueDone {
    /// The operation was carried out, and has no other result.
    Done,
    /// The first entry, if there was one.
    Popped(Option<Vec<u8>>),
    /// The first entries.
    PoppedMany(Vec<Vec<u8>>),
    /// An entry with its claim, if there was one.
    Claimed(Option<Claim>),
    /// The new identifier of an extended claim.
    Extended(ClaimId),
    /// The queue's statistics.
    Statistics(QueueStatistics),
}

impl sealed::Sealed for Table {}
impl sealed::Sealed for Queue {}
impl<B> sealed::Sealed for TableAsk<B> {}
impl<B> sealed::Sealed for QueueAsk<B> {}

impl Structure for Table {
    type Done = TableDone;

    fn taken(_: TableDone) -> Vec<Vec<u8>> {
        Vec::new()
    }
}

impl Structure for Queue {
    type Done = QueueDone;

    fn taken(done: QueueDone) -> Vec<Vec<u8>> {
        match done {
            QueueDone::Popped(entry) => entry.into_iter().collect(),
            QueueDone::PoppedMany(entries) => entries,
            // A claimed entry is delivered again by itself.
            QueueDone::Claimed(_) => Vec::new(),
            QueueDone::Done | QueueDone::Extended(_) | QueueDone::Statistics(_) => Vec::new(),
        }
    }
}

impl<B: Deref<Target = [u8]> + Send + 'static> StructureAsk<Table> for TableAsk<B> {
    async fn carry_out(self, table: &Table, _: Surroundings<'_>) -> Result<TableDone, Failure> {
        let done: Result<_, TableError> = async {
            Ok(match &self {
                Self::Get(key) => TableDone::Value(table.get(key).await?),
                Self::GetMany(keys) => {
                    let keys: Vec<&[u8]> = keys.iter().map(|key| &**key).collect();
                    TableDone::Values(table.get_many(&keys).await?)
                }
                Self::Store { key, value, when, live } => {
                    TableDone::Stored(table.store(key, value, when.condition(), *live).await?)
                }
                Self::Remove(key) => TableDone::WasThere(table.remove(key).await?),
                Self::Take(key) => TableDone::Value(table.take(key).await?),
                Self::Keys => {
                    let mut keys = Vec::new();
                    table.for_each(|key, _| keys.push(key.to_vec())).await?;
                    TableDone::Keys(keys)
                }
                Self::Items => {
                    let mut items = Vec::new();
                    table.for_each(|key, value| items.push((key.to_vec(), value.to_vec()))).await?;
                    TableDone::Items(items)
                }
                Self::Length => TableDone::Count(table.length().await?),
                Self::RemoveExpired => TableDone::Count(table.remove_expired(|_| ()).await?),
                Self::Sweep => TableDone::Swept(table.sweep().await?),
                Self::Statistics => TableDone::Statistics(table.statistics().await?),
            })
        }
        .await;
        Ok(done?)
    }
}

impl<B: Deref<Target = [u8]> + Send + 'static> StructureAsk<Queue> for QueueAsk<B> {
    async fn carry_out(self, queue: &Queue, around: Surroundings<'_>) -> Result<QueueDone, Failure> {
        let done: Result<_, QueueError> = async {
            Ok(match &self {
                Self::Push(entry) => {
                    queue.push(entry).await?;
                    QueueDone::Done
                }
                Self::Pop(within) => QueueDone::Popped(pop(queue, around, *within).await?),
                Self::PopMany(most) => {
                    let left = take_left_over(around, (*most).max(1));
                    let entries = if left.is_empty() { queue.pop_many(*most).await? } else { left };
                    QueueDone::PoppedMany(entries)
                }
                Self::Claim { lease, within } => {
                    QueueDone::Claimed(claim(queue, around, (*lease, *within)).await?)
                }
                Self::Acknowledge(claim) => {
                    queue.acknowledge(*claim).await?;
                    QueueDone::Done
                }
                Self::GiveBack(claim) => {
                    queue.give_back(*claim).await?;
                    QueueDone::Done
                }
                Self::ExtendClaim(claim, lease) => {
                    QueueDone::Extended(queue.extend_claim(*claim, *lease).await?)
                }
                Self::Close => {
                    queue.close().await?;
                    QueueDone::Done
                }
                Self::Sweep => {
                    queue.sweep().await?;
                    QueueDone::Done
                }
                Self::Statistics => QueueDone::Statistics(queue.statistics().await?),
            })
        }
        .await;
        Ok(done?)
    }
}

/// Takes at most `most` of the entries that were left over.
fn take_left_over(around: Surroundings<'_>, most: usize) -> Vec<Vec<u8>> {
    let mut left_over = around.left_over.borrow_mut();
    let count = most.min(left_over.len());
    left_over.drain(..count).collect()
}

/// Takes the first entry. Entries that were left over come before others. Waits for an entry as long as the operation
/// is awaited, and takes none afterwards.
async fn pop(
    queue: &Queue,
    around: Surroundings<'_>,
    within: Option<Lifetime>,
) -> Result<Option<Vec<u8>>, QueueError> {
    let attempt = async || match take_left_over(around, 1).pop() {
        Some(entry) => Ok(Some(entry)),
        None => queue.pop().await,
    };
    let popped = wait_for(around, within, attempt).await?;
    if !around.is_awaited.load(Ordering::Relaxed) {
        // Other operations of this handle may be waiting for the entry.
        around.left_over.borrow_mut().extend(popped);
        return Ok(None);
    }
    Ok(popped)
}

/// Claims an entry. Waits for one as long as the operation is awaited, and keeps none afterwards.
async fn claim(
    queue: &Queue,
    around: Surroundings<'_>,
    (lease, within): (Lifetime, Option<Lifetime>),
) -> Result<Option<Claim>, QueueError> {
    let claimed = wait_for(around, within, async || queue.claim(lease).await).await?;
    if let Some(claim) = claimed.as_ref().filter(|_| !around.is_awaited.load(Ordering::Relaxed)) {
        queue.give_back(claim.id).await?;
        return Ok(None);
    }
    Ok(claimed)
}

/// Repeats `attempt` until it finds something, for at most `within` and as long as the operation is awaited.
async fn wait_for<T>(
    around: Surroundings<'_>,
    within: Option<Lifetime>,
    attempt: impl AsyncFn() -> Result<Option<T>, QueueError>,
) -> Result<Option<T>, QueueError> {
    let since = around.pipeline.now();
    let until = since.after(within.unwrap_or(Lifetime(u64::MAX)));
    while around.is_awaited.load(Ordering::Relaxed) {
        let found = attempt().await?;
        let now = around.pipeline.now();
        let left = until.since(now);
        if found.is_some() || left == Lifetime(0) {
            return Ok(found);
        }
        let pause = Lifetime(now.since(since).0 / 8).max(PAUSE_MIN).min(around.pause_max);
        around.pipeline.sleep(pause.min(left)).await?;
    }
    Ok(None)
}
