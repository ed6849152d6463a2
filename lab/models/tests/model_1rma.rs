//! The model of 1RMA: the claims of the paper and which of them hold, with the real ends of operations in virtual
//! time.

use portcullis_models::{ModelReport, OneShotInputs, Origin, OutputRow, model_1rma, model_1rma_with};
use std::collections::HashSet;
use std::sync::OnceLock;

fn standard() -> &'static ModelReport {
    static REPORT: OnceLock<ModelReport> = OnceLock::new();
    REPORT.get_or_init(model_1rma)
}

fn row<'a>(report: &'a ModelReport, figure: &str, what: &str) -> &'a OutputRow {
    let row = report.outputs.iter().find(|row| row.figure == figure && row.what == what);
    row.unwrap_or_else(|| panic!("there is no {figure}, {what}"))
}

fn output(figure: &str, what: &str) -> f64 {
    row(standard(), figure, what).model
}

/// Claims of the paper that do not hold in the model. Their readings state why.
const MISSED: [(&str, &str); 2] = [
    ("Figure 15d", "issue_delay, the most of a round trip after that"),
    ("Figure 16d", "median time at the lowest threshold, of that at §6.1's"),
];

#[test]
fn every_claim_holds_but_those_that_are_known_not_to_whatever_the_seed() {
    let other = model_1rma_with(&OneShotInputs { seed: 2, ..OneShotInputs::default() }, &mut |_, _, _| {});
    assert!(other.outputs != standard().outputs, "arrivals are random");
    let all = standard().outputs.iter().chain(&other.outputs);
    let claims: Vec<&OutputRow> = all.filter(|row| row.holds.is_some()).collect();
    assert!(claims.len() > 2 * 40, "{}", claims.len());
    for row in claims {
        let is_known = MISSED.contains(&(row.figure, &row.what));
        assert_eq!(row.holds, Some(!is_known), "{row:?}");
        assert!(!is_known || row.reading.len() > 40, "a miss is explained: {row:?}");
    }
}

#[test]
fn every_figure_has_a_claim() {
    let claimed: HashSet<&str> =
        standard().outputs.iter().filter(|row| row.holds.is_some()).map(|row| row.figure).collect();
    let all = [
        "Table 3",
        "Figure 8",
        "Figure 9",
        "Figure 12",
        "Figure 13",
        "Figure 14",
        "Figure 15a",
        "Figure 15b",
        "Figure 15c",
        "Figure 15d",
        "Figure 16a",
        "Figure 16b",
        "Figure 16c",
        "Figure 16d",
    ];
    for figure in all {
        assert!(claimed.contains(figure), "{figure} has none");
    }
    assert!(standard().outputs.iter().any(|row| row.figure == "Figure 10"), "its text has no number");
}

#[test]
fn each_status_is_provoked() {
    for status in ["OK", "REMOTE_AUTHENTICATION_FAILURE", "NACK", "TIMEOUT", "DISPATCH_TIMEOUT"] {
        assert!(output("Table 3", &format!("{status}: operations that end so")) >= 1.0, "{status}");
        assert!(output("Table 3", &format!("{status}: total_delay")) < 50.0, "{status}");
    }
}

#[test]
fn one_transfer_comes_to_line_rate_within_eight_round_trips_and_all_is_ok() {
    assert!(output("Figure 15a", "round trips to line rate") <= 8.0);
    assert!(output("Figure 15a", "operations that were not OK") < 0.5);
    assert!(output("Figure 15a", "rate of the link after that") > 95.0);
    let from_one = output("Figure 15a", "round trips to line rate, initial window of 1");
    assert!(from_one > 40.0, "a quarter of an operation in a round trip: {from_one}");
}

#[test]
fn two_transfers_are_fair_within_five_round_trips_and_not_without_the_local_window() {
    let what = "round trips until both transfers have half";
    assert!(output("Figure 15b", what) <= 5.0);
    assert!(output("Figure 15b", "the most from half after 5 round trips") <= 10.0);
    assert!(output("Figure 15c", "as slow as with both signals") >= 10.0);
    assert!(output("Figure 15c", what) >= 10.0 * output("Figure 15b", what).max(1.0));
}

#[test]
fn small_reads_are_slowed_by_half_at_most() {
    for size in [4, 64, 1024, 4096] {
        for share in ["median", "99 %"] {
            let slowed = output("Figure 12", &format!("beside {size} KB: slowdown of small reads, {share}"));
            assert!((0.99..=1.5).contains(&slowed), "{size} KB, {share}: {slowed}");
        }
    }
    let slowed = output("Figure 13", "load of 50 %: slowdown of small reads, median");
    assert!((0.99..=1.5).contains(&slowed), "{slowed}");
}

#[test]
fn classes_of_service_spare_small_reads_the_queue_of_large_ones() {
    let [apart, together] = ["", ", all in one class"]
        .map(|class| output("Figure 12", &format!("beside 4096 KB{class}: slowdown of small reads, median")));
    assert!(together > 1.05 * apart, "{together} and {apart}");
}

#[test]
fn nacks_keep_the_goodput_that_collapses_without_them() {
    let goodput = |what: &str| output("Figure 16c", &format!("2 clients, windows of 8192 KB: {what}"));
    assert!(goodput("goodput with NACKs") >= 90.0);
    assert!(goodput("goodput without") < 45.0);
    assert!(output("Incast", "8 clients, with NACKs: goodput with congestion control") >= 90.0);
    assert!(output("Incast", "8 clients, with NACKs, first 0.2 ms: goodput with congestion control") >= 80.0);
    assert!(
        output("Incast", "8 clients, without NACKs, first 0.2 ms: goodput with congestion control") < 50.0
    );
}

#[test]
fn goodput_is_never_more_than_the_link_carries() {
    for row in standard().outputs.iter().filter(|row| row.unit == "% of the link") {
        // Operations are counted where they end: at both ends of a span one of 1,500 may be on either side.
        assert!((0.0..=100.5).contains(&row.model), "{row:?}");
    }
}

#[test]
fn two_runs_say_the_same_and_progress_counts_every_part_once() {
    let mut told = Vec::new();
    let again = model_1rma_with(&OneShotInputs::default(), &mut |_, done, of| told.push((done, of)));
    assert_eq!(*standard(), again);
    let of = u32::try_from(told.len()).expect("parts are few");
    assert_eq!(told, (0..of).map(|done| (done, of)).collect::<Vec<_>>());
}

#[test]
fn nothing_is_both_an_input_and_an_output_and_all_is_a_number() {
    let report = standard();
    let inputs: HashSet<&str> = report.inputs.iter().map(|row| row.name).collect();
    assert_eq!(inputs.len(), report.inputs.len(), "each input has a name of its own");
    let mut outputs = HashSet::new();
    for row in &report.outputs {
        assert!(!inputs.contains(&*row.what), "{} is an input", row.what);
        assert!(outputs.insert((row.figure, &row.what, row.unit)), "{} is there twice", row.what);
        assert!(row.model.is_finite() && row.model >= 0.0, "{row:?}");
        assert_eq!(row.paper.is_some(), row.deviation_percent.is_some(), "{row:?}");
    }
    for row in &report.inputs {
        assert!(matches!(row.origin, Origin::Paper | Origin::Assumed), "{row:?}");
        assert!(row.origin == Origin::Paper || row.source.len() > 20, "{row:?}");
    }
}

#[test]
fn text_and_json_have_inputs_outputs_and_claims() {
    let text = standard().to_string();
    let places = ["INPUTS", "\nOUTPUTS", "\nCLAIMS", "\nREADINGS"].map(|head| text.find(head));
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?}");
    let json = serde_json::to_value(standard()).expect("numbers are finite");
    assert_eq!(json["model"], "1rma");
    let rows = json["outputs"].as_array().expect("rows");
    assert!(rows.iter().any(|row| row["holds"] == true) && rows.iter().any(|row| row["holds"] == false));
}
