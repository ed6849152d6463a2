//! The memory node: decides which client may access which of its bytes, and until when.
//!
//! The manager of Patronus (FAST'23) §5, as a state machine over any NIC: time is an argument, and nothing here opens a
//! socket or starts a thread. [`Node`] joins three parts by values: `books` (decides which client may have which
//! permission; knows no NIC), `enforcement` (makes sure that everything else is refused; one module for each mechanism)
//! and `mailbox` (requests and replies). Beside them, `ends` knows the owner of each queue pair.
#![forbid(unsafe_code)]

mod attaching;
mod audit;
mod books;
mod chunks;
mod config;
mod counters;
mod ends;
mod enforcement;
mod mailbox;
mod node;

pub use audit::{
    AuditEvent, AuditEvents, AuditRecord, AuditedAccess, AuditedChunk, AuditedMember, AuditedName,
    AuditedPermission, AuditedRefusal, UnknownAuditEvent,
};
pub use books::{Bar, Charge, ClientReport, POOL_BASE, Standing, Violations};
pub use chunks::ChunkEnds;
pub use config::{ChunkLimits, ConfigError, NodeConfig, Quota, Reductions, ViolationLimits};
pub use counters::Counters;
pub use ends::{Admission, ClientEnds};
pub use enforcement::{OpenRegion, Regions};
pub use node::{Node, StartError};
