//! Figure 7: a permission that is needed for nine times its lease, with and without extension (§7.2.2).

use super::bench::{Bench, Outcome, ratio};
use super::inputs::Inputs;
use super::script::Step;
use super::{Effort, Progress};
use crate::report::OutputRow;
use crate::time::MICROSECOND;
use portcullis_protocol::{Lifetime, Mechanism, Sharing};

const FIGURE: &str = "Figure 7";
/// Number of extensions (§7.2.2).
const EXTENSIONS: usize = 8;
/// The lifetime that the authors' experiment requests, at first and with each extension.
const LIFETIME: Lifetime = Lifetime::millis(1);

/// Returns the ways in which a client can keep its permission.
fn cases(inputs: &Inputs) -> [(&'static str, Vec<Step>); 4] {
    let lease = Lifetime(inputs.lease_ns / MICROSECOND);
    let acquire = |lifetime| Step::Acquire { lifetime, sharing: Sharing::Shared };
    let extended = |message| {
        let extend = Step::Extend { by: LIFETIME, message };
        let mut steps = vec![Step::Begin, acquire(LIFETIME)];
        steps.extend([extend; EXTENSIONS]);
        steps.extend([Step::Revoke, Step::End]);
        steps
    };
    // Each acquire takes another object. A closed loop does not wait until the old permission has expired; if it did,
    // no time would be left.
    let again = |last| {
        let mut steps = vec![Step::Begin];
        steps.extend([acquire(lease), last].repeat(1 + EXTENSIONS));
        steps.push(Step::End);
        steps
    };
    [
        ("Re-acquire", again(Step::Forget)),
        ("+ Extend", extended(true)),
        ("+ CN Extend", extended(false)),
        ("Re-acquire, each time after a revoke", again(Step::Revoke)),
    ]
}

fn thousands(outcome: &Outcome) -> f64 {
    outcome.rate(outcome.score.rounds) / 1e3
}

pub(super) fn figure_7(inputs: &Inputs, effort: Effort, progress: &mut Progress<'_>) -> Vec<OutputRow> {
    let mut rows = Vec::new();
    let mut rates = Vec::new();
    for (name, steps) in cases(inputs) {
        progress.step(&format!("{FIGURE}: {name}"));
        let mut bench = Bench::new(inputs, Mechanism::MemoryWindow, 4 * effort.span());
        bench.warm_up = bench.measured / 2;
        bench.steps = steps;
        let fewer = Bench { clients: inputs.clients, ..bench.clone() }.run(inputs);
        let outcome = Bench { clients: inputs.crowd, ..bench }.run(inputs);
        rates.push(thousands(&outcome));
        let row = OutputRow::new(FIGURE, name, "K lifecycles/s", thousands(&outcome));
        let (rpcs, binds) = (outcome.work.control_messages, outcome.work.tally.binds);
        let (rpcs, binds) = (ratio(rpcs, outcome.score.rounds), ratio(binds, outcome.score.rounds));
        let counted = format!("{rpcs:.1} messages and {binds:.1} window operations a lifecycle, counted");
        rows.push(if name.starts_with("Re-acquire") {
            let open =
                "the paper does not say whether what is re-acquired is revoked first, so both are here";
            row.paper(202.0, "§7.2.2: only 202 Kops").reading(format!("{counted}; {open}"))
        } else {
            row.reading(counted)
        });
        rows.push(
            OutputRow::new(FIGURE, name, "µs a lifecycle", fewer.round_us())
                .reading("mean, one client a core"),
        );
    }
    let [again, message, word, revoked] = rates[..] else { return rows };
    let six = "§7.2.2: effectively a ×6 performance gain";
    let bound = "all of them are bound by the managers' cores, so the ratio is that of what those do";
    rows.push(
        OutputRow::new(FIGURE, "CN Extend over Re-acquire", "times", word / again)
            .paper(6.0, six)
            .reading(format!("{bound}: nine messages against two")),
    );
    rows.push(
        OutputRow::new(FIGURE, "CN Extend over Re-acquire after a revoke", "times", word / revoked)
            .paper(6.0, six)
            .reading(format!("{bound}: eighteen messages against two")),
    );
    rows.push(
        OutputRow::new(FIGURE, "Extend over Re-acquire", "times", message / again)
            .said("§7.2.2: saves window operations, still bound by messages")
            .reading(if message > again { "holds" } else { "does NOT hold" }),
    );
    rows
}
