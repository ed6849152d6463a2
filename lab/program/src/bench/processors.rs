//! The processors of the two ends of a benchmark. They differ if the machine has two.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::sync::OnceLock;

/// The processors of this process at its start. A child process inherits the set that its parent has when the child
/// starts.
fn allowed() -> &'static CpuSet {
    static ALLOWED: OnceLock<CpuSet> = OnceLock::new();
    ALLOWED.get_or_init(|| sched_getaffinity(None).unwrap_or_default())
}

/// The processors of the node and of this end: the first two that this process may use.
pub fn pair() -> Option<(usize, usize)> {
    let mut usable = usable();
    Some((usable.next()?, usable.next()?))
}

/// Number of processors that this process may use.
pub fn count() -> usize {
    usable().count()
}

fn usable() -> impl Iterator<Item = usize> {
    (0..CpuSet::MAX_CPU).filter(|&processor| allowed().is_set(processor))
}

/// Keeps this thread on this end's processor.
pub fn pin_client() {
    if let Some((_, client)) = pair() {
        portcullis::host::pin(client);
    }
}

/// Keeps this thread on a processor that is not the node's. If there are several, clients spread over them.
pub fn pin_one_of_clients(number: usize) {
    let (node, rest) = (1, usable().count().saturating_sub(1));
    if let Some(own) = number.checked_rem(rest).and_then(|place| usable().nth(node + place)) {
        portcullis::host::pin(own);
    }
}

/// Keeps this thread on a processor, of which the node's is the last one chosen: for threads that work while the node is
/// idle.
pub fn pin_one_of_all(number: usize) {
    let place = (number + 1).checked_rem(count());
    if let Some(own) = place.and_then(|place| usable().nth(place)) {
        portcullis::host::pin(own);
    }
}

/// Lets this thread, and processes that it starts, run anywhere but on the node's processor. If there are fewer than two
/// others, they may run there as well.
pub fn leave_node_alone() {
    let mut others = *allowed();
    if let (true, Some((node, _))) = (count() > 2, pair()) {
        others.unset(node);
    }
    if let Err(error) = sched_setaffinity(None, &others) {
        tracing::warn!(%error, "cannot leave the processor");
    }
}

/// Lets this thread run anywhere again, so that a child inherits no restriction.
pub fn unpin() {
    if let Err(error) = sched_setaffinity(None, allowed()) {
        tracing::warn!(%error, "cannot leave the processor");
    }
}
