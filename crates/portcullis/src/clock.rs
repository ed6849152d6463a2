//! The clock of a session: its leases are measured on this clock, and its waits let time pass with it.

use portcullis_protocol::Moment;
use std::time::Instant;

/// The time of a session, and the ways in which a wait passes time between two looks for an answer.
pub trait Clock: Clone {
    /// How often a wait looks for an answer before it begins to yield.
    const SPINS: u32 = 4_000;

    /// The time now. It never goes back.
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
