//! A Portcullis cluster in virtual time.
//!
//! Nodes, clients, NICs and the network in one process and one thread; the node, the client library and the software
//! NIC are the real ones. So are the sessions of the paved path, in plans that have them ([`Plan::sessions`]): their
//! calls wait, so each has a thread of its own, which runs only while the cluster has handed it the turn. Everything
//! random comes from one seed, so a run can be had again; [`Plan`] says what it is, [`run`] runs it, [`shrink`] cuts a
//! failing one down. Checkers see every packet and every access at a node's memory, and find promises broken
//! ([`Promise`]) without asking the code that keeps them.
//!
//! Nothing here reads a clock or a device, and nothing here is fit to serve real clients.
#![forbid(unsafe_code)]

mod application;
mod campaign;
mod clock;
mod cluster;
mod connectx5;
mod delivery;
mod dice;
mod endpoint;
mod events;
mod explore;
mod faults;
mod hostile;
mod hosts;
mod lives;
mod memory;
mod network;
mod nic;
mod oracle;
mod plan;
mod report;
mod run;
mod scene;
mod strand;
mod trace;
mod turns;
mod worker;

pub use campaign::campaign;
pub use connectx5::{Effort, InputRow, Inputs, ModelReport, Origin, OutputRow, connectx5, connectx5_with};
pub use explore::{Exploration, Limits, Race, Scenario, explore};
pub use oracle::{Failure, Promise};
pub use plan::{FaultKind, Plan, UnknownFaultKind};
pub use report::Report;
pub use run::{run, shrink};
