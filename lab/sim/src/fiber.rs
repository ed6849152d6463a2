//! Fibers: threads that take turns with the cluster, for code that waits, such as a session.
//!
//! A fiber runs only while it has been handed the turn, and the cluster waits meanwhile. So a run behaves as if it
//! had one thread, and repeats exactly. Virtual time stands still during a turn. It passes only when the fiber waits.

use crate::clock::{MICROSECOND, Nanos};
use crate::dice::Dice;
use portcullis::Clock;
use portcullis_planted as planted;
use portcullis_protocol::Moment;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// The longest time of a look: the thread may have lost its processor.
pub(crate) const LOOK_MAX: Nanos = 20 * MICROSECOND;
/// The longest time that a yield takes.
const OTHERS_MAX: Nanos = 100 * MICROSECOND;

/// How a fiber's turn ended.
#[derive(Debug)]
pub enum TurnEnd {
    /// The fiber wants its next turn after this time in ns at the latest.
    Waits(Nanos),
    /// The fiber's script has ended.
    Ended,
    /// The fiber panicked, with this message.
    Panicked(String),
}

/// The payload that unwinds a fiber when its cluster stops it.
struct Stopped;

#[derive(Debug)]
struct Handover {
    /// The time on the machine's clock, in µs. It is the same for the whole turn.
    now: AtomicU64,
    go: Mutex<Receiver<()>>,
    said: Sender<TurnEnd>,
    dice: Mutex<Dice>,
}

/// A fiber's clock. It lets time pass by handing the turn over.
#[derive(Clone, Debug)]
pub struct FiberClock(Arc<Handover>);

impl FiberClock {
    /// Hands the turn over, and waits for this time in ns, or less.
    pub fn pass(&self, time: Nanos) {
        let go = self.0.go.lock().unwrap_or_else(PoisonError::into_inner);
        if self.0.said.send(TurnEnd::Waits(time)).is_err() || go.recv().is_err() {
            resume_unwind(Box::new(Stopped));
        }
    }

    fn pass_up_to(&self, most: Nanos) {
        let time = self.0.dice.lock().unwrap_or_else(PoisonError::into_inner).magnitude(50..most);
        self.pass(time);
    }
}

impl Clock for FiberClock {
    const SPINS: u32 = 24;

    fn now(&self) -> Moment {
        Moment(self.0.now.load(Ordering::Relaxed))
    }

    fn spin(&self) {
        self.pass_up_to(LOOK_MAX);
    }

    fn yield_now(&self) {
        self.pass_up_to(OTHERS_MAX);
    }
}

/// A thread that runs only while the cluster has handed it the turn. Dropping this value ends the thread.
#[derive(Debug)]
pub struct Fiber {
    handover: Arc<Handover>,
    go: Option<Sender<()>>,
    said: Receiver<TurnEnd>,
    thread: Option<JoinHandle<()>>,
}

impl Fiber {
    /// Starts a fiber that runs `script` from its first turn on.
    ///
    /// # Errors
    /// The machine cannot start a thread.
    pub fn start(dice: Dice, script: impl FnOnce(FiberClock) + Send + 'static) -> std::io::Result<Self> {
        let ((go, gone), (say, said)) = (channel(), channel());
        let (now, dice) = (AtomicU64::new(0), Mutex::new(dice));
        let handover = Arc::new(Handover { now, go: Mutex::new(gone), said: say.clone(), dice });
        let clock = FiberClock(Arc::clone(&handover));
        let plant = planted::for_another_thread();
        let thread = std::thread::Builder::new().name("fiber".to_owned()).spawn(move || {
            plant();
            let first = clock.0.go.lock().unwrap_or_else(PoisonError::into_inner).recv();
            if first.is_err() {
                return;
            }
            let last = match catch_unwind(AssertUnwindSafe(|| script(clock))) {
                Ok(()) => TurnEnd::Ended,
                Err(panic) if panic.is::<Stopped>() => TurnEnd::Ended,
                Err(panic) => TurnEnd::Panicked(words(&*panic)),
            };
            // No thread receives this if the fiber was stopped.
            let _ = say.send(last);
        })?;
        Ok(Self { handover, go: Some(go), said, thread: Some(thread) })
    }

    /// Hands the turn to the fiber, at its machine's time. An ended fiber returns [`TurnEnd::Ended`] again.
    ///
    /// # Panics
    /// The fiber's thread is gone although its script has not ended, which is a bug of this module.
    pub fn turn(&mut self, now: Moment) -> TurnEnd {
        let Some(go) = &self.go else { return TurnEnd::Ended };
        self.handover.now.store(now.0, Ordering::Relaxed);
        go.send(()).expect("a fiber that has not ended listens");
        let said = self.said.recv().expect("a fiber says how its turn ended");
        if !matches!(said, TurnEnd::Waits(_)) {
            self.go = None;
        }
        said
    }
}

fn words(panic: &(dyn std::any::Any + Send)) -> String {
    let said = panic.downcast_ref::<String>().cloned();
    said.or_else(|| panic.downcast_ref::<&str>().map(|said| (*said).to_owned())).unwrap_or_default()
}

impl Drop for Fiber {
    fn drop(&mut self) {
        self.go = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
