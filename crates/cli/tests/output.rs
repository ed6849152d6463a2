//! The program's output to readers that leave, to files, and to programs.

use crate::readers;

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
    readers::leave_silently(portcullis, &CALLS);
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
    readers::get_no_colours(portcullis, &CALLS, &["serve", "--memroy", "1GiB"]);
}
