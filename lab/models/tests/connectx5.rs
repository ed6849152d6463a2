//! The cost model of the paper's hardware: the conditions that hold by its construction, whatever its results.

use portcullis_models::{Effort, Inputs, ModelReport, Origin, connectx5_with};
use std::collections::HashSet;
use std::sync::OnceLock;

fn model(inputs: &Inputs) -> ModelReport {
    connectx5_with(inputs, Effort::brief(), &mut |_, _, _| {})
}

fn standard() -> &'static ModelReport {
    static REPORT: OnceLock<ModelReport> = OnceLock::new();
    REPORT.get_or_init(|| model(&Inputs::default()))
}

fn output(report: &ModelReport, figure: &str, what: &str, unit: &str) -> f64 {
    let row = report
        .outputs
        .iter()
        .find(|row| row.figure == figure && row.what == what && (unit.is_empty() || row.unit == unit));
    row.unwrap_or_else(|| panic!("there is no {figure}, {what}, {unit}")).model
}

const RATE: &str = "M permissions/s a core";

#[test]
fn two_runs_say_the_same_and_progress_counts_every_run_once() {
    let mut told = Vec::new();
    let again = connectx5_with(&Inputs::default(), Effort::brief(), &mut |_, done, of| told.push((done, of)));
    assert_eq!(*standard(), again);
    let of = u32::try_from(told.len()).expect("runs are few");
    let expected: Vec<(u32, u32)> = (0..of).map(|done| (done, of)).collect();
    assert_eq!(told, expected);
}

#[test]
fn nothing_is_both_an_input_and_an_output() {
    let report = standard();
    let inputs: HashSet<&str> = report.inputs.iter().map(|row| row.name).collect();
    assert_eq!(inputs.len(), report.inputs.len(), "each input has a name of its own");
    let mut outputs = HashSet::new();
    for row in &report.outputs {
        assert!(!inputs.contains(&*row.what), "{} is an input", row.what);
        assert!(outputs.insert((row.figure, &row.what, row.unit)), "{} is there twice", row.what);
    }
}

#[test]
fn every_output_is_a_number_and_every_deviation_is_told() {
    for row in &standard().outputs {
        assert!(row.model.is_finite() && row.model >= 0.0, "{row:?}");
        assert_eq!(row.paper.is_some(), row.deviation_percent.is_some(), "{row:?}");
    }
}

#[test]
fn every_assumption_says_how_it_was_made() {
    for row in standard().inputs.iter().filter(|row| row.origin == Origin::Assumed) {
        assert!(row.source.len() > 20, "{row:?}");
    }
}

#[test]
fn every_figure_is_in_the_report() {
    let figures: HashSet<&str> = standard().outputs.iter().map(|row| row.figure).collect();
    let all =
        ["Figure 5", "Figure 6", "Table 4", "Figure 7", "Figure 8a", "Figure 8b", "Figure 9", "Figure 10"];
    let one_sided = ["OneSidedMW: chains", "OneSidedMW: memory", "OneSidedMW: inserts", "OneSidedMW: swap"];
    for figure in all.into_iter().chain(["Table 5"]).chain(one_sided) {
        assert!(figures.contains(figure), "{figure} is missing");
    }
}

#[test]
fn every_origin_is_named() {
    let origins: Vec<Origin> = standard().inputs.iter().map(|row| row.origin).collect();
    for origin in [Origin::Paper, Origin::Artifact, Origin::Slides, Origin::Assumed] {
        assert!(origins.contains(&origin), "{origin:?}");
    }
    for row in standard().inputs.iter().filter(|row| row.origin == Origin::Slides) {
        assert!(row.source.starts_with("slides"), "{row:?}");
    }
}

#[test]
fn fewer_window_operations_never_lower_the_throughput() {
    let report = standard();
    let steps = ["baseline", "+ Delay", "+ Cont", "+ HO", "+ Expr"];
    for pair in steps.windows(2) {
        let [before, after] = [pair[0], pair[1]].map(|name| output(report, "Figure 6", name, RATE));
        assert!(after > 0.97 * before, "{} has {before}, {} has {after}", pair[0], pair[1]);
    }
}

#[test]
fn the_real_node_does_what_table_4_counts() {
    let report = standard();
    for (name, windows, messages) in [("baseline", 4.0, 2.0), ("+ Delay", 3.0, 2.0), ("+ Cont", 2.0, 2.0)] {
        let counted = output(report, "Table 4", &format!("{name}: window operations"), "");
        assert!((counted - windows).abs() < 0.35, "{name}: {counted}");
        let counted = output(report, "Table 4", &format!("{name}: messages"), "");
        assert!((counted - messages).abs() < 0.2, "{name}: {counted}");
    }
    let expiring = output(report, "Table 4", "+ Expr: messages", "");
    assert!((expiring - 1.0).abs() < 0.1, "+ Expr: {expiring}");
}

#[test]
fn what_is_dearer_lowers_what_rests_on_it_and_nothing_else() {
    let inputs = Inputs::default();
    let dear = model(&Inputs {
        bind_ns: 2 * inputs.bind_ns,
        binds_of_a_core: inputs.binds_of_a_core.map(|rate| rate / 2),
        register_ns: 2 * inputs.register_ns,
        flags_ns: 2 * inputs.flags_ns,
        ..inputs
    });
    let both = |figure, what, unit| [standard(), &dear].map(|report| output(report, figure, what, unit));
    let [before, after] = both("Figure 6", "baseline", RATE);
    assert!(after < 0.9 * before, "binds: {before} became {after}");
    let [before, after] = both("Figure 5", "Patronus, clients a machine: 1", "µs a round of 3");
    assert!(after > before + 0.9, "a bind's latency: {before} became {after}");
    for name in ["MR, clients a machine: 8", "QP, clients a machine: 8"] {
        let [before, after] = both("Figure 5", name, "M accesses/s");
        assert!(after < 0.9 * before, "{name}: {before} became {after}");
    }
    for name in ["Unprot, clients a machine: 32", "RPC, clients a machine: 32"] {
        let [before, after] = both("Figure 5", name, "M accesses/s");
        assert_eq!(before.to_bits(), after.to_bits(), "{name} needs none of it");
    }
    let [before, after] = both("OneSidedMW: chains", "groups of 1: allocation, until the reply", "µs");
    assert!((after - before - inputs.bind_ns as f64 / 1e3).abs() < 0.01, "{before} became {after}");
    for row in standard().outputs.iter().filter(|row| row.figure == "OneSidedMW: memory") {
        let after = output(&dear, row.figure, &row.what, row.unit);
        assert_eq!(row.model.to_bits(), after.to_bits(), "{} takes no time", row.what);
    }
}

#[test]
fn an_allocation_by_chain_takes_at_least_its_parts_and_the_lock_a_part_of_it() {
    let report = standard();
    let prices = Inputs::default().one_sided;
    for group in [1, 2, 4, 8] {
        let value =
            |what: &str| output(report, "OneSidedMW: chains", &format!("groups of {group}: {what}"), "");
        // Two READs for the pop, one for the record, a ticket, and a bind.
        let least = (4 * prices.loopback_read_ns + Inputs::default().bind_ns) as f64 / 1e3;
        assert!(value("allocation, until the reply") > least);
        let granted = value("allocation, until the reply");
        assert!(value("allocation, the lock is held") < granted);
        let refused = value("allocation where no chunk is free, until the reply");
        assert!(refused < granted && granted < 1.5 * refused, "{refused} and {granted}");
        let [pops, frees] = ["allocations of a worker", "frees of a worker"].map(value);
        assert!(frees < pops, "a free also fills the chunk with zeros");
        assert!(value("pops and pushes of a pool") > pops, "the lock is not what one worker waits for");
    }
}

#[test]
fn unprotected_accesses_are_bound_by_the_network_and_then_by_the_nic() {
    let report = standard();
    let few = output(report, "Figure 5", "Unprot, clients a machine: 1", "M accesses/s");
    // Three clients, and 2 µs and a little for each access.
    assert!((1.3..1.5).contains(&few), "{few}");
    let many = output(report, "Figure 5", "Unprot, clients a machine: 64", "M accesses/s");
    assert!((65.0..71.0).contains(&many), "{many}");
}

#[test]
fn table_5_follows_from_its_inputs_and_a_message() {
    let report = standard();
    let inputs = Inputs::default();
    let notify = output(report, "Table 5", "notifying the manager", "");
    let without = output(report, "Table 5", "held up without spares", "");
    let with = output(report, "Table 5", "held up with spares", "");
    assert!((without - notify - inputs.recover_ns as f64 / 1e3).abs() < 0.01, "{without} is not the sum");
    assert!((with - inputs.promote_ns as f64 / 1e3).abs() < 0.01, "{with} is more than the promotion");
    assert!(notify > inputs.network_ns as f64 / 1e3, "a message crosses the network twice: {notify}");
}

#[test]
fn an_orphaned_lock_stops_the_table_and_a_lease_does_not() {
    let report = standard();
    let stuck = output(report, "Figure 8a", "vanilla: load factor at the end", "");
    assert!((1.0..99.0).contains(&stuck), "{stuck}");
    let full = output(report, "Figure 8a", "leases: load factor at the end", "");
    assert!((full - 100.0).abs() < 1e-9, "{full}");
    let inputs = Inputs::default();
    let most = (inputs.resize_lease_ns / inputs.epoch_ns) as f64;
    let waited = output(report, "Figure 8a", "leases: without an insertion", "");
    assert!(waited < most + 5.0, "{waited} of {most}");
}

#[test]
fn windows_are_five_times_faster_than_regions_in_both_structures() {
    for workload in ["read-only", "half and half", "write-only"] {
        let times = output(standard(), "Figure 9", &format!("{workload}: Patronus over MR"), "");
        assert!(times > 5.0, "{workload}: {times}");
    }
    let times = output(standard(), "Figure 10", "segments of 1024: Patronus over MR", "");
    assert!(times > 5.0, "the queue: {times}");
}

#[test]
fn the_longer_the_value_the_more_a_window_gains_over_a_copy() {
    let over = |bytes: u32| {
        output(standard(), "Figure 9", &format!("read-only, values of {bytes} B: Patronus over RPC"), "")
    };
    assert!(over(4096) > 1.0, "{}", over(4096));
    assert!(over(16384) > over(4096), "{} against {}", over(16384), over(4096));
}

#[test]
fn a_table_by_extent_reads_as_if_it_were_not_protected() {
    let [none, usual] = ["Unprot", "by extent, usual lease"]
        .map(|name| output(standard(), "Figure 9", &format!("read-only, {name}"), ""));
    assert!(usual > 0.97 * none, "{usual} against {none}");
}

#[test]
fn a_get_under_a_permission_of_its_own_takes_a_message_and_a_bind_longer() {
    let inputs = Inputs::default();
    let price = output(standard(), "Figure 9", "a get, the price of protection", "");
    let least = (inputs.network_ns + inputs.rpc_ns + inputs.bind_ns) as f64 / 1e3;
    assert!((least..least + 1.0).contains(&price), "{price} µs, and its parts take {least}");
}

#[test]
fn the_text_keeps_inputs_and_outputs_apart() {
    let text = standard().to_string();
    let [inputs, outputs] = ["INPUTS", "\nOUTPUTS"].map(|head| text.find(head).expect("both are there"));
    assert!(inputs < outputs);
    assert!(text[inputs..outputs].contains("ASSUMED"));
    assert!(text[outputs..].contains("Figure 8b"));
}

#[test]
fn a_report_can_be_read_by_machines() {
    let json = serde_json::to_value(standard()).expect("numbers are finite");
    assert_eq!(json["model"], "connectx5");
    assert!(json["outputs"].as_array().is_some_and(|rows| rows.len() > 100));
}
