//! The program's output to readers that leave, to files, and to programs.

#[path = "../../../crates/cli/tests/readers/mod.rs"]
mod readers;

use serde_json::Value;
use std::process::{Command, Stdio};

fn portcullis(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis-lab"));
    command.args(arguments).stdin(Stdio::null()).env_remove("RUST_LOG");
    command
}

/// Calls that print something and end.
const CALLS: [&[&str]; 7] = [
    &["--help"],
    &["bench", "read_lat", "-n", "100"],
    &["bench", "read_rate", "-n", "1000", "--json"],
    &["bench", "violation", "-n", "5"],
    &["sim", "--seed", "1", "--trace"],
    &["sim", "--seeds", "2"],
    &["demo", "--help"],
];

#[test]
fn a_reader_that_leaves_ends_nothing_with_a_noise() {
    readers::leave_silently(portcullis, &CALLS);
}

#[test]
fn nothing_in_a_file_is_a_colour() {
    readers::get_no_colours(portcullis, &CALLS, &["bench", "read_lta"]);
}

fn bench(arguments: &[&str]) -> Value {
    let output = portcullis(&[&["bench", "--json"], arguments].concat()).output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one object")
}

#[test]
fn bandwidth_is_told_of_rates_and_from_4_kib_on_of_latencies() {
    assert_eq!(bench(&["read_lat", "-n", "100"])["bw_average"], Value::Null);
    for name in ["read_lat", "read_rate", "write_rate"] {
        let told = bench(&[name, "-s", "4KiB", "-n", "2000"]);
        let (rate, bandwidth) = (told["mops"].as_f64().expect("a rate"), told["bw_average"].as_f64());
        let expected = rate * 1e6 * 4096.0 / 1_048_576.0;
        assert!(bandwidth.is_some_and(|told| (told / expected - 1.0).abs() < 1e-6), "{told}");
    }
    let table = |arguments: &[&str]| {
        let output = portcullis(&[&["bench"], arguments].concat()).output().expect("it starts");
        String::from_utf8(output.stdout).expect("text")
    };
    assert!(table(&["read_lat", "-s", "4096", "-n", "100"]).contains("BW average[MiB/sec]"));
    assert!(!table(&["read_lat", "-s", "64", "-n", "100"]).contains("BW average[MiB/sec]"));
    assert!(
        table(&["read_rate", "-s", "64KiB", "-n", "500"]).contains("BW average[MiB/sec]   MsgRate[Mpps]")
    );
}
