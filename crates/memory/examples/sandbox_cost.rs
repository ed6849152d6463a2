//! Costs of sandboxes: to enter and leave one, to set a trap in it, and to get a protection key that another sandbox
//! has.
//!
//! `cargo run --release -p portcullis-memory --example sandbox_cost`

use portcullis_memory::sandbox::{Sandbox, SandboxOptions};
use std::hint::black_box;
use std::time::Instant;

/// Number of rounds of each measurement, in turns with the others.
const ROUNDS: usize = 9;
/// Number of sandboxes: more than the processor has keys.
const MANY: usize = 20;

/// Calls `once` this many times. Returns the nanoseconds of one call.
fn nanoseconds(times: u32, mut once: impl FnMut()) -> f64 {
    let began = Instant::now();
    (0..times).for_each(|_| once());
    began.elapsed().as_secs_f64() * 1e9 / f64::from(times)
}

fn enter(sandbox: &mut Sandbox) {
    let done = sandbox.run(|inside| black_box(inside).arena().put(1_u64).is_ok());
    assert!(done.is_ok_and(|is_there| is_there));
}

fn set_trap(sandbox: &mut Sandbox) {
    // SAFETY: the code owns nothing, touches nothing and runs to its end.
    let done = sandbox.run(|inside| unsafe { inside.trap(None, || black_box(7)) });
    assert!(done.is_ok_and(|trapped| trapped == Ok(7)));
}

fn fault(sandbox: &mut Sandbox) {
    // SAFETY: the code owns nothing and is in the middle of nothing when it faults.
    let done = sandbox.run(|inside| unsafe { inside.trap(None, read) });
    assert!(done.is_ok_and(|trapped| trapped.is_err()));
}

/// Reads a byte that is not there.
#[cfg(target_arch = "x86_64")]
fn read() -> u8 {
    let byte: u8;
    // SAFETY: the processor makes the access, which faults, and ends the trap's code.
    unsafe { core::arch::asm!("mov {}, [{}]", out(reg_byte) byte, in(reg) 16_usize, options(nostack)) };
    byte
}

#[cfg(not(target_arch = "x86_64"))]
fn read() -> u8 {
    unreachable!("there are no sandboxes on this kind of processor")
}

fn main() {
    let sandbox = || Sandbox::new(SandboxOptions::default()).expect("a sandbox");
    let (mut one, mut many) = (sandbox(), (0..MANY).map(|_| sandbox()).collect::<Vec<_>>());
    let mut measured = [const { Vec::new() }; 4];
    for _ in 0..ROUNDS {
        measured[0].push(nanoseconds(100_000, || enter(&mut one)));
        measured[1].push(nanoseconds(100_000, || set_trap(&mut one)));
        measured[2].push(nanoseconds(1_000, || fault(&mut one)));
        let mut next = 0;
        measured[3].push(nanoseconds(2_000, || {
            set_trap(&mut many[next]);
            next = (next + 1) % MANY;
        }));
    }
    println!("{}", Sandbox::protection());
    let names = [
        "entered and left".to_owned(),
        "with a trap".to_owned(),
        "with a fault in it".to_owned(),
        format!("with a trap, {MANY} sandboxes in turns"),
    ];
    for (name, mut of) in names.into_iter().zip(measured) {
        of.sort_by(f64::total_cmp);
        println!("{name:<40} {:>8.1} ns ({:.1}-{:.1})", of[ROUNDS / 2], of[0], of[ROUNDS - 1]);
    }
}
