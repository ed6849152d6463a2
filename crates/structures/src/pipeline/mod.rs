//! Many operations of one session in flight, on one thread.
//!
//! An operation of a structure is a future. It asks for accesses and calls, and awaits what comes of them. The pipeline
//! posts what all operations have asked for with one doorbell, waits until something has ended, and goes on with the
//! operations that waited for it. It starts no thread and reads no clock but the session's.
//!
//! A future of this module makes progress only in [`Pipeline::block_on`], [`Pipeline::drive`] or [`Pipeline::run`] of
//! its own pipeline.

mod bytes;
mod outbox;
mod requests;
mod timers;

pub(crate) use bytes::{ZEROS, copied, word_of};

use outbox::{Kind, Outbox, Room};
use portcullis::{
    Acquire, Allocate, Answer, BarePermission, Buffer, Call, Client, Clock, DirectoryName,
    Entry as NamedObject, Error, Keep, Lifetime, Memory, Moment, ObjectRef, Operation, Outcome, ProcessClock,
    Rights, Session, SessionEndpoint, TenantName, VerbsEndpoint,
};
use portcullis_slots::{Reuse, Slots};
use requests::{Action, Begun, Done, Posted, Request};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use timers::{Sleep, Timers};

/// Requests of a pipeline that may have been asked for and not taken.
const REQUESTS_MAX: u32 = 1 << 20;

/// How soon a request that found its queue full is posted again, if nothing of this pipeline ends before: a queue pair may
/// be rebuilt, or a message may be taken, which nobody here hears of.
const ROOM_WITHIN: Lifetime = Lifetime::micros(20);

/// How often a pipeline looks whether its node is still there.
const NODE_LOOKED_FOR_EVERY: Lifetime = Lifetime::millis(20);

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

/// A request that was asked for: [`Pipeline`] carries it out, and the future returns what came of it. If the future is
/// dropped, the request is carried out all the same.
#[must_use = "the result says whether the request was carried out"]
pub struct Awaited<'p, E: VerbsEndpoint, C: Clock, T> {
    pipeline: &'p Pipeline<E, C>,
    request: u64,
    result: fn(Done<E::Memory>) -> Option<T>,
}

impl<E: VerbsEndpoint, C: Clock, T> fmt::Debug for Awaited<'_, E, C, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Awaited").field("request", &self.request).finish_non_exhaustive()
    }
}

impl<E: VerbsEndpoint, C: Clock, T> Future for Awaited<'_, E, C, T> {
    type Output = Result<T, Error>;

    #[inline]
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        match self.pipeline.core.borrow_mut().take(self.request) {
            None => Poll::Pending,
            Some(result) => {
                Poll::Ready(result.and_then(|done| (self.result)(done).ok_or(Error::SessionLost)))
            }
        }
    }
}

impl<E: VerbsEndpoint, C: Clock, T> Drop for Awaited<'_, E, C, T> {
    #[inline]
    fn drop(&mut self) {
        self.pipeline.core.borrow_mut().forget(self.request);
    }
}

impl<E: VerbsEndpoint, C: Clock> Pipeline<E, C> {
    /// A pipeline on a session.
    pub fn new(session: Session<E, C>) -> Self {
        let now = session.now();
        let core = Core {
            session,
            now,
            entries: Slots::new(Reuse::LatestFirst, REQUESTS_MAX),
            outbox: Outbox::default(),
            by_place: Vec::new(),
            calls: Vec::new(),
            outcomes: Vec::new(),
            current: 0,
            ready: Ready::default(),
            timers: Timers::default(),
            watchers: Vec::new(),
            posts_left: None,
            look_for_node_at: now,
        };
        Self { core: RefCell::new(core) }
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

    /// The time of this round: when the pipeline last began to go on with operations.
    #[must_use]
    pub fn now(&self) -> Moment {
        self.core.borrow().now
    }

    /// Reads `length` bytes of a permission from `offset` on.
    pub fn read(
        &self,
        permission: &Rc<BarePermission>,
        offset: u64,
        length: u32,
    ) -> Awaited<'_, E, C, Buffer<E::Memory>> {
        let buffer = self.core.borrow().session.buffer(length);
        self.access(permission, offset, Action::Read, buffer, |done| match done {
            Done::Buffer(buffer) => Some(buffer),
            _ => None,
        })
    }

    /// Writes `bytes` to a permission from `offset` on.
    pub fn write(&self, permission: &Rc<BarePermission>, offset: u64, bytes: &[u8]) -> Awaited<'_, E, C, ()> {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let buffer = self.core.borrow().session.buffer(length);
        let buffer = buffer.map(|mut buffer| {
            buffer.write(0, bytes);
            buffer
        });
        self.access(permission, offset, Action::Write, buffer, |done| match done {
            Done::Buffer(_) => Some(()),
            _ => None,
        })
    }

    /// Writes `swap` to an 8-byte word if it holds `compare`. Returns the word's old value.
    pub fn compare_and_swap(
        &self,
        permission: &Rc<BarePermission>,
        offset: u64,
        compare: u64,
        swap: u64,
    ) -> Awaited<'_, E, C, u64> {
        self.atomic(permission, offset, Action::CompareAndSwap { compare, swap })
    }

    /// Adds to an 8-byte word, wrapping. Returns the word's old value.
    pub fn fetch_and_add(
        &self,
        permission: &Rc<BarePermission>,
        offset: u64,
        add: u64,
    ) -> Awaited<'_, E, C, u64> {
        self.atomic(permission, offset, Action::FetchAndAdd { add })
    }

    fn atomic(&self, permission: &Rc<BarePermission>, offset: u64, action: Action) -> Awaited<'_, E, C, u64> {
        let request = Request::Access { permission: Rc::clone(permission), offset, action, buffer: None };
        self.ask(Ok(request), |done| match done {
            Done::Word(word) => Some(word),
            _ => None,
        })
    }

    fn access<T>(
        &self,
        permission: &Rc<BarePermission>,
        offset: u64,
        action: Action,
        buffer: Result<Buffer<E::Memory>, Error>,
        result: fn(Done<E::Memory>) -> Option<T>,
    ) -> Awaited<'_, E, C, T> {
        let permission = Rc::clone(permission);
        let request =
            buffer.map(|buffer| Request::Access { permission, offset, action, buffer: Some(buffer) });
        self.ask(request, result)
    }

    /// Allocates memory.
    pub fn allocate(&self, ask: Allocate) -> Awaited<'_, E, C, BarePermission> {
        self.ask(Ok(Request::Allocate(ask)), granted)
    }

    /// Acquires a permission over an object that exists.
    pub fn acquire(&self, ask: Acquire) -> Awaited<'_, E, C, BarePermission> {
        self.ask(Ok(Request::Acquire(ask)), granted)
    }

    /// Extends a permission so that it ends `time` from now.
    pub fn extend(&self, permission: &Rc<BarePermission>, time: Lifetime) -> Awaited<'_, E, C, ()> {
        self.ask(Ok(Request::Extend { permission: Rc::clone(permission), time }), ended)
    }

    /// Ends a permission; `free` also lets its object go.
    pub fn revoke(&self, permission: BarePermission, free: bool) -> Awaited<'_, E, C, ()> {
        self.ask(Ok(Request::Revoke { permission, free }), ended)
    }

    /// Lets a kept object go once its last permission has ended.
    pub fn free(&self, object: ObjectRef) -> Awaited<'_, E, C, ()> {
        self.ask(Ok(Request::Free(object)), ended)
    }

    /// Keeps an object for another time from here on.
    pub fn keep_object(&self, object: ObjectRef, keep: Keep) -> Awaited<'_, E, C, ()> {
        self.ask(Ok(Request::Keep { object, keep }), ended)
    }

    /// Gives an object of the tenant a name.
    pub fn publish(&self, name: DirectoryName, object: ObjectRef) -> Awaited<'_, E, C, ()> {
        self.ask(Ok(Request::Publish { name, object }), ended)
    }

    /// Takes a name of the tenant away. The object stays.
    pub fn unpublish(&self, name: DirectoryName) -> Awaited<'_, E, C, ()> {
        self.ask(Ok(Request::Unpublish { name }), ended)
    }

    /// Lets another tenant acquire permissions over a named object, with at most these rights.
    pub fn share(&self, name: DirectoryName, tenant: TenantName, rights: Rights) -> Awaited<'_, E, C, ()> {
        self.ask(Ok(Request::Share { name, tenant, rights }), ended)
    }

    /// Shares a named object with another tenant no more. What that tenant holds of it has ended when this has.
    pub fn unshare(&self, name: DirectoryName, tenant: TenantName) -> Awaited<'_, E, C, ()> {
        self.ask(Ok(Request::Unshare { name, tenant }), ended)
    }

    /// Has an object belong to another one, its head: it is shared as the head is.
    pub fn include(&self, member: ObjectRef, head: ObjectRef) -> Awaited<'_, E, C, ()> {
        self.ask(Ok(Request::Include { member, head }), ended)
    }

    /// Asks for the object with a name. `owner`: the tenant that shares it; `None`: the client's own.
    pub fn lookup(&self, owner: Option<TenantName>, name: DirectoryName) -> Awaited<'_, E, C, NamedObject> {
        self.ask(Ok(Request::Lookup { owner, name }), |done| match done {
            Done::Entry(entry) => Some(entry),
            _ => None,
        })
    }

    fn ask<T>(
        &self,
        request: Result<Request<E::Memory>, Error>,
        result: fn(Done<E::Memory>) -> Option<T>,
    ) -> Awaited<'_, E, C, T> {
        Awaited { pipeline: self, request: self.core.borrow_mut().ask(request), result }
    }

    /// Waits for `time`.
    pub async fn sleep(&self, time: Lifetime) {
        let until = self.now().after(time);
        Sleep::new(self, until).await;
    }

    /// Waits until something that this pipeline asked for has ended, or [`Pipeline::wake_waiting`] is called.
    pub async fn anything(&self) {
        let mut asked = false;
        std::future::poll_fn(|_| {
            if std::mem::replace(&mut asked, true) {
                return Poll::Ready(());
            }
            let mut core = self.core.borrow_mut();
            let task = core.current;
            core.watchers.push(task);
            Poll::Pending
        })
        .await;
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

    /// Carries one operation out. `None`: the pipeline was halted, and the operation waits for what is not posted.
    pub fn drive<T>(&self, mut operation: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        let mut context = Context::from_waker(Waker::noop());
        self.core.borrow_mut().ready.push(0);
        self.core.borrow_mut().begin_round();
        loop {
            while self.next_ready().is_some() {
                if let Poll::Ready(result) = operation.as_mut().poll(&mut context) {
                    self.core.borrow_mut().flush();
                    return Some(result);
                }
            }
            if !self.core.borrow_mut().wait() {
                return None;
            }
        }
    }

    /// Carries operations out, up to `depth` of them at once, and hands each result to `each`. Stops early where the
    /// pipeline was halted.
    pub fn run<F: Future>(
        &self,
        depth: usize,
        operations: impl IntoIterator<Item = F>,
        mut each: impl FnMut(F::Output),
    ) {
        let mut context = Context::from_waker(Waker::noop());
        let mut left = operations.into_iter();
        let mut places: Vec<Pin<Box<F>>> = left.by_ref().take(depth.max(1)).map(Box::pin).collect();
        let mut busy = vec![true; places.len()];
        let mut under_way = places.len();
        for task in 0..places.len() {
            self.core.borrow_mut().ready.push(task);
        }
        self.core.borrow_mut().begin_round();
        while under_way > 0 {
            while let Some(task) = self.next_ready() {
                // An earlier run may have left tasks that waited for anything to end.
                if !busy.get(task).is_some_and(|busy| *busy) {
                    continue;
                }
                while let Poll::Ready(result) = places[task].as_mut().poll(&mut context) {
                    each(result);
                    let Some(next) = left.next() else {
                        busy[task] = false;
                        under_way -= 1;
                        break;
                    };
                    // The place keeps its memory: an operation costs no allocation of its own.
                    places[task].set(next);
                }
            }
            if under_way > 0 && !self.core.borrow_mut().wait() {
                return;
            }
        }
        self.core.borrow_mut().flush();
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

/// Waits for several requests. All of them are asked for at once. The results are in the requests' order.
pub(crate) async fn all<T>(
    requests: impl IntoIterator<Item: Future<Output = Result<T, Error>>>,
) -> Result<Vec<T>, Error> {
    let under_way: Vec<_> = requests.into_iter().collect();
    let mut results = Vec::with_capacity(under_way.len());
    for request in under_way {
        results.push(request.await?);
    }
    Ok(results)
}

/// Carries several operations out at once, as one. The results are in the operations' order.
pub(crate) async fn join<F: Future>(operations: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut under_way: Vec<_> = operations.into_iter().map(|operation| Some(Box::pin(operation))).collect();
    let mut results: Vec<Option<F::Output>> = under_way.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (operation, result) in under_way.iter_mut().zip(&mut results) {
            if let Some(running) = operation
                && let Poll::Ready(done) = running.as_mut().poll(context)
            {
                *result = Some(done);
                *operation = None;
            }
        }
        if results.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    results.into_iter().flatten().collect()
}

fn granted<M: Memory>(done: Done<M>) -> Option<BarePermission> {
    match done {
        Done::Granted(permission) => Some(permission),
        _ => None,
    }
}

fn ended<M: Memory>(done: Done<M>) -> Option<()> {
    matches!(done, Done::Ended).then_some(())
}

/// The tasks to go on with, each once.
#[derive(Default)]
struct Ready {
    tasks: VecDeque<Task>,
    listed: Vec<bool>,
}

impl Ready {
    #[inline]
    fn push(&mut self, task: Task) {
        if task >= self.listed.len() {
            self.listed.resize(task + 1, false);
        }
        if !std::mem::replace(&mut self.listed[task], true) {
            self.tasks.push_back(task);
        }
    }

    #[inline]
    fn pop(&mut self) -> Option<Task> {
        let task = self.tasks.pop_front()?;
        self.listed[task] = false;
        Some(task)
    }
}

/// A request, as its future sees it.
struct Entry<M: Memory> {
    task: Task,
    /// Nobody awaits it any more.
    forgotten: bool,
    result: Option<Result<Done<M>, Error>>,
}

struct Core<E: VerbsEndpoint, C: Clock> {
    session: Session<E, C>,
    now: Moment,
    entries: Slots<u64, Entry<E::Memory>>,
    outbox: Outbox<E::Memory>,
    /// Which request an operation is for, by the operation's place.
    by_place: Vec<u64>,
    calls: Vec<(Call, u64)>,
    outcomes: Vec<(Operation, Outcome<E::Memory>)>,
    current: Task,
    ready: Ready,
    timers: Timers,
    /// Tasks that wait for anything to end.
    watchers: Vec<Task>,
    posts_left: Option<u64>,
    look_for_node_at: Moment,
}

impl<E: VerbsEndpoint, C: Clock> Core<E, C> {
    #[inline]
    fn ask(&mut self, request: Result<Request<E::Memory>, Error>) -> u64 {
        let mut entry = Entry { task: self.current, forgotten: false, result: None };
        match request {
            Ok(request) => {
                let id = self.entries.insert(entry);
                self.outbox.push(id, request);
                id
            }
            Err(error) => {
                entry.result = Some(Err(error));
                self.entries.insert(entry)
            }
        }
    }

    #[inline]
    fn take(&mut self, id: u64) -> Option<Result<Done<E::Memory>, Error>> {
        let entry = self.entries.get_mut(id)?;
        match entry.result.take() {
            Some(result) => {
                self.entries.remove(id);
                Some(result)
            }
            None => {
                entry.task = self.current;
                None
            }
        }
    }

    #[inline]
    fn forget(&mut self, id: u64) {
        let Some(entry) = self.entries.get_mut(id) else { return };
        if entry.result.is_some() {
            self.entries.remove(id);
        } else {
            entry.forgotten = true;
        }
    }

    fn begin_round(&mut self) {
        self.now = self.session.now();
        // The waits of a busy pipeline are too short to notice it.
        if self.now >= self.look_for_node_at {
            self.session.look_for_node();
            self.look_for_node_at = self.now.after(NODE_LOOKED_FOR_EVERY);
        }
    }

    /// Posts what was asked for, as far as the queues have room.
    fn flush(&mut self) {
        if self.outbox.is_empty() || self.posts_left == Some(0) {
            return;
        }
        let (outbox, now) = (&mut self.outbox, self.now);
        let client = self.session.client();
        let mut room = Room::of(client);
        let mut batch = client.batch();
        for kind in Kind::ALL {
            while self.posts_left != Some(0)
                && let Some((id, request)) = outbox.pop(kind, &mut room)
            {
                let result = match request.post(&mut batch, now) {
                    Posted::Begun(Begun::Operation(operation)) => {
                        let place = operation.place();
                        if place >= self.by_place.len() {
                            self.by_place.resize(place + 1, 0);
                        }
                        self.by_place[place] = id;
                        Ok(())
                    }
                    Posted::Begun(Begun::Call(call)) => {
                        self.calls.push((call, id));
                        Ok(())
                    }
                    Posted::Full(request) => {
                        outbox.put_back(kind, id, request);
                        break;
                    }
                    Posted::Failed(error) => Err(error),
                };
                match result {
                    Err(error) => settle(&mut self.entries, &mut self.ready, id, Err(error)),
                    Ok(()) => self.posts_left = self.posts_left.map(|left| left - 1),
                }
            }
        }
        batch.post();
    }

    /// Posts, and waits until there is a task to go on with, in a new round. Returns `false` where none can be: the pipeline is
    /// halted.
    fn wait(&mut self) -> bool {
        loop {
            self.flush();
            if !self.ready.tasks.is_empty() {
                return true;
            }
            match self.wait_for_something() {
                Waited::SomethingEnded => self.begin_round(),
                Waited::Halted => return false,
            }
        }
    }

    /// Waits until a task can go on, or until there may be room in the queues for what waits.
    fn wait_for_something(&mut self) -> Waited {
        let clock = self.session.clock().clone();
        let halted = self.posts_left == Some(0);
        let Self { session, entries, by_place, calls, outcomes, outbox, ready, timers, watchers, .. } = self;
        let timer = timers.next();
        let again = (!outbox.is_empty() && !halted).then(|| clock.now().after(ROOM_WITHIN));
        let by = timer.into_iter().chain(again).min();
        let waited = session.wait_until_by(by.unwrap_or(Moment(u64::MAX)), |client| {
            let ended = take_outcomes(client, outcomes, by_place, entries, ready)
                + take_answers(client, calls, entries, ready);
            let is_time = by.is_some_and(|by| clock.now() >= by);
            if is_time {
                timers.wake(clock.now(), ready);
            }
            // Also after a timer: the operation that a watcher waits for may have been dropped.
            if ended > 0 || !ready.tasks.is_empty() {
                watchers.drain(..).for_each(|task| ready.push(task));
            }
            if halted && ready.tasks.is_empty() && client.pending() == 0 && timers.is_empty() {
                return Some(Waited::Halted);
            }
            // What has ended may have had no task: its future was dropped.
            let has_room = again.is_some() && (ended > 0 || is_time);
            (has_room || !ready.tasks.is_empty()).then_some(Waited::SomethingEnded)
        });
        waited.unwrap_or_else(|_| {
            // The session is over: whatever waits has to learn it.
            self.timers.wake_all(&mut self.ready);
            self.watchers.drain(..).for_each(|task| self.ready.push(task));
            Waited::SomethingEnded
        })
    }
}

/// What a wait has come to.
enum Waited {
    /// Something has ended, or a time has come.
    SomethingEnded,
    /// The pipeline is halted, and nothing is under way.
    Halted,
}

/// Takes the outcomes of operations. Returns how many there were.
#[inline]
fn take_outcomes<E: VerbsEndpoint>(
    client: &mut Client<E>,
    outcomes: &mut Vec<(Operation, Outcome<E::Memory>)>,
    by_place: &[u64],
    entries: &mut Slots<u64, Entry<E::Memory>>,
    ready: &mut Ready,
) -> usize {
    client.drain(outcomes);
    let count = outcomes.len();
    for (operation, Outcome { buffer, result }) in outcomes.drain(..) {
        let done = result.map(|word| buffer.map_or(Done::Word(word), Done::Buffer));
        settle(entries, ready, by_place[operation.place()], done);
    }
    count
}

/// Takes the answers to calls. Returns how many there were.
fn take_answers<E: VerbsEndpoint>(
    client: &mut Client<E>,
    calls: &mut Vec<(Call, u64)>,
    entries: &mut Slots<u64, Entry<E::Memory>>,
    ready: &mut Ready,
) -> usize {
    let before = calls.len();
    calls.retain(|&(call, id)| {
        let Some(answer) = client.take_call(call) else { return true };
        let done = answer.map(|answer| match answer {
            Answer::Granted(permission) => Done::Granted(permission),
            Answer::Entry(entry) => Done::Entry(entry),
            Answer::Extended(_) | Answer::EndOfList | Answer::Done => Done::Ended,
        });
        settle(entries, ready, id, done);
        false
    });
    before - calls.len()
}

/// Notes what came of a request, and that its task can go on.
#[inline]
fn settle<M: Memory>(
    entries: &mut Slots<u64, Entry<M>>,
    ready: &mut Ready,
    id: u64,
    result: Result<Done<M>, Error>,
) {
    let entry = entries.get_mut(id).expect("a request stays until it has ended");
    if entry.forgotten {
        entries.remove(id);
        return;
    }
    entry.result = Some(result);
    ready.push(entry.task);
}
