//! Mistakes of engines.

use super::pinned;
use portcullis_planted::Mistake;
use portcullis_sim::run_engines;

/// Seeds within which a mistake must be found.
const SEEDS: u64 = 50;

fn is_found(mistake: Mistake, checks: &[&str]) {
    pinned::is_found_on_bench(mistake, SEEDS, checks, ("Engines", run_engines));
}

const IN_MEMORY: &str = "a byte arrives in memory after the confirmed withdrawal";
/// A read that has begun before the withdrawal returns the next owner's bytes.
const IN_READ: &str = "a read returns other bytes than the span held";

#[test]
fn engine_not_awaited() {
    is_found(Mistake::EngineNotAwaited, &[IN_MEMORY, IN_READ]);
}

#[test]
fn rights_kept_on_engine() {
    is_found(Mistake::RightsKeptOnEngine, &["a queue pair without rights allows an access"]);
}

#[test]
fn refusal_kept_on_engine() {
    is_found(Mistake::RefusalKeptOnEngine, &["refusals, and the node learns of"]);
}

#[test]
fn every_mistake_has_its_test() {
    let tried = [Mistake::EngineNotAwaited, Mistake::RightsKeptOnEngine, Mistake::RefusalKeptOnEngine];
    assert_eq!(tried, Mistake::OF_ENGINES);
}
