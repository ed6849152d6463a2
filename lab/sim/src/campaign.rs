//! Runs of many seeds. Each seed is a run of its own, and the runs share a number of threads.

use crate::plan::Plan;
use crate::report::Report;
use crate::run::run;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Runs the plan that `plan_of` returns for each seed, on `threads` threads, and passes each report to `each` as soon
/// as it is complete. Stops early when `each` returns `false`. The order of the reports is arbitrary, but each run
/// depends on its plan only.
pub fn campaign(
    seeds: Range<u64>,
    threads: usize,
    plan_of: impl Fn(u64) -> Plan + Sync,
    each: impl FnMut(Report) -> bool + Send,
) {
    let next = AtomicU64::new(seeds.start);
    let stop = AtomicBool::new(false);
    let each = Mutex::new(each);
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        break;
                    }
                    let report = run(&plan_of(seed));
                    // The lock is poisoned by a panic in another thread, which has printed its message.
                    let Ok(mut each) = each.lock() else { break };
                    if !each(report) {
                        stop.store(true, Ordering::Relaxed);
                    }
                }
            });
        }
    });
}
