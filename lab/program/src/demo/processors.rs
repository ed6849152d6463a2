//! The processors of the demo. A node that shares one with a busy client answers only when the client sleeps.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The processors for nodes and for clients. If there is only one, all processes use it.
#[derive(Clone, Debug, Default)]
pub struct Processors {
    /// The nodes' processor.
    pub node: Option<usize>,
    /// The clients' processors.
    pub clients: Vec<usize>,
}

impl Processors {
    /// The first processor that this process may use for the nodes, the others for the clients.
    pub fn usable() -> Self {
        let Ok(set) = sched_getaffinity(None) else { return Self::default() };
        let mut usable = (0..CpuSet::MAX_CPU).filter(|&number| set.is_set(number));
        let (first, others) = (usable.next(), usable.collect::<Vec<usize>>());
        if others.is_empty() { Self::default() } else { Self { node: first, clients: others } }
    }
}

/// Keeps this process on these processors. If that fails, measurements are slower but still true.
pub fn stay_on(processors: &[usize]) {
    let mut set = CpuSet::new();
    for &processor in processors.iter().filter(|&&processor| processor < CpuSet::MAX_CPU) {
        set.set(processor);
    }
    if set.count() > 0 {
        let _ = sched_setaffinity(None, &set);
    }
}
