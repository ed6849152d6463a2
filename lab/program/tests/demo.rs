//! The demo, as people and scripts call it.

use std::process::{Command, Output, Stdio};

fn portcullis(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis-lab"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn everything_that_the_demo_shows_holds() {
    let folder = tempfile::tempdir().expect("a folder");
    let long: Vec<u8> = (0..700_000u32).map(|i| (i % 251).to_le_bytes()[0]).collect();
    for (name, bytes) in [("empty", &b""[..]), ("short", b"short"), ("long", &long)] {
        std::fs::write(folder.path().join(name), bytes).expect("a file");
    }
    let folder = folder.path().to_str().expect("text");
    let output = portcullis(&["demo", "--json", folder]).output().expect("it runs");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one object");
    assert_eq!(report["ok"], true, "{report:#}");
    assert_eq!(report["problems"], serde_json::json!([]));
    assert_eq!(report["files"]["equal"], 3);
    assert_eq!(report["files"]["bytes"], 700_005);
    assert_eq!(report["late_reader"]["protected"]["got"], serde_json::Value::Null);
    assert_eq!(report["late_reader"]["unprotected"]["got"], report["late_reader"]["secret"]);
    assert_eq!(report["out_of_range"]["refused"], 6);
    let table = &report["shared_table"];
    assert_eq!((&table["moved"], &table["buckets"]), (&24.into(), &48.into()), "{table:#}");
    // How many keys the loaders put in depends on the machine.
    assert!(table["content"]["told"].as_u64() > Some(100), "{table:#}");
    for none in ["lost", "twice", "torn", "strange", "unlinked", "dangling"] {
        assert_eq!(table["content"][none], 0, "{table:#}");
    }
    assert_eq!(table["objects_left"], 0, "{table:#}");
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
}

#[test]
fn a_folder_that_is_not_there_is_a_wrong_call() {
    let output = portcullis(&["demo", "/nowhere/at/all"]).output().expect("it runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("/nowhere/at/all"), "{}", said(&output));
}

#[test]
fn a_demo_without_a_place_for_its_sockets_says_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut demo = portcullis(&["demo", folder.path().to_str().expect("text")]);
    let output = demo.env("TMPDIR", folder.path().join("nowhere")).output().expect("it runs");
    assert_eq!(output.status.code(), Some(3));
    assert!(said(&output).contains("nothing could be shown"), "{}", said(&output));
}
