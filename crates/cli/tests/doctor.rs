//! `portcullis doctor` as a program: on the software NIC everything holds, and programs can read what it says.

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

#[test]
fn everything_holds_on_the_software_nic_and_programs_can_read_it() {
    let output = doctor(&["--device", "software", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let said: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!(keys(&said), ["device", "guarantees", "mechanism", "times"]);
    assert_eq!(said["device"], "softnic");
    assert_eq!(said["mechanism"], "memory-window");
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
fn people_get_a_line_a_guarantee_and_the_mechanism_at_the_end() {
    let output = doctor(&["--device", "software"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    assert_eq!(said.lines().filter(|line| line.starts_with("holds ")).count(), 23, "{said}");
    assert!(said.contains("softnic: serve will use: memory-window\n"), "{said}");
    assert!(said.contains("queue-pair-recovery"), "{said}");
    assert!(!said.contains('\x1b'), "no colours where nobody sees them: {said}");
    assert_eq!(text(&output.stderr), "", "no progress bar where nobody sees it");
}

#[test]
fn a_device_that_is_not_there_is_a_wrong_call_and_those_that_are_get_named() {
    let output = doctor(&["--device", "mlx5_7"]);
    assert_eq!(output.status.code(), Some(2));
    let said = text(&output.stderr);
    assert!(said.contains("no device \"mlx5_7\"") && said.contains("software"), "{said}");
    assert_eq!(doctor(&["--colour"]).status.code(), Some(2));
}

#[test]
fn help_teaches_by_example() {
    let output = doctor(&["--help"]);
    let said = text(&output.stdout);
    for told in ["portcullis doctor --device software", "Exit codes", "\"guarantees\""] {
        assert!(said.contains(told), "{told}: {said}");
    }
}
