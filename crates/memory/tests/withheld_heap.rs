//! A program whose heap is withheld from trapped code. Only x86-64 has the keys.
#![cfg(target_arch = "x86_64")]

use portcullis_memory::sandbox::{Cause, Inside, Protection, Sandbox, SandboxOptions, Trapped, WithheldHeap};
use std::collections::BTreeMap;

#[global_allocator]
static HEAP: WithheldHeap = WithheldHeap::new();

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

fn trap<R: Copy>(inside: &Inside<'_>, code: impl FnOnce() -> R + Copy) -> Result<R, Trapped> {
    // SAFETY: all code that the tests pass owns nothing outside its temporary heap and holds no lock when it faults.
    unsafe { inside.trap(None, code) }
}

fn in_trap<R: Copy>(code: impl FnOnce() -> R + Copy) -> Result<R, Trapped> {
    Sandbox::new(SandboxOptions::default()).unwrap().run(|inside| trap(inside, code)).unwrap()
}

#[test]
fn trapped_code_does_not_reach_the_heap() {
    let secret = std::hint::black_box(vec![7_u8; 100]);
    let large = std::hint::black_box(vec![8_u8; 1 << 20]);
    for address in [secret.as_ptr().addr(), large.as_ptr().addr() + 70_000] {
        let trapped = in_trap(|| read(address));
        if has_keys() {
            let cause = Cause::Withheld;
            assert_eq!(trapped, Err(Trapped::Fault { address: Some(address as u64), cause }));
        } else {
            assert!(trapped.is_ok());
        }
    }
    assert!(secret.iter().all(|byte| *byte == 7) && large.iter().all(|byte| *byte == 8));
}

#[test]
fn what_trapped_code_allocates_is_in_its_temporary_heap() {
    for _ in 0..1000 {
        let sum = in_trap(|| {
            let mut numbers: Vec<u64> = (0..100).collect();
            numbers.extend(100..200);
            let text: Vec<String> = numbers.iter().map(u64::to_string).collect();
            text.concat().len() as u64 + numbers.iter().sum::<u64>()
        });
        assert_eq!(sum, Ok(490 + 19_900));
    }
}

#[test]
fn a_temporary_heap_that_is_used_up_ends_the_trap() {
    let mut sandbox = Sandbox::new(SandboxOptions { arena_bytes: 8192, ..Default::default() }).unwrap();
    for _ in 0..100 {
        let trapped =
            sandbox.run(|inside| trap(inside, || std::hint::black_box(vec![1_u8; 9000]).len())).unwrap();
        assert_eq!(trapped, Err(Trapped::ArenaFull));
        // The heap of the process is not locked.
        let text = format!("{:?}", vec![trapped; 10]);
        assert!(text.len() > 100);
        assert_eq!(
            sandbox.run(|inside| trap(inside, || std::hint::black_box(vec![1_u8; 4000]).len())).unwrap(),
            Ok(4000)
        );
    }
}

#[test]
fn a_panic_in_a_trap_leaves_the_heap_whole() {
    for round in 0..100 {
        assert_eq!(in_trap(|| panic!("trapped, {round}")), Err::<(), _>(Trapped::Panicked));
        let texts: Vec<String> = (0..100).map(|number| number.to_string()).collect();
        assert_eq!(texts.concat().len(), 190);
    }
}

#[test]
fn freeing_what_it_does_not_reach_ends_the_trap_and_not_the_heap() {
    for _ in 0..100 {
        let block = Box::into_raw(Box::new([5_u64; 20]));
        // SAFETY: with keys the trap ends before the block is freed. Without them it is freed, once.
        let trapped = in_trap(move || drop(unsafe { Box::from_raw(block) }));
        if has_keys() {
            assert!(matches!(trapped, Err(Trapped::Fault { cause: Cause::Withheld, .. })));
            // SAFETY: the block was not freed.
            drop(unsafe { Box::from_raw(block) });
        }
        drop(std::hint::black_box(vec![1; 100]));
    }
}

#[test]
fn threads_use_the_heap_while_others_are_in_traps() {
    std::thread::scope(|scope| {
        for thread in 0..8_u64 {
            scope.spawn(move || {
                let mut map = BTreeMap::new();
                for round in 0..500_u64 {
                    map.insert(round.wrapping_mul(0x9e37_79b9), format!("{thread}-{round}"));
                    if round % 10 == 0 {
                        assert_eq!(
                            in_trap(move || (0..10).map(|_| round).collect::<Vec<_>>().iter().sum::<u64>()),
                            Ok(10 * round)
                        );
                    }
                    if round % 3 == 0 {
                        map.pop_first();
                    }
                }
                assert_eq!(map.len(), 500 - 167);
                assert!(map.values().all(|value| value.starts_with(&format!("{thread}-"))));
            });
        }
    });
}
