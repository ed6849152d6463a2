//! The threads of a node's lanes.
//!
//! Each thread receives the packets of its lane and answers them. It spins while there are packets, then yields, then
//! sleeps. It decides about packets only. The node's thread gets the refused operations, which it may charge.

use super::lane::Lane;
use crate::engine::Bell;
use crate::processors::ProcessorList;
use portcullis_memory::{Crowd, Idle, pin};
use portcullis_onerma::{Refused, ResponderCounters};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The longest sleep of a thread: it bounds the cost of a lost wake-up.
const SLEEP_MAX: Duration = Duration::from_millis(500);
/// Number of refused operations that wait for the node. The oldest are dropped beyond it, as in a responder.
const REFUSALS_MAX: usize = 256;

/// The state that the threads and the node share.
#[derive(Debug)]
struct Shared {
    /// Refused operations of all lanes.
    refusals: Mutex<VecDeque<Refused>>,
    /// Whether there are refused operations.
    has_refusals: AtomicBool,
    /// The counters of each lane's responder.
    counters: Vec<Mutex<ResponderCounters>>,
    /// Wakes the node.
    node: Arc<dyn Bell>,
    /// Wakes the threads when they are to stop.
    wake: OwnedFd,
    stop: AtomicBool,
    /// Whether a thread has ended, by a panic or since it was stopped.
    has_ended: AtomicBool,
    /// Time 0 of the node.
    zero: Instant,
}

/// The threads of a node's lanes. They end when this is dropped.
#[derive(Debug)]
pub(crate) struct LaneThreads {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl LaneThreads {
    /// Starts a thread for each lane. The thread of lane `n` is that of number `first + n` in the list of processors.
    ///
    /// # Errors
    /// The machine cannot start a thread.
    pub fn start(
        lanes: Vec<Lane>,
        (processors, first): (&ProcessorList, usize),
        node: Arc<dyn Bell>,
        zero: Instant,
    ) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            refusals: Mutex::default(),
            has_refusals: AtomicBool::new(false),
            counters: lanes.iter().map(|_| Mutex::default()).collect(),
            node,
            wake: eventfd(0, EventfdFlags::CLOEXEC)?,
            stop: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            zero,
        });
        let mut started = Self { shared, threads: Vec::new() };
        for (number, mut lane) in lanes.into_iter().enumerate() {
            let (shared, processor) = (Arc::clone(&started.shared), processors.of_thread(first + number));
            let crowd = Crowd::new();
            let thread = std::thread::Builder::new().name(format!("portcullis-udp{number}"));
            started.threads.push(thread.spawn(move || {
                if let Some(processor) = processor {
                    pin(processor);
                }
                let _ended = Ended(&shared);
                shared.run(&mut lane, number, &crowd);
            })?);
        }
        Ok(started)
    }

    /// Returns the refused operations since the last call.
    ///
    /// # Panics
    /// A thread has panicked.
    pub fn take_refusals(&self) -> VecDeque<Refused> {
        assert!(!self.shared.has_ended.load(Ordering::Relaxed), "a lane's thread has ended");
        if !self.shared.has_refusals.load(Ordering::Relaxed) {
            return VecDeque::new();
        }
        // The node's thread does not wait for a lane that holds the lock. That lane rings again.
        let Ok(mut refusals) = self.shared.refusals.try_lock() else { return VecDeque::new() };
        self.shared.has_refusals.store(false, Ordering::Relaxed);
        std::mem::take(&mut *refusals)
    }

    /// Returns the counters of each lane.
    pub fn counters(&self) -> Vec<ResponderCounters> {
        self.shared.counters.iter().map(|counters| *lock(counters)).collect()
    }
}

impl Drop for LaneThreads {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        // Each thread that sleeps sees the event, since no thread takes it.
        let woken = rustix::io::write(&self.shared.wake, &1u64.to_ne_bytes());
        debug_assert!(woken.is_ok(), "an event that is signalled once has room");
        // A thread that has panicked has printed its reason.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// Marks a thread as ended when it ends, and wakes the node, which cannot go on without a lane.
struct Ended<'a>(&'a Shared);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.has_ended.store(true, Ordering::SeqCst);
        self.0.node.ring();
    }
}

impl Shared {
    fn run(&self, lane: &mut Lane, number: usize, crowd: &Crowd) {
        let mut idle = Idle::default();
        while !self.stop.load(Ordering::Relaxed) {
            if lane.turn(self.zero.elapsed()) {
                self.report(lane, number);
                idle.reset();
                continue;
            }
            idle.look_for(crowd);
            if idle.spin_or_yield(|| self.zero.elapsed()) {
                self.sleep_until_work(lane, number);
                idle.reset();
            }
        }
    }

    /// Sleeps until the lane has had something to do, or the thread is to stop. A wake that brings nothing is followed by
    /// the next sleep at once: an idle lane costs nothing.
    fn sleep_until_work(&self, lane: &mut Lane, number: usize) {
        while !self.stop.load(Ordering::SeqCst) {
            self.sleep(lane);
            if lane.turn(self.zero.elapsed()) {
                return self.report(lane, number);
            }
        }
    }

    /// Passes what a turn has brought to the node.
    fn report(&self, lane: &mut Lane, number: usize) {
        *lock(&self.counters[number]) = lane.counters();
        let mut some = false;
        // A packet that no key has sealed is counted, and means nothing to the node.
        while let Some(refused) = lane.poll_refusal() {
            if refused.to_charge().is_none() {
                continue;
            }
            let mut refusals = lock(&self.refusals);
            if refusals.len() == REFUSALS_MAX {
                refusals.pop_front();
            }
            refusals.push_back(refused);
            self.has_refusals.store(true, Ordering::Relaxed);
            drop(refusals);
            some = true;
        }
        if some {
            self.node.ring();
        }
    }

    /// Sleeps until a datagram arrives, or the lane has something to do.
    fn sleep(&self, lane: &Lane) {
        let due = lane.next_wake().map(|due| due.saturating_sub(self.zero.elapsed()));
        let at_most = due.map_or(SLEEP_MAX, |due| due.min(SLEEP_MAX));
        // A socket that is behind receives nothing, and would end each sleep.
        let sockets = lane.sockets().iter().filter(|socket| !socket.is_behind());
        let sockets = sockets.map(AsFd::as_fd).chain([self.wake.as_fd()]);
        let mut sources: Vec<PollFd<'_>> =
            sockets.map(|socket| PollFd::from_borrowed_fd(socket, PollFlags::IN)).collect();
        // A failure is like an early end of the sleep.
        let _ = poll(&mut sources, Timespec::try_from(at_most).ok().as_ref());
    }
}

/// Locks a value that no panic leaves half changed.
fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}
