//! The lower bound: how long a cache line takes to another processor and back.

use super::processors;
use crate::samples::Samples;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

const WARM_UP: u64 = 10_000;
const ROUNDS: u64 = 100_000;

/// A value alone on its cache lines.
#[repr(align(128))]
struct Line(AtomicU64);

/// The typical round trip of one cache line between the processors of node and client, in microseconds. A node that
/// runs on its processor must be idle meanwhile.
pub fn round_trip() -> f64 {
    let (there, back) = (Line(AtomicU64::new(0)), Line(AtomicU64::new(0)));
    let mut samples = Samples::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            if let Some((node, _)) = processors::pair() {
                portcullis::host::pin(node);
            }
            for round in 1..=WARM_UP + ROUNDS {
                wait_for(&there, round);
                back.0.store(round, Ordering::Release);
            }
        });
        processors::pin_client();
        for round in 1..=WARM_UP + ROUNDS {
            let before = Instant::now();
            there.0.store(round, Ordering::Release);
            wait_for(&back, round);
            if round > WARM_UP {
                samples.add(before.elapsed());
            }
        }
    });
    samples.typical()
}

fn wait_for(line: &Line, value: u64) {
    let mut looks = 0u32;
    while line.0.load(Ordering::Acquire) != value {
        std::hint::spin_loop();
        looks += 1;
        // If both ends share one processor, this lets the other end run.
        if looks.is_multiple_of(1 << 14) {
            std::thread::yield_now();
        }
    }
}
