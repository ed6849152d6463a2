//! Code that makes all kinds of faults in a sandbox, and the state of the process afterwards.

use super::*;
use crate::{Mapping, SealedFile, is_stack_used_up};
use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};
use std::cell::Cell;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::ptr::null_mut;
use std::time::Instant;

/// An address at which no process has a mapping: the kernel maps nothing so low.
const WILD: usize = 0x10;

fn sandbox() -> Sandbox {
    Sandbox::new(SandboxOptions::default()).unwrap()
}

/// Reads a byte as foreign code does: the compiler does not know the access.
fn read(address: usize) -> u8 {
    let byte: u8;
    // SAFETY: the processor makes the access, not the language. It changes nothing; if it faults, the code of a trap ends.
    unsafe { core::arch::asm!("mov {}, [{}]", out(reg_byte) byte, in(reg) address, options(nostack)) };
    byte
}

fn touch(address: usize) {
    std::hint::black_box(read(address));
}

fn write(address: usize) {
    // SAFETY: as for read(). The tests write only to addresses that fault.
    unsafe { core::arch::asm!("mov byte ptr [{}], 1", in(reg) address, options(nostack)) };
}

/// Runs code in a trap. The code owns nothing, and lends and locks nothing.
fn trap<R: Copy>(inside: &Inside<'_>, code: impl FnOnce() -> R + Copy) -> Result<R, Trapped> {
    // SAFETY: all code that the tests pass owns nothing and is in the middle of nothing when it faults.
    unsafe { inside.trap(None, code) }
}

fn fault(sandbox: &mut Sandbox, code: impl FnOnce() + Copy) -> Trapped {
    sandbox.run(|inside| trap(inside, code)).unwrap().unwrap_err()
}

/// Recurses down the stack for ever.
#[expect(unconditional_recursion, reason = "it is what the test is about")]
fn dive(depth: u64) -> u64 {
    let frame = std::hint::black_box([depth; 16]);
    dive(frame[3] + 1) + frame[7]
}

fn dive_and_forget() {
    std::hint::black_box(dive(0));
}

fn works(sandbox: &mut Sandbox) {
    assert_eq!(sandbox.run(|inside| trap(inside, || 40).unwrap() + 2).unwrap(), 42);
}

#[test]
fn code_runs_on_the_sandboxes_stack_and_brings_what_it_owns() {
    let mut sandbox = sandbox();
    let mut text = String::from("a text of the caller's");
    let (is_here, owned) = sandbox
        .run(|inside| {
            text.push_str(", made longer");
            (inside.stack.holds(here()), text.clone())
        })
        .unwrap();
    assert!(is_here && !sandbox.stack.holds(here()));
    assert_eq!(owned, "a text of the caller's, made longer");
}

#[test]
fn a_wild_pointer_is_an_error_that_names_its_address() {
    let mut sandbox = sandbox();
    let wild = Trapped::Fault { address: Some(WILD as u64), cause: Cause::Unmapped };
    assert_eq!(fault(&mut sandbox, || touch(WILD)), wild);
    works(&mut sandbox);
    // An address that no process can have: the processor does not report which address it was.
    let wild = Trapped::Fault { address: None, cause: Cause::Unknown };
    assert_eq!(fault(&mut sandbox, || touch(1 << 62)), wild);
    works(&mut sandbox);
}

#[test]
fn a_write_to_what_is_read_only_is_an_error() {
    let file = SealedFile::new("test", 4096).unwrap();
    let memory = Mapping::of_file(file, false).unwrap();
    let (mut sandbox, address) = (sandbox(), memory.start().addr().get());
    let denied = Trapped::Fault { address: Some(address as u64), cause: Cause::Denied };
    assert_eq!(fault(&mut sandbox, || write(address)), denied);
    works(&mut sandbox);
}

#[test]
fn a_file_that_was_cut_is_an_error() {
    let file = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, 4096).unwrap();
    // SAFETY: a fresh mapping overlaps nothing.
    let start = unsafe { rustix::mm::mmap(null_mut(), 4096, ProtFlags::READ, MapFlags::SHARED, &file, 0) };
    let start = start.unwrap();
    let (mut sandbox, address) = (sandbox(), start.addr());
    assert_eq!(sandbox.run(|inside| trap(inside, || read(address))).unwrap(), Ok(0));
    rustix::fs::ftruncate(&file, 0).unwrap();
    let gone = Trapped::Fault { address: Some(address as u64), cause: Cause::Gone };
    assert_eq!(fault(&mut sandbox, || touch(address)), gone);
    works(&mut sandbox);
    // SAFETY: the memory was mapped above, and nothing refers to it.
    unsafe { rustix::mm::munmap(start, 4096) }.unwrap();
}

#[test]
fn an_overflow_of_the_stack_is_an_error() {
    let mut sandbox = sandbox();
    for _ in 0..3 {
        assert_eq!(fault(&mut sandbox, dive_and_forget), Trapped::StackOverflow);
        works(&mut sandbox);
    }
}

fn dive_and_look(depth: u64) -> Result<u64, u64> {
    let frame = std::hint::black_box([depth; 16]);
    if is_stack_used_up() {
        return Err(depth);
    }
    dive_and_look(frame[3] + 1).map(|deepest| deepest + frame[5])
}

#[test]
fn whoever_looks_where_it_is_never_comes_to_the_guard() {
    let (mut sandbox, mut larger) =
        (sandbox(), Sandbox::new(SandboxOptions { stack_bytes: 4 << 20, ..Default::default() }).unwrap());
    let depth = sandbox.run(|_| dive_and_look(0)).unwrap().unwrap_err();
    assert!(depth > 1000, "only {depth} deep");
    // Each stack has an end of its own: the inner sandbox's inside, and the outer ones' again afterwards.
    let nested = sandbox.run(|_| {
        let inside = larger.run(|_| dive_and_look(0)).unwrap();
        (inside.unwrap_err(), dive_and_look(0).unwrap_err())
    });
    let (inside, around) = nested.unwrap();
    assert!(inside > 2 * depth && around.abs_diff(depth) < 100, "{inside} and {around}, where {depth}");
    let abandoned = sandbox.run(|inside| (trap(inside, || touch(WILD)).is_err(), dive_and_look(0)));
    assert!(matches!(abandoned, Ok((true, Err(around))) if around.abs_diff(depth) < 100));
    assert!(!is_stack_used_up());
    // The rest of the stack is enough for an allocator and a panic.
    let panicked = sandbox.run(|_| {
        fn panic_when_deep(depth: u64) -> u64 {
            assert!(!is_stack_used_up(), "{}", format!("at {depth}"));
            panic_when_deep(std::hint::black_box(depth) + 1) + depth
        }
        panic_when_deep(0)
    });
    assert!(panicked.unwrap_err().downcast::<String>().unwrap().starts_with("at "));
    works(&mut sandbox);
}

#[test]
fn a_panic_ends_the_code_and_drops_what_it_owned() {
    let (mut sandbox, dropped) = (sandbox(), Cell::new(0));
    struct Counted<'a>(&'a Cell<u32>);
    impl Drop for Counted<'_> {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }
    for round in 1..=3 {
        let panicked = sandbox.run(|_| {
            let _owned = Counted(&dropped);
            if dropped.get() < 5 {
                panic!("no luck");
            }
        });
        assert_eq!(panicked.unwrap_err().downcast_ref(), Some(&"no luck"));
        assert!(dropped.get() == round && !std::thread::panicking());
        assert_eq!(fault(&mut sandbox, || panic!("trapped")), Trapped::Panicked);
        works(&mut sandbox);
    }
}

/// Fills the temporary heap in pieces. Returns the number of pieces.
fn fill(inside: &Inside<'_>) -> u64 {
    let arena = inside.arena();
    let (number, text) = (arena.put(7_u64).unwrap(), arena.put_text("text").unwrap());
    let numbers = arena.put_slice(&[1_u32, 2, 3]).unwrap();
    numbers[1] = 5;
    let mut pieces = 0;
    let full = loop {
        match arena.fill(500, 1_u8) {
            Ok(piece) => pieces += u64::from(piece[499]),
            Err(full) => break full,
        }
    };
    assert_eq!((*number, text, &*numbers), (7, "text", &[1, 5, 3][..]));
    assert!(full.wanted == 500 && full.length >= pieces * 500);
    pieces
}

#[test]
fn the_temporary_heap_is_empty_again_after_each_run() {
    let mut sandbox = Sandbox::new(SandboxOptions { arena_bytes: 4096, ..Default::default() }).unwrap();
    let pieces = sandbox.run(fill).unwrap();
    assert!((8..100).contains(&pieces), "{pieces} pieces");
    for _ in 0..1000 {
        assert_eq!(sandbox.run(fill).unwrap(), pieces);
    }
    let full = sandbox.run(|inside| inside.arena().fill(usize::MAX, 1_u64).unwrap_err()).unwrap();
    assert_eq!(full.wanted, u64::MAX);
}

#[test]
fn sandboxes_nest_and_traps_do_not() {
    let (mut outer, mut inner) = (sandbox(), sandbox());
    let nested = outer.run(|around| {
        assert_eq!(fault(&mut inner, || touch(WILD)).code(), ErrorCode::SandboxFault);
        // A trap of the outer sandbox does not work on the inner one's stack.
        assert!(inner.run(|_| trap(around, || 1)).is_err());
        assert_eq!(trap(around, || _ = trap(around, || 1)), Err(Trapped::Panicked));
        trap(around, || read(WILD))
    });
    assert!(matches!(nested, Ok(Err(Trapped::Fault { .. }))));
    works(&mut inner);
    works(&mut outer);
}

#[test]
fn several_threads_have_their_own_faults() {
    std::thread::scope(|scope| {
        for thread in 1..=4 {
            scope.spawn(move || {
                let mut sandbox = sandbox();
                for round in 0..500 {
                    let address = WILD + thread * 256 + round % 128;
                    let wild = Trapped::Fault { address: Some(address as u64), cause: Cause::Unmapped };
                    assert_eq!(fault(&mut sandbox, || touch(address)), wild);
                }
                assert_eq!(fault(&mut sandbox, dive_and_forget), Trapped::StackOverflow);
                works(&mut sandbox);
            });
        }
    });
}

fn status(key: &str) -> String {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    status.lines().find(|line| line.starts_with(key)).unwrap().to_owned()
}

#[test]
fn no_signal_stays_blocked() {
    let (mut sandbox, blocked) = (sandbox(), status("SigBlk:"));
    for code in [|| touch(WILD), || dive_and_forget(), || panic!("trapped")] {
        fault(&mut sandbox, code);
        assert_eq!(status("SigBlk:"), blocked);
    }
    assert!(over_budget(&mut sandbox, Duration::from_millis(1)).is_err());
    assert_eq!(status("SigBlk:"), blocked);
}

fn rounding() -> [u32; 2] {
    let mut words = [0_u32; 2];
    let address = &raw mut words;
    // SAFETY: both instructions write to this array, which has room for them.
    unsafe { core::arch::asm!("stmxcsr [{0}]", "fnstcw [{0} + 4]", in(reg) address, options(nostack)) };
    words
}

/// Changes all registers that a function has to preserve, and then faults.
fn break_all_registers() {
    // SAFETY: the code does not return: it faults in a trap, whose landing restores all this.
    unsafe {
        core::arch::asm!(
            "push 0x7f80", // MXCSR: rounds towards zero
            "ldmxcsr [rsp]",
            "mov dword ptr [rsp], 0xf7f", // x87: the same
            "fldcw [rsp]",
            "fld1",
            "std",
            "mov rbx, -1",
            "mov r12, -1",
            "mov r13, -1",
            "mov r14, -1",
            "mov r15, -1",
            "mov rbp, -1",
            "mov byte ptr [16], 1",
            "ud2",
            options(noreturn)
        )
    }
}

extern "C" fn fault_with_broken_registers() {
    let trapped = fault(&mut sandbox(), break_all_registers);
    assert!(matches!(trapped, Trapped::Fault { cause: Cause::Unmapped, .. }));
}

#[test]
fn registers_and_rounding_are_as_they_were() {
    let before = rounding();
    let (r12, r13, r14, r15): (u64, u64, u64, u64);
    // SAFETY: the code calls a function with the stack aligned, and declares the registers that functions may change.
    unsafe {
        core::arch::asm!(
            "push rbx",
            "push rbp",
            "mov rbx, rsp",
            "and rsp, -16",
            "mov rbp, 15",
            "mov r12, 12",
            "mov r13, 13",
            "mov r14, 14",
            "mov r15, rbx",
            "call {}",
            "sub r15, rbx",
            "add r15, rbp",
            "mov rsp, rbx",
            "pop rbp",
            "pop rbx",
            sym fault_with_broken_registers,
            out("r12") r12, out("r13") r13, out("r14") r14, out("r15") r15,
            clobber_abi("C")
        );
    }
    assert_eq!((r12, r13, r14, r15), (12, 13, 14, 15));
    assert_eq!(rounding(), before);
    // The next copies and numbers rely on the direction flag and the stack of the x87.
    assert_eq!(std::hint::black_box(1.5_f64).mul_add(2.0, 0.25).to_bits(), 3.25_f64.to_bits());
}

/// Runs without end until the budget is used up.
fn over_budget(sandbox: &mut Sandbox, budget: Duration) -> Result<(), Trapped> {
    let forever = || {
        loop {
            std::hint::spin_loop();
        }
    };
    // SAFETY: the loop owns nothing and touches nothing.
    sandbox.run(|inside| unsafe { inside.trap(Some(budget), forever) }).unwrap()
}

#[test]
fn code_without_an_end_is_ended_when_its_time_is_over() {
    let mut sandbox = sandbox();
    let budget = Duration::from_millis(3);
    for _ in 0..3 {
        let began = Instant::now();
        assert_eq!(over_budget(&mut sandbox, budget), Err(Trapped::OverBudget(budget)));
        assert!(began.elapsed() >= budget);
        // Code that finishes within its time is not ended, however much time the thread has used before.
        for _ in 0..100 {
            // SAFETY: the code owns nothing and touches nothing.
            let done = sandbox.run(|inside| unsafe { inside.trap(Some(Duration::from_secs(60)), || 7) });
            assert_eq!(done.unwrap(), Ok(7));
        }
        works(&mut sandbox);
    }
}

/// Sends this thread a signal that looks like the timer's.
fn strike() {
    let number = |it: libc::c_int| u64::from(it.cast_unsigned());
    // The kernel's layout of a timer's signal: its number, its code, and the value that the timer was made with.
    let mut info = [0_u64; 16];
    info[0] = number(libc::SIGVTALRM);
    info[1] = number(libc::SI_TIMER);
    info[3] = budget::mark().addr() as u64;
    let (process, thread) = (rustix::process::getpid(), rustix::thread::gettid());
    let [process, thread] = [process, thread].map(|id| id.as_raw_pid());
    let (call, signal) = (libc::SYS_rt_tgsigqueueinfo, libc::SIGVTALRM);
    // SAFETY: a signal to this thread. Its handler has been installed since a timer was made.
    let sent = unsafe { libc::syscall(call, process, thread, signal, info.as_ptr()) };
    assert_eq!(sent, 0);
}

#[test]
fn a_signal_that_comes_late_ends_nothing() {
    let mut sandbox = sandbox();
    let soon = Duration::from_millis(1);
    assert_eq!(over_budget(&mut sandbox, soon), Err(Trapped::OverBudget(soon)));
    strike();
    sandbox.run(|_| strike()).unwrap();
    assert_eq!(sandbox.run(|inside| trap(inside, strike)).unwrap(), Ok(()));
    // SAFETY: the code owns nothing, and is not ended before its time is used up.
    let done = sandbox.run(|inside| unsafe { inside.trap(Some(Duration::from_secs(60)), strike) });
    assert_eq!(done.unwrap(), Ok(()));
}

/// Runs one of the ignored tests of this file in a process of its own.
fn in_process_of_its_own(test: &str) -> Output {
    let name = format!("sandbox::tests::{test}");
    let program = std::env::current_exe().unwrap();
    Command::new(program).args(["--ignored", "--exact", "--nocapture", &name]).output().unwrap()
}

fn kilobytes_and_mappings() -> (u64, usize) {
    let resident = status("VmRSS:").split_whitespace().nth(1).unwrap().parse().unwrap();
    (resident, std::fs::read_to_string("/proc/self/maps").unwrap().lines().count())
}

#[test]
#[ignore = "run by the test below in a process of its own, where nothing else takes memory"]
fn ten_thousand_faults() {
    let mut sandbox = sandbox();
    let mut round = |count: u32| {
        for at in 0..count {
            let trapped = fault(&mut sandbox, || touch(WILD));
            assert!(matches!(trapped, Trapped::Fault { .. }));
            if at % 100 == 0 {
                assert_eq!(fault(&mut sandbox, dive_and_forget), Trapped::StackOverflow);
            }
        }
    };
    round(200);
    let (resident, mappings) = kilobytes_and_mappings();
    round(10_000);
    let (resident_now, mappings_now) = kilobytes_and_mappings();
    assert_eq!(mappings_now, mappings);
    // One page for each hundredth fault would be 400 KiB.
    assert!(resident_now < resident + 200, "{resident} KiB became {resident_now}");
}

#[test]
fn faults_take_no_memory() {
    let child = in_process_of_its_own("ten_thousand_faults");
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
    assert!(String::from_utf8_lossy(&child.stdout).contains("1 passed"));
}

#[test]
#[ignore = "ends its process: run by the test below"]
fn the_threads_own_stack_overflows() {
    works(&mut sandbox());
    dive_and_forget();
}

#[test]
#[ignore = "ends its process: run by the test below"]
fn a_wild_pointer_is_followed_outside() {
    works(&mut sandbox());
    read(WILD);
}

#[test]
#[ignore = "ends its process: run by the test below"]
fn a_wild_pointer_is_followed_where_no_trap_is() {
    let _ = sandbox().run(|_| read(WILD));
}

#[test]
#[ignore = "ends its process: run by the test below"]
fn a_stack_overflows_where_no_trap_is() {
    let _ = sandbox().run(|_| dive_and_forget());
}

#[test]
#[ignore = "ends its process: run by the test below"]
fn somebody_sends_the_signal() {
    // SAFETY: a signal to this thread. The first one makes std's handler uninstall itself, and the second one ends the
    // process.
    let raise = || unsafe { libc::raise(libc::SIGSEGV) };
    sandbox().run(|inside| assert_eq!(trap(inside, raise), Ok(0))).unwrap();
    raise();
}

#[test]
fn what_belongs_to_no_trap_ends_the_process_as_it_always_did() {
    let ends = [
        ("the_threads_own_stack_overflows", libc::SIGABRT, "has overflowed its stack"),
        ("a_wild_pointer_is_followed_outside", libc::SIGSEGV, ""),
        ("a_wild_pointer_is_followed_where_no_trap_is", libc::SIGSEGV, ""),
        ("a_stack_overflows_where_no_trap_is", libc::SIGSEGV, "overflowed its stack outside a trap"),
        ("somebody_sends_the_signal", libc::SIGSEGV, ""),
    ];
    for (test, signal, message) in ends {
        let child = in_process_of_its_own(test);
        let said = String::from_utf8_lossy(&child.stderr);
        assert_eq!(child.status.signal(), Some(signal), "{test}: {said}");
        assert!(said.contains(message), "{test}: {said}");
    }
}

#[test]
fn it_says_what_it_protects() {
    let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    let has_keys = flags.split_whitespace().any(|flag| flag == "ospke");
    let (is, says) = (Sandbox::protection(), Sandbox::protection().to_string());
    if has_keys {
        assert!(is == Protection::Keys && says.starts_with("protection keys: "), "{says}");
    } else {
        assert!(is == Protection::FaultsOnly(NoKeys::Missing) && says.starts_with("faults only: "), "{says}");
    }
}
