//! The simulator's exhaustive mode: small races, in every order in which their steps can happen.
//!
//! The node, the client library and the NIC are the real ones, as everywhere in the simulator; only the loop differs.
//! Nothing is drawn: where the simulator's network and its machines take a random time for what they do, this mode
//! tries all orders, by depth-first search over complete runs ([`choices`]). What can happen is a packet's arrival,
//! a turn of the node's processor or of its NIC, a client's next action, and the passing of time to the next moment
//! that matters ([`moves`]). Every step passes the same checkers as in the simulator, and a few that know the race
//! ([`watch`]).
//!
//! # What is left out
//! - Orders that lead to the same state as one that is tried, by sleep sets.
//! - A client looks at a packet when it arrives. One that looks later is one whose packet arrives later.
//! - A client acts as soon as it can, and what it posts leaves at once. One that is slow, or whose NIC is, is one whose
//!   packet is long on its way. Only where it matters what it knows when it acts is that a choice.
//! - The NIC's own acknowledgements of control messages come when the race is over, in both directions: all that
//!   they do is free a slot, and nobody sends as many messages as there are slots. So do requests for the rebuild of
//!   a queue pair that a refusal has broken.
//! - The node has a turn when something came or is due. Another turn would find nothing.
//! - Time stops at the moments that something depends on: just before a deadline, at it, and when a window has
//!   lingered for long enough. Everybody's clock is the same; clocks that drift are the simulator's.
//! - In races with many packets, and where windows do not matter, the node's NIC has its turn right after its
//!   processor.
//! - A turn is one step: the node's accesses to its memory, and a batch of binds, are not cut in two. The software
//!   NIC's engine turns both on one thread, so there it is so.

mod actor;
mod choices;
mod conclusion;
mod moves;
mod scenarios;
mod stage;
mod watch;
mod wires;

use crate::oracle::Failure;
use choices::Choices;
use moves::Move;
pub use scenarios::{Race, Scenario};
use stage::{Stage, Tamper};
use std::collections::BTreeMap;

/// How far an exploration goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Runs, complete or not, after which it gives up.
    pub runs_max: u64,
    /// Whether orders that are known to lead to the same state are tried as well: only to see that they do.
    pub every_order: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self { runs_max: 2_000_000, every_order: false }
    }
}

/// What an exploration has shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Exploration {
    /// Complete runs: different orders of events, all of them if `exhausted`.
    pub paths: u64,
    /// Runs that were broken off, since the rest of them had been run in another order.
    pub redundant: u64,
    /// What the clients were told, and in how many complete runs it was that.
    pub outcomes: BTreeMap<String, u64>,
    /// Decisions of the longest run.
    pub longest: usize,
    /// Everything was tried. A failure ends the search.
    pub exhausted: bool,
    /// Promises that the last run broke.
    pub failures: Vec<Failure>,
    /// What happened in that run, line by line.
    pub schedule: Vec<String>,
}

/// Runs a scenario in every order, or until a promise is found broken.
#[must_use]
pub fn explore(scenario: Scenario, limits: Limits) -> Exploration {
    explore_with(scenario, limits, None)
}

fn explore_with(scenario: Scenario, limits: Limits, tamper: Option<Tamper>) -> Exploration {
    let commute = match (limits.every_order, scenario.is_one_process()) {
        (true, _) => |_, _| false,
        (false, true) => Move::commutes_in_one_process,
        (false, false) => Move::commutes,
    };
    let mut choices = Choices::new(commute);
    let mut seen = Exploration {
        paths: 0,
        redundant: 0,
        outcomes: BTreeMap::new(),
        longest: 0,
        exhausted: false,
        failures: Vec::new(),
        schedule: Vec::new(),
    };
    while seen.paths + seen.redundant < limits.runs_max {
        let mut stage = Stage::new(scenario, limits.every_order, tamper);
        let complete = run(&mut stage, |moves| choices.choose(moves));
        seen.longest = seen.longest.max(choices.taken());
        if complete {
            seen.paths += 1;
            *seen.outcomes.entry(stage.outcome()).or_default() += 1;
        } else {
            seen.redundant += 1;
        }
        if stage.oracle.has_failed() {
            seen.failures = stage.oracle.verdict().0;
            let stage_again = Stage::new(scenario, limits.every_order, tamper);
            seen.schedule = told(stage_again, &choices.schedule());
            return seen;
        }
        if !choices.next() {
            seen.exhausted = true;
            return seen;
        }
    }
    seen
}

/// Runs until nothing can happen any more, or a promise is broken. Returns whether it was a run to its end.
fn run(stage: &mut Stage, mut choose: impl FnMut(&[Move]) -> Option<Move>) -> bool {
    loop {
        if stage.oracle.has_failed() {
            return true;
        }
        let moves = stage.moves();
        if moves.is_empty() {
            stage.conclude();
            return true;
        }
        let Some(chosen) = choose(&moves) else { return false };
        stage.perform(chosen);
    }
}

/// Runs one schedule again, and says what happens.
fn told(mut stage: Stage, schedule: &[Move]) -> Vec<String> {
    stage.lines = Some(Vec::new());
    let mut left = schedule.iter().copied();
    run(&mut stage, |_| left.next());
    stage.lines.take().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::Promise;
    use portcullis_softnic::core::{Answer, PacketBody, WireRequest};

    /// The promises that are found broken when packets are tampered with.
    fn broken(race: Race, tamper: Tamper) -> Vec<Promise> {
        for reductions in [true, false] {
            let seen = explore_with(Scenario { race, reductions }, Limits::default(), Some(tamper));
            assert!(!seen.failures.is_empty(), "{} paths show nothing", seen.paths);
            assert!(seen.schedule.iter().any(|line| line.contains("is told")), "{:#?}", seen.schedule);
            if !reductions {
                return seen.failures.iter().map(|failure| failure.promise).collect();
            }
        }
        Vec::new()
    }

    #[test]
    fn a_final_notice_that_looks_like_an_extension_is_found() {
        let broken = broken(Race::ExtendOrGiveWay, |packet, _| {
            if let PacketBody::Answer(Answer::Value(value @ 0)) = &mut packet.body {
                *value = 100;
            }
        });
        assert!(broken.contains(&Promise::Truth) && broken.contains(&Promise::Exclusion), "{broken:?}");
    }

    #[test]
    fn an_extension_that_is_shorter_at_the_node_is_found() {
        let broken = broken(Race::ExtendOrExpire, |packet, _| {
            if let PacketBody::Request { request: WireRequest::CompareAndSwap { swap, .. }, .. } =
                &mut packet.body
            {
                *swap = 150;
            }
        });
        assert!(broken.contains(&Promise::Service), "{broken:?}");
    }
}
