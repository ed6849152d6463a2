//! Checks of output that the tests of both programs make: readers that leave, and colours.

use std::io::Read;
use std::process::{Command, Stdio};

/// Runs calls whose reader leaves at once. Each must succeed, and write nothing on standard error.
pub fn leave_silently(program: impl Fn(&[&str]) -> Command, calls: &[&[&str]]) {
    for call in calls {
        let mut child =
            program(call).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        drop(child.stdout.take());
        let mut errors = String::new();
        child.stderr.take().expect("it is piped").read_to_string(&mut errors).expect("text");
        let status = child.wait().expect("it ends");
        assert!(status.success(), "{call:?}: {status}, {errors}");
        assert_eq!(errors, "", "{call:?}");
    }
}

/// Runs calls, and a wrong one, whose output goes to files. None may write a colour.
pub fn get_no_colours(program: impl Fn(&[&str]) -> Command, calls: &[&[&str]], wrong: &[&str]) {
    for call in calls {
        let output = program(call).env("CLICOLOR", "1").output().expect("it starts");
        assert!(!output.stdout.contains(&0x1b) && !output.stderr.contains(&0x1b), "{call:?}");
    }
    let wrong = program(wrong).output().expect("it starts");
    assert!(!wrong.stderr.is_empty() && !wrong.stderr.contains(&0x1b));
}
