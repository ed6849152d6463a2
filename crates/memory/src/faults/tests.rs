//! Programs that fault. Each test that is to end by a signal does so in a process of its own.

use super::{FaultLabel, explain_faults};
#[cfg(target_arch = "x86_64")]
use crate::sandbox::{Cause, Sandbox, SandboxOptions, Trapped};
use crate::{Mapping, Memory};
use libc::{c_int, c_void, siginfo_t};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, raise, sigaction};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

/// Runs one of the tests below in a child process, which faults.
fn run(test: &str) -> Output {
    let this = std::env::current_exe().expect("a test is a program");
    let name = format!("faults::tests::{test}");
    let mut child = Command::new(this);
    child.args(["--exact", &name, "--nocapture", "--test-threads=1"]).env(CHILD, "1");
    child.output().expect("a child")
}

const CHILD: &str = "PORTCULLIS_FAULTS";

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

fn guarded() -> (Mapping, FaultLabel) {
    let memory = Mapping::shareable("test", 3 * 4096).expect("memory");
    memory.allow_writes(4096, 4096, false).expect("pages");
    let label = memory.label(4096, 4096, "the middle page");
    (memory, label)
}

#[test]
fn a_write_is_explained_and_ends_the_program_by_the_signal() {
    if is_child() {
        explain_faults().expect("a handler");
        explain_faults().expect("once more");
        let (memory, _label) = guarded();
        let _another = memory.label(0, 4096, "the first page");
        memory.store(4088, 1);
        assert_eq!(memory.load(4096), 0, "it can be read");
        eprintln!("address {:#x}", memory.start().addr().get() + 4104);
        memory.store(4104, 1);
        unreachable!("it cannot be written");
    }
    let Output { status, stderr, .. } = run("a_write_is_explained_and_ends_the_program_by_the_signal");
    let stderr = String::from_utf8_lossy(&stderr);
    assert_eq!(status.signal(), Some(Signal::SIGSEGV as c_int), "{stderr}");
    let address = stderr.lines().find_map(|line| line.split_once("address ")).expect("the address").1;
    let line = format!("portcullis: a write to {address}, where writes are not allowed: the middle page");
    assert!(stderr.lines().any(|told| told.ends_with(&line)), "{stderr}");
}

fn end_by_own_handler() {
    let action = SigAction::new(SigHandler::SigAction(of_the_program), SaFlags::SA_SIGINFO, SigSet::empty());
    // SAFETY: the handler only ends the process.
    unsafe { sigaction(Signal::SIGSEGV, &action) }.expect("a handler");
}

extern "C" fn of_the_program(_: c_int, _: *mut siginfo_t, _: *mut c_void) {
    // SAFETY: this ends the process at once.
    unsafe { libc::_exit(77) };
}

#[test]
fn the_handler_before_has_its_turn() {
    if is_child() {
        end_by_own_handler();
        explain_faults().expect("a handler");
        let (memory, _label) = guarded();
        memory.store(4096, 1);
    }
    let Output { status, stderr, .. } = run("the_handler_before_has_its_turn");
    let stderr = String::from_utf8_lossy(&stderr);
    assert_eq!(status.code(), Some(77), "{stderr}");
    assert!(stderr.contains("the middle page"), "{stderr}");
}

#[test]
fn what_somebody_sends_ends_the_program_unexplained() {
    if is_child() {
        // The standard library's handler takes every signal for a fault, and lets a signal that was sent pass.
        let action = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
        // SAFETY: no handler is installed.
        unsafe { sigaction(Signal::SIGBUS, &action) }.expect("the default");
        explain_faults().expect("a handler");
        let _guarded = guarded();
        raise(Signal::SIGBUS).expect("a signal");
        unreachable!("the signal ends it");
    }
    let Output { status, stderr, .. } = run("what_somebody_sends_ends_the_program_unexplained");
    let stderr = String::from_utf8_lossy(&stderr);
    assert_eq!(status.signal(), Some(Signal::SIGBUS as c_int), "{stderr}");
    assert!(!stderr.contains("portcullis:"), "{stderr}");
}

/// Combines a trap, labels and a handler of the program. The trap's fault goes only to the trap. The next fault is
/// printed, and then goes to the program's handler.
#[cfg(target_arch = "x86_64")]
fn fault_in_a_trap_and_outside(first: fn(), then: fn()) {
    end_by_own_handler();
    first();
    then();
    let mut sandbox = Sandbox::new(SandboxOptions::default()).expect("a sandbox");
    let (memory, _label) = guarded();
    let at = memory.start().addr().get() + 4096;
    // SAFETY: the processor makes the access, not the language, and the code owns nothing.
    let write = move || unsafe { core::arch::asm!("mov byte ptr [{}], 1", in(reg) at, options(nostack)) };
    // SAFETY: the code owns nothing, and is in the middle of nothing.
    let trapped = sandbox.run(|inside| unsafe { inside.trap(None, write) }).expect("no panic");
    let denied = Trapped::Fault { address: Some(at as u64), cause: Cause::Denied };
    assert_eq!(trapped, Err(denied));
    eprintln!("trapped");
    write();
}

#[cfg(target_arch = "x86_64")]
fn assert_trapped_and_told(test: &str) {
    let Output { status, stderr, .. } = run(test);
    let stderr = String::from_utf8_lossy(&stderr);
    assert_eq!(status.code(), Some(77), "{stderr}");
    let (before, after) = stderr.split_once("trapped").expect("the trap has ended its code");
    assert!(!before.contains("the middle page") && after.contains("the middle page"), "{stderr}");
}

#[cfg(target_arch = "x86_64")]
fn explain() {
    explain_faults().expect("a handler");
}

#[cfg(target_arch = "x86_64")]
fn make_sandbox() {
    drop(Sandbox::new(SandboxOptions::default()).expect("a sandbox"));
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_sandbox_before_labels_has_its_faults() {
    if is_child() {
        fault_in_a_trap_and_outside(make_sandbox, explain);
    }
    assert_trapped_and_told("a_sandbox_before_labels_has_its_faults");
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_sandbox_after_labels_has_its_faults() {
    if is_child() {
        fault_in_a_trap_and_outside(explain, make_sandbox);
    }
    assert_trapped_and_told("a_sandbox_after_labels_has_its_faults");
}
