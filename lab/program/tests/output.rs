//! The program's output to readers that leave, to files, and to programs.

use serde_json::Value;
use std::io::Read;
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
    for call in CALLS {
        let mut child =
            portcullis(call).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        drop(child.stdout.take());
        let mut errors = String::new();
        child.stderr.take().expect("it is piped").read_to_string(&mut errors).expect("text");
        let status = child.wait().expect("it ends");
        assert!(status.success(), "{call:?}: {status}, {errors}");
        assert_eq!(errors, "", "{call:?}");
    }
}

#[test]
fn nothing_in_a_file_is_a_colour() {
    for call in CALLS {
        let output = portcullis(call).env("CLICOLOR", "1").output().expect("it starts");
        assert!(!output.stdout.contains(&0x1b) && !output.stderr.contains(&0x1b), "{call:?}");
    }
    let wrong = portcullis(&["bench", "read_lta"]).output().expect("it starts");
    assert!(!wrong.stderr.is_empty() && !wrong.stderr.contains(&0x1b));
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
