//! A search of every state that the chains which allocate and free chunks can reach.
//!
//! The NIC, the chains and the node's work for clients that are gone are the real code. The search takes every
//! possible next step from every state, and recognises states that it has visited. So the search ends, and then no
//! order of the actions of a case's clients breaks the conditions of [`watch`].
//!
//! # Omissions
//! - The order among requests that reach only what belongs to their own worker ([`world`]).
//! - Requests for chunks that arrive before the previous request is processed. They stay in the queue meanwhile.
//! - Messages in transit: a message arrives when it is sent.
//! - A client that returns. It gets new workers, as any new client.
//! - A second break, and the time in which clients have no workers after a rebuild: they get new workers in the same
//!   step.
//! - With [`Grain::Merged`]: the order of requests on which no other queue's requests depend (a copy of a record that
//!   belongs to the worker, the scrub of a chunk that no client reaches, replies).

mod arena;
mod designs;
mod members;
mod node;
mod state;
mod watch;
mod world;

pub use designs::Design;
use std::collections::HashSet;
use std::fmt;
use world::{Move, Snapshot, World};

/// Granularity of the steps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Grain {
    /// Every request of workers that allocate is a step until a worker breaks. Workers that free execute as with
    /// `Merged`.
    AllocRows,
    /// Every request that other queues could notice is a step.
    Request,
    /// Requests on which no other queue's requests depend are executed along with the step before.
    Merged,
}

/// A small system, and the actions of its clients.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Case {
    /// Number of clients.
    pub clients: u64,
    /// Number of chunks.
    pub chunks: u64,
    /// Queue pairs of each client: 1 or 2.
    pub group: usize,
    /// Pairs of workers of each client. Of the second pair, clients use only the worker that frees.
    pub pairs: usize,
    /// Whether clients die, at any step. The node frees what they held.
    pub dies: bool,
    /// Number of chunks that a client may hold, if there is a limit.
    pub quota: Option<u64>,
    /// Whether a worker breaks, at any step. From then on the node may rebuild the pool at any step, and clients
    /// request workers again.
    pub breaks: bool,
    /// Number of chunks that the node takes out of the pool, and gives back with new windows.
    pub reserve: u64,
    /// Granularity of the steps.
    pub grain: Grain,
    /// The chains.
    pub design: Design,
}

impl Case {
    /// One client that does not die, and one chunk.
    pub const SMALLEST: Self = Self {
        clients: 1,
        chunks: 1,
        group: 1,
        pairs: 1,
        dies: false,
        quota: None,
        breaks: false,
        reserve: 0,
        grain: Grain::Request,
        design: Design::Sound,
    };

    /// The cases in which the chains in use hold, each with its description, the shortest searches first.
    pub const SOUND: [(&'static str, Self); 11] = {
        let two = Self { clients: 2, ..Self::SMALLEST };
        let merged = Self { grain: Grain::Merged, ..two };
        [
            ("1 client, 2 chunks, quota of 1", Self { chunks: 2, quota: Some(1), ..Self::SMALLEST }),
            ("1 client, 1 chunk, dies", Self { dies: true, ..Self::SMALLEST }),
            (
                "1 client, 2 chunks, group of 2, dies",
                Self { chunks: 2, group: 2, dies: true, ..Self::SMALLEST },
            ),
            ("2 clients, 1 chunk, merged", merged),
            ("2 clients, 1 chunk, group of 2, merged", Self { group: 2, ..merged }),
            ("2 clients, 1 chunk, die, merged", Self { dies: true, ..merged }),
            ("2 clients, 2 chunks, merged", Self { chunks: 2, ..merged }),
            ("2 clients, 1 chunk, group of 2, die, merged", Self { group: 2, dies: true, ..merged }),
            ("2 clients, 2 chunks, die, merged", Self { chunks: 2, dies: true, ..merged }),
            ("2 clients, 1 chunk", two),
            ("2 clients, 1 chunk, 2 workers that free, merged", Self { pairs: 2, ..merged }),
        ]
    };

    /// The cases in which the node's CPU acts while clients work: a worker breaks, or the pool shrinks and grows. The
    /// shortest searches come first.
    pub const WITH_NODE: [(&'static str, Self); 9] = {
        let one = Self { grain: Grain::Merged, ..Self::SMALLEST };
        let two = Self { clients: 2, ..one };
        let breaks = Self { breaks: true, ..one };
        [
            ("1 client, 1 chunk, reserve of 1, merged", Self { reserve: 1, ..one }),
            ("1 client, 1 chunk, dies, a worker breaks, merged", Self { dies: true, ..breaks }),
            ("1 client, 1 chunk, a worker breaks", Self { breaks: true, ..Self::SMALLEST }),
            ("1 client, 2 chunks, a worker breaks, merged", Self { chunks: 2, ..breaks }),
            ("1 client, 1 chunk, breaks at each row of alloc", Self { grain: Grain::AllocRows, ..breaks }),
            ("1 client, 2 chunks, reserve of 1, merged", Self { chunks: 2, reserve: 1, ..one }),
            ("1 client, 1 chunk, reserve of 1, a worker breaks, merged", Self { reserve: 1, ..breaks }),
            ("2 clients, 1 chunk, reserve of 1, merged", Self { reserve: 1, ..two }),
            ("2 clients, 1 chunk, a worker breaks, merged", Self { breaks: true, ..two }),
        ]
    };

    /// Returns the smallest known case in which a design breaks.
    #[must_use]
    pub const fn breaking(design: Design) -> Self {
        let one = Self { design, ..Self::SMALLEST };
        let two = Self { clients: 2, grain: Grain::Merged, ..one };
        match design {
            Design::Sound
            | Design::OwnerBeforeBinds
            | Design::ScrubBeforeInvalidation
            | Design::NoWaitForReply
            | Design::PatchAfterAdmission
            | Design::BindsNotAwaited => one,
            Design::RebuildFreesHeld
            | Design::RebuildKeepsUntold
            | Design::RebuildKeepsWindows
            | Design::RebuildKeepsBytes
            | Design::RebuildKeepsTickets => Self { breaks: true, ..one },
            Design::RequestReadTwice => Self { chunks: 2, ..one },
            Design::OwnerReadThenWritten => Self { pairs: 2, ..one },
            Design::RingWithoutCount | Design::PushBeforeScrub => two,
            Design::WorkerDies => Self { dies: true, ..two },
            Design::LockWithoutWait
            | Design::RingWithCount
            | Design::RingOneProducer
            | Design::StackBySwap => Self { chunks: 2, ..two },
        }
    }
}

/// Limits at which a search gives up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SearchLimits {
    /// The most states.
    pub states_max: usize,
}

impl Default for SearchLimits {
    fn default() -> Self {
        Self { states_max: 20_000_000 }
    }
}

/// Result of a search.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Search {
    /// Number of different states.
    pub states: usize,
    /// Number of steps from one state to another.
    pub steps: u64,
    /// Number of states in which nothing was under way.
    pub quiet: usize,
    /// Whether all states were explored.
    pub exhausted: bool,
    /// The first broken condition, with the steps that lead to it.
    pub broken: Option<(String, Vec<String>)>,
}

impl fmt::Display for Search {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} states, {} steps, {} quiet", self.states, self.steps, self.quiet)?;
        match &self.broken {
            Some((what, steps)) => write!(f, ": {what} after {} steps: {}", steps.len(), steps.join(", ")),
            None if self.exhausted => write!(f, ": all, and nothing breaks"),
            None => write!(f, ": not all"),
        }
    }
}

/// Explores all states of a case, or stops when something breaks. `look` sees the progress of the search from time to
/// time.
#[must_use]
pub fn search_chains(case: Case, limits: SearchLimits, look: impl FnMut(&Search)) -> Search {
    match case.group {
        1 => search::<1>(case, limits, look),
        _ => search::<2>(case, limits, look),
    }
}

/// How a state was reached: the state before, and the step from it.
struct Origin {
    before: u32,
    step: Option<Move>,
}

fn search<const G: usize>(case: Case, limits: SearchLimits, mut look: impl FnMut(&Search)) -> Search {
    let mut world = World::<G>::new(case);
    let mut known = HashSet::from([world.name()]);
    let mut origins = vec![Origin { before: 0, step: None }];
    let mut level: Vec<(u32, Snapshot<G>)> = vec![(0, world.note())];
    let mut seen = Search { states: 1, ..Search::default() };
    while !level.is_empty() {
        let mut next = Vec::new();
        for (number, snapshot) in level {
            world.put_back(&snapshot);
            let moves = world.moves();
            let mut quiet = true;
            for step in moves {
                world.put_back(&snapshot);
                if !world.perform(step) {
                    continue;
                }
                seen.steps += 1;
                quiet &= step.is_a_whim();
                let is_new = known.insert(world.name());
                if is_new || world.broken.is_some() {
                    world.check(false);
                }
                if let Some(what) = world.broken.take() {
                    origins.push(Origin { before: number, step: Some(step) });
                    return broken(seen, what, &origins);
                }
                if is_new {
                    let place = u32::try_from(origins.len()).unwrap_or(u32::MAX);
                    origins.push(Origin { before: number, step: Some(step) });
                    next.push((place, world.note()));
                }
            }
            if quiet {
                seen.quiet += 1;
                world.put_back(&snapshot);
                world.check(true);
                if let Some(what) = world.broken.take() {
                    origins.push(Origin { before: number, step: None });
                    return broken(seen, what, &origins);
                }
            }
            seen.states = known.len();
            if seen.states > limits.states_max {
                return seen;
            }
        }
        level = next;
        look(&seen);
    }
    seen.exhausted = true;
    seen
}

/// Returns a search that found a fault, with the path from the beginning to the last state.
fn broken(seen: Search, what: String, origins: &[Origin]) -> Search {
    let mut steps = Vec::new();
    let mut at = origins.len() - 1;
    while at > 0 {
        let origin = &origins[at];
        steps.extend(origin.step.map(|step| step.to_string()));
        at = origin.before as usize;
    }
    steps.reverse();
    Search { broken: Some((what, steps)), ..seen }
}

impl fmt::Display for Move {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let worker = |number: &u8| if number.is_multiple_of(2) { "alloc" } else { "free" };
        match self {
            Self::Execute { member, worker: number, part } => {
                let part = format!("{part:?}").to_lowercase();
                write!(f, "{}{member}.{part}", worker(number))
            }
            Self::Ask { member, worker: 0, .. } => write!(f, "client{member} asks for a chunk"),
            Self::Ask { member, chunk: 0, .. } => write!(f, "client{member} frees NIL"),
            Self::Ask { member, chunk, .. } => write!(f, "client{member} frees chunk {}", chunk - 1),
            Self::Die { member } => write!(f, "client{member} dies"),
            Self::Node { member } => write!(f, "the node looks after client{member}"),
            Self::Break { member, worker: number, part } => {
                let part = format!("{part:?}").to_lowercase();
                write!(f, "{}{member}.{part} breaks", worker(number))
            }
            Self::Rebuild => write!(f, "the node rebuilds the pool"),
            Self::Take { .. } => write!(f, "the node takes a chunk"),
            Self::Give { .. } => write!(f, "the node gives a chunk back"),
        }
    }
}
