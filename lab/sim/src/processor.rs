//! The processor that a run with fibers uses. It decides nothing that happens in the run, only how long the run
//! takes.

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use std::sync::{Mutex, PoisonError};

/// Number of runs that use each processor.
static RUNS: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// Keeps a thread and the fibers that it starts on one processor while this lives: handing a turn over to a thread on
/// another processor takes several times as long.
#[derive(Debug)]
pub struct OneProcessor {
    number: usize,
    allowed: CpuSet,
}

impl OneProcessor {
    /// Takes the processor that the fewest runs use. If the system refuses that, runs are slower.
    pub fn take() -> Option<Self> {
        let allowed = sched_getaffinity(None).ok()?;
        let mut runs = RUNS.lock().unwrap_or_else(PoisonError::into_inner);
        runs.resize(CpuSet::MAX_CPU, 0);
        // Among equal processors the current one is taken, since other processes choose as well.
        let here = sched_getcpu();
        let may_be = (0..CpuSet::MAX_CPU).filter(|&number| allowed.is_set(number));
        let number = may_be.min_by_key(|&number| (runs[number], number != here))?;
        let mut only = CpuSet::new();
        only.set(number);
        sched_setaffinity(None, &only).ok()?;
        runs[number] += 1;
        Some(Self { number, allowed })
    }
}

impl Drop for OneProcessor {
    fn drop(&mut self) {
        RUNS.lock().unwrap_or_else(PoisonError::into_inner)[self.number] -= 1;
        // If the system refuses this, the thread goes on as it is.
        let _ = sched_setaffinity(None, &self.allowed);
    }
}
