//! The threads of the software NIC's copy units.
//!
//! Each thread moves the pieces that the NIC posts for its unit. It spins while there are pieces, then yields, then sleeps,
//! so that a node without long transfers pays nothing for its units. The threads decide nothing: the NIC has checked each
//! piece, and its memories are live as long as the piece is.

use crate::processors::ProcessorList;
use portcullis_memory::{Crowd, Idle, Mapping, pin};
use portcullis_softnic::SoftNic;
use portcullis_softnic::core::copy_units::{PieceSizes, Pieces, UnitRunner};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// The longest sleep of a thread: it bounds the cost of a lost wake-up.
const SLEEP_MAX: Duration = Duration::from_millis(500);

/// The state that a unit's thread and the NIC's thread share.
#[derive(Debug, Default)]
struct Unit {
    pieces: Arc<Pieces<Mapping>>,
    /// Whether the thread is about to sleep, or sleeps.
    sleeps: AtomicBool,
    stop: AtomicBool,
    /// Whether the thread has ended, by a panic or since it was stopped.
    has_ended: AtomicBool,
}

/// The threads of a NIC's units. They end when this is dropped, after the pieces that were posted.
#[derive(Debug)]
pub(super) struct CopyThreads {
    units: Vec<Arc<Unit>>,
    threads: Vec<JoinHandle<()>>,
}

impl CopyThreads {
    /// Starts `count` threads, each on its processor of the list.
    ///
    /// # Errors
    /// The machine cannot start a thread.
    pub fn start(count: usize, processors: &ProcessorList) -> std::io::Result<Self> {
        let mut started = Self { units: Vec::new(), threads: Vec::new() };
        for number in 0..count {
            let unit = Arc::<Unit>::default();
            let (own, processor) = (Arc::clone(&unit), processors.of_thread(number));
            let crowd = Crowd::new();
            let thread = std::thread::Builder::new().name(format!("portcullis-copy{number}"));
            started.threads.push(thread.spawn(move || {
                if let Some(processor) = processor {
                    pin(processor);
                }
                own.run(&crowd);
            })?);
            started.units.push(unit);
        }
        Ok(started)
    }

    /// Gives the NIC these units, if there are any.
    pub fn serve(&self, nic: &mut SoftNic) {
        if !self.units.is_empty() {
            nic.core().set_copy_units(self.queues(), self.runner(), PieceSizes::default());
        }
    }

    /// The queues of the units, in the order of their numbers.
    fn queues(&self) -> Vec<Arc<Pieces<Mapping>>> {
        self.units.iter().map(|unit| Arc::clone(&unit.pieces)).collect()
    }

    /// Returns the handle with which the NIC wakes and awaits the units.
    fn runner(&self) -> Arc<dyn UnitRunner> {
        let threads = self.threads.iter().map(|thread| thread.thread().clone());
        Arc::new(Bells { units: self.units.iter().cloned().zip(threads).collect() })
    }
}

impl Drop for CopyThreads {
    fn drop(&mut self) {
        for (unit, thread) in self.units.iter().zip(&self.threads) {
            unit.stop.store(true, Ordering::SeqCst);
            thread.thread().unpark();
        }
        // A thread that has panicked has printed its reason.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

impl Unit {
    fn run(&self, crowd: &Crowd) {
        let _ended = Ended(&self.has_ended);
        let (started, mut idle) = (Instant::now(), Idle::default());
        while !self.stop.load(Ordering::Relaxed) || self.pieces.is_waiting() {
            if self.pieces.move_next().is_some() {
                idle.reset();
                continue;
            }
            idle.look_for(crowd);
            if idle.spin_or_yield(|| started.elapsed()) {
                self.sleep();
                idle.reset();
            }
        }
    }

    /// Sleeps until a piece is posted. The thread announces that it sleeps and checks once more; the NIC posts and then
    /// checks whether the thread sleeps. The fences let at least one see the other.
    fn sleep(&self) {
        self.sleeps.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        while !self.pieces.is_waiting() && !self.stop.load(Ordering::SeqCst) {
            std::thread::park_timeout(SLEEP_MAX);
        }
        self.sleeps.store(false, Ordering::Relaxed);
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
struct Bells {
    units: Vec<(Arc<Unit>, Thread)>,
}

impl UnitRunner for Bells {
    #[inline]
    fn wake(&self, unit: usize) {
        let (unit, thread) = &self.units[unit];
        assert!(!unit.has_ended.load(Ordering::Relaxed), "a copy unit has ended, and its pieces never move");
        fence(Ordering::SeqCst);
        if unit.sleeps.load(Ordering::Relaxed) {
            thread.unpark();
        }
    }

    #[inline]
    fn sleeps(&self, unit: usize) -> bool {
        self.units[unit].0.sleeps.load(Ordering::Relaxed)
    }

    fn wait(&self) {
        let has_ended = self.units.iter().any(|(unit, _)| unit.has_ended.load(Ordering::Relaxed));
        assert!(!has_ended, "a copy unit has ended, and its pieces never move");
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portcullis_softnic::core::copy_units::Piece;

    #[test]
    fn a_unit_that_sleeps_is_woken_for_each_piece() {
        let threads = CopyThreads::start(2, &ProcessorList::default()).expect("threads");
        let runner = threads.runner();
        let memory = Mapping::private(8192).expect("memory");
        for round in 1..=100 {
            let (from, to) = ((memory.clone(), 0), (memory.clone(), 4096));
            portcullis_memory::Memory::write(&memory, 0, &[round; 4096]);
            for (number, queue) in threads.queues().iter().enumerate() {
                // Every tenth piece finds a thread that sleeps.
                while round % 10 == 0 && !threads.units[number].sleeps.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
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
    #[should_panic(expected = "a copy unit has ended")]
    fn a_node_does_not_wait_for_a_unit_whose_thread_has_ended() {
        let threads = CopyThreads::start(1, &ProcessorList::default()).expect("threads");
        let runner = threads.runner();
        drop(threads);
        runner.wait();
    }
}
