//! Speed of the copies of memory that peers may change: in the way of this processor, by words, and byte by byte.
//! Beside them is the language's copy, which only private memory allows.
//!
//! `cargo run --release -p portcullis-memory --example copy_speed`

use portcullis_memory::{Mapping, Memory};
use std::hint::black_box;
use std::time::Instant;

/// Number of rounds of each measurement, in turns with the others.
const ROUNDS: usize = 15;
/// Bytes that a round of one measurement copies.
const ROUND_BYTES: usize = 16 << 20;
const SIZES: [usize; 8] = [64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 512 << 10, 2 << 20];
/// Offset of a source in a word that its target does not have.
const SKEW: u64 = 3;

/// A copy from the first mapping to the second, of bytes from an offset on.
struct Way {
    name: &'static str,
    skew: u64,
    copy: fn(&Mapping, u64, &Mapping, u64, u64),
}

const WAYS: [Way; 6] = [
    Way { name: "the processor's way", skew: 0, copy: Mapping::copy_by_processor },
    Way { name: "the same, skewed", skew: SKEW, copy: Mapping::copy_by_processor },
    Way { name: "words", skew: 0, copy: Mapping::copy_by_words },
    Way { name: "words, skewed", skew: SKEW, copy: Mapping::copy_by_words },
    Way { name: "volatile bytes", skew: 0, copy: by_bytes },
    Way { name: "copy_nonoverlapping", skew: 0, copy: plainly },
];

/// Returns the addresses of the spans.
fn addresses(source: &Mapping, from: u64, target: &Mapping, at: u64) -> (*const u8, *mut u8) {
    let address = |mapping: &Mapping, offset| std::ptr::from_ref(mapping.half_word(offset)).cast::<u8>();
    (address(source, from), address(target, at).cast_mut())
}

/// The copy that processors other than x86-64 had before.
fn by_bytes(source: &Mapping, from: u64, target: &Mapping, at: u64, length: u64) {
    let (from, to) = addresses(source, from, target, at);
    for index in 0..usize::try_from(length).expect("a size") {
        // SAFETY: the span lies in its mapping.
        let from = unsafe { from.add(index) };
        // SAFETY: as above.
        let to = unsafe { to.add(index) };
        // SAFETY: as above.
        let byte = unsafe { from.read_volatile() };
        // SAFETY: as above.
        unsafe { to.write_volatile(byte) };
    }
}

/// The language's copy: here no other thread has the memory.
fn plainly(source: &Mapping, from: u64, target: &Mapping, at: u64, length: u64) {
    let (from, to) = addresses(source, from, target, at);
    let length = usize::try_from(length).expect("a size");
    // SAFETY: the spans lie in different mappings.
    unsafe { std::ptr::copy_nonoverlapping(from, to, black_box(length)) };
}

/// Returns the gigabytes (10^9 bytes) a second of one round.
fn speed(way: &Way, size: usize, (source, target): (&Mapping, &Mapping)) -> f64 {
    let times = ROUND_BYTES / size;
    let began = Instant::now();
    for _ in 0..times {
        (way.copy)(black_box(source), way.skew, black_box(target), 0, size as u64);
    }
    #[allow(clippy::cast_precision_loss)]
    let bytes = (times * size) as f64;
    bytes / began.elapsed().as_secs_f64() / 1e9
}

fn main() {
    let mapping = || Mapping::private(4 << 20).expect("memory");
    let (source, target) = (mapping(), mapping());
    for mapping in [&source, &target] {
        mapping.write(0, &vec![1; 3 << 20]);
    }
    println!("GB/s of the best round (median, worst) of {ROUNDS}");
    for size in SIZES {
        let mut measured = [const { Vec::new() }; WAYS.len()];
        for _ in 0..ROUNDS {
            for (way, measured) in WAYS.iter().zip(&mut measured) {
                measured.push(speed(way, size, (&source, &target)));
            }
        }
        for (way, mut of) in WAYS.iter().zip(measured) {
            of.sort_by(f64::total_cmp);
            let (worst, median, best) = (of[0], of[ROUNDS / 2], of[ROUNDS - 1]);
            println!("{size:>8} B  {:<20} {best:>6.1} ({median:.1}, {worst:.1})", way.name);
        }
    }
}
