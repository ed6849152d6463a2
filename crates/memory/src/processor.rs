//! The processor that a thread runs on.

use rustix::thread::{CpuSet, sched_setaffinity};

/// Keeps the calling thread on one processor, if the machine allows it.
pub fn pin(processor: usize) {
    let mut set = CpuSet::new();
    if processor >= CpuSet::MAX_CPU {
        tracing::warn!(processor, "no such processor: the thread is not pinned");
        return;
    }
    set.set(processor);
    if let Err(error) = sched_setaffinity(None, &set) {
        tracing::warn!(processor, %error, "cannot pin the thread");
    }
}
