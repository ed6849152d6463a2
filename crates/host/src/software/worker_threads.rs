//! The threads that work for the software NIC: copy units and data engines.
//!
//! Each thread does the work of its worker. Without work it spins, then yields, then sleeps, so that a node without work for
//! its threads pays nothing for them. The NIC gives them their work, and wakes them for it. Copy units decide nothing; data
//! engines check requests, and change no key.

use crate::processors::ProcessorList;
use portcullis_memory::{Crowd, Idle, Mapping, pin};
use portcullis_softnic::core::ThreadRunner;
use portcullis_softnic::core::copy_units::Pieces;
use portcullis_softnic::core::engines::{Seat, SeatTurn};
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// The longest sleep of a thread: it bounds the cost of a lost wake-up.
const SLEEP_MAX: Duration = Duration::from_millis(500);

/// The work of one thread.
pub(super) trait Worker: Debug + Send + Sync + 'static {
    /// The name of a thread's kind.
    const NAME: &'static str;

    /// Does a part of the work. Returns whether there was some.
    fn work(&self) -> bool;

    /// Prepares to sleep, since there is nothing to do.
    fn rest(&self) {}

    /// Whether the thread must not sleep.
    fn must_stay_awake(&self) -> bool;

    /// Whether the thread must not end yet, although it was stopped.
    fn must_finish(&self) -> bool;
}

/// A copy unit moves the pieces that the NIC posts for it, also those that were posted before the end.
impl Worker for Pieces<Mapping> {
    const NAME: &'static str = "copy";

    fn work(&self) -> bool {
        self.move_next().is_some()
    }

    fn must_stay_awake(&self) -> bool {
        self.is_waiting()
    }

    fn must_finish(&self) -> bool {
        self.is_waiting()
    }
}

/// An engine serves the clients that the NIC has lent to it.
impl Worker for Seat<Mapping> {
    const NAME: &'static str = "engine";

    fn work(&self) -> bool {
        match self.turn() {
            SeatTurn::Worked => true,
            SeatTurn::Idle => false,
            SeatTurn::GaveWay => {
                std::thread::yield_now();
                true
            }
        }
    }

    /// Sends clients home, which the NIC's thread then takes.
    fn rest(&self) {
        Seat::rest(self);
        // The NIC's thread may need this processor for it.
        std::thread::yield_now();
    }

    fn must_stay_awake(&self) -> bool {
        self.clients() > 0
    }

    fn must_finish(&self) -> bool {
        false
    }
}

/// The state that a worker's thread and the NIC's thread share.
#[derive(Debug)]
struct Place<W> {
    worker: Arc<W>,
    /// Whether the thread is about to sleep, or sleeps.
    sleeps: AtomicBool,
    stop: AtomicBool,
    /// Whether the thread has ended, by a panic or since it was stopped.
    has_ended: AtomicBool,
    thread: OnceLock<Thread>,
}

/// The threads of workers of one kind. They end when this is dropped, after the work that they must finish.
#[derive(Debug)]
pub(super) struct WorkerThreads<W: Worker> {
    places: Vec<Arc<Place<W>>>,
    threads: Vec<JoinHandle<()>>,
}

impl<W: Worker> WorkerThreads<W> {
    /// Makes the places of these workers. Their threads are not started yet.
    pub fn new(workers: impl IntoIterator<Item = Arc<W>>) -> Self {
        let place = |worker| Place {
            worker,
            sleeps: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            thread: OnceLock::new(),
        };
        Self { places: workers.into_iter().map(place).map(Arc::new).collect(), threads: Vec::new() }
    }

    /// Starts a thread for each worker, on the processors of the list from number `first` on.
    ///
    /// # Errors
    /// The machine cannot start a thread.
    pub fn start(&mut self, processors: &ProcessorList, first: usize) -> std::io::Result<()> {
        for (number, place) in self.places.iter().enumerate() {
            let (own, processor) = (Arc::clone(place), processors.of_thread(first + number));
            let crowd = Crowd::new();
            let thread = std::thread::Builder::new().name(format!("portcullis-{}{number}", W::NAME));
            let thread = thread.spawn(move || {
                if let Some(processor) = processor {
                    pin(processor);
                }
                own.run(&crowd);
            })?;
            place.thread.set(thread.thread().clone()).expect("a worker has one thread");
            self.threads.push(thread);
        }
        Ok(())
    }

    /// Returns the handle with which the NIC wakes and awaits the workers. `crowd` tells the NIC whether the machine has
    /// processors for them.
    pub fn runner(&self, crowd: Crowd) -> Arc<dyn ThreadRunner> {
        Arc::new(Bells { places: self.places.clone(), crowd })
    }
}

impl<W: Worker> Drop for WorkerThreads<W> {
    fn drop(&mut self) {
        for place in &self.places {
            place.stop.store(true, Ordering::SeqCst);
            place.ring();
        }
        // A thread that has panicked has printed its reason.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

impl<W: Worker> Place<W> {
    fn run(&self, crowd: &Crowd) {
        let _ended = Ended(&self.has_ended);
        let (started, mut idle) = (Instant::now(), Idle::default());
        while !self.stop.load(Ordering::Relaxed) || self.worker.must_finish() {
            if self.worker.work() {
                idle.reset();
                continue;
            }
            idle.look_for(crowd);
            if idle.spin_or_yield(|| started.elapsed()) {
                self.worker.rest();
                self.sleep();
                idle.reset();
            }
        }
    }

    /// Sleeps until there is work. The thread announces that it sleeps and checks once more; the NIC gives it work and
    /// then checks whether the thread sleeps. The fences let at least one see the other.
    fn sleep(&self) {
        self.sleeps.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        while !self.worker.must_stay_awake() && !self.stop.load(Ordering::SeqCst) {
            std::thread::park_timeout(SLEEP_MAX);
        }
        self.sleeps.store(false, Ordering::Relaxed);
    }

    fn ring(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }
}

/// Marks a thread as ended when it ends, also by a panic.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// The NIC's handle to the threads.
#[derive(Debug)]
struct Bells<W> {
    places: Vec<Arc<Place<W>>>,
    crowd: Crowd,
}

impl<W: Worker> ThreadRunner for Bells<W> {
    #[inline]
    fn wake(&self, number: usize) {
        let place = &self.places[number];
        assert!(!place.has_ended.load(Ordering::Relaxed), "a thread has ended, and its work is never done");
        fence(Ordering::SeqCst);
        if place.sleeps.load(Ordering::Relaxed) {
            place.ring();
        }
    }

    #[inline]
    fn sleeps(&self, number: usize) -> bool {
        self.places[number].sleeps.load(Ordering::Relaxed)
    }

    fn is_crowded(&self, more: usize) -> bool {
        self.crowd.is_there_with(u32::try_from(more).unwrap_or(u32::MAX))
    }

    fn check(&self) {
        let has_ended = self.places.iter().any(|place| place.has_ended.load(Ordering::Relaxed));
        assert!(!has_ended, "a thread has ended, and its work is never done");
    }

    fn wait(&self) {
        self.check();
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portcullis_softnic::core::copy_units::Piece;

    fn started(count: usize) -> WorkerThreads<Pieces<Mapping>> {
        let mut threads = WorkerThreads::new((0..count).map(|_| Arc::default()));
        threads.start(&ProcessorList::default(), 0).expect("threads");
        threads
    }

    #[test]
    fn a_unit_that_sleeps_is_woken_for_each_piece() {
        let threads = started(2);
        let runner = threads.runner(Crowd::none());
        let memory = Mapping::private(8192).expect("memory");
        for round in 1..=100 {
            let (from, to) = ((memory.clone(), 0), (memory.clone(), 4096));
            portcullis_memory::Memory::write(&memory, 0, &[round; 4096]);
            for (number, place) in threads.places.iter().enumerate() {
                // Every tenth piece finds a thread that sleeps.
                while round % 10 == 0 && !place.sleeps.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                let queue = &place.worker;
                assert!(queue.post(|| Piece { from: from.clone(), to: to.clone(), length: 4096 }));
                runner.wake(number);
                while queue.is_waiting() {
                    runner.wait();
                }
            }
            let mut moved = [0; 4096];
            portcullis_memory::Memory::read(&memory, 4096, &mut moved);
            assert_eq!(moved, [round; 4096]);
        }
    }

    #[test]
    #[should_panic(expected = "a thread has ended")]
    fn a_node_does_not_wait_for_a_unit_whose_thread_has_ended() {
        let threads = started(1);
        let runner = threads.runner(Crowd::none());
        drop(threads);
        runner.wait();
    }
}
