//! The first thread of a process detects that its stack is used up, whatever its limit is. The test has a harness of
//! its own, because others run tests on further threads.

use portcullis_memory::is_stack_used_up;
use std::process::Command;

/// Depth at which the stack is used up.
fn dive(depth: u64) -> u64 {
    let frame = std::hint::black_box([depth; 16]);
    if is_stack_used_up() { frame[3] } else { dive(depth + 1).max(frame[5]) }
}

/// Set in a child, which dives.
const CHILD: &str = "PORTCULLIS_DIVE";

fn main() {
    if std::env::var_os(CHILD).is_some() {
        assert_eq!(rustix::thread::gettid(), rustix::process::getpid());
        return println!("{}", dive(0));
    }
    let program = std::env::current_exe().expect("a test is a program");
    let depth = |limit: &str| {
        let mut child = Command::new("sh");
        child.args(["-c", &format!("ulimit -S -s {limit} && exec \"$0\"")]).arg(&program).env(CHILD, "1");
        let output = child.output().expect("a child");
        let said = String::from_utf8_lossy(&output.stdout).trim().parse::<u64>();
        said.unwrap_or_else(|_| panic!("{limit}: {output:?}"))
    };
    let [small, usual] = ["512", "8192"].map(depth);
    assert!(small > 100 && usual > 4 * small, "{small} and {usual} deep");
}
