//! The thread of one node: a session, its pipeline and the node's store, and the attempts to reach a lost node.

use super::batch::{Answer, Ask, Buffers, BytesMut, Key, Listed, Task};
use super::link::{Link, Reason};
use super::options::SpreadOptions;
use crate::{BlockError, Counters, Got, Put, Store};
use portcullis::{ConnectError, Error, Lifetime, Refusal, SessionEndpoint, connect_with};
use portcullis_errors::{Coded, ErrorCode};
use portcullis_structures::table::TableError;
use portcullis_structures::{Pipeline, Work};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::mpsc::Sender;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The most requests that a worker carries out at a time.
const DEPTH_MAX: usize = 16;

/// The most bytes of the arena that a request uses at a time for its pieces, each of which takes up to twice its
/// length.
const REQUEST_BYTES: u64 = 2 << 20;

/// The first and the longest pause before a block that is busy is tried again. All pauses together are twice the
/// longest.
const BUSY_PAUSE_FIRST: Lifetime = Lifetime::millis(1);
const BUSY_PAUSE_LAST: Lifetime = Lifetime::millis(128);

/// Interval in which a worker without requests checks whether its node is still there.
const CHECKED_EVERY: Duration = Duration::from_millis(200);

/// The reason why a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpenError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Store(#[from] BlockError),
}

impl Coded for OpenError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Connect(error) => error.code(),
            Self::Store(error) => error.code(),
        }
    }
}

/// Marks the link as lost when its worker ends, also by a panic: no request waits for a worker that is not there.
struct Ending<'l>(&'l Link);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.lose(Reason { text: "its thread has ended".to_owned(), code: ErrorCode::NodeGone });
    }
}

/// Serves a link until it is closed. Reports to `first` when the node was tried for the first time.
pub(super) fn run(link: &Link, options: &SpreadOptions, first: Sender<()>) {
    let _ending = Ending(link);
    let mut first = Some(first);
    loop {
        let served = catch_unwind(AssertUnwindSafe(|| serve(link, options, &mut first)));
        if served.is_err() {
            // The panic has been reported. All requests of the session were answered when it was dropped.
            link.lose(Reason { text: "a panic has ended the session".to_owned(), code: ErrorCode::Panicked });
        }
        tried(first.take());
        link.wait(options.retried_every);
        if link.is_closed() {
            return;
        }
    }
}

/// Opens the store of the node, and serves until the node is lost or the link is closed.
fn serve(link: &Link, options: &SpreadOptions, first: &mut Option<Sender<()>>) {
    let Opened { pipeline, store, is_near } = match open(link, options) {
        Ok(opened) => opened,
        Err(error) => return link.lose(Reason::of(&error)),
    };
    link.open(is_near, store.age());
    tried(first.take());
    let before = link.counters();
    let mut serving = Serving { link, pipeline: &pipeline, store: &store, before, is_over: false };
    pipeline.serve(depth(options), &mut serving, |ask| carry_out(&pipeline, &store, ask));
    serving.note_counters();
    if !pipeline.is_over() && !pipeline.is_silent() {
        // If this fails, the leases end by themselves.
        let _ = pipeline.block_on(store.close());
    }
}

/// Reports that the first attempt to reach the node was made. The handle may have been dropped meanwhile.
fn tried(first: Option<Sender<()>>) {
    if let Some(first) = first {
        let _ = first.send(());
    }
}

/// Returns how many requests are carried out at a time: so many that the arena has room for their pieces, and for the
/// words of the table besides.
fn depth(options: &SpreadOptions) -> usize {
    let fit = (options.session.arena_bytes / REQUEST_BYTES).saturating_sub(1);
    usize::try_from(fit).unwrap_or(DEPTH_MAX).clamp(1, DEPTH_MAX)
}

struct Opened {
    pipeline: Rc<Pipeline>,
    store: Store,
    is_near: bool,
}

fn open(link: &Link, options: &SpreadOptions) -> Result<Opened, OpenError> {
    let mut session = connect_with(&link.address, options.session.clone())?;
    let is_near = matches!(session.client().endpoint(), SessionEndpoint::Port(_));
    let pipeline = Rc::new(Pipeline::new(session));
    let store = pipeline.block_on(Store::open(&pipeline, options.table, &options.store))?;
    Ok(Opened { pipeline, store, is_near })
}

struct Serving<'w> {
    link: &'w Link,
    pipeline: &'w Pipeline,
    store: &'w Store,
    /// Counts of the sessions before this one.
    before: Counters,
    /// The node is lost.
    is_over: bool,
}

impl Serving<'_> {
    fn note_counters(&self) {
        self.link.set_counters(self.before.and(self.store.counters()));
    }

    fn lose(&mut self, error: &impl Coded) {
        self.is_over = true;
        self.link.lose(Reason::of(error));
    }
}

impl Work for Serving<'_> {
    type Job = Ask;
    type Outcome = Result<(), BlockError>;

    fn next(&mut self) -> Option<Ask> {
        if self.is_over { None } else { self.link.take() }
    }

    fn done(&mut self, outcome: Self::Outcome) {
        self.note_counters();
        let is_lost = self.pipeline.is_over() || self.pipeline.is_silent();
        let is_useless = outcome.is_err_and(|error| is_table_gone(&error));
        if !self.is_over && (is_lost || is_useless) {
            self.lose(&outcome.err().unwrap_or(BlockError::Silent));
        }
    }

    fn rest(&mut self, under_way: usize) -> bool {
        if self.is_over || under_way > 0 {
            return !self.is_over;
        }
        self.link.wait(CHECKED_EVERY);
        if self.pipeline.look_for_node() {
            self.lose(&Error::NodeGone);
        }
        !self.is_over && !self.link.is_done()
    }
}

/// Whether the table of the keys is no more, or is damaged. A store that is opened anew has another one.
fn is_table_gone(error: &BlockError) -> bool {
    matches!(
        error,
        BlockError::Table(TableError::NotATable | TableError::Damaged { .. })
            | BlockError::Session(Error::Refused(Refusal::Gone | Refusal::AnotherNode))
    )
}

/// Carries out a request, and answers it.
async fn carry_out(pipeline: &Pipeline, store: &Store, ask: Ask) -> Result<(), BlockError> {
    let answers = match ask.task() {
        Task::Put { blocks } => {
            let block = |place: &usize| {
                let (key, bytes) = &blocks[*place];
                (&**key, (**bytes).as_ref())
            };
            let blocks: Vec<_> = ask.places().iter().map(block).collect();
            put(pipeline, store, &blocks).await.map(|ends| {
                let lengths = blocks.iter().map(|(_, bytes)| bytes.len() as u64);
                ends.into_iter().zip(lengths).map(put_answer).collect()
            })
        }
        Task::Get { keys, buffers, leaves_leases } => get(store, &ask, (keys, buffers, *leaves_leases)).await,
        Task::LookUp { keys } => {
            let found = store.look_up(&keys_of(keys, &ask)).await;
            found.map(|found| {
                found.into_iter().map(|length| length.map_or(Answer::Absent, Answer::Has)).collect()
            })
        }
        Task::Contains { keys } => {
            let found = store.contains(&keys_of(keys, &ask)).await;
            let answer = |is_there| if is_there { Answer::Has(0) } else { Answer::Absent };
            found.map(|found| found.into_iter().map(answer).collect())
        }
        Task::Remove { keys } => {
            let removed = store.remove_many(&keys_of(keys, &ask)).await;
            let answer = |is_removed| if is_removed { Answer::Has(0) } else { Answer::Absent };
            removed.map(|removed| removed.into_iter().map(answer).collect())
        }
        Task::List { lists } => list(store, &ask, lists).await,
    };
    match answers {
        Ok(answers) => {
            ask.answer(answers);
            Ok(())
        }
        Err(error) => {
            ask.fail(error);
            Err(error)
        }
    }
}

fn keys_of<'k>(keys: &'k [Key], ask: &Ask) -> Vec<&'k [u8]> {
    ask.places().iter().map(|place| &*keys[*place]).collect()
}

/// Stores blocks. A block that is busy is tried again: another operation is probably storing it, and ends soon.
async fn put(
    pipeline: &Pipeline,
    store: &Store,
    blocks: &[(&[u8], &[u8])],
) -> Result<Vec<Result<Put, BlockError>>, BlockError> {
    let mut ends = store.put_many(blocks).await?;
    let mut pause = BUSY_PAUSE_FIRST;
    while pause <= BUSY_PAUSE_LAST {
        let is_busy = |place: &usize| ends[*place] == Ok(Put::Busy);
        let busy: Vec<usize> = (0..blocks.len()).filter(is_busy).collect();
        if busy.is_empty() {
            break;
        }
        pipeline.sleep(pause).await?;
        pause = Lifetime(pause.0 * 2);
        let again: Vec<_> = busy.iter().map(|place| blocks[*place]).collect();
        for (place, end) in busy.into_iter().zip(store.put_many(&again).await?) {
            ends[place] = end;
        }
    }
    Ok(ends)
}

fn put_answer((end, length): (Result<Put, BlockError>, u64)) -> Answer {
    match end {
        Ok(Put::Stored | Put::ThereAlready) => Answer::Has(length),
        Ok(Put::Busy) => Answer::Failed(BlockError::Busy),
        Err(error) => Answer::Failed(error),
    }
}

/// Buffers that were taken out of a get. They go back when this is dropped, whatever becomes of the read.
struct TakenBuffers<'a> {
    of: &'a Buffers,
    places: &'a [usize],
    taken: Vec<Box<dyn BytesMut>>,
}

impl<'a> TakenBuffers<'a> {
    /// `None`: a buffer is not there, since the code of its caller has panicked.
    fn take(of: &'a Buffers, places: &'a [usize]) -> Option<Self> {
        let mut buffers = of.lock().unwrap_or_else(PoisonError::into_inner);
        if places.iter().any(|place| buffers[*place].is_none()) {
            return None;
        }
        let taken = places.iter().filter_map(|place| buffers[*place].take()).collect();
        Some(Self { of, places, taken })
    }
}

impl Drop for TakenBuffers<'_> {
    fn drop(&mut self) {
        let mut buffers = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        self.places.iter().zip(self.taken.drain(..)).for_each(|(place, it)| buffers[*place] = Some(it));
    }
}

async fn get(
    store: &Store,
    ask: &Ask,
    (keys, buffers, leaves_leases): (&[Key], &Buffers, bool),
) -> Result<Vec<Answer>, BlockError> {
    let Some(mut buffers) = TakenBuffers::take(buffers, ask.places()) else {
        return Ok(vec![Answer::Absent; ask.places().len()]);
    };
    let targets = buffers.taken.iter_mut().map(|buffer| (**buffer).as_mut());
    let mut wanted: Vec<(&[u8], &mut [u8])> = keys_of(keys, ask).into_iter().zip(targets).collect();
    let lengths: Vec<_> = wanted.iter().map(|(_, buffer)| buffer.len() as u64).collect();
    let ends = match leaves_leases {
        false => store.get_many(&mut wanted).await?,
        true => store.get_many_without_leases(&mut wanted).await?,
    };
    let answer = |(got, length)| match got {
        Got::Hit => Answer::Has(length),
        Got::Absent => Answer::Absent,
        Got::OtherLength(length) => Answer::OtherLength(length),
        Got::Failed(error) => Answer::Failed(error.into()),
    };
    Ok(ends.into_iter().zip(lengths).map(answer).collect())
}

async fn list(store: &Store, ask: &Ask, lists: &Mutex<Vec<Vec<Listed>>>) -> Result<Vec<Answer>, BlockError> {
    let mut listed = Vec::new();
    let each = |key: &[u8], length: u64, is_pinned: bool| {
        listed.push(Listed { key: key.into(), length, is_pinned });
    };
    store.for_each(each).await?;
    let length = listed.len() as u64;
    let [place] = ask.places() else { return Ok(vec![Answer::Absent; ask.places().len()]) };
    lists.lock().unwrap_or_else(PoisonError::into_inner)[*place] = listed;
    Ok(vec![Answer::Has(length)])
}
