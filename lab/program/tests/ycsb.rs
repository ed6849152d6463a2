//! `portcullis-lab bench ycsb` as a program: the content of its report, and that the figures fit together.

use serde_json::Value;
use std::process::{Command, Output};

fn ycsb(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis-lab"));
    let few = ["--keys", "2000", "-n", "900", "--rounds", "3"];
    command.args(["bench", "ycsb"]).args(few).args(arguments).output().expect("the program starts")
}

fn json(arguments: &[&str]) -> Value {
    let output = ycsb(&[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

fn list<'a>(report: &'a Value, name: &str) -> &'a [Value] {
    report[name].as_array().unwrap_or_else(|| panic!("{name} is no list: {report}"))
}

fn number(row: &Value, name: &str) -> f64 {
    row[name].as_f64().unwrap_or_else(|| panic!("{name} is no number: {row}"))
}

fn check_spread(spread: &Value) {
    let [least, median, most] = ["least", "median", "most"].map(|name| number(spread, name));
    assert!(0.0 < least && least <= median && median <= most, "{spread}");
}

fn check_figures(row: &Value) {
    assert!(number(row, "mops") > 0.0 && number(row, "p50") > 0.0, "{row}");
    assert!(number(row, "p99") >= number(row, "p50"), "{row}");
    for ratio in ["mops_ratio", "p50_ratio"] {
        check_spread(&row[ratio]);
        if row["protection"] == row["against"] && row["blocks"] != "chunks" {
            assert_eq!(number(&row[ratio], "median"), 1.0, "{row}");
        }
    }
}

#[test]
fn there_is_a_row_for_each_workload_value_grain_and_mechanism() {
    let workloads = ["a", "b", "c", "d", "f", "read", "half", "write"];
    let report = json(&[
        "--workload",
        &workloads.join(","),
        "--value-bytes",
        "64,1KiB",
        "--grain",
        "block,extent",
        "--depth",
        "8",
        "--clients",
        "2",
    ]);
    assert!(number(&report, "pingpong_rtt") > 0.0);
    assert_eq!((report["keys"].as_u64(), report["rounds"].as_u64()), (Some(2000), Some(3)));
    let rows = list(&report, "rows");
    assert_eq!(rows.len(), workloads.len() * 2 * 2 * 2);
    for workload in workloads {
        for bytes in [64, 1024] {
            for (grain, protection) in [
                ("block", "none"),
                ("extent", "none"),
                ("block", "memory-window"),
                ("extent", "memory-window"),
            ] {
                let is_this = |row: &&Value| {
                    row["workload"] == workload
                        && row["value_bytes"] == bytes
                        && row["grain"] == grain
                        && row["protection"] == protection
                };
                assert_eq!(rows.iter().filter(is_this).count(), 1, "{workload} {bytes} {grain} {protection}");
            }
        }
    }
    for row in rows {
        check_figures(row);
        assert_eq!((row["clients"].as_u64(), row["depth"].as_u64()), (Some(2), Some(8)), "{row}");
        assert!(row["operations"].as_u64() >= Some(900), "{row}");
    }
}

#[test]
fn what_is_done_one_at_a_time_is_compared_with_a_bare_read() {
    let report = json(&["--protection", "memory-window"]);
    let singles = list(&report, "singles");
    let names: Vec<&Value> = singles.iter().map(|row| &row["what"]).collect();
    assert_eq!(names, ["bare-read", "get", "multi-get"]);
    for row in singles {
        check_figures(row);
        check_spread(&row["of_bare_read"]);
    }
    let of_bare_read = |row: usize| number(&singles[row]["of_bare_read"], "median");
    assert_eq!((of_bare_read(0), singles[2]["keys"].as_u64()), (1.0, Some(16)));
    // A get makes two reads one after the other, and sixteen gets take longer than one.
    assert!(1.0 < of_bare_read(1) && of_bare_read(1) < of_bare_read(2), "{report}");
}

#[test]
fn the_parts_of_a_key_add_up_to_all_that_it_takes() {
    let report = json(&["--value-bytes", "100"]);
    let [memory] = list(&report, "memory") else { panic!("{report}") };
    let parts = memory["parts"].as_object().expect("parts");
    let sum: f64 = parts.values().map(|part| part.as_f64().expect("a number")).sum();
    assert!((sum / number(memory, "bytes_per_key") - 1.0).abs() < 1e-6, "{memory}");
    assert_eq!((number(&memory["parts"], "key"), number(&memory["parts"], "value")), (8.0, 100.0));
    assert_eq!(memory["keys"].as_u64(), Some(2000));
    assert!(number(memory, "load_factor") > 0.0 && number(memory, "load_factor") <= 1.0);
}

#[test]
fn blocks_in_objects_and_in_chunks_are_compared_in_one_run_and_chunks_go_back_when_keys_are_removed() {
    let kinds = ["objects", "chunks"];
    let all = ["--blocks", "objects,chunks", "--protection", "memory-window", "--workload", "half,d"];
    let report = json(&[&all[..], &["--value-bytes", "984"]].concat());
    let blocks_of = |list: &'static str| -> Vec<String> {
        self::list(&report, list)
            .iter()
            .map(|row| row["blocks"].as_str().expect("a name").to_owned())
            .collect()
    };
    assert_eq!(blocks_of("rows"), [kinds, kinds].concat());
    assert_eq!(blocks_of("singles"), ["objects", "chunks"].repeat(3));
    assert_eq!(blocks_of("memory"), kinds);
    list(&report, "rows").iter().for_each(check_figures);
    let [objects, chunks] = list(&report, "memory") else { panic!("{report}") };
    for memory in [objects, chunks] {
        let left = memory["keys_left"].as_u64().expect("a count");
        assert!((100..400).contains(&left), "a tenth of 2000 and of those of workload D: {memory}");
    }
    assert_eq!(number(objects, "returned"), 0.0, "an extent stays: {objects}");
    // Eight blocks of this size fill a chunk, and 0.9^8 of all chunks have none left: 43 %.
    let returned = number(chunks, "returned");
    assert!((0.3..0.6).contains(&returned), "{chunks}");
    let wrong = ycsb(&["--blocks", "chunks", "--clients", "2"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("--clients 1"));
}

#[test]
fn every_mechanism_can_be_compared() {
    let all = ["none", "memory-window", "memory-region", "queue-pair", "node-copy"];
    let report = json(&["--protection", &all.join(","), "--workload", "f"]);
    let protections: Vec<&Value> = list(&report, "rows").iter().map(|row| &row["protection"]).collect();
    assert_eq!(protections, all);
    assert!(list(&report, "rows").iter().all(|row| row["against"] == "none"));
}

#[test]
fn people_get_tables_and_wrong_calls_an_explanation() {
    let output = ycsb(&["--workload", "C"]);
    let text = String::from_utf8(output.stdout).expect("text");
    for heading in ["workload", "p50 of bare read", "bytes per key", "rate of first"] {
        assert!(text.contains(heading), "{heading}: {text}");
    }
    for wrong in [&["--workload", "e"][..], &["--value-bytes", "4"], &["--depth", "0"], &["--rounds", "0"]] {
        let output = ycsb(wrong);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
        assert!(!output.stderr.is_empty(), "{wrong:?}");
    }
}
