//! Code that can reach withheld memory: every thread and every signal handler, and no trapped code.

use crate::sandbox::{Cause, Inside, Protection, Sandbox, SandboxOptions, Trapped, WithheldStack};
use crate::{Mapping, Memory, SealedFile};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Barrier, mpsc};

fn sandbox() -> Sandbox {
    Sandbox::new(SandboxOptions::default()).unwrap()
}

/// Whether the machine has keys to test. Prints a message if it has none.
fn has_keys() -> bool {
    let protection = Sandbox::protection();
    if protection != Protection::Keys {
        eprintln!("SKIPPED: what is withheld from trapped code: {protection}");
    }
    protection == Protection::Keys
}

/// Reads a byte as foreign code does.
fn read(address: usize) -> u8 {
    let byte: u8;
    // SAFETY: the processor makes the access, not the language. It changes nothing; if it faults, the code of a trap ends.
    unsafe { core::arch::asm!("mov {}, [{}]", out(reg_byte) byte, in(reg) address, options(nostack)) };
    byte
}

fn write(address: usize) {
    // SAFETY: as for read(). The write goes to memory that the tests have made.
    unsafe { core::arch::asm!("mov byte ptr [{}], 1", in(reg) address, options(nostack)) };
}

fn trap<R: Copy>(inside: &Inside<'_>, code: impl FnOnce() -> R + Copy) -> Result<R, Trapped> {
    // SAFETY: all code that the tests pass owns nothing and is in the middle of nothing when it faults.
    unsafe { inside.trap(None, code) }
}

fn in_trap<R: Copy>(code: impl FnOnce() -> R + Copy) -> Result<R, Trapped> {
    sandbox().run(|inside| trap(inside, code)).unwrap()
}

fn withheld<R>(address: usize) -> Result<R, Trapped> {
    Err(Trapped::Fault { address: Some(address as u64), cause: Cause::Withheld })
}

fn pages() -> (Mapping, usize) {
    let memory = Mapping::shareable("test", 8192).unwrap();
    let address = memory.start().addr().get();
    (memory, address)
}

#[test]
fn trapped_code_neither_reads_nor_writes_what_is_withheld_and_everybody_else_does() {
    let (memory, address) = pages();
    memory.store(8, 5);
    assert_eq!(in_trap(|| read(address + 8)), Ok(5));
    memory.withhold().unwrap();
    if !has_keys() {
        return assert_eq!(in_trap(|| read(address + 8)), Ok(5));
    }
    for _ in 0..100 {
        assert_eq!(in_trap(|| read(address + 8)), withheld(address + 8));
        assert_eq!(in_trap(|| write(address + 4096)), withheld(address + 4096));
        memory.store(8, memory.load(8) + 1);
    }
    assert_eq!((memory.load(8), memory.load(4096)), (105, 0));
    // A run without a trap is this process's own code.
    assert_eq!(sandbox().run(|_| memory.load(8)).unwrap(), 105);
}

#[test]
fn what_may_only_be_read_is_only_read_afterwards() {
    let file = SealedFile::new("test", 4096).unwrap();
    let memory = Mapping::of_file(file, false).unwrap();
    memory.withhold().unwrap();
    let address = memory.start().addr().get();
    assert_eq!(memory.load(0), 0);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| line.starts_with(&format!("{address:x}-"))).unwrap();
    assert!(line.contains(" r--s "), "{line}");
}

#[test]
fn a_thread_that_is_older_than_a_key_reaches_what_has_it() {
    let (ask, asked) = mpsc::channel::<(Mapping, u64)>();
    let (tell, told) = mpsc::channel();
    let older = std::thread::spawn(move || {
        for (memory, offset) in asked {
            memory.store(offset, memory.load(offset) + 1);
            tell.send(in_trap(|| 7)).unwrap();
        }
    });
    let (memory, address) = pages();
    memory.withhold().unwrap();
    for round in 1..=50 {
        ask.send((memory.clone(), 0)).unwrap();
        assert_eq!(told.recv().unwrap(), Ok(7));
        assert_eq!(memory.load(0), round);
        // This thread's sandboxes get keys that the other thread has never had.
        assert_eq!(in_trap(|| read(address)).is_err(), has_keys());
    }
    drop(ask);
    older.join().unwrap();
}

static SEEN: AtomicU64 = AtomicU64::new(0);
static LOOKED_AT: AtomicUsize = AtomicUsize::new(0);

/// A handler like those of ordinary programs, without knowledge of keys.
extern "C" fn look(_: libc::c_int) {
    SEEN.fetch_add(read(LOOKED_AT.load(Ordering::SeqCst)).into(), Ordering::SeqCst);
}

#[test]
fn a_signal_handler_reaches_it_wherever_it_strikes() {
    let (memory, address) = pages();
    memory.store(0, 1);
    memory.withhold().unwrap();
    LOOKED_AT.store(address, Ordering::SeqCst);
    for flags in [libc::SA_ONSTACK, 0] {
        // SAFETY: all fields of the structure are numbers or an optional function.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = (look as *const ()).expose_provenance();
        action.sa_flags = flags;
        // SAFETY: the handler has the signature of one without SA_SIGINFO, and does only what handlers may.
        let set = unsafe { libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut()) };
        assert_eq!(set, 0);
        // SAFETY: a signal to this thread, whose handler was set above.
        let strike = || unsafe { libc::raise(libc::SIGUSR2) };
        std::thread::spawn(move || {
            let stack = WithheldStack::new().unwrap();
            SEEN.store(0, Ordering::SeqCst);
            let mut sandbox = sandbox();
            assert_eq!(strike(), 0);
            sandbox.run(|_| strike()).unwrap();
            // In a trap the signal arrives between two accesses of the code, which continues with its keys closed.
            let went_on = sandbox.run(|inside| trap(inside, || (strike(), read(address)))).unwrap();
            assert_eq!(SEEN.load(Ordering::SeqCst), 3);
            assert_eq!(went_on, if has_keys() { withheld(address) } else { Ok((0, 1)) });
            drop(stack);
        })
        .join()
        .unwrap();
    }
}

#[test]
fn another_sandboxes_stack_and_heap_are_out_of_reach() {
    if !has_keys() {
        return;
    }
    let (mut outer, mut other) = (sandbox(), sandbox());
    let nested = outer.run(|around| {
        let value = 5_u8;
        let on_its_stack = std::ptr::from_ref(std::hint::black_box(&value)).addr();
        let in_its_heap = std::ptr::from_ref(around.arena().put(6_u8).unwrap()).addr();
        let inside = other.run(|inside| {
            let mine = std::ptr::from_ref(inside.arena().put(7_u8).unwrap()).addr();
            let all = [on_its_stack, in_its_heap, mine];
            all.map(|address| trap(inside, || read(address)))
        });
        assert_eq!(inside.unwrap(), [withheld(on_its_stack), withheld(in_its_heap), Ok(7)]);
        [trap(around, || read(on_its_stack)), trap(around, || read(in_its_heap))]
    });
    assert_eq!(nested.unwrap(), [Ok(5), Ok(6)]);
}

#[test]
fn sandboxes_are_more_than_keys() {
    let (memory, address) = pages();
    memory.withhold().unwrap();
    let mut sandboxes: Vec<_> = (0..40).map(|_| sandbox()).collect();
    for round in 0..5 {
        for (number, sandbox) in sandboxes.iter_mut().enumerate() {
            let done = sandbox.run(|inside| {
                let place = inside.arena().put(number).unwrap();
                let (read_back, wild) = (trap(inside, || *place), trap(inside, || read(address)));
                (read_back, wild.is_err())
            });
            assert_eq!(done.unwrap(), (Ok(number), has_keys()), "round {round}");
        }
    }
}

#[test]
fn more_threads_are_in_traps_than_there_are_keys() {
    const THREADS: usize = 30;
    let keys = has_keys();
    let (begin, done) = (Barrier::new(THREADS), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (begin, done) = (&begin, &done);
            scope.spawn(move || {
                let _withheld = WithheldStack::new().unwrap();
                let mut sandbox = sandbox();
                begin.wait();
                for round in 0..200 {
                    let sum = sandbox.run(|inside| {
                        let numbers = inside.arena().put_slice(&[thread, round]).unwrap();
                        trap(inside, || numbers.iter().sum::<usize>())
                    });
                    assert_eq!(sum.unwrap(), Ok(thread + round));
                    assert_eq!(is_kept_from_this_stack(&mut sandbox), keys);
                }
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
    });
    assert_eq!(done.into_inner(), THREADS);
}

/// Whether trapped code cannot reach the stack of the thread that runs it.
fn is_kept_from_this_stack(sandbox: &mut Sandbox) -> bool {
    let here = 9_u8;
    // An address below the page that the thread was on when its stack was withheld.
    let address = std::ptr::from_ref(std::hint::black_box(&here)).addr() - 16_384;
    let trapped = sandbox.run(|inside| trap(inside, || read(address))).unwrap();
    assert!(matches!(trapped, Ok(_) | Err(Trapped::Fault { cause: Cause::Withheld, .. })), "{trapped:?}");
    trapped.is_err()
}

#[test]
fn a_panic_in_a_trap_is_still_one() {
    let (memory, _) = pages();
    memory.withhold().unwrap();
    let mut sandbox = sandbox();
    for _ in 0..3 {
        assert_eq!(in_trap(|| panic!("trapped")), Err::<(), _>(Trapped::Panicked));
        assert_eq!(sandbox.run(|inside| trap(inside, || 7)).unwrap(), Ok(7));
        memory.store(0, 1);
    }
}

#[test]
fn a_stack_is_everybodys_again_when_that_ends_and_its_guard_stays_one() {
    let keys = has_keys();
    let guards = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().filter(|line| line.contains(" ---p ")).map(str::to_owned).collect::<Vec<_>>()
    };
    for _ in 0..20 {
        let thread = std::thread::spawn(move || {
            let withheld = WithheldStack::new().unwrap();
            assert_eq!(is_kept_from_this_stack(&mut sandbox()), keys);
            let here = std::ptr::from_ref(std::hint::black_box(&withheld)).addr();
            let guard =
                guards().into_iter().filter_map(|line| line.split(['-', ' ']).nth(1).map(str::to_owned));
            let guard =
                guard.map(|end| usize::from_str_radix(&end, 16).unwrap()).filter(|end| *end <= here).max();
            // A thread has two megabytes of stack, and its guard below them.
            assert!(guard.is_some_and(|end| here - end <= 2 << 20), "no guard below {here:x}");
            drop(withheld);
            is_kept_from_this_stack(&mut sandbox())
        });
        assert!(!thread.join().unwrap());
    }
}
