//! A Portcullis cluster in virtual time.
//!
//! Nodes, clients, NICs and the network run in one process and one thread. The node, the client library and the
//! software NIC are the real code. So are sessions and the structures on them, in plans that have them
//! ([`Programs`]). The calls of a session wait, so each session has its own thread, which runs only while the cluster
//! has handed it the turn. All random numbers are drawn from one seed, so a run can be repeated. [`Plan`] describes a
//! run, [`run`] runs it, and [`shrink`] reduces a failing plan. Checkers see every packet and every access to a
//! node's memory. They find broken promises ([`Promise`]) without calling the code that makes them.
//!
//! This crate reads no clock and no device, and it must not serve real clients.
#![forbid(unsafe_code)]

mod alarm;
mod application;
mod asking;
mod calls;
mod campaign;
mod chains;
mod clock;
mod cluster;
mod copy_units;
mod delivery;
mod dice;
mod endpoint;
mod engines;
mod event_queue;
mod explore;
mod faults;
mod fiber;
mod hostile;
mod hosts;
mod links;
mod lives;
mod memory;
mod network;
mod nic;
mod oracle;
mod over_udp;
mod plan;
mod processor;
mod report;
mod run;
mod scene;
mod trace;
mod turns;
mod worker;

// Parts of a simulated cluster, from which the cost models build clusters of their own.
pub use alarm::Alarm;
pub use asking::AskingEnd;
pub use dice::Dice;
pub use endpoint::{SharedNic, SimEndpoint};
pub use event_queue::EventQueue;
pub use fiber::{Fiber, FiberClock, TurnEnd};
pub use links::{LinkFaults, LinkTerms, Links};
pub use memory::SimMemory;
pub use processor::OneProcessor;

pub use campaign::campaign;
pub use chains::{Case, Design, Grain, Search, SearchLimits, search_chains};
pub use copy_units::{CopyCounts, run_copy_units};
pub use engines::{EngineCounts, run_engines};
pub use explore::{Exploration, Limits, Race, Scenario, explore};
pub use oracle::{Failure, Promise};
pub use plan::{FaultKind, Plan, Programs, UnknownFaultKind};
pub use report::Report;
pub use run::{run, shrink};
