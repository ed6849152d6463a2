//! The thread that runs a node and its NIC.
//!
//! One thread runs the NIC and its resident (the memory node) in turn, so that neither needs a lock. Other threads hand
//! it closures ([`Engine::call`]). The thread spins while there is work, then yields, then sleeps. Its interface to a
//! NIC is the [`Driver`]. The engine decides nothing about requests, clients or permissions.

mod driver;
mod idle;
#[cfg(test)]
mod tests;
mod turn_times;

pub(crate) use driver::{Bell, Driver};
pub(crate) use turn_times::TurnCounts;

use portcullis_errors::{Coded, ErrorCode};
use portcullis_memory::{Crowd, Idle, pin};
use portcullis_protocol::Moment;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use turn_times::{ThreadTime, TurnTimes};

/// The component that shares the engine's thread with the NIC.
pub(crate) trait Resident<N>: Send + 'static {
    /// Does the work that is due. Returns whether anything was done.
    fn turn(&mut self, nic: &mut N, now: Moment) -> bool;

    /// Returns the action that the thread carries out if it dies of a panic. At that time the resident has been dropped
    /// and every call returns [`EngineGone`].
    fn on_panic(&self) -> Box<dyn FnOnce() + Send>;

    /// The next moment at which the resident needs a turn without being called.
    fn next_wake(&self) -> Option<Moment>;

    /// Removes the resident's objects from the NIC, since the engine ends.
    fn end(&mut self, nic: &mut N, now: Moment);
}

type Command<D, R> = Box<dyn FnOnce(&mut <D as Driver>::Nic, &mut R, Moment) + Send>;

/// The engine's thread has ended.
#[derive(Debug, thiserror::Error, Clone, Copy, PartialEq, Eq)]
#[error("the node has ended")]
pub struct EngineGone;

impl Coded for EngineGone {
    fn code(&self) -> ErrorCode {
        ErrorCode::NodeEnded
    }
}

/// The options of an engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EngineOptions {
    /// The processor to which the thread is pinned.
    pub processor: Option<usize>,
    /// Moment 0 of the engine's time.
    pub zero: Instant,
}

/// A NIC and its resident, on a thread of their own. Clones are handles to the same engine. It ends when
/// [`Engine::stop`] is called or the last handle is dropped.
pub(crate) struct Engine<D: Driver, R> {
    handle: Arc<Handle<D, R>>,
}

impl<D: Driver, R> Clone for Engine<D, R> {
    fn clone(&self) -> Self {
        Self { handle: Arc::clone(&self.handle) }
    }
}

impl<D: Driver, R> fmt::Debug for Engine<D, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

struct Handle<D: Driver, R> {
    commands: Sender<Command<D, R>>,
    signals: Arc<Signals>,
    bell: D::Bell,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct Signals {
    /// Commands that the thread has not taken yet.
    pending: AtomicUsize,
    stop: AtomicBool,
    turn_times: TurnTimes,
}

impl<D: Driver, R> Handle<D, R> {
    /// Ends the thread, and waits until it has ended.
    ///
    /// # Errors
    /// The thread has panicked. Only the first call returns this error.
    fn halt(&self) -> std::thread::Result<()> {
        self.signals.stop.store(true, Ordering::Release);
        self.bell.ring();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        match thread {
            Some(thread) if thread.thread().id() != std::thread::current().id() => thread.join(),
            _ => Ok(()),
        }
    }
}

impl<D: Driver, R> Drop for Handle<D, R> {
    fn drop(&mut self) {
        // The thread that drops the last handle may have nothing to do with the node's end. A panic was printed
        // already.
        let _ = self.halt();
    }
}

impl<D: Driver, R: Resident<D::Nic>> Engine<D, R> {
    /// Starts the thread.
    ///
    /// # Errors
    /// The machine cannot start a thread.
    pub fn start(driver: D, resident: R, options: EngineOptions) -> std::io::Result<Self> {
        let (commands, receiver) = channel();
        let signals = Arc::<Signals>::default();
        let bell = driver.bell();
        let thread = EngineThread {
            resident,
            driver,
            commands: receiver,
            signals: Arc::clone(&signals),
            zero: options.zero,
            // A thread that is pinned has its processor for itself. The crowd is made here, so that a node that has
            // started opens no more files.
            crowd: options.processor.map_or_else(Crowd::new, |_| Crowd::none()),
        };
        let on_panic = thread.resident.on_panic();
        let thread = std::thread::Builder::new().name("portcullis-node".to_owned()).spawn(move || {
            if let Some(processor) = options.processor {
                pin(processor);
            }
            // The state that a panic leaves half changed is dropped before any other thread sees it.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| thread.run())) {
                on_panic();
                resume_unwind(panic);
            }
        })?;
        let thread = Mutex::new(Some(thread));
        Ok(Self { handle: Arc::new(Handle { commands, signals, bell, thread }) })
    }

    /// Runs `work` on the engine's thread between two turns, and returns its result.
    ///
    /// # Errors
    /// The engine has ended.
    pub fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut D::Nic, &mut R, Moment) -> T + Send + 'static,
    ) -> Result<T, EngineGone> {
        let (answer, result) = sync_channel(1);
        self.post(move |nic, resident, now| {
            // If the caller's thread has died, the answer is not needed.
            let _ = answer.send(work(nic, resident, now));
        })?;
        result.recv().map_err(|_| EngineGone)
    }

    /// Hands `work` to the engine's thread without waiting for it. Closures run in the order in which they are handed
    /// over.
    ///
    /// # Errors
    /// The engine has ended.
    pub fn post(
        &self,
        work: impl FnOnce(&mut D::Nic, &mut R, Moment) + Send + 'static,
    ) -> Result<(), EngineGone> {
        let Handle { commands, signals, bell, .. } = &*self.handle;
        signals.pending.fetch_add(1, Ordering::SeqCst);
        commands.send(Box::new(work)).map_err(|_| EngineGone)?;
        bell.ring();
        Ok(())
    }

    /// Durations of the thread's turns with work: from one turn of the resident to the next, with the turns of the NIC
    /// between them. Time in which other programs kept the thread from running counts as well.
    pub fn turn_times(&self) -> TurnCounts {
        self.handle.signals.turn_times.counts()
    }

    /// Ends the engine, and waits until it has ended.
    ///
    /// # Errors
    /// The engine's thread has panicked. Only the first call returns this error.
    pub fn stop(&self) -> std::thread::Result<()> {
        self.handle.halt()
    }
}

struct EngineThread<D: Driver, R> {
    resident: R,
    driver: D,
    commands: Receiver<Command<D, R>>,
    signals: Arc<Signals>,
    zero: Instant,
    crowd: Crowd,
}

impl<D: Driver, R: Resident<D::Nic>> EngineThread<D, R> {
    fn run(mut self) {
        let mut idle = Idle::default();
        let mut now = self.now();
        let (mut turns, mut resident_worked) = (0u32, false);
        // `busy`: something was done since the clock was last read. `nic_worked`: the NIC did some of it.
        let (mut busy, mut nic_worked) = (false, false);
        let mut thread = ThreadTime::default();
        while !self.signals.stop.load(Ordering::Acquire) {
            turns = turns.wrapping_add(1);
            let mut worked = self.driver.turn();
            (busy, nic_worked) = (busy | worked, nic_worked | worked);
            // The resident has no part in one-sided accesses, and while it takes a turn the next access waits.
            let has_news = worked && self.driver.has_news();
            if has_news || resident_worked || turns.is_multiple_of(D::TURNS_PER_RESIDENT) {
                if std::mem::take(&mut nic_worked) || turns.is_multiple_of(D::TURNS_PER_CLOCK) {
                    let before = std::mem::replace(&mut now, self.now());
                    if std::mem::take(&mut busy) {
                        self.signals.turn_times.record(now.since(before), &mut thread);
                    }
                }
                resident_worked = self.resident.turn(self.driver.nic(), now) | self.run_commands(now);
                worked |= resident_worked;
            }
            busy |= worked;
            if !worked {
                idle.look_for(&self.crowd);
            }
            if worked {
                idle.reset();
            } else if !idle.spin_or_yield(|| Duration::from_micros(now.0)) {
                if !idle.is_spinning() {
                    // Time in which other threads ran does not count as a turn.
                    now = self.now();
                }
            } else if let Some(worked) = self.driver.sleep_briefly() {
                // The resident's turn is due, whatever the NIC has done meanwhile.
                (now, resident_worked) = (self.now(), true);
                if worked {
                    (busy, nic_worked) = (true, true);
                    idle.reset();
                }
            } else {
                // The work done since the sleep counts as a turn.
                now = self.sleep();
                (busy, nic_worked) = (true, true);
                idle.reset();
            }
        }
        let now = self.now();
        self.resident.end(self.driver.nic(), now);
    }

    fn now(&self) -> Moment {
        Moment(u64::try_from(self.zero.elapsed().as_micros()).unwrap_or(u64::MAX))
    }

    fn run_commands(&mut self, now: Moment) -> bool {
        if self.signals.pending.load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut ran = false;
        while let Ok(command) = self.commands.try_recv() {
            self.signals.pending.fetch_sub(1, Ordering::AcqRel);
            command(self.driver.nic(), &mut self.resident, now);
            ran = true;
        }
        ran
    }

    /// Sleeps until there was something to do, or the engine is to stop. The thread announces each sleep and then
    /// checks all sources of work once more: it sees work that was posted before the check, and the poster rings for
    /// work that is posted after it. If the thread wakes and finds no work, it sleeps again at once, without spinning
    /// first: an idle node costs nothing. Returns the moment at which the last check began.
    fn sleep(&mut self) -> Moment {
        let looked = loop {
            self.driver.announce();
            let now = self.now();
            let worked =
                self.driver.turn_all() | self.resident.turn(self.driver.nic(), now) | self.run_commands(now);
            if worked || self.signals.stop.load(Ordering::Acquire) {
                break now;
            }
            let at_most = idle::sleep_for(now, self.resident.next_wake(), self.driver.waits_for_time());
            self.driver.sleep(at_most);
        };
        self.driver.awake();
        looked
    }
}
