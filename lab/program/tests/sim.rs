//! `portcullis-lab sim` as a program: its output for people and for programs, and that a run can be repeated.

use serde_json::Value;
use std::process::{Command, Output};

fn sim(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis-lab"));
    command.arg("sim").args(arguments).output().expect("the program starts")
}

fn json(arguments: &[&str]) -> Value {
    let output = sim(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

/// The value without the one field that may differ.
fn without_wall(mut value: Value) -> Value {
    let wall = value.as_object_mut().expect("an object").remove("wall_seconds");
    assert!(wall.is_some_and(|wall| wall.is_f64()));
    value
}

#[test]
fn two_runs_of_one_seed_differ_in_nothing_but_their_wall_time() {
    let run = || without_wall(json(&["--seed", "42", "--json"]));
    let first = run();
    assert_eq!(first, run());
    for field in ["ok", "seed", "trace_hash", "events", "faults", "violations_tried", "violations_refused"] {
        assert!(first.get(field).is_some(), "{field} is missing: {first}");
    }
    assert_eq!((first["ok"].as_bool(), first["seed"].as_u64()), (Some(true), Some(42)));
    assert!(first["events"].as_u64() > Some(1_000));
}

#[test]
fn many_seeds_sum_up_the_same_on_one_thread_and_on_two() {
    let run = |jobs| without_wall(json(&["--seed", "100", "--seeds", "12", "--jobs", jobs, "--json"]));
    let one = run("1");
    assert_eq!(one, run("2"));
    assert_eq!(one["seeds"].as_u64(), Some(12));
}

#[test]
fn the_command_that_a_run_prints_of_itself_gives_the_same_run() {
    for seed in [5, 42, 77] {
        let plan = portcullis_sim::Plan::draw(seed);
        let command = plan.command();
        let mut words: Vec<&str> = command.split(' ').skip(2).filter(|&word| word != "--trace").collect();
        words.push("--json");
        let (told, plain) = (json(&words), json(&["--seed", &seed.to_string(), "--json"]));
        assert_eq!(told["trace_hash"], plain["trace_hash"], "{command}");
    }
}

#[test]
fn options_override_what_the_seed_draws() {
    let with = json(&["--seed", "42", "--json", "--faults", "cut,node-pause", "--microseconds", "9000"]);
    let faults = with["faults"].as_object().expect("by kind");
    assert!(faults.keys().all(|kind| kind == "cut" || kind == "node-pause"), "{faults:?}");
    let quiet =
        json(&["--seed", "42", "--json", "--faults", "none", "--hostile", "0", "--minutes", "0.0001"]);
    assert!(quiet["faults"].as_object().is_some_and(serde_json::Map::is_empty));
    assert_eq!(quiet["violations_tried"], quiet["violations_refused"]);
    assert!(quiet["virtual_us"].as_u64() >= Some(6_000));
}

#[test]
fn a_trace_can_be_read() {
    let output = sim(&["--seed", "42", "--trace"]);
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(text.contains("attaches to node") || text.contains("has a turn"), "{text}");
    assert!(text.contains("no promise broken"), "{text}");
}

#[test]
fn a_wrong_call_is_told_what_is_wrong() {
    for (arguments, told) in [
        (&["--faults", "flood"][..], "no fault is called \"flood\""),
        (&["--seed", "1", "--clients", "2", "--hostile", "3"], "--hostile 3 is more than the 2 clients"),
        (&["--seed", "1", "--minutes", "0"], "must be more than 0"),
        (&["--seed", "1", "--clients", "0"], "0 is not in 1..=100000"),
    ] {
        let output = sim(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(told), "{arguments:?}: {said}");
    }
}
