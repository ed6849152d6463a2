//! One operation on many keys, on its way over the nodes.

use super::members::Way;
use crate::spread::{Forward, NodeNumber, NodeRequest, SpreadGet, SpreadPut, SpreadRemoval};
use crate::{BlockError, Got};
use portcullis::Error;
use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A key.
pub type Key = Box<[u8]>;

/// The bytes of a block that is to be stored.
pub type Bytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// A buffer for a block that is to be read.
pub trait BytesMut: AsMut<[u8]> + Any + Send {}

impl<T: AsMut<[u8]> + Any + Send> BytesMut for T {}

/// The end of a look-up: the length of the block, or `None` if no node that was reached has one.
pub type Found = Option<u64>;

/// The end of a removal: the number of copies that were removed, or the error of a node that was reached and may have a
/// copy.
pub type Removed = Result<usize, BlockError>;

/// The end of a put.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PutEnd {
    /// Number of nodes that have the whole block.
    pub copies: usize,
    /// If there are fewer copies than wanted: the last reason.
    pub refusal: Option<BlockError>,
}

/// The end of a get.
pub struct GetEnd {
    /// [`Got::Hit`]: the buffer has the whole block.
    pub got: Got,
    /// The buffer.
    pub buffer: Option<Box<dyn BytesMut>>,
}

impl fmt::Debug for GetEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GetEnd").field("got", &self.got).finish_non_exhaustive()
    }
}

/// The buffers of a get. One is taken out while a node reads into it.
pub(super) type Buffers = Mutex<Vec<Option<Box<dyn BytesMut>>>>;

/// The task of the nodes.
pub(super) enum Task {
    Put {
        blocks: Vec<(Key, Bytes)>,
    },
    Get {
        keys: Vec<Key>,
        buffers: Buffers,
        /// Whether the leases of look-ups stay for other reads.
        leaves_leases: bool,
    },
    LookUp {
        keys: Vec<Key>,
    },
    /// As a look-up, without a lease.
    Contains {
        keys: Vec<Key>,
    },
    Remove {
        keys: Vec<Key>,
    },
    /// The blocks of each node. The places are the nodes' numbers.
    List {
        lists: Mutex<Vec<Vec<Listed>>>,
    },
}

/// A block in a node's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The key.
    pub key: Key,
    /// Bytes of the block.
    pub length: u64,
    /// Whether no client evicts the block.
    pub is_pinned: bool,
}

/// The blocks of a node, or the reason why the node did not list them.
pub type NodeList = Result<Vec<Listed>, BlockError>;

impl Task {
    pub fn get(wanted: Vec<(Key, Box<dyn BytesMut>)>, leaves_leases: bool) -> Self {
        let (keys, buffers) = wanted.into_iter().map(|(key, buffer)| (key, Some(buffer))).unzip();
        Self::Get { keys, buffers: Mutex::new(buffers), leaves_leases }
    }
}

/// The state machine that decides which node is to do what next.
pub(super) enum Decisions {
    Put(SpreadPut),
    Get(SpreadGet),
    Removal(SpreadRemoval),
    /// Requests that are made once, whatever the answers.
    Once(Vec<NodeRequest>),
}

impl Decisions {
    fn requests(&mut self) -> Vec<NodeRequest> {
        match self {
            Self::Put(put) => put.requests(),
            Self::Get(get) => get.requests(),
            Self::Removal(removal) => removal.requests(),
            Self::Once(requests) => std::mem::take(requests),
        }
    }

    fn answer(&mut self, node: NodeNumber, place: usize, answer: Answer) {
        match (self, answer) {
            (Self::Put(put), Answer::Has(_)) => put.stored(place),
            (Self::Put(put), _) => put.refused(place),
            (Self::Get(get), Answer::Has(_)) => get.hit(node, place),
            (Self::Get(get), Answer::Absent) => get.missed(node, place),
            (Self::Get(get), _) => get.failed(place),
            (Self::Removal(removal), Answer::Has(_)) => removal.removed(place),
            (Self::Removal(_) | Self::Once(_), _) => {}
        }
    }
}

/// The answer of a node for one key.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    /// The node has the block, or had it before a removal. A look-up tells its length.
    Has(u64),
    /// The node does not have the block.
    Absent,
    /// The node has a block of this length, which is not that of the buffer.
    OtherLength(u64),
    /// The node was lost, or has refused.
    Failed(BlockError),
}

impl Answer {
    /// Compares answers of several nodes for one key: one that says more has a greater number.
    fn says(self) -> u8 {
        match self {
            Self::Absent => 0,
            Self::Failed(_) => 1,
            Self::OtherLength(_) => 2,
            Self::Has(_) => 3,
        }
    }
}

struct Progress {
    decisions: Decisions,
    /// The answer for each key that says most.
    answers: Vec<Option<Answer>>,
    /// The last error for each key.
    errors: Vec<Option<BlockError>>,
    /// Number of keys of all requests that are under way.
    under_way: usize,
    done: Option<Box<dyn FnOnce(Ended) + Send>>,
}

pub(super) struct Batch {
    pub task: Task,
    way: Way,
    progress: Mutex<Progress>,
}

/// A batch that has ended.
pub(super) struct Ended {
    batch: Arc<Batch>,
}

/// A request of a batch to one node. It is answered exactly once: a request that is dropped counts as one to a lost
/// node, so each batch ends, whatever becomes of a thread.
pub(super) struct Ask {
    batch: Arc<Batch>,
    node: NodeNumber,
    places: Vec<usize>,
    is_answered: bool,
}

impl Batch {
    /// Begins an operation. `done` gets its end.
    pub fn begin(task: Task, decisions: Decisions, way: Way, done: impl FnOnce(Ended) + Send + 'static) {
        let keys = match &task {
            Task::Put { blocks } => blocks.len(),
            Task::Get { keys, .. }
            | Task::LookUp { keys }
            | Task::Contains { keys }
            | Task::Remove { keys } => keys.len(),
            Task::List { lists } => lists.lock().map_or(0, |lists| lists.len()),
        };
        let (answers, errors) = (vec![None; keys], vec![None; keys]);
        let progress = Progress { decisions, answers, errors, under_way: 0, done: Some(Box::new(done)) };
        Arc::new(Self { task, way, progress: Mutex::new(progress) }).go_on();
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        // A state machine that has panicked has counted nothing, and the batch ends by its other answers.
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the requests that the decisions want now. Ends the batch if there are none, and none is under way.
    fn go_on(self: &Arc<Self>) {
        loop {
            let (requests, done) = {
                let mut progress = self.progress();
                let requests = progress.decisions.requests();
                progress.under_way += requests.iter().map(|request| request.places.len()).sum::<usize>();
                let has_ended = requests.is_empty() && progress.under_way == 0;
                (requests, if has_ended { progress.done.take() } else { None })
            };
            if let Some(done) = done {
                let ended = Ended { batch: Arc::clone(self) };
                // A panic of the caller's code has been reported. The worker serves others as well.
                let _ = catch_unwind(AssertUnwindSafe(|| done(ended)));
                return;
            }
            let mut any_refused = false;
            for NodeRequest { node, places } in requests {
                let ask = Ask { batch: Arc::clone(self), node, places, is_answered: false };
                if let Err(ask) = self.way.links[node].push(ask) {
                    ask.refused();
                    any_refused = true;
                }
            }
            if !any_refused {
                return;
            }
        }
    }

    fn note(&self, node: NodeNumber, places: &[usize], answers: impl Iterator<Item = Answer>) {
        let mut progress = self.progress();
        for (place, answer) in places.iter().zip(answers) {
            progress.decisions.answer(node, *place, answer);
            let before = &mut progress.answers[*place];
            if before.is_none_or(|before| before.says() <= answer.says()) {
                *before = Some(answer);
            }
            if let Answer::Failed(error) = answer {
                progress.errors[*place] = Some(error);
            }
            progress.under_way -= 1;
        }
    }
}

impl Ask {
    pub fn task(&self) -> &Task {
        &self.batch.task
    }

    pub fn places(&self) -> &[usize] {
        &self.places
    }

    /// Answers for each key, in the order of the places, and goes on with the batch.
    pub fn answer(mut self, answers: Vec<Answer>) {
        debug_assert_eq!(answers.len(), self.places.len());
        self.is_answered = true;
        self.batch.note(self.node, &self.places, answers.into_iter());
        self.batch.go_on();
    }

    /// Answers all keys with this error, and goes on with the batch.
    pub fn fail(self, error: BlockError) {
        let answers = vec![Answer::Failed(error); self.places.len()];
        self.answer(answers);
    }

    /// Notes that the link has refused the request. The caller goes on with the batch.
    fn refused(mut self) {
        self.is_answered = true;
        self.batch.note(self.node, &self.places, std::iter::repeat(LOST));
    }
}

/// The answer of a node that is lost.
const LOST: Answer = Answer::Failed(BlockError::Session(Error::NodeGone));

impl Drop for Ask {
    fn drop(&mut self) {
        if !std::mem::replace(&mut self.is_answered, true) {
            self.batch.note(self.node, &self.places, std::iter::repeat(LOST));
            self.batch.go_on();
        }
    }
}

impl Ended {
    /// Returns the ends of a put.
    pub fn put_ends(self) -> Vec<PutEnd> {
        let progress = self.batch.progress();
        let Decisions::Put(put) = &progress.decisions else { return Vec::new() };
        let end = |(place, error): (usize, &Option<BlockError>)| {
            let refusal = (!put.is_whole(place)).then_some(error.unwrap_or(BlockError::TooFewNodes));
            PutEnd { copies: put.copies(place), refusal }
        };
        progress.errors.iter().enumerate().map(end).collect()
    }

    /// Returns the ends of a get.
    pub fn get_ends(self) -> Vec<GetEnd> {
        let Task::Get { buffers, .. } = &self.batch.task else { return Vec::new() };
        let mut buffers = buffers.lock().unwrap_or_else(PoisonError::into_inner);
        let progress = self.batch.progress();
        let got = |answer: &Option<Answer>| match answer {
            Some(Answer::Has(_)) => Got::Hit,
            Some(Answer::OtherLength(length)) => Got::OtherLength(*length),
            Some(Answer::Failed(BlockError::Session(error))) => Got::Failed(*error),
            // No node could be asked.
            Some(Answer::Failed(_)) | None => Got::Failed(Error::NodeGone),
            Some(Answer::Absent) => Got::Absent,
        };
        let ends = progress.answers.iter().map(got).zip(buffers.iter_mut().map(Option::take));
        ends.map(|(got, buffer)| GetEnd { got, buffer }).collect()
    }

    /// Returns the ends of a look-up.
    pub fn found(self) -> Vec<Found> {
        let found = |answer: &Option<Answer>| match answer {
            Some(Answer::Has(length)) => Some(*length),
            _ => None,
        };
        self.batch.progress().answers.iter().map(found).collect()
    }

    /// Returns the ends of a removal.
    pub fn removed(self) -> Vec<Removed> {
        let progress = self.batch.progress();
        let Decisions::Removal(removal) = &progress.decisions else { return Vec::new() };
        let end = |(place, error): (usize, &Option<BlockError>)| match error {
            Some(error) => Err(*error),
            None if !removal.has_nodes() => Err(BlockError::TooFewNodes),
            None => Ok(removal.copies(place)),
        };
        progress.errors.iter().enumerate().map(end).collect()
    }

    /// Returns for each key whether the node that was asked does not have its block.
    pub fn lacks(self) -> Vec<bool> {
        self.batch.progress().answers.iter().map(|answer| matches!(answer, Some(Answer::Absent))).collect()
    }

    /// Returns the lists of the nodes.
    pub fn lists(self) -> Vec<NodeList> {
        let Task::List { lists } = &self.batch.task else { return Vec::new() };
        let lists = std::mem::take(&mut *lists.lock().unwrap_or_else(PoisonError::into_inner));
        let progress = self.batch.progress();
        let ends = lists.into_iter().zip(&progress.errors);
        ends.map(|(list, error)| error.map_or(Ok(list), Err)).collect()
    }

    /// Returns the blocks of a get that are to be copied to other nodes.
    pub fn forwards(&self) -> Vec<Forward> {
        match &self.batch.progress().decisions {
            Decisions::Get(get) => get.forwards(),
            _ => Vec::new(),
        }
    }

    /// Returns the way to the nodes, for operations that follow this one.
    pub fn way(&self) -> Way {
        self.batch.way.clone()
    }

    /// Returns the key and the length of a block that a get has read.
    pub fn read_block(&self, place: usize) -> Option<(Key, usize)> {
        let Task::Get { keys, .. } = &self.batch.task else { return None };
        let Some(Answer::Has(length)) = self.batch.progress().answers[place] else { return None };
        Some((keys[place].clone(), usize::try_from(length).ok()?))
    }

    /// Copies the bytes of a block that a get has read.
    pub fn copy_of(&self, place: usize) -> Option<Bytes> {
        let Task::Get { buffers, .. } = &self.batch.task else { return None };
        let mut buffers = buffers.lock().unwrap_or_else(PoisonError::into_inner);
        let buffer = buffers[place].as_mut()?;
        Some(Arc::new((**buffer).as_mut().to_vec()))
    }
}
