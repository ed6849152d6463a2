//! The program's output to readers that leave, to files, and to programs.

use std::io::Read;
use std::process::{Command, Stdio};

fn portcullis(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
    command.args(arguments).stdin(Stdio::null()).env_remove("RUST_LOG");
    command
}

/// Calls that print something and end.
const CALLS: [&[&str]; 5] = [
    &["--help"],
    &["serve", "--help"],
    &["serve", "--print-config", "--listen", "shm:/nowhere"],
    &["doctor", "--nic", "software"],
    &["kv", "--help"],
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
fn a_reader_of_errors_that_leaves_changes_no_exit_code() {
    for (call, code) in [(&["serve", "--memory", "12 parsecs"][..], 2), (&["doctor", "--device", "none"], 4)]
    {
        let mut child = portcullis(call).stderr(Stdio::piped()).spawn().expect("it starts");
        drop(child.stderr.take());
        let code_seen = child.wait().expect("it ends").code();
        // A machine with an RDMA device reports instead that it has no device of that name.
        assert!(code_seen == Some(code) || code_seen == Some(2), "{call:?}: {code_seen:?}");
    }
}

#[test]
fn nothing_in_a_file_is_a_colour() {
    for call in CALLS {
        let output = portcullis(call).env("CLICOLOR", "1").output().expect("it starts");
        assert!(!output.stdout.contains(&0x1b) && !output.stderr.contains(&0x1b), "{call:?}");
    }
    let wrong = portcullis(&["serve", "--memroy", "1GiB"]).output().expect("it starts");
    assert!(!wrong.stderr.is_empty() && !wrong.stderr.contains(&0x1b));
}
