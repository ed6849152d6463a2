//! Many seeds: no promise is broken, and each run can be had again.

use portcullis_sim::{Plan, run};

/// Seeds of each test: another run may ask for more.
fn seeds() -> u64 {
    std::env::var("PORTCULLIS_SEEDS").ok().and_then(|number| number.parse().ok()).unwrap_or(200)
}

#[test]
fn no_seed_breaks_a_promise() {
    let mut events = 0;
    for seed in 0..seeds() {
        let plan = Plan::draw(seed);
        let report = run(&plan);
        events += report.events;
        assert!(report.ok, "seed {seed}: {:#?}\n{}", report.failures, plan.command());
    }
    eprintln!("{events} events");
}
