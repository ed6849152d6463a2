//! The simulator's exhaustive mode: small races, run in every order in which their steps can happen.
//!
//! The node, the client library and the NIC are the real code, as everywhere in the simulator; only the loop differs.
//! Nothing is random: the simulator draws the times of its network and machines, while this mode tries all orders, by
//! depth-first search over complete runs ([`choices`]). The possible steps are a packet's arrival, a turn of the
//! node's processor or of its NIC, a client's next action, and the passing of time to the next moment that matters
//! ([`moves`]). The simulator's checkers watch every step, together with some that know the race ([`watch`]).
//!
//! # Omissions
//! - Orders that lead to the same state as an order that is tried, by sleep sets.
//! - Late looks. A client looks at a packet when it arrives; a late look is like a late arrival.
//! - Late actions. A client acts as soon as it can, and what it posts leaves at once; slowness is like a packet that
//!   travels for long. The moment of an action is a choice only if it matters what the client knows.
//! - Acknowledgements of control messages before the end of the race: they only free slots, and no queue runs out of
//!   slots. Requests for the rebuild of a broken queue pair also wait for the end.
//! - Idle turns. The node has a turn only when something has arrived or is due.
//! - Other times. Time stops only just before a deadline, at it, and when a window has lingered long enough. All clocks
//!   are the same; the simulator covers clocks that drift.
//! - Separate turns of the node's NIC, in races with many packets in which windows do not matter.
//! - Cut turns. The node's accesses to its memory, and a batch of binds, are one step. The software NIC's engine runs
//!   both on one thread, so this matches it.

mod actor;
mod choices;
mod conclusion;
mod moves;
mod scenarios;
mod watch;
mod wires;
mod world;

use crate::oracle::Failure;
use choices::Choices;
use moves::Move;
pub use scenarios::{Race, Scenario};
use std::collections::BTreeMap;
use world::{Tamper, World};

/// The limits of an exploration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// The search gives up after this many runs, complete or not.
    pub runs_max: u64,
    /// Whether orders that are known to lead to the same state are tried as well, to check that they do.
    pub every_order: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self { runs_max: 2_000_000, every_order: false }
    }
}

/// The result of an exploration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Exploration {
    /// Complete runs, each in another order. If `exhausted`, these are all.
    pub paths: u64,
    /// Runs that were broken off, because the rest of the run was covered in another order.
    pub redundant: u64,
    /// The answers that the clients got, with the number of complete runs for each.
    pub outcomes: BTreeMap<String, u64>,
    /// Number of decisions in the longest run.
    pub longest: usize,
    /// Whether all orders were tried. A failure ends the search before that.
    pub exhausted: bool,
    /// Promises that the last run broke.
    pub failures: Vec<Failure>,
    /// The events of the failing run, line by line.
    pub schedule: Vec<String>,
}

/// Runs a scenario in every order, or until a promise is broken.
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
        let mut world = World::new(scenario, limits.every_order, tamper);
        let complete = run(&mut world, |moves| choices.choose(moves));
        seen.longest = seen.longest.max(choices.taken());
        if complete {
            seen.paths += 1;
            *seen.outcomes.entry(world.outcome()).or_default() += 1;
        } else {
            seen.redundant += 1;
        }
        if world.oracle.has_failed() {
            seen.failures = world.oracle.verdict().0;
            let world_again = World::new(scenario, limits.every_order, tamper);
            seen.schedule = told(world_again, &choices.schedule());
            return seen;
        }
        if !choices.next() {
            seen.exhausted = true;
            return seen;
        }
    }
    seen
}

/// Runs until nothing can happen any more, or a promise is broken. Returns whether the run was complete.
fn run(world: &mut World, mut choose: impl FnMut(&[Move]) -> Option<Move>) -> bool {
    loop {
        if world.oracle.has_failed() {
            return true;
        }
        let moves = world.moves();
        if moves.is_empty() {
            world.conclude();
            return true;
        }
        let Some(chosen) = choose(&moves) else { return false };
        world.perform(chosen);
    }
}

/// Runs one schedule again, and returns its events as lines.
fn told(mut world: World, schedule: &[Move]) -> Vec<String> {
    world.lines = Some(Vec::new());
    let mut left = schedule.iter().copied();
    run(&mut world, |_| left.next());
    world.lines.take().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::Promise;
    use portcullis_softnic::core::{PacketBody, Response, WireRequest};

    /// Returns the promises that are found broken when a test tampers with packets.
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
            if let PacketBody::Response(Response::Value(value @ 0)) = &mut packet.body {
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
