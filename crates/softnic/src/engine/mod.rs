//! The thread that drives a NIC, and what lives on it.
//!
//! One thread turns the NIC and its resident (the memory node) in turn, so that neither needs a lock. Others hand it
//! closures ([`Engine::call`]). It spins while there is work, then yields, then sleeps; what it may not do is decide
//! anything about requests.

mod idle;
mod turn_times;

pub use idle::Idle;
pub use turn_times::{ThreadTime, TurnCounts, TurnTimes};

use crate::nic::SoftNic;
use portcullis_memory::Waker;
use portcullis_protocol::Moment;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Instant;

/// Turns of the NIC for each turn of its resident while neither has anything to do: what the resident costs is
/// added to the latency of the next request.
const TURNS_PER_RESIDENT: u32 = 4;
/// Turns between two looks at the clock while nothing happens.
const TURNS_PER_CLOCK: u32 = 8;

/// What shares the engine's thread with the NIC.
pub trait Resident: Send + 'static {
    /// Does what there is to do. Returns whether anything was done.
    fn turn(&mut self, nic: &mut SoftNic, now: Moment) -> bool;

    /// The next moment at which it wants a turn without being asked.
    fn next_wake(&self) -> Option<Moment>;

    /// The engine ends: take down what is on the NIC.
    fn end(&mut self, nic: &mut SoftNic, now: Moment);
}

/// A NIC that lives alone.
impl Resident for () {
    fn turn(&mut self, _: &mut SoftNic, _: Moment) -> bool {
        false
    }

    fn next_wake(&self) -> Option<Moment> {
        None
    }

    fn end(&mut self, _: &mut SoftNic, _: Moment) {}
}

type Command<R> = Box<dyn FnOnce(&mut SoftNic, &mut R, Moment) + Send>;

/// The engine's thread has ended.
#[derive(Debug, thiserror::Error, Clone, Copy, PartialEq, Eq)]
#[error("the node's engine has ended")]
pub struct EngineGone;

/// How an engine runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct EngineOptions {
    /// The processor that its thread stays on.
    pub processor: Option<usize>,
    /// Moment 0 of its time. Without: when it is started.
    pub zero: Option<Instant>,
}

/// A NIC and its resident, on a thread of their own. Clones are handles to the same one; it ends when
/// [`Engine::stop`] is called or the last handle goes.
#[derive(Debug)]
pub struct Engine<R> {
    shared: Arc<Shared<R>>,
}

impl<R> Clone for Engine<R> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

#[derive(Debug)]
struct Shared<R> {
    commands: Sender<Command<R>>,
    signals: Arc<Signals>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Signals {
    waker: Waker,
    pending: AtomicUsize,
    stop: AtomicBool,
    over: Arc<AtomicBool>,
    turn_times: TurnTimes,
}

impl<R> Drop for Shared<R> {
    fn drop(&mut self) {
        self.halt();
    }
}

impl<R> Shared<R> {
    fn halt(&self) {
        self.signals.stop.store(true, Ordering::Release);
        self.signals.waker.wake();
        let thread = self.thread.lock().ok().and_then(|mut thread| thread.take());
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            // Its panic, if it had one, is printed already; here it only means that it has ended.
            let _ = thread.join();
        }
    }
}

impl<R: Resident> Engine<R> {
    /// Starts the thread.
    ///
    /// # Errors
    /// The machine refuses a thread, an event or a page.
    pub fn start(nic: SoftNic, resident: R, options: EngineOptions) -> std::io::Result<Self> {
        let waker = Waker::new().map_err(std::io::Error::other)?;
        let (commands, receiver) = channel();
        let signals = Arc::new(Signals {
            waker,
            pending: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            over: Arc::new(AtomicBool::new(false)),
            turn_times: TurnTimes::default(),
        });
        let driver = Driver {
            nic,
            resident,
            commands: receiver,
            signals: Arc::clone(&signals),
            zero: options.zero.unwrap_or_else(Instant::now),
        };
        let thread = std::thread::Builder::new().name("portcullis-nic".to_owned()).spawn(move || {
            if let Some(processor) = options.processor {
                pin(processor);
            }
            driver.run();
        })?;
        Ok(Self { shared: Arc::new(Shared { commands, signals, thread: Mutex::new(Some(thread)) }) })
    }

    /// Has the engine's thread run `work` between two turns, and returns what it returned.
    ///
    /// # Errors
    /// The engine has ended.
    pub fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut SoftNic, &mut R, Moment) -> T + Send + 'static,
    ) -> Result<T, EngineGone> {
        let (answer, result) = sync_channel(1);
        let command: Command<R> = Box::new(move |nic, resident, now| {
            // The caller waits for the answer; if its thread died meanwhile, nobody misses it.
            let _ = answer.send(work(nic, resident, now));
        });
        self.shared.signals.pending.fetch_add(1, Ordering::SeqCst);
        self.shared.commands.send(command).map_err(|_| EngineGone)?;
        self.shared.signals.waker.wake();
        result.recv().map_err(|_| EngineGone)
    }

    /// What wakes the engine.
    #[must_use]
    pub fn waker(&self) -> &Waker {
        &self.shared.signals.waker
    }

    /// Set once the engine has ended.
    #[must_use]
    pub fn over(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.shared.signals.over)
    }

    /// How long its turns took: with work in them, and from the middle of each to the middle of the next. What else
    /// kept its thread from running counts as well.
    #[must_use]
    pub fn turn_times(&self) -> TurnCounts {
        self.shared.signals.turn_times.counts()
    }

    /// Ends the engine and waits until it has.
    pub fn stop(&self) {
        self.shared.halt();
    }
}

/// Keeps the calling thread on one processor, if the machine lets it.
pub fn pin(processor: usize) {
    let mut set = rustix::thread::CpuSet::new();
    if processor >= rustix::thread::CpuSet::MAX_CPU {
        tracing::warn!(processor, "no such processor: the thread is not pinned");
        return;
    }
    set.set(processor);
    if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
        tracing::warn!(processor, %error, "cannot pin the thread");
    }
}

struct Driver<R> {
    nic: SoftNic,
    resident: R,
    commands: Receiver<Command<R>>,
    signals: Arc<Signals>,
    zero: Instant,
}

/// Says that the engine is over, however its thread ends.
struct Over(Arc<AtomicBool>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

impl<R: Resident> Driver<R> {
    fn run(mut self) {
        let _over = Over(Arc::clone(&self.signals.over));
        let mut idle = Idle::default();
        let mut now = self.now();
        let (mut turns, mut resident_worked) = (0u32, false);
        // Something was done since the clock was read.
        let mut busy = false;
        let mut thread = ThreadTime::default();
        while !self.signals.stop.load(Ordering::Acquire) {
            turns = turns.wrapping_add(1);
            let mut worked = self.nic.turn();
            if worked || resident_worked || turns.is_multiple_of(TURNS_PER_RESIDENT) {
                if worked || turns.is_multiple_of(TURNS_PER_CLOCK) {
                    let before = std::mem::replace(&mut now, self.now());
                    if busy || worked {
                        self.signals.turn_times.record(now.since(before), &mut thread);
                        busy = false;
                    }
                }
                resident_worked = self.resident.turn(&mut self.nic, now) | self.run_commands(now);
                worked |= resident_worked;
            }
            busy |= worked;
            if worked {
                idle.reset();
            } else if idle.spin_or_yield(now) {
                self.sleep();
                idle.reset();
                now = self.now();
            } else if !idle.is_spinning() {
                // What others did meanwhile is no turn of ours.
                now = self.now();
            }
        }
        let now = self.now();
        self.resident.end(&mut self.nic, now);
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
            command(&mut self.nic, &mut self.resident, now);
            ran = true;
        }
        ran
    }

    /// Says that it sleeps, looks everywhere once more, and only then does: whoever posted before the look is seen,
    /// whoever posts after it wakes us.
    fn sleep(&mut self) {
        self.signals.waker.announce();
        let now = self.now();
        let worked = self.nic.turn_all() | self.resident.turn(&mut self.nic, now) | self.run_commands(now);
        if !worked && !self.signals.stop.load(Ordering::Acquire) {
            let at_most = idle::sleep_for(now, self.resident.next_wake(), self.nic.waits_for_time());
            self.signals.waker.sleep(at_most);
        }
        self.signals.waker.awake();
    }
}
