//! The wait of a benchmark's loop between two looks at a state that another thread or process changes: it spins,
//! yields, and sleeps.

use std::sync::OnceLock;
use std::time::Duration;

/// Looks before the loop begins to yield, if the other end has a processor of its own.
const SPINS: u32 = 1 << 14;
/// Looks with a yield before the loop begins to sleep.
const YIELDS: u32 = 1 << 10;
/// Time of one sleep.
const SLEEP: Duration = Duration::from_micros(50);

/// Lets the other end run, if both share one processor: for a loop that polls without a wait. Without this the loop
/// would keep the other end from the processor for as long as the scheduler allows.
pub fn give_way() {
    static SHARED: OnceLock<bool> = OnceLock::new();
    if *SHARED.get_or_init(|| super::processors::pair().is_none()) {
        std::thread::yield_now();
    }
}

/// The looks of one wait.
#[derive(Debug)]
pub struct Pause {
    looks: u32,
    spins: u32,
}

impl Pause {
    /// A wait that has not begun. If both ends share one processor, it does not spin: that would keep the other end
    /// from it.
    pub fn new() -> Self {
        Self { looks: 0, spins: if super::processors::pair().is_some() { SPINS } else { 0 } }
    }

    /// Passes a little time after a look that found nothing.
    pub fn pass(&mut self) {
        self.looks = self.looks.saturating_add(1);
        if self.looks <= self.spins {
            std::hint::spin_loop();
        } else if self.looks <= self.spins + YIELDS {
            std::thread::yield_now();
        } else {
            std::thread::sleep(SLEEP);
        }
    }

    /// Begins the next wait.
    pub fn reset(&mut self) {
        self.looks = 0;
    }
}
