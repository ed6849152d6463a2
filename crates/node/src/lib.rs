//! The memory node: who may touch which of its bytes, and until when.
//!
//! The manager of Patronus (FAST'23) §5 as a state machine over any NIC: time comes in as an argument, and nothing
//! here opens a socket or starts a thread. [`Node`] is all of it; its modules are the paper's parts.
#![forbid(unsafe_code)]

mod audit;
mod bars;
mod batches;
mod charging;
mod client;
mod client_ends;
mod config;
mod copying;
mod departures;
mod grants;
mod headers;
mod keeping;
mod key_holders;
mod leases;
mod node;
mod object;
mod page_runs;
mod permissions;
mod postponed;
mod quota;
mod recent_keys;
mod recovery;
mod requests;
mod roster;
mod slabs;
mod table;
mod taint;
mod tenant;
mod violations;
mod waiting;
mod windows;

pub use audit::{AuditEvent, AuditEvents, AuditRecord, AuditedAccess, AuditedPermission, UnknownAuditEvent};
pub use bars::{Bar, ClientReport};
pub use client_ends::ClientEnds;
pub use config::{ConfigError, NodeConfig, Reductions};
pub use node::{Admission, Counters, Node, POOL_BASE, StartError};
pub use quota::Quota;
pub use violations::{Charge, Standing, ViolationLimits, Violations};
