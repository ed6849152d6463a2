//! Many operations of one session in flight, on one thread.
//!
//! An operation of a structure is a future. It requests accesses and calls, and awaits their results. The pipeline
//! posts the requests of all operations with one doorbell, waits until a request has ended, and goes on with the
//! operations that waited for it. It starts no thread and reads no clock but the session's.
//!
//! A future of this module makes progress only in [`Pipeline::block_on`], [`Pipeline::drive`], [`Pipeline::run`],
//! [`Pipeline::serve`] or [`Pipeline::turn`] of its own pipeline.

mod asks;
mod awaited;
mod beside;
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

pub(crate) use awaited::WriteAndSwap;
pub use awaited::{Awaited, Yield};
pub(crate) use beside::Beside;
pub(crate) use bytes::{ZEROS, word_of};
pub use together::join;
pub(crate) use together::{all, both};
pub use turns::Turns;
pub use work::Work;

use self::core::Core;
use beside::WorkBeside;
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

/// Shortest time after which a request that the node refused for a pause is made again: the pause may have had no time
/// left.
const ASKED_AGAIN_AFTER: Lifetime = Lifetime::micros(100);

/// The number of a future that a pipeline drives.
pub(crate) type Task = usize;

/// One session, and the operations on it. See the module's documentation.
pub struct Pipeline<E: VerbsEndpoint = SessionEndpoint, C: Clock = ProcessClock> {
    core: RefCell<Core<E, C>>,
    beside: WorkBeside,
}

impl<E: VerbsEndpoint, C: Clock> fmt::Debug for Pipeline<E, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipeline").finish_non_exhaustive()
    }
}

impl<E: VerbsEndpoint, C: Clock> Pipeline<E, C> {
    /// Makes a pipeline on a session.
    pub fn new(session: Session<E, C>) -> Self {
        Self { core: RefCell::new(Core::new(session)), beside: WorkBeside::default() }
    }

    /// Returns the session.
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

    /// Checks at the local end of the connection whether the node is still there, and returns whether the session is
    /// over. Sends nothing to the node. This is for a pipeline with no request under way, which would not notice the
    /// end of the session otherwise.
    #[must_use]
    pub fn look_for_node(&self) -> bool {
        self.core.borrow_mut().session.look_for_node();
        self.is_over()
    }

    /// Whether accesses are executed in the order in which they are requested. If not, the next access is requested
    /// only when the one before has succeeded: a fence would let it pass if that one has failed.
    #[inline]
    pub(crate) fn keeps_order(&self) -> bool {
        self.core.borrow_mut().session.client().keeps_order()
    }

    /// The time of this round: when the pipeline last began to go on with operations.
    #[must_use]
    pub fn now(&self) -> Moment {
        self.core.borrow().now
    }

    /// Whether the node owes an answer that was given up: the node stands still, or cannot be reached. A request to it
    /// now probably ends by its limit.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        self.core.borrow_mut().session.client().has_given_up()
    }

    /// Carries an operation out for as long as it makes progress. If it neither ends nor notes a step
    /// ([`Pipeline::note_step`]) for the limit of the session ([`WaitingClient::within`]), it ends with
    /// [`Error::TimedOut`] and is given up at the step that it has reached. Without a limit it may take any time. The
    /// operations of tables and queues have this limit by themselves.
    ///
    /// [`WaitingClient::within`]: portcullis::WaitingClient::within
    ///
    /// `what` and `effect` become part of the error.
    ///
    /// # Errors
    /// As the operation, or [`Error::TimedOut`].
    // An `async fn` would keep the operation twice: as its argument, and in the future that it awaits.
    pub fn limited<T, X: From<Error>>(
        &self,
        (what, effect): (&'static str, Effect),
        operation: impl Future<Output = Result<T, X>>,
    ) -> impl Future<Output = Result<T, X>> {
        Limited::new(self, (what, effect), operation)
    }

    /// Notes that the present operation has made progress: its limit begins again. This is for steps of which an
    /// operation has a bounded number, and never for an attempt that may be made again.
    pub fn note_step(&self) {
        self.core.borrow_mut().note_step();
    }

    /// Waits for `time`.
    ///
    /// # Errors
    /// The reason why the session is over, at once if it is over already: so a loop of sleeps ends with its session.
    pub async fn sleep(&self, time: Lifetime) -> Result<(), Error> {
        let until = self.now().after(time);
        Sleep::new(self, until).await
    }

    /// Waits for `time` beside an operation that ends by itself if the session is over. This never ends then.
    pub(crate) async fn sleep_beside(&self, time: Lifetime) {
        if self.sleep(time).await.is_err() {
            std::future::pending().await
        }
    }

    /// Waits for the end of a pause of the tenant, which according to the node lasts for `wait`. A pause slows a tenant
    /// down. It is not a failure of an operation: no part of the request was carried out.
    ///
    /// # Errors
    /// As [`Pipeline::sleep`].
    pub(crate) async fn sit_out(&self, wait: Lifetime) -> Result<(), Error> {
        self.sleep(wait.max(ASKED_AGAIN_AFTER)).await
    }

    /// Waits until any request of this pipeline has ended, or [`Pipeline::wake_waiting`] is called.
    ///
    /// # Errors
    /// The reason why the session is over, at once if it is over already.
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

    /// Returns the present task, which [`Pipeline::wake`] wakes.
    pub(crate) fn present_task(&self) -> Task {
        self.core.borrow().current
    }

    /// Returns the reason why the session is over, if it is.
    pub(crate) fn over(&self) -> Option<Error> {
        self.core.borrow_mut().session.client().over()
    }

    /// Goes on with a task. Its operations check again whether they can go on.
    pub(crate) fn wake(&self, task: Task) {
        self.core.borrow_mut().ready.push(task);
    }

    /// Posts what the operations have requested so far. Without this, the pipeline posts when all tasks wait. Accesses that
    /// are posted together may end together for their tasks, so a long access is posted by itself if the next one is to
    /// be prepared meanwhile.
    pub fn post(&self) {
        self.core.borrow_mut().flush();
    }

    /// Wakes all tasks that wait in [`Pipeline::anything`]: the condition that they wait for may have become true
    /// without the end of a request.
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

    /// Carries one operation out for as long as `goes_on`, which is called once in each `every`, returns true. `None`:
    /// the operation was given up at the step that it had reached, as if its client had died there: a permission that
    /// is granted later lives until its time is over, and a block that was claimed stays until a sweep.
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

    /// Makes the operation that [`Pipeline::block_on_while`] carries out.
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

    /// Carries one operation out. `None`: the pipeline was halted, and the operation waits for a request that is not
    /// posted.
    pub fn drive<T>(&self, operation: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        self.drive_among(operation, |_| true)
    }

    /// Carries one operation out, and polls it if `goes_on` returns true for a task that is ready.
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

    fn next_task(&self) -> Option<Task> {
        let mut core = self.core.borrow_mut();
        let task = core.ready.pop()?;
        core.current = task;
        Some(task)
    }

    /// Posts `posts` more requests and none after them, as if the program had died or stood still there: for tests of
    /// the state that a death leaves behind. `None`: posts without a limit.
    pub fn halt_after(&self, posts: Option<u64>) {
        self.core.borrow_mut().posts_left = posts;
    }

    /// Whether all posts that [`Pipeline::halt_after`] allows were made.
    #[must_use]
    pub fn is_halted(&self) -> bool {
        self.core.borrow().posts_left == Some(0)
    }

    /// Number of posts of [`Pipeline::halt_after`] that are left.
    #[must_use]
    pub fn posts_left(&self) -> Option<u64> {
        self.core.borrow().posts_left
    }
}
