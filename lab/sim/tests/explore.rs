//! Every order of the steps of small races: no promise is broken in any, and every race goes each way.

use portcullis_sim::{Exploration, Limits, Race, Scenario, explore};

/// Returns the answers that the clients must have got in some run of a race, part by part. Otherwise the race never
/// took place.
fn must_happen(race: Race) -> &'static [&'static str] {
    match race {
        Race::ExtendOrExpire => &["extended to 200 µs, Write done", "Expired, Write: Expired"],
        Race::ExtendOrRevoke => &[
            "done | extended to 200 µs",
            "Violation | call: Revoked",
            "Write done, done | extended to 200 µs",
            "done, Write: Violation | extended to 200 µs",
        ],
        Race::ExtendOrGiveWay => &[
            "extended to 200 µs, Write done | granted",
            "Refused(NotExtendable), Write done | granted",
            "call: Expired, Write: Expired | granted",
        ],
        Race::TwoExtend => &["extended to 200 µs | extended to 150 µs", "call: Expired | call: Expired"],
        Race::HandoverOnExpiry => &["Write done | granted", "Violation | granted"],
        Race::HandoverOnRevoke => &["done, Write done | granted", "done, Write: Violation | granted"],
        Race::LingerOrReuse => &["done, Write done | granted, Read done", "Violation | granted, Read done"],
        Race::Departure => &["nothing | granted", "extended to 200 µs | granted", "Write done | granted"],
        Race::SharersGiveWay => &[
            "extended to 200 µs | done | granted",
            "Refused(NotExtendable) | done | granted",
            "call: Expired | call: Refused(NotLive) | granted",
        ],
    }
}

fn explore_all(scenario: Scenario, limits: Limits) -> Exploration {
    let seen = explore(scenario, limits);
    let runs = seen.paths + seen.redundant;
    eprintln!("{scenario:?}: {} paths, {runs} runs, {} decisions at most", seen.paths, seen.longest);
    assert!(seen.failures.is_empty(), "{scenario:?}: {:#?}\n{}", seen.failures, seen.schedule.join("\n"));
    assert!(seen.exhausted, "{scenario:?}: {runs} runs are not all");
    seen
}

fn no_order_breaks_a_promise(reductions: bool) {
    let mut paths = 0;
    for scenario in Scenario::ALL.into_iter().filter(|it| it.reductions == reductions) {
        let seen = explore_all(scenario, Limits::default());
        for part in must_happen(scenario.race) {
            let happened = seen.outcomes.keys().any(|outcome| outcome.contains(part));
            assert!(happened, "{scenario:?} never ended with {part:?}: {:#?}", seen.outcomes);
        }
        paths += seen.paths;
    }
    eprintln!("{paths} paths");
}

#[test]
#[ignore = "takes long: a part of make test-all"]
fn no_order_of_events_breaks_a_promise() {
    no_order_breaks_a_promise(true);
}

#[test]
#[ignore = "takes long: a part of make test-all"]
fn no_order_of_events_breaks_a_promise_without_reductions() {
    no_order_breaks_a_promise(false);
}

#[test]
#[ignore = "takes long: a part of make test-all"]
fn the_orders_that_are_left_out_end_like_those_that_are_tried() {
    let scenario = Scenario { race: Race::ExtendOrExpire, reductions: true };
    let some = explore_all(scenario, Limits::default());
    let every = explore_all(scenario, Limits { every_order: true, ..Limits::default() });
    eprintln!("{} orders are tried, of {}", some.paths, every.paths);
    assert!(every.paths > 10 * some.paths, "{} and {} paths", some.paths, every.paths);
    let ends = |seen: &Exploration| seen.outcomes.keys().cloned().collect::<Vec<_>>();
    assert_eq!(ends(&some), ends(&every));
}
