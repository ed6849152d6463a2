//! The reports that an operator receives.

use crate::AuditStatus;
use crate::engine::TurnCounts;
use crate::wall::{WallClock, WallTime};
use portcullis_node::Counters;
#[cfg(feature = "udp")]
use portcullis_onerma::ResponderCounters;
use portcullis_softnic::core::copy_units::UnitLoad;
use portcullis_softnic::core::engines::EngineLoad;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::SystemTime;

/// A tenant or a client that the node does not serve for a while.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bar {
    /// The tenant's name.
    pub tenant: String,
    /// The client's number on the node. `None`: the bar applies to the tenant with all its clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<u64>,
    /// Whether everything that the tenant or client held has ended. If `false`, it is paused: everything that it holds
    /// continues.
    pub barred: bool,
    /// The time at which the bar or pause began.
    pub since: WallTime,
    /// The time at which it ends, unless the operator lifts it earlier.
    pub until: WallTime,
    /// The reason, in a few words.
    pub reason: String,
}

/// An attached client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientReport {
    /// The node's number for the client.
    pub client: u64,
    /// The name of the client's tenant.
    pub tenant: String,
    /// The client's process, if it is on the node's machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<u32>,
    /// Permissions that the client holds.
    pub permissions: u64,
    /// Bytes of the objects under those permissions; an object counts once for each permission.
    pub bytes: u64,
    /// Chunks that the client holds, as far as the node has recorded them.
    #[serde(default)]
    pub chunks: u64,
    /// The client's accesses that were refused since it attached.
    pub violations: Violations,
    /// Whether the node serves the client. Bars and pauses of its tenant count.
    pub standing: Standing,
}

/// A client's refused accesses, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violations {
    /// Accesses with a key that the client had held until a moment before.
    pub late: u64,
    /// Accesses with a key that the client holds, at a place to which the key gives no access.
    pub stray: u64,
    /// Accesses with a key that the client never had.
    pub guesses: u64,
}

/// Whether a node serves a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "kebab-case")]
pub enum Standing {
    /// The client is served.
    Good,
    /// The client is not served until the pause ends.
    Paused {
        /// When the pause ends.
        until: WallTime,
    },
    /// The client is not served until the bar ends, and everything that it held has ended.
    Barred {
        /// When the bar ends.
        until: WallTime,
    },
}

/// A node's counters, and the state of its audit log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// The events that the node has counted, and the amounts that it holds.
    pub counters: Counters,
    /// Durations of the turns of the node's thread.
    #[serde(default)]
    pub turns: Turns,
    /// The work of each copy unit of the software NIC, in the order of their numbers. Empty: the node's thread moves all
    /// bytes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub copy_units: Vec<CopyUnitLoad>,
    /// The work of each engine of the software NIC, in the order of their numbers. Empty: the node's thread serves all
    /// clients.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub engines: Vec<EngineReport>,
    /// The work of each lane of clients over UDP, in the order of their numbers. One lane without a setting for lanes is
    /// the node's own thread. Empty: the node serves no such clients.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub udp_lanes: Vec<UdpLaneLoad>,
    /// The node's audit log, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audit: Option<AuditStatus>,
}

/// Durations of the turns of a node's thread that had something to do, since the node started. An operation may have to
/// wait for such a turn. Time in which other programs had the processor is included.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turns {
    /// The longest turn, in microseconds.
    pub longest_us: u64,
    /// The longest turn by the processor time of the node's thread, in microseconds.
    pub longest_of_processor_us: u64,
    /// Number of turns by duration. A key is a number of microseconds: its turns were shorter than the key, and not
    /// shorter than half of it.
    pub shorter_than_us: BTreeMap<u64, u64>,
}

/// The work of a copy unit since the node started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyUnitLoad {
    /// Number of pieces of transfers that the unit was given.
    pub pieces: u64,
    /// Bytes of these pieces.
    pub bytes: u64,
    /// Number of these pieces that wait or move now.
    pub waiting: u64,
}

impl From<UnitLoad> for CopyUnitLoad {
    fn from(UnitLoad { pieces, bytes, waiting }: UnitLoad) -> Self {
        Self { pieces, bytes, waiting }
    }
}

/// The work of an engine of the software NIC since the node started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineReport {
    /// Number of clients that the engine serves now.
    pub clients: usize,
    /// Number of requests that have ended on the engine since the node started.
    pub requests: u64,
}

impl From<EngineLoad> for EngineReport {
    fn from(EngineLoad { clients, requests }: EngineLoad) -> Self {
        Self { clients, requests }
    }
}

/// The work of a lane of clients over UDP since the node started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UdpLaneLoad {
    /// Number of operations that were carried out.
    pub operations: u64,
    /// Number of operations that were refused, with those that no key had sealed.
    pub refused: u64,
    /// Number of operations that were rejected since too many were under way. Their clients repeat them.
    pub congested: u64,
}

#[cfg(feature = "udp")]
impl From<&ResponderCounters> for UdpLaneLoad {
    fn from(counters: &ResponderCounters) -> Self {
        let &ResponderCounters { refused, nacks, reads, writes, atomics, rekeys, .. } = counters;
        Self { operations: reads + writes + atomics + rekeys, refused, congested: nacks }
    }
}

impl Turns {
    pub(super) fn new(turns: &TurnCounts) -> Self {
        let counted = (0..).zip(turns.counts).filter(|&(_, count)| count > 0);
        Self {
            longest_us: turns.longest.0,
            longest_of_processor_us: turns.longest_of_processor.0,
            shorter_than_us: counted.map(|(power, count)| (1 << power, count)).collect(),
        }
    }
}

/// Returns a wall clock set from the machine's clock, when the node's time is `now`.
pub(super) fn clock(now: portcullis_protocol::Moment) -> WallClock {
    WallClock::new(now, SystemTime::now().into())
}

impl Bar {
    pub(super) fn new(bar: &portcullis_node::Bar, clock: WallClock) -> Self {
        Self {
            tenant: bar.tenant.to_string(),
            client: bar.client.map(|client| client.0),
            barred: bar.barred,
            since: clock.at(bar.since),
            until: clock.at(bar.until),
            reason: bar.charge.reason().to_owned(),
        }
    }
}

impl ClientReport {
    pub(super) fn new(client: &portcullis_node::ClientReport, clock: WallClock) -> Self {
        let portcullis_node::Violations { late, stray, guesses } = client.violations;
        Self {
            client: client.id.0,
            tenant: client.tenant.to_string(),
            process: client.process,
            permissions: client.permissions,
            bytes: client.bytes,
            chunks: client.chunks,
            violations: Violations { late, stray, guesses },
            standing: match client.standing {
                portcullis_node::Standing::Good => Standing::Good,
                portcullis_node::Standing::Paused { until } => Standing::Paused { until: clock.at(until) },
                portcullis_node::Standing::Barred { until } => Standing::Barred { until: clock.at(until) },
            },
        }
    }
}
