//! The clock of a session: the time that its leases are told on, and how its waits pass a moment.

use portcullis_protocol::Moment;
use std::time::Instant;

/// The time of a session, and ways to let a moment of it pass between two looks for an answer.
pub trait Clock: Clone {
    /// Looks for an answer before a wait begins to yield.
    const SPINS: u32 = 4_000;

    /// The time now. It never goes back.
    fn now(&self) -> Moment;

    /// Lets next to no time pass.
    fn spin(&self);

    /// Lets others run.
    fn yield_now(&self);
}

/// The clock of a process's sessions: leases are told on it, and keepers share it.
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
