//! `portcullis-lab bench scale` as a program, and benchmarks that may use one processor only.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::Value;
use std::process::{Command, Output};

fn bench(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis-lab"));
    command.arg("bench").args(arguments).env_remove("RUST_LOG").output().expect("the program starts")
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

/// The report of very short rows.
fn scale(arguments: &[&str]) -> Value {
    let short = ["scale", "--duration", "0.02", "--object-bytes", "64KiB", "--json"];
    json(&bench(&[&short, arguments].concat()))
}

fn rows(report: &Value) -> &[Value] {
    report["rows"].as_array().expect("rows")
}

fn check_row(row: &Value) {
    let mut keys: Vec<&str> = row.as_object().expect("an object").keys().map(String::as_str).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["bytes", "clients", "gbps", "memcpy_gbps", "mops", "p50", "p99", "what"], "{row}");
    let number = |key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key} is no number: {row}"));
    for key in ["mops", "gbps", "memcpy_gbps"] {
        assert!(number(key) > 0.0, "{key}: {row}");
    }
    let bandwidth = number("mops") * number("bytes") / 1_000.0;
    assert!((number("gbps") / bandwidth - 1.0).abs() < 1e-9, "10^9 bytes a second: {row}");
}

#[test]
fn a_short_run_has_a_row_for_each_number_of_clients_with_all_keys() {
    let report = scale(&["--what", "reads", "--sizes", "64,4KiB", "--clients", "1,2"]);
    let found: Vec<_> = rows(&report)
        .iter()
        .map(|row| (row["what"].as_str(), row["bytes"].as_u64(), row["clients"].as_u64()))
        .collect();
    let row = |bytes, clients| (Some("read"), Some(bytes), Some(clients));
    assert_eq!(found, [row(64, 1), row(64, 2), row(4096, 1), row(4096, 2)]);
    rows(&report).iter().for_each(check_row);
    assert_eq!(
        (report["benchmark"].as_str(), report["object_bytes"].as_u64()),
        (Some("scale"), Some(64 << 10))
    );
    assert!(report["processors"].as_u64() > Some(0));
}

#[test]
fn every_kind_of_row_can_be_measured() {
    let all = ["--what", "reads,udp,table,queue,gateway", "--sizes", "64", "--clients", "1"];
    let report = scale(&all);
    let kinds: Vec<_> = rows(&report).iter().map(|row| row["what"].as_str().expect("a name")).collect();
    let gateway = ["gateway-get", "gateway-set", "gateway-get", "gateway-set"];
    assert_eq!(kinds, [&["read", "udp-read", "table-read", "table-write", "queue"][..], &gateway].concat());
    rows(&report).iter().for_each(check_row);
}

#[test]
fn a_wrong_call_is_told_which_option_is_wrong() {
    for (arguments, option) in [
        (&["--clients", "0"][..], "--clients"),
        (&["--clients", "1,x"], "--clients"),
        (&["--clients", "1,,2"], "--clients"),
        (&["--what", "reads,writes"], "--what"),
        (&["--sizes", "64,17MiB"], "--sizes"),
        (&["--sizes", "0"], "--sizes"),
        (&["--duration", "0"], "--duration"),
        (&["--object-bytes", "much"], "--object-bytes"),
        (&["--object-bytes", "1MiB", "--sizes", "2MiB"], "--object-bytes"),
    ] {
        let output = bench(&[&["scale"], arguments].concat());
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {told}");
        assert!(told.contains(option), "{arguments:?}: {told}");
    }
}

#[test]
fn too_little_memory_is_refused_before_anything_is_measured() {
    let output = bench(&["scale", "--clients", "1", "--object-bytes", "8191TiB"]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{told}");
    assert!(told.contains("--object-bytes") && told.contains("--clients"), "{told}");
}

/// Runs `act` on a thread that may use one processor only, as may the processes that it starts.
fn on_one_processor<T: Send>(act: impl FnOnce() -> T + Send) -> Option<T> {
    let allowed = sched_getaffinity(None).ok()?;
    let first = (0..CpuSet::MAX_CPU).find(|&processor| allowed.is_set(processor))?;
    let mut one = CpuSet::new();
    one.set(first);
    std::thread::scope(|scope| {
        let run = scope.spawn(|| sched_setaffinity(None, &one).is_ok().then(act));
        run.join().expect("it returns its result")
    })
}

#[test]
fn on_one_processor_benchmarks_end_and_say_that_there_is_one() {
    for arguments in [
        &["read_lat", "-n", "50", "--json"][..],
        &["read_rate", "-n", "200", "--json"],
        &["read_lat", "--nic", "udp", "-n", "20", "--json"],
        &["extension", "-D", "1", "--json"],
        &["scale", "--what", "reads", "--sizes", "64", "--clients", "1", "--duration", "0.02", "--json"],
    ] {
        let Some(output) = on_one_processor(|| bench(arguments)) else {
            eprintln!("SKIPPED: this machine does not let a thread choose its processor");
            return;
        };
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(told.contains("one processor only") && told.contains("Allow two"), "{arguments:?}: {told}");
        let report = json(&output);
        assert_eq!(report["pingpong_rtt"], Value::Null, "{arguments:?}: nothing was measured");
    }
}
