//! `portcullis doctor` as a program: it reports the checks and the device, everything holds on the software NIC, and
//! programs can read the output.

use serde_json::Value;
use std::process::{Command, Output};

fn doctor(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
    command.arg("doctor").args(arguments).output().expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<_> = value.as_object().expect("an object").keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

/// Whether this machine has an RDMA device, as the kernel reports.
fn has_device() -> bool {
    std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some())
}

#[test]
fn everything_holds_on_the_software_nic_and_programs_can_read_it() {
    let output = doctor(&["--nic", "software", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let said: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!(keys(&said), ["chosen", "chunks", "device", "guarantees", "mechanism", "times"]);
    assert_eq!(said["device"], "softnic");
    assert_eq!(said["chosen"], "chosen with --nic software");
    assert_eq!(said["mechanism"], "memory-window");
    assert_eq!(said["chunks"], "nic");
    let guarantees = said["guarantees"].as_array().expect("a list");
    assert_eq!(guarantees.len(), 23);
    for guarantee in guarantees {
        assert_eq!(keys(guarantee), ["detail", "name", "verdict"]);
        assert_eq!(guarantee["verdict"], "holds", "{guarantee}");
        assert!(guarantee["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{guarantee}");
    }
    let times = said["times"].as_array().expect("a list");
    assert_eq!(times.len(), 13, "{times:?}");
    for time in times {
        assert_eq!(keys(time), ["least_us", "median_us", "most_us", "name", "rounds"]);
        assert!(time["median_us"].as_f64() > Some(0.0) && time["rounds"].as_u64() > Some(0), "{time}");
    }
}

#[test]
fn people_are_told_first_what_is_tried_then_a_line_a_guarantee_and_the_mechanism_at_the_end() {
    let output = doctor(&["--nic", "software"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    let first = "the software NIC, chosen with --nic software: the 23 guarantees that permissions rest on";
    assert!(said.starts_with(first), "{said}");
    assert_eq!(said.lines().filter(|line| line.starts_with("holds ")).count(), 23, "{said}");
    assert!(said.contains("softnic: serve will use: memory-window\n"), "{said}");
    assert!(said.contains("queue-pair-recovery"), "{said}");
    assert!(!said.contains('\x1b'), "no colours where nobody sees them: {said}");
    assert_eq!(text(&output.stderr), "", "no progress bar where nobody sees it");
}

#[test]
fn without_a_device_nothing_is_tried_and_that_is_no_success() {
    if has_device() {
        eprintln!("skipped: this machine has an RDMA device");
        return;
    }
    for arguments in [&[][..], &["--json"], &["--device", "mlx5_7"]] {
        let output = doctor(arguments);
        assert_eq!(output.status.code(), Some(4), "{arguments:?}");
        let said = text(&output.stderr);
        assert!(said.contains("nothing was tried") && said.contains("--nic software"), "{said}");
        assert_eq!(text(&output.stdout), "");
    }
}

#[test]
fn a_call_that_makes_no_sense_is_wrong() {
    assert_eq!(doctor(&["--colour"]).status.code(), Some(2));
    let output = doctor(&["--nic", "software", "--device", "mlx5_0"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--device"), "{}", text(&output.stderr));
}

#[test]
fn help_teaches_by_example() {
    let output = doctor(&["--help"]);
    let said = text(&output.stdout);
    for told in ["portcullis doctor --nic software", "Exit codes", "\"guarantees\"", "4 nothing was tried"] {
        assert!(said.contains(told), "{told}: {said}");
    }
}
