//! Tests of the engine's thread while there is nothing to do.

use super::{Bell, Driver, Engine, EngineOptions, Resident};
use portcullis_protocol::Moment;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

/// A NIC that never has anything to do, and whose bell rings for nothing, so that each sleep ends at once. Before each
/// sleep it reports the number of turns.
struct IdleDriver {
    nic: (),
    turns: u64,
    sleeps: Sender<u64>,
}

#[derive(Debug)]
struct NoBell;

impl Bell for NoBell {
    fn ring(&self) {}
}

impl Driver for IdleDriver {
    type Nic = ();
    type Bell = NoBell;

    const TURNS_PER_RESIDENT: u32 = 4;
    const TURNS_PER_CLOCK: u32 = 8;

    fn nic(&mut self) -> &mut () {
        &mut self.nic
    }

    fn bell(&self) -> NoBell {
        NoBell
    }

    fn turn(&mut self) -> bool {
        self.turns += 1;
        false
    }

    fn has_news(&mut self) -> bool {
        false
    }

    fn announce(&mut self) {}

    fn turn_all(&mut self) -> bool {
        false
    }

    fn waits_for_time(&self) -> bool {
        false
    }

    fn sleep(&mut self, _: Duration) {
        // The test takes only the first reports.
        let _ = self.sleeps.send(self.turns);
    }

    fn awake(&mut self) {}
}

struct NoResident;

impl Resident<()> for NoResident {
    fn turn(&mut self, (): &mut (), _: Moment) -> bool {
        false
    }

    fn on_panic(&self) -> Box<dyn FnOnce() + Send> {
        Box::new(|| {})
    }

    fn next_wake(&self) -> Option<Moment> {
        None
    }

    fn end(&mut self, (): &mut (), _: Moment) {}
}

#[test]
fn a_thread_that_is_woken_for_nothing_does_not_spin_again() {
    let (sleeps, reports) = channel();
    let driver = IdleDriver { nic: (), turns: 0, sleeps };
    let options = EngineOptions { processor: None, zero: Instant::now() };
    let engine = Engine::start(driver, NoResident, options).expect("the machine has threads");
    let turns: Vec<_> = reports.iter().take(100).collect();
    engine.stop().expect("it has not panicked");
    assert!(turns[0] > 0, "it looks for work for a while before it sleeps for the first time");
    assert_eq!(turns[99], turns[0], "turns in {} sleeps", turns.len());
}
