//! Running a plan, and shrinking a failing plan.

use crate::calls;
use crate::cluster::Cluster;
use crate::oracle::Promise;
use crate::plan::{Plan, Programs};
use crate::processor::OneProcessor;
use crate::report::Report;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a plan to its end, or until a promise is broken.
#[must_use]
pub fn run(plan: &Plan) -> Report {
    if plan.programs == Programs::Calls {
        return calls::run(plan);
    }
    let _processor = (plan.programs != Programs::Workers).then(OneProcessor::take);
    let mut cluster = Cluster::new(plan.clone());
    // A panic breaks a promise as well. After a panic the cluster is only read.
    let ran = catch_unwind(AssertUnwindSafe(|| {
        cluster.run();
        cluster.conclude();
    }));
    if let Err(panic) = ran {
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("nothing");
        cluster.oracle.fail(Promise::Soundness, cluster.now, format!("a panic: {said}"));
    }
    let (events, trace_hash) = (cluster.trace.events(), cluster.trace.hash());
    let (now, lines) = (cluster.now, cluster.trace.take_lines());
    let (failures, tally) = cluster.oracle.verdict();
    Report {
        ok: failures.is_empty(),
        seed: plan.seed,
        trace_hash,
        events,
        faults: cluster.fault_counts,
        accesses: tally.accesses,
        grants: tally.grants,
        permissions_peak: cluster.permissions_peak,
        violations_tried: tally.violations_tried,
        violations_refused: tally.violations_refused,
        late_and_harmless: tally.late_and_harmless,
        virtual_us: now / 1000,
        failures,
        lines,
    }
}

/// Shrinks a failing plan to fewer faults, fewer clients and less time, as long as it breaks the same promise. Returns
/// the smallest plan that was found, and its report. `tries` limits how many plans are run.
#[must_use]
pub fn shrink(plan: &Plan, tries: u32) -> (Plan, Report) {
    let mut best = (plan.clone(), run(plan));
    let Some(promise) = best.1.failures.first().map(|failure| failure.promise) else { return best };
    let mut left = tries;
    loop {
        let before = best.0.clone();
        for smaller in smaller(&before, &best.1) {
            if left == 0 {
                return best;
            }
            left -= 1;
            let report = run(&smaller);
            if report.failures.first().is_some_and(|failure| failure.promise == promise) {
                best = (smaller, report);
                break;
            }
        }
        if best.0 == before {
            return best;
        }
    }
}

/// Returns plans that are one step smaller than a failing plan. The largest steps come first.
fn smaller(plan: &Plan, report: &Report) -> Vec<Plan> {
    let mut plans = Vec::new();
    let failed_at = report.failures.first().map_or(plan.duration_ns, |failure| failure.at_ns);
    if failed_at + 1 < plan.duration_ns {
        plans.push(Plan { duration_ns: failed_at + 1, ..plan.clone() });
    }
    for fault in &plan.faults {
        let faults = plan.faults.iter().copied().filter(|kind| kind != fault).collect();
        plans.push(Plan { faults, ..plan.clone() });
    }
    if plan.hostile > 0 {
        plans.push(Plan { hostile: plan.hostile - 1, clients: plan.clients - 1, ..plan.clone() });
    }
    if plan.clients > plan.hostile + 1 {
        plans.push(Plan { clients: plan.clients - 1, ..plan.clone() });
    }
    if plan.nodes > 1 {
        plans.push(Plan { nodes: plan.nodes - 1, ..plan.clone() });
    }
    if plan.tenants > 1 {
        plans.push(Plan { tenants: plan.tenants - 1, ..plan.clone() });
    }
    if plan.held > 1 {
        plans.push(Plan { held: plan.held / 2, ..plan.clone() });
    }
    let shorter = plan.duration_ns / 4 * 3;
    if shorter > 1000 {
        plans.push(Plan { duration_ns: shorter, ..plan.clone() });
    }
    plans
}
