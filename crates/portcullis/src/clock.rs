//! The clock of a session, which measures its leases and lets time pass in its waits.

use portcullis_protocol::Moment;
use std::time::Instant;

/// Returns the time of a session, and passes time between two polls of a wait.
pub trait Clock: Clone + 'static {
    /// Number of polls of a wait before it begins to yield.
    const SPINS: u32 = 4_000;

    /// Returns the present time, which never goes back.
    fn now(&self) -> Moment;

    /// Passes a very short time without leaving the processor.
    fn spin(&self);

    /// Lets other threads run.
    fn yield_now(&self);
}

/// The clock of the sessions of a process. Leases are measured on this clock, and a session shares it with its keeper.
#[derive(Clone, Copy, Debug)]
pub struct ProcessClock {
    started: Instant,
}

impl ProcessClock {
    pub(crate) fn start() -> Self {
        Self { started: Instant::now() }
    }

    pub(crate) fn at(self, instant: Instant) -> Moment {
        let since = instant.saturating_duration_since(self.started);
        Moment(since.as_secs().saturating_mul(1_000_000) + u64::from(since.subsec_micros()))
    }
}

impl Clock for ProcessClock {
    #[inline]
    fn now(&self) -> Moment {
        self.at(Instant::now())
    }

    #[inline]
    fn spin(&self) {
        std::hint::spin_loop();
    }

    fn yield_now(&self) {
        std::thread::yield_now();
    }
}
