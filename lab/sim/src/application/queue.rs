//! A program that pushes to a queue and pops from it. All programs of its run share the queue.

use super::SimSession;
use super::structure::{SimPipeline, User};
use crate::endpoint::SimEndpoint;
use crate::fiber::FiberClock;
use crate::oracle::Promise;
use portcullis_histories::fifo::Event;
use portcullis_protocol::Lifetime;
use portcullis_structures::Pipeline;
use portcullis_structures::queue::{QueueError, QueueOptions};
use std::pin::Pin;
use std::rc::Rc;

pub(super) type SimQueue = portcullis_structures::queue::Queue<SimEndpoint, FiberClock>;

/// The most operations that a program has in flight.
const TASKS_MAX: usize = 4;
/// The most entries that a pop of several entries takes.
const POPPED_MAX: usize = 5;
/// Bytes of a cell. Some entries take several.
const CELL_BYTES: u32 = 16;
/// Probability, in thousandths, that a step of the founder closes the queue, in runs in which the queue is closed.
const CLOSES_PER_MILLE: u64 = 2;

/// User of the queue, running on the program's fiber.
pub(super) struct QueueUser(pub User);

/// Runs a program on a queue, of claims or not: opens or creates the queue, works in several tasks, and checks the
/// queue at the end.
pub(super) fn work_on_queue(
    user: &User,
    session: SimSession,
    (tasks_max, claims): (usize, bool),
    work: impl AsyncFn(&SimPipeline, &SimQueue),
    look: impl AsyncFn(&SimQueue) -> Result<(), QueueError>,
) {
    let pipeline = Rc::new(Pipeline::new(session));
    let at_work = user.commons.go_to_work();
    let make = || {
        let queue = pipeline.block_on(SimQueue::create(&pipeline, &options(user, claims)))?;
        let head = queue.head();
        Ok((queue, head))
    };
    let opened = user.open(&pipeline, make, |head| pipeline.block_on(SimQueue::open(&pipeline, head)));
    let Some(queue) = opened else { return };
    let tasks = user.dice.borrow_mut().index(tasks_max) + 1;
    let under_way: Vec<Pin<Box<dyn Future<Output = ()> + '_>>> =
        (0..tasks).map(|_| Box::pin(work(&pipeline, &queue)) as _).collect();
    pipeline.run(tasks, under_way, |()| ());
    drop(at_work);
    if user.is_founder {
        user.look_at_the_end(&pipeline, async || look(&queue).await);
    }
}

fn options(user: &User, claims: bool) -> QueueOptions {
    QueueOptions {
        segment_slots: 64,
        cell_bytes: CELL_BYTES,
        segments_max: 4,
        lease: Lifetime(user.dice.borrow_mut().of(1_000..4_000)).max(user.lease_min),
        claims,
        ..QueueOptions::default()
    }
}

/// Returns the bytes of an entry, in which a torn write shows.
pub(super) fn bytes_of(number: u64) -> Vec<u8> {
    let length = 8 + usize::try_from(number % 5).expect("it is small") * 11;
    number.to_le_bytes().into_iter().cycle().take(length).collect()
}

/// Returns the number of an entry. Bytes that no program pushes give `u64::MAX`, a number that no program pushes.
pub(super) fn number_of(entry: &[u8]) -> u64 {
    let number = entry.first_chunk().map_or(u64::MAX, |bytes| u64::from_le_bytes(*bytes));
    if bytes_of(number) == entry { number } else { u64::MAX }
}

impl QueueUser {
    pub fn run(self, session: SimSession) {
        work_on_queue(
            &self.0,
            session,
            (TASKS_MAX, false),
            async |pipeline, queue| self.work(pipeline, queue).await,
            async |queue| self.look(queue).await,
        );
    }

    /// Executes one operation after another, until the run winds down.
    async fn work(&self, pipeline: &SimPipeline, queue: &SimQueue) {
        // Some programs push more than they pop, and others the other way round.
        let pushes = self.0.dice.borrow_mut().of(300..700);
        let closes = self.0.is_founder && self.0.dice.borrow_mut().per_mille(300);
        while self.0.goes_on(pipeline) {
            let (pushes, several) = {
                let mut dice = self.0.dice.borrow_mut();
                (dice.per_mille(pushes), if dice.per_mille(200) { dice.index(POPPED_MAX) + 1 } else { 1 })
            };
            if closes && self.0.dice.borrow_mut().per_mille(CLOSES_PER_MILLE) {
                self.close(queue).await;
            } else if pushes {
                self.push(queue).await;
            } else {
                let popped = self.pop(queue, several).await;
                self.0.note("a pop", popped);
            }
            let pause = self.0.dice.borrow_mut().magnitude(1..40);
            // If the session is over, the loop ends.
            let _ = pipeline.sleep(Lifetime(pause)).await;
        }
    }

    async fn push(&self, queue: &SimQueue) {
        let number = self.0.commons.new_value();
        let place = self.0.commons.begin_on_queue(&[Event::Push(number)]);
        match queue.push(&bytes_of(number)).await {
            Ok(()) => self.0.commons.end_on_queue(place, &[Event::Push(number)]),
            // It was not pushed.
            Err(QueueError::Full | QueueError::Closed) => self.0.commons.end_on_queue(place, &[]),
            Err(error) => {
                self.0.note("a push", Err::<(), _>(error));
            }
        }
    }

    /// Pops up to `most` entries. Returns how many were popped.
    async fn pop(&self, queue: &SimQueue, most: usize) -> Result<usize, QueueError> {
        let places = self.0.commons.begin_on_queue(&vec![Event::Pop(None); most]);
        let popped = match most {
            1 => queue.pop().await.map(|entry| entry.into_iter().collect()),
            _ => queue.pop_many(most).await,
        };
        let popped = match popped {
            // A pop reports a closed queue only if the queue is empty for ever.
            Err(QueueError::Closed) => Vec::new(),
            popped => popped?,
        };
        let told = match popped.len() {
            0 => vec![Event::Pop(None)],
            _ => popped.iter().map(|entry| Event::Pop(Some(number_of(entry)))).collect(),
        };
        self.0.commons.end_on_queue(places, &told);
        Ok(popped.len())
    }

    async fn close(&self, queue: &SimQueue) {
        if self.0.note("a close", queue.close().await).is_some() {
            self.0.commons.note_closed();
        }
    }

    /// Checks that the remaining entries can be drained, and that one segment is left then.
    async fn look(&self, queue: &SimQueue) -> Result<(), QueueError> {
        queue.close().await?;
        self.0.commons.note_closed();
        if !matches!(queue.push(b"late").await, Err(QueueError::Closed)) {
            self.0.wrong(Promise::Order, "a queue that is closed takes an entry".to_owned());
        }
        while self.pop(queue, POPPED_MAX).await? > 0 {}
        queue.sweep().await?;
        let found = queue.statistics().await?;
        if (found.slots, found.segments, found.is_closed) != (0, 1, true) {
            self.0.wrong(Promise::Rest, format!("slots or segments are leaked: {found:?}"));
        }
        Ok(())
    }
}
