//! The state of a pipeline: its session, the requests under way on it, and the operations that can go on.

mod look;

use super::Task;
use super::awaited::{Asked, done_of};
use super::buffers::Buffers;
use super::limited::LOOKS;
use super::outbox::{Kind, Outbox, Room};
use super::places::{Places, Waiter};
use super::requests::{Done, Posted, Request, SharedAccess};
use super::timers::Timers;
use portcullis::{
    Access, Answer, BarePermission, Batch, Begun, Buffer, Call, Client, Clock, Effect, Error, Lifetime,
    Memory, Moment, NotBegun, Operation, Outcome, Session, VerbsEndpoint,
};
use portcullis_slots::{Reuse, Slots};
use std::collections::VecDeque;
use std::rc::Rc;

/// Largest number of requests of a pipeline whose results were not taken.
const REQUESTS_MAX: u32 = 1 << 20;

/// Time after which a request that found its queue full is posted again, if no request of this pipeline ends before: a
/// queue pair may be rebuilt, or a message may be taken, and neither is reported to the pipeline.
const ROOM_WITHIN: Lifetime = Lifetime::micros(20);

/// Largest number of accesses that are posted with one doorbell.
const POSTED_TOGETHER: usize = 16;

/// Time after which a pipeline checks again whether its node is still there.
const NODE_LOOKED_FOR_EVERY: Lifetime = Lifetime::millis(20);

/// The tasks to go on with, each once.
#[derive(Default)]
pub(super) struct Ready {
    tasks: VecDeque<Task>,
    listed: Vec<bool>,
}

impl Ready {
    #[inline]
    pub fn push(&mut self, task: Task) {
        if task >= self.listed.len() {
            self.listed.resize(task + 1, false);
        }
        if !std::mem::replace(&mut self.listed[task], true) {
            self.tasks.push_back(task);
        }
    }

    #[inline]
    pub fn pop(&mut self) -> Option<Task> {
        let task = self.tasks.pop_front()?;
        self.listed[task] = false;
        Some(task)
    }

    /// Adds all tasks that there have been.
    fn push_all(&mut self) {
        (0..self.listed.len()).for_each(|task| self.push(task));
    }
}

/// A request, as its future sees it.
struct Entry<M: Memory> {
    task: Task,
    /// Whether no task awaits the request any more.
    forgotten: bool,
    entered: Moment,
    result: Option<Result<Done<M>, Error>>,
}

/// A call under way.
struct UnderWay {
    call: Call,
    /// The number of its entry.
    entry: u64,
    kind: Kind,
}

pub(super) struct Core<E: VerbsEndpoint, C: Clock> {
    pub session: Session<E, C>,
    pub now: Moment,
    /// Calls, and accesses that could not be begun at once.
    entries: Slots<u64, Entry<E::Memory>>,
    places: Places<E::Memory>,
    outbox: Outbox<E::Memory>,
    /// Number of accesses that the client holds, to be posted with one doorbell.
    staged: usize,
    pub buffers: Buffers<E::Memory>,
    /// Memory for bytes that are used as soon as they are read.
    pub scratch: Vec<u8>,
    calls: Vec<UnderWay>,
    /// Accesses that have ended and whose outcomes no task awaits, while they are taken.
    to_take: Vec<(Operation, Waiter)>,
    pub current: Task,
    pub ready: Ready,
    pub timers: Timers,
    /// Tasks that wait for any request to end.
    pub watchers: Vec<Task>,
    pub posts_left: Option<u64>,
    look_for_node_at: Moment,
    /// Time at which the limits of operations are checked next.
    limits_at: Moment,
    /// Number of steps that the operations of each task have noted.
    steps: Vec<u64>,
}

impl<E: VerbsEndpoint, C: Clock> Core<E, C> {
    pub fn new(session: Session<E, C>) -> Self {
        let now = session.now();
        Self {
            session,
            now,
            entries: Slots::new(Reuse::LatestFirst, REQUESTS_MAX),
            places: Places::default(),
            outbox: Outbox::default(),
            staged: 0,
            buffers: Buffers::default(),
            scratch: Vec::new(),
            calls: Vec::new(),
            to_take: Vec::new(),
            current: 0,
            ready: Ready::default(),
            timers: Timers::default(),
            watchers: Vec::new(),
            posts_left: None,
            look_for_node_at: now,
            limits_at: now,
            steps: Vec::new(),
        }
    }

    /// Takes a buffer for an access.
    #[inline]
    pub fn buffer(&mut self, length: u32) -> Result<Buffer<E::Memory>, Error> {
        let session = &self.session;
        self.buffers.take(length, |length| session.buffer(length))
    }

    /// Begins an access, which is posted with the others of this round. If there is no room, the access waits.
    #[inline(always)]
    pub fn begin(&mut self, access: Access<&Rc<BarePermission>, E::Memory>) -> Asked {
        if self.outbox.has_accesses() || self.posts_left == Some(0) {
            return self.enter_access(access.map_permission(Rc::clone));
        }
        let mut batch = self.session.client().resume_batch();
        // The refusal is passed on at once: kept until after the post, it would be copied for each access.
        let operation = match batch.access(self.now, access) {
            Ok(operation) => operation,
            Err(refused) => {
                batch.set_aside();
                return self.enter_refused(refused);
            }
        };
        keep_or_post(batch, &mut self.staged);
        self.note_begun(operation)
    }

    /// Notes an access that the present task has begun.
    #[inline(always)]
    fn note_begun(&mut self, operation: Operation) -> Asked {
        self.places.begin(operation, Waiter::Task(self.current));
        self.posts_left = self.posts_left.map(|left| left - 1);
        Asked::Begun(operation)
    }

    /// Begins two accesses, the second of which is carried out only if the first one is. `None`: the second one has not
    /// begun, since there is no room, or since it goes no way on which one access can depend on another.
    pub fn begin_linked(
        &mut self,
        first: Access<&Rc<BarePermission>, E::Memory>,
        second: Access<&Rc<BarePermission>, E::Memory>,
    ) -> (Asked, Option<Asked>) {
        if self.staged + 2 > POSTED_TOGETHER {
            // Both go with one doorbell: the second one must be directly behind the first.
            self.session.client().resume_batch().post();
            self.staged = 0;
        }
        let first = self.begin(first);
        let Asked::Begun(before) = first else { return (first, None) };
        if self.posts_left == Some(0) {
            return (first, None);
        }
        let mut batch = self.session.client().resume_batch();
        let Ok(operation) = batch.access_behind(self.now, before, second) else {
            batch.set_aside();
            return (first, None);
        };
        keep_or_post(batch, &mut self.staged);
        (first, Some(self.note_begun(operation)))
    }

    #[cold]
    fn enter_refused(&mut self, refused: NotBegun<Access<&Rc<BarePermission>, E::Memory>>) -> Asked {
        match refused.error {
            Error::QueueFull { .. } => self.enter_access(refused.ask.map_permission(Rc::clone)),
            error => self.enter_failed(error),
        }
    }

    #[cold]
    fn enter_access(&mut self, access: SharedAccess<E::Memory>) -> Asked {
        Asked::Entered(self.enter(Request::new(access)))
    }

    /// Enters a request that is to be posted at the end of the round, or when there is room.
    pub fn enter(&mut self, request: Request<E::Memory>) -> u64 {
        let id = self.entries.insert(self.new_entry(None));
        self.outbox.push(id, request);
        id
    }

    fn new_entry(&self, result: Option<Result<Done<E::Memory>, Error>>) -> Entry<E::Memory> {
        Entry { task: self.current, forgotten: false, entered: self.now, result }
    }

    /// Enters the result of a request that has failed at once.
    #[cold]
    pub fn enter_failed(&mut self, error: Error) -> Asked {
        Asked::Entered(self.entries.insert(self.new_entry(Some(Err(error)))))
    }

    /// Takes the buffer and the word of a successful access, in most cases. `None`: the caller uses
    /// [`Core::take_outcome`] instead.
    #[inline]
    pub fn take_success(&mut self, operation: Operation) -> Option<(Option<Buffer<E::Memory>>, u64)> {
        self.places.take_success(self.session.client(), operation)
    }

    /// Takes the outcome of an access that has begun. `None`: the access is under way.
    pub fn take_outcome(&mut self, operation: Operation) -> Option<Outcome<E::Memory>> {
        self.places.take(self.session.client(), operation, self.current)
    }

    pub fn forget_outcome(&mut self, operation: Operation) {
        self.places.forget(self.session.client(), operation);
    }

    /// Takes the result of a request that was entered. `None`: there is none yet.
    pub fn take_entry(&mut self, id: u64) -> Option<Result<Done<E::Memory>, Error>> {
        let entry = self.entries.get_mut(id).expect("an entry stays until its result is taken");
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

    pub fn forget_entry(&mut self, id: u64) {
        let entry = self.entries.get_mut(id).expect("an entry stays until its result is taken");
        if entry.result.is_some() {
            self.entries.remove(id);
        } else {
            entry.forgotten = true;
        }
    }

    pub fn begin_round(&mut self) {
        self.now = self.session.now();
        // The waits of a busy pipeline are too short to notice the end of the node.
        if self.now >= self.look_for_node_at {
            self.session.look_for_node();
            self.look_for_node_at = self.now.after(NODE_LOOKED_FOR_EVERY);
        }
        if let Some(within) = self.session.within()
            && self.now >= self.limits_at
        {
            self.limits_at = self.now.after(Lifetime((within.0 / LOOKS).max(1)));
            self.look_at_limits(within);
        }
    }

    /// Gives up the requests that the client has had no room for, and makes all operations check their limits.
    #[cold]
    fn look_at_limits(&mut self, within: Lifetime) {
        self.session.client().tick(self.now);
        let (entries, now) = (&mut self.entries, self.now);
        let is_old =
            |id: u64| entries.get(id).is_none_or(|entry: &Entry<_>| now.since(entry.entered) >= within);
        let error = Error::TimedOut { what: "a wait for room in a queue", effect: Effect::Nothing, within };
        for id in self.outbox.take(is_old) {
            settle(entries, &mut self.ready, id, Err(error));
        }
        self.ready.push_all();
    }

    /// Notes that the operations of the present task have made progress.
    pub fn note_step(&mut self) {
        if self.steps.len() <= self.current {
            self.steps.resize(self.current + 1, 0);
        }
        self.steps[self.current] += 1;
    }

    /// Number of steps that the operations of a task have noted.
    #[inline]
    pub fn steps_of(&self, task: Task) -> u64 {
        self.steps.get(task).copied().unwrap_or(0)
    }

    /// Posts the requests, as far as the queues have room.
    #[inline]
    pub fn flush(&mut self) {
        if !self.outbox.is_empty() && self.posts_left != Some(0) {
            self.post_waiting();
        } else if self.staged > 0 {
            self.session.client().resume_batch().post();
        }
        self.staged = 0;
    }

    /// Posts the accesses that are staged, and the requests that have been waiting.
    fn post_waiting(&mut self) {
        let (outbox, now) = (&mut self.outbox, self.now);
        let client = self.session.client();
        if outbox.has_accesses() {
            self.places.make_room(client);
        }
        let waiting = self.calls.iter().filter(|it| it.kind == Kind::Waiting).count();
        let mut room = Room::of(client, waiting);
        let mut batch = client.resume_batch();
        for kind in Kind::ALL {
            while self.posts_left != Some(0)
                && let Some((id, request)) = outbox.pop(kind, &mut room)
            {
                let result = match request.post(&mut batch, now) {
                    Posted::Begun(Begun::Operation(operation)) => {
                        self.places.begin(operation, Waiter::Entry(id));
                        Ok(())
                    }
                    Posted::Begun(Begun::Call(call)) => {
                        self.calls.push(UnderWay { call, entry: id, kind });
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

    /// Posts, and waits until there is a task to go on with, in a new round. Returns `false` if there can be none: the
    /// pipeline is halted.
    pub fn wait(&mut self) -> bool {
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

    /// Waits until a task can go on, or until there may be room in the queues for the requests that wait.
    fn wait_for_something(&mut self) -> Waited {
        let clock = self.session.clock().clone();
        let halted = self.posts_left == Some(0);
        let Self { session, entries, places, calls, to_take, outbox, ready, timers, watchers, .. } = self;
        let timer = timers.next();
        let again = (!outbox.is_empty() && !halted).then(|| clock.now().after(ROOM_WITHIN));
        // A pipeline that is halted needs no limits any more.
        let limits = session.within().filter(|_| !halted).map(|_| self.limits_at);
        let by = timer.into_iter().chain(again).chain(limits).min();
        let waited = session.wait_until_by(by.unwrap_or(Moment(u64::MAX)), |client| {
            let ended = take_ended(client, to_take, places, entries, ready)
                + take_answers(client, calls, entries, ready);
            let is_time = by.is_some_and(|by| clock.now() >= by);
            if is_time {
                timers.wake(clock.now(), ready);
            }
            // Watchers wake also after a timer: the operation that a watcher waits for may have been dropped.
            if ended > 0 || !ready.tasks.is_empty() {
                watchers.drain(..).for_each(|task| ready.push(task));
            }
            if halted && ready.tasks.is_empty() && client.pending() == 0 && timers.is_empty() {
                return Some(Waited::Halted);
            }
            // A request that has ended may have had no task: its future was dropped.
            let has_room = again.is_some() && (ended > 0 || is_time);
            let limits_are_due = is_time && limits.is_some_and(|at| clock.now() >= at);
            (has_room || limits_are_due || !ready.tasks.is_empty()).then_some(Waited::SomethingEnded)
        });
        waited.unwrap_or_else(|_| {
            // The session is over: each waiting task has to return the error.
            self.timers.wake_all(&mut self.ready);
            self.watchers.drain(..).for_each(|task| self.ready.push(task));
            Waited::SomethingEnded
        })
    }
}

/// Keeps a batch that has one access more for further ones, or posts it if it has enough: while the NIC executes the first
/// accesses of a round, the pipeline goes on with the next operations.
#[inline(always)]
fn keep_or_post<E: VerbsEndpoint>(batch: Batch<'_, E>, staged: &mut usize) {
    if *staged + 1 >= POSTED_TOGETHER {
        batch.post();
        *staged = 0;
    } else {
        batch.set_aside();
        *staged += 1;
    }
}

/// The result of a wait.
enum Waited {
    /// A request has ended, or a time has come.
    SomethingEnded,
    /// The pipeline is halted, and nothing is under way.
    Halted,
}

/// Notes which accesses have ended. Returns their number.
#[inline]
fn take_ended<E: VerbsEndpoint>(
    client: &mut Client<E>,
    to_take: &mut Vec<(Operation, Waiter)>,
    places: &mut Places<E::Memory>,
    entries: &mut Slots<u64, Entry<E::Memory>>,
    ready: &mut Ready,
) -> usize {
    let mut count = 0;
    client.drain_ended(|operation| {
        count += 1;
        match places.end(operation) {
            Waiter::Task(task) => ready.push(task),
            waiter => to_take.push((operation, waiter)),
        }
    });
    for (operation, waiter) in to_take.drain(..) {
        let outcome = client.take(operation).expect("an outcome waits until it is taken");
        if let Waiter::Entry(id) = waiter {
            settle(entries, ready, id, done_of(outcome));
        }
    }
    count
}

/// Takes the answers to calls. Returns their number.
fn take_answers<E: VerbsEndpoint>(
    client: &mut Client<E>,
    calls: &mut Vec<UnderWay>,
    entries: &mut Slots<u64, Entry<E::Memory>>,
    ready: &mut Ready,
) -> usize {
    let before = calls.len();
    calls.retain(|&UnderWay { call, entry, .. }| {
        let Some(answer) = client.take_call(call) else { return true };
        let done = answer.map(|answer| match answer {
            Answer::Granted(permission) => Done::Granted(permission),
            Answer::Entry(entry) => Done::Entry(entry),
            Answer::Chunks(terms) => Done::Chunks(terms),
            Answer::Extended(_) | Answer::EndOfList | Answer::Done => Done::Ended,
        });
        settle(entries, ready, entry, done);
        false
    });
    before - calls.len()
}

/// Stores the result of a request, and notes that its task can go on.
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
