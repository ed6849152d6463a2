//! Many operations of one session in flight, on one thread.
//!
//! An operation of a structure is a future. It asks for accesses and calls, and awaits what comes of them. The pipeline
//! posts what all operations have asked for with one doorbell, waits until something has ended, and goes on with the
//! operations that waited for it. It starts no thread and reads no clock but the session's.
//!
//! A future of this module makes progress only in [`Pipeline::block_on`], [`Pipeline::drive`], [`Pipeline::run`],
//! [`Pipeline::serve`] or [`Pipeline::turn`] of its own pipeline.

mod asks;
mod awaited;
mod buffers;
mod bytes;
mod core;
mod limited;
mod outbox;
mod places;
mod requests;
mod timers;
mod together;
mod turns;
mod work;

pub use awaited::{Awaited, Yield};
pub(crate) use bytes::{ZEROS, word_of};
pub(crate) use together::{all, join};
pub use turns::Turns;
pub use work::Work;

use self::core::Core;
use limited::Limited;
use portcullis::{
    Clock, Effect, Error, Lifetime, Moment, ProcessClock, Session, SessionEndpoint, VerbsEndpoint,
};
use std::cell::RefCell;
use std::fmt;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use timers::Sleep;
use turns::WAITED_FOR;

/// The shortest time before a request that the node refused for a pause is made again: the pause may have had nothing left.
const ASKED_AGAIN_AFTER: Lifetime = Lifetime::micros(100);

/// The number of a future that a pipeline drives.
type Task = usize;

/// One session, and the operations on it. See the module's documentation.
pub struct Pipeline<E: VerbsEndpoint = SessionEndpoint, C: Clock = ProcessClock> {
    core: RefCell<Core<E, C>>,
}

impl<E: VerbsEndpoint, C: Clock> fmt::Debug for Pipeline<E, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipeline").finish_non_exhaustive()
    }
}

impl<E: VerbsEndpoint, C: Clock> Pipeline<E, C> {
    /// A pipeline on a session.
    pub fn new(session: Session<E, C>) -> Self {
        Self { core: RefCell::new(Core::new(session)) }
    }

    /// The session.
    pub fn into_session(self) -> Session<E, C> {
        self.core.into_inner().session
    }

    /// The client's number on its node.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.core.borrow().session.number()
    }

    /// Whether the session is over. Then no request succeeds any more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.core.borrow_mut().session.client().over().is_some()
    }

    /// Asks the local end of the connection whether the node is still there, and returns whether the session is over. Nothing is
    /// asked of the node. For a pipeline with nothing under way, which would not notice otherwise.
    #[must_use]
    pub fn look_for_node(&self) -> bool {
        self.core.borrow_mut().session.look_for_node();
        self.is_over()
    }

    /// Whether accesses are carried out in the order in which they are asked for. Where they are not, the next one is asked
    /// for when the one before has succeeded: a fence would let it pass where that has failed.
    #[inline]
    pub(crate) fn keeps_order(&self) -> bool {
        self.core.borrow_mut().session.client().keeps_order()
    }

    /// The time of this round: when the pipeline last began to go on with operations.
    #[must_use]
    pub fn now(&self) -> Moment {
        self.core.borrow().now
    }

    /// Whether the node owes an answer that was given up: it stands still, or cannot be reached. What is asked of it now probably
    /// ends by its limit.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        self.core.borrow_mut().session.client().has_given_up()
    }

    /// Carries an operation out for as long as it gets further: it ends with [`Error::TimedOut`] and is given up where it stood if
    /// it neither ends nor notes a step ([`Pipeline::note_step`]) for the limit of the session ([`Session::within`]). Without
    /// a limit it may take as long as it likes. The operations of tables and queues are limited by themselves.
    ///
    /// `what` and `effect` are what the error says.
    ///
    /// # Errors
    /// As the operation, or [`Error::TimedOut`].
    pub async fn limited<T, X: From<Error>>(
        &self,
        (what, effect): (&'static str, Effect),
        operation: impl Future<Output = Result<T, X>>,
    ) -> Result<T, X> {
        Limited::new(self, (what, effect), operation).await
    }

    /// Notes that the present operation has got further: its limit begins again. For steps of which an operation has a bounded
    /// number, and never for an attempt that may be made again.
    pub fn note_step(&self) {
        self.core.borrow_mut().note_step();
    }

    /// Waits for `time`.
    ///
    /// # Errors
    /// Why the session is over, at once where it is: so a loop of sleeps ends with its session.
    pub async fn sleep(&self, time: Lifetime) -> Result<(), Error> {
        let until = self.now().after(time);
        Sleep::new(self, until).await
    }

    /// Waits for `time` beside an operation that ends by itself where the session is over. This never ends then.
    pub(crate) async fn sleep_beside(&self, time: Lifetime) {
        if self.sleep(time).await.is_err() {
            std::future::pending().await
        }
    }

    /// Waits for a pause of the tenant to end, which the node has said to last for `wait`. A pause slows a tenant down. It is
    /// no failure of an operation: nothing of the request was carried out.
    ///
    /// # Errors
    /// As [`Pipeline::sleep`].
    pub(crate) async fn sit_out(&self, wait: Lifetime) -> Result<(), Error> {
        self.sleep(wait.max(ASKED_AGAIN_AFTER)).await
    }

    /// Waits until something that this pipeline asked for has ended, or [`Pipeline::wake_waiting`] is called.
    ///
    /// # Errors
    /// Why the session is over, at once where it is.
    pub async fn anything(&self) -> Result<(), Error> {
        let mut asked = false;
        std::future::poll_fn(|_| {
            let mut core = self.core.borrow_mut();
            if let Some(error) = core.session.client().over() {
                return Poll::Ready(Err(error));
            }
            if std::mem::replace(&mut asked, true) {
                return Poll::Ready(Ok(()));
            }
            let task = core.current;
            core.watchers.push(task);
            Poll::Pending
        })
        .await
    }

    /// Goes on with all that wait in [`Pipeline::anything`]: what they wait for may have come without the end of a request.
    pub fn wake_waiting(&self) {
        let core = &mut *self.core.borrow_mut();
        core.watchers.drain(..).for_each(|task| core.ready.push(task));
    }

    /// Carries one operation out.
    ///
    /// # Panics
    /// If [`Pipeline::halt_after`] has stopped the pipeline: then only [`Pipeline::drive`] returns.
    pub fn block_on<T>(&self, operation: impl Future<Output = T>) -> T {
        self.drive(pin!(operation)).expect("nobody has halted the pipeline")
    }

    /// Carries one operation out for as long as `goes_on` is true, which is asked `every` so often. `None`: the operation was given
    /// up where it stood, as if its client had died there: a permission that comes later lives until its time is over, and a block
    /// that was claimed stays until a sweep.
    ///
    /// # Panics
    /// As [`Pipeline::block_on`].
    pub fn block_on_while<T>(
        &self,
        operation: impl Future<Output = T>,
        every: Lifetime,
        goes_on: impl AsyncFnMut() -> bool,
    ) -> Option<T> {
        self.block_on(self.given_up_unless(operation, every, goes_on))
    }

    /// The operation that [`Pipeline::block_on_while`] carries out.
    pub async fn given_up_unless<T>(
        &self,
        operation: impl Future<Output = T>,
        every: Lifetime,
        mut goes_on: impl AsyncFnMut() -> bool,
    ) -> Option<T> {
        let mut operation = pin!(operation);
        let mut given_up = pin!(async {
            loop {
                self.sleep_beside(every).await;
                if !goes_on().await {
                    return;
                }
            }
        });
        std::future::poll_fn(|context| {
            if let Poll::Ready(result) = operation.as_mut().poll(context) {
                return Poll::Ready(Some(result));
            }
            given_up.as_mut().poll(context).map(|()| None)
        })
        .await
    }

    /// Carries one operation out. `None`: the pipeline was halted, and the operation waits for what is not posted.
    pub fn drive<T>(&self, operation: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        self.drive_among(operation, |_| true)
    }

    /// Carries one operation out, which goes on where `goes_on` returns true for a task that is ready.
    fn drive_among<T>(
        &self,
        mut operation: Pin<&mut impl Future<Output = T>>,
        mut goes_on: impl FnMut(Task) -> bool,
    ) -> Option<T> {
        let mut context = Context::from_waker(Waker::noop());
        self.core.borrow_mut().ready.push(WAITED_FOR);
        self.core.borrow_mut().begin_round();
        loop {
            while let Some(task) = self.next_ready() {
                if goes_on(task)
                    && let Poll::Ready(result) = operation.as_mut().poll(&mut context)
                {
                    self.core.borrow_mut().flush();
                    return Some(result);
                }
            }
            if !self.core.borrow_mut().wait() {
                return None;
            }
        }
    }

    fn next_ready(&self) -> Option<Task> {
        let mut core = self.core.borrow_mut();
        let task = core.ready.pop()?;
        core.current = task;
        Some(task)
    }

    /// Posts `posts` more requests and none after them, as if the program had died or stood still there: for tests of
    /// what a death leaves behind. `None`: posts as many as there are.
    pub fn halt_after(&self, posts: Option<u64>) {
        self.core.borrow_mut().posts_left = posts;
    }

    /// Whether all of [`Pipeline::halt_after`] was posted.
    #[must_use]
    pub fn is_halted(&self) -> bool {
        self.core.borrow().posts_left == Some(0)
    }

    /// How many posts of [`Pipeline::halt_after`] are left.
    #[must_use]
    pub fn posts_left(&self) -> Option<u64> {
        self.core.borrow().posts_left
    }
}
