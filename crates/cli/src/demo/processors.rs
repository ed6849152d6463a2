//! Which processor whom belongs to: a node that shares one with a busy client answers when that one sleeps.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Who stays on which processors. All of them on all where there is only one.
#[derive(Clone, Debug, Default)]
pub struct Processors {
    /// The nodes.
    pub node: Option<usize>,
    /// The clients.
    pub clients: Vec<usize>,
}

impl Processors {
    /// The first one that this process may use for the nodes, the others for their clients.
    pub fn usable() -> Self {
        let Ok(set) = sched_getaffinity(None) else { return Self::default() };
        let mut usable = (0..CpuSet::MAX_CPU).filter(|&number| set.is_set(number));
        let (first, others) = (usable.next(), usable.collect::<Vec<usize>>());
        if others.is_empty() { Self::default() } else { Self { node: first, clients: others } }
    }
}

/// Keeps this process on some processors. What it measures is slower where that cannot be, and no less true.
pub fn stay_on(processors: &[usize]) {
    let mut set = CpuSet::new();
    for &processor in processors.iter().filter(|&&processor| processor < CpuSet::MAX_CPU) {
        set.set(processor);
    }
    if set.count() > 0 {
        let _ = sched_setaffinity(None, &set);
    }
}
