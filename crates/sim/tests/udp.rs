//! Clients over UDP: no promise is broken.
//!
//! `PORTCULLIS_SEEDS=100000 cargo test --release -p portcullis-sim --test udp` runs more seeds, `make mutants` fewer.

use portcullis_sim::{FaultKind, Plan, campaign};

/// Seeds that are run unless somebody asks for more.
const SEEDS: u64 = 150;

fn seeds() -> u64 {
    std::env::var("PORTCULLIS_SEEDS").ok().and_then(|number| number.parse().ok()).unwrap_or(SEEDS)
}

/// Runs plans, and returns how many accesses were carried out, and how many violations were tried.
fn hold(plan_of: impl Fn(u64) -> Plan + Sync) -> (u64, u64) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut failed = Vec::new();
    let (mut accesses, mut tried, mut refused) = (0, 0, 0);
    campaign(0..seeds(), threads, &plan_of, |report| {
        accesses += report.accesses;
        tried += report.violations_tried;
        refused += report.violations_refused;
        if let Some(failure) = report.failures.first() {
            failed.push(format!("{failure}\n  {}", plan_of(report.seed).command()));
        }
        failed.len() < 5
    });
    eprintln!("{accesses} accesses, {tried} violations tried, {refused} refused");
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert_eq!(tried, refused);
    (accesses, tried)
}

#[test]
fn clients_over_udp_break_no_promise() {
    let (accesses, tried) = hold(|seed| Plan { udp: 100, ..Plan::draw(seed) });
    assert!(accesses > 40 * seeds() && tried > seeds(), "{accesses} {tried}");
}

#[test]
fn somebody_on_the_path_breaks_no_promise() {
    let (accesses, _) = hold(|seed| {
        let mut plan = Plan { udp: 100, ..Plan::draw(seed) };
        if !plan.faults.contains(&FaultKind::Path) {
            plan.faults.push(FaultKind::Path);
        }
        plan
    });
    assert!(accesses > 20 * seeds(), "{accesses}");
}

#[test]
fn clients_over_udp_and_over_queue_pairs_share_objects() {
    let (accesses, _) = hold(|seed| Plan { udp: 50, sharing: true, ..Plan::draw(seed) });
    assert!(accesses > 40 * seeds(), "{accesses}");
}
